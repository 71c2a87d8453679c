"""HTTP requests through libcurl, the only HTTP client library of this package, in a thread or in an event loop.

libcurl takes a quarter of the CPU time that clients written in Python take. Its connections are kept for three seconds.
"""

from __future__ import annotations

import asyncio
import math
import os
import select
import time
import weakref
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import IO, Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import pycurl

_IDLE_SECONDS = 3  # less than a server waits before it closes a connection
_MAX_IDLE = 10  # connections that are kept for threads
_MAX_CONNECTIONS = 100  # of an event loop
_BUFFERED = 2**20  # bytes of a response that may wait for a slow reader
_NEVER = math.inf
_LONGEST_WAIT = 3600.0  # seconds of one wait: `poll` counts milliseconds in 32 bits
_ABANDONED: list[Any] = []  # connections of other processes and event loops: closing them would disturb their owners


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request. Its headers are whole lines; its body is bytes, or a file of a known size."""

    method: str
    url: str
    headers: Sequence[str]
    body: bytes | IO[bytes]
    timeout: float | None  # seconds in which nothing moves
    connect_timeout: float
    size: int = 0  # of a file
    repeatable: bool = False  # libcurl may send it again if a kept connection turns out to be closed


def header_in(head: Sequence[bytes], name: str) -> str:
    """Return the value of a header, by its name in small letters; empty if there is none."""
    prefix = f"{name}:".encode()
    return (
        next((line[len(prefix) :] for line in head if line.lower().startswith(prefix)), b"").strip().decode("latin-1")
    )


class HttpFailure(Exception):  # noqa: N818 - translated by every caller
    """No complete response. `sent` is False if the server has certainly not seen the request."""

    def __init__(self, reason: str, *, sent: bool, timed_out: bool = False) -> None:
        super().__init__(reason)
        self.sent = sent
        self.timed_out = timed_out


class _Transfer:
    """A request on its way, and what has arrived of its response."""

    def __init__(self, curl: Any, request: HttpRequest, *, is_tunnelled: bool) -> None:
        self.curl = curl
        self.request = request
        self.head: list[bytes] = []
        self.has_head = False
        self._is_proxy_next = is_tunnelled  # the proxy answers first, for itself
        self.chunks: list[bytes] = []
        self.moved = time.monotonic()
        self.failure: Exception | None = None
        curl.setopt(pycurl.URL, request.url)
        curl.setopt(pycurl.CUSTOMREQUEST, request.method)
        curl.setopt(pycurl.CONNECTTIMEOUT_MS, int(request.connect_timeout * 1000) + 1)
        curl.setopt(pycurl.HEADERFUNCTION, self._on_header)
        curl.setopt(pycurl.WRITEFUNCTION, self.on_data)
        # libcurl sends a request again if a kept connection ends without a byte of a response: a change could then
        # be made twice. Over a new connection it never does.
        curl.setopt(pycurl.FRESH_CONNECT, not request.repeatable)
        # Without these libcurl would wait for "100 Continue", and name the type of a form.
        unasked = ["Expect:"] if any(line.startswith("Content-Type:") for line in request.headers) else _NO_TYPE
        curl.setopt(pycurl.HTTPHEADER, [*request.headers, *unasked])
        if isinstance(request.body, bytes):
            curl.setopt(pycurl.POSTFIELDS, request.body)
        else:
            curl.setopt(pycurl.POST, 1)
            curl.setopt(pycurl.POSTFIELDSIZE_LARGE, request.size)
            curl.setopt(pycurl.READFUNCTION, partial(self._on_read, request.body))

    @property
    def status(self) -> int:
        return int(self.head[0].split(None, 2)[1])

    @property
    def deadline(self) -> float:
        """When to give up, unless something moves before."""
        return _NEVER if self.request.timeout is None else self.moved + self.request.timeout

    def taken(self) -> list[bytes]:
        """Return what has arrived since the last time."""
        chunks, self.chunks = self.chunks, []
        return chunks

    def fail(self, code: int, reason: str) -> None:
        """Keep why a transfer failed, for when all that arrived before is read."""
        number = self.curl.getinfo(pycurl.OS_ERRNO)
        refused = code == pycurl.E_COULDNT_CONNECT and number
        timed_out = code == pycurl.E_OPERATION_TIMEDOUT
        failure = HttpFailure(os.strerror(number) if refused else reason, sent=self._sent(), timed_out=timed_out)
        # An error of our own callback comes first: libcurl only knows that a callback gave up.
        self.failure = self.failure or failure

    def check_head(self) -> None:
        """Raise if no response came. libcurl takes a head without an end for a whole one."""
        if not self.has_head:
            self.check()
            raise HttpFailure("the head of the response is cut short", sent=True)

    def check(self) -> None:
        """Raise if the transfer failed."""
        if self.failure is not None:
            raise self.failure

    def too_slow(self) -> HttpFailure:
        return HttpFailure("timed out", sent=self._sent(), timed_out=True)

    def _sent(self) -> bool:
        # The time is zero until there is a connection that a request could be sent over.
        is_encrypted = self.request.url.startswith("https:")
        return bool(self.curl.getinfo(pycurl.APPCONNECT_TIME if is_encrypted else pycurl.CONNECT_TIME))

    def _on_header(self, line: bytes) -> None:
        self.moved = time.monotonic()
        if line.startswith(b"HTTP/"):
            self.head.clear()  # what came before was no answer yet, but "100 Continue" or "103 Early Hints"
        self.head.append(line)
        if not line.strip() and self.status >= 200:  # noqa: PLR2004 - the first status of an answer
            self.has_head, self._is_proxy_next = not self._is_proxy_next, False

    def on_data(self, chunk: bytes) -> int | None:
        self.moved = time.monotonic()
        self.chunks.append(chunk)
        return None

    def _on_read(self, file: IO[bytes], size: int) -> bytes | int:
        self.moved = time.monotonic()
        try:
            return file.read(size)
        except (OSError, ValueError) as error:  # libcurl would print it, and report another
            self.failure = error
            return int(pycurl.READFUNC_ABORT)


_NO_TYPE = ["Expect:", "Content-Type:"]


# In a thread ---------------------------------------------------------------------------------------


class HttpResponse:
    """A response that is being read, in the thread that reads it."""

    def __init__(self, transfer: _Transfer, session: _Session) -> None:
        self._transfer = transfer
        self._session = session
        self.status = transfer.status
        self.head = transfer.head

    def read(self) -> bytes:
        return b"".join(self)

    def __iter__(self) -> Iterator[bytes]:
        """Yield the body as it arrives."""
        yield from self._transfer.taken()
        while self._session.is_running:
            self._session.step()
            yield from self._transfer.taken()
        self._transfer.check()


class _Session:
    """One connection of a thread: it runs one request at a time."""

    def __init__(self, options: _Options) -> None:
        self.is_running = False
        self._options = options
        self._curl = options.handle()
        self._transfer: _Transfer | None = None
        self._due = _NEVER  # when libcurl wants to be called
        # Not `CurlMulti.select`, which knows no file descriptor beyond 1023, and not `Curl.perform`, which no signal
        # interrupts.
        self._poll = select.poll()
        self._multi = pycurl.CurlMulti()
        self._multi.setopt(pycurl.M_SOCKETFUNCTION, self._watch)
        self._multi.setopt(pycurl.M_TIMERFUNCTION, self._set_timer)
        self._multi.setopt(pycurl.M_MAXCONNECTS, 1)

    def send(self, request: HttpRequest) -> HttpResponse:
        """Send a request, and wait for the head of its response."""
        # A handle that has sent a file would send it again with every body in memory.
        curl = self._curl if isinstance(request.body, bytes) else self._options.handle()
        transfer = self._transfer = _Transfer(curl, request, is_tunnelled=self._options.is_tunnelled)
        self._multi.add_handle(curl)
        self.is_running = True
        self._act(pycurl.SOCKET_TIMEOUT, 0)
        while self.is_running and not transfer.has_head:
            self.step()
        transfer.check_head()
        return HttpResponse(transfer, self)

    def step(self) -> None:
        """Wait until something moves."""
        assert self._transfer is not None, "a request is on its way"
        ends = min(self._due, self._transfer.deadline)
        ready = self._poll.poll(milliseconds_until(ends))
        if not ready and self._due <= time.monotonic():
            self._due = _NEVER
            self._act(pycurl.SOCKET_TIMEOUT, 0)
        elif not ready and self._transfer.deadline <= time.monotonic():
            raise self._transfer.too_slow()
        for descriptor, event in ready:
            reads = pycurl.CSELECT_IN if event & ~select.POLLOUT else 0
            self._act(descriptor, reads | (pycurl.CSELECT_OUT if event & select.POLLOUT else 0))

    def end(self) -> None:
        """End a request; one that is not complete takes its connection with it."""
        if self._transfer is not None:
            self._multi.remove_handle(self._transfer.curl)
            self.is_running, self._transfer, self._due = False, None, _NEVER

    def close(self) -> None:
        self.end()
        self._multi.close()
        self._curl.close()

    def _act(self, descriptor: int, events: int) -> None:
        if not self.is_running:
            return
        _, running = self._multi.socket_action(descriptor, events)
        if running:
            return
        self.is_running = False
        _, _, failed = self._multi.info_read()
        for _, code, reason in failed:
            assert self._transfer is not None, "a request is on its way"
            self._transfer.fail(code, reason)

    def _watch(self, what: int, descriptor: int, *_: Any) -> None:
        if what == pycurl.POLL_REMOVE:
            self._poll.unregister(descriptor)
        else:
            reads = select.POLLIN if what & pycurl.POLL_IN else 0
            self._poll.register(descriptor, reads | (select.POLLOUT if what & pycurl.POLL_OUT else 0))

    def _set_timer(self, milliseconds: int) -> None:
        self._due = _NEVER if milliseconds < 0 else time.monotonic() + milliseconds / 1000


def milliseconds_until(end: float) -> float:
    """Return for how long `poll` may wait for a time of the monotonic clock; a longer wait is made of several."""
    return 1000 * min(max(0.0, end - time.monotonic()), _LONGEST_WAIT)


class HttpPool:
    """Connections to one server, through the proxy that the environment names. Thread-safe."""

    def __init__(self, url: str) -> None:
        self._options = _Options(url)
        self._reset()

    def _reset(self) -> None:
        self._process = os.getpid()
        self._idle: list[_Session] = []
        weakref.finalize(self, _close_all, self._idle, self._process)  # a pool that is never closed leaves nothing open

    @contextmanager
    def send(self, request: HttpRequest) -> Iterator[HttpResponse]:
        """Send a request and give its response. Raise HttpFailure if none comes, here or while it is read."""
        if self._process != os.getpid():
            # A forked process must not share connections with its parent. To close them would end those of the parent
            # too, if they are encrypted.
            _ABANDONED.append(self._idle)
            self._reset()
        try:
            session = self._idle.pop()
        except IndexError:
            session = _Session(self._options)
        try:
            yield session.send(request)
        finally:
            session.end()
            if len(self._idle) < _MAX_IDLE:
                self._idle.append(session)
            else:
                session.close()

    def close(self) -> None:
        _close_all(self._idle, self._process)


def _close_all(sessions: list[_Session], process: int) -> None:
    while sessions and process == os.getpid():
        sessions.pop().close()


# In an event loop ----------------------------------------------------------------------------------


class AsyncHttpResponse:
    """A response that is being read in an event loop."""

    def __init__(self, transfer: _AsyncTransfer) -> None:
        self._transfer = transfer
        self.status = transfer.status
        self.head = transfer.head

    async def read(self) -> bytes:
        return b"".join([chunk async for chunk in self])

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives."""
        transfer = self._transfer
        for chunk in transfer.taken():
            yield chunk
        while transfer.is_running:
            await transfer.step()
            for chunk in transfer.taken():
                yield chunk
        transfer.check()


