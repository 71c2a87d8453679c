"""The answer of a query as an Arrow stream, and back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa

from omnigraph.manifest.rows import Commit
from omnigraph.query.result import Result
from omnigraph.wire.commits import optional_commit, optional_commit_of

CONTENT_TYPE = "application/vnd.apache.arrow.stream"
_PREFIX = 8  # bytes before each message; the second half says how long it is
_END = b"\xff\xff\xff\xff\0\0\0\0"  # of a stream
_KEY = b"omnigraph"  # in the metadata of the schema: what the answer is beside its rows


def stream_of(result: Result, snapshot: str | None) -> bytes:
    """Write the rows in columns, as they are, and what `read_output` says about them beside the rows."""
    head = {
        "query_name": result.query_name,
        "branch": result.branch,
        "snapshot": snapshot,
        "commit": optional_commit(result.commit),
    }
    table = result.table
    schema = table.schema.with_metadata({**(table.schema.metadata or {}), _KEY: json.dumps(head).encode()})
    # What a writer writes, as no column is dictionary-encoded; to set up a writer takes longer than a small answer.
    return b"".join([schema.serialize(), *(batch.serialize() for batch in table.to_batches()), _END])


def result_of(stream: bytes, branch: str | None = None) -> Result:
    """Read an answer; whoever named the branch that was asked may name it again. Raise ValueError if it is none."""
    try:
        return _read(stream, branch)
    except (pa.ArrowException, OSError, TypeError, KeyError) as error:
        raise ValueError(f"no answer in Arrow: {error}") from error


def _read(stream: bytes, branch: str | None) -> Result:
    end = _PREFIX + int.from_bytes(stream[_PREFIX // 2 : _PREFIX], "little")
    head = _head_of(stream[:end])
    table = pa.Table.from_batches(_batches(stream[end:], head.schema), head.schema)
    return Result(head.query_name, branch or head.branch, table, head.commit)


def _batches(messages: bytes, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    reader = pa.BufferReader(messages)
    while True:
        try:
            message = pa.ipc.read_message(reader)
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
    told = json.loads(metadata.pop(_KEY))
    own = schema.with_metadata(metadata) if metadata else schema.remove_metadata()
    return _Head(own, told["query_name"], told["branch"], optional_commit_of(told["commit"]))
