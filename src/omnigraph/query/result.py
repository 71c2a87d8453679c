"""What a query answers."""

from __future__ import annotations

import datetime as dt
import html
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from omnigraph.manifest.rows import Commit


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
        return zip(*(_plain(column) for column in self.table.columns), strict=True)

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


def _plain(column: pa.ChunkedArray | pa.Array) -> list[Any]:
    """The cells of a column as JSON has them."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    kind = array.type
    if pa.types.is_list(kind):
        items = _plain(array.values)
        ends = array.offsets.to_pylist()
        filled = array.is_valid().to_pylist()
        return [items[ends[at] : ends[at + 1]] if filled[at] else None for at in range(len(array))]
    if pa.types.is_date64(kind):
        return [None if number is None else _moment(number) for number in array.view(pa.int64()).to_pylist()]
    values: list[Any] = array.to_pylist()
    if pa.types.is_date32(kind):
        return [None if value is None else value.isoformat() for value in values]
    if pa.types.is_floating(kind):
        return [_number(value) for value in values]
    return values


def _moment(milliseconds: int) -> str:
    moment = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(milliseconds=milliseconds)
    return f"{moment.replace(tzinfo=None).isoformat(timespec='milliseconds')}Z"


def _number(value: float | None) -> float | str | None:
    if value is None or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
