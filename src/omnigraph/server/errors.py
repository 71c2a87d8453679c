"""Errors as answers: each with its status, its text and its one detail."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.routing import Match

from omnigraph.api import problems
from omnigraph.errors import (
    MethodNotAllowedError,
    OmnigraphError,
    RequestError,
    RequestShapeError,
    RouteNotFoundError,
    TooManyRequestsError,
    UnauthorizedError,
)
from omnigraph.server.admission import RETRY_AFTER

CLIENT = "Omnigraph-Client"
ERROR = "error"
"""Where in the state of a request the error is with which it was answered."""

_UNKNOWN_MEMBER = "extra_forbidden"
_NOT_FOUND, _NOT_ALLOWED = 404, 405
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")


def install(app: FastAPI) -> None:
    """Let an application answer with our errors, whoever raises them."""
    app.add_exception_handler(OmnigraphError, _ours)
    app.add_exception_handler(RequestValidationError, _malformed)
    app.add_exception_handler(HTTPException, _not_routed)


def told(request: Request, error: OmnigraphError | RequestValidationError) -> Response:
    """Answer with an error, whoever raised it."""
    return answer(request, error if isinstance(error, OmnigraphError) else _shape_error(error.errors()))


def answer(request: Request, error: OmnigraphError) -> Response:
    """Tell an error; to a client of ours, in full. The log will tell of it too."""
    setattr(request.state, ERROR, error)
    body = problems.body(error, full=CLIENT in request.headers)
    content = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    return Response(content, problems.status(error), _headers(error), "application/json")


def _headers(error: OmnigraphError) -> dict[str, str]:
    if isinstance(error, TooManyRequestsError):
        return {"Retry-After": str(RETRY_AFTER)}
    return {"WWW-Authenticate": "Bearer"} if isinstance(error, UnauthorizedError) else {}


async def _ours(request: Request, error: Exception) -> Response:
    assert isinstance(error, OmnigraphError)
    return answer(request, error)


async def _malformed(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return told(request, error)


def _shape_error(found: Sequence[Any]) -> OmnigraphError:
    """A member that nobody knows is one thing, a form that does not fit another."""
    unknown = [_member(one) for one in found if one["type"] == _UNKNOWN_MEMBER]
    if unknown:
        message = f"the request has unknown members: {', '.join(unknown)}"
        return RequestError(message, hint="leave them out; the OpenAPI document at /openapi.json says what there is")
    told = "; ".join(f"{_member(one)}: {one['msg']}" for one in found)
    return RequestShapeError(f"the request is not of the right form: {told}", hint="see /openapi.json")


def _member(one: Any) -> str:
    return ".".join(str(part)[:80] for part in one["loc"][1:]) or "the body"


async def _not_routed(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    place = f"{request.method} {request.scope['path']:.200}"
    hint = "see /openapi.json for what there is"
    if error.status_code == _NOT_FOUND:
        return answer(request, RouteNotFoundError(f"there is nothing at {place}", hint=hint))
    if error.status_code == _NOT_ALLOWED:
        response = answer(request, MethodNotAllowedError(f"{place} is not possible", hint=hint))
        response.headers["Allow"] = ", ".join(_possible(request))
        return response
    return answer(request, RequestError(str(error.detail), hint=hint))


def _possible(request: Request) -> list[str]:
    """The methods of all routes at a path: the framework tells those of the first."""
    routes, scope = request.app.routes, request.scope
    return [
        method
        for method in _METHODS
        if any(route.matches({**scope, "method": method})[0] is Match.FULL for route in routes)
    ]
