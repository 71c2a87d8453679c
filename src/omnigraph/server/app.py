"""The ASGI application: every route, for a named graph and for the default one, behind the middleware."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

from anyio import to_thread
from fastapi import APIRouter, FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from omnigraph.api.operation import GRAPH_ID_PATTERN
from omnigraph.server import errors
from omnigraph.server.access_log import AccessLog
from omnigraph.server.admission import Admission
from omnigraph.server.agents import AgentEndpoint
from omnigraph.server.calls import Service
from omnigraph.server.inline_query import InlineQueries
from omnigraph.server.latency import LatencyTracker
from omnigraph.server.limits import RequestLimits
from omnigraph.server.loads import Loads
from omnigraph.server.metrics import Metrics
from omnigraph.server.open_graphs import open_graphs
from omnigraph.server.routes import changing, operations, reading, service, stored
from omnigraph.server.settings import Serving
from omnigraph.server.upkeep import BackgroundUpkeep
from omnigraph.version import __version__

GRAPH_ROUTERS = (
    operations.routes,
    reading.routes,
    reading.blob_routes,
    reading.history_routes,
    changing.routes,
    changing.load_routes,
    stored.routes,
)
_NAMED = "cluster_"
_ABOUT = "A typed property graph, versioned like git. A path without a graph means the default one."
_UNAUTHORIZED = "401"
_NAMED_PATHS = "/graphs/{graph_id}"
_GRAPH_ID = {
    "name": "graph_id",
    "in": "path",
    "required": True,
    "description": "The id of the graph.",
    "schema": {"type": "string", "pattern": f"^{GRAPH_ID_PATTERN}$"},
}


def create_app(serving: Serving) -> FastAPI:
    """Open the graphs and create the application that serves them."""
    app = FastAPI(
        title="Omnigraph",
        version=serving.reported_version or __version__,
        lifespan=_lifespan,
        docs_url=None,
        redoc_url=None,
        # A redirect would send the token to an address that the client did not choose.
        redirect_slashes=False,
    )
    shared = _service(serving)
    app.state.service = shared
    app.include_router(service.routes, generate_unique_id_function=_plain_id)
    for routes in GRAPH_ROUTERS:
        _include(app, routes)
    app.state.agents = AgentEndpoint(shared)
    app.router.routes += app.state.agents.routes()
    errors.install(app)
    _describe(app, shared)
    return app


def with_middleware(app: FastAPI) -> ASGIApp:
    """Return the application behind the middleware: nothing is answered without a log line, or read beyond a limit."""
    # In front of FastAPI, not inside it: a lookup that is answered here need not pass the layers that FastAPI adds.
    service: Service = app.state.service
    inline = InlineQueries(RawPath(app), service)
    return AccessLog(RequestLimits(inline, service.serving.limits), service.metrics)


class RawPath:
    """ASGI middleware: routes by the path as it was sent, so that `review%2Fx` stays one segment.

    An ASGI server decodes the path first, and the branch `review/x` would become two segments.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope.get("raw_path"):
            scope["path"] = scope["raw_path"].decode("latin-1")
        await self.app(scope, receive, send)


def _service(serving: Serving) -> Service:
    opened, metrics = open_graphs(serving), Metrics()
    # Set once: graphs are opened at the start only, and one that is added needs a restart.
    metrics.graphs.labels("served").set(len(opened.graphs))
    metrics.graphs.labels("left out").set(len(opened.skipped))
    loads, upkeep = Loads(serving, metrics), BackgroundUpkeep(serving, opened.graphs, metrics)
    return Service(serving, opened, Admission(serving.limits), metrics, loads, LatencyTracker(), upkeep)


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    service: Service = app.state.service
    # Here and not at import: the limiter belongs to the event loop, which exists only now.
    to_thread.current_default_thread_limiter().total_tokens = service.serving.limits.threads
    service.upkeep.start()
    yield
    await app.state.agents.close()
    await to_thread.run_sync(service.upkeep.stop, service.serving.limits.shutdown_seconds)
    await to_thread.run_sync(service.loads.close)


def _include(app: FastAPI, routes: APIRouter) -> None:
    """Serve routes for the graph that the path names, and for the default graph."""
    app.include_router(routes, prefix="/graphs/{graph_id:segment}", generate_unique_id_function=_named_id)
    app.include_router(routes, generate_unique_id_function=_plain_id)


def _plain_id(route: APIRoute) -> str:
    return route.name


def _named_id(route: APIRoute) -> str:
    return f"{_NAMED}{route.name}"


# The OpenAPI document ------------------------------------------------------------------------------


def _describe(app: FastAPI, service: Service) -> None:
    """Set the OpenAPI document of an application: of the routes that this server has."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app, service)
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def _document(app: FastAPI, service: Service) -> dict[str, Any]:
    found = get_openapi(title=app.title, version=app.version, routes=app.routes, description=_ABOUT)
    for path, there in found["paths"].items():
        if path.startswith(_NAMED_PATHS):
            there["parameters"] = [_GRAPH_ID]  # the guard reads it, so no route declares it
    if service.serving.open_mode:
        for operation in _operations(found):
            operation["responses"].pop(_UNAUTHORIZED, None)
        return found
    found["components"]["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
    for operation in _operations(found):
        # Routes that cannot answer 401, such as the health checks, are open.
        if _UNAUTHORIZED in operation["responses"]:
            operation["security"] = [{"bearer": []}]
    return found


def _operations(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for there in document["paths"].values():
        yield from (operation for name, operation in there.items() if name != "parameters")
