"""What a client sends, and what it says when no answer comes, or one that makes no sense."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

import omnigraph
from omnigraph import RemoteGraph
from omnigraph.errors import (
    NotServedError,
    OmnigraphError,
    OutcomeUnknownError,
    ParameterError,
    ServerAnswerError,
    ServerUnavailableError,
    UnsupportedUriError,
)

SECRET = "s3cret"
ADD = 'query add() { insert Person { name: "x" } }'
CHANGES: dict[str, Callable[[RemoteGraph], object]] = {
    "mutate": lambda graph: graph.mutate(ADD),
    "create_branch": lambda graph: graph.create_branch("x"),
    "merge": lambda graph: graph.merge("x"),
    "apply_schema": lambda graph: graph.apply_schema("node A { a: String @key }"),
    "delete_tag": lambda graph: graph.delete_tag("x"),
}
READS: dict[str, Callable[[RemoteGraph], object]] = {
    "query": lambda graph: graph.query("query q() { match { $p: P } return { $p.a } }"),
    "commits": lambda graph: graph.commits(),
    "export": lambda graph: graph.export(),
    "diff": lambda graph: graph.diff("a", "b"),
    "dry run": lambda graph: graph.merge("x", dry_run=True),
}


@dataclass
class Fake:
    """A server that gives each request the same bytes for an answer, or none, and closes the connection."""

    answer: bytes
    hangs: bool = False
    then: bytes | None = None  # the answer to all but the first, if that is another one
    heads: list[str] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)

    def serve(self, listening: socket.socket) -> None:
        held = []
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                break
            self._read(connection)
            if self.hangs:
                held.append(connection)
                continue
            connection.sendall(self.answer if self.then is None or len(self.heads) == 1 else self.then)
            connection.close()
        for connection in held:
            connection.close()

    def _read(self, connection: socket.socket) -> None:
        data = b""
        while b"\r\n\r\n" not in data:
            data += connection.recv(65536)
        head, _, body = data.partition(b"\r\n\r\n")
        length = [
            int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")
        ]
        while length and len(body) < length[0]:
            body += connection.recv(65536)
        self.heads.append(head.decode())
        self.bodies.append(body)


@contextmanager
def fake(answer: bytes = b"", *, hangs: bool = False, then: bytes | None = None) -> Iterator[tuple[Fake, str]]:
    server = Fake(answer, hangs, then)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.serve, args=(listening,))
        thread.start()
        try:
            yield server, f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


def http(body: bytes, status: str = "200 OK", kind: str = "application/json") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def unused_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return f"http://127.0.0.1:{listening.getsockname()[1]}"


def awaited(name: str, url: str, timeout: float = 120) -> OmnigraphError:
    """What a call raises in an event loop."""

    async def call() -> None:
        async with omnigraph.connect_async(url, timeout=timeout) as graph:
            found: Any = CHANGES.get(name, READS.get(name))
            await found(graph)

    with pytest.raises(OmnigraphError) as caught:
        asyncio.run(call())
    return caught.value


def blocked(name: str, url: str, timeout: float = 120) -> OmnigraphError:
    with pytest.raises(OmnigraphError) as caught, omnigraph.connect(url, timeout=timeout) as graph:
        (CHANGES | READS)[name](graph)
    return caught.value


# No answer


@pytest.mark.parametrize("name", ["mutate", "query"])
@pytest.mark.parametrize("call", [blocked, awaited])
def test_what_could_not_be_sent_has_changed_nothing(call: Callable[[str, str], OmnigraphError], name: str) -> None:
    url = unused_address()

    error = call(name, url)

    assert isinstance(error, ServerUnavailableError)
    assert error.address == url
    assert url in error.message


@pytest.mark.parametrize("name", [*CHANGES, *READS])
def test_a_lost_answer_leaves_open_whether_a_change_was_made(name: str) -> None:
    with fake() as (server, url):
        error = blocked(name, url)

    assert type(error) is (OutcomeUnknownError if name in CHANGES else ServerUnavailableError)
    assert len(server.heads) == 1, "nothing is sent again by itself"


@pytest.mark.parametrize("name", ["mutate", "query"])
@pytest.mark.parametrize("call", [blocked, awaited])
def test_an_answer_that_does_not_come_in_time_is_a_lost_one(
    call: Callable[[str, str, float], OmnigraphError], name: str
) -> None:
    with fake(hangs=True) as (_, url):
        error = call(name, url, 0.3)

    assert type(error) is (OutcomeUnknownError if name == "mutate" else ServerUnavailableError)
    assert error.hint


@pytest.mark.parametrize("call", [blocked, awaited])
@pytest.mark.parametrize("name", CHANGES)
def test_what_makes_a_commit_has_an_id_to_ask_about(call: Callable[[str, str], OmnigraphError], name: str) -> None:
    with fake() as (server, url):
        error = call(name, url)

    (head,) = server.heads
    sent = [line.partition(": ")[2] for line in head.split("\r\n") if line.lower().startswith("omnigraph-operation-id")]
    assert isinstance(error, OutcomeUnknownError)
    assert sent == ([] if name in ("create_branch", "delete_tag") else [error.operation_id])
    assert ("outcome" if sent else "branches") in str(error.hint)


def test_every_change_has_an_id_of_its_own() -> None:
    with fake() as (_, url):
        first, second = (blocked("mutate", url) for _ in range(2))

    assert isinstance(first, OutcomeUnknownError)
    assert isinstance(second, OutcomeUnknownError)
    assert first.operation_id != second.operation_id


def test_a_load_that_has_begun_and_of_which_nothing_is_heard_any_more_has_no_known_outcome() -> None:
    with fake(http(b'{"load_id": "01ARZ3NDEKTSV4RRFFQ69G5FAV"}', "202 Accepted"), then=b"") as (server, url):
        with pytest.raises(OutcomeUnknownError) as caught, omnigraph.connect(url) as graph:
            graph.load("s3://bucket/people.jsonl", mode="merge")
        with pytest.raises(ServerUnavailableError), omnigraph.connect(url) as graph:
            graph.load("s3://bucket/people.jsonl", mode="merge", dry_run=True)

    assert f"Omnigraph-Operation-Id: {caught.value.operation_id}" in server.heads[0]
    assert "Omnigraph-Operation-Id" not in "".join(server.heads[1:])


@pytest.mark.parametrize("call", [blocked, awaited])
def test_an_export_that_breaks_off_is_not_taken_for_a_whole_one(call: Callable[[str, str], OmnigraphError]) -> None:
    part = b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{"a"\n\r\n'
    with fake(part) as (_, url):
        if call is blocked:
            with omnigraph.connect(url) as graph:
                lines = graph.export()
                assert next(lines) == '{"a"\n'
                with pytest.raises(ServerUnavailableError):
                    next(lines)
            return

        async def read() -> None:
            async with omnigraph.connect_async(url) as graph:
                lines = await graph.export()
                assert await anext(lines) == '{"a"\n'
                await anext(lines)

        with pytest.raises(ServerUnavailableError):
            asyncio.run(read())


# Answers that make no sense


@pytest.mark.parametrize("name", ["mutate", "query"])
@pytest.mark.parametrize("call", [blocked, awaited])
def test_what_stands_before_a_server_does_not_know_either(
    call: Callable[[str, str], OmnigraphError], name: str
) -> None:
    with fake(http(b"<html>Bad Gateway</html>", "502 Bad Gateway", "text/html")) as (_, url):
        error = call(name, url)

    assert type(error) is (OutcomeUnknownError if name == "mutate" else ServerAnswerError)


@pytest.mark.parametrize(
    "answer, status",
    [
        (http(b"<html>Hello</html>"), 200),
        (http(b"", "301 Moved Permanently"), 301),
        (http(b"[]", "404 Not Found"), 404),
        (http(b'{"error": "no", "code": "conflict"}', "409 Conflict"), 409),
    ],
)
def test_an_answer_that_is_no_answer_of_ours_is_told_by_its_status(answer: bytes, status: int) -> None:
    with fake(answer) as (_, url):
        error = blocked("commits", url)

    assert isinstance(error, ServerAnswerError)
    assert error.status == status


@pytest.mark.parametrize("name", ["query", "commits", "diff", "dry run", "mutate", "merge", "apply_schema"])
@pytest.mark.parametrize("body", [b"{}", b"[]", b"7", b"<html>Hello</html>", b"\xff\xff\xff\xff\x10\0\0\0" + b"x" * 20])
@pytest.mark.parametrize("call", [blocked, awaited], ids=["sync", "async"])
def test_an_answer_of_another_form_is_told_and_never_taken_for_ours(
    name: str, body: bytes, call: Callable[[str, str], OmnigraphError]
) -> None:
    """Whether a change was made is open then: somebody has said yes to something."""
    with fake(http(body)) as (_, url):
        error = call(name, url)

    assert type(error) is (OutcomeUnknownError if name in CHANGES else ServerAnswerError)
    assert "answer" in error.message
    assert error.hint


# What is sent


@pytest.mark.parametrize("commit", ["a\nX: y", "a\rb", "ü", "\0"])
@pytest.mark.parametrize("connect", [omnigraph.connect, omnigraph.connect_async], ids=["sync", "async"])
def test_a_condition_that_cannot_be_sent_is_refused_before_anything_is(commit: str, connect: Any) -> None:
    async def change(url: str) -> None:
        await connect(url).mutate(ADD, if_commit=commit)

    with fake(http(b"{}")) as (server, url), pytest.raises(ParameterError, match="cannot be sent"):
        asyncio.run(change(url))

    assert server.heads == []


@pytest.mark.parametrize(
    "url, graph, path",
    [
        ("", None, "/branches/review%2Fx%20y"),
        ("/", "people", "/graphs/people/branches/review%2Fx%20y"),
        ("/behind/graphs/people", None, "/behind/graphs/people/branches/review%2Fx%20y"),
    ],
)
def test_a_name_is_one_part_of_the_path_below_the_address_of_the_graph(url: str, graph: str | None, path: str) -> None:
    with fake(http(b"{}")) as (server, address), omnigraph.connect(address + url, graph=graph, token=SECRET) as client:
        client.delete_branch(" review/x y ")

    first, *headers = server.heads[0].split("\r\n")
    assert first == f"DELETE {path} HTTP/1.1"
    assert f"Authorization: Bearer {SECRET}" in headers
    assert any(line.startswith("Omnigraph-Client: python/") for line in headers)


def test_a_token_is_never_shown() -> None:
    graph = omnigraph.connect("http://localhost:1/graphs/people", token=SECRET)

    assert repr(graph) == "<RemoteGraph http://localhost:1/graphs/people>"
    assert SECRET not in repr(vars(graph))
    assert (graph.uri, graph.read_only) == ("http://localhost:1/graphs/people", False)


@pytest.mark.parametrize("address", ["localhost:8080", "s3://bucket/graph", "file:///graph", ""])
def test_an_address_that_is_none_of_a_server_is_refused(address: str) -> None:
    with pytest.raises(UnsupportedUriError) as caught:
        omnigraph.connect(address)

    assert caught.value.uri == address


def test_a_change_under_a_condition_is_never_made_without_it() -> None:
    """A server that is too old to know the route answers that nothing is there."""
    missing = http(b'{"error": "nothing is there", "code": "not_found"}', "404 Not Found")
    with fake(missing) as (server, address), omnigraph.connect(address) as client, pytest.raises(ServerAnswerError):
        client.mutate(ADD, if_commit="01ARZ3NDEKTSV4RRFFQ69G5FAV")

    assert [head.split("\r\n")[0] for head in server.heads] == ["POST /mutate/if-graph-commit HTTP/1.1"]


# What a server does not do


UPKEEP = {name: name for name in ("embed", "optimize", "cleanup", "repair", "doctor")} | {"ensure_indices": "optimize"}


@pytest.mark.parametrize("name, command", UPKEEP.items())
def test_upkeep_says_where_it_is_done(name: str, command: str) -> None:
    with pytest.raises(NotServedError) as caught:
        getattr(omnigraph.connect("http://localhost:1"), name)()

    assert caught.value.operation == name
    assert f"`omnigraph {command} --store URI`" in str(caught.value.hint)


@pytest.mark.parametrize(
    "call",
    [
        lambda graph: graph.load([], mode="merge", engine="spark"),
        lambda graph: graph.merge("x", master="local[2]"),
        lambda graph: graph.export("x.jsonl", conf={"a": "b"}),
        lambda graph: graph.export("x.parquet", format="parquet"),
        lambda graph: graph.export("directory"),
        lambda graph: graph.export(format="csv"),
    ],
)
def test_what_only_the_storage_can_do_is_refused_before_anything_is_sent(call: Callable[[RemoteGraph], object]) -> None:
    with pytest.raises(NotServedError) as caught:
        call(omnigraph.connect("http://localhost:1"))

    assert caught.value.operation in ("engine", "export")


def test_parameters_that_are_none_are_refused_before_anything_is_sent() -> None:
    with pytest.raises(ParameterError):
        omnigraph.connect("http://localhost:1").query("query q() { }", [1, 2])  # type: ignore[arg-type]


@pytest.mark.parametrize("token", ["a\nb", "a\r\nX: y", "\0", "ü"])
def test_a_token_that_can_be_none_is_refused_at_once_and_not_shown(token: str) -> None:
    with pytest.raises(ParameterError) as refused:
        omnigraph.connect("http://127.0.0.1:9", token=token)
    assert refused.value.parameter == "token"
    assert token not in str(refused.value)


def test_an_address_that_can_be_none_is_refused_at_once() -> None:
    with pytest.raises(UnsupportedUriError, match="not the address of a server"):
        omnigraph.connect("http://127.0.0.1:port")
