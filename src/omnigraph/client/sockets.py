"""Requests over plain sockets, for http:// without a proxy.

A warm question takes a server less time than the connections of httpx, or of the standard library, take around it. Here
a request is one write, and an answer is parsed in C. Errors are those of httpx, so that nobody above needs to know.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

import httptools
import httpx

_CHUNK = 2**16
IDLE_SECONDS = 3.0  # less than a server waits: a change must not meet a connection that is being closed
_ANSWERS = 200  # a status below is no answer yet
_MOST_HEAD = 2**18
_LENGTHS = {b"content-length", b"transfer-encoding"}


class Sockets:
    """Connections to one server. Each is used by one thread at a time, and kept for the next request."""

    def __init__(self, url: httpx.URL, connect_seconds: float, seconds: float | None) -> None:
        self._address = url.host, url.port or 80
        self._base = url.raw_path.decode().rstrip("/")
        self._host = url.netloc.decode()
        self._seconds = connect_seconds, seconds
        self._idle: deque[_Connection] = deque()
        self._is_closed = False
        self._process = os.getpid()

    def send(self, method: str, target: str, headers: Mapping[str, str], content: bytes | Iterable[bytes]) -> Reply:
        """Send a request, and read the head of the answer. The headers say how long it is if the content does not."""
        length = {"Content-Length": str(len(content))} if isinstance(content, bytes) else {}
        head = _head(f"{method} {self._base}{target} HTTP/1.1", {"Host": self._host, **headers, **length})
        connection = self._connected()
        try:
            connection.send(head, content)
            connection.read_head()
        except BaseException:
            connection.close()
            raise
        return Reply(connection, self)

    def take_back(self, connection: _Connection) -> None:
        """Keep a connection for others, if it has brought all of an answer and the server does not close it."""
        if self._is_closed or not connection.answer.can_go_on:
            connection.close()
            return
        connection.used_at = time.monotonic()
        self._idle.append(connection)

    def close(self) -> None:
        self._is_closed = True
        while self._idle:
            self._idle.pop().close()

    def _connected(self) -> _Connection:
        if self._process != os.getpid():  # what a fork has copied is not for two
            self._process, self._idle = os.getpid(), deque()
        while True:
            try:
                kept = self._idle.pop()  # the latest one, so that those nobody needs grow old
            except IndexError:
                return _Connection(self._address, *self._seconds)
            if kept.is_usable():
                return kept
            kept.close()


class Reply:
    """An answer whose body is to be read. When it is closed, its connection is free for the next request."""

    def __init__(self, connection: _Connection, owner: Sockets) -> None:
        self.status = connection.answer.status
        self.headers = connection.answer.headers
        self._connection: _Connection | None = connection
        self._owner = owner

    def parts(self) -> Iterator[bytes]:
        """The body, as it comes."""
        return iter(()) if self._connection is None else self._connection.parts()

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._owner.take_back(connection)


class _Connection:
    """One connection, and the answer that comes over it."""

    def __init__(self, address: tuple[str, int], connect_seconds: float, seconds: float | None) -> None:
        try:
            self._socket = socket.create_connection(address, connect_seconds)
        except OSError as error:
            raise _told(error, httpx.ConnectTimeout, httpx.ConnectError) from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.settimeout(seconds)
        self._news = select.poll()
        self._news.register(self._socket, select.POLLIN)
        self.used_at = 0.0
        self.answer = _Answer()

    def is_usable(self) -> bool:
        """Whether the other side has neither closed it nor said anything that nobody asked for."""
        return time.monotonic() - self.used_at <= IDLE_SECONDS and not self._news.poll(0)

    def send(self, head: bytes, content: bytes | Iterable[bytes]) -> None:
        """Send all of a request. A server that refuses a long one may answer, and close, before it has all."""
        self.answer = _Answer()
        parts = (head + content,) if isinstance(content, bytes) else chain((head,), content)
        for part in parts:
            try:
                self._socket.sendall(part)
            except ConnectionError:
                return
            except OSError as error:
                raise _told(error, httpx.WriteTimeout, httpx.WriteError) from error

    def read_head(self) -> None:
        while not self.answer.has_head:
            self._receive()

    def parts(self) -> Iterator[bytes]:
        while True:
            yield from self.answer.taken()
            if self.answer.is_complete:
                return
            self._receive()

    def close(self) -> None:
        self._socket.close()

    def _receive(self) -> None:
        try:
            data = self._socket.recv(_CHUNK)
        except OSError as error:
            raise _told(error, httpx.ReadTimeout, httpx.ReadError) from error
        self.answer.feed(data)


class _Answer:
    """An answer as far as it has come; the parser calls what begins with `on_`."""

    def __init__(self) -> None:
        self.has_head = False
        self.is_complete = False
        self.can_go_on = False
        self.headers: dict[bytes, bytes] = {}
        self._body: list[bytes] = []
        self._head_bytes = 0
        self._parser = httptools.HttpResponseParser(self)

    @property
    def status(self) -> int:
        status: int = self._parser.get_status_code()
        return status

    def feed(self, data: bytes) -> None:
        if not data:
            self._end()
            return
        if not self.has_head:
            self._count_head(len(data))
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            raise httpx.RemoteProtocolError(f"the answer is not HTTP: {error}") from error

    def taken(self) -> list[bytes]:
        taken, self._body = self._body, []
        return taken

    def on_message_begin(self) -> None:
        if self.is_complete:  # it says more than it was asked
            raise httpx.RemoteProtocolError("the server answers twice")

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        self.has_head = not self._is_news()

    def on_body(self, part: bytes) -> None:
        self._body.append(part)

    def on_message_complete(self) -> None:
        if self._is_news():
            self.headers.clear()
            return
        self.is_complete = True
        self.can_go_on = bool(self._parser.should_keep_alive())  # the parser knows it only now

    def _is_news(self) -> bool:
        """Tell whether this is no answer yet, but says that one will come."""
        return self.status < _ANSWERS

    def _count_head(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > _MOST_HEAD:
            raise httpx.RemoteProtocolError("the head of the answer does not end")

    def _end(self) -> None:
        """The connection is closed: that is the end of an answer that does not say how long it is, and of no other."""
        if not self.has_head or self.headers.keys() & _LENGTHS:
            raise httpx.RemoteProtocolError("the server closed the connection before the answer was complete")
        self.is_complete = True


def _head(first: str, headers: Mapping[str, str]) -> bytes:
    lines = [first, *(f"{name}: {value}" for name, value in headers.items())]
    head = "\r\n".join([*lines, "", ""])
    if head.count("\n") != len(lines) + 1 or head.count("\r") != len(lines) + 1 or "\0" in head:
        raise httpx.LocalProtocolError("a header, or the address, holds the end of a line")
    try:
        return head.encode("ascii")
    except UnicodeEncodeError as error:
        raise httpx.LocalProtocolError("a header, or the address, holds more than plain ASCII") from error


def _told(error: OSError, late: type[httpx.TransportError], broken: type[httpx.TransportError]) -> httpx.TransportError:
    """What goes wrong with a socket, by the errors of httpx."""
    if isinstance(error, TimeoutError):
        return late("it takes too long")
    return broken(error.strerror or str(error))
