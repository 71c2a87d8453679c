"""Reading a graph by what no operation describes: queries, exports, differences, Blobs."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import Depends, Query, Request, Response
from fastapi.responses import StreamingResponse

from omnigraph.api.access import Action, Caller
from omnigraph.api.documents import Show, diff_lines
from omnigraph.api.rows import Blob
from omnigraph.errors import BlobChangedError, BlobRangeError
from omnigraph.server import models, replies
from omnigraph.server.calls import Call, CallNow
from omnigraph.server.guard import needs
from omnigraph.server.latency import query_key
from omnigraph.server.replies import AS_ARROW, AS_BYTES, AS_LINES, READING
from omnigraph.server.routes import Kinds, Operations, Types, chosen, named, or_main, router, state, text

routes = router("reading")


@routes.get("/whoami", response_model=models.WhoamiOutput, responses=READING)
@needs(Action.READ)
def whoami(call: CallNow) -> Response:
    """Return who the token is, and which actions it may do on this graph, on some branch at least."""
    caller = Caller.of(call.principal)
    principal = caller.principal
    graphs = None if principal is None or principal.graphs is None else sorted(principal.graphs)
    about = {"actor": call.actor, "role": None if principal is None else principal.role, "graphs": graphs}
    return replies.document({**about, "actions": sorted(caller.actions), "open_mode": principal is None})


@routes.post("/query", response_model=models.ReadOutput, responses={**READING, **AS_ARROW})
@needs(Action.READ)
def query(call: CallNow, request: Request, body: models.QueryRequest) -> Response:
    """Run a query that reads. With `Accept: application/vnd.apache.arrow.stream` its rows come as an Arrow stream."""
    with call.service.latency.measure(query_key(call.opened.graph_id, body.query, body.name)):
        return ask(call, body, request.headers.get("accept")).response()


def ask(call: Call, body: models.QueryRequest | models.ReadRequest, accept: str | None) -> replies.Rows:
    """Run a query, and write its rows in the form that is asked for."""
    where = state(body.branch, body.snapshot)
    found = call.graph.query(text(body.query, ".gq"), body.params, name=body.name, timeout=body.timeout, **where)
    return replies.rows(found, body.snapshot, accept)


@routes.post("/read", response_model=models.ReadOutput, responses={**READING, **AS_ARROW}, deprecated=True)
@needs(Action.READ)
def read(call: CallNow, request: Request, body: models.ReadRequest) -> Response:
    """Run a query that reads, as older clients ask for it."""
    return replies.deprecated(ask(call, body, request.headers.get("accept")).response(), "query")


@routes.post("/export", response_class=Response, responses={**READING, **AS_LINES})
@needs(Action.EXPORT)
def export(call: CallNow, body: models.ExportRequest) -> Response:
    """Write the entities of a state as lines of JSON, edges before nodes, in a form that a load takes."""
    types = [*body.type_names, *body.table_keys] or None
    return replies.lines(call.graph.export(types=types, **state(body.branch, body.snapshot)))


history_routes = router("history")


@history_routes.post("/changes/baseline", response_class=Response, responses={**READING, **AS_LINES})
@needs(Action.EXPORT)
def export_baseline(call: CallNow, body: models.ChangeBaselineRequest) -> Response:
    """Export the baseline of a change feed, as lines of JSON; the last line has the cursor to continue with."""
    graph = call.graph
    which: Any = chosen(body.kind or None, body.type or None, body.op or None)
    begins = graph.baseline(or_main(body.branch), **which)
    entities = graph.export(snapshot=begins.commit_id, types=begins.tables)
    last = replies.line({"baseline": {"snapshot_commit_id": begins.commit_id, "resume_cursor": begins.cursor}})
    return replies.lines(itertools.chain(entities, [last]))


@history_routes.get("/diff", response_class=Response, responses={**READING, **AS_LINES})
@needs(Action.READ)
def diff(
    call: CallNow,
    *,
    before: Annotated[str, Query(alias="from", description="A branch, a tag, a commit, `ref~n` or `ref@version`.")],
    after: Annotated[str, Query(alias="to", description="The state to compare it with, in the same form.")],
    fork: Annotated[bool, Query(description="Compare with where `to` parted from `from`: what it did since.")] = False,
    kind: Kinds = None,
    type: Types = None,  # noqa: A002 - the name of the parameter
    op: Operations = None,
    show: Annotated[
        Literal["head", "stats", "changes"],
        Query(description="How much to return: the head, the counts, or all changes."),
    ] = "changes",
) -> Response:
    """Return what turns one state into another, as lines of JSON: the head, the changes, and last their counts."""
    states = (f"{before}...{after}", None) if fork else (before, after)
    found = call.graph.diff(*states, kinds=named(kind), types=named(type), operations=named(op))
    return replies.lines(diff_lines(found, Show(show)))


blob_routes = router("blobs")

_CHUNK = 2**20
_RANGE = re.compile(r"bytes=([0-9]{0,4000})-([0-9]{0,4000})", re.IGNORECASE)  # Python reads no longer numbers
_BYTES = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class _Asked:
    """The Blob to deliver, and the state to read it from."""

    type: Annotated[str, Query(description="The name of the type.")]
    id: Annotated[str, Query(description="The id of the entity.")]
    property: Annotated[str, Query(description="The name of the property.")]
    entity: Literal["node", "edge"] = "node"
    branch: str | None = None
    snapshot: str | None = None


Asked = Annotated[_Asked, Depends()]


@blob_routes.get("/blob", response_class=Response, responses=AS_BYTES)
@needs(Action.READ)
def get_blob(call: CallNow, request: Request, asked: Asked) -> Response:
    """Return the content of a Blob property, or a range of it."""
    return _answered(call, request, asked)


@blob_routes.head("/blob", response_class=Response, responses=AS_BYTES)
@needs(Action.READ)
def head_blob(call: CallNow, request: Request, asked: Asked) -> Response:
    """Return the size and the ETag of a Blob property."""
    found = _answered(call, request, asked)
    # Built from the answer to GET, so that the two cannot differ; the body is never read, as no chunk is asked for.
    return Response(status_code=found.status_code, headers=dict(found.headers))


def _answered(call: Call, request: Request, asked: _Asked) -> Response:
    (ref,) = state(asked.branch, asked.snapshot).values()
    pinned = call.graph.at(str(ref))
    blob = pinned.blob(asked.type, asked.id, asked.property, kind=asked.entity)
    tag = f'"{blob.etag}"'
    # With a 304 as well, as RFC 9110 (15.4.5) requires of the ETag.
    headers = {"Accept-Ranges": "bytes", "ETag": tag}
    if pinned.commit is not None:
        headers["Omnigraph-Snapshot-Id"] = pinned.commit.commit_id
    if not _named(request, "if-match", tag, default=True):
        raise BlobChangedError("the Blob does not have the ETag of If-Match", hint="request it again")
    if _named(request, "if-none-match", tag, default=False):
        return Response(status_code=304, headers=headers)
    return _delivered(blob, _part(request, blob, tag), headers)


def _named(request: Request, header: str, tag: str, *, default: bool) -> bool:
    """Whether a header names the tag, or any."""
    given = request.headers.get(header)
    if given is None:
        return default
    # A weak tag never satisfies If-Match (RFC 9110, 13.1.1).
    names = [one.strip().removeprefix("W/") if header == "if-none-match" else one.strip() for one in given.split(",")]
    return "*" in names or tag in names


def _part(request: Request, blob: Blob, tag: str) -> tuple[int, int] | None:
    """The one range that is asked for, from a byte up to another; None means all."""
    found = _RANGE.fullmatch(request.headers.get("range", "").strip())
    # If-Range names another state of the Blob: a part of this one would not fit what the client has.
    if found is None or not any(found.groups()) or request.headers.get("if-range", tag).strip() != tag:
        return None
    if not blob.size:
        return None  # there is no part of nothing
    first, last = found.groups()
    start = int(first) if first else max(blob.size - int(last), 0)
    end = min(int(last) + 1, blob.size) if first and last else blob.size
    if first and last and int(last) < int(first):
        return None  # no range at all, so as if there was none
    if start >= end:
        message = f"the range starts at byte {start}, but the Blob has {blob.size} bytes"
        raise BlobRangeError(message, start=start, end=end, length=blob.size, hint="request a range inside the Blob")
    return start, end


def _delivered(blob: Blob, part: tuple[int, int] | None, headers: dict[str, str]) -> Response:
    start, end = part or (0, blob.size)
    about = {**headers, "Content-Length": str(end - start)}
    if part is not None:
        about["Content-Range"] = f"bytes {start}-{end - 1}/{blob.size}"
    return StreamingResponse(_chunks(blob, start, end), 200 if part is None else 206, about, _BYTES)


def _chunks(blob: Blob, start: int, end: int) -> Iterator[bytes]:
    for at in range(start, end, _CHUNK):
        yield blob.read(at, min(at + _CHUNK, end))
