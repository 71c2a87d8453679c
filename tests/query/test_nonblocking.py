"""A read that is asked for at once comes from memory, or not at all."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

import omnigraph
from omnigraph import Graph
from omnigraph.core.nonblocking import WouldBlock, nonblocking
from omnigraph.query.view import SortedTexts
from omnigraph.storage.observe import counted

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


def asked_nonblocking(graph: Graph, query: str, **parameters: object) -> list[dict[str, object]]:
    with nonblocking():
        return graph.query(query, parameters).rows


@pytest.mark.parametrize("query", [ONE, FRIENDS])
def test_what_is_in_memory_is_answered_without_a_request_but_the_probe(graph: Graph, query: str) -> None:
    rows = graph.query(query).rows
    with counted() as requests:
        assert asked_nonblocking(graph, query) == rows
    assert requests.total <= 1


def test_what_is_not_in_memory_is_not_read(graph: Graph) -> None:
    cold = omnigraph.open(graph.uri)
    with counted() as requests, pytest.raises(WouldBlock):
        asked_nonblocking(cold, ONE)
    assert requests.total <= 1
    assert cold.query(ONE).rows == [{"p.age": 1}]


def test_what_was_changed_since_is_not_read(graph: Graph) -> None:
    assert asked_or_read(graph) == [{"p.age": 1}]
    omnigraph.open(graph.uri).mutate('query u() { update Person set { age: 7 } where name = "p1" }')

    with pytest.raises(WouldBlock):
        asked_nonblocking(graph, ONE)
    assert graph.query(ONE).rows == [{"p.age": 7}]
    assert asked_nonblocking(graph, ONE) == [{"p.age": 7}]


def asked_or_read(graph: Graph) -> list[dict[str, object]]:
    graph.query(ONE)
    return asked_nonblocking(graph, ONE)


def test_few_rows_are_answered_and_many_are_not(graph: Graph) -> None:
    graph.query(OLD, {"age": 3})
    assert len(asked_nonblocking(graph, OLD, age=3)) == 50
    assert len(graph.query(PAIRS)) == 2_500

    with pytest.raises(WouldBlock):
        asked_nonblocking(graph, PAIRS)


@pytest.mark.parametrize(
    "query",
    [
        NEAR,
        'query n() { match { $p: Person { name: "p1" } fuzzy($p.name, "p1") } return { $p.name } }',
        'query n() { match { $p: Person { name: "p1" } not { $p knows $q } } return { $p.name } }',
        'query n() { match { $p: Person { name: "p1" } $p knows $q } return { count($q) as n } }',
        'query n() { match { $p: Person { name: "p1" } } return { $p.name } order { bm25($p.name, "p1") } limit 3 }',
    ],
    ids=["several hops", "a search", "a negation", "a count", "a ranking"],
)
def test_what_may_take_long_is_not_begun_however_quick_it_was(graph: Graph, query: str) -> None:
    for _ in range(2):
        graph.query(query)

    with pytest.raises(WouldBlock):
        asked_nonblocking(graph, query)


def test_few_rows_with_much_in_them_are_not_answered(tmp_path: Path) -> None:
    graph = omnigraph.init(tmp_path / "texts", "node Text { name: String @key  text: String }")
    query = "query q($n: String) { match { $t: Text { name: $n } } return { $t.text } }"
    texts = {"a": "a" * 100_000, "b": "b"}
    graph.load([{"type": "Text", "data": {"name": name, "text": text}} for name, text in texts.items()], mode="append")
    assert len(graph.query(query, {"n": "a"}).rows[0]["t.text"]) == 100_000

    assert asked_nonblocking(graph, query, n="b") == [{"t.text": "b"}]
    with pytest.raises(WouldBlock):
        asked_nonblocking(graph, query, n="a")


def test_an_object_store_is_not_even_probed(s3_uri: str) -> None:
    graph = omnigraph.init(f"{s3_uri}/at-once", SCHEMA)
    graph.mutate('query add() { insert Person { name: "p1" } }')
    assert graph.query(ONE).rows == graph.query(ONE).rows == [{"p.age": None}]

    with counted() as requests, pytest.raises(WouldBlock):
        asked_nonblocking(graph, ONE)
    assert requests.total == 0


def test_a_query_that_is_not_compiled_is_not_compiled_at_once(graph: Graph) -> None:
    graph.query(ONE)
    with pytest.raises(WouldBlock):
        asked_nonblocking(graph, ONE.replace("query one", "query another"))


def test_nobody_waits_while_somebody_else_puts_ids_in_order(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    both, made = threading.Barrier(2, timeout=120), SortedTexts.of

    def together(texts: pa.Array) -> SortedTexts:
        both.wait()  # for ever, if one has to wait until the other is done
        return made(texts)

    monkeypatch.setattr(SortedTexts, "of", together)
    others = [omnigraph.open(graph.uri) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        assert [result.rows for result in pool.map(lambda one: one.query(ONE), others)] == [[{"p.age": 1}]] * 2


def test_it_ends_with_its_block(graph: Graph) -> None:
    cold = omnigraph.open(graph.uri)
    with pytest.raises(WouldBlock):
        asked_nonblocking(cold, ONE)
    assert cold.query(ONE).rows == [{"p.age": 1}]
