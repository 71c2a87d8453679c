"""Rows of bindings: one column of positions for each variable; and how many of them a query may hold."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa

from omnigraph.core.nonblocking import may_block
from omnigraph.errors import ParameterError, ResourceLimitError
from omnigraph.query.view import Positions, TableView
from omnigraph.storage.read import ID


@dataclass(frozen=True)
class Frame:
    """Rows of bindings. `views` has the table of each variable; `scores` are those of a ranking."""

    count: int
    columns: Mapping[str, Positions] = field(default_factory=dict)
    views: Mapping[str, TableView] = field(default_factory=dict)
    scores: np.ndarray[Any, Any] | None = None

    def take(self, rows: np.ndarray[Any, Any]) -> Frame:
        """Select rows by index or mask."""
        columns = {name: positions[rows] for name, positions in self.columns.items()}
        # Counted here, because a frame without columns, such as the one that a query begins with, has rows as well.
        chosen = int(rows.sum()) if rows.dtype == bool else len(rows)
        return Frame(chosen, columns, self.views, None if self.scores is None else self.scores[rows])

    def bind(self, variable: str, positions: Positions, view: TableView) -> Frame:
        columns, views = {**self.columns, variable: positions}, {**self.views, variable: view}
        return Frame(self.count, columns, views, self.scores)

    def hide(self, name: str, numbers: np.ndarray[Any, Any]) -> Frame:
        """Add a column of numbers that is not a binding."""
        return Frame(self.count, {**self.columns, name: numbers}, self.views, self.scores)

    def drop(self, name: str) -> Frame:
        """Return it without a column of numbers."""
        return replace(self, columns={one: column for one, column in self.columns.items() if one != name})

    def scored(self, scores: np.ndarray[Any, Any]) -> Frame:
        return Frame(self.count, self.columns, self.views, scores)

    def value(self, variable: str, name: str) -> pa.Array:
        """Return the property of a variable for each row; null where an optional block has bound nothing."""
        positions, view = self.columns[variable], self.views[variable]
        there = positions != NOTHING
        if there.all():
            return view.take(positions, name)
        found = view.take(positions[there], name)
        return found.take(pa.array(np.cumsum(there) - 1, mask=~there))

    def bound(self, variable: str) -> Frame:
        """Return the rows in which a variable is bound."""
        there = self.columns[variable] != NOTHING
        return self if there.all() else self.take(there)

    def ids(self, variable: str) -> pa.Array:
        return self.value(variable, ID)


ONE_ROW = Frame(1)
NOTHING = -1
"""The position of a variable that an optional block has not bound."""


# The memory limit of a query, checked before rows are allocated ------------------------------------

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
    """Raise ResourceLimitError if so many rows would exceed the limit."""
    if rows > _FEW:
        may_block()  # so many take long enough for other requests of the thread to notice
    needed = rows * (columns + 1) * _CELL
    if rows > _ALWAYS and needed > limit():
        message = f"a step of the query makes {rows:,} rows, which take {needed:,} bytes; {limit():,} are allowed"
        raise ResourceLimitError(message, resource=_RESOURCE, limit=limit(), actual=needed, hint=_HINT)


def out_of_memory(error: MemoryError) -> ResourceLimitError:
    """Turn a MemoryError into ResourceLimitError."""
    asked = _bytes_of(error)
    message = f"the query ran out of memory: {error}"
    return ResourceLimitError(message, resource=_RESOURCE, limit=limit(), actual=asked, hint=_HINT)


def _bytes_of(error: MemoryError) -> int:
    """Return the size that NumPy failed to allocate; the limit if the message does not say."""
    shape, kind = getattr(error, "shape", None), getattr(error, "dtype", None)
    return limit() if shape is None or kind is None else math.prod(shape) * int(kind.itemsize)
