"""Clients of a server: the calls of a graph, over HTTP."""

from __future__ import annotations

from omnigraph.client import calls
from omnigraph.client.asynchronous import AsyncGraph
from omnigraph.client.remote import RemoteGraph
from omnigraph.client.transport import Address, Blocking

__all__ = ["AsyncGraph", "RemoteGraph", "connect", "connect_async", "served_graphs"]

# Of silence, not in all: a long load keeps sending or is polled, and a server that computes this long is stuck.
_SECONDS = 300.0


def connect(
    url: str, *, graph: str | None = None, token: str | None = None, timeout: float | None = _SECONDS
) -> RemoteGraph:
    """Use a graph through a server, with the methods of one that is opened.

    `url` is that of the server, `http://host:port`, or of a graph on it, `http://host:port/graphs/NAME`; `graph` names
    it as well. Without either it is the one that the server has by default. `timeout` is how many seconds to wait for
    an answer; None waits for ever. Nothing is asked before the first call.
    """
    return RemoteGraph(Address.of(url, graph, token, timeout))


def connect_async(
    url: str, *, graph: str | None = None, token: str | None = None, timeout: float | None = _SECONDS
) -> AsyncGraph:
    """Use a graph through a server from an event loop: as `connect`, but every method is awaited."""
    return AsyncGraph(Address.of(url, graph, token, timeout))


def served_graphs(url: str, *, token: str | None = None, timeout: float | None = _SECONDS) -> list[tuple[str, str]]:
    """List the graphs of a server: the id of each, and its address."""
    transport = Blocking(Address.of(url, None, token, timeout))
    try:
        return transport.run(calls.served_graphs())
    finally:
        transport.close()