class _AsyncTransfer(_Transfer):
    """A transfer that an event loop drives, whether its reader keeps up or not: so it pauses."""

    def __init__(self, curl: Any, request: HttpRequest, *, is_tunnelled: bool) -> None:
        super().__init__(curl, request, is_tunnelled=is_tunnelled)
        self._changed = asyncio.Event()
        self._buffered = 0
        self._paused = False
        self._done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def start(self, multi: pycurl.AsyncCurlMulti) -> None:
        self._done = multi.add_handle(self.curl)
        self._done.add_done_callback(lambda _: self._changed.set())

    @property
    def is_running(self) -> bool:
        return not self._done.done()

    async def response(self) -> AsyncHttpResponse:
        """Wait for the head of the response."""
        while self.is_running and not self.has_head:
            await self.step()
        self.check_head()
        return AsyncHttpResponse(self)

    async def step(self) -> None:
        """Wait until something moves."""
        try:
            # The clock of an event loop need not be the one of `time.monotonic`.
            async with asyncio.timeout(None if self.deadline is _NEVER else self.deadline - time.monotonic()):
                await self._changed.wait()
        except TimeoutError:
            if time.monotonic() >= self.deadline:
                raise self.too_slow() from None
        self._changed.clear()
        error = None if self.is_running else self._done.exception()
        if isinstance(error, pycurl.error):
            self.fail(*error.args[:2])

    def taken(self) -> list[bytes]:
        chunks, self._buffered = super().taken(), 0
        if self._paused:
            self._paused = False
            self.curl.pause(pycurl.PAUSE_CONT)
        return chunks

    def on_data(self, chunk: bytes) -> int | None:
        if self._buffered > _BUFFERED:
            self._paused = True
            return int(pycurl.WRITEFUNC_PAUSE)  # libcurl brings the same bytes again
        self._buffered += len(chunk)
        self._changed.set()
        return super().on_data(chunk)

    def _on_header(self, line: bytes) -> None:
        super()._on_header(line)
        self._changed.set()


