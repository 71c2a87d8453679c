"""Sending requests over HTTP and waiting for the answers, in a thread or in an event loop."""

from __future__ import annotations

import asyncio
import json
import time
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import IO, Any, TypeVar, cast

import httpx

from omnigraph.client.asking import segment
from omnigraph.client.sockets import transport_to
from omnigraph.client.steps import JSON, LINES, Answer, Lines, Pause, Request, Steps, Stream
from omnigraph.errors import (
    OmnigraphError,
    OutcomeUnknownError,
    ServerAnswerError,
    ServerUnavailableError,
    UnsupportedUriError,
)
from omnigraph.version import __version__
from omnigraph.wire import problems

T = TypeVar("T")
_REFUSED = 300  # and above: an answer that is not what was asked for
_CHUNK = 2**16
_CONNECT_SECONDS = 10.0
_IDLE_SECONDS = 3.0  # less than a server waits: a change must not meet a connection that is being closed
_GATEWAYS = (502, 503, 504)  # what stands before a server says so when it does not know either
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError, httpx.UnsupportedProtocol)


class Address:
    """Where a graph is served, and how requests to it are made."""

    def __init__(self, url: str, token: str | None, timeout: float | None) -> None:
        self.url = url
        headers = {"Omnigraph-Client": f"python/{__version__}"}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        # Without TLS nothing is verified, and reading the certificates takes longer than most requests.
        self._options: dict[str, Any] = {
            "headers": headers,
            "timeout": httpx.Timeout(timeout, connect=_CONNECT_SECONDS),
            "limits": httpx.Limits(max_connections=100, keepalive_expiry=_IDLE_SECONDS),
            "verify": url.lower().startswith("https://"),
        }

    @classmethod
    def of(cls, url: str, graph: str | None, token: str | None, timeout: float | None) -> Address:
        """The address of a server, or of a graph on it."""
        if not url.lower().startswith(("http://", "https://")):
            hint = "use http://host:port; `omnigraph.open` takes the address of a storage"
            raise UnsupportedUriError(f"{url!r} is not the address of a server", uri=url, hint=hint)
        base = url.rstrip("/")
        return cls(base if graph is None else f"{base}/graphs/{segment(graph)}", token, timeout)

    def blocking(self) -> httpx.BaseTransport:
        return transport_to(self.url)

    def awaiting(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(**self._options)

    def options(self, request: Request) -> dict[str, Any]:
        """What httpx is told of a request, but for its file."""
        headers = {"Accept": request.accept, **request.headers}
        options: dict[str, Any] = {"params": list(request.query), "headers": headers}
        if request.document is not None:
            headers["Content-Type"] = JSON
            options["content"] = json.dumps(request.document).encode()
        elif request.file is not None:
            headers["Content-Type"] = LINES
            headers["Content-Length"] = str(_size(request.file))
        return options

    def made(self, request: Request, params: Any = None, headers: Any = None, content: Any = None) -> httpx.Request:
        """A request as a transport takes it. Most go to one address again and again, which is read only once."""
        timeout = {"timeout": self._options["timeout"].as_dict()}
        told = {**self._options["headers"], **headers}
        url = _url(self.url + request.path)
        return httpx.Request(
            request.method, url, params=params or None, headers=told, content=content, extensions=timeout
        )

    @contextmanager
    def failures(self, request: Request) -> Iterator[None]:
        """Tell what it means that no answer came: a change whose answer is lost may have been made."""
        try:
            yield
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
            what = str(error) or type(error).__name__
            if request.changes and not isinstance(error, _NOT_SENT):
                raise _unknown(f"the answer of {self.url} is lost: {what}") from error
            message = f"{self.url} does not answer: {what}"
            hint = "see that the server runs and the address is right"
            raise ServerUnavailableError(message, address=self.url, hint=hint) from error


_url = lru_cache(httpx.URL)


def _size(file: IO[bytes]) -> int:
    size = file.seek(0, 2)
    file.seek(0)
    return size


def _unknown(message: str) -> OutcomeUnknownError:
    hint = "see with `commits` whether the change was made before you make it again"
    return OutcomeUnknownError(message, operation_id=None, hint=hint)


def refused(request: Request, status: int, content: bytes) -> OmnigraphError:
    """The error that an answer tells."""
    try:
        told = json.loads(content)
    except ValueError:
        told = None
    error = problems.raised(status, told)
    if isinstance(error, ServerAnswerError) and request.changes and status in _GATEWAYS:
        return _unknown(error.message)
    return error


class Blocking:
    """Runs calls in the thread that makes them. Safe to share between threads."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._transport = address.blocking()
        weakref.finalize(self, self._transport.close)  # whoever forgets it leaves no connections behind

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
                    step = steps.send(answer)
        except StopIteration as end:
            return cast("T", end.value)

    def stream(self, stream: Stream[T]) -> Iterator[T]:
        """Begin to read an answer; what is wrong with the request is told at once."""
        items = self._items(stream)
        next(items)
        return cast("Iterator[T]", items)

    def close(self) -> None:
        self._transport.close()

    def _done(self, step: Request | Pause) -> Answer:
        if isinstance(step, Pause):
            time.sleep(step.seconds)
            return Answer(0, b"")
        with self.address.failures(step):
            response = self._send(step)
            try:
                return Answer(response.status_code, self._content(step, response))
            finally:
                response.close()

    def _send(self, request: Request) -> httpx.Response:
        """Send a request, and look at the head of the answer."""
        options = self.address.options(request)
        if request.file is not None:
            options["content"] = iter(lambda: request.file.read(_CHUNK), b"")  # type: ignore[union-attr]
        response = self._transport.handle_request(self.address.made(request, **options))
        if response.status_code >= _REFUSED:
            raise refused(request, response.status_code, response.read())
        return response

    def _content(self, request: Request, response: httpx.Response) -> bytes:
        if request.sink is None:
            return b"".join(cast("Iterable[bytes]", response.stream))  # nothing is encoded: we do not ask for it
        for chunk in response.iter_bytes():
            request.sink(chunk)
        return b""

    def _items(self, stream: Stream[T]) -> Generator[T | None, None, None]:
        with self.address.failures(stream.request):
            response = self._send(stream.request)
            try:
                yield None  # the answer has begun; from here on a reader who goes away closes it
                lines = Lines()
                for chunk in response.iter_bytes():
                    for line in lines.feed(chunk):
                        yield from stream.items(line)
                for line in lines.end():
                    yield from stream.items(line)
            finally:
                response.close()


class Awaiting:
    """Runs calls in an event loop."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._http = address.awaiting()

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
                    step = steps.send(answer)
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
        with self.address.failures(step):
            response = await self._send(step)
            try:
                return Answer(response.status_code, await self._content(step, response))
            finally:
                await response.aclose()

    async def _send(self, request: Request) -> httpx.Response:
        options = self.address.options(request)
        if request.file is not None:
            options["content"] = _chunks(request.file)
        made = self._http.build_request(request.method, self.address.url + request.path, **options)
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
        with self.address.failures(stream.request):
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


async def _chunks(file: IO[bytes]) -> AsyncIterator[bytes]:
    while chunk := file.read(_CHUNK):
        yield chunk
