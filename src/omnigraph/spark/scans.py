"""Which rows a DataFrame reads: a table at one version, or its changes between two states. Nothing is read yet.

A scan is divided into parts, one for each task, and reads a part batch by batch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, LongType, StringType, StructField, StructType

from omnigraph.api.changes import ChangeOperation
from omnigraph.api.results import TableVersion
from omnigraph.core.location import Location
from omnigraph.core.refs import MAIN
from omnigraph.errors import ExportTypeError, InputColumnsError, ParameterError
from omnigraph.formats.files import Split, line_blocks
from omnigraph.formats.sources import line_splits
from omnigraph.history.diff import ChangedRows, ChangeFilter, TablePair, changed_rows, touched
from omnigraph.history.resolve import check_readable, no_commit, resolve, state_to_read, tables_of
from omnigraph.ingest.executor import tables_at
from omnigraph.ingest.scan import Fragments, column_names, groups, in_any_order
from omnigraph.lang.source import did_you_mean
from omnigraph.manifest.publisher import Manifest
from omnigraph.manifest.state import GraphState
from omnigraph.spark.columns import converted, spark_schema, where_predicate
from omnigraph.storage.layout import fragments
from omnigraph.storage.predicates import Predicate
from omnigraph.storage.read import ID

_PROBLEM = ("file", "line", "rule", "type", "id", "properties", "message")
_LONGEST_LINE = 2**30
_ROWS_PER_TASK = 500_000  # that may have changed


@dataclass(frozen=True, slots=True)
class ScanRequest:
    """What a caller asks for: a type at one state, or with `since` its changes up to `until`.

    An empty `since` is the state before the first commit: every row is an insert.
    """

    graph: Location
    type_name: str
    columns: Sequence[str] = ()
    where: Any = ()
    limit: int | None = None
    branch: str = MAIN
    snapshot: str | None = None
    since: str | None = None
    until: str | None = None

    def pin(self) -> TableScan | ChangeScan:
        """Resolve the states that are named; what is committed later is not seen."""
        if self.limit is not None and self.limit < 0:
            raise ParameterError(f"the limit {self.limit} is negative", parameter="limit", hint="give 0 or more")
        return self._changes(self.since) if self.since is not None else self._rows()

    def _rows(self) -> TableScan:
        if self.until is not None:
            message = "`until` is the end of the changes that are read, and there is no `since`"
            raise ParameterError(message, parameter="until", hint="give `since` too, or `snapshot` to read one state")
        state = state_to_read(Manifest(self.graph), self.branch, self.snapshot)
        table = _table_of(tables_of(state.snapshot), self.type_name)
        stored = tables_at(self.graph).columns(table)
        names = _chosen(self.columns, column_names(tables_at(self.graph), table), self.type_name)
        return TableScan(self.graph, table, tuple(names), where_predicate(self.where, stored), self.limit)

    def _changes(self, since: str) -> ChangeScan:
        if self.where or self.limit is not None or self.snapshot is not None:
            message = "changes are read as a whole: `since` takes no `where`, `limit` or `snapshot`"
            raise ParameterError(message, parameter="since", hint="filter the DataFrame; the later state is `until`")
        manifest = Manifest(self.graph)
        after = resolve(manifest, self.branch if self.until is None else self.until, no_commit).graph_state
        before = resolve(manifest, since, no_commit).graph_state if since else None
        pair = self._pair(before, after)
        for state, table in ((before, pair.before), (after, pair.after)):
            if state and table:
                check_readable(tables_at(self.graph), state.commit, [table])
        names = _chosen(self.columns, column_names(tables_at(self.graph), pair.shown), self.type_name)
        return ChangeScan(self.graph, pair, tuple(name for name in names if name != ID))

    def _pair(self, before: GraphState | None, after: GraphState) -> TablePair:
        old = tables_of(before.snapshot) if before else {}
        new = tables_of(after.snapshot)
        key = _table_of({**old, **new}, self.type_name).key
        return TablePair(key, old.get(key), new.get(key))


def _table_of(found: dict[str, TableVersion], type_name: str) -> TableVersion:
    """Find a type by name, or as `node:Name` or `edge:Name`; if two types share the name, the node."""
    for key in (f"node:{type_name}", f"edge:{type_name}", type_name):
        if key in found:
            return found[key]
    hint = did_you_mean(type_name, [key.partition(":")[2] for key in found])
    raise ExportTypeError(f"unknown type '{type_name}'", type_name=type_name, hint=hint)


def _chosen(wanted: Sequence[str], names: list[str], type_name: str) -> list[str]:
    for name in wanted:
        if name not in names:
            message = f"{type_name} has no column '{name}'"
            raise InputColumnsError(message, path=None, columns=names, hint=did_you_mean(name, names))
    return list(dict.fromkeys(wanted)) or names


@dataclass(frozen=True, slots=True)
class TableScan:
    """The rows of a table at one version that satisfy a predicate; with a limit, the first so many."""

    graph: Location
    table: TableVersion
    columns: tuple[str, ...]
    predicate: Predicate | None
    limit: int | None

    def schema(self) -> StructType:
        return spark_schema(tables_at(self.graph).columns(self.table), self.columns)

    def parts(self) -> list[Fragments]:
        """Divide the fragments; with a limit one task reads them all, and stops when it has enough."""
        found = groups(tables_at(self.graph), self.table)
        return found if self.limit is None else [tuple(number for group in found for number in group)]

    def batches(self, part: Fragments, schema: StructType) -> Iterator[pa.RecordBatch]:
        target = to_arrow_schema(schema, timezone="UTC")
        left = self.limit
        for rows in self._tables(part, target.names):
            some = rows if left is None else rows.slice(0, left)
            arrays = [converted(some[field.name].combine_chunks(), field.type) for field in target]
            yield pa.RecordBatch.from_arrays(arrays, schema=target)
            if left is not None:
                left -= some.num_rows
                if not left:
                    return

    def _tables(self, part: Fragments, names: Sequence[str]) -> Iterator[pa.Table]:
        if not part or self.limit == 0:
            return iter(())
        return in_any_order(tables_at(self.graph), self.table, names, part, self.predicate)


class ChangeSlice(NamedTuple):
    """One of several parts of the inserts, updates or deletes."""

    operation: ChangeOperation
    number: int
    parts: int


@dataclass(frozen=True, slots=True)
class ChangeScan:
    """The changes of a table between two states: the operation, the id, and the row before and after."""

    graph: Location
    pair: TablePair
    columns: tuple[str, ...]

    def schema(self) -> StructType:
        image = spark_schema(tables_at(self.graph).columns(self.pair.shown), self.columns)
        # A row that was inserted has no values before, and of one that is there some columns may be older.
        image = StructType([StructField(field.name, field.dataType) for field in image.fields])
        return StructType(
            [
                StructField("operation", StringType(), nullable=False),
                StructField(ID, StringType(), nullable=False),
                StructField("before", image),
                StructField("after", image),
            ]
        )

    def parts(self) -> list[ChangeSlice]:
        """Tasks for inserts, for updates and for deletes; several of each if files with many rows differ."""
        if self.pair.before == self.pair.after:
            return []
        count = -(-max(self._unshared_rows(), 1) // _ROWS_PER_TASK)
        return [ChangeSlice(operation, number, count) for operation in ChangeOperation for number in range(count)]

    def _unshared_rows(self) -> int:
        """Return how many rows are in files that only one of the versions has: more than these cannot differ."""
        tables = tables_at(self.graph)
        found = [{one.files: one.live for one in fragments(tables, side)} if side else {} for side in self._sides]
        return max(
            sum(rows for files, rows in mine.items() if found[1 - at].get(files) != rows)
            for at, mine in enumerate(found)
        )

    @property
    def _sides(self) -> tuple[TableVersion | None, TableVersion | None]:
        return self.pair.before, self.pair.after

    def batches(self, part: ChangeSlice, schema: StructType) -> Iterator[pa.RecordBatch]:
        target = to_arrow_schema(schema, timezone="UTC")
        found = touched(tables_at(self.graph), self.pair)
        wanted = ChangeFilter(operations=frozenset({part.operation}))
        for rows in changed_rows(self.pair.key, found, wanted, part=(part.number, part.parts)):
            yield _change_batch(part.operation, rows, target)


@dataclass(frozen=True, slots=True)
class RejectScan:
    """The problems in files of rejects."""

    address: str

    def schema(self) -> StructType:
        texts = {name: StringType() for name in ("file", "rule", "type", "id", "message")}
        types = {**texts, "line": LongType(), "properties": ArrayType(StringType())}
        return StructType([StructField(name, types[name]) for name in _PROBLEM])

    def parts(self) -> list[Split]:
        return line_splits(self.address)

    def batches(self, part: Split, schema: StructType) -> Iterator[pa.RecordBatch]:
        target = to_arrow_schema(schema, timezone="UTC")
        for block in line_blocks(part, _LONGEST_LINE):
            yield pa.RecordBatch.from_pylist([json.loads(line) for line in block.splitlines()], target)


def _change_batch(operation: ChangeOperation, rows: ChangedRows, target: pa.Schema) -> pa.RecordBatch:
    before, after = {
        ChangeOperation.INSERT: (None, rows.inserted),
        ChangeOperation.UPDATE: (rows.before, rows.after),
        ChangeOperation.DELETE: (rows.deleted, None),
    }[operation]
    present = before if after is None else after
    assert present is not None, "a change has a row"
    columns = {
        "operation": pa.repeat(pa.scalar(str(operation)), present.num_rows),
        ID: present[ID].combine_chunks(),
        "before": _image(before, target.field("before").type, present.num_rows),
        "after": _image(after, target.field("after").type, present.num_rows),
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in target.names], schema=target)


def _image(rows: pa.Table | None, target: pa.StructType, count: int) -> pa.Array:
    if rows is None:
        return pa.nulls(count, target)
    arrays = [converted(rows[field.name].combine_chunks(), field.type) for field in target]
    return pa.StructArray.from_arrays(arrays, fields=list(target))
