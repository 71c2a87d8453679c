"""Reads that are done at once or not at all: from memory, and of few rows.

Whoever may not wait, like the loop of a server, asks with `at_once`. What would read the storage, make something large
or take long says so with `takes_long` before it begins, and the read is given up. It can be asked again without.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_ASKED: ContextVar[bool] = ContextVar("at_once", default=False)


class TakesLongError(Exception):
    """A read that was asked for at once takes longer. No error of the graph: nobody sees it but who asked so."""


@contextmanager
def at_once() -> Iterator[None]:
    """Have reads in a block done at once, or end with TakesLongError."""
    token = _ASKED.set(True)
    try:
        yield
    finally:
        _ASKED.reset(token)


def is_asked() -> bool:
    """Tell whether what is done now is to be done at once."""
    return _ASKED.get()


def takes_long() -> None:
    """Say that what comes next takes long."""
    if _ASKED.get():
        raise TakesLongError
