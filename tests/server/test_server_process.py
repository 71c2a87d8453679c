"""Many clients at once, and the end of a server in the middle of their work: what was acknowledged is there."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

import omnigraph
from tests.support.server_process import ServerProcess, served, writes_waiting
from tests.support.serving import ADD, ALL, people_graph

ACTORS = ("ann", "bob", "cid", "dan")
SECRETS = {actor: f"s3cr3t-token-of-{actor}" for actor in ACTORS}
JSON = ", ".join(f'"{actor}": {{"token": "{secret}", "role": "write"}}' for actor, secret in SECRETS.items())
TOKENS = {"OMNIGRAPH_SERVER_BEARER_TOKENS_JSON": f"{{{JSON}}}", "OMNIGRAPH_PER_ACTOR_INFLIGHT_MAX": "6"}
CLIENTS, ROUNDS = 64, 4


@dataclass
class Book:
    """What clients have been told: which names were acknowledged with which commits, and every status."""

    acknowledged: dict[str, str] = field(default_factory=dict)
    statuses: Counter[int] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, client: httpx.Client, name: str) -> None:
        answer = client.post("/mutate", json={"query": ADD, "params": {"name": name}})
        self.told(answer)
        if answer.status_code == 200:
            with self.lock:
                self.acknowledged[name] = answer.json()["commit"]["graph_commit_id"]

    def told(self, answer: httpx.Response) -> None:
        with self.lock:
            self.statuses[answer.status_code] += 1

    def check(self, graph: Path) -> None:
        """Everything that was acknowledged is in the chain, by its commit, and can be read."""
        with omnigraph.open(graph) as opened:
            chain = {commit.commit_id for commit in opened.commits()}
            names = {row["p.name"] for row in opened.query(ALL).rows}
        assert set(self.acknowledged.values()) <= chain
        assert self.acknowledged.keys() <= names
        assert len(set(self.acknowledged.values())) == len(self.acknowledged)


def asking(server: ServerProcess, actor: str) -> httpx.Client:
    """Somebody with a token and as many connections as it takes."""
    known = {"Authorization": f"Bearer {SECRETS[actor]}"}
    limits = httpx.Limits(max_connections=CLIENTS)
    return httpx.Client(base_url=server.url, headers=known, timeout=120, limits=limits)


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    return Path(people_graph(tmp_path / "people"))


def test_64_clients_at_once_get_answers_and_nothing_that_was_acknowledged_is_lost(graph: Path, tmp_path: Path) -> None:
    book = Book()
    with served(graph, folder=tmp_path, environment=TOKENS) as server:
        clients = {actor: asking(server, actor) for actor in ACTORS}

        def work(number: int) -> None:
            client = clients[ACTORS[number % len(ACTORS)]]
            for at in range(ROUNDS):
                if (number + at) % 2:
                    book.add(client, f"p{number}-{at}")
                else:
                    book.told(client.post("/query", json={"query": ALL}))

        with ThreadPoolExecutor(CLIENTS) as pool:
            list(pool.map(work, range(CLIENTS)))
        for client in clients.values():
            client.close()
        assert server.end() == 0
        log = server.log()
    assert sum(book.statuses.values()) == CLIENTS * ROUNDS
    assert book.statuses.keys() <= {200, 429}
    assert book.statuses[200] > CLIENTS * ROUNDS / 2  # all reads, and some of the writes
    assert book.acknowledged
    book.check(graph)
    commits = omnigraph.open(graph).commits()
    assert {commit.actor_id for commit in commits if commit.commit_id in set(book.acknowledged.values())} <= set(ACTORS)
    assert not any(secret in log for secret in SECRETS.values())
    assert "Bearer" not in log
    assert "insert Person" not in log


def test_a_server_that_is_told_to_end_finishes_the_write_under_way(graph: Path, tmp_path: Path) -> None:
    with served(graph, folder=tmp_path, environment=TOKENS) as server, asking(server, "ann") as ann:
        book = Book()
        with ThreadPoolExecutor(1) as pool:
            with writes_waiting(graph):
                write = pool.submit(book.add, ann, "last")
                _until(lambda: "omnigraph_http_requests_in_flight 2.0" in ann.get("/metrics").text)
                server.process.send_signal(signal.SIGTERM)
                _until(lambda: _is_closed(server))
            write.result()
        assert book.statuses == {200: 1}
        assert server.process.wait(120) == 0
    book.check(graph)


def _is_closed(server: ServerProcess) -> bool:
    try:
        httpx.get(f"{server.url}/healthz")
    except httpx.TransportError:
        return True
    return False


def _until(true: Callable[[], bool]) -> None:
    while not true():
        time.sleep(0.02)


@pytest.mark.parametrize("number, workers", [(signal.SIGTERM, "2"), (signal.SIGKILL, "1")])
def test_what_was_acknowledged_before_the_end_is_there_after_it(
    graph: Path, tmp_path: Path, number: int, workers: str
) -> None:
    book, enough = Book(), threading.Event()
    with (
        served(graph, "--workers", workers, folder=tmp_path, environment=TOKENS) as server,
        asking(server, "ann") as ann,
    ):
        children = _children(server.process.pid)

        def work(client: int) -> None:
            with suppress(httpx.TransportError):
                for at in range(1000):
                    book.add(ann, f"p{client}-{at}")
                    if len(book.acknowledged) >= 8:
                        enough.set()

        with ThreadPoolExecutor(4) as pool:
            done = [pool.submit(work, client) for client in range(4)]
            assert enough.wait(120)
            code = server.end(number)
            for one in done:
                one.result()
        assert code == (0 if number == signal.SIGTERM else -number)
        assert not any(_is_alive(pid) for pid in children)
        assert book.statuses.keys() <= {200}
    book.check(graph)
    with served(graph, folder=tmp_path, environment=TOKENS) as again, asking(again, "bob") as bob:
        names = {row["p.name"] for row in bob.post("/query", json={"query": ALL}).json()["rows"]}
        assert book.acknowledged.keys() <= names
        book.add(bob, "afterwards")
    book.check(graph)


def test_several_processes_serve_together_and_one_that_dies_is_replaced(graph: Path, tmp_path: Path) -> None:
    with served(graph, "--workers", "2", folder=tmp_path, environment=TOKENS) as server, asking(server, "ann") as ann:
        book = Book()
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda at: book.add(ann, f"a{at}"), range(12)))
        assert book.statuses.keys() <= {200, 429}
        assert _requests(ann) == 12  # those of both processes
        (first, second) = _children(server.process.pid)
        os.kill(first, signal.SIGKILL)
        _until(lambda: len(_children(server.process.pid) - {first}) == 2)
        with asking(server, "bob") as bob:
            book.add(bob, "later")
        (third,) = _children(server.process.pid) - {second}
        assert server.end(signal.SIGKILL) == -signal.SIGKILL
        _until(lambda: not any(_is_alive(pid) for pid in (second, third)))  # they do not stay behind
    book.check(graph)
    assert any(line["event"].startswith("a server process has ended") for line in server.log_lines())


def _requests(client: httpx.Client) -> float:
    lines = client.get("/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("omnigraph_http_requests_total{"))


def _children(pid: int) -> set[int]:
    """The processes of a server: not the one that python keeps to clean up after them."""
    found = (int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    return {child for child in found if "spawn_main" in _command(child) and _is_alive(child)}


def _command(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
