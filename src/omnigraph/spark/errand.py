"""A call that runs in a thread of its own, so that whoever waits for it can be interrupted, and the call cannot.

Ctrl-C raises KeyboardInterrupt in the main thread, wherever that is. In the middle of a talk with the JVM it would
leave the answer to one question for the next one to read.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, Self, TypeVar

T = TypeVar("T")


class Errand(Generic[T]):
    """A call under way."""

    def __init__(self, call: Callable[[], T], thread: Callable[..., threading.Thread] = threading.Thread) -> None:
        self._call = call
        self._done = threading.Event()
        self._result: list[T] = []
        self._error: BaseException | None = None
        thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        with self:
            self._result.append(self._call())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        """Keep what the call raises for whoever waits: it is his, not that of the thread."""
        self._error = error
        self._done.set()
        return True

    def wait(self, seconds: float | None = None) -> bool:
        """Tell whether it is done, after so many seconds at most."""
        return self._done.wait(seconds)

    def result(self) -> T:
        """Wait for what the call returns, or raises."""
        self._done.wait()
        if self._error is not None:
            raise self._error
        return self._result[0]
