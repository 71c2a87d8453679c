"""How edges are found: by adjacency or by lookups, which one is taken when, and that it never changes an answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import omnigraph
from omnigraph.api.rows import PlanStep
from omnigraph.errors import ParameterError, ResourceLimitError
from omnigraph.graph import Graph
from omnigraph.query import expansion, memory
from tests.query.conftest import read_late
from tests.query.scene import PEOPLE, edge
from tests.support.mutations import KNOWS, build_index, store_of

FRIENDS = "query q($n: String) { match { $p: Person { name: $n }  $p knows $f } return { $f.name } order { $f.name } }"
WALKS = """query q() {
    match { $a: Person  $a $e:knows $b  $b $f:knows $c }
    return { count($c) as walks, count($a) as same }
}"""
ADJACENCY, INDEX = "adjacency", "index"


def steps(graph: Graph, source: str, **parameters: Any) -> list[PlanStep]:
    return [step for step in graph.explain(source, parameters).steps if step.kind == "Expand"]


@pytest.fixture
def large(people: Graph, monkeypatch: pytest.MonkeyPatch) -> Graph:
    """A graph that counts as large, with a loop, parallel edges and an index on both ends."""
    people.load(
        [edge("Knows", *ends) for ends in (("Bob", "Bob"), ("Alice", "Bob"), ("Diana", "Alice"))], mode="append"
    )
    for column in ("src", "dst"):
        build_index(store_of(people.uri), KNOWS, column)
    monkeypatch.setattr(expansion, "SMALL_EDGES", 0)
    monkeypatch.setattr(expansion, "_LOOKUP", 0.3)
    read_late(monkeypatch)
    return people


def test_few_nodes_are_looked_up_until_that_has_cost_as_much_as_the_adjacency(large: Graph) -> None:
    modes = []
    for _ in range(12):
        (step,) = steps(large, FRIENDS, n="Alice")
        modes.append(str(step.expansion))
        assert (step.rows, bool(step.reason)) == (2, True)

    assert modes[0] == INDEX
    assert modes[-1] == ADJACENCY
    assert modes == sorted(modes, reverse=True), "once it is built, the adjacency stays"


def test_edges_that_no_index_covers_are_not_looked_up(people: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expansion, "SMALL_EDGES", 0)
    (step,) = steps(people, FRIENDS, n="Alice")
    assert (step.expansion, step.reason) == (ADJACENCY, "no index covers the edges")


def test_a_small_table_is_read_whole(people: Graph) -> None:
    first, second = (steps(people, FRIENDS, n="Alice")[0] for _ in range(2))
    assert (first.reason, second.reason) == ("there are only 3 edges", "it is in memory")
    assert first.requests > second.requests == 0


@pytest.mark.parametrize("mode", [ADJACENCY, INDEX])
def test_the_environment_can_insist(large: Graph, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    monkeypatch.setenv(expansion.VARIABLE, mode)
    (step,) = steps(large, FRIENDS, n="Alice")
    assert (step.expansion, step.rows) == (mode, 2)


def test_the_environment_cannot_insist_on_what_there_is_not(people: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(expansion.VARIABLE, "guess")
    with pytest.raises(ParameterError, match="OMNIGRAPH_EXPANSION is 'guess'"):
        people.query(FRIENDS, {"n": "Alice"})


QUERIES = [
    "$a: Person  $a knows $b",
    "$a: Person  $b knows $a",
    "$a: Person  $a <knows> $b",
    "$a: Person  $a $e:knows $b",
    "$a: Person  $a knows{1,2} $b",
    "$a: Person  $a knows{2,3} $b",
    "$a: Person  $a <knows>{1,3} $b",
    "$a: Person  $b knows{1,2} $a",
    "$a: Person  $b: Person  $a knows{1,2} $b",
    "$a: Person  $b: Person  $a $e:knows $b",
    "$a: Person  $a knows $b  not { $b knows{1,2} $a }",
    "$a: Person  $a worksAt{1,2} $c  $b worksAt $c",
    "$a: Person  $b: Person  not { $a knows $b }",
]


@pytest.mark.parametrize("pattern", QUERIES)
def test_both_ways_find_the_same_rows_and_the_same_number(
    large: Graph, monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    rows = f"query q() {{ match {{ {pattern} }} return {{ $a.name, $b.name }} order {{ $a.name, $b.name }} }}"
    number = f"query q() {{ match {{ {pattern} }} return {{ count($a) as n }} }}"
    found = []
    for mode in (ADJACENCY, INDEX):
        monkeypatch.setenv(expansion.VARIABLE, mode)
        graph = omnigraph.open(large.uri, read_only=True)
        found.append(graph.query(rows).rows)
        assert graph.query(number).rows == [{"n": len(found[-1])}]
    assert found[0] == found[1]
    assert found[0]


# Counting


def test_walks_are_counted_without_being_made(people: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    many = 300
    people.load([edge("Knows", "Alice", "Bob") for _ in range(many)], mode="append")
    people.load([edge("Knows", "Bob", "Alice") for _ in range(many)], mode="append")
    monkeypatch.setenv(memory.VARIABLE, "500000")
    # Alice to Bob 301, Bob to Alice 300, Alice to Charlie 1, Bob to Diana 1.
    walks = 301 * 301 + 300 * 302

    assert people.query(WALKS).rows == [{"walks": walks, "same": walks}]


# Memory


def test_a_product_that_is_too_large_is_refused_with_its_size(
    copy_of: Callable[[str], Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = copy_of("people")
    graph.load([{"type": "Person", "data": {"name": f"n{at}"}} for at in range(400)], mode="append")
    monkeypatch.setenv(memory.VARIABLE, "1000000")
    count = 400 + len([record for record in PEOPLE if record.get("type") == "Person"])

    with pytest.raises(ResourceLimitError) as caught:
        graph.query("query q() { match { $a: Person  $b: Person } return { $a.name, $b.name } }")

    assert (caught.value.limit, caught.value.actual) == (1_000_000, count * count * 3 * 8)
    assert f"{count * count:,} rows" in str(caught.value)
    assert memory.VARIABLE in str(caught.value.hint)


def test_a_limit_that_is_no_number_is_refused(people: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_ALWAYS", 0)
    monkeypatch.setenv(memory.VARIABLE, "lots")
    with pytest.raises(ParameterError, match="OMNIGRAPH_QUERY_MEMORY is 'lots'"):
        people.query(FRIENDS, {"n": "Alice"})


def test_memory_that_the_system_does_not_have_is_an_error_with_its_size() -> None:
    with pytest.raises(MemoryError) as caught:
        np.empty((2**50, 3), np.int64)

    error = memory.out_of_memory(caught.value)

    assert (error.actual, error.limit) == (2**50 * 3 * 8, memory.limit())
