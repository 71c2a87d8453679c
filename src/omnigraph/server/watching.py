"""What is told about every request: an id in its answer, a line in the log, and numbers for Prometheus."""

from __future__ import annotations

import logging
import random
import re
import time
from collections.abc import MutableMapping
from typing import Any

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from omnigraph.errors import ServerFailedError
from omnigraph.server import logs
from omnigraph.server.errors import ERROR, answer
from omnigraph.server.metrics import Metrics

PRINCIPAL = "principal"
"""Where in the state of a request the routes put who asks."""

REQUEST_ID = "request_id"
HEADER = b"x-request-id"
_ID_BITS = 104
_GIVEN_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_NO_ROUTE = "(none)"
_FAULT = 500
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class Watched:
    """Watches an application: the outermost of all, so that nothing is answered without it."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        watch = Watch(scope)
        try:
            with self._metrics.in_flight.track_inprogress():
                await self._run(watch, scope, receive, send)
        finally:
            watch.tell(self._metrics)

    async def _run(self, watch: Watch, scope: Scope, receive: Receive, send: Send) -> None:
        """Whatever escapes from the application becomes an answer here, unless one was begun."""
        watched = watch.watched(send)
        try:
            await self.app(scope, receive, watched)
        except Exception as error:
            watch.error = error
            if watch.status is not None:
                raise  # the server closes the connection, so that nobody takes it for the whole answer
            await answer(Request(scope), _internal(watch.id))(scope, receive, watched)


class Watch:
    """One request that is watched."""

    def __init__(self, scope: Scope) -> None:
        self.began = time.perf_counter()
        self.status: int | None = None
        self.sent = 0
        self.error: Exception | None = None
        self.id = request_id(scope)
        self._scope = scope
        self.state: MutableMapping[str, Any] = scope.setdefault("state", {})
        self.state[REQUEST_ID] = self.id

    def tell(self, metrics: Metrics) -> None:
        """Count the request, and log it."""
        seconds = time.perf_counter() - self.began
        status = self.status or 0
        metrics.answered(self.method, self.route, status, seconds)
        failed = status >= _FAULT or self.error is not None
        level = logging.ERROR if failed else logging.INFO
        if logs.REQUESTS.isEnabledFor(level):
            logs.tell(logs.REQUESTS, level, "request", self.told() if failed else None, **self.fields(seconds))

    def watched(self, send: Send) -> Send:
        """Pass an answer on with the id of the request, and see what is sent."""

        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.status = message["status"]
                message = {**message, "headers": [*message.get("headers", ()), (HEADER, self.id.encode())]}
            elif message["type"] == "http.response.body":
                self.sent += len(message.get("body", b""))
            await send(message)

        return watched

    @property
    def method(self) -> str:
        method: str = self._scope["method"]
        return method if method in _METHODS else "other"

    @property
    def route(self) -> str:
        """The route as it is declared: a path would be another one for each branch."""
        return getattr(self._scope.get("route"), "path", _NO_ROUTE)

    @property
    def graph(self) -> str | None:
        """The graph that the path names, if that can be the name of one: the log is no place for anything else."""
        name = (self._scope.get("path_params") or {}).get("graph_id", "")
        return name if _GIVEN_ID.fullmatch(name.encode()) else None

    def told(self) -> Exception | None:
        """The error that came of it: one that escaped, or else the one in the answer."""
        return self.error or self.state.get(ERROR)

    def fields(self, seconds: float) -> dict[str, Any]:
        error = {} if self.told() is None else {"error": type(self.told()).__name__}
        principal = self.state.get(PRINCIPAL)
        return {
            "request_id": self.id,
            "method": self.method,
            "route": self.route,
            "graph": self.graph,
            "status": self.status,
            "ms": round(seconds * 1000, 3),
            "bytes": self.sent,
            "actor": getattr(principal, "actor", None),
            "client": (self._scope.get("client") or (None,))[0],
            **error,
        }


def request_id(scope: Scope) -> str:
    """The id that a client gives its request, if it can be one; a new one otherwise."""
    given = next((value for name, value in scope["headers"] if name == HEADER), b"")
    return given.decode() if _GIVEN_ID.fullmatch(given) else f"{random.getrandbits(_ID_BITS):0{_ID_BITS // 4}x}"


def _internal(request: str) -> ServerFailedError:
    message = "the server failed to answer"
    return ServerFailedError(message, hint=f"see its log for the request {request}")
