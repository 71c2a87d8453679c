"""Admission control: how many changes, and how many bytes of them, one actor may have in progress."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from omnigraph.errors import TooManyRequestsError
from omnigraph.server.settings import Limits

# Seconds, fixed by the wire contract: what fills the places is usually a load, which takes about as long.
RETRY_AFTER = 60
ANONYMOUS = "anonymous"


class Admission:
    """Counts the changes in progress of each actor in this process. One per application; thread-safe."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._in_progress: dict[str, tuple[int, int]] = {}
        self._changes = 0

    @contextmanager
    def admit(self, actor: str | None, size: int) -> Iterator[None]:
        """Admit a change of `size` bytes for the length of the block, or raise TooManyRequestsError."""
        # All callers of an open server share one budget.
        key = ANONYMOUS if actor is None else actor
        self._enter(key, size)
        try:
            yield
        finally:
            self._leave(key, size)

    def in_progress(self) -> int:
        """Count the changes of all actors."""
        with self._lock:
            return self._changes

    def _enter(self, key: str, size: int) -> None:
        with self._lock:
            requests, volume = self._in_progress.get(key, (0, 0))
            reason = self._exceeded(key, requests + 1, volume + size)
            if reason is None:
                self._in_progress[key] = (requests + 1, volume + size)
                self._changes += 1
                return
        raise TooManyRequestsError(f"{reason} in progress", hint="retry when some of them are done")

    def _leave(self, key: str, size: int) -> None:
        with self._lock:
            self._changes -= 1
            requests, volume = self._in_progress.pop(key)
            # An actor without changes keeps no entry: else the table would grow with every actor ever seen.
            if requests > 1:
                self._in_progress[key] = (requests - 1, volume - size)

    def _exceeded(self, key: str, requests: int, volume: int) -> str | None:
        limits = self._limits
        if requests > limits.actor_requests:
            return f"'{key}' has the maximum of {limits.actor_requests} changes"
        if volume > limits.actor_bytes:
            return f"'{key}' has more than the maximum of {limits.actor_bytes} bytes of changes"
        # Changes wait for each other and each holds a thread; reads must still find one.
        if self._changes >= limits.changes:
            return f"the server has the maximum of {limits.changes} changes"
        return None


def size_of(content_length: bytes | str | None, most: int) -> int:
    """Return how many bytes a request counts for: its Content-Length, or the maximum if it has none."""
    try:
        return min(int(content_length or most), most)
    except ValueError:
        return most
