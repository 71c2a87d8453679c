"""Quick queries are answered on the event loop, as the application would answer them; it answers all others."""

from __future__ import annotations

import json
import logging
import math
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

import omnigraph
from omnigraph.server import inline_query, latency
from omnigraph.server.inline_query import InlineQueries
from omnigraph.server.latency import LatencyTracker
from omnigraph.server.replies import Rows
from tests.support.serving import ADD, AGE, bearer, client, one_graph, people_graph, running

QUERY = "query q($n: String) { match { $p: Person { name: $n } } return { $p.name, $p.age } }"
JSON = {"Content-Type": "application/json"}


def question(name: str = "ann", **more: object) -> bytes:
    return json.dumps({"query": QUERY, "params": {"n": name}, **more}).encode()


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[Rows | None]:
    """What came of each query that was tried on the event loop."""
    seen: list[Rows | None] = []
    run = InlineQueries._run

    def recorded(self: InlineQueries, *request: Any) -> Rows | None:
        seen.append(run(self, *request))
        return seen[-1]

    monkeypatch.setattr(InlineQueries, "_run", recorded)
    return seen


@pytest.fixture
def at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every query counts as one that was quick."""
    monkeypatch.setattr(latency, "QUICK_RUNS", 0)


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
    inline = [answer(both[0], prefix + path, body, headers) for _ in range(2)][-1]  # the second time it is in memory
    monkeypatch.setattr(InlineQueries, "_run", lambda *_: None)

    assert inline == answer(both[1], prefix + path, body, headers)


# Which -----------------------------------------------------------------------------------------------


def test_a_query_runs_inline_once_it_was_quick_many_times(
    tmp_path: Any, found: list[Rows | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(latency, "QUICK_SECONDS", math.inf)  # however busy the machine is
    runs = latency.QUICK_RUNS
    with running(one_graph(people_graph(tmp_path / "graph"))) as address, client(address) as http:
        answers = [http.post("/query", content=question(), headers=JSON).json()["rows"] for _ in range(runs + 3)]

    assert answers == [[{"p.name": "ann", "p.age": 30}]] * (runs + 3)
    assert [one is None for one in found] == [True] * runs + [False] * 3


@pytest.mark.usefixtures("at_first")
def test_what_somebody_else_has_changed_is_seen_by_the_next_question(tmp_path: Any, found: list[Rows | None]) -> None:
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
def test_what_takes_long_is_left_to_the_application(tmp_path: Any, found: list[Rows | None], query: str) -> None:
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
    known = LatencyTracker()
    for _ in range(latency.QUICK_RUNS):
        assert not known.is_quick(7)
        with known.measure(7):
            pass
    assert known.is_quick(7)
    assert not known.is_quick(8)

    monkeypatch.setattr(latency, "QUICK_SECONDS", 0.0)
    with known.measure(7):
        pass
    assert not known.is_quick(7)


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
@pytest.mark.parametrize("cut", [None, 0, 10], ids=["with the head", "after it", "in parts"])
def test_the_body_may_come_with_the_head_or_after_it(
    served: tuple[str, int], found: list[Rows | None], cut: int | None
) -> None:
    body = question()
    with socket.create_connection(served, 120) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for part in [head(body) + body] if cut is None else [head(body), body[:cut], body[cut:]]:
            connection.sendall(part)
            time.sleep(0.05)  # so that the parts arrive one by one
        answered = received(connection, 1)

    assert answered.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b'"p.name":"ann"' in answered
    assert len(found) <= 1  # a body in parts is left to the application


@pytest.mark.usefixtures("at_first")
@pytest.mark.parametrize("cut", [0, 20, 200], ids=["whole", "in a head", "in a body"])
def test_requests_that_are_sent_together_are_answered_in_their_order(
    served: tuple[str, int], found: list[Rows | None], cut: int
) -> None:
    names = ["ann", "bob", "Zoe", "bob", "ann"]
    sent = b"".join(head(question(name)) + question(name) for name in names)
    with socket.create_connection(served, 120) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(2):
            connection.sendall(sent[: len(sent) - cut])
            time.sleep(0.05)
            connection.sendall(sent[len(sent) - cut :])
            parts = received(connection, len(names)).split(b"HTTP/1.1 200 OK")[1:]
            rows = [json.loads(part.partition(b"\r\n\r\n")[2])["rows"] for part in parts]
            assert [row[0]["p.name"] if row else None for row in rows] == ["ann", "bob", None, "bob", "ann"]

    assert len(found) >= len(names)


@pytest.mark.usefixtures("at_first")
def test_a_long_body_may_come_together_with_the_next_head(served: tuple[str, int]) -> None:
    long, short = question(x="y" * 40_000), question()
    with socket.create_connection(served, 120) as connection:
        connection.sendall(head(long) + long + head(short)[:20])
        time.sleep(0.05)
        connection.sendall(head(short)[20:] + short)
        answered = received(connection, 1)

    assert answered.count(b"HTTP/1.1 400") == 1  # there is no member x
    assert answered.count(b"HTTP/1.1 200 OK") == 1


@pytest.mark.usefixtures("at_first")
@pytest.mark.parametrize(
    "more, answer", [("Connection: close", b"connection: close"), ("Expect: 100-continue", b"HTTP/1.1 100 Continue")]
)
def test_what_a_client_wants_of_the_connection_is_done(
    served: tuple[str, int], found: list[Rows | None], more: str, answer: bytes
) -> None:
    body = question()
    with socket.create_connection(served, 120) as connection:
        connection.sendall(head(body, more) + body)
        answered = received(connection, 1)

    assert b'"p.name":"ann"' in answered
    assert answer in answered
    assert found[0] is not None


def _is_open(place: tuple[str, int]) -> bool:
    try:
        socket.create_connection(place, 120).close()
    except ConnectionError:
        return False
    return True


@pytest.mark.usefixtures("at_first")
def test_a_request_whose_head_has_come_is_answered_though_the_server_ends(tmp_path: Any) -> None:
    serving, body = running(one_graph(people_graph(tmp_path / "graph"))), question()
    address = httpx.URL(serving.__enter__())
    place = (address.host, address.port or 0)
    ending = threading.Thread(target=serving.__exit__, args=(None, None, None))
    with socket.create_connection(place, 120) as connection:
        connection.sendall(head(body, "Expect: 100-continue"))
        assert connection.recv(65536).startswith(b"HTTP/1.1 100 Continue")  # so the head has come
        ending.start()
        while _is_open(place):  # the server ends: it accepts no more connections
            pass
        connection.sendall(body)
        answered = received(connection, 1)
    ending.join(120)

    assert b"connection: close" in answered
    assert not ending.is_alive()


@pytest.mark.usefixtures("at_first")
def test_a_client_that_goes_away_before_its_body_comes_harms_nobody(served: tuple[str, int]) -> None:
    body = question()
    for _ in range(3):
        with socket.create_connection(served, 120) as connection:
            connection.sendall(head(body) + body[:10])
    with socket.create_connection(served, 120) as connection:
        connection.sendall(head(body) + body)
        assert b'"p.name":"ann"' in received(connection, 1)


def test_a_client_without_a_token_is_refused_before_its_body_is_read(served: tuple[str, int]) -> None:
    with socket.create_connection(served, 10) as connection:
        connection.sendall(head(question()).replace(b"read-token", b"no-token"))
        assert connection.recv(65536).startswith(b"HTTP/1.1 401 ")


# Told like all others ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("at_first")
def test_it_is_counted_and_logged_and_has_an_id(
    tmp_path: Any, found: list[Rows | None], caplog: pytest.LogCaptureFixture
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
def test_a_fault_is_answered_and_logged_like_any_other(
    served: tuple[str, int], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inline_query, "about_graph", lambda *_: 1 // 0)
    with client(f"http://{served[0]}:{served[1]}") as http:
        answer = http.post("/query", content=question(), headers=JSON)
        http.get("/healthz")  # the log line is written right after the answer, so it is there now

    assert (answer.status_code, answer.json()["code"]) == (500, "internal")
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == ["request"]
