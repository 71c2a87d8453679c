"""Send the requests of a call over HTTP, in a thread or in an event loop."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import IO, TypeVar, cast
from urllib.parse import SplitResult, unquote, urlencode, urlsplit

from omnigraph.api import problems
from omnigraph.api.operation import CLIENT_HEADER, JSON, NDJSON
from omnigraph.client.requests import Answer, Lines, Pause, Request, Steps, Stream, segment
from omnigraph.core.http import (
    AsyncHttpPool,
    AsyncHttpResponse,
    HttpFailure,
    HttpPool,
    HttpRequest,
    HttpResponse,
)
from omnigraph.errors import (
    OmnigraphError,
    ParameterError,
    ServerAnswerError,
    ServerUnavailableError,
    UnsupportedUriError,
)
from omnigraph.version import __version__

T = TypeVar("T")
_MIN_ERROR_STATUS = 300  # redirects too: none is followed, because the token is for this address alone
_CHUNK = 2**16
_CONNECT_SECONDS = 10.0
_GATEWAY_STATUSES = (502, 503, 504)  # from a proxy that does not know what became of the request
_DECODING_ERRORS = (AttributeError, LookupError, TypeError, ValueError)  # raised by reading a response that is not ours


class Address:
    """The URL of a served graph, and the requests to it."""

    def __init__(self, url: str, token: str | None, timeout: float | None) -> None:
        parts = _checked_url(url)
        self.url = url
        # Without a name and a password: libcurl would make a header of its own from them.
        self._base = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"
        self._timeout = timeout
        self._headers = [f"{CLIENT_HEADER}: python/{__version__}", *_authorization(parts, token)]

    @classmethod
    def of(cls, url: str, graph: str | None, token: str | None, timeout: float | None) -> Address:
        """Return the address of a server, or of a graph on it."""
        if not url.lower().startswith(("http://", "https://")):
            hint = "use http://host:port; pass the address of a storage to `omnigraph.open`"
            raise UnsupportedUriError(f"{url!r} is not the address of a server", uri=url, hint=hint)
        base = url.rstrip("/")
        return cls(base if graph is None else f"{base}/graphs/{segment(graph)}", token, timeout)

    def prepared(self, request: Request) -> HttpRequest:
        """Return a request as it is sent."""
        query = urlencode(list(request.query)) if request.query else ""
        url = f"{self._base}{request.path}{'?' if query else ''}{query}"
        headers = [*self._headers, f"Accept: {request.accept}", *_header_lines(request.headers)]
        if request.document is not None or request.file is not None:
            headers.append(f"Content-Type: {JSON if request.file is None else NDJSON}")
        body = request.file or (b"" if request.document is None else json.dumps(request.document).encode())
        size = 0 if request.file is None else _size(request.file)
        return HttpRequest(
            request.method, url, headers, body, self._timeout, _CONNECT_SECONDS, size, repeatable=not request.changes
        )

    def failure(self, request: Request, error: HttpFailure) -> OmnigraphError:
        """Return the error to raise if no response came. A change whose response is lost may have been made."""
        # A request that never left cannot have changed anything: then the caller may simply repeat it.
        if request.changes and error.sent:
            return request.outcome_unknown(f"the answer of {self.url} is lost: {error}")
        hint = "check that the server runs and that the address is right"
        return ServerUnavailableError(f"{self.url} does not answer: {error}", address=self.url, hint=hint)


def _checked_url(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        # A line break in an address would end the request line, and the rest of it would be read as headers.
        is_valid = bool(parts.hostname) and parts.port != 0 and url.isascii() and url.isprintable()
    except ValueError as error:
        raise _invalid_url(url, f": {error}") from None
    if not is_valid:
        raise _invalid_url(url)
    return parts


def _invalid_url(url: str, reason: str = "") -> UnsupportedUriError:
    message = f"{url!r} is not the address of a server{reason}"
    return UnsupportedUriError(message, uri=url, hint="use http://host:port")


def _authorization(parts: SplitResult, token: str | None) -> list[str]:
    # A token wins over a password in the address.
    if token is not None:
        return [f"Authorization: Bearer {_checked_token(token)}"]
    if parts.username is None:
        return []
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return [f"Authorization: Basic {base64.b64encode(pair.encode()).decode()}"]


def _checked_token(token: str) -> str:
    # A line break here would smuggle a header into the request.
    if token.isascii() and token.isprintable():
        return token
    message = "the token contains a line break, or characters other than ASCII"
    raise ParameterError(message, parameter="token", hint="check that you copied the whole token and nothing else")


def _header_lines(headers: Mapping[str, str]) -> list[str]:
    for name, value in headers.items():
        if not (value.isascii() and value.isprintable()):
            message = f"{value!r:.60} cannot be sent as {name}"
            raise ParameterError(message, parameter=name, hint="pass one line of ASCII text")
    return [f"{name}: {value}" for name, value in headers.items()]


def _size(file: IO[bytes]) -> int:
    size = file.seek(0, 2)
    file.seek(0)
    return size


def refused(request: Request, status: int, content: bytes) -> OmnigraphError:
    """Return the error that a response reports."""
    try:
        document = json.loads(content)
    except ValueError:
        document = None
    error = problems.raised(status, document)
    # Our own server reports a 503 as a typed error; without one it came from a proxy in front of it.
    if isinstance(error, ServerAnswerError) and request.changes and status in _GATEWAY_STATUSES:
        return request.outcome_unknown(error.message)
    return error


def _next_step(steps: Steps[T], step: Request | Pause, answer: Answer) -> Request | Pause:
    """Continue a call. If the response to a change cannot be read, the change may have been made."""
    try:
        return steps.send(answer)
    except ServerAnswerError as error:
        unreadable = error
    except _DECODING_ERRORS as error:
        unreadable = _unreadable(error, answer.status)
    if isinstance(step, Request) and step.changes:
        raise step.outcome_unknown(unreadable.message) from unreadable
    raise unreadable


def _unreadable(error: Exception, status: int = 200) -> ServerAnswerError:
    message = f"the answer has an unexpected form: {type(error).__name__} {str(error)[:80]}"
    hint = "check that the address is that of an Omnigraph server of this version"
    return ServerAnswerError(message, status=status, hint=hint)


class Blocking:
    """Runs calls in the calling thread. Thread-safe."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._pool = HttpPool(address.url)

    def run(self, steps: Steps[T]) -> T:
        """Run a call to its end."""
        try:
            step = next(steps)
            while True:
                try:
                    answer = self._done(step)
                except OmnigraphError as error:
                    # Into the call: it knows what a lost poll means, and which file a line of an upload came from.
                    step = steps.throw(error)
                else:
                    step = _next_step(steps, step, answer)
        except StopIteration as end:
            return cast("T", end.value)

    def stream(self, stream: Stream[T]) -> Iterator[T]:
        """Start to read a response. A refused request raises here, not at the first item."""
        # A generator runs nothing before its first item: this sends the request and receives the head.
        items = self._items(stream)
        next(items)
        return cast("Iterator[T]", items)

    def close(self) -> None:
        self._pool.close()

    def _done(self, step: Request | Pause) -> Answer:
        if isinstance(step, Pause):
            time.sleep(step.seconds)
            return Answer(0, b"")
        with self._sent(step) as response:
            if step.sink is None:
                return Answer(response.status, response.read(), response.head)
            for chunk in response:
                step.sink(chunk)
            return Answer(response.status, b"", response.head)

    @contextmanager
    def _sent(self, request: Request) -> Iterator[HttpResponse]:
        """Send a request and receive the head of its response; raise the error that it reports."""
        try:
            with self._pool.send(self.address.prepared(request)) as response:
                if response.status >= _MIN_ERROR_STATUS:
                    raise refused(request, response.status, response.read())
                yield response
        except HttpFailure as error:
            raise self.address.failure(request, error) from error

    def _items(self, stream: Stream[T]) -> Generator[T | None, None, None]:
        with self._sent(stream.request) as response:
            yield None  # the response has begun; a reader that stops early now closes it
            lines = Lines()
            try:
                for chunk in response:
                    for line in lines.feed(chunk):
                        yield from stream.items(line)
                for line in lines.end():
                    yield from stream.items(line)
            except _DECODING_ERRORS as error:
                raise _unreadable(error) from error


