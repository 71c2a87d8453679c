"""Limits on heads, bodies and concurrency of requests, enforced before anything parses them.

A request beyond a limit is not read to its end: the server responds and closes the connection.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, cast

import numpy as np
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from omnigraph.core.running import bounded
from omnigraph.errors import (
    OmnigraphError,
    RequestError,
    RequestTimeoutError,
    ResourceLimitError,
    TooManyRequestsError,
)
from omnigraph.server.errors import error_response
from omnigraph.server.settings import KIBI, Limits

_CONNECTION = "omnigraph.connection"
_HEAD_END = b"\r\n\r\n"
_HEAD_TOO_LARGE = 431
_GRACE_SECONDS = 0.1
_DISCARDED_BYTES, _DISCARD_SECONDS = 64 * 2**20, 2.0
_LOAD_PATH = re.compile(rb"(?:/graphs/[^/]+)?/(?:load|load/ndjson|ingest)/?")
_MIN_BYTES_PER_SECOND = 16 * KIBI
# The closing quote is optional: else each quote of an unterminated string would be tried as the start of another one.
_STRINGS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[{]}"))
_BRACKET_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_UNLIMITED = (b"/healthz", b"/readyz", b"/metrics")  # a server that is too busy must still report so


def max_body_bytes(raw_path: bytes, limits: Limits) -> int:
    """Return how large the body of a request to a path may be."""
    return limits.load_bytes if _LOAD_PATH.fullmatch(raw_path) else limits.body_bytes


# Connections ---------------------------------------------------------------------------------------


class GuardedConnection(asyncio.Protocol):
    """Closes a connection on which a request head is late or endless.

    uvicorn waits for a head forever and accepts any size of it. This protocol stands in front of uvicorn's and passes
    everything on. `RequestLimits` finds it in the state of the ASGI scope, and reports when a head is complete.
    """

    def __init__(self, serve: Callable[..., asyncio.Protocol], limits: Limits, app_state: dict[str, Any]) -> None:
        self.is_paused = False  # the client does not read its response
        self.lost = threading.Event()  # the client has gone: queries for it stop
        self._inner = serve(app_state={**app_state, _CONNECTION: self})
        self._limits = limits
        self._received = 0
        self._head_ended = False
        self._in_body = False
        self._timer: asyncio.TimerHandle | None = None
        self._transport: _Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = _Transport(cast("asyncio.Transport", transport))  # uvloop's is one in all but name
        self._inner.connection_made(self._transport)
        self._start_timer(self._limits.head_seconds)

    def data_received(self, data: bytes) -> None:
        if not self._head_ended:
            self._count(data)
        self._inner.data_received(data)

    def _count(self, data: bytes) -> None:
        self._received += len(data)
        if not self._in_body:
            # Blank lines before a request end no head. Behind a real end, the next request may follow at any length.
            self._head_ended = _HEAD_END in data.lstrip(_HEAD_END)
            if self._timer is None:
                self._start_timer(self._limits.head_seconds)
        if self._is_endless() and not self._head_ended:
            # Not at once: the request that these bytes complete may be about to begin.
            asyncio.get_running_loop().call_soon(self._close_if_endless)

    def _is_endless(self) -> bool:
        # Up to twice the limit a head may still end, and then gets a response (431).
        return self._received > 2 * (self._limits.load_bytes if self._in_body else self._limits.head_bytes)

    def _close_if_endless(self) -> None:
        if self._is_endless():
            self._close()

    def request_began(self, *, has_body: bool) -> None:
        self._received, self._head_ended, self._in_body = 0, False, has_body
        self._stop_timer()

    def body_ended(self) -> None:
        self._received, self._in_body = 0, False

    def request_ended(self) -> None:
        """Limit the time for the rest of a body that the application did not read."""
        if self._in_body and self._timer is None:
            self._start_timer(self._limits.body_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()
        self._stop_timer()
        self._inner.connection_lost(exc)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self.is_paused = True
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self.is_paused = False
        self._inner.resume_writing()

    def _start_timer(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._time_out)

    def _time_out(self) -> None:
        # A busy event loop runs late timers before it reads what has arrived in the meantime: let it read once more.
        self._timer = asyncio.get_running_loop().call_later(_GRACE_SECONDS, self._close)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.close()


class _Transport(asyncio.Transport):
    """Ignores writes to a closed connection.

    If a client goes away with several pipelined requests pending, uvicorn notifies only the last of them.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__()
        self._transport = transport

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def close(self) -> None:
        self._transport.close()

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)


