"""`/mcp`: the tools for agents over HTTP, with the tokens, permissions and limits of every other route."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from omnigraph.api.access import Action, Caller
from omnigraph.api.protocol import GraphAPI
from omnigraph.api.results import MutationResult
from omnigraph.api.rows import Result
from omnigraph.core.extras import require
from omnigraph.errors import LibraryMissingError, MethodNotAllowedError, RouteNotFoundError
from omnigraph.lang.compiler import compile_query
from omnigraph.mcp.session import Session, StoredTool
from omnigraph.server.admission import ANONYMOUS, size_of
from omnigraph.server.calls import Call, Service, about_graph, identified
from omnigraph.server.open_graphs import OpenGraph, StoredQuery
from omnigraph.server.routes import text

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

_SESSION = "omnigraph.mcp_session"
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


class AgentEndpoint:
    """The ASGI application behind `/mcp`. It is stateless: any process of a server answers any request.

    The SDK is loaded by the first request, because it would double the time that a server takes to start.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._starting: asyncio.Task[StreamableHTTPSessionManager] | None = None
        self._running: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()

    def routes(self) -> list[Route]:
        """The routes for the default graph and for a named one."""
        return [Route("/mcp", self), Route("/graphs/{graph_id:segment}/mcp", self)]

    async def close(self) -> None:
        """End the requests that are open."""
        self._stop.set()
        if self._running is not None:
            await self._running

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        graph_id = scope["path_params"].get("graph_id")
        scope["route"] = self.routes()[graph_id is not None]  # for the access log and the metrics
        call = identified(request)
        served = about_graph(call, graph_id)
        call.allow(Action.READ)
        if not self._service.serving.mcp:
            raise RouteNotFoundError("this server has no endpoint for agents", hint="it is off in its settings")
        if request.method != "POST":
            # A GET would open a stream of events that never has one: nothing happens here outside of a request.
            raise MethodNotAllowedError(f"{request.method} is not allowed on /mcp", hint="use POST")
        scope[_SESSION] = self._session(call, served, request)
        await (await self._manager()).handle_request(scope, receive, send)

    def _session(self, call: Call, served: OpenGraph, request: Request) -> Session:
        limits, admission = self._service.serving.limits, self._service.admission
        size = size_of(request.headers.get("content-length"), limits.body_bytes)
        return Session(
            replace(call, served=served).graph,
            Caller.of(call.principal),
            call.actor or ANONYMOUS,
            stored=[_stored_tool(served, one) for one in served.stored.known.values() if one.exposed],
            allow_merge=self._service.serving.mcp_allow_merge,
            admit=partial(admission.admit, call.actor, size),
        )

    async def _manager(self) -> StreamableHTTPSessionManager:
        # One task for all that wait: the first request starts it, and may be cancelled meanwhile.
        if self._starting is None:
            self._starting = asyncio.create_task(self._start())
        return await asyncio.shield(self._starting)

    async def _start(self) -> StreamableHTTPSessionManager:
        try:
            require("mcp", "omnigraph[mcp]")
        except LibraryMissingError as error:
            raise RouteNotFoundError("this server has no endpoint for agents", hint=error.hint) from None
        from mcp.server.streamable_http_manager import StreamableHTTPSessionManager  # noqa: PLC0415
        from mcp.server.transport_security import TransportSecuritySettings  # noqa: PLC0415

        from omnigraph.mcp.protocol import create_server  # noqa: PLC0415

        # Without tokens, a page in a browser of this machine could reach the server under a name of its own. A token
        # is not sent by a browser by itself, so a server with tokens needs no such check.
        hosts = [pattern for host in _LOOPBACK for pattern in (host, f"{host}:*")]
        security = TransportSecuritySettings(
            enable_dns_rebinding_protection=self._service.serving.open_mode,
            allowed_hosts=hosts,
            allowed_origins=[f"{scheme}://{host}" for host in hosts for scheme in ("http", "https")],
        )
        manager = StreamableHTTPSessionManager(
            create_server(_session_of),
            json_response=True,
            stateless=True,
            security_settings=security,
            max_request_body_size=self._service.serving.limits.body_bytes,
        )
        started = asyncio.Event()
        # A task of its own: the manager must be entered and left by the same one.
        self._running = asyncio.create_task(self._run(manager, started))
        await started.wait()
        return manager

    async def _run(self, manager: StreamableHTTPSessionManager, started: asyncio.Event) -> None:
        async with manager.run():
            started.set()
            await self._stop.wait()


def _session_of(context: ServerRequestContext[Any, Request]) -> Session:
    assert context.request is not None, "a call of a tool outside of a request"
    found: Session = context.request.scope[_SESSION]
    return found


def _stored_tool(served: OpenGraph, one: StoredQuery) -> StoredTool:
    compiled = compile_query(one.source, served.graph.catalog, one.name)
    params = [{"name": name, **type_.describe()} for name, type_ in compiled.parameters.items()]
    run = partial(_run_stored, one)
    return StoredTool(one.name, one.tool_name, one.is_mutation, params, run, compiled.description, compiled.instruction)


def _run_stored(
    one: StoredQuery, graph: GraphAPI, params: Mapping[str, Any], branch: str, snapshot: str | None
) -> Result | MutationResult:
    source = text(one.source.text, ".gq")
    if one.is_mutation:
        return graph.mutate(source, params, name=one.name, branch=branch)
    place: Any = {"branch": branch} if snapshot is None else {"snapshot": snapshot}
    return graph.query(source, params, name=one.name, **place)
