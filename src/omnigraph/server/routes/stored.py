"""Stored queries: which there are, and running one."""

from __future__ import annotations

from typing import Annotated

from fastapi import Body, Request, Response

from omnigraph.api import documents
from omnigraph.api.access import Action
from omnigraph.errors import ForbiddenError, QueryKindError, RequestError
from omnigraph.graph import Graph
from omnigraph.server import intake, models, replies
from omnigraph.server.calls import Call, CallNow
from omnigraph.server.guard import Condition, Need, needs
from omnigraph.server.open_graphs import StoredQuery, not_found
from omnigraph.server.replies import AS_ARROW, CHANGING, READING, Conditional
from omnigraph.server.routes import Committing, or_main, router, state, text

routes = router("stored queries")

OptionalBody = Annotated[models.InvokeStoredQueryRequest | None, Body()]
_EMPTY = models.InvokeStoredQueryRequest.model_validate({})


@routes.get("/queries", response_model=models.QueriesCatalogOutput, responses=READING)
@needs(Action.READ)
def list_queries(call: CallNow) -> Response:
    """List the stored queries with their parameters."""
    return replies.document(call.opened.stored.catalog(call.graph.at("main").catalog))


def _needed(request: Request, call: Call) -> Need:
    return Need(Action.CHANGE if _asked(request, call).is_mutation else Action.READ)


def _needed_conditionally(request: Request, call: Call) -> Need:
    if not _asked(request, call).is_mutation:
        name = request.path_params["name"]
        raise QueryKindError(f"query '{name}' reads", hint="run it without a condition", query=name)
    return Need(Action.CHANGE, condition=Condition.REQUIRED)


def _asked(request: Request, call: Call) -> StoredQuery:
    """Find the query. A caller who may run none cannot learn which exist."""
    name = request.path_params["name"]
    try:
        # Before the lookup, so that both answers take the same way.
        call.allow(Action.INVOKE_QUERY)
    except ForbiddenError:
        raise not_found(name) from None
    return call.opened.stored.find(name)


@routes.post(
    "/queries/{name:segment}",
    response_model=models.ReadOutput | models.ChangeOutput,
    responses={**CHANGING, **AS_ARROW},
)
@needs(_needed)
def invoke_query(call: CallNow, graph: Committing, request: Request, name: str, body: OptionalBody = None) -> Response:
    """Run a stored query by its name; its parameters are those that it declares."""
    query, given = call.opened.stored.find(name), body or _EMPTY
    _check_kind(query, given)
    if query.is_mutation:
        return _mutate(graph, request, query, given)
    where = state(given.branch, given.snapshot)
    found = graph.query(text(query.source.text, ".gq"), given.params, name=name, **where)
    return replies.rows(found, given.snapshot, request.headers.get("accept")).response()


@routes.post(
    "/queries/{name:segment}/if-graph-commit",
    response_model=models.ChangeOutput,
    responses=CHANGING,
)
@needs(_needed_conditionally)
def invoke_query_if_graph_commit(
    call: CallNow,
    graph: Committing,
    request: Request,
    name: str,
    _condition: Conditional,
    body: OptionalBody = None,
) -> Response:
    """Run a stored mutation only if its branch is at the commit that the header names."""
    query, given = call.opened.stored.find(name), body or _EMPTY
    _check_kind(query, given)
    return _mutate(graph, request, query, given)


def _mutate(graph: Graph, request: Request, query: StoredQuery, given: models.InvokeStoredQueryRequest) -> Response:
    if given.snapshot is not None:
        raise RequestError(f"'{query.name}' changes the graph: it takes no snapshot", hint="name a branch instead")
    source, branch = text(query.source.text, ".gq"), or_main(given.branch)
    condition, said = intake.condition(request), given.message
    done = graph.mutate(source, given.params, name=query.name, branch=branch, if_commit=condition, message=said)
    return replies.document(documents.to_document(done))


def _check_kind(query: StoredQuery, given: models.InvokeStoredQueryRequest) -> None:
    if given.expect_mutation is None or given.expect_mutation == query.is_mutation:
        return
    what = "changes the graph" if query.is_mutation else "only reads"
    raise QueryKindError(f"query '{query.name}' {what}", hint="leave `expect_mutation` out", query=query.name)