# Requests ------------------------------------------------------------------------------------------


class RequestLimits:
    """ASGI middleware: passes on requests within the limits, and refuses the others itself."""

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self.app = app
        self._limits = limits
        self._in_flight = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        connection: GuardedConnection | None = scope.get("state", {}).get(_CONNECTION)
        body = _Body(scope, receive, self._limits, connection)
        # Only admitted requests count: a probe or a refusal must not take the place of a request.
        counted = scope.get("raw_path") not in _UNLIMITED
        refusal = self._too_many() if counted else None
        admitted = counted and refusal is None
        # Nothing awaits between the check and this line, so no lock is needed on one event loop.
        self._in_flight += admitted
        try:
            await self._run(scope, receive, send, body, connection, refusal=refusal)
        finally:
            self._in_flight -= admitted
            if connection is not None:
                connection.request_ended()

    async def _run(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        body: _Body,
        connection: GuardedConnection | None,
        *,
        refusal: OmnigraphError | None,
    ) -> None:
        if _head_bytes(scope) > self._limits.head_bytes:
            await _refuse(scope, receive, send, _head_too_large(self._limits.head_bytes), _HEAD_TOO_LARGE)
            return
        refusal = refusal or body.length_refusal()
        if refusal is not None:
            await _refuse(scope, receive, send, refusal)
            return
        response = _Response(body, send, self._limits.body_seconds, connection)
        # FastAPI answers this exception with a 500 first, which `_Response` drops.
        lost = None if connection is None else connection.lost
        with suppress(_StoppedError), bounded(self._limits.query_seconds or None, lost):
            await self.app(scope, body.receive, response.send)
        if body.refusal is not None and not response.started:
            await _refuse(scope, receive, send, body.refusal)

    def _too_many(self) -> OmnigraphError | None:
        if self._in_flight < self._limits.requests:
            return None
        message = f"the server is handling {self._limits.requests} requests, the maximum"
        return TooManyRequestsError(message, hint="retry in a minute")


async def _refuse(scope: Scope, receive: Receive, send: Send, error: OmnigraphError, status: int | None = None) -> None:
    """Respond without reading the rest of the request, which may be long."""
    response = error_response(Request(scope), error)
    response.status_code = status or response.status_code
    # The rest of the body is still on its way, and would be read as the next request.
    response.headers["Connection"] = "close"
    discards = isinstance(error, ResourceLimitError) and error.resource == "body_bytes"
    await response(scope, receive, partial(_send_and_discard, receive, send) if discards else send)


async def _send_and_discard(receive: Receive, send: Send, message: Message) -> None:
    """Send a refusal whole, and read on for a while before the connection is closed.

    A close with unread bytes resets the connection: a client that is still sending would lose the refusal, and would
    have to take its change for one with an unknown outcome.
    """
    if message["type"] != "http.response.body" or message.get("more_body"):
        await send(message)
        return
    await send({**message, "more_body": True})
    left = _DISCARDED_BYTES
    with suppress(TimeoutError):
        async with asyncio.timeout(_DISCARD_SECONDS):
            while left > 0:
                part = await receive()
                left -= len(part.get("body", b""))
                if part["type"] != "http.request" or not part.get("more_body"):
                    break
    await send({"type": "http.response.body", "body": b""})


class _StoppedError(Exception):
    """Ends the application that reads a refused body."""


