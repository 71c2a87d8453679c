"""Where the steps of the pipeline run: an executor takes a function and its tasks, and returns the results in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from omnigraph.api.progress import SILENT, Progress
from omnigraph.core.executor import R, T, map_in_threads


class LocalExecutor:
    """Runs the tasks in this process, one after the other, or some at once."""

    def __init__(self, progress: Progress = SILENT, at_once: int = 1) -> None:
        self._progress = progress
        self._at_once = at_once

    def run(self, phase: str, step: Callable[[T], R], tasks: Sequence[T]) -> list[R]:
        self._progress.phase(phase, len(tasks))
        return [self._seen(result) for result in map_in_threads(step, tasks, self._at_once)]

    def _seen(self, result: R) -> R:
        self._progress.advance(1, rows_of(result))
        return result


def rows_of(result: Any) -> int:
    """How many rows a result stands for: its `rows`, if it has some."""
    return int(getattr(result, "rows", 0))
