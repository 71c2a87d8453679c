"""A request before its route runs: its principal and its graph."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import IO, Annotated

from fastapi import Depends, Request

from omnigraph.api.access import Access, Action, Principal, authorize
from omnigraph.api.operation import GRAPH_ID_PATTERN
from omnigraph.errors import ForbiddenError, GraphNotFoundError, RequestError
from omnigraph.graph import Graph
from omnigraph.server.access_log import PRINCIPAL
from omnigraph.server.admission import Admission
from omnigraph.server.latency import LatencyTracker
from omnigraph.server.loads import Loads
from omnigraph.server.metrics import Metrics
from omnigraph.server.open_graphs import OpenGraph, OpenGraphs
from omnigraph.server.settings import Serving
from omnigraph.server.upkeep import BackgroundUpkeep

_GRAPH_ID = re.compile(GRAPH_ID_PATTERN)
_RESERVED = "policies"
_KEY = "omnigraph.call"


@dataclass(frozen=True, slots=True)
class Service:
    """What all requests share."""

    serving: Serving
    opened: OpenGraphs
    admission: Admission
    metrics: Metrics
    loads: Loads
    latency: LatencyTracker
    upkeep: BackgroundUpkeep


@dataclass(frozen=True, slots=True)
class Call:
    """One request: the principal (None on an open server), the graph, and the lines that were sent."""

    service: Service
    principal: Principal | None
    served: OpenGraph | None = None
    lines: IO[bytes] | None = None

    @property
    def actor(self) -> str | None:
        return None if self.principal is None else self.principal.actor

    @property
    def opened(self) -> OpenGraph:
        assert self.served is not None, "a route of the server was asked as one of a graph"
        return self.served

    @property
    def graph(self) -> Graph:
        """The graph, with the permissions of the principal."""
        graph = self.opened.graph
        # A handle for each call, on the shared store and caches: permissions are then checked by the graph itself.
        return graph if self.principal is None else graph.acting_as(self.principal)

    def allow(self, action: Action, branch: str | None = None) -> None:
        """Raise ForbiddenError if the principal may not do this."""
        if self.principal is not None:
            authorize(self.principal, Access(action, branch))


def service_of(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


def identified(request: Request) -> Call:
    """Authenticate a request."""
    service = service_of(request)
    principal = whoever_asks(service, request.headers.get("authorization"))
    setattr(request.state, PRINCIPAL, principal)
    return Call(service, principal)


def whoever_asks(service: Service, authorization: str | None) -> Principal | None:
    """Return the principal of an Authorization header; None on an open server."""
    serving = service.serving
    return None if serving.open_mode else serving.tokens.authenticate(authorization)


def about_graph(call: Call, graph_id: str | None) -> OpenGraph:
    """Find the graph that is asked for; the address without a name means the default one."""
    if graph_id is not None and (graph_id == _RESERVED or not _GRAPH_ID.fullmatch(graph_id)):
        hint = "a graph id has letters, digits and hyphens, 64 at most"
        raise RequestError(f"{graph_id!r:.80} is not a valid graph id", hint=hint)
    # The form of the id is checked before: it goes into messages and labels of metrics.
    wanted = graph_id or call.service.serving.default
    if wanted is None:
        hint = "use a path with a graph id: /graphs/<id>/..."
        raise GraphNotFoundError("this server has no default graph", uri="", hint=hint)
    # Before the graph is looked up: the answer must not depend on whether it exists.
    _check_scope(call.principal, wanted)
    found = call.service.opened.graphs.get(wanted)
    if found is None:
        raise GraphNotFoundError(f"graph '{wanted}' not found", uri=wanted)
    return found


def _check_scope(principal: Principal | None, graph_id: str) -> None:
    """A graph that a token is not for looks the same whether it is there or not."""
    if principal is None or principal.graphs is None or graph_id in principal.graphs:
        return
    message = f"default-deny: the token of '{principal.actor}' is not for this graph"
    raise ForbiddenError(message, action=Action.READ, hint="ask for a token that is")


def remember(request: Request, call: Call) -> None:
    """Keep a call for the route that is about to run."""
    request.scope[_KEY] = call


def call_of(request: Request) -> Call:
    """The call that was kept."""
    call: Call = request.scope[_KEY]
    return call


async def _call_of(request: Request) -> Call:
    return call_of(request)


CallNow = Annotated[Call, Depends(_call_of)]
