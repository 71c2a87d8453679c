"""Connection pools of httpcore, the only HTTP client library of this package.

httpx costs three times as much per request and ten times as much to import; urllib3 has no asynchronous half.
"""

from __future__ import annotations

import ssl
from contextlib import suppress
from typing import Any
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

import httpcore

# Less than a server waits: a change must not be sent over a connection that the server is about to close.
_IDLE_SECONDS = 3.0
_MAX_CONNECTIONS = 100
_PACKET = 2**15

HTTP_FAILURES = (
    httpcore.TimeoutException,
    httpcore.NetworkError,
    httpcore.ProtocolError,
    httpcore.ProxyError,
    httpcore.UnsupportedProtocol,
)
"""Every failure of a request that httpcore reports."""

NOT_SENT = (
    httpcore.ConnectError,
    httpcore.ConnectTimeout,
    httpcore.PoolTimeout,
    httpcore.ProxyError,
    httpcore.UnsupportedProtocol,
)
"""The failures after which the server has certainly not seen the request."""


def http_pool(url: str) -> httpcore.ConnectionPool:
    """Return a pool of connections to a server, through the proxy that the environment names. Thread-safe."""
    return httpcore.ConnectionPool(**_options(url), network_backend=_Backend())


def async_http_pool(url: str) -> httpcore.AsyncConnectionPool:
    """Return the same for an event loop."""
    return httpcore.AsyncConnectionPool(**_options(url))


def timeouts(seconds: float | None, connect: float | None) -> dict[str, Any]:
    """Return the request extension that limits each step of a request."""
    return {"timeout": {"connect": connect, "read": seconds, "write": seconds, "pool": seconds}}


class _Backend(httpcore.SyncBackend):
    """Connects with streams that send the head and the body of a request together."""

    def connect_tcp(self, *args: Any, **options: Any) -> httpcore.NetworkStream:
        return _Stream(super().connect_tcp(*args, **options))


class _Stream(httpcore.NetworkStream):
    """Collects writes until the response is read. httpcore writes head and body apart, and a server wakes for each."""

    def __init__(self, stream: httpcore.NetworkStream) -> None:
        self._stream = stream
        self._pending = b""

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._pending += buffer
        if len(self._pending) > _PACKET:
            self._flush(timeout)

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        # A server that refuses a request may close before it has read all; its response can be read all the same.
        with suppress(httpcore.WriteError):
            self._flush(timeout)
        return self._stream.read(max_bytes, timeout)

    def _flush(self, timeout: float | None) -> None:
        pending, self._pending = self._pending, b""
        if pending:
            self._stream.write(pending, timeout)

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        return _Stream(self._stream.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


def _options(url: str) -> dict[str, Any]:
    # No retries: a change that was sent twice could be made twice.
    return {"proxy": _proxy(url), "max_connections": _MAX_CONNECTIONS, "keepalive_expiry": _IDLE_SECONDS, "retries": 0}


def _proxy(url: str) -> httpcore.Proxy | None:
    parts, known = urlsplit(url), getproxies()
    found = known.get(parts.scheme.lower()) or known.get("all")
    if not found or proxy_bypass(parts.netloc.rpartition("@")[2]):
        return None
    proxy = urlsplit(found if "://" in found else f"http://{found}")
    auth = (unquote(proxy.username), unquote(proxy.password or "")) if proxy.username else None
    port = f":{proxy.port}" if proxy.port else ""
    return httpcore.Proxy(f"{proxy.scheme}://{proxy.hostname}{port}", auth=auth)
