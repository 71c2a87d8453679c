"""How large, how slow and how deep the body of a request may be: asked before anything reads it.

A body that goes beyond a limit is not read to its end: the answer is sent, and the connection closed.
"""

from __future__ import annotations

import asyncio
import re
import time
from contextlib import suppress

import numpy as np
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from omnigraph.errors import OmnigraphError, RequestTimeoutError, ResourceLimitError, TooManyRequestsError
from omnigraph.server.errors import answer
from omnigraph.server.settings import KIBI, Limits

_LARGE = re.compile(rb"(?:/graphs/[^/]+)?/(?:load|load/ndjson|ingest)/?")
_LEAST_BYTES_PER_SECOND = 16 * KIBI
# One that never ends is one as well: else each quote in it would be tried as the beginning of another.
_STRINGS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_NO_BRACKETS = bytes(set(range(256)) - set(b"[{]}"))
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")


def most_bytes(raw_path: bytes, limits: Limits) -> int:
    """How large a body may be that is sent to a path."""
    return limits.load_bytes if _LARGE.fullmatch(raw_path) else limits.body_bytes


_ALWAYS = (b"/healthz", b"/readyz", b"/metrics")


class LimitedRequests:
    """Refuses requests while too many are under way in this process; how it is can be asked even then."""

    def __init__(self, app: ASGIApp, most: int) -> None:
        self.app = app
        self._most = most
        self._under_way = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope.get("raw_path") in _ALWAYS:
            await self.app(scope, receive, send)
            return
        if self._under_way >= self._most:
            message = f"the server has {self._most} requests under way already"
            error = TooManyRequestsError(message, hint="ask again in a minute")
            await _refuse(scope, receive, send, error)
            return
        self._under_way += 1
        try:
            await self.app(scope, receive, send)
        finally:
            self._under_way -= 1


class LimitedBodies:
    """Passes requests on whose bodies stay within the limits, and answers the others itself."""

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self.app = app
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        body = _Body(scope, receive, self._limits)
        try:
            body.check_length()
        except OmnigraphError as error:
            await _refuse(scope, receive, send, error)
            return
        response = _Response(body, send, self._limits.body_seconds)
        with suppress(_StoppedError):  # unless somebody between here and there has made an answer of it
            await self.app(scope, body.receive, response.send)
        if body.refusal is not None and not response.started:
            await _refuse(scope, receive, send, body.refusal)


async def _refuse(scope: Scope, receive: Receive, send: Send, error: OmnigraphError) -> None:
    """Answer without the rest of the request, which may be long."""
    response = answer(Request(scope), error)
    response.headers["Connection"] = "close"
    await response(scope, receive, send)


class _StoppedError(Exception):
    """Ends whoever reads a body that is refused."""


class _Body:
    """A body that is being read, and why it is refused, once it is."""

    def __init__(self, scope: Scope, receive: Receive, limits: Limits) -> None:
        self.refusal: OmnigraphError | None = None
        self._receive = receive
        self._limits = limits
        self._headers = {name.lower(): value for name, value in scope["headers"]}
        self._most = most_bytes(scope.get("raw_path") or scope["path"].encode(), limits)
        kind = self._headers.get(b"content-type", b"json").lower()
        # Lines are read one by one, and may be many: those who read them see how deep each is.
        self._json: list[bytes] | None = [] if b"json" in kind and b"ndjson" not in kind else None
        self._began: float | None = None
        self._complete = False
        self._received = 0

    def check_length(self) -> None:
        """Refuse a body that says itself that it is too large."""
        length = self._headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > self._most:
            raise self._too_large(int(length))

    async def receive(self) -> Message:
        try:
            async with asyncio.timeout(self._time_left()):
                message = await self._receive()
        except TimeoutError:
            raise self._refused(_too_slow(self._received)) from None
        if message["type"] == "http.request":
            self._take(message.get("body", b""))
            self._complete = not message.get("more_body", False)
        if self._complete:
            self._check_depth()
        return message

    def _take(self, part: bytes) -> None:
        self._received += len(part)
        if self._received > self._most:
            raise self._refused(self._too_large(self._received))
        if self._json is not None:
            self._json.append(part)

    def _check_depth(self) -> None:
        parts, self._json = self._json or [], None
        body = b"".join(parts)
        if not can_be_deep(body, self._limits.json_depth):
            return
        deepest = _deepest(body)
        if deepest > self._limits.json_depth:
            raise self._refused(_too_deep(deepest, self._limits.json_depth))

    def _time_left(self) -> float | None:
        """How long to wait: some time for every body, and more for one that has brought something."""
        if self._complete:
            return None  # what is awaited now is the end of the connection
        now = time.monotonic()
        self._began = now if self._began is None else self._began
        allowed = self._limits.body_seconds + self._received / _LEAST_BYTES_PER_SECOND
        return max(0.0, self._began + allowed - now)

    def _too_large(self, actual: int) -> ResourceLimitError:
        message = f"the body of the request has more than {self._most} bytes"
        hint = "send less at once, or load files that the server can reach"
        return ResourceLimitError(message, resource="body_bytes", limit=self._most, actual=actual, hint=hint)

    def _refused(self, error: OmnigraphError) -> _StoppedError:
        self.refusal = error
        return _StoppedError()


class _Response:
    """Passes an answer on, unless the body was refused first: then it would not be about that.

    Whoever takes nothing of an answer for too long does not get the rest of it.
    """

    def __init__(self, body: _Body, send: Send, patience: float) -> None:
        self.started = False
        self._body = body
        self._send = send
        self._patience = patience

    async def send(self, message: Message) -> None:
        if self._body.refusal is not None and not self.started:
            return
        self.started = True
        try:
            async with asyncio.timeout(self._patience):
                await self._send(message)
        except TimeoutError:
            raise _StoppedError from None


def can_be_deep(body: bytes, limit: int) -> bool:
    """Tell whether there are enough brackets at all to be nested too deep: in most requests there are not."""
    return body.count(b"[") + body.count(b"{") > limit


def _too_slow(received: int) -> RequestTimeoutError:
    message = f"the body of the request comes too slowly: {received} bytes so far"
    return RequestTimeoutError(message, hint="send it at once, or in parts")


def _too_deep(deepest: int, limit: int) -> ResourceLimitError:
    message = f"the JSON of the request is nested more than {limit} levels deep"
    return ResourceLimitError(message, resource="json_depth", limit=limit, actual=deepest, hint="nest it less")


def _deepest(body: bytes) -> int:
    """The most brackets that are open at once, outside of strings. Nothing is made of the JSON to find it out."""
    steps = np.frombuffer(_STRINGS.sub(b"", body).translate(_STEPS, _NO_BRACKETS), np.int8)
    return int(np.cumsum(steps, dtype=np.int64).max(initial=0))
