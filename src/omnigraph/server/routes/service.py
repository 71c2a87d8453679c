"""The server itself: whether it is well, and which graphs it has."""

from __future__ import annotations

from typing import Any

from fastapi import Request, Response

from omnigraph.api.access import Action
from omnigraph.errors import ForbiddenError, MethodNotAllowedError
from omnigraph.server import models, replies
from omnigraph.server.calls import CallNow, service_of
from omnigraph.server.guard import About, Need, needs
from omnigraph.server.metrics import CONTENT_TYPE
from omnigraph.server.replies import AS_NUMBERS, error_responses
from omnigraph.server.routes import router
from omnigraph.version import INTERNAL_SCHEMA_VERSION, __version__

routes = router("server")


@routes.get("/healthz", response_model=models.HealthOutput)
async def healthz(request: Request) -> Response:
    """Liveness: the process responds."""
    serving = service_of(request).serving
    about: dict[str, Any] = {"status": "ok", "version": serving.reported_version or __version__}
    if serving.source_version is not None:
        about["source_version"] = serving.source_version
    return replies.document({**about, "internal_schema_version": INTERNAL_SCHEMA_VERSION})


@routes.get("/readyz", response_model=models.ReadyOutput)
async def readyz(request: Request) -> Response:
    """Readiness: how many graphs are served, and how many are left out."""
    opened = service_of(request).opened
    return replies.document({"status": "ready", "graphs": len(opened.graphs), "left_out": len(opened.skipped)})


@routes.get("/graphs", response_model=models.GraphListResponse, responses=error_responses((400, 401, 403, 405, 500)))
@needs(Need(Action.GRAPH_LIST, about=About.SERVER))
def list_graphs(call: CallNow) -> Response:
    """List the graphs that the token may use."""
    serving = call.service.serving
    # 405 and not an empty list: a client that asks here expects several graphs, and has the wrong address.
    if serving.single:
        raise MethodNotAllowedError("this server has a single graph, and no list of graphs", hint="leave /graphs out")
    # An open server denies it: the names of all graphs are for callers that are known.
    if call.principal is None:
        message = "default-deny: server-scoped actions need a token, and this server asks for none"
        raise ForbiddenError(message, action=Action.GRAPH_LIST, hint="serve it with tokens")
    allowed = call.principal.graphs
    names = sorted(name for name in call.service.opened.graphs if allowed is None or name in allowed)
    found = [{"graph_id": name, "uri": call.service.opened.graphs[name].graph.uri} for name in names]
    return replies.document({"graphs": found})


@routes.get("/metrics", response_class=Response, responses={**error_responses((400, 401, 403, 500)), **AS_NUMBERS})
@needs(Need(None, about=About.SERVER))
def metrics(call: CallNow) -> Response:
    """Return metrics in the Prometheus format."""
    return Response(call.service.metrics.render(), media_type=CONTENT_TYPE)
