"""Export a graph: as a stream of JSON lines, as one file, or as a directory that tasks fill in parallel.

A stream or file holds the types in the order of their keys, so edges before nodes, and the rows of a type in the order
of their ids. A directory holds one file for each type, or a directory of parts if the type is large; within a file the
order is the same. It must be empty before; `_export.json` is written last, and names the commit.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from lance.blob import BlobType

from omnigraph.api.options import Engine
from omnigraph.api.progress import SILENT, Progress
from omnigraph.api.results import ExportResult, Snapshot, TableVersion
from omnigraph.commit.store import Store
from omnigraph.core.location import Location
from omnigraph.core.refs import MAIN
from omnigraph.errors import ExportTargetError, ExportTypeError, ExportValueError, OmnigraphError
from omnigraph.formats.files import written
from omnigraph.formats.writers import WRITERS, json_lines
from omnigraph.ingest.executor import StartSpark, executor_for, tables_at
from omnigraph.ingest.scan import Fragments, column_names, groups, in_order
from omnigraph.lang.source import did_you_mean
from omnigraph.manifest.state import GraphState
from omnigraph.storage.objects import ObjectStore
from omnigraph.storage.read import ID
from omnigraph.storage.stage import TableStorage

MOST_ROWS = 1_000_000  # exported by this process with engine "auto"; more go to Spark
COMPLETE = "_export.json"
_ENDINGS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".parquet": "parquet"}


@dataclass(frozen=True, slots=True)
class ExportSpec:
    """The types to export, and the target: one file if the path ends like the format, else a directory."""

    path: str | None = None
    types: Sequence[str] | None = None
    format: str = "jsonl"
    engine: Engine = Engine.AUTO
    progress: Progress = SILENT
    spark: StartSpark | None = None


def export_lines(store: Store, state: GraphState, request: ExportSpec) -> Iterator[str]:
    """Export as JSON lines, one for each entity. Bad arguments raise before the first line."""
    if request.format != "jsonl" or request.engine is Engine.SPARK:
        message = "only JSON lines can be streamed, and only by this process"
        raise ExportTargetError(message, path=None, hint="pass a path to use another format or Spark")
    return _lines(store.tables, chosen_tables(state.snapshot, request.types))


def _lines(tables: TableStorage, chosen: Sequence[TableVersion]) -> Iterator[str]:
    for table in chosen:
        for rows in _rows(tables, table, groups(tables, table)):
            yield from json_lines(table.key, rows).to_pylist()


def export_files(store: Store, state: GraphState, request: ExportSpec) -> ExportResult:
    """Export into one file, or into a directory."""
    assert request.path is not None, "without a path there are lines"
    chosen = chosen_tables(state.snapshot, request.types)
    _check_format(request.path, request.format)
    try:
        if _ending(request.path):
            return _export_file(store, state, chosen, request)
        return _export_directory(store, state, chosen, request)
    finally:
        request.progress.finish()


def chosen_tables(snapshot: Snapshot, types: Sequence[str] | None) -> list[TableVersion]:
    """Return the tables of some types, or of all; a name may mean a node type, an edge type, or both.

    The key of a table, such as `node:Person`, means that one.
    """
    tables = [entry.table for entry in snapshot.entries.values()]
    if types is None:
        return tables
    names, keys = {_name(table) for table in tables}, {table.key for table in tables}
    for wanted in types:
        if wanted not in names | keys:
            hint = did_you_mean(wanted, sorted(names))
            raise ExportTypeError(f"unknown export type '{wanted}'", type_name=wanted, hint=hint)
    return [table for table in tables if _name(table) in types or table.key in types]


def _name(table: TableVersion) -> str:
    return table.key.partition(":")[2]


def _check_format(path: str, format_: str) -> None:
    if format_ not in WRITERS:
        raise ExportTargetError(f"unknown format '{format_}'", path=path, hint=f"use {', '.join(WRITERS)}")
    ending = _ending(path)
    if ending and _ENDINGS[ending] != format_:
        message = f"{path} ends like {_ENDINGS[ending]}, but the format is {format_}"
        raise ExportTargetError(message, path=path, hint="change one of them, or name a directory")


def _ending(path: str) -> str | None:
    return next((ending for ending in _ENDINGS if path.lower().endswith(ending)), None)


# One file ------------------------------------------------------------------------------------------


def _export_file(store: Store, state: GraphState, chosen: Sequence[TableVersion], request: ExportSpec) -> ExportResult:
    location = Location.parse(request.path or "")
    path = location.uri
    if request.engine is Engine.SPARK:
        message = f"Spark cannot write one file, {path}: its tasks write many"
        raise ExportTargetError(message, path=path, hint="name a directory")
    if request.format != "jsonl" and len(chosen) != 1:
        message = f"{path} is one file, but a {request.format} file holds one type, not {len(chosen)}"
        raise ExportTargetError(message, path=path, hint="name a directory, or one type")
    progress = request.progress
    progress.phase("write", len(chosen))
    parts = []
    with written(location) as stream:
        for table in chosen:
            counted = _Counted(_rows(store.tables, table, groups(store.tables, table)), progress)
            WRITERS[request.format](stream, table.key, _schema(store.tables, table), counted)
            progress.advance(1, 0)
            parts.append(ExportPart(table.key, path, counted.rows))
    return _result(state, request, path, parts)


class _Counted:
    """Counts the rows of batches while they are written."""

    def __init__(self, batches: Iterable[pa.Table], progress: Progress = SILENT) -> None:
        self._batches = batches
        self._progress = progress
        self.rows = 0

    def __iter__(self) -> Iterator[pa.Table]:
        for batch in self._batches:
            self.rows += batch.num_rows
            self._progress.advance(0, batch.num_rows)
            yield batch


# A directory ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ExportTask:
    """Some fragments of a table, and the file to write them to."""

    graph: Location
    table: TableVersion
    fragments: tuple[Fragments, ...]
    format: str
    target: Location
    name: str


@dataclass(frozen=True, slots=True)
class ExportPart:
    """A written file, with the table and number of its rows."""

    key: str
    file: str
    rows: int


def export_part(task: ExportTask) -> ExportPart:
    """Write one file; running the task again replaces it with the same content."""
    tables = tables_at(task.graph)
    rows = _Counted(_rows(tables, task.table, task.fragments))
    with written(task.target, task.name) as stream:
        WRITERS[task.format](stream, task.table.key, _schema(tables, task.table), rows)
    return ExportPart(task.table.key, task.target.child(task.name), rows.rows)


def _export_directory(
    store: Store, state: GraphState, chosen: Sequence[TableVersion], request: ExportSpec
) -> ExportResult:
    target = Location.parse(request.path or "")
    objects = ObjectStore(target)
    if objects.exists(""):
        message = f"{target.uri} already exists"
        raise ExportTargetError(message, path=target.uri, hint="name a new or empty directory, or one file")
    # Of all types and not only the chosen ones: names must not depend on what else is exported.
    keys = frozenset(state.snapshot.entries)
    tasks = [task for table in chosen for task in _tasks(store, table, request.format, target, keys)]
    rows = sum(state.snapshot.entries[table.key].row_count for table in chosen)
    is_small = request.engine is Engine.AUTO and rows <= MOST_ROWS
    executor = executor_for(Engine.LOCAL if is_small else request.engine, request.spark, request.progress)
    try:
        result = _result(state, request, target.uri, executor.run("write", export_part, tasks))
        # Last: a reader takes the directory for complete when it sees this file.
        objects.write(COMPLETE, _described(result))
    except BaseException:
        # Only files that tasks have written, by name: the directory may be a bucket that holds other things.
        with suppress(OmnigraphError):  # report the original failure
            for task in tasks:
                objects.delete(task.name)
        raise
    return result


def _tasks(
    store: Store, table: TableVersion, format_: str, target: Location, keys: frozenset[str]
) -> Iterator[ExportTask]:
    found = groups(store.tables, table)
    stem = _stem(table.key, keys)
    # One file under the name of its type, as people expect it; parts only where a task could not sort the whole.
    if len(found) <= 1:
        yield ExportTask(store.location, table, tuple(found), format_, target, f"{stem}.{format_}")
        return
    for number, group in enumerate(found):
        name = f"{stem}/part-{number:05d}.{format_}"
        yield ExportTask(store.location, table, (group,), format_, target, name)


def _stem(key: str, keys: frozenset[str]) -> str:
    """Name the file of a type so that a load finds the type: in another case if a node and an edge share the name.

    That file is in a separate directory, because some file systems do not distinguish case.
    """
    kind, _, name = key.partition(":")
    if kind == "node" or f"node:{name}" not in keys:
        return name
    # A load matches names of edges in any case, but names of nodes exactly and first.
    spellings = (name.lower(), name.upper(), name.swapcase())
    return "edge/" + next((word for word in spellings if f"node:{word}" not in keys), name)


def _described(result: ExportResult) -> bytes:
    commit = result.commit.commit_id if result.commit else None
    about = {"format": result.format, "branch": result.branch, "graph_commit_id": commit}
    return json.dumps({**about, "nodes": result.nodes, "edges": result.edges}, indent=2).encode() + b"\n"


def _result(state: GraphState, request: ExportSpec, path: str, parts: Sequence[ExportPart]) -> ExportResult:
    counts: dict[str, dict[str, int]] = {"node": {}, "edge": {}}
    for part in parts:
        kind, _, name = part.key.partition(":")
        counts[kind][name] = counts[kind].get(name, 0) + part.rows
    branch = state.snapshot.branch or MAIN
    # All types of a JSONL file are in one file, which is named once.
    files = tuple(dict.fromkeys(part.file for part in parts))
    return ExportResult(path, request.format, branch, state.head, counts["node"], counts["edge"], files)


# Rows ----------------------------------------------------------------------------------------------


def _schema(tables: TableStorage, table: TableVersion) -> pa.Schema:
    """Return the columns of exported rows; a Blob is binary."""
    stored = tables.open(table).schema
    fields = [(name, stored.field(name).type) for name in column_names(tables, table)]
    return pa.schema([(name, pa.large_binary() if isinstance(type_, BlobType) else type_) for name, type_ in fields])


def _rows(tables: TableStorage, table: TableVersion, fragments: Sequence[Fragments]) -> Iterator[pa.Table]:
    for rows in in_order(tables, table, column_names(tables, table), fragments):
        for name in rows.column_names:
            _check_finite(table, rows, name)
        yield rows


def _check_finite(table: TableVersion, rows: pa.Table, name: str) -> None:
    """Raise if a value is NaN or infinite: JSON has no way to write one, and a load would refuse it."""
    column = rows[name].combine_chunks()
    is_list = pt.is_list(column.type) or pt.is_fixed_size_list(column.type)
    values = column.flatten() if is_list else column
    if not pt.is_floating(values.type) or pc.all(pc.is_finite(values), min_count=0).as_py():
        return
    place = pc.index(pc.is_finite(values), pa.scalar(value=False)).as_py()
    row = pc.list_parent_indices(column)[place].as_py() if is_list else place
    entity, type_name = rows[ID][row].as_py(), _name(table)
    message = f"{type_name}.{name} of '{entity}' is {values[place].as_py()}, which cannot be exported"
    hint = "set it to a number or to null"
    raise ExportValueError(message, type_name=type_name, entity_id=entity, property=name, hint=hint)
