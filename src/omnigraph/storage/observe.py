"""Observe storage traffic: request counts of this process, and a test hook before every durable write."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Literal

from lance.lance import register_lance_metrics_recorder, snapshot_lance_metrics

from omnigraph.core.nonblocking import may_block

RequestKind = Literal["get", "put", "head", "list", "delete"]

_METRIC = "lance_object_store_requests_total"
_UNCHANGING: tuple[RequestKind, ...] = ("get", "head", "list")

_own: Counter[str] = Counter()
_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class RequestCounts:
    """Numbers of requests, by kind."""

    get: int = 0
    put: int = 0
    head: int = 0
    list: int = 0
    delete: int = 0

    @property
    def total(self) -> int:
        return self.get + self.put + self.head + self.list + self.delete

    @property
    def writes(self) -> int:
        return self.put + self.delete

    def __sub__(self, earlier: RequestCounts) -> RequestCounts:
        before = asdict(earlier)
        return RequestCounts(**{kind: count - before[kind] for kind, count in asdict(self).items()})


class RequestCounter:
    """The requests since a block began; final once it has ended. Has the attributes of `RequestCounts`."""

    def __init__(self) -> None:
        self._start = snapshot()
        self._end: RequestCounts | None = None

    @property
    def requests(self) -> RequestCounts:
        return (self._end or snapshot()) - self._start

    def stop(self) -> None:
        self._end = snapshot()

    def __getattr__(self, name: str) -> int:
        count: int = getattr(self.requests, name)
        return count


@contextmanager
def counted() -> Iterator[RequestCounter]:
    """Count the requests of a block, from all threads.

    with counted() as requests:
        ...
    print(requests.total)
    """
    counting = RequestCounter()
    try:
        yield counting
    finally:
        counting.stop()


def snapshot() -> RequestCounts:
    """Return the requests since the process began. Lance's own are counted from the first snapshot on."""
    installed = register_lance_metrics_recorder()
    assert installed, "another recorder has been registered with lance: its requests cannot be counted"
    with _lock:
        counts = _own.copy()
    for point in snapshot_lance_metrics():
        if point.name == _METRIC:
            # Listings of a local directory are missing in these figures.
            counts[_kind_of(point.attributes["operation"])] += int(point.value or 0)
    return RequestCounts(**counts)


def _kind_of(operation: str) -> RequestKind:
    """Classify an operation of Lance, such as get_ranges, create_multipart or copy.

    Unknown ones count as put, so that a write is never taken for a read.
    """
    if operation == "abort_multipart":
        return "delete"
    for kind in _UNCHANGING:
        if operation.startswith(kind):
            return kind
    return "delete" if operation.startswith("delete") else "put"


def count(kind: RequestKind) -> None:
    """Count one request that is about to be made."""
    may_block()
    with _lock:
        _own[kind] += 1


WriteHook = Callable[[str, str], None]

on_durable_write: WriteHook | None = None


def set_write_hook(hook: WriteHook | None) -> WriteHook | None:
    """Call `hook(operation, path)` before every durable write; return the previous hook."""
    global on_durable_write
    previous, on_durable_write = on_durable_write, hook
    return previous


def durable_write(operation: str, path: str) -> None:
    """Test hook, called before every durable write. Crash tests count these calls, or die at the k-th."""
    # Read once: a test may take the hook away in another thread between the check and the call.
    hook = on_durable_write
    if hook is not None:
        hook(operation, path)
