"""Answer cached lookups on the event loop, without a thread hop.

A warm lookup takes the engine less time than a thread takes to wake up. A query that was quick many times in a row is
therefore run right here, in non-blocking mode. Only a complete answer is sent: if the query would block, or anything
is wrong with the request, the application handles it from the start and reports the error.
"""

from __future__ import annotations

from fastapi.routing import APIRoute
from pydantic import ValidationError
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from omnigraph.api.access import Action
from omnigraph.api.operation import CONDITION_HEADER
from omnigraph.core.nonblocking import WouldBlock, nonblocking
from omnigraph.errors import OmnigraphError
from omnigraph.server import intake
from omnigraph.server.access_log import PRINCIPAL
from omnigraph.server.calls import Call, Service, about_graph, whoever_asks
from omnigraph.server.latency import query_key
from omnigraph.server.models import QueryRequest
from omnigraph.server.replies import Rows
from omnigraph.server.routes.reading import ask, query, routes

_CONDITION = CONDITION_HEADER.lower().encode()
_Headers = dict[bytes, bytes]


class InlineQueries:
    """ASGI middleware: answers `POST /query` on the event loop if the query is known to be quick."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self.app = app
        self._service = service
        self._route = next(one for one in routes.routes if isinstance(one, APIRoute) and one.endpoint is query)
        path = self._route.path
        named: dict[bytes, str | None] = {f"/graphs/{name}{path}".encode(): name for name in service.opened.graphs}
        self._graphs = {path.encode(): None, **named}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # By the raw path and exactly: every other spelling of the route takes the normal way, and means the same there.
        if scope.get("raw_path") not in self._graphs or scope["method"] != "POST" or scope["query_string"]:
            await self.app(scope, receive, send)
            return
        headers = dict(reversed(scope["headers"]))  # reversed: of a repeated header, the first one counts
        call = self._authorized(scope, headers)
        if call is None:
            await self.app(scope, receive, send)
            return
        message = await receive()
        # A body in several parts is longer than a lookup needs: the application reads it.
        rows = None if message.get("more_body", False) else self._run(scope, headers, call, message.get("body", b""))
        if rows is None:
            await self.app(scope, _replayed(message, receive), send)
            return
        length, kind = str(len(rows.content)).encode(), rows.media_type.encode()
        answered = [(b"content-length", length), (b"content-type", kind)]
        await send({"type": "http.response.start", "status": 200, "headers": answered})
        await send({"type": "http.response.body", "body": rows.content})

    def _authorized(self, scope: Scope, headers: _Headers) -> Call | None:
        """Return the call of a query request, or None if the application has to handle the request."""
        # By the functions and in the order of the route's guard, and like there before the body is read.
        try:
            principal = whoever_asks(self._service, _text(headers.get(b"authorization")))
            scope["state"][PRINCIPAL] = principal
            graph = about_graph(Call(self._service, principal), self._graphs[scope["raw_path"]])
            call = Call(self._service, principal, graph)
            call.allow(Action.READ)
        except OmnigraphError:
            return None
        return call

    def _run(self, scope: Scope, headers: _Headers, call: Call, body: bytes) -> Rows | None:
        """Return the answer, or None if the application has to handle the request."""
        try:
            with nonblocking():
                return self._rows(scope, headers, call, body)
        # Errors too: the application runs the request again and writes the answer, so there is one place that reports
        # errors.
        except (WouldBlock, OmnigraphError, ValidationError):
            return None

    def _rows(self, scope: Scope, headers: _Headers, call: Call, body: bytes) -> Rows:
        request = QueryRequest.model_validate(intake.value_of(_text(headers.get(b"content-type")), body))
        key = query_key(call.opened.graph_id, request.query, request.name)
        if _CONDITION in headers or not self._service.latency.is_quick(key):
            raise WouldBlock
        # Measured here too: a query that has become slow leaves the event loop.
        with self._service.latency.measure(key):
            rows = ask(call, request, _text(headers.get(b"accept")))
        # The access log names the route and the graph; the router, which is skipped, would set these.
        graph_id = self._graphs[scope["raw_path"]]
        scope["route"], scope["path_params"] = self._route, {} if graph_id is None else {"graph_id": graph_id}
        return rows


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("latin-1")


def _replayed(first: Message, receive: Receive) -> Receive:
    """Return a `receive` that yields `first` again, so that the application reads the whole body."""
    pending = [first]

    async def replayed() -> Message:
        return pending.pop() if pending else await receive()

    return replayed