class _Body:
    """A body that is being read, and why it is refused, once it is."""

    def __init__(self, scope: Scope, receive: Receive, limits: Limits, connection: GuardedConnection | None) -> None:
        self.refusal: OmnigraphError | None = None
        self._receive = receive
        self._limits = limits
        self._connection = connection
        headers = dict(scope["headers"])
        self._length = headers.get(b"content-length", b"0")
        self._max_bytes = max_body_bytes(scope.get("raw_path") or scope["path"].encode(), limits)
        kind = headers.get(b"content-type", b"json").lower()
        # NDJSON is parsed line by line and may be long: the depth of each line is checked there.
        self._json: list[bytes] | None = [] if b"json" in kind and b"ndjson" not in kind else None
        self._started: float | None = None
        self._complete = False
        self._received = 0
        if connection is not None:
            connection.request_began(has_body=self._length != b"0" or b"transfer-encoding" in headers)

    def length_refusal(self) -> OmnigraphError | None:
        """Refuse a body whose announced length is too large."""
        announced = int(self._length) if self._length.isdigit() else 0
        return self._too_large(announced) if announced > self._max_bytes else None

    async def receive(self) -> Message:
        try:
            async with asyncio.timeout(self._time_left()):
                message = await self._receive()
        except TimeoutError:
            raise self._refused(_too_slow(self._received)) from None
        if message["type"] == "http.request":
            self._take(message.get("body", b""))
            if not message.get("more_body", False):
                self._end()
        return message

    def _take(self, part: bytes) -> None:
        self._received += len(part)
        # Also if the length was announced: a client may send more than it said, or nothing about the length.
        if self._received > self._max_bytes:
            raise self._refused(self._too_large(self._received))
        if self._json is not None:
            self._json.append(part)

    def _end(self) -> None:
        self._complete = True
        if self._connection is not None:
            self._connection.body_ended()
        body = b"".join(self._json or ())
        self._json = None
        limit = self._limits.json_depth
        # Counting brackets is cheap, and in most bodies there are too few to be nested too deep.
        if body.count(b"[") + body.count(b"{") > limit:
            deepest = _deepest(body)
            if deepest > limit:
                raise self._refused(_too_deep(deepest, limit))

    def _time_left(self) -> float | None:
        """Return how long to wait: a fixed time, and more the more bytes have arrived."""
        if self._complete:
            return None  # the next message is the end of the connection
        now = time.monotonic()
        self._started = now if self._started is None else self._started
        allowed = self._limits.body_seconds + self._received / _MIN_BYTES_PER_SECOND
        return max(0.0, self._started + allowed - now)

    def _too_large(self, actual: int) -> ResourceLimitError:
        message = f"the request body exceeds {self._max_bytes} bytes"
        hint = "send less at once, or load files that the server can read"
        return ResourceLimitError(message, resource="body_bytes", limit=self._max_bytes, actual=actual, hint=hint)

    def _refused(self, error: OmnigraphError) -> _StoppedError:
        self.refusal = error
        return _StoppedError()


class _Response:
    """Passes a response on, unless the body was refused first: the response would then be about half a request.

    A client that does not read its response for too long loses the rest of it.
    """

    def __init__(self, body: _Body, send: Send, patience: float, connection: GuardedConnection | None) -> None:
        self.started = False
        self._connection = connection
        self._body = body
        self._send = send
        self._patience = patience

    async def send(self, message: Message) -> None:
        if self._body.refusal is not None and not self.started:
            return
        self.started = True
        if self._connection is not None and not self._connection.is_paused:
            await self._send(message)  # only a paused connection makes it wait, and a timeout costs time itself
            return
        try:
            async with asyncio.timeout(self._patience):
                await self._send(message)
        except TimeoutError:
            raise _StoppedError from None


def _head_bytes(scope: Scope) -> int:
    target = len(scope.get("raw_path") or scope["path"]) + len(scope.get("query_string", b""))
    return target + sum([len(name) + len(value) for name, value in scope["headers"]])


def _head_too_large(limit: int) -> RequestError:
    return RequestError(f"the request head exceeds {limit} bytes", hint="send fewer or shorter headers")


def _too_slow(received: int) -> RequestTimeoutError:
    message = f"the request body arrives too slowly: {received} bytes so far"
    return RequestTimeoutError(message, hint="send it without pauses, or in several requests")


def _too_deep(deepest: int, limit: int) -> ResourceLimitError:
    message = f"the JSON of the request is nested more than {limit} levels deep"
    return ResourceLimitError(message, resource="json_depth", limit=limit, actual=deepest, hint="nest it less")


def _deepest(body: bytes) -> int:
    """Return the nesting depth of JSON text, without parsing it."""
    steps = np.frombuffer(_STRINGS.sub(b"", body).translate(_BRACKET_STEPS, _NOT_BRACKETS), np.int8)
    return int(np.cumsum(steps, dtype=np.int64).max(initial=0))
