"""The OpenAPI document of the routes that a server has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from omnigraph.api.operation import GRAPH_ID_PATTERN
from omnigraph.server.calls import Service

_ABOUT = "A typed property graph, versioned like git. A path without a graph means the default one."
_UNAUTHORIZED = "401"
_NAMED = "/graphs/{graph_id}"
_GRAPH_ID = {
    "name": "graph_id",
    "in": "path",
    "required": True,
    "description": "The id of the graph.",
    "schema": {"type": "string", "pattern": f"^{GRAPH_ID_PATTERN}$"},
}


def install(app: FastAPI, service: Service) -> None:
    """Set the OpenAPI document of an application."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app, service)
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def _document(app: FastAPI, service: Service) -> dict[str, Any]:
    found = get_openapi(title=app.title, version=app.version, routes=app.routes, description=_ABOUT)
    for path, operations in found["paths"].items():
        if path.startswith(_NAMED):
            operations["parameters"] = [_GRAPH_ID]  # the guard reads it, so no route declares it
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
    for operations in document["paths"].values():
        yield from (operation for name, operation in operations.items() if name != "parameters")
