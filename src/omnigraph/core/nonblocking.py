"""Non-blocking mode: a read either comes from memory at once, or raises `WouldBlock`.

An event loop must not wait for storage or for a long computation. It runs a read inside `nonblocking()`; the code
below calls `may_block()` before it reads storage, builds a cache entry or processes many rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

# A context variable and not a parameter: the mode crosses a dozen functions that have no other reason to know it.
_MODE: ContextVar[bool] = ContextVar("nonblocking", default=False)


class WouldBlock(Exception):  # noqa: N818 - control flow, not an error; the caller repeats the read in a thread
    """Raised when a non-blocking read would block. Internal; never reaches users."""


@contextmanager
def nonblocking() -> Iterator[None]:
    """Run the block in non-blocking mode: reads in it may raise `WouldBlock`."""
    token = _MODE.set(True)
    try:
        yield
    finally:
        _MODE.reset(token)


def is_nonblocking() -> bool:
    """Return whether the caller asked not to block."""
    return _MODE.get()


def may_block() -> None:
    """Raise `WouldBlock` if the caller asked not to block. Call it before the work, so that nothing is half done."""
    if _MODE.get():
        raise WouldBlock
