"""How many changes one actor may have under way at once, and how many bytes of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from omnigraph.errors import TooManyRequestsError
from omnigraph.server.settings import Limits

RETRY_AFTER = 60
ANONYMOUS = "anonymous"


class Admission:
    """Counts what each actor has under way in this process. One per application; safe to share between threads."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._under_way: dict[str, tuple[int, int]] = {}
        self._changes = 0

    @contextmanager
    def admit(self, actor: str | None, size: int) -> Iterator[None]:
        """Let a change of `size` bytes in for the length of the block, or raise TooManyRequestsError."""
        key = ANONYMOUS if actor is None else actor
        self._enter(key, size)
        try:
            yield
        finally:
            self._leave(key, size)

    def under_way(self) -> int:
        """Count the changes of all actors."""
        with self._lock:
            return self._changes

    def _enter(self, key: str, size: int) -> None:
        with self._lock:
            requests, volume = self._under_way.get(key, (0, 0))
            reason = self._too_much(key, requests + 1, volume + size)
            if reason is None:
                self._under_way[key] = (requests + 1, volume + size)
                self._changes += 1
                return
        raise TooManyRequestsError(f"{reason} under way already", hint="wait until some of it is done")

    def _leave(self, key: str, size: int) -> None:
        with self._lock:
            self._changes -= 1
            requests, volume = self._under_way.pop(key)
            if requests > 1:
                self._under_way[key] = (requests - 1, volume - size)

    def _too_much(self, key: str, requests: int, volume: int) -> str | None:
        limits = self._limits
        if requests > limits.actor_requests:
            return f"'{key}' has {limits.actor_requests} changes, the most that one actor may have,"
        if volume > limits.actor_bytes:
            return f"'{key}' has changes of {limits.actor_bytes} bytes, the most that one actor may have,"
        if self._changes >= limits.changes:  # they wait for each other, and reads must find a thread
            return f"the server has {limits.changes} changes"
        return None


def size_of(content_length: bytes | str | None, most: int) -> int:
    """How many bytes a request counts for: what it says, or the most that it may have if it does not say."""
    try:
        return min(int(content_length or most), most)
    except ValueError:
        return most
