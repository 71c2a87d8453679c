"""The answer of a query as an Arrow stream, and back."""

from __future__ import annotations

import json

import pyarrow as pa

from omnigraph.query.result import Result
from omnigraph.wire.commits import optional_commit, optional_commit_of

CONTENT_TYPE = "application/vnd.apache.arrow.stream"
_KEY = b"omnigraph"  # in the metadata of the schema: what the answer is beside its rows


def stream_of(result: Result, snapshot: str | None) -> bytes:
    """Write the rows in columns, as they are, and what `read_output` says about them beside the rows."""
    head = {
        "query_name": result.query_name,
        "branch": result.branch,
        "snapshot": snapshot,
        "commit": optional_commit(result.commit),
    }
    metadata = {**(result.table.schema.metadata or {}), _KEY: json.dumps(head).encode()}
    table = result.table.replace_schema_metadata(metadata)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    written: bytes = sink.getvalue().to_pybytes()
    return written


def result_of(stream: bytes) -> Result:
    with pa.ipc.open_stream(stream) as reader:
        table = reader.read_all()
    metadata = dict(table.schema.metadata)
    head = json.loads(metadata.pop(_KEY))
    rows = table.replace_schema_metadata(metadata or None)
    return Result(head["query_name"], head["branch"], rows, optional_commit_of(head["commit"]))