class AsyncHttpPool:
    """The same for an event loop."""

    def __init__(self, url: str) -> None:
        self._options = _Options(url)
        self._multi: pycurl.AsyncCurlMulti | None = None
        self._owner: tuple[int, asyncio.AbstractEventLoop] | None = None

    @asynccontextmanager
    async def send(self, request: HttpRequest) -> AsyncIterator[AsyncHttpResponse]:
        """Send a request and give its response. Raise HttpFailure if none comes, here or while it is read."""
        multi = await self._connections()
        transfer = _AsyncTransfer(self._options.handle(), request, is_tunnelled=self._options.is_tunnelled)
        transfer.start(multi)
        try:
            yield await transfer.response()
        finally:
            if transfer.is_running:
                multi.remove_handle(transfer.curl)

    async def close(self) -> None:
        multi, self._multi, self._owner = self._multi, None, None
        if multi is not None:
            await multi.aclose()

    async def _connections(self) -> pycurl.AsyncCurlMulti:
        owner = os.getpid(), asyncio.get_running_loop()
        if self._multi is not None and self._owner is not None and self._owner != owner:
            # Connections belong to one process and one event loop, which may still use them.
            process, loop = self._owner
            if process == owner[0] and loop.is_closed():
                await self.close()
            else:
                # Kept alive on purpose: the destructor would close sockets that the other owner still uses.
                _ABANDONED.append(self._multi)
                self._multi = None
        if self._multi is None:
            self._multi, self._owner = pycurl.AsyncCurlMulti(), owner
            self._multi.setopt(pycurl.M_MAX_TOTAL_CONNECTIONS, _MAX_CONNECTIONS)
        return self._multi


