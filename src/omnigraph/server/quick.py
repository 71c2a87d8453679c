"""Which questions are quick: those that were, many times in a row."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

_QUICK_SECONDS = 0.005
_OFTEN = 16
_MOST_KNOWN = 10_000


class Quick:
    """How often in a row each question was answered quickly. If threads tell at once, a count may be lost: no harm."""

    def __init__(self) -> None:
        self._times: dict[int, int] = {}

    def knows(self, question: int) -> bool:
        return self._times.get(question, 0) >= _OFTEN

    @contextmanager
    def timed(self, question: int) -> Iterator[None]:
        """Time the answer to a question. One that fails tells nothing about the next."""
        begun = time.perf_counter()
        yield
        was_quick = time.perf_counter() - begun < _QUICK_SECONDS
        if len(self._times) >= _MOST_KNOWN:
            self._times.clear()
        self._times[question] = self._times.get(question, 0) + 1 if was_quick else 0
