"""Reading a graph: queries, its schema, its tables, exports."""

from __future__ import annotations

from fastapi import Request, Response

from omnigraph.api.access import Action
from omnigraph.server import models, replies
from omnigraph.server.calls import Call, CallNow
from omnigraph.server.guard import needs
from omnigraph.server.latency import query_key
from omnigraph.server.replies import AS_ARROW, AS_LINES, READING
from omnigraph.server.routes.common import router, state, text

routes = router("reading")


@routes.post("/query", response_model=models.ReadOutput, responses={**READING, **AS_ARROW})
@needs(Action.READ)
def query(call: CallNow, request: Request, body: models.QueryRequest) -> Response:
    """Run a query that reads. With `Accept: application/vnd.apache.arrow.stream` its rows come as an Arrow stream."""
    with call.service.latency.measure(query_key(call.opened.graph_id, body.query, body.name)):
        return ask(call, body, request.headers.get("accept")).response()


def ask(call: Call, body: models.QueryRequest | models.ReadRequest, accept: str | None) -> replies.Rows:
    """Run a query, and write its rows in the form that is asked for."""
    where = state(body.branch, body.snapshot)
    found = call.graph.query(text(body.query, ".gq"), body.params, name=body.name, **where)
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
