"""What a query answers."""

from __future__ import annotations

import html
import importlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from omnigraph.errors import LibraryMissingError, ParameterError
from omnigraph.manifest.rows import Commit
from omnigraph.storage.columns import plain_values


@dataclass(frozen=True)
class Result:
    """The rows of a query, the names of their columns in order, and the commit that was read."""

    query_name: str
    branch: str
    table: pa.Table
    commit: Commit | None

    @property
    def columns(self) -> list[str]:
        return list(self.table.column_names)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows as plain values, dates and date-times as texts; of columns with one name the last counts."""
        names = self.table.column_names
        return [dict(zip(names, row, strict=True)) for row in self.cells()]

    def cells(self) -> Iterator[tuple[Any, ...]]:
        """The values of each row in the order of the columns, also if two of these have one name."""
        return zip(*(plain_values(column) for column in self.table.columns), strict=True)

    def to_arrow(self) -> pa.Table:
        return self.table

    def to_pandas(self) -> Any:
        return self.table.to_pandas()

    def to_polars(self) -> Any:
        return _library("polars").from_arrow(self.table)

    def to_networkx(self, source: str | None = None, target: str | None = None) -> Any:
        """A directed multigraph with an edge for each row: from one column to another, the others its attributes.

        The first two columns are the ends, unless others are named. A row that lacks an end adds no edge, only a node.
        """
        networkx = _library("networkx")
        made = networkx.MultiDiGraph()
        start, end = (self._end(name, at) for at, name in enumerate((source, target)))
        others = [(at, name) for at, name in enumerate(self.columns) if at not in (start, end)]
        for row in self.cells():
            made.add_nodes_from(row[at] for at in (start, end) if row[at] is not None)
            if row[start] is not None and row[end] is not None:
                made.add_edges_from([(row[start], row[end], {name: row[at] for at, name in others})])
        return made

    def _end(self, name: str | None, default: int) -> int:
        """The column that holds the ends of edges."""
        names = self.columns
        at = default if name is None else names.index(name) if name in names else len(names)
        if at >= len(names):
            message = f"the result has no column {repr(name) if name else default + 1} for the ends of edges"
            raise ParameterError(message, parameter=name, hint=f"name one of {', '.join(names)}")
        if pa.types.is_nested(self.table.schema.types[at]):
            message = f"the column '{names[at]}' holds lists, which cannot be nodes"
            raise ParameterError(message, parameter=names[at], hint="name a column of single values")
        return at

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.table.__arrow_c_stream__(requested_schema)

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{html.escape(name)}</th>" for name in self.columns)
        shown = itertools.islice(self.cells(), _SHOWN)
        lines = ("".join(f"<td>{html.escape(str(value))}</td>" for value in row) for row in shown)
        body = "".join(f"<tr>{line}</tr>" for line in lines)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


_SHOWN = 100


def _library(name: str) -> Any:
    """Load a library that only some need."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        raise LibraryMissingError(f"{name} is not installed", library=name, hint=f"pip install {name}") from None
