"""Reading a graph: queries, its schema, its tables, exports."""

from __future__ import annotations

from fastapi import Request, Response

from omnigraph.api import documents
from omnigraph.api.access import Action
from omnigraph.api.results import NamedState
from omnigraph.server import replies, requests, responses
from omnigraph.server.calls import Call, CallNow
from omnigraph.server.guard import needs
from omnigraph.server.latency import query_key
from omnigraph.server.replies import AS_ARROW, AS_LINES, READING
from omnigraph.server.routes.common import Branch, router, state, text

routes = router("reading")


@routes.post("/query", response_model=responses.ReadOutput, responses={**READING, **AS_ARROW})
@needs(Action.READ)
def query(call: CallNow, request: Request, body: requests.QueryRequest) -> Response:
    """Run a query that reads. With `Accept: application/vnd.apache.arrow.stream` its rows come as an Arrow stream."""
    with call.service.latency.measure(query_key(call.opened.graph_id, body.query, body.name)):
        return ask(call, body, request.headers.get("accept")).response()


def ask(call: Call, body: requests.QueryRequest | requests.ReadRequest, accept: str | None) -> replies.Rows:
    """Run a query, and write its rows in the form that is asked for."""
    where = state(body.branch, body.snapshot)
    found = call.graph.query(text(body.query, ".gq"), body.params, name=body.name, **where)
    return replies.rows(found, body.snapshot, accept)


@routes.post("/read", response_model=responses.ReadOutput, responses={**READING, **AS_ARROW}, deprecated=True)
@needs(Action.READ)
def read(call: CallNow, request: Request, body: requests.ReadRequest) -> Response:
    """Run a query that reads, as older clients ask for it."""
    return replies.deprecated(ask(call, body, request.headers.get("accept")).response(), "query")


@routes.post("/explain", response_model=responses.ExplainOutput, responses=READING)
@needs(Action.READ)
def explain(call: CallNow, body: requests.QueryRequest) -> Response:
    """Run a query that reads, and tell how it was done instead of its rows."""
    where = state(body.branch, body.snapshot)
    found = call.graph.explain(text(body.query, ".gq"), body.params, name=body.name, **where)
    return replies.document(documents.explain_output(found))


@routes.get("/snapshot", response_model=responses.SnapshotOutput, responses=READING)
@needs(Action.READ)
def snapshot(call: CallNow, branch: Branch = "main") -> Response:
    """Tell which version of each table a branch consists of."""
    return replies.document(documents.snapshot_output(call.graph.snapshot(branch)))


@routes.get("/schema", response_model=responses.SchemaOutput, responses=READING)
@needs(Action.READ)
def schema(call: CallNow) -> Response:
    """Tell the schema as it was written."""
    return replies.document(documents.schema_output(call.graph.schema))


@routes.post("/export", response_class=Response, responses={**READING, **AS_LINES})
@needs(Action.EXPORT)
def export(call: CallNow, body: requests.ExportRequest) -> Response:
    """Write the entities of a state as lines of JSON, edges before nodes, in a form that a load takes."""
    types = [*body.type_names, *body.table_keys] or None
    return replies.lines(call.graph.export(types=types, **state(body.branch, body.snapshot)))


@routes.get("/states/{ref:segment}", response_model=responses.StateOutput, responses=READING)
@needs(Action.READ)
def get_state(call: CallNow, ref: str) -> Response:
    """Tell which commit a branch is at, or a tag or an id names, and the schema of then."""
    state = call.graph.at(ref)
    return replies.document(documents.state_output(NamedState(state.branch, state.commit, state.schema)))
