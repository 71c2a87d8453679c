"""Omnigraph: a typed property graph on open columnar storage, versioned like git."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from omnigraph import errors
from omnigraph.version import __version__

if TYPE_CHECKING:
    from omnigraph.client import AsyncGraph, RemoteGraph, connect, connect_async
    from omnigraph.graph import Graph, backups, init, open, restore, verify_backup  # noqa: A004 - the name the API fixes

__all__ = [
    "AsyncGraph",
    "Graph",
    "RemoteGraph",
    "__version__",
    "backups",
    "connect",
    "connect_async",
    "errors",
    "init",
    "open",
    "restore",
    "verify_backup",
]


def __getattr__(name: str) -> Any:
    """Load the engine, or the client, when it is first asked for: the languages and `--help` do without them."""
    if name in ("Graph", "backups", "init", "open", "restore", "verify_backup"):
        from omnigraph import graph  # noqa: PLC0415 - that is the point

        return getattr(graph, name)
    if name in ("AsyncGraph", "RemoteGraph", "connect", "connect_async"):
        from omnigraph import client  # noqa: PLC0415

        return getattr(client, name)
    raise AttributeError(f"module 'omnigraph' has no attribute {name!r}")
