"""Results in Arrow: plain values of columns, changes as rows, and the stream that a server answers a query with."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, cast

import pyarrow as pa

from omnigraph.api.changes import Change
from omnigraph.api.documents import from_document, to_document
from omnigraph.api.operations import RunQuery
from omnigraph.api.results import Commit
from omnigraph.api.rows import Result
from omnigraph.core.refs import MAIN
from omnigraph.core.values import moment_at
from omnigraph.errors import OptionError

_AS_THEY_ARE = {kind.id for kind in (pa.string(), pa.bool_(), pa.int32(), pa.int64(), pa.uint32(), pa.uint64())}


def plain_values(column: pa.ChunkedArray | pa.Array) -> list[Any]:
    """The cells of a column as JSON has them."""
    # First what most columns are: for a lookup of a few rows the checks below cost more than the cells.
    if column.type.id in _AS_THEY_ARE:
        return cast("list[Any]", column.to_pylist())
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    kind = array.type
    if pa.types.is_list(kind):
        # `values` ignores the offset of a slice and `offsets` does not, so the two fit together; `flatten` would not.
        items = plain_values(array.values)
        ends = array.offsets.to_pylist()
        filled = array.is_valid().to_pylist()
        return [items[ends[at] : ends[at + 1]] if filled[at] else None for at in range(len(array))]
    if pa.types.is_struct(kind):
        names = [kind.field(at).name for at in range(kind.num_fields)]
        rows = zip(*(plain_values(array.field(at)) for at in range(kind.num_fields)), strict=True)
        there = array.is_valid().to_pylist()
        return [dict(zip(names, row, strict=True)) if one else None for row, one in zip(rows, there, strict=True)]
    if pa.types.is_fixed_size_list(kind):  # a vector, and Arrow would make a Python object of each number in turn
        # A null vector has numbers too, in memory. They must not shift the vectors behind it.
        filled = iter(array.drop_null().flatten().to_numpy().reshape(-1, kind.list_size).tolist())
        return [next(filled) if there else None for there in array.is_valid().to_pylist()]
    if pa.types.is_date64(kind):
        return [None if number is None else _moment(number) for number in array.view(pa.int64()).to_pylist()]
    values: list[Any] = array.to_pylist()
    if pa.types.is_date32(kind):
        return [None if value is None else value.isoformat() for value in values]
    if pa.types.is_floating(kind):
        return [_number(value) for value in values]
    return values


def _moment(milliseconds: int) -> str:
    return f"{moment_at(milliseconds).replace(tzinfo=None).isoformat(timespec='milliseconds')}Z"


def _number(value: float | None) -> float | str | None:
    if value is None or math.isfinite(value):
        return value
    # JSON has no such numbers, and Python would write words that other parsers refuse.
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


_CHANGE_SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in ("op", "kind", "type", "id", "src", "dst")),
        ("changed", pa.list_(pa.string())),
        # Large: a Blob in base64 can pass the 2 GiB that the offsets of `string` reach.
        ("before", pa.large_string()),
        ("after", pa.large_string()),
    ]
)


def change_table(parts: Iterable[Sequence[Change]]) -> pa.Table:
    """All changes as one table; the properties before and after are JSON texts."""
    return pa.Table.from_batches(map(_change_batch, parts), schema=_CHANGE_SCHEMA)


def _change_batch(changes: Sequence[Change]) -> pa.RecordBatch:
    """Some changes as rows."""
    found = [change.to_dict() for change in changes]
    sides = [{side: json.dumps(one[side]) if side in one else None for side in ("before", "after")} for one in found]
    ends = [one.get("endpoints", {"src": None, "dst": None}) for one in found]
    records = [{**one, **end, **side} for one, end, side in zip(found, ends, sides, strict=True)]
    return pa.RecordBatch.from_pylist(records, schema=_CHANGE_SCHEMA)


_PREFIX = 8  # bytes before each message; the second half says how long it is
_END = b"\xff\xff\xff\xff\0\0\0\0"  # of a stream
_KEY = b"omnigraph"  # in the metadata of the schema: what the answer is beside its rows


def stream_of(result: Result, snapshot: str | None) -> bytes:
    """Write the rows in columns, as they are, and what `read_output` says about them beside the rows."""
    head = {
        "query_name": result.query_name,
        "branch": result.branch,
        "snapshot": snapshot,
        "commit": to_document(result.commit),
    }
    table = result.table
    schema = table.schema.with_metadata({**(table.schema.metadata or {}), _KEY: json.dumps(head).encode()})
    # What a writer writes, as no column is dictionary-encoded; to set up a writer takes longer than a small answer.
    return b"".join([schema.serialize(), *(batch.serialize() for batch in table.to_batches()), _END])


def result_of(stream: bytes, branch: str | None = None) -> Result:
    """Read an answer; `branch` replaces the one that it names. Raise ValueError if it is not in Arrow."""
    try:
        return _read(stream, branch)
    except (pa.ArrowException, OSError, TypeError, KeyError) as error:
        raise ValueError(f"no answer in Arrow: {error}") from error


def _read(stream: bytes, branch: str | None) -> Result:
    # The schema is cut off by hand, so that `_head_of` can recognize it by its bytes and skip decoding.
    end = _PREFIX + int.from_bytes(stream[_PREFIX // 2 : _PREFIX], "little")
    head = _head_of(stream[:end])
    table = pa.Table.from_batches(_batches(stream[end:], head.schema), head.schema)
    return Result(head.query_name, branch or head.branch, table, head.commit)


def _batches(messages: bytes, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    reader = pa.BufferReader(messages)
    while True:
        try:
            message = pa.ipc.read_message(reader)
        # At the mark that ends the stream, or at the end of the bytes.
        except EOFError:
            return
        yield pa.ipc.read_record_batch(message, schema)


@dataclass(frozen=True, slots=True)
class _Head:
    """What comes before the rows."""

    schema: pa.Schema
    query_name: str
    branch: str
    commit: Commit | None


@lru_cache
def _head_of(message: bytes) -> _Head:
    """Read what comes before the rows: the same in each answer to a query, until something is committed."""
    schema = pa.ipc.read_schema(pa.py_buffer(message))
    metadata = dict(schema.metadata)
    head = json.loads(metadata.pop(_KEY))
    # Our own entry goes: the table must equal the one that a graph in storage returns.
    own = schema.with_metadata(metadata) if metadata else schema.remove_metadata()
    commit = None if head["commit"] is None else from_document(Commit, head["commit"])
    return _Head(own, head["query_name"], head["branch"], commit)


BRANCH = "branch"


def of_branches(asked: RunQuery, ask: Callable[[RunQuery], Result]) -> Result:
    """Ask a query of several branches, and put the rows together, with the branch in the first column."""
    return combined({one.branch: ask(one) for one in for_each_branch(asked)})


def for_each_branch(asked: RunQuery) -> list[RunQuery]:
    """Return the queries, one for each branch; no two have the same."""
    names = list(dict.fromkeys(name.strip() for name in asked.branches or ()))
    if not names or asked.snapshot is not None or asked.branch != MAIN:
        message = "branches needs one name or more" if not names else "branches excludes branch and snapshot"
        raise OptionError(message, option="branches", hint="name the branches, tags or commits to ask in `branches`")
    return [replace(asked, branch=name, branches=None) for name in names]


def combined(found: Mapping[str, Result]) -> Result:
    first = next(iter(found.values()))
    if BRANCH in first.columns:
        message = f"the query returns a column '{BRANCH}', which is that of the branch"
        raise OptionError(message, option="branches", hint="give the column another name: `as NAME`")
    tables = [
        one.table.add_column(0, BRANCH, pa.array([name] * one.table.num_rows, pa.string()))
        for name, one in found.items()
    ]
    return Result(first.query_name, ", ".join(found), pa.concat_tables(tables), None)