# Options -------------------------------------------------------------------------------------------


class _Options:
    """The options of every request to a server."""

    def __init__(self, url: str) -> None:
        proxy = proxy_of(url) or ""
        is_encrypted = url.lower().startswith("https:")
        self.is_tunnelled = is_encrypted and proxy.startswith("http")
        self._common = {
            pycurl.NOSIGNAL: True,  # signals would reach the wrong thread
            pycurl.PATH_AS_IS: True,  # a branch may be called `..`
            pycurl.PROTOCOLS: pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS,
            pycurl.HTTP_VERSION: pycurl.CURL_HTTP_VERSION_1_1,
            pycurl.MAXAGE_CONN: _IDLE_SECONDS,
            pycurl.PROXY: proxy,
            **(_authorities() if is_encrypted else {}),
        }

    def handle(self) -> Any:
        """Return a new handle for requests."""
        curl = pycurl.Curl()
        for option, value in self._common.items():
            curl.setopt(option, value)
        return curl


def _authorities() -> dict[int, str]:
    """Return where the certificates of this machine are: libcurl knows only those of the one that it was built on."""
    import ssl  # noqa: PLC0415 - takes time to load, and most servers are plain

    paths = ssl.get_default_verify_paths()
    found = {pycurl.CAINFO: paths.cafile, pycurl.CAPATH: paths.capath}
    return {option: path for option, path in found.items() if path}


def proxy_of(url: str) -> str | None:
    """Return the proxy that the environment names for a URL."""
    parts, known = urlsplit(url), getproxies()
    found = known.get(parts.scheme.lower()) or known.get("all")
    if not found or proxy_bypass(parts.netloc.rpartition("@")[2]):
        return None
    return found if "://" in found else f"http://{found}"
