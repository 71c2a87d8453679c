"""The executor of this process, and the storage credentials that tasks of other processes need."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from omnigraph.api.progress import SILENT, Progress
from omnigraph.core.executor import R, T, map_in_threads

Credentials = tuple[tuple[str, str], ...]

_VARIABLES = re.compile(r"AWS_\w+|(?:NO|HTTPS?|ALL)_PROXY", re.IGNORECASE)


class LocalExecutor:
    """Runs tasks in this process, one after the other or in some threads."""

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
    """Return the number of rows that a result stands for: its `rows`, if it has any."""
    return int(getattr(result, "rows", 0))


def credentials() -> Credentials:
    """Return the environment variables that configure access to storage."""
    return tuple(sorted((name, value) for name, value in os.environ.items() if _VARIABLES.fullmatch(name)))


def set_credentials(variables: Mapping[str, str]) -> None:
    """Set the variables for storage, and unset all others: a worker may be older than they are."""
    for name, _ in credentials():
        if name not in variables:
            del os.environ[name]
    os.environ.update(variables)
