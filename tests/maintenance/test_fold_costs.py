"""What a graph costs that no one looks after: requests that do not follow the number of commits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

import omnigraph
from omnigraph.graph import Graph
from omnigraph.storage.observe import counted
from tests.support.s3 import S3Server

SCHEMA = "node Person { name: String @key } edge Knows: Person -> Person"
LOOKS = 8
WITHIN = 5  # commits from one that folds on its way to the next: together they make 6 versions
PERIOD = 15  # commits from one fold of its own to the next: with the fold they make 16 versions
HOP = 'query hop() { match { $p: Person { name: "p1" } $p knows $q } return { $q.name } }'
Count = Callable[[Callable[[], object]], int]


def grow(graph: Graph, start: int, commits: int) -> None:
    """Commit a person with someone to know, one at a time."""
    for at in range(start, start + commits):
        text = f'insert Person {{ name: "p{at}" }} insert Knows {{ from: "p{at}", to: "p0" }}'
        graph.mutate(f"query add() {{ {text} }}")


def cold_costs(uri: str, count: Count, start: int, upkeep: str) -> tuple[int, int]:
    """The requests of a small commit, and of a query, each through a handle of its own.

    The least of some: the table of the history has a rhythm of its own.
    """

    def commit(at: int) -> None:
        grow(omnigraph.open(uri, upkeep=upkeep), start + at, 1)

    def query() -> None:
        omnigraph.open(uri).query(HOP)

    costs = [(count(partial(commit, at)), count(query)) for at in range(LOOKS)]
    return min(first for first, _ in costs), min(second for _, second in costs)


def locally(action: Callable[[], object]) -> int:
    with counted() as requests:
        action()
    return requests.total


def costs_at_depths(uri: str, count: Count, periods: int, upkeep: str) -> tuple[tuple[int, int], tuple[int, int]]:
    graph = omnigraph.init(uri, SCHEMA, upkeep=upkeep, durability="off")
    grow(graph, 0, PERIOD + 2)
    few = cold_costs(uri, count, 1000, upkeep)
    grow(graph, 100, periods * PERIOD - LOOKS)  # the cold commits were some as well
    return few, cold_costs(uri, count, 2000, upkeep)


def test_cold_writes_and_reads_cost_the_same_after_many_commits_without_optimize(tmp_path: Path) -> None:
    few, many = costs_at_depths(str(tmp_path / "g"), locally, 4, "auto")
    assert all(late <= 1.2 * early for early, late in zip(few, many, strict=True)), (few, many)


def test_without_folds_they_would_not(tmp_path: Path) -> None:
    """Shows that the test above can fail."""
    few, many = costs_at_depths(str(tmp_path / "g"), locally, 4, "off")
    assert all(late > 1.5 * early for early, late in zip(few, many, strict=True)), (few, many)


def test_on_an_object_store_they_cost_the_same_as_well(s3_uri: str, s3_server: S3Server) -> None:
    bucket = s3_uri.removeprefix("s3://").split("/")[0]

    def count(action: Callable[[], object]) -> int:
        before = s3_server.requests(bucket).total()
        action()
        return s3_server.requests(bucket).total() - before

    few, many = costs_at_depths(s3_uri, count, 1, "auto")
    assert all(late <= 1.2 * early for early, late in zip(few, many, strict=True)), (few, many)


def test_a_fold_costs_few_requests_for_each_commit(tmp_path: Path) -> None:
    """Of two tables: it reads each new fragment once, and publishes once."""
    spent = {}
    for upkeep in ("off", "auto"):
        graph = omnigraph.init(tmp_path / upkeep, SCHEMA, upkeep=upkeep, durability="off")
        grow(graph, 0, PERIOD + 1)
        spent[upkeep] = locally(partial(grow, graph, 100, 2 * PERIOD))
    assert (spent["auto"] - spent["off"]) / (2 * PERIOD) <= 9


@pytest.fixture
def s3_requests(s3_uri: str, s3_server: S3Server) -> Callable[[], Counter[str]]:
    bucket = s3_uri.removeprefix("s3://").split("/")[0]
    return lambda: s3_server.requests(bucket)


def counts_of_commits(uri: str, commits: int, requests: Callable[[], Counter[str]]) -> list[Counter[str]]:
    """The requests of each commit of one row into a new graph."""
    graph = omnigraph.init(uri, "node Person { name: String @key }")
    seen = [requests()]
    for at in range(commits):
        graph.mutate(f'query add() {{ insert Person {{ name: "p{at}" }} }}')
        seen.append(requests())
    return [after - before for before, after in pairwise(seen)]


def test_a_fold_on_the_way_costs_about_two_requests_for_each_commit_of_a_table(
    s3_uri: str, s3_requests: Callable[[], Counter[str]]
) -> None:
    """It reads each small file once, writes one, and makes a version: a listing, a transaction and its file."""
    each = counts_of_commits(s3_uri, 3 * WITHIN, s3_requests)
    plain = each[-WITHIN]
    folds = [one - plain for one in each[-WITHIN:] if one.total() > plain.total()]
    assert [one.total() for one in folds] == [WITHIN + 1 + 4]
    assert sum(one.total() for one in folds) / WITHIN <= 2.2


def test_a_fold_of_its_own_costs_about_two_requests_for_each_commit_of_a_table(
    s3_uri: str, s3_requests: Callable[[], Counter[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads each small file once, writes one, and publishes; what this process has made is not looked at again."""
    monkeypatch.setattr("omnigraph.graph._FOLD_WITHIN", 2**32)
    each = counts_of_commits(s3_uri, PERIOD, s3_requests)
    fold = each[-1] - each[-2]
    assert omnigraph.open(s3_uri).commits()[0].is_maintenance
    assert fold["head"] == 0
    assert fold.total() / PERIOD <= 2.1, fold


def test_an_open_and_one_hop_make_at_most_20_requests_on_average(
    s3_uri: str, s3_requests: Callable[[], Counter[str]]
) -> None:
    """Over whole periods of folds; one that finds both tables just folded makes 14, the longest tails make it 22."""
    graph = omnigraph.init(s3_uri, SCHEMA)
    grow(graph, 0, 2 * WITHIN)
    found = []
    for at in range(100, 100 + 2 * WITHIN):
        grow(graph, at, 1)
        before = s3_requests()
        assert omnigraph.open(s3_uri, read_only=True).query(HOP).rows == [{"q.name": "p0"}]
        found.append((s3_requests() - before).total())
    assert sum(found) / len(found) <= 18, found
    assert found[:WITHIN] == found[WITHIN:], "nothing grows"
