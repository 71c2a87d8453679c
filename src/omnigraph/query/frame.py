"""Rows of bindings: one column of positions for each variable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

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

    @classmethod
    def joined(cls, frames: Sequence[Frame]) -> Frame:
        """Put the rows of frames with the same columns one after the other."""
        first, *others = frames
        if not others:
            return first
        columns = {name: np.concatenate([one.columns[name] for one in frames]) for name in first.columns}
        return cls(sum(one.count for one in frames), columns, first.views)

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
