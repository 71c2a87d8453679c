"""Request id, access log and metrics, for every request."""

from __future__ import annotations

import asyncio
import logging
import random
import re
import time
from collections.abc import MutableMapping
from typing import Any

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from omnigraph.server import logs
from omnigraph.server.errors import ERROR, REQUEST_ID, unexpected
from omnigraph.server.metrics import Metrics

PRINCIPAL = "principal"
"""Key in the state of a request: the authenticated principal."""

_ID_HEADER = b"x-request-id"
_ID_BITS = 104
_VALID_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_NO_ROUTE = "(none)"
_SERVER_ERROR = 500
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class AccessLog:
    """ASGI middleware. It is the outermost one, so that no response leaves the server without an id and a log line."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        entry = _LogEntry(scope, send)
        self._metrics.in_flight.inc()
        try:
            await self._run(entry, scope, receive)
        finally:
            # Not now: uvloop sends what was written once the callbacks of this turn are done, and the client waits.
            asyncio.get_running_loop().call_soon(self._finish, entry)

    def _finish(self, entry: _LogEntry) -> None:
        self._metrics.in_flight.dec()
        entry.write(self._metrics)

    async def _run(self, entry: _LogEntry, scope: Scope, receive: Receive) -> None:
        """Run the application. An exception becomes a 500 response, unless a response has begun."""
        try:
            await self.app(scope, receive, entry.send)
        except Exception as error:
            entry.error = error
            if entry.is_complete:
                return  # FastAPI sends the 500 of an exception, and raises it again
            if entry.status is not None:
                # The server then closes the connection, so that the client cannot take a part for the whole.
                raise
            await unexpected(Request(scope))(scope, receive, entry.send)


class _LogEntry:
    """The log entry of one request, filled in while the response is sent."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self.started = time.perf_counter()
        self.status: int | None = None
        self.is_complete = False
        self.sent = 0
        self.error: Exception | None = None
        self.id = _request_id(scope)
        self._scope = scope
        self._send = send
        self._state: MutableMapping[str, Any] = scope.setdefault("state", {})
        self._state[REQUEST_ID] = self.id

    async def send(self, message: Message) -> None:
        """Pass a message on, with the request id among the headers."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            # A copy: the application may keep its message, and its list of headers, for the next response.
            message = {**message, "headers": [*message.get("headers", ()), (_ID_HEADER, self.id.encode())]}
        elif message["type"] == "http.response.body":
            self.sent += len(message.get("body", b""))
            self.is_complete = not message.get("more_body", False)
        await self._send(message)

    def write(self, metrics: Metrics) -> None:
        """Count the request and log it."""
        seconds = time.perf_counter() - self.started
        status = self.status or 0
        metrics.answered(self._method, self._route, status, seconds)
        error = self.error or self._state.get(ERROR)
        failed = status >= _SERVER_ERROR or self.error is not None
        level = logging.ERROR if failed else logging.INFO
        if logs.REQUESTS.isEnabledFor(level):
            logs.log(logs.REQUESTS, level, "request", error if failed else None, **self._fields(seconds, error))

    @property
    def _method(self) -> str:
        # A client may invent methods; each would become a new time series.
        method: str = self._scope["method"]
        return method if method in _METHODS else "other"

    @property
    def _route(self) -> str:
        """The declared path of the route: the request path would differ for each branch."""
        return getattr(self._scope.get("route"), "path", _NO_ROUTE)

    @property
    def _graph(self) -> str | None:
        # Only text that can be a graph id: what else a client puts into a path stays out of the log.
        name = (self._scope.get("path_params") or {}).get("graph_id", "")
        return name if _VALID_ID.fullmatch(name.encode()) else None

    def _fields(self, seconds: float, error: Exception | None) -> dict[str, Any]:
        fields = {
            "request_id": self.id,
            "method": self._method,
            "route": self._route,
            "graph": self._graph,
            "status": self.status,
            "ms": round(seconds * 1000, 3),
            "bytes": self.sent,
            "actor": getattr(self._state.get(PRINCIPAL), "actor", None),
            "client": (self._scope.get("client") or (None,))[0],
        }
        return fields if error is None else {**fields, "error": type(error).__name__}


def _request_id(scope: Scope) -> str:
    """Return the id that the client sent, if it is a valid one, or else a new id."""
    # The id of a proxy in front of us is kept, so that one id finds a request in both logs. Nothing else that a client
    # sends may reach the log, hence the pattern.
    given = next((value for name, value in scope["headers"] if name == _ID_HEADER), b"")
    return given.decode() if _VALID_ID.fullmatch(given) else f"{random.getrandbits(_ID_BITS):0{_ID_BITS // 4}x}"
