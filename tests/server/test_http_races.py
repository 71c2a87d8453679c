"""Many clients at once: what must hold whoever comes first."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

import omnigraph
from omnigraph.storage import observe
from tests.support.serving import ADD, AGE, ALL, client, one_graph, people_graph, running

NUMBER = 8


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Path, httpx.Client]]:
    path = tmp_path / "graph"
    with running(one_graph(people_graph(path))) as url, client(url) as http:
        yield path, http


def at_once(http: httpx.Client, bodies: list[dict[str, Any]], route: str = "/mutate") -> list[httpx.Response]:
    with ThreadPoolExecutor(len(bodies)) as pool:
        return list(pool.map(lambda body: http.post(route, json=body), bodies))


@contextmanager
def all_prepared(number: int) -> Iterator[None]:
    """Let nobody stage anything before that many are prepared, each on the same state."""
    meeting, met = threading.Barrier(number, timeout=300), set[int]()

    def hook(operation: str, _: str) -> None:
        me = threading.get_ident()
        if operation.startswith("stage ") and me not in met:
            met.add(me)
            meeting.wait()

    previous = observe.set_write_hook(hook)
    try:
        yield
    finally:
        observe.set_write_hook(previous)


def test_inserts_of_different_keys_all_land(served: tuple[Path, httpx.Client]) -> None:
    _, http = served
    bodies = [{"query": ADD, "params": {"name": f"p{number}"}} for number in range(NUMBER)]
    answers = at_once(http, bodies)

    assert [answer.status_code for answer in answers] == [200] * NUMBER
    assert http.post("/query", json={"query": ALL}).json()["row_count"] == 2 + NUMBER
    chain = http.get("/commits").json()["commits"]
    assert len({one["parent_commit_id"] for one in chain}) == len(chain) == 2 + NUMBER


def test_of_updates_of_one_row_on_one_state_exactly_one_lands(served: tuple[Path, httpx.Client]) -> None:
    path, http = served
    before = omnigraph.open(path).snapshot().entries["node:Person"].table.version
    bodies = [{"query": AGE, "params": {"name": "ann", "age": 100 + number}} for number in range(NUMBER)]
    with all_prepared(NUMBER):
        answers = at_once(http, bodies)

    assert Counter(answer.status_code for answer in answers) == {200: 1, 409: NUMBER - 1}
    for answer in answers:
        if answer.status_code == 409:
            conflict = answer.json()["manifest_conflict"]
            assert (conflict["table_key"], conflict["expected"]) == ("node:Person", before)
            assert conflict["actual"] > before
    won = next(number for number, answer in enumerate(answers) if answer.status_code == 200)
    rows = http.post("/query", json={"query": ALL}).json()["rows"]
    assert rows[0] == {"p.name": "ann", "p.age": 100 + won}


def test_inserts_into_two_types_all_land(served: tuple[Path, httpx.Client]) -> None:
    _, http = served
    company = "query c($name: String) { insert Company { name: $name } }"
    bodies = [{"query": source, "params": {"name": f"n{number}"}} for number in range(4) for source in (ADD, company)]
    answers = at_once(http, bodies)

    assert {answer.status_code for answer in answers} == {200}
    counts = {one["table_key"]: one["row_count"] for one in http.get("/snapshot").json()["tables"]}
    assert (counts["node:Person"], counts["node:Company"]) == (6, 4)


def test_what_another_process_wrote_is_seen_and_not_lost(served: tuple[Path, httpx.Client]) -> None:
    path, http = served
    http.post("/query", json={"query": ALL}).raise_for_status()
    omnigraph.open(path).mutate(AGE, {"name": "ann", "age": 77})

    assert http.post("/query", json={"query": ALL}).json()["rows"][0]["p.age"] == 77
    assert http.post("/mutate", json={"query": AGE, "params": {"name": "bob", "age": 78}}).status_code == 200
    ages = [row["p.age"] for row in http.post("/query", json={"query": ALL}).json()["rows"]]
    assert ages == [77, 78]


def test_a_write_is_read_by_whoever_asks_next(served: tuple[Path, httpx.Client]) -> None:
    _, http = served
    for number in range(5):
        http.post("/mutate", json={"query": ADD, "params": {"name": f"q{number}"}}).raise_for_status()
        assert http.post("/query", json={"query": ALL}).json()["row_count"] == 3 + number


def test_a_storm_of_branches_ends_in_answers_that_are_documented(served: tuple[Path, httpx.Client]) -> None:
    _, http = served

    def storm(number: int) -> list[httpx.Response]:
        name, data = f"b{number % 3}", f'{{"type": "Person", "data": {{"name": "s{number}"}}}}'
        return [
            http.post("/branches", json={"name": name}),
            http.post("/load", json={"data": data, "branch": name, "from": "main"}),
            http.post("/branches/merge", json={"source": name}),
            http.delete(f"/branches/{name}"),
        ]

    with ThreadPoolExecutor(6) as pool:
        answers = [answer for found in pool.map(storm, range(12)) for answer in found]

    assert [answer.text for answer in answers if answer.status_code not in (200, 404, 409)] == []
    assert sum(answer.status_code == 200 for answer in answers) >= 12
