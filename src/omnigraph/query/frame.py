"""Rows of bindings: one column of positions for each variable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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
        chosen = int(rows.sum()) if rows.dtype == bool else len(rows)
        return Frame(chosen, columns, self.views, None if self.scores is None else self.scores[rows])

    def bind(self, variable: str, positions: Positions, view: TableView) -> Frame:
        columns, views = {**self.columns, variable: positions}, {**self.views, variable: view}
        return Frame(self.count, columns, views, self.scores)

    def hide(self, name: str, numbers: np.ndarray[Any, Any]) -> Frame:
        """Add a column of numbers that is not a binding."""
        return Frame(self.count, {**self.columns, name: numbers}, self.views, self.scores)

    def scored(self, scores: np.ndarray[Any, Any]) -> Frame:
        return Frame(self.count, self.columns, self.views, scores)

    def value(self, variable: str, name: str) -> pa.Array:
        """Return the property of a variable for each row."""
        return self.views[variable].take(self.columns[variable], name)

    def ids(self, variable: str) -> pa.Array:
        return self.value(variable, ID)


ONE_ROW = Frame(1)
