"""What carries requests to a server: plain sockets, or httpx where the way is encrypted or leads through a proxy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol
from urllib.request import getproxies, proxy_bypass

import httpx

from omnigraph.client.sockets import IDLE_SECONDS, Sockets

_CONNECT_SECONDS = 10.0


class Reply(Protocol):
    """An answer: its status, its headers by their names in small letters, and its body as it comes."""

    status: int
    headers: dict[bytes, bytes]

    def parts(self) -> Iterator[bytes]: ...
    def close(self) -> None: ...


class Carrier(Protocol):
    """Sends requests to one server. Safe to share between threads."""

    def send(self, method: str, target: str, headers: Mapping[str, str], content: bytes | Iterable[bytes]) -> Reply: ...
    def close(self) -> None: ...


def carrier_to(address: str, timeout: float | None) -> Carrier:
    """What carries requests to an address."""
    url = httpx.URL(address)
    if (
        url.scheme == "http"
        and not url.userinfo
        and (proxy_bypass(url.host) or not {"http", "all"} & getproxies().keys())
    ):
        return Sockets(url, _CONNECT_SECONDS, timeout)
    return ByHttpx(address, timeout)


def options(address: str, timeout: float | None) -> dict[str, Any]:
    """How httpx is to connect."""
    return {
        "timeout": httpx.Timeout(timeout, connect=_CONNECT_SECONDS),
        "limits": httpx.Limits(max_connections=100, keepalive_expiry=IDLE_SECONDS),
        # Without TLS nothing is verified, and reading the certificates takes longer than most requests.
        "verify": address.lower().startswith("https://"),
    }


class ByHttpx:
    """Sends requests as httpx does."""

    def __init__(self, address: str, timeout: float | None) -> None:
        self._address = address
        self._client = httpx.Client(**options(address, timeout))

    def send(self, method: str, target: str, headers: Mapping[str, str], content: bytes | Iterable[bytes]) -> Reply:
        request = self._client.build_request(method, self._address + target, headers=headers, content=content)
        return _HttpxReply(self._client.send(request, stream=True))

    def close(self) -> None:
        self._client.close()


def small_letters(response: httpx.Response) -> dict[bytes, bytes]:
    return {name.lower(): value for name, value in response.headers.raw}


class _HttpxReply:
    def __init__(self, response: httpx.Response) -> None:
        self.status = response.status_code
        self.headers = small_letters(response)
        self.parts = response.iter_bytes
        self.close = response.close
