"""Sending requests over HTTP and waiting for the answers, in a thread or in an event loop."""

from __future__ import annotations

import asyncio
import json
import time
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator, Mapping
from contextlib import closing
from functools import partial
from typing import IO, TypeVar, cast
from urllib.parse import urlencode

import httpx

from omnigraph.api import problems
from omnigraph.api.http import JSON, NDJSON
from omnigraph.client.asking import segment
from omnigraph.client.carriers import Reply, carrier_to, options, small_letters
from omnigraph.client.steps import Answer, Lines, Pause, Request, Steps, Stream
from omnigraph.errors import (
    OmnigraphError,
    ParameterError,
    ServerAnswerError,
    ServerUnavailableError,
    UnsupportedUriError,
)
from omnigraph.version import __version__

T = TypeVar("T")
_REFUSED = 300  # and above: an answer that is not what was asked for
_CHUNK = 2**16
_GATEWAYS = (502, 503, 504)  # what stands before a server says so when it does not know either
_FAILURES = (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError)
_SENSELESS = (LookupError, TypeError, ValueError)  # what comes of taking an answer for what it is not
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError, httpx.UnsupportedProtocol)


class Address:
    """Where a graph is served, and how requests to it are made."""

    def __init__(self, url: str, token: str | None, timeout: float | None) -> None:
        self.url = _checked_url(url)
        self.timeout = timeout
        self._headers = {"Omnigraph-Client": f"python/{__version__}"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {_checked_token(token)}"

    @classmethod
    def of(cls, url: str, graph: str | None, token: str | None, timeout: float | None) -> Address:
        """The address of a server, or of a graph on it."""
        if not url.lower().startswith(("http://", "https://")):
            hint = "use http://host:port; `omnigraph.open` takes the address of a storage"
            raise UnsupportedUriError(f"{url!r} is not the address of a server", uri=url, hint=hint)
        base = url.rstrip("/")
        return cls(base if graph is None else f"{base}/graphs/{segment(graph)}", token, timeout)

    def told(self, request: Request) -> dict[str, str]:
        """The headers of a request: those of every one, and those that tell what it brings."""
        headers = {**self._headers, "Accept": request.accept, **_checked(request.headers)}
        if request.document is not None:
            headers["Content-Type"] = JSON
        elif request.file is not None:
            headers["Content-Type"] = NDJSON
            headers["Content-Length"] = str(_size(request.file))
        return headers

    def failure(self, request: Request, error: Exception) -> OmnigraphError:
        """What it means that no answer came: a change whose answer is lost may have been made."""
        what = str(error) or type(error).__name__
        if request.changes and not isinstance(error, _NOT_SENT):
            return request.outcome_unknown(f"the answer of {self.url} is lost: {what}")
        hint = "see that the server runs and the address is right"
        return ServerUnavailableError(f"{self.url} does not answer: {what}", address=self.url, hint=hint)


def _checked_url(url: str) -> str:
    try:
        httpx.URL(url)
    except httpx.InvalidURL as error:
        message = f"{url!r} is not the address of a server: {error}"
        raise UnsupportedUriError(message, uri=url, hint="use http://host:port") from None
    return url


def _checked_token(token: str) -> str:
    if token.isascii() and token.isprintable():
        return token
    message = "the token holds something that no token holds: a line break, or more than plain ASCII"
    raise ParameterError(message, parameter="token", hint="see that it was copied whole, and nothing else with it")


def _checked(headers: Mapping[str, str]) -> Mapping[str, str]:
    for name, value in headers.items():
        if not (value.isascii() and value.isprintable()):
            message = f"{value!r:.60} cannot be sent as {name}"
            raise ParameterError(message, parameter=name, hint="give it as it was told: in one line of plain ASCII")
    return headers


def _size(file: IO[bytes]) -> int:
    size = file.seek(0, 2)
    file.seek(0)
    return size


def _target(request: Request) -> str:
    """The path of a request below the address, and what it asks there."""
    asked = urlencode(list(request.query))
    return f"{request.path}?{asked}" if asked else request.path


def _document(request: Request) -> bytes:
    return b"" if request.document is None else json.dumps(request.document).encode()


def refused(request: Request, status: int, content: bytes) -> OmnigraphError:
    """The error that an answer tells."""
    try:
        told = json.loads(content)
    except ValueError:
        told = None
    error = problems.raised(status, told)
    if isinstance(error, ServerAnswerError) and request.changes and status in _GATEWAYS:
        return request.outcome_unknown(error.message)
    return error


def _go_on(steps: Steps[T], step: Request | Pause, answer: Answer) -> Request | Pause:
    """Go on with an answer. If nothing can be made of it, a change that it is about may have been made."""
    try:
        return steps.send(answer)
    except ServerAnswerError as error:
        senseless = error
    except _SENSELESS as error:
        senseless = _senseless(error, answer.status)
    if isinstance(step, Request) and step.changes:
        raise step.outcome_unknown(senseless.message) from senseless
    raise senseless


def _senseless(error: Exception, status: int = 200) -> ServerAnswerError:
    message = f"the answer is not of the form that was expected: {type(error).__name__} {str(error)[:80]}"
    hint = "see that the address is that of an Omnigraph server, and of this version"
    return ServerAnswerError(message, status=status, hint=hint)


class Blocking:
    """Runs calls in the thread that makes them. Safe to share between threads."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._carrier = carrier_to(address.url, address.timeout)
        weakref.finalize(self, self._carrier.close)  # whoever forgets it leaves no connections behind

    def run(self, steps: Steps[T]) -> T:
        """Run a call to its end."""
        try:
            step = next(steps)
            while True:
                try:
                    answer = self._done(step)
                except OmnigraphError as error:
                    step = steps.throw(error)
                else:
                    step = _go_on(steps, step, answer)
        except StopIteration as end:
            return cast("T", end.value)

    def stream(self, stream: Stream[T]) -> Iterator[T]:
        """Begin to read an answer; what is wrong with the request is told at once."""
        items = self._items(stream)
        next(items)
        return cast("Iterator[T]", items)

    def close(self) -> None:
        self._carrier.close()

    def _done(self, step: Request | Pause) -> Answer:
        if isinstance(step, Pause):
            time.sleep(step.seconds)
            return Answer(0, b"")
        try:
            reply = self._send(step)
            try:
                return Answer(reply.status, _content(step, reply), reply.headers)
            finally:
                reply.close()
        except _FAILURES as error:
            raise self.address.failure(step, error) from error

    def _send(self, request: Request) -> Reply:
        """Send a request, and look at the head of the answer."""
        content = _document(request) if request.file is None else iter(partial(request.file.read, _CHUNK), b"")
        reply = self._carrier.send(request.method, _target(request), self.address.told(request), content)
        if reply.status >= _REFUSED:
            with closing(reply):
                raise refused(request, reply.status, b"".join(reply.parts()))
        return reply

    def _items(self, stream: Stream[T]) -> Generator[T | None, None, None]:
        try:
            reply = self._send(stream.request)
            try:
                yield None  # the answer has begun; from here on a reader who goes away closes it
                lines = Lines()
                for chunk in reply.parts():
                    for line in lines.feed(chunk):
                        yield from stream.items(line)
                for line in lines.end():
                    yield from stream.items(line)
            finally:
                reply.close()
        except _FAILURES as error:
            raise self.address.failure(stream.request, error) from error
        except _SENSELESS as error:
            raise _senseless(error) from error


def _content(request: Request, reply: Reply) -> bytes:
    if request.sink is None:
        return b"".join(reply.parts())
    for chunk in reply.parts():
        request.sink(chunk)
    return b""


class Awaiting:
    """Runs calls in an event loop."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._http = httpx.AsyncClient(**options(address.url, address.timeout))

    async def run(self, steps: Steps[T]) -> T:
        """Run a call to its end."""
        try:
            step = next(steps)
            while True:
                try:
                    answer = await self._done(step)
                except OmnigraphError as error:
                    step = steps.throw(error)
                else:
                    step = _go_on(steps, step, answer)
        except StopIteration as end:
            return cast("T", end.value)

    async def stream(self, stream: Stream[T]) -> AsyncIterator[T]:
        """Begin to read an answer; what is wrong with the request is told at once."""
        items = self._items(stream)
        await anext(items)
        return cast("AsyncIterator[T]", items)

    async def close(self) -> None:
        await self._http.aclose()

    async def _done(self, step: Request | Pause) -> Answer:
        if isinstance(step, Pause):
            await asyncio.sleep(step.seconds)
            return Answer(0, b"")
        try:
            response = await self._send(step)
            try:
                return Answer(response.status_code, await self._content(step, response), small_letters(response))
            finally:
                await response.aclose()
        except _FAILURES as error:
            raise self.address.failure(step, error) from error

    async def _send(self, request: Request) -> httpx.Response:
        content = _document(request) if request.file is None else _chunks(request.file)
        url, headers = self.address.url + _target(request), self.address.told(request)
        made = self._http.build_request(request.method, url, headers=headers, content=content)
        response = await self._http.send(made, stream=True)
        if response.status_code >= _REFUSED:
            raise refused(request, response.status_code, await response.aread())
        return response

    async def _content(self, request: Request, response: httpx.Response) -> bytes:
        if request.sink is None:
            return await response.aread()
        async for chunk in response.aiter_bytes():
            request.sink(chunk)
        return b""

    async def _items(self, stream: Stream[T]) -> AsyncGenerator[T | None, None]:
        try:
            response = await self._send(stream.request)
            try:
                yield None  # the answer has begun; from here on a reader who goes away closes it
                lines = Lines()
                async for chunk in response.aiter_bytes():
                    for line in lines.feed(chunk):
                        for item in stream.items(line):
                            yield item
                for line in lines.end():
                    for item in stream.items(line):
                        yield item
            finally:
                await response.aclose()
        except _FAILURES as error:
            raise self.address.failure(stream.request, error) from error
        except _SENSELESS as error:
            raise _senseless(error) from error


async def _chunks(file: IO[bytes]) -> AsyncIterator[bytes]:
    while chunk := file.read(_CHUNK):
        yield chunk
