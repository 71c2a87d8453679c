"""Warm questions are answered where they arrive, as the application would answer them; it answers all others."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

import omnigraph
from omnigraph.server import connections, quick, shortcut
from omnigraph.server.quick import Quick
from omnigraph.server.shortcut import Arriving, Found, Shortcut
from tests.support.serving import ADD, AGE, bearer, client, one_graph, people_graph, running

QUERY = "query q($n: String) { match { $p: Person { name: $n } } return { $p.name, $p.age } }"
JSON = {"Content-Type": "application/json"}


def question(name: str = "ann", **more: object) -> bytes:
    return json.dumps({"query": QUERY, "params": {"n": name}, **more}).encode()


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[Found | None]:
    """What came of each request that was looked at here first."""
    seen: list[Found | None] = []
    find = Shortcut.find

    def seeing(self: Shortcut, request: Arriving, client: Any) -> Found | None:
        seen.append(find(self, request, client))
        return seen[-1]

    monkeypatch.setattr(Shortcut, "find", seeing)
    return seen


@pytest.fixture
def at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every question counts as one that was quick."""
    monkeypatch.setattr(quick, "_OFTEN", 0)


# The same answers ----------------------------------------------------------------------------------

REQUESTS: dict[str, tuple[str, bytes, dict[str, str]]] = {
    "right": ("/query", question(), JSON),
    "nobody of that name": ("/query", question("Zoe"), JSON),
    "as Arrow": ("/query", question(), {**JSON, "Accept": "application/vnd.apache.arrow.stream"}),
    "of a branch": ("/query", question(branch="main"), JSON),
    "an older spelling": ("/read", json.dumps({"query_source": QUERY, "params": {"n": "ann"}}).encode(), JSON),
    "an unknown member": ("/query", b'{"query": "x", "colour": 1}', JSON),
    "a member of another type": ("/query", b'{"query": 7}', JSON),
    "no object": ("/query", b"[]", JSON),
    "no JSON": ("/query", b"{", JSON),
    "no number": ("/query", b'{"query": "x", "params": {"n": NaN}}', JSON),
    "nothing": ("/query", b"", JSON),
    "no UTF-8": ("/query", b'{"query": "\xff"}', JSON),
    "too deep": ("/query", b'{"query": "x", "params": ' + b'{"a":' * 70 + b"1" + b"}" * 71, JSON),
    "too large": ("/query", b'{"query": "' + b"x" * 2**20 + b'"}', JSON),
    "another kind": ("/query", question(), {"Content-Type": "text/plain"}),
    "a query that is wrong": ("/query", json.dumps({"query": "query q() {"}).encode(), JSON),
    "a query that changes": ("/query", json.dumps({"query": ADD}).encode(), JSON),
    "an unknown parameter": ("/query?colour=red", question(), JSON),
    "a condition": ("/query", question(), {**JSON, "Omnigraph-If-Graph-Commit": "x"}),
    "nobody who is known": ("/query", question(), {**JSON, "Authorization": "Bearer none"}),
    "somebody of another graph": ("/query", question(), {**JSON, **bearer("other")}),
}


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[httpx.Client, httpx.Client]]:
    """Two servers of one graph: one answers at once what it can, one leaves all to the application."""
    uri = people_graph(tmp_path_factory.mktemp("short") / "graph")
    with ExitStack() as stack:
        first = stack.enter_context(running(one_graph(uri)))
        second = stack.enter_context(running(one_graph(uri)))
        yield stack.enter_context(client(first)), stack.enter_context(client(second))


def answer(http: httpx.Client, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes, list[str]]:
    got = http.post(path, content=body, headers=headers)
    return got.status_code, got.content, sorted(set(got.headers) - {"x-request-id", "date"})


