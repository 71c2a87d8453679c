"""The executor of this process, and the storage that tasks of all processes reach with their credentials."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from omnigraph.api.options import Engine
from omnigraph.api.progress import SILENT, Progress
from omnigraph.core.executor import Executor, R, T, map_in_threads
from omnigraph.core.location import Location
from omnigraph.storage.objects import ObjectStore
from omnigraph.storage.stage import TableStorage

Credentials = tuple[tuple[str, str], ...]
StartSpark = Callable[[Progress], Executor]

# Proxies too: a worker that reaches the bucket by another way than the driver fails in ways that are hard to explain.
_VARIABLES = re.compile(r"AWS_\w+|(?:NO|HTTPS?|ALL)_PROXY", re.IGNORECASE)


class LocalExecutor:
    """Runs tasks in this process, one after the other or in some threads."""

    def __init__(self, progress: Progress = SILENT, at_once: int = 1) -> None:
        self._progress = progress
        self._at_once = at_once

    def run(self, phase: str, step: Callable[[T], R], tasks: Sequence[T]) -> list[R]:
        self._progress.phase(phase, len(tasks))
        results = []
        for result in map_in_threads(step, tasks, self._at_once):
            self._progress.advance(1, rows_of(result))
            results.append(result)
        return results


def executor_for(engine: Engine, spark: StartSpark | None, progress: Progress) -> Executor:
    """Start Spark if there is a way to and the engine is not local; else work in this process."""
    return LocalExecutor(progress) if engine is Engine.LOCAL or spark is None else spark(progress)


def rows_of(result: Any) -> int:
    """Return the number of rows that a result stands for: its `rows`, if it has any."""
    return int(getattr(result, "rows", 0))


def credentials() -> Credentials:
    """Return the environment variables that configure access to storage."""
    return tuple(sorted((name, value) for name, value in os.environ.items() if _VARIABLES.fullmatch(name)))


def objects_at(location: Location) -> ObjectStore:
    return _objects(location, credentials())


def tables_at(location: Location) -> TableStorage:
    return _tables(location, credentials())


# Cached by credentials, too: a worker outlives them, and a store keeps those it was opened with.


@lru_cache(maxsize=4)
def _objects(location: Location, _: Credentials) -> ObjectStore:
    return ObjectStore(location)


@lru_cache(maxsize=4)
def _tables(location: Location, _: Credentials) -> TableStorage:
    return TableStorage(location)


def set_credentials(variables: Mapping[str, str]) -> None:
    """Set the variables for storage, and unset all others: a worker may be older than they are."""
    for name, _ in credentials():
        if name not in variables:
            del os.environ[name]
    os.environ.update(variables)
