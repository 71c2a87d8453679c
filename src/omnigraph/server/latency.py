"""Latency tracker: which queries were quick many times in a row, and so may run on the event loop."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from omnigraph.core.nonblocking import WouldBlock

QUICK_SECONDS = 0.005
QUICK_RUNS = 16
_PENALTY = 4  # runs; a query that always turns out to block is then not tried on the loop each time
_MAX_KEYS = 10_000


def query_key(graph_id: str, source: str, name: str | None) -> int:
    """Identify a query across requests; its parameters may differ each time."""
    # A number and not the text: ten thousand long queries would be kept alive. A collision only misjudges the speed of
    # one.
    return hash((graph_id, source, name))


class LatencyTracker:
    """Counts how often in a row each query was quick. Threads may lose an update of each other, which does no harm."""

    def __init__(self) -> None:
        self._runs: dict[int, int] = {}

    def is_quick(self, key: int) -> bool:
        return self._runs.get(key, 0) >= QUICK_RUNS

    @contextmanager
    def measure(self, key: int) -> Iterator[None]:
        """Measure one run of a query. A failed run says nothing about the next one and is not counted."""
        # CPU time of this thread: waiting for a busy machine must not make a query look slow.
        started = time.thread_time()
        try:
            yield
        except WouldBlock:
            self._runs[key] = max(0, self._runs.get(key, 0) - _PENALTY)
            raise
        # All of them: to find the oldest would cost each lookup more than sixteen slow runs cost after a reset.
        if len(self._runs) >= _MAX_KEYS:
            self._runs.clear()
        self._runs[key] = self._runs.get(key, 0) + 1 if time.thread_time() - started < QUICK_SECONDS else 0
