"""What a query answers."""

from __future__ import annotations

import html
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

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
        import polars as pl  # noqa: PLC0415 - only who asks for it needs it

        return pl.from_arrow(self.table)

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
