"""How much memory and time a query may take: asked for before rows are made."""

from __future__ import annotations

import math
import os
import re
from contextlib import AbstractContextManager, nullcontext
from functools import cache

from omnigraph.core.nonblocking import may_block
from omnigraph.core.running import BUDGET, current, proceed
from omnigraph.errors import OptionError, ParameterError, ResourceLimitError

TIME_VARIABLE = "OMNIGRAPH_QUERY_TIMEOUT"
_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
VARIABLE, CACHE_VARIABLE = "OMNIGRAPH_QUERY_MEMORY", "OMNIGRAPH_CACHE_MEMORY"
_CELL = 8  # bytes of a position
_FEW, _ALWAYS = 1_000, 10_000  # rows that take no time; rows that are allowed whatever the limit is
_RESOURCE = "bytes of rows in one query"
_HINT = f"bind the variables more narrowly, or connect them; {VARIABLE} sets the limit in bytes"


def limit() -> int:
    """Return the limit in bytes: the environment variable, or half of the memory of the machine."""
    return _bytes(VARIABLE, _memory() // 2)


def cache_budget() -> int:
    """Return how many bytes a graph keeps of its tables: the environment variable, or a quarter of the memory."""
    return _bytes(CACHE_VARIABLE, _memory() // 4)


def time_limit(asked: float | None) -> float | None:
    """Return how many seconds a query may take: as asked, else as the environment says, else any time."""
    if asked is not None:
        if not 0 < asked < math.inf:
            raise OptionError(f"timeout is {asked:g}", option="timeout", hint="give a number of seconds above 0")
        return asked
    wish = os.environ.get(TIME_VARIABLE)
    if wish is None:
        return None
    if not _SECONDS.fullmatch(wish) or not float(wish):
        raise ParameterError(f"{TIME_VARIABLE} is '{wish}'", parameter=TIME_VARIABLE, hint="set it to seconds above 0")
    return float(wish)


def _bytes(variable: str, default: int) -> int:
    wish = os.environ.get(variable)
    if wish is None:
        return default
    if not wish.isascii() or not wish.isdigit():
        raise ParameterError(f"{variable} is '{wish}'", parameter=variable, hint="set it to a number of bytes")
    return int(wish)


@cache
def _memory() -> int:
    # Of the machine. A container with a smaller limit must set the variables.
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def check_room(rows: int, columns: int) -> None:
    """Ask for the memory of so many rows; raise ResourceLimitError if they would exceed the limit."""
    if rows > _FEW:
        may_block()  # so many take long enough for other requests of the thread to notice
        proceed()
    if rows <= _ALWAYS:
        return
    needed, most, query = rows * (columns + 1) * _CELL, limit(), current()
    total = needed if query is None else query.kept + query.live + needed
    if total > most:
        message = f"a step of the query makes {rows:,} rows, which take {needed:,} bytes; {most:,} are allowed"
        raise ResourceLimitError(message, resource=_RESOURCE, limit=most, actual=total, hint=_HINT)
    if query is not None and total > query.held:
        BUDGET.take(query, total, most)


def settle(count: int, columns: int) -> None:
    """Note that a step is done: of what it asked for, the query keeps the rows that it has made."""
    query = current()
    if query is not None:
        query.check()
        query.live = _size(count, columns)
        BUDGET.give_back(query, query.kept + query.live)


def keeping(count: int, columns: int) -> AbstractContextManager[None]:
    """Count rows as held throughout a block that works on a part of them."""
    query = current()
    return nullcontext() if query is None else query.keeping(_size(count, columns))


def _size(count: int, columns: int) -> int:
    return count * (columns + 1) * _CELL if count > _ALWAYS else 0


def out_of_memory(error: MemoryError) -> ResourceLimitError:
    """Turn a MemoryError into ResourceLimitError."""
    asked = _bytes_of(error)
    message = f"the query ran out of memory: {error}"
    return ResourceLimitError(message, resource=_RESOURCE, limit=limit(), actual=asked, hint=_HINT)


def _bytes_of(error: MemoryError) -> int:
    """Return the size that NumPy failed to allocate; the limit if the message does not say."""
    shape, kind = getattr(error, "shape", None), getattr(error, "dtype", None)
    return limit() if shape is None or kind is None else math.prod(shape) * int(kind.itemsize)
