"""Per-query memory limit, checked before allocation."""

from __future__ import annotations

import os
from functools import cache

from omnigraph.core.nonblocking import may_block
from omnigraph.errors import ParameterError, ResourceLimitError

VARIABLE = "OMNIGRAPH_QUERY_MEMORY"
_CELL = 8  # bytes of a position
_HINT = f"bind the variables more narrowly, or connect them; {VARIABLE} sets the limit in bytes"


def limit() -> int:
    """Return the limit in bytes: the environment variable, or half of the memory of the machine."""
    wish = os.environ.get(VARIABLE)
    if wish is None:
        return _half_of_memory()
    if not wish.isascii() or not wish.isdigit():
        raise ParameterError(f"{VARIABLE} is '{wish}'", parameter=VARIABLE, hint="set it to a number of bytes")
    return int(wish)


@cache
def _half_of_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def check_room(rows: int, columns: int) -> None:
    """Raise ResourceLimitError if so many rows would exceed the limit."""
    if rows > _FEW:
        may_block()
    needed = rows * (columns + 1) * _CELL
    if rows > _ALWAYS and needed > limit():
        message = f"a step of the query makes {rows:,} rows, which take {needed:,} bytes; {limit():,} are allowed"
        raise ResourceLimitError(message, resource=_RESOURCE, limit=limit(), actual=needed, hint=_HINT)


_FEW, _ALWAYS = 1_000, 10_000
_RESOURCE = "bytes of rows in one query"


def out_of_memory(error: MemoryError) -> ResourceLimitError:
    """Turn a MemoryError into ResourceLimitError."""
    asked = _bytes_of(error)
    message = f"the query ran out of memory: {error}"
    return ResourceLimitError(message, resource=_RESOURCE, limit=limit(), actual=asked, hint=_HINT)


def _bytes_of(error: MemoryError) -> int:
    """Return the size that NumPy failed to allocate; the limit if the message does not say."""
    shape, kind = getattr(error, "shape", None), getattr(error, "dtype", None)
    if shape is None or kind is None:
        return limit()
    size = int(kind.itemsize)
    for side in shape:
        size *= int(side)
    return size
