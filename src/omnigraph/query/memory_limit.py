"""How much memory the rows of one query may take: a query that asks for more is told so before it takes it."""

from __future__ import annotations

import os
from functools import cache

from omnigraph.core.nonblocking import may_block
from omnigraph.errors import ParameterError, ResourceLimitError

VARIABLE = "OMNIGRAPH_QUERY_MEMORY"
_CELL = 8  # bytes of a position
_HINT = f"bind the variables more narrowly, or connect them; {VARIABLE} sets the limit in bytes"


def limit() -> int:
    """How many bytes the rows of a query may take: half of the machine's memory, unless the environment says."""
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
    """See that so many rows may be made, before they are."""
    if rows > _FEW:
        may_block()
    needed = rows * (columns + 1) * _CELL
    if rows > _ALWAYS and needed > limit():
        message = f"a step of the query makes {rows:,} rows, which take {needed:,} bytes; {limit():,} are allowed"
        raise ResourceLimitError(message, resource=_RESOURCE, limit=limit(), actual=needed, hint=_HINT)


_FEW, _ALWAYS = 1_000, 10_000
_RESOURCE = "bytes of rows in one query"


def out_of_memory(error: MemoryError) -> ResourceLimitError:
    """What to say when the system had no more memory to give."""
    asked = _bytes_of(error)
    message = f"the query needs more memory than there is: {error}"
    return ResourceLimitError(message, resource=_RESOURCE, limit=limit(), actual=asked, hint=_HINT)


def _bytes_of(error: MemoryError) -> int:
    """What numpy asked for, as it tells; what a query may have, if it does not."""
    shape, kind = getattr(error, "shape", None), getattr(error, "dtype", None)
    if shape is None or kind is None:
        return limit()
    size = int(kind.itemsize)
    for side in shape:
        size *= int(side)
    return size
