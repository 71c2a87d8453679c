"""Changing a graph by what no operation describes: loads, merges that delete the branch, and older routes."""

from __future__ import annotations

import io
from typing import Annotated, Any, Literal

from fastapi import Query, Response

from omnigraph.api import documents
from omnigraph.api.access import Action
from omnigraph.api.options import message_option
from omnigraph.api.results import LoadResult
from omnigraph.errors import OmnigraphError
from omnigraph.graph import Graph
from omnigraph.server import models, replies
from omnigraph.server.calls import Call, CallNow
from omnigraph.server.guard import Brings, Need, needs
from omnigraph.server.loads import LoadOrder
from omnigraph.server.replies import CHANGING, LINES_BODY, READING
from omnigraph.server.routes import Branch, Committing, OperationId, or_main, router, text

routes = router("changing")


@routes.post("/change", response_model=models.ChangeOutput, responses=CHANGING, deprecated=True)
@needs(Action.CHANGE)
def change(graph: Committing, body: models.ChangeRequest) -> Response:
    """Change a graph, as older clients ask for it."""
    branch = or_main(body.branch)
    done = graph.mutate(text(body.query, ".gq"), body.params, name=body.name, branch=branch)
    return replies.deprecated(replies.document(documents.to_document(done)), "mutate")


@routes.post("/load", response_model=models.IngestOutput, responses=CHANGING)
@needs(Action.CHANGE)
def load(graph: Committing, body: models.IngestRequest) -> Response:
    """Load entities in one commit, or nothing; every problem is named."""
    return replies.document(documents.INGEST.write(_load_text(graph, body), {"uri": graph.uri}))


@routes.post("/ingest", response_model=models.IngestOutput, responses=CHANGING, deprecated=True)
@needs(Action.CHANGE)
def ingest(graph: Committing, body: models.IngestRequest) -> Response:
    """Load entities, as older clients ask for it."""
    response = replies.document(documents.INGEST.write(_load_text(graph, body), {"uri": graph.uri}))
    return replies.deprecated(response, "load")


def _load_text(graph: Graph, body: models.IngestRequest) -> LoadResult:
    # As a file: a text would be taken for the path of one, and the server would read its own disk for a client.
    data = io.BytesIO(body.data.encode())
    return graph.load(data, mode=body.mode or "merge", branch=or_main(body.branch), base=body.from_)


@routes.post(
    "/load/ndjson",
    response_model=models.GraphBatchLoadOutput,
    responses=CHANGING,
    openapi_extra=LINES_BODY,
)
@needs(Need(Action.CHANGE, brings=Brings.LINES))
def load_ndjson(
    call: CallNow,
    graph: Committing,
    *,
    branch: Branch = "main",
    base: Annotated[
        str | None, Query(alias="from", description="The branch to create it from, if it does not exist.")
    ] = None,
    mode: Annotated[Literal["append", "merge", "overwrite"], Query()] = "merge",
    dry_run: Annotated[bool, Query(description="Check the data and change nothing.")] = False,
    max_bad: Annotated[int | None, Query(ge=0, description="Leave out up to so many bad records.")] = None,
    dedupe: Annotated[Literal["ends"] | None, Query(description="Merge edges without ids by their ends.")] = None,
    message: Annotated[str | None, Query(description="What the commit says about the load.")] = None,
) -> Response:
    """Load entities that are sent as they are, one JSON object per line."""
    more: dict[str, Any] = {"dry_run": dry_run, "max_bad": max_bad, "dedupe": dedupe, "message": message}
    done = graph.load(call.lines, mode=mode, branch=branch, base=base, **more)
    return replies.document(documents.to_document(done))


@routes.post("/branches/merge", response_model=models.BranchMergeOutput, responses=CHANGING)
@needs(Action.BRANCH_MERGE)
def merge_branches(call: CallNow, graph: Committing, body: models.MergeRequest) -> Response:
    """Bring onto a branch what another has: in one commit, or a refusal with every conflict."""
    resolution = documents.resolution_of(body.resolve)
    done = graph.merge(body.source, or_main(body.target), resolve=resolution, by=body.by, message=body.message)
    # A failed deletion is reported in the answer and not as an error: the client would repeat a merge that is done.
    deleted = _deleted(call, body.source) if body.delete_branch else {}
    return replies.document({**documents.MERGE.write(done, {"actor": call.actor}), **deleted})


def _deleted(call: Call, name: str) -> dict[str, bool | str]:
    """Delete a branch that was merged. The merge is done, whether that works or not."""
    try:
        call.graph.delete_branch(name)
    except OmnigraphError as error:
        return {"branch_deleted": False, "branch_delete_error": str(error)}
    return {"branch_deleted": True}


load_routes = router("loads")
_ACCEPTED = 202


@load_routes.post("/loads", status_code=_ACCEPTED, response_model=models.LoadBegunOutput, responses=CHANGING)
@needs(Action.CHANGE)
def begin_load(call: CallNow, operation_id: OperationId, body: models.LoadRequest) -> Response:
    """Begin to load files that lie below the load roots of the server, in one commit, on Spark if they are large."""
    branch = or_main(body.branch)
    how = (body.mode, branch, body.from_, body.format, body.mapping, body.dry_run, body.max_bad, body.dedupe)
    order = LoadOrder(tuple(body.data), *how, message_option(body.message), operation_id)
    load_id = call.service.loads.start(call.opened.graph_id, call.graph, order)
    return replies.document({"load_id": load_id}, _ACCEPTED)


@load_routes.get("/loads/{load_id:segment}", response_model=models.LoadStateOutput, responses=READING)
@needs(Action.READ)
def get_load(call: CallNow, load_id: str) -> Response:
    """Return the progress of a load, and its result."""
    state: dict[str, Any] = call.service.loads.state(call.opened.graph_id, load_id)
    return replies.document(state)
