"""The shortest way to the routes that are asked most: those that take one document, at a path without parameters.

FastAPI declares all routes, and runs the others. What it does around each of these (trying one pattern after the other,
solving dependencies, closing stacks) takes longer than a warm query; here a dictionary finds the route, and the same
guard, model and function run. `test_direct_routes.py` holds both ways to the same answers.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import unquote

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.types import ASGIApp, Receive, Scope, Send

from omnigraph.errors import OmnigraphError
from omnigraph.server import errors
from omnigraph.server.calls import call_of

Run = Callable[[Request], Coroutine[Any, Any, Response]]
_GRAPHS = "/graphs/"
_NAMED = "/graphs/{graph_id}"
_TAKES = frozenset({"call", "request", "body"})


def plain_run(route: APIRoute) -> Run | None:
    """How to run a route that takes its call, a document and perhaps the request; None if it takes anything else."""
    given = inspect.signature(route.endpoint).parameters
    body = route.body_field.field_info if route.body_field else None
    if body is None or not body.is_required() or not _is_model(body.annotation):
        return None
    if not {"call", "body"} <= given.keys() <= _TAKES:
        return None
    assert not inspect.iscoroutinefunction(route.endpoint), "those run in threads"
    takes_request = "request" in given

    async def run(request: Request) -> Response:
        read = _read(body.annotation, await request.json())
        do = partial(route.endpoint, call=call_of(request), body=read)
        run_now = partial(do, request=request) if takes_request else do
        response: Response = await asyncio.get_running_loop().run_in_executor(None, run_now)
        return response

    return run


def _is_model(found: Any) -> bool:
    return isinstance(found, type) and issubclass(found, BaseModel)


def _read(model: Any, value: Any) -> BaseModel:
    try:
        read: BaseModel = model.model_validate(value)
    except ValidationError as error:
        found = [{**one, "loc": ("body", *one["loc"])} for one in error.errors()]
        raise RequestValidationError(found) from None
    return read


@dataclass(frozen=True, slots=True)
class Found:
    """A route, as the log and the numbers name it."""

    path: str
    run: Run


class Direct:
    """Passes requests to the routes that it knows, and all others on."""

    def __init__(self, app: ASGIApp, routers: Iterable[APIRouter], owner: FastAPI) -> None:
        self.app = app
        self._owner = owner
        self._routes = {key: found for router in routers for key, found in _plain(router)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        graph_id, found = self._find(scope) if scope["type"] == "http" else (None, None)
        if found is None:
            await self.app(scope, receive, send)
            return
        scope["app"], scope["route"] = self._owner, found
        scope["path_params"] = {} if graph_id is None else {"graph_id": graph_id}
        request = Request(scope, receive)
        try:
            response = await found.run(request)
        except (OmnigraphError, RequestValidationError) as error:
            response = errors.told(request, error)
        await response(scope, receive, send)

    def _find(self, scope: Scope) -> tuple[str | None, Found | None]:
        method, path = scope["method"], scope["path"]
        if not path.startswith(_GRAPHS):
            return None, self._routes.get((method, path, ""))
        graph_id, _, rest = path.removeprefix(_GRAPHS).partition("/")
        return unquote(graph_id, errors="replace"), self._routes.get((method, f"/{rest}", _NAMED))


def _plain(router: APIRouter) -> Iterator[tuple[tuple[str, str, str], Found]]:
    for route in router.routes:
        run: Run | None = getattr(route, "direct", None)
        if run is None or not isinstance(route, APIRoute) or "{" in route.path:
            continue
        for method in route.methods or ():
            for prefix in ("", _NAMED):
                yield (method, route.path, prefix), Found(f"{prefix}{route.path}", run)
