"""Where the steps of the pipeline run: an executor takes a function and its tasks, and returns the results in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from omnigraph.pipeline.progress import SILENT, Progress

T = TypeVar("T")
R = TypeVar("R")


class Executor(Protocol):
    """Runs one step over many tasks.

    A step is a function of a module. Its task and its result can be pickled and are small. It may run more than once
    for one task, on any machine, so it leaves nothing behind that would count twice. What it raises, `run` raises.
    """

    def run(self, phase: str, step: Callable[[T], R], tasks: Sequence[T]) -> list[R]:
        """Return one result for each task, in the order of the tasks. `phase` is what a person is told."""


class LocalExecutor:
    """Runs the tasks in this process, one after the other."""

    def __init__(self, progress: Progress = SILENT) -> None:
        self._progress = progress

    def run(self, phase: str, step: Callable[[T], R], tasks: Sequence[T]) -> list[R]:
        self._progress.phase(phase, len(tasks))
        return [self._one(step, task) for task in tasks]

    def _one(self, step: Callable[[T], R], task: T) -> R:
        result = step(task)
        self._progress.advance(1, rows_of(result))
        return result


def rows_of(result: Any) -> int:
    """How many rows a result stands for: its `rows`, if it has some."""
    return int(getattr(result, "rows", 0))
