"""The rows that a change brings to one table, and reading the table as if they were committed."""

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
"""The column that names the statement or input record of a row. No property can have this name."""

_ENDPOINTS = ("src", "dst")


class PendingMode(Enum):
    """How rows are staged if their id exists."""

    APPEND = "append"  # their ids are new
    MERGE = "merge"  # existing rows are replaced


def column_types(declared: NodeType | EdgeType) -> dict[str, Type]:
    """Return the columns of a table and their types, in order."""
    endpoints = _ENDPOINTS if isinstance(declared, EdgeType) else ()
    system = dict.fromkeys((ID, *endpoints), STRING)
    return system | {name: property_.type for name, property_ in declared.properties.items()}


class Pending:
    """Rows for one table, in order of arrival. Blobs are bytes here."""

    def __init__(self, declared: NodeType | EdgeType) -> None:
        self.declared = declared
        self.mode = PendingMode.APPEND
        self._types = column_types(declared)
        self._schema = image_schema(declared)
        self._tables: list[pa.Table] = []
        self._rows: list[Mapping[str, Any]] = []
        self.inserted_bytes = 0

    def insert(self, row: Mapping[str, Any], record: int, mode: PendingMode) -> None:
        """Add one row of plain values; missing ones are null."""
        self._rows.append({**row, RECORD: record})
        self._combine(mode)

    def extend(self, rows: pa.Table, mode: PendingMode) -> None:
        """Add rows that have their record numbers."""
        # Rows and tables keep their order of arrival, because the last row of an id wins.
        self._settle()
        self._tables.append(rows.select(self._schema.names).cast(self._schema))
        self._combine(mode)

    def image(self) -> pa.Table:
        """Return the rows as they will be: the last one of each id."""
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


def without_record(rows: pa.Table) -> pa.Table:
    """Add an empty record number to rows that no statement and no input record brought."""
    return rows.append_column(RECORD, pa.nulls(rows.num_rows, pa.int64()))


def to_store(declared: NodeType | EdgeType, rows: pa.Table) -> pa.Table:
    """Convert an image to what the table stores."""
    arrays = [
        to_array(type_, rows[name].to_pylist()) if type_.is_blob else rows[name]
        for name, type_ in column_types(declared).items()
    ]
    return pa.table(arrays, schema=table_schema(declared))


def scan_with_pending(
    tables: TableStorage, table: TableVersion, pending: pa.Table | None, columns: Sequence[str], predicate: Predicate
) -> pa.Table:
    """Read the rows that satisfy a predicate: committed ones first, then pending ones.

    An entity with a pending row is seen only through that row, even if it no longer matches. Otherwise an update could
    bring back what an earlier statement changed.
    """
    assert ID in columns, "the id is needed to hide committed rows behind pending ones"
    committed = tables.scan(table, columns, predicate)
    if pending is None or not pending.num_rows:
        return committed
    # By id and not by the predicate: a pending row may no longer match while its committed row still does.
    seen = committed.filter(~pa.compute.field(ID).isin(pending[ID].combine_chunks()))
    found = pending.filter(arrow_expression(predicate)).select(columns)
    return pa.concat_tables([seen.cast(found.schema), found])


def _column(type_: Type, values: list[Any]) -> pa.Array:
    return pa.array(values, pa.large_binary()) if type_.is_blob else to_array(type_, values)


def image_schema(declared: NodeType | EdgeType) -> pa.Schema:
    """Return the schema of rows on their way to a table: its columns, blobs as bytes, and the record number."""
    fields = [
        pa.field(name, pa.large_binary() if type_.is_blob else arrow_type(type_))
        for name, type_ in column_types(declared).items()
    ]
    return pa.schema([*fields, pa.field(RECORD, pa.int64())])
