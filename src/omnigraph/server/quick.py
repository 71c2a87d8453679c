"""Which questions are quick: those that were, many times in a row."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from omnigraph.core.nonblocking import WouldBlock

_QUICK_SECONDS = 0.005
_OFTEN = 16
_SET_BACK = 4  # so that one that always turns out to take long is not tried each time
_MOST_KNOWN = 10_000


class Quick:
    """How often in a row each question was answered quickly. If threads tell at once, a count may be lost: no harm."""

    def __init__(self) -> None:
        self._times: dict[int, int] = {}

    def knows(self, question: int) -> bool:
        return self._times.get(question, 0) >= _OFTEN

    @contextmanager
    def timed(self, question: int) -> Iterator[None]:
        """Time the work on a question, not the waiting for others. A failure tells nothing about the next."""
        begun = time.thread_time()
        try:
            yield
        except WouldBlock:
            self._times[question] = max(0, self._times.get(question, 0) - _SET_BACK)
            raise
        was_quick = time.thread_time() - begun < _QUICK_SECONDS
        if len(self._times) >= _MOST_KNOWN:
            self._times.clear()
        self._times[question] = self._times.get(question, 0) + 1 if was_quick else 0
