"""A real server in a thread, on a port that the kernel chooses."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

import omnigraph
from omnigraph.api.access import Principal, Role
from omnigraph.server import worker
from omnigraph.server.settings import ServedGraph, Serving
from omnigraph.server.tokens import Token, Tokens, digest_of

ROLES = ("read", "write", "admin")
SCHEMA = """
node Person { name: String @key  age: I32? }
node Company { name: String @key }
edge Knows: Person -> Person { since: Date? }
edge WorksAt: Person -> Company
"""
PEOPLE = """{"type": "Person", "data": {"name": "ann", "age": 30}}
{"type": "Person", "data": {"name": "bob", "age": 40}}
{"edge": "Knows", "from": "ann", "to": "bob", "data": {}}
"""
ALL = "query all() { match { $p: Person } return { $p.name, $p.age } order { $p.name asc } }"
ADD = "query add($name: String, $age: I32?) { insert Person { name: $name, age: $age } }"
AGE = "query age($name: String, $age: I32) { update Person set { age: $age } where name = $name }"


def bearer(role: str) -> dict[str, str]:
    """The header of somebody with a role: the token of `admin` is `admin-token`, and its actor `act-admin`."""
    return {"Authorization": f"Bearer {role}-token"}


def known_tokens() -> Tokens:
    people = {role: Principal(f"act-{role}", Role(role)) for role in ROLES}
    people["other"] = Principal("act-other", Role.ADMIN, frozenset({"elsewhere"}))
    return Tokens(tuple(Token(who, digest_of(f"{name}-token")) for name, who in people.items()))


def people_graph(path: Path) -> str:
    """Make a small graph: two people who know each other."""
    graph = omnigraph.init(path, SCHEMA)
    data = path.parent / f"{path.name}.jsonl"
    data.write_text(PEOPLE)
    graph.load(data, mode="merge")
    return str(path)


def one_graph(uri: str, **more: Any) -> Serving:
    """What serves one graph to people with tokens."""
    return Serving({"default": ServedGraph(uri)}, "default", **{"tokens": known_tokens(), **more})


@contextmanager
def running(serving: Serving) -> Iterator[str]:
    """Serve; give the address."""
    ready = threading.Event()
    server = worker.create_server(serving, ready.set)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        thread = threading.Thread(target=server.run, args=([listening],), name="omnigraph-test-server")
        thread.start()
        try:
            assert ready.wait(300), "the server does not begin"
            yield f"http://127.0.0.1:{port}"
        finally:
            server.should_exit = True
            thread.join()


def client(address: str, role: str | None = "admin", headers: Mapping[str, str] | None = None) -> httpx.Client:
    """Somebody who asks a server."""
    known = {} if role is None else bearer(role)
    return httpx.Client(base_url=address, headers={**known, **(headers or {})}, timeout=300)
