"""Where the steps of the pipeline run: an executor takes a function and its tasks, and returns the results in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from omnigraph.commit.runner import R, Runner, T
from omnigraph.pipeline.progress import SILENT, Progress

Executor = Runner


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
