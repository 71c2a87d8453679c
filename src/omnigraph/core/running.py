"""A query while it runs: until when it may, whether an answer is still wanted, and how much memory it holds.

The code below asks between batches of work, and before it takes memory. All queries of a process share one budget.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from omnigraph.errors import MemoryBusyError, QueryTimeoutError

_POLL = 0.05  # seconds between two looks at the clock by a query that waits for memory


class Unwanted(Exception):  # noqa: N818 - control flow, not an error: there is no caller left who could read one
    """Raised in a query whose caller has gone. Internal; never reaches users."""


class Running:
    """One query."""

    def __init__(self, seconds: float | None, unwanted: threading.Event | None) -> None:
        self.seconds, self.unwanted = seconds, unwanted
        self.ends = None if seconds is None else time.monotonic() + seconds
        self.live = 0  # bytes of the rows that the last step has made
        self.kept = 0  # bytes of rows that are worked on in parts
        self.held = 0  # bytes of the budget: those, and what the step that runs may take
        self.waits = False

    @contextmanager
    def keeping(self, size: int) -> Iterator[None]:
        """Count so many bytes as held throughout the block."""
        self.kept += size
        try:
            yield
        finally:
            self.kept -= size

    def check(self) -> None:
        """Raise if the query has to stop."""
        if self.unwanted is not None and self.unwanted.is_set():
            raise Unwanted
        if self.ends is not None and time.monotonic() > self.ends:
            assert self.seconds is not None
            hint = "bind the variables more narrowly, or allow more time with `timeout`"
            raise QueryTimeoutError(f"the query takes longer than {self.seconds:g} s", seconds=self.seconds, hint=hint)


class Budget:
    """The bytes that the queries of this process hold together."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._holders: set[Running] = set()

    @property
    def taken(self) -> int:
        return sum(one.held for one in self._holders)

    def take(self, asking: Running, total: int, limit: int) -> None:
        """Let a query hold so many bytes in all, once the other queries leave so many of the limit."""
        with self._changed:
            while self.taken - asking.held + total > limit:
                # Waiting is safe as long as one query goes on: it will end. If all hold and wait, none ever would.
                if not any(one is not asking and not one.waits for one in self._holders):
                    message = f"other queries hold too much of the {limit:,} bytes that all of this process may take"
                    raise MemoryBusyError(message, hint="retry when some of them are done")
                asking.waits = True
                try:
                    self._changed.wait(_POLL)
                    asking.check()
                finally:
                    asking.waits = False
            asking.held = total
            self._holders.add(asking)

    def give_back(self, asking: Running, kept: int) -> None:
        """Let a query hold fewer bytes."""
        if asking.held > kept:
            with self._changed:
                asking.held = kept
                if not kept:
                    self._holders.discard(asking)
                self._changed.notify_all()


BUDGET = Budget()
_RUNNING: ContextVar[Running | None] = ContextVar("running", default=None)
_BOUNDS: ContextVar[tuple[float | None, threading.Event | None]] = ContextVar("bounds", default=(None, None))


@contextmanager
def bounded(seconds: float | None, unwanted: threading.Event | None) -> Iterator[None]:
    """Bound the queries of the block: in time, and until an event that says that no answer is wanted any more."""
    token = _BOUNDS.set((seconds, unwanted))
    try:
        yield
    finally:
        _BOUNDS.reset(token)


@contextmanager
def running(seconds: float | None) -> Iterator[Running]:
    """Run a query in the block, for so many seconds at most."""
    most, unwanted = _BOUNDS.get()
    query = Running(min((one for one in (seconds, most) if one is not None), default=None), unwanted)
    token = _RUNNING.set(query)
    try:
        yield query
    finally:
        _RUNNING.reset(token)
        BUDGET.give_back(query, 0)


def current() -> Running | None:
    """Return the query that runs here."""
    return _RUNNING.get()


def proceed() -> None:
    """Raise if the query that runs here has to stop. Call it between batches of work."""
    query = _RUNNING.get()
    if query is not None:
        query.check()
