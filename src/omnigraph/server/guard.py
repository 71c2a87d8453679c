"""The guard before every route: authenticate, authorize, admit, and only then read the body."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, TypeVar

from fastapi import Request, Response
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from omnigraph.api.access import READS, Action
from omnigraph.api.operation import CONDITION_HEADER
from omnigraph.errors import RequestError
from omnigraph.server import intake
from omnigraph.server.admission import size_of
from omnigraph.server.calls import Call, about_graph, identified, remember
from omnigraph.server.limits import max_body_bytes


class About(Enum):
    """What a route is about."""

    GRAPH = "graph"
    SERVER = "server"


class Brings(Enum):
    """What is sent to a route: JSON of the form that it declares, if any, or lines of JSON."""

    DECLARED = "declared"
    LINES = "lines"


class Condition(Enum):
    """Whether a route takes the commit that a change depends on."""

    NONE = "none"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class Need:
    """What must hold before a route runs. Without an action it is enough to be known."""

    action: Action | None
    about: About = About.GRAPH
    brings: Brings = Brings.DECLARED
    condition: Condition = Condition.NONE


Needs = Need | Callable[[Request, Call], Need]
Run = Callable[[Request], Coroutine[Any, Any, Response]]
_F = TypeVar("_F", bound=Callable[..., Any])


def needs(what: Action | Needs) -> Callable[[_F], _F]:
    """Say what a route needs; a function says it if that depends on the request. Others are open to everybody."""

    def marked(endpoint: _F) -> _F:
        endpoint.__dict__["needs"] = Need(what) if isinstance(what, Action) else what
        return endpoint

    return marked


class GuardedRoute(APIRoute):
    """A route that runs only when all is well with a request."""

    def get_route_handler(self) -> Run:
        run = super().get_route_handler()
        what: Needs | None = getattr(self.endpoint, "needs", None)
        known = _query_names(self.dependant)

        async def guarded(request: Request) -> Response:
            if what is None:
                return await run(request)
            # In this order, and the body last: a caller without permission learns nothing and uploads nothing.
            call = identified(request)
            if not isinstance(what, Need) or what.about is About.GRAPH:
                call = replace(call, served=about_graph(call, request.path_params.get("graph_id")))
            need = what if isinstance(what, Need) else what(request, call)
            options = request.query_params if request.scope["query_string"] else {}
            if need.action is not None:
                call.allow(need.action, options.get("branch"))
            intake.check_query(options, known)
            _check_condition(request, need)
            with _room(request, call, need):
                return await self._run_with_body(run, request, call, need)

        return guarded

    async def _run_with_body(self, run: Run, request: Request, call: Call, need: Need) -> Response:
        if need.brings is Brings.LINES:
            with await intake.lines_of(request) as lines:
                remember(request, replace(call, lines=lines))
                return await run(request)
        remember(request, call)
        if self.body_field is None:
            return await run(request)
        data = await intake.body_of(request)
        # An absent body is not `{}`: FastAPI would report an empty text as invalid JSON.
        if not data and not self.body_field.field_info.is_required():
            return await run(request)
        return await run(_Parsed(request, data))


def _query_names(dependant: Dependant) -> set[str]:
    """The query parameters of a route, and of what it depends on."""
    # By alias: that is the name that a client sends.
    own = {parameter.alias for parameter in dependant.query_params}
    return own.union(*map(_query_names, dependant.dependencies))


class _Parsed(Request):
    """A request whose JSON was read already."""

    def __init__(self, request: Request, data: bytes) -> None:
        super().__init__(request.scope, request.receive)
        self._data = data
        self._value = intake.value_of(request.headers.get("content-type"), data)

    async def body(self) -> bytes:
        return self._data

    async def json(self) -> Any:
        return self._value


def _room(request: Request, call: Call, need: Need) -> AbstractContextManager[None]:
    """Take one of the places for changes; reads need none."""
    if need.action is None or need.action in READS:
        return nullcontext()
    # By the announced length: to count what arrives would admit every request first.
    most = max_body_bytes(request.scope["path"].encode(), call.service.serving.limits)
    return call.service.admission.admit(call.actor, size_of(request.headers.get("content-length"), most))


def _check_condition(request: Request, need: Need) -> None:
    given = intake.condition(request)
    if need.condition is Condition.REQUIRED and given is None:
        hint = f"send {CONDITION_HEADER} with the id of the commit that the branch must be at"
        raise RequestError(f"the header {CONDITION_HEADER} is missing", hint=hint)
    if need.condition is Condition.NONE and given is not None:
        hint = "send it to the routes that end with /if-graph-commit"
        raise RequestError(f"the header {CONDITION_HEADER} is not allowed here", hint=hint)
