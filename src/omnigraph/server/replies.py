"""Answers of routes: documents, streams of lines, Arrow; and what the OpenAPI document says about each."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

from fastapi import Header, Response
from fastapi.responses import StreamingResponse

from omnigraph.api import arrow
from omnigraph.api.documents import read_output
from omnigraph.api.operation import ARROW, CONDITION_HEADER, JSON, NDJSON
from omnigraph.api.rows import Result
from omnigraph.server.models import ErrorOutput

LINES_TYPE = f"{NDJSON}; charset=utf-8"
_CHUNK = 64 * 1024
_READ = (400, 401, 403, 404, 408, 409, 410, 413, 415, 422, 429, 500, 502, 503)
_CHANGE = (*_READ, 412)
_MEANINGS = {
    400: "The request is malformed, or does not fit the schema.",
    401: "The token is missing or unknown.",
    403: "The role of the token does not allow it.",
    404: "The graph, branch, commit or query does not exist.",
    405: "The server has a single graph, and no list of graphs.",
    408: "The body arrived too slowly.",
    409: "A concurrent change, or the state of the graph, conflicts with the request.",
    410: "A cleanup removed that part of the history.",
    412: "The branch is not at the commit that was named.",
    413: "The request is larger than a limit.",
    415: "The media type of the body is not supported.",
    416: "The Blob has no such range.",
    422: "The JSON does not match the schema of the body.",
    429: "Too many requests are in progress; see Retry-After.",
    500: "The storage or the server failed.",
    502: "The embedding service failed.",
    503: "An interrupted operation must be recovered first, or a service is unavailable.",
}

Responses = dict[int | str, dict[str, Any]]
Conditional = Annotated[
    str, Header(alias=CONDITION_HEADER, description="The id of the commit that the branch must be at.")
]
LINES_BODY = {
    "requestBody": {
        "required": True,
        "content": {NDJSON: {"schema": {"type": "string", "description": "One JSON object per line."}}},
    }
}


def error_responses(statuses: tuple[int, ...]) -> Responses:
    """Describe the errors of a route for the OpenAPI document."""
    return {status: {"model": ErrorOutput, "description": _MEANINGS[status]} for status in statuses}


READING, CHANGING = error_responses(_READ), error_responses(_CHANGE)
AS_LINES: Responses = {200: {"content": {NDJSON: {"schema": {"type": "string"}}}, "description": "Lines of JSON."}}
_BINARY = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
AS_BYTES: Responses = {
    **error_responses((*_READ, 412, 416)),
    200: {"content": _BINARY, "description": "The whole Blob."},
    206: {"content": _BINARY, "description": "The requested range."},
    304: {"description": "The Blob has the ETag of If-None-Match."},
}
AS_NUMBERS: Responses = {
    200: {
        "content": {"text/plain": {"schema": {"type": "string"}}},
        "description": "Metrics in the Prometheus text format.",
    }
}
AS_ARROW: Responses = {200: {"content": {ARROW: {"schema": {"type": "string", "format": "binary"}}}}}


_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)  # made once, and not for each


def document(value: dict[str, Any], status: int = 200) -> Response:
    """Answer with one JSON document."""
    return Response(_text(value), status, media_type=JSON)


def _text(value: dict[str, Any]) -> str:
    try:
        return _JSON.encode(value)
    except ValueError:  # JSON has no way to say NaN or infinity
        # Only then: to look at every value first would cost each answer, and stored numbers are finite.
        return _JSON.encode(_finite(value))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class Rows(NamedTuple):
    """The rows of a query as they are sent, and as what."""

    content: bytes
    media_type: str

    def response(self) -> Response:
        return Response(self.content, media_type=self.media_type)


def rows(found: Result, snapshot: str | None, accept: str | None) -> Rows:
    """Write the rows of a query: as an Arrow stream if that is asked for, else as JSON."""
    if accept is not None and ARROW in accept:
        return Rows(arrow.stream_of(found, snapshot), ARROW)
    return Rows(_text(read_output(found, snapshot)).encode(), JSON)


def line(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def lines(produced: Iterator[str]) -> Response:
    """Answer with lines while they are made. What is wrong before the first one is refused, not cut short."""
    # Before the response starts: what fails here can still get an error status.
    first = next(produced, None)
    known = () if first is None else (first,)
    return StreamingResponse(_chunks(itertools.chain(known, produced)), media_type=LINES_TYPE)


def _chunks(produced: Iterator[str]) -> Iterator[bytes]:
    """Put lines together: a chunk for each would cost more than the line."""
    gathered: list[str] = []
    size = 0
    for line in produced:
        gathered.append(line if line.endswith("\n") else line + "\n")
        size += len(line)
        if size >= _CHUNK:
            yield "".join(gathered).encode()
            gathered, size = [], 0
    if gathered:
        yield "".join(gathered).encode()


def deprecated(response: Response, successor: str) -> Response:
    """Say that a route has a successor; it answers like before."""
    response.headers["Deprecation"] = "true"
    response.headers["Link"] = f'<{successor}>; rel="successor-version"'
    return response