@pytest.mark.usefixtures("at_first")
@pytest.mark.parametrize("prefix", ["", "/graphs/default", "/graphs/none"])
@pytest.mark.parametrize("name", REQUESTS)
def test_both_ways_give_the_same_answer(
    both: tuple[httpx.Client, httpx.Client], name: str, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, body, headers = REQUESTS[name]
    at_once = [answer(both[0], prefix + path, body, headers) for _ in range(2)][-1]  # the second time it is in memory
    monkeypatch.setattr(Shortcut, "arriving", lambda *_: None)

    assert at_once == answer(both[1], prefix + path, body, headers)


# Which -----------------------------------------------------------------------------------------------


def test_a_question_is_answered_at_once_when_it_was_quick_many_times(tmp_path: Any, found: list[Found | None]) -> None:
    with running(one_graph(people_graph(tmp_path / "graph"))) as address, client(address) as http:
        answers = [http.post("/query", content=question(), headers=JSON).json()["rows"] for _ in range(60)]

    assert answers == [[{"p.name": "ann", "p.age": 30}]] * 60
    assert found[: quick._OFTEN] == [None] * quick._OFTEN
    assert any(found[quick._OFTEN :])


@pytest.mark.usefixtures("at_first")
def test_what_somebody_else_has_changed_is_seen_by_the_next_question(tmp_path: Any, found: list[Found | None]) -> None:
    uri = people_graph(tmp_path / "graph")
    with running(one_graph(uri)) as address, client(address) as http, omnigraph.open(uri) as graph:
        for age in range(5):
            graph.mutate(AGE, {"name": "ann", "age": age})
            ages = [http.post("/query", content=question(), headers=JSON).json()["rows"][0]["p.age"] for _ in range(3)]
            assert ages == [age] * 3

    assert [one is None for one in found] == [True, False, False] * 5


@pytest.mark.usefixtures("at_first")
@pytest.mark.parametrize(
    "query",
    [
        "query all() { match { $p: Person } return { $p.name } }",
        'query far() { match { $p: Person { name: "p1" } $p knows{1,3} $q } return { $q.name } }',
    ],
    ids=["many rows", "many steps"],
)
def test_what_takes_long_is_left_to_the_application(tmp_path: Any, found: list[Found | None], query: str) -> None:
    graph = omnigraph.init(tmp_path / "graph", "node Person { name: String @key }  edge Knows: Person -> Person")
    lines = [json.dumps({"type": "Person", "data": {"name": f"p{at}"}}) for at in range(1_500)]
    knows = [json.dumps({"edge": "Knows", "from": f"p{at}", "to": f"p{at + 1}"}) for at in range(5)]
    data = tmp_path / "data.jsonl"
    data.write_text("\n".join([*lines, *knows]))
    graph.load(data, mode="append", engine="local")
    with running(one_graph(graph.uri)) as address, client(address) as http:
        for _ in range(3):
            assert http.post("/query", json={"query": query}).status_code == 200

    assert found == [None] * 3


def test_a_question_that_took_long_once_must_be_quick_many_times_again(monkeypatch: pytest.MonkeyPatch) -> None:
    known = Quick()
    for _ in range(quick._OFTEN):
        assert not known.knows(7)
        with known.timed(7):
            pass
    assert known.knows(7)
    assert not known.knows(8)

    monkeypatch.setattr(quick, "_QUICK_SECONDS", 0.0)
    with known.timed(7):
        pass
    assert not known.knows(7)


# Over connections --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    uri = people_graph(tmp_path_factory.mktemp("wire") / "graph")
    with running(one_graph(uri)) as address:
        with client(address) as http:
            http.post("/query", content=question(), headers=JSON)  # so that it is in memory
        url = httpx.URL(address)
        assert url.port is not None
        yield url.host, url.port


def head(body: bytes, *more: str) -> bytes:
    lines = ["POST /query HTTP/1.1", "Host: x", "Authorization: Bearer read-token", "Content-Type: application/json"]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", *more, "", ""]).encode()


def received(connection: socket.socket, rows: int) -> bytes:
    """All that comes until so many answers are complete."""
    data = b""
    while data.count(b"graph_commit_id") < rows or not data.endswith(b"}"):
        part = connection.recv(65536)
        assert part, data
        data += part
    return data


@pytest.mark.usefixtures("at_first")
@pytest.mark.parametrize("pause, looked_at", [(None, 1), (0.001, 1), (0.2, 0)], ids=["with it", "soon", "late"])
def test_the_body_may_come_with_the_head_or_after_it(
    served: tuple[str, int],
    found: list[Found | None],
    pause: float | None,
    looked_at: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if looked_at:
        monkeypatch.setattr(connections, "_BODY_SECONDS", 30)  # however busy the machine is
    body = question()
    with socket.create_connection(served, 10) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if pause is None:
            connection.sendall(head(body) + body)
        else:
            connection.sendall(head(body))
            time.sleep(pause)
            connection.sendall(body)
        answered = received(connection, 1)

    assert answered.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b'"p.name":"ann"' in answered
    assert len(found) == looked_at


@pytest.mark.usefixtures("at_first")
@pytest.mark.parametrize("cut", [0, 20, 200], ids=["whole", "in a head", "in a body"])
def test_requests_that_are_sent_together_are_answered_in_their_order(
    served: tuple[str, int], found: list[Found | None], cut: int
) -> None:
    names = ["ann", "bob", "Zoe", "bob", "ann"]
    sent = b"".join(head(question(name)) + question(name) for name in names)
    with socket.create_connection(served, 10) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(2):
            connection.sendall(sent[: len(sent) - cut])
            time.sleep(0.05)
            connection.sendall(sent[len(sent) - cut :])
            parts = received(connection, len(names)).split(b"HTTP/1.1 200 OK")[1:]
            rows = [json.loads(part.partition(b"\r\n\r\n")[2])["rows"] for part in parts]
            assert [row[0]["p.name"] if row else None for row in rows] == ["ann", "bob", None, "bob", "ann"]

    assert found == []


@pytest.mark.usefixtures("at_first")
def test_a_long_body_may_come_together_with_the_next_head(served: tuple[str, int]) -> None:
    long, short = question(x="y" * 40_000), question()
    with socket.create_connection(served, 10) as connection:
        connection.sendall(head(long) + long + head(short)[:20])
        time.sleep(0.05)
        connection.sendall(head(short)[20:] + short)
        answered = received(connection, 1)

    assert answered.count(b"HTTP/1.1 400") == 1  # there is no member x
    assert answered.count(b"HTTP/1.1 200 OK") == 1


@pytest.mark.usefixtures("at_first")
@pytest.mark.parametrize("more", ["Connection: close", "Expect: 100-continue"])
def test_a_request_that_wants_more_than_an_answer_is_left_to_the_application(
    served: tuple[str, int], found: list[Found | None], more: str
) -> None:
    body = question()
    with socket.create_connection(served, 10) as connection:
        connection.sendall(head(body, more) + body)
        answered = received(connection, 1)

    assert b'"p.name":"ann"' in answered
    assert found == []


@pytest.mark.usefixtures("at_first")
def test_a_request_whose_head_has_come_is_answered_though_the_server_ends(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "_BODY_SECONDS", 60)
    serving, body = running(one_graph(people_graph(tmp_path / "graph"))), question()
    address = httpx.URL(serving.__enter__())
    ending = threading.Thread(target=serving.__exit__, args=(None, None, None))
    with socket.create_connection((address.host, address.port or 0), 10) as connection:
        connection.sendall(head(body))
        time.sleep(0.1)
        ending.start()
        time.sleep(0.5)
        connection.sendall(body)
        answered = received(connection, 1)
    ending.join(30)

    assert b"connection: close" in answered
    assert not ending.is_alive()


@pytest.mark.usefixtures("at_first")
def test_a_client_that_goes_away_before_its_body_comes_harms_nobody(served: tuple[str, int]) -> None:
    body = question()
    for _ in range(3):
        with socket.create_connection(served, 10) as connection:
            connection.sendall(head(body) + body[:10])
    with socket.create_connection(served, 10) as connection:
        connection.sendall(head(body) + body)
        assert b'"p.name":"ann"' in received(connection, 1)


# Told like all others ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("at_first")
def test_it_is_counted_and_logged_and_has_an_id(
    tmp_path: Any, found: list[Found | None], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "omnigraph.server.requests")
    with running(one_graph(people_graph(tmp_path / "graph"))) as address, client(address, "read") as http:
        path = "/graphs/default/query"
        answers = [http.post(path, content=question(), headers={**JSON, "X-Request-Id": f"r{at}"}) for at in range(3)]
        numbers = http.get("/metrics").text

    assert found[-1] is not None
    assert [one.headers["x-request-id"] for one in answers] == ["r0", "r1", "r2"]
    told = [record.__dict__["fields"] for record in caplog.records if record.message == "request"]
    told = [one for one in told if one["request_id"] in ("r0", "r1", "r2")]
    same = ["method", "route", "graph", "status", "bytes", "actor", "client"]
    assert [[one[name] for name in same] for one in told] == [
        ["POST", "/query", "default", 200, len(answers[0].content), "act-read", "127.0.0.1"]
    ] * 3
    assert [one["request_id"] for one in told] == ["r0", "r1", "r2"]
    assert 'omnigraph_http_requests_total{method="POST",route="/query",status="200"} 3.0' in numbers


@pytest.mark.usefixtures("at_first")
def test_a_fault_in_the_short_way_is_logged_and_the_application_answers(
    served: tuple[str, int], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shortcut, "about_graph", lambda *_: 1 // 0)
    body = question()
    with socket.create_connection(served, 10) as connection:
        connection.sendall(head(body) + body)
        assert b'"p.name":"ann"' in received(connection, 1)

    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == ["the short way has failed"]
