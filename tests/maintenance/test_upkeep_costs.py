"""What upkeep costs: requests that follow what there is to do, not how long the history is."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import omnigraph
from omnigraph.graph import Graph
from omnigraph.storage.observe import RequestCounts, counted
from tests.maintenance.scene import cleaned, manifest_versions
from tests.support.mutations import store_of

SCHEMA = "node Person { name: String @key }"
FEW, MANY = 10, 60


def grown(path: Path, commits: int) -> Graph:
    """A graph that has been looked after every now and then, as one is that lives long."""
    graph = omnigraph.init(path, SCHEMA)
    for at in range(commits):
        add(graph, at)
        if at % 10 == 9:
            graph.optimize()
    return graph


def add(graph: Graph, at: int) -> None:
    graph.mutate("query add($n: String) { insert Person { name: $n } }", {"n": f"p{at}"})


def cost(action: Callable[[], object]) -> RequestCounts:
    with counted() as found:
        action()
    return found.requests


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Graph, Graph]:
    directory = tmp_path_factory.mktemp("costs")
    return grown(directory / "few", FEW), grown(directory / "many", MANY)


def test_to_optimize_costs_the_same_however_many_commits_there_are(graphs: tuple[Graph, Graph]) -> None:
    for graph in graphs:
        graph.optimize()
        add(graph, 1000)
    few, many = (cost(graph.optimize) for graph in graphs)
    assert few.writes == many.writes
    assert abs(few.total - many.total) <= 8


def test_with_nothing_to_do_it_makes_few_requests_and_no_commit(graphs: tuple[Graph, Graph]) -> None:
    for graph in graphs:
        graph.optimize()
    commits = [len(graph.commits()) for graph in graphs]
    few, many = (cost(graph.optimize) for graph in graphs)
    indices = [cost(graph.ensure_indices) for graph in graphs]
    assert [one.writes for one in (few, many, *indices)] == [0] * 4
    assert few.total == many.total <= 16
    assert all(one.total <= 16 for one in indices)
    assert [len(graph.commits()) for graph in graphs] == commits


def test_a_write_costs_the_same_after_many_commits_with_upkeep(graphs: tuple[Graph, Graph]) -> None:
    for graph in graphs:
        graph.optimize()
    cleaned(store_of(graphs[1].uri), keep=5)
    few, many = (cost(partial(add, graph, 2000)) for graph in graphs)
    assert abs(few.total - many.total) <= 0.1 * few.total


def test_versions_of_the_manifest_do_not_grow_with_commits_that_are_cleaned_up(tmp_path: Path) -> None:
    graph = omnigraph.init(tmp_path / "g", SCHEMA)
    store = store_of(graph.uri)
    left = []
    for turn in range(3):
        for at in range(12):
            add(graph, 100 * turn + at)
        graph.optimize()
        cleaned(store, keep=5)
        left.append(len(manifest_versions(store)))
    assert max(left) <= 7
    assert len(graph.commits()) == 1 + 3 * 13
