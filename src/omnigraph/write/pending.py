"""The rows that a change brings to one table, and reading the table as if they were there already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

import numpy as np
import pyarrow as pa

from omnigraph.api.results import TableVersion
from omnigraph.lang.catalog import EdgeType, NodeType
from omnigraph.lang.types import STRING, Type
from omnigraph.storage.columns import arrow_type, table_schema, to_array
from omnigraph.storage.predicates import Predicate, arrow_expression
from omnigraph.storage.read import ID
from omnigraph.storage.stage import TableStorage

RECORD = "@record"
"""The column that says which statement or record of the input brought a row. No property can be called so."""

_ENDPOINTS = ("src", "dst")


class PendingMode(Enum):
    """What becomes of rows whose id is there already."""

    APPEND = "append"  # there are none
    MERGE = "merge"  # they are replaced


def column_types(declared: NodeType | EdgeType) -> dict[str, Type]:
    """The columns of a table and what they hold, in order."""
    endpoints = _ENDPOINTS if isinstance(declared, EdgeType) else ()
    system = dict.fromkeys((ID, *endpoints), STRING)
    return system | {name: property_.type for name, property_ in declared.properties.items()}


class Pending:
    """Rows for one table, in the order in which they came. A Blob is its bytes here."""

    def __init__(self, declared: NodeType | EdgeType) -> None:
        self.declared = declared
        self.mode = PendingMode.APPEND
        self._types = column_types(declared)
        self._schema = image_schema(declared)
        self._tables: list[pa.Table] = []
        self._rows: list[Mapping[str, Any]] = []
        self.inserted_bytes = 0

    def insert(self, row: Mapping[str, Any], record: int, mode: PendingMode) -> None:
        """Add one row of plain values; what it leaves out is null."""
        self._rows.append({**row, RECORD: record})
        self._combine(mode)

    def extend(self, rows: pa.Table, mode: PendingMode) -> None:
        """Add rows that name their records."""
        self._settle()
        self._tables.append(rows.select(self._schema.names).cast(self._schema))
        self._combine(mode)

    def image(self) -> pa.Table:
        """The rows as they will be: of each id the last."""
        self._settle()
        return newest(pa.concat_tables(self._tables) if self._tables else self._schema.empty_table())

    def _combine(self, mode: PendingMode) -> None:
        if mode is PendingMode.MERGE:
            self.mode = mode

    def _settle(self) -> None:
        if self._rows:
            columns = [_column(type_, [row.get(name) for row in self._rows]) for name, type_ in self._types.items()]
            records = pa.array([row[RECORD] for row in self._rows], pa.int64())
            self._tables.append(pa.table([*columns, records], schema=self._schema))
            self.inserted_bytes += self._tables[-1].nbytes
            self._rows = []


def newest(rows: pa.Table) -> pa.Table:
    """Keep the last row of each id, in order."""
    numbered = pa.table({ID: rows[ID], "at": np.arange(rows.num_rows)})
    last = numbered.group_by(ID).aggregate([("at", "max")])["at_max"]
    return rows if len(last) == rows.num_rows else rows.take(np.sort(last.to_numpy()))


def to_store(declared: NodeType | EdgeType, rows: pa.Table) -> pa.Table:
    """Make of an image what the table stores."""
    arrays = [
        to_array(type_, rows[name].to_pylist()) if type_.is_blob else rows[name]
        for name, type_ in column_types(declared).items()
    ]
    return pa.table(arrays, schema=table_schema(declared))


def scan_with_pending(
    tables: TableStorage, table: TableVersion, pending: pa.Table | None, columns: Sequence[str], predicate: Predicate
) -> pa.Table:
    """Read the rows that satisfy a predicate: committed ones first, then pending ones.

    An entity that has a pending row is seen through that row alone, also when it no longer satisfies the predicate.
    """
    assert ID in columns, "without its id a committed row cannot be told from the pending one that replaces it"
    committed = tables.scan(table, columns, predicate)
    if pending is None or not pending.num_rows:
        return committed
    seen = committed.filter(~pa.compute.field(ID).isin(pending[ID].combine_chunks()))
    found = pending.filter(arrow_expression(predicate)).select(columns)
    return pa.concat_tables([seen.cast(found.schema), found])


def _column(type_: Type, values: list[Any]) -> pa.Array:
    return pa.array(values, pa.large_binary()) if type_.is_blob else to_array(type_, values)


def image_schema(declared: NodeType | EdgeType) -> pa.Schema:
    """The columns of rows on their way to a table: those of the table, a Blob as bytes, and the record of each row."""
    fields = [
        pa.field(name, pa.large_binary() if type_.is_blob else arrow_type(type_))
        for name, type_ in column_types(declared).items()
    ]
    return pa.schema([*fields, pa.field(RECORD, pa.int64())])
