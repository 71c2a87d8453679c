"""The executor of this process, and the storage that tasks of all processes reach with their credentials."""

from __future__ import annotations

import os
import re
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import lru_cache, partial
from tempfile import SpooledTemporaryFile
from typing import Any, Generic

from omnigraph.api.options import Engine
from omnigraph.api.progress import SILENT, Progress
from omnigraph.core.executor import Executor, Parcel, ParcelRoute, R, Scattered, T, map_in_threads
from omnigraph.core.location import Location
from omnigraph.storage.objects import ObjectStore
from omnigraph.storage.stage import TableStorage

_SPOOLED = 256 * 2**20
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

    def scatter(
        self, phase: str, step: Callable[[T], tuple[R, Sequence[Parcel]]], tasks: Sequence[T]
    ) -> LocalParcels[R]:
        self._progress.phase(phase, len(tasks))
        with ExitStack() as failing:
            sent = failing.enter_context(closing(LocalParcels[R]()))
            for result, parcels in map_in_threads(step, tasks, self._at_once):
                self._progress.advance(1, rows_of(result))
                sent.add(result, parcels)
            failing.pop_all()
        return sent

    def gather(
        self,
        phase: str,
        step: Callable[[T, list[Parcel]], R],
        tasks: Sequence[T],
        sent: Sequence[Scattered[Any]],
        routes: Mapping[int, ParcelRoute],
    ) -> list[R]:
        self._progress.phase(phase, len(tasks))
        received: dict[int, list[Callable[[], Parcel]]] = defaultdict(list)
        for some in sent:
            assert isinstance(some, LocalParcels), "an executor gathers what it scattered"
            for parcel, fetch in some.addressed():
                if parcel.section in routes:
                    for receiver in routes[parcel.section].receivers(parcel.share, parcel.of):
                        received[receiver].append(fetch)

        def work(task: tuple[int, T]) -> R:
            return step(task[1], [fetch() for fetch in received[task[0]]])

        results = []
        for result in map_in_threads(work, list(enumerate(tasks)), self._at_once):
            self._progress.advance(1, rows_of(result))
            results.append(result)
        return results


class LocalParcels(Generic[R]):
    """Parcels in this process: in memory, and in a temporary file once they are many."""

    def __init__(self) -> None:
        self.results: list[R] = []
        self._file = SpooledTemporaryFile(max_size=_SPOOLED)  # noqa: SIM115 - closed by `close`
        self._lock = threading.Lock()
        self._index: list[tuple[Parcel, int, int]] = []  # each without its data, then where that is

    def add(self, result: R, parcels: Sequence[Parcel]) -> None:
        """Keep the result and the parcels of the next task."""
        for parcel in parcels:
            entry = parcel._replace(data=b"", sender=len(self.results))
            self._index.append((entry, self._file.tell(), len(parcel.data)))
            self._file.write(parcel.data)
        self.results.append(result)

    def addressed(self) -> Iterator[tuple[Parcel, Callable[[], Parcel]]]:
        """Yield parcels without their data, and a function that fetches each with it."""
        for entry in self._index:
            yield entry[0], partial(self._fetch, *entry)

    def read(self, section: int, senders: Collection[int]) -> list[Parcel]:
        chosen = [entry for entry in self._index if entry[0].section == section and entry[0].sender in senders]
        return [self._fetch(*entry) for entry in chosen]

    def close(self) -> None:
        self._file.close()

    def _fetch(self, parcel: Parcel, start: int, size: int) -> Parcel:
        with self._lock:  # tasks may read from several threads
            self._file.seek(start)
            return parcel._replace(data=self._file.read(size))


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
