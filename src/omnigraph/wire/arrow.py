"""The answer of a query as an Arrow stream, and back."""

from __future__ import annotations

import json
from functools import lru_cache

import pyarrow as pa

from omnigraph.manifest.rows import Commit
from omnigraph.query.result import Result
from omnigraph.wire.commits import optional_commit, optional_commit_of

CONTENT_TYPE = "application/vnd.apache.arrow.stream"
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
    """Read an answer; whoever named the branch that was asked may name it again."""
    table = pa.ipc.open_stream(stream).read_all()
    metadata = dict(table.schema.metadata)
    query_name, answered, commit = _head_of(metadata.pop(_KEY))
    return Result(query_name, branch or answered, table.replace_schema_metadata(metadata or None), commit)


@lru_cache
def _head_of(text: bytes) -> tuple[str, str, Commit | None]:
    """What is said about an answer: the same for each to one query, until something is committed."""
    head = json.loads(text)
    return head["query_name"], head["branch"], optional_commit_of(head["commit"])
