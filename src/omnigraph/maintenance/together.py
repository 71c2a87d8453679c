"""How many tables, or parts of them, upkeep works on at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from omnigraph.core.executor import R, T, map_in_threads
from omnigraph.errors import ParameterError

VARIABLE = "OMNIGRAPH_MAINTENANCE_CONCURRENCY"
_DEFAULT = 8


def at_once() -> int:
    """What the environment says, or a few: most of the time is spent waiting for the storage."""
    wish = os.environ.get(VARIABLE)
    if wish is None:
        return _DEFAULT
    if not wish.isascii() or not wish.isdigit() or int(wish) < 1:
        raise ParameterError(f"{VARIABLE} is '{wish}'", parameter=VARIABLE, hint="set it to a number from 1 on")
    return int(wish)


def together(function: Callable[[T], R], tables: Iterable[T]) -> list[R]:
    """Do the same to several tables at once; the results are in their order."""
    return list(map_in_threads(function, list(tables), at_once()))
