"""Error responses: status, body and headers of every error."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.routing import Match

from omnigraph.api import problems
from omnigraph.api.operation import CLIENT_HEADER
from omnigraph.core.running import Unwanted
from omnigraph.errors import (
    MethodNotAllowedError,
    OmnigraphError,
    RequestError,
    RequestShapeError,
    RouteNotFoundError,
    ServerFailedError,
    TooManyRequestsError,
    UnauthorizedError,
)
from omnigraph.server.admission import RETRY_AFTER

ERROR = "error"
"""Key in the state of a request: the error of its response, for the access log."""

REQUEST_ID = "request_id"
"""Key in the state of a request: its id."""

_UNKNOWN_MEMBER = "extra_forbidden"
_NOT_FOUND, _NOT_ALLOWED, _CLIENT_GONE = 404, 405, 499
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
_HINT = "see the OpenAPI document at /openapi.json"


def install(app: FastAPI) -> None:
    """Register the error handlers of an application."""
    app.add_exception_handler(OmnigraphError, _on_omnigraph_error)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(HTTPException, _on_routing_error)
    app.add_exception_handler(Unwanted, _on_unwanted)
    app.add_exception_handler(Exception, _on_unexpected_error)


def error_response(request: Request, error: OmnigraphError) -> Response:
    """Return the response for an error. Our own clients get all of its fields."""
    setattr(request.state, ERROR, error)
    # Foreign clients get the documented body alone: our own fields would become a contract that we must keep.
    body = problems.body(error, full=CLIENT_HEADER in request.headers)
    content = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    return Response(content, problems.status(error), _headers(error), "application/json")


def _headers(error: OmnigraphError) -> dict[str, str]:
    if isinstance(error, TooManyRequestsError):
        return {"Retry-After": str(RETRY_AFTER)}
    # RFC 9110 requires it with every 401.
    return {"WWW-Authenticate": "Bearer"} if isinstance(error, UnauthorizedError) else {}


def unexpected(request: Request) -> Response:
    """Return the response for an exception that is no error of ours: it says nothing but where to look."""
    hint = f"see the server log for request {getattr(request.state, REQUEST_ID)}"
    return error_response(request, ServerFailedError("internal server error", hint=hint))


async def _on_unexpected_error(request: Request, _: Exception) -> Response:
    return unexpected(request)  # Starlette raises the exception again, for the access log


async def _on_unwanted(_: Request, __: Exception) -> Response:
    return Response(status_code=_CLIENT_GONE)  # for the access log; the connection is closed


async def _on_omnigraph_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, OmnigraphError)
    return error_response(request, error)


async def _on_validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return error_response(request, _shape_error(error.errors()))


def _shape_error(found: Sequence[Any]) -> OmnigraphError:
    # Unknown members are a 400 and a wrong form is a 422, so the former must not hide among the latter.
    unknown = [_member(one) for one in found if one["type"] == _UNKNOWN_MEMBER]
    if unknown:
        return RequestError(f"the request has unknown members: {', '.join(unknown)}", hint=f"remove them; {_HINT}")
    reasons = "; ".join(f"{_member(one)}: {one['msg']}" for one in found)
    return RequestShapeError(f"the request has the wrong form: {reasons}", hint=_HINT)


def _member(one: Any) -> str:
    return ".".join(str(part)[:80] for part in one["loc"][1:]) or "the body"


async def _on_routing_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    place = f"{request.method} {request.scope['path']:.200}"
    if error.status_code == _NOT_FOUND:
        return error_response(request, RouteNotFoundError(f"no route for {place}", hint=_HINT))
    if error.status_code == _NOT_ALLOWED:
        response = error_response(request, MethodNotAllowedError(f"{place} is not allowed", hint=_HINT))
        response.headers["Allow"] = ", ".join(_allowed_methods(request))
        return response
    return error_response(request, RequestError(str(error.detail), hint=_HINT))


def _allowed_methods(request: Request) -> list[str]:
    # Starlette reports only the methods of the first route that has the path.
    routes, scope = request.app.routes, request.scope
    return [
        method
        for method in _METHODS
        if any(route.matches({**scope, "method": method})[0] is Match.FULL for route in routes)
    ]
