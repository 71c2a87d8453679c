"""Write data of a program to temporary files: records, Arrow tables and Spark DataFrames."""

from __future__ import annotations

import io
import json
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from omnigraph.core.location import Location
from omnigraph.errors import InputTypeError
from omnigraph.lang.catalog import Catalog, EdgeType, NodeType
from omnigraph.lang.source import did_you_mean
from omnigraph.storage.columns import table_key
from omnigraph.storage.objects import ObjectStore

_ROWS_PER_GROUP = 65_536
_ENDS = (("from", "from"), ("to", "to"), ("from", "src"), ("to", "dst"))


@contextmanager
def as_files(data: Any, location: Location, catalog: Catalog) -> Iterator[tuple[Any, Mapping[str, Any] | None]]:
    """Yield the addresses of files with the data, and a mapping for temporary ones, which are deleted afterwards.

    Temporary files are below the root of the graph, where every executor can read them.
    """
    if hasattr(data, "__arrow_c_stream__") or hasattr(data, "toArrow"):
        # A DataFrame iterates over the names of its columns, which would be read as paths.
        message = f"cannot tell which type the rows of a {type(data).__name__} have"
        raise InputTypeError(message, path="<data>", hint='pass a mapping from types to tables: {"Person": table}')
    if not isinstance(data, Mapping) and not _is_records(data):
        yield data, None
        return
    objects = ObjectStore(location)
    directory = f"__tmp/input-{secrets.token_hex(8)}"
    try:
        if isinstance(data, Mapping):
            mapping = {"files": dict(_write_tables(data, objects, directory, catalog))}
        elif hasattr(data, "read"):  # an open file of JSON lines
            objects.write(f"{directory}/records.jsonl", data.read())
            mapping = {"files": {}}
        else:
            objects.write(f"{directory}/records.jsonl", b"".join(map(_line, data)))
            mapping = {"files": {}}
        yield ([location.child(directory)] if data else []), mapping
    finally:
        objects.delete_below(directory)


def named(file: str) -> str:
    """Return the name of a file for messages: for a temporary one, the name of its data."""
    return re.sub(r".*/__tmp/input-[0-9a-f]{16}/(?:\d+/)?([^/]*)\.(?:jsonl|parquet)\Z", r"<\1>", file)


def _is_records(data: Any) -> bool:
    """Return whether data is an iterable of records, and not of addresses."""
    if isinstance(data, str) or hasattr(data, "__fspath__") or hasattr(data, "__arrow_c_stream__"):
        return False
    if not isinstance(data, Iterable) or hasattr(data, "toArrow"):
        return False
    return not isinstance(data, list | tuple) or not data or isinstance(data[0], Mapping)


def _line(record: Any) -> bytes:
    return json.dumps(record, separators=(",", ":"), ensure_ascii=False, default=str).encode() + b"\n"


def _write_tables(
    tables: Mapping[str, Any], objects: ObjectStore, directory: str, catalog: Catalog
) -> Iterator[tuple[str, dict[str, str]]]:
    for at, (name, rows) in enumerate(tables.items()):
        declared = catalog.nodes.get(name) or catalog.edge_by_word(name)
        if declared is None:
            hint = did_you_mean(name, [*catalog.nodes, *catalog.edges])
            raise InputTypeError(f"unknown type '{name}'", path=name, hint=hint)
        if _is_records(rows):  # as JSONL, so that each bad record is reported by its number
            envelope = partial(_enveloped, declared)
            objects.write(f"{directory}/{at}/{declared.name}.jsonl", b"".join(map(_line, map(envelope, rows))))
            continue
        file = f"{at}/{declared.name}.parquet"
        objects.write(f"{directory}/{file}", _parquet(_table(rows)))
        yield file, {"type": table_key(declared)}


def _enveloped(declared: NodeType | EdgeType, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of one type as a record of JSONL."""
    if isinstance(declared, NodeType):
        return {"type": declared.name, "data": row}
    ends = {name: row[alias] for name, alias in _ENDS if alias in row}
    data = {name: value for name, value in row.items() if name not in {alias for _, alias in _ENDS}}
    return {"edge": declared.name, **ends, "data": data}


def _table(rows: Any) -> pa.Table:
    if hasattr(rows, "toArrow"):  # a Spark DataFrame
        return rows.toArrow()
    if isinstance(rows, pa.RecordBatch | pa.RecordBatchReader):
        return pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows.read_all()
    return rows if isinstance(rows, pa.Table) else pa.table(rows)


def _parquet(table: pa.Table) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(table, buffer, row_group_size=_ROWS_PER_GROUP)
    return buffer.getvalue()