class Awaiting:
    """Runs calls in an event loop."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._pool = AsyncHttpPool(address.url)

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
                    step = _next_step(steps, step, answer)
        except StopIteration as end:
            return cast("T", end.value)

    async def stream(self, stream: Stream[T]) -> AsyncIterator[T]:
        """Start to read a response. A refused request raises here, not at the first item."""
        items = self._items(stream)
        await anext(items)
        return cast("AsyncIterator[T]", items)

    async def close(self) -> None:
        await self._pool.close()

    async def _done(self, step: Request | Pause) -> Answer:
        if isinstance(step, Pause):
            await asyncio.sleep(step.seconds)
            return Answer(0, b"")
        async with self._sent(step) as response:
            if step.sink is None:
                return Answer(response.status, await response.read(), response.head)
            async for chunk in response:
                step.sink(chunk)
            return Answer(response.status, b"", response.head)

    @asynccontextmanager
    async def _sent(self, request: Request) -> AsyncIterator[AsyncHttpResponse]:
        """Send a request and receive the head of its response; raise the error that it reports."""
        try:
            async with self._pool.send(self.address.prepared(request)) as response:
                if response.status >= _MIN_ERROR_STATUS:
                    raise refused(request, response.status, await response.read())
                yield response
        except HttpFailure as error:
            raise self.address.failure(request, error) from error

    async def _items(self, stream: Stream[T]) -> AsyncGenerator[T | None, None]:
        async with self._sent(stream.request) as response:
            yield None  # the response has begun; a reader that stops early now closes it
            lines = Lines()
            try:
                async for chunk in response:
                    for line in lines.feed(chunk):
                        for item in stream.items(line):
                            yield item
                for line in lines.end():
                    for item in stream.items(line):
                        yield item
            except _DECODING_ERRORS as error:
                raise _unreadable(error) from error
