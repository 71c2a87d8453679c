"""A read that is asked for at once comes from memory, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

import omnigraph
from omnigraph import Graph
from omnigraph.storage.at_once import TakesLongError, at_once
from omnigraph.storage.counters import counted

SCHEMA = "node Person { name: String @key  age: I32? }  edge Knows: Person -> Person"
ONE = 'query one() { match { $p: Person { name: "p1" } } return { $p.age } }'
FRIENDS = 'query f() { match { $p: Person { name: "p1" } $p knows $q } return { $q.name } }'
OLD = "query old($age: I32) { match { $p: Person { age: $age } } return { $p.name } }"
PAIRS = "query pairs() { match { $p: Person { age: 1 } $q: Person { age: 1 } } return { $p.name, $q.name } }"
NEAR = 'query near() { match { $p: Person { name: "p1" } $p knows{1,2} $q } return { $q.name } }'


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    graph = omnigraph.init(tmp_path / "graph", SCHEMA)
    people = "\n".join(f'{{"type": "Person", "data": {{"name": "p{at}", "age": {at % 50}}}}}' for at in range(2_500))
    friends = '\n{"edge": "Knows", "from": "p1", "to": "p2"}'
    (tmp_path / "data.jsonl").write_text(people + friends)
    graph.load(tmp_path / "data.jsonl", mode="append", engine="local")
    return graph


def asked_at_once(graph: Graph, query: str, **parameters: object) -> list[dict[str, object]]:
    with at_once():
        return graph.query(query, parameters).rows


@pytest.mark.parametrize("query", [ONE, FRIENDS])
def test_what_is_in_memory_is_answered_without_a_request_but_the_probe(graph: Graph, query: str) -> None:
    rows = graph.query(query).rows
    with counted() as requests:
        assert asked_at_once(graph, query) == rows
    assert requests.total <= 1


def test_what_is_not_in_memory_is_not_read(graph: Graph) -> None:
    cold = omnigraph.open(graph.uri)
    with counted() as requests, pytest.raises(TakesLongError):
        asked_at_once(cold, ONE)
    assert requests.total <= 1
    assert cold.query(ONE).rows == [{"p.age": 1}]


def test_what_was_changed_since_is_not_read(graph: Graph) -> None:
    assert asked_or_read(graph) == [{"p.age": 1}]
    omnigraph.open(graph.uri).mutate('query u() { update Person set { age: 7 } where name = "p1" }')

    with pytest.raises(TakesLongError):
        asked_at_once(graph, ONE)
    assert graph.query(ONE).rows == [{"p.age": 7}]
    assert asked_at_once(graph, ONE) == [{"p.age": 7}]


def asked_or_read(graph: Graph) -> list[dict[str, object]]:
    graph.query(ONE)
    return asked_at_once(graph, ONE)


def test_few_rows_are_answered_and_many_are_not(graph: Graph) -> None:
    graph.query(OLD, {"age": 3})
    assert len(asked_at_once(graph, OLD, age=3)) == 50
    assert len(graph.query(PAIRS)) == 2_500

    with pytest.raises(TakesLongError):
        asked_at_once(graph, PAIRS)


def test_a_walk_of_several_steps_is_not_taken(graph: Graph) -> None:
    assert graph.query(NEAR).rows == [{"q.name": "p2"}]

    with pytest.raises(TakesLongError):
        asked_at_once(graph, NEAR)


def test_it_ends_with_its_block(graph: Graph) -> None:
    cold = omnigraph.open(graph.uri)
    with pytest.raises(TakesLongError):
        asked_at_once(cold, ONE)
    assert cold.query(ONE).rows == [{"p.age": 1}]
