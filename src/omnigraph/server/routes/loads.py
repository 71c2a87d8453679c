"""Loads of files that the server can reach itself: begun here, run in the background, asked about by their ids."""

from __future__ import annotations

from typing import Any

from fastapi import Response

from omnigraph.api.access import Action
from omnigraph.server import models, replies
from omnigraph.server.calls import CallNow
from omnigraph.server.guard import needs
from omnigraph.server.loads import LoadOrder
from omnigraph.server.replies import CHANGING, READING
from omnigraph.server.routes.common import OperationId, or_main, router

routes = router("loads")
_ACCEPTED = 202


@routes.post("/loads", status_code=_ACCEPTED, response_model=models.LoadBegunOutput, responses=CHANGING)
@needs(Action.CHANGE)
def begin_load(call: CallNow, operation_id: OperationId, body: models.LoadRequest) -> Response:
    """Begin to load files that lie below the load roots of the server, in one commit, on Spark if they are large."""
    branch = or_main(body.branch)
    how = (body.mode, branch, body.from_, body.format, body.mapping, body.dry_run)
    order = LoadOrder(tuple(body.data), *how, operation_id)
    load_id = call.service.loads.start(call.opened.graph_id, call.graph, order)
    return replies.document({"load_id": load_id}, _ACCEPTED)


@routes.get("/loads/{load_id:segment}", response_model=models.LoadStateOutput, responses=READING)
@needs(Action.READ)
def get_load(call: CallNow, load_id: str) -> Response:
    """Return the progress of a load, and its result."""
    state: dict[str, Any] = call.service.loads.state(call.opened.graph_id, load_id)
    return replies.document(state)
