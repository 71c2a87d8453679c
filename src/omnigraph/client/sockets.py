"""A transport for httpx over plain sockets, for http:// without a proxy.

A warm question takes a server less time than httpx's own connections take around it. Here a request is one write, and
an answer is parsed in C. Errors are those of httpx, so that nobody above needs to know.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from urllib.request import getproxies, proxy_bypass

import httptools
import httpx

_PORT = 80
_CHUNK = 2**16
_IDLE_SECONDS = 5.0  # well below what servers wait before they close a connection that is not used
_FRAMED = b"transfer-encoding"


class Sockets(httpx.BaseTransport):
    """Connections to one server. Each is used by one thread at a time, and kept for the next request."""

    def __init__(self, host: str, port: int) -> None:
        self._address = host, port
        self._idle: deque[Connection] = deque()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request, and read the head of the answer."""
        timeouts = request.extensions.get("timeout", {})
        connection = self._connected(timeouts.get("connect"))
        try:
            connection.send(request, timeouts.get("write"))
            connection.read_head(timeouts.get("read"))
        except BaseException:
            connection.close()
            raise
        answer = connection.answer
        return httpx.Response(answer.status, headers=answer.headers, stream=Body(connection, self._idle))

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def _connected(self, timeout: float | None) -> Connection:
        while True:
            try:
                kept = self._idle.pop()  # the latest one, so that those nobody needs grow old
            except IndexError:
                return Connection(self._address, timeout)
            if kept.is_usable():
                return kept
            kept.close()


class Connection:
    """One connection, and the answer that comes over it."""

    def __init__(self, address: tuple[str, int], timeout: float | None) -> None:
        with _told(httpx.ConnectTimeout, httpx.ConnectError):
            self._socket = socket.create_connection(address, timeout)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._used_at = 0.0
        self.answer = _Answer()

    def is_usable(self) -> bool:
        """Whether the other side has neither closed it nor said anything that nobody asked for."""
        if time.monotonic() - self._used_at > _IDLE_SECONDS:
            return False
        self._socket.setblocking(False)  # noqa: FBT003 - its name says what it means
        try:
            self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def send(self, request: httpx.Request, timeout: float | None) -> None:
        """Send all of a request. A server that refuses a long one may answer, and close, before it has all."""
        self.answer = _Answer()
        self._socket.settimeout(timeout)
        first = _head(request)
        assert isinstance(request.stream, Iterable)
        try:
            with _told(httpx.WriteTimeout, httpx.WriteError):
                for part in _framed(request, request.stream):
                    if first is not None:
                        part, first = first + part, None  # noqa: PLW2901 - one write for what is short
                    self._socket.sendall(part)
                if first is not None:
                    self._socket.sendall(first)
        except httpx.WriteError as error:
            if not isinstance(error.__cause__, ConnectionError):
                raise

    def read_head(self, timeout: float | None) -> None:
        self._socket.settimeout(timeout)
        while not self.answer.has_head:
            self._receive()

    def parts(self) -> Iterator[bytes]:
        """The body, as it comes."""
        while True:
            yield from self.answer.taken()
            if self.answer.is_complete:
                return
            self._receive()

    def keep(self, idle: deque[Connection]) -> None:
        """Let others have it, if it has brought all of an answer and the server does not close it."""
        if not self.answer.can_go_on:
            self.close()
            return
        self._used_at = time.monotonic()
        idle.append(self)

    def close(self) -> None:
        self._socket.close()

    def _receive(self) -> None:
        with _told(httpx.ReadTimeout, httpx.ReadError):
            data = self._socket.recv(_CHUNK)
        self.answer.feed(data)


class _Answer:
    """An answer as far as it has come; the parser calls what begins with `on_`."""

    def __init__(self) -> None:
        self.headers: list[tuple[bytes, bytes]] = []
        self.has_head = False
        self.is_complete = False
        self.can_go_on = False
        self._body: list[bytes] = []
        self._parser = httptools.HttpResponseParser(self)

    @property
    def status(self) -> int:
        status: int = self._parser.get_status_code()
        return status

    def feed(self, data: bytes) -> None:
        if not data:
            self._end()
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            raise httpx.RemoteProtocolError(f"the answer is not HTTP: {error}") from error

    def taken(self) -> list[bytes]:
        taken, self._body = self._body, []
        return taken

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        self.has_head = True

    def on_body(self, part: bytes) -> None:
        self._body.append(part)

    def on_message_complete(self) -> None:
        self.is_complete = True
        self.can_go_on = bool(self._parser.should_keep_alive())  # the parser knows it only now

    def _end(self) -> None:
        """The connection is closed: that is the end of an answer that does not say how long it is, and of no other."""
        names = {name.lower() for name, _ in self.headers}
        if not self.has_head or names & {b"content-length", _FRAMED}:
            raise httpx.RemoteProtocolError("the server closed the connection before the answer was complete")
        self.is_complete = True


class Body(httpx.SyncByteStream):
    """The body of an answer. When it is closed, its connection is free for the next request, or closed too."""

    def __init__(self, connection: Connection, idle: deque[Connection]) -> None:
        self._connection: Connection | None = connection
        self._idle = idle

    def __iter__(self) -> Iterator[bytes]:
        return iter(()) if self._connection is None else self._connection.parts()

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.keep(self._idle)


def _head(request: httpx.Request) -> bytes | None:
    lines = [b"%b %b HTTP/1.1" % (request.method.encode(), request.url.raw_path)]
    lines += [b"%b: %b" % header for header in request.headers.raw]
    return b"\r\n".join([*lines, b"\r\n"])


def _framed(request: httpx.Request, parts: Iterable[bytes]) -> Iterator[bytes]:
    """The body in chunks that say how long they are, if nothing else says it."""
    if _FRAMED.decode() not in request.headers:
        yield from parts
        return
    for part in parts:
        if part:
            yield b"%x\r\n%b\r\n" % (len(part), part)
    yield b"0\r\n\r\n"


@contextmanager
def _told(late: type[httpx.TransportError], broken: type[httpx.TransportError]) -> Iterator[None]:
    """Tell what goes wrong with a socket by the errors of httpx."""
    try:
        yield
    except TimeoutError as error:
        raise late("it takes too long") from error
    except OSError as error:
        raise broken(error.strerror or str(error)) from error


def transport_to(address: str) -> httpx.BaseTransport:
    """What carries requests to an address: plain sockets, unless it must be encrypted or goes through a proxy."""
    try:
        url = httpx.URL(address)
    except httpx.InvalidURL:  # whoever makes a request of it is told
        return httpx.HTTPTransport(verify=False)
    proxies = {} if proxy_bypass(url.host) else getproxies()
    proxy = proxies.get(url.scheme) or proxies.get("all")
    if url.scheme == "http" and proxy is None:
        return Sockets(url.host, url.port or _PORT)
    # Without TLS nothing is verified, and reading the certificates takes longer than most requests.
    return httpx.HTTPTransport(verify=url.scheme == "https", proxy=proxy)
