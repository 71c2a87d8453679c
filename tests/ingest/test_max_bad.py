"""Loads that go on without their bad records, the file of these, and edges that are merged by their ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import omnigraph
from omnigraph.core.location import Location
from omnigraph.errors import FileAccessError, LoadRejectedError, OptionError
from omnigraph.graph import Graph
from omnigraph.storage.objects import ObjectStore
from tests.support.loads import PIPELINE, SMALL, edge, load_by, look, node, nothing_changes

SCHEMA = """
node Company { name: String @key }
node Person { name: String @key  nick: String? @unique  age: I32?  @range(age, 0..150) }
edge Knows: Person -> Person { since: I32? }
edge Owns: Person -> Company @card(1..2)
"""
BOTH = pytest.mark.parametrize("way", [SMALL, PIPELINE])
COUNT = (
    "query q() { match { $a knows $b } return { $a.name as a, $b.name as b, count($a) as n } order { a asc, b asc } }"
)


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    graph = omnigraph.init(tmp_path / "graph", SCHEMA)
    graph.load([node("Person", name=name, nick=f"n{name}") for name in "abc"], mode="append")
    return graph


def names(graph: Graph) -> list[str]:
    return [
        row["n"]
        for row in graph.query("query q() { match { $p: Person } return { $p.name as n } order { n asc } }").rows
    ]


BAD: list[Any] = [
    node("Person", name="d"),
    node("Person", name="e", age=200),
    edge("Knows", "d", "e"),
    edge("Knows", "d", "a"),
    node("Person", name="f", nick="na"),
    edge("Knows", "f", "d"),
    node("Person", name="a"),
    node("Person", name="d", nick="again"),
    {"type": "Nothing", "data": {}},
]


@BOTH
def test_bad_records_are_left_out_with_the_edges_that_need_them(graph: Graph, way: str, tmp_path: Path) -> None:
    rejects = tmp_path / "rejects.jsonl"

    done = load_by(way, graph, BAD, "append", max_bad=7, rejects=rejects)

    assert (done.nodes, done.edges, done.rejected) == ({"Person": 1}, {"Knows": 1}, 7)
    assert names(graph) == ["a", "b", "c", "d"]
    assert len(graph.commits()) == 3
    found = [json.loads(line) for line in rejects.read_text().splitlines()]
    assert sorted((one["line"], one["rule"]) for one in found) == [
        (2, "range"),
        (3, "endpoint"),
        (5, "unique"),
        (6, "endpoint"),
        (7, "key"),
        (8, "unique"),
        (9, "shape"),
    ]
    assert [one.line for one in done.violations] == [2, 3, 5, 6, 7, 8, 9]
    assert sum(one.count for one in done.counts) == 7
    assert {one["file"] for one in found} == {"<records>"}


@BOTH
def test_one_bad_record_more_than_allowed_refuses_the_load(graph: Graph, way: str) -> None:
    before = look(graph)
    with pytest.raises(LoadRejectedError, match="more than 6 records are bad"):
        load_by(way, graph, BAD, "append", max_bad=6)

    assert look(graph) == before


@BOTH
def test_a_source_with_too_few_edges_because_of_records_that_are_left_out_refuses_the_load(
    graph: Graph, way: str
) -> None:
    graph.load([node("Company", name="x"), edge("Owns", "a", "x", id="o1")], mode="append")
    before = look(graph)
    moved = [edge("Owns", "a", "nothing", id="o2"), edge("Owns", "b", "x", id="o1")]
    with pytest.raises(LoadRejectedError, match="one is not of a single record") as caught:
        load_by(way, graph, moved, "merge", max_bad=5)

    assert {(one.rule, one.count) for one in caught.value.counts} == {("endpoint", 1), ("cardinality", 1)}
    assert look(graph) == before


@BOTH
def test_a_load_of_bad_records_alone_changes_nothing(graph: Graph, way: str) -> None:
    before = look(graph)
    done = load_by(way, graph, [node("Person", name="z", age=200)] * 3, "overwrite", max_bad=3)

    assert (done.total, done.rejected, done.commit) == (0, 3, None)
    assert look(graph) == before


@BOTH
def test_the_last_good_one_of_records_with_the_same_id_is_stored(graph: Graph, way: str) -> None:
    records = [edge("Knows", "a", name, id="k") for name in ("b", "c", "nobody")]
    done = load_by(way, graph, records, "merge", max_bad=1)

    assert (done.edges, done.rejected) == ({"Knows": 1}, 1)
    assert graph.query(COUNT).rows == [{"a": "a", "b": "c", "n": 1}]


@BOTH
def test_a_file_of_rejects_has_all_problems_of_a_refused_load(graph: Graph, way: str, tmp_path: Path) -> None:
    rejects = tmp_path / "rejects.jsonl"
    bad = [node("Person", name=f"x{at}", age=200) for at in range(1_500)]
    with nothing_changes_of_people(graph), pytest.raises(LoadRejectedError) as caught:
        load_by(way, graph, bad, "append", rejects=rejects, split=20_000)  # a few splits, not one for two records

    assert (caught.value.count, len(caught.value.violations)) == (1_500, 1_000)
    found = [json.loads(line) for line in rejects.read_text().splitlines()]
    assert [one["line"] for one in found] == list(range(1, 1_501))
    assert found[0]["type"] == "Person"
    load_by(way, graph, [node("Person", name="good")], "append", rejects=rejects)
    assert rejects.read_text() == ""


def nothing_changes_of_people(graph: Graph) -> Any:
    return nothing_changes(graph)


def test_a_file_of_rejects_may_be_on_an_object_store(graph: Graph, tmp_path: Path, s3_uri: str) -> None:
    there, here = f"{s3_uri}/rejects.jsonl", tmp_path / "rejects.jsonl"
    for place in (there, here):
        with pytest.raises(LoadRejectedError):
            graph.load([node("Person")], mode="append", rejects=place)

    location = Location.parse(s3_uri)
    assert ObjectStore(location).read("rejects.jsonl") == here.read_bytes() != b""


def test_a_file_of_rejects_that_cannot_be_written_stops_the_load_before_it_begins(graph: Graph, tmp_path: Path) -> None:
    before = look(graph)
    with pytest.raises(FileAccessError):
        graph.load([node("Person", name="z")], mode="append", rejects=tmp_path / "no" / "where")

    assert look(graph) == before


@pytest.mark.parametrize("given", [{"max_bad": -1}, {"max_bad": 10**7}, {"dedupe": "ids"}])
def test_an_unknown_value_of_an_option_is_refused(graph: Graph, given: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        graph.load([node("Person", name="z")], mode="merge", **given)


# Edges without ids ---------------------------------------------------------------------------------

KNOWN = [edge("Knows", "a", "b", since=1), edge("Knows", "a", "c", since=2)]


@BOTH
def test_a_merge_says_how_many_edges_it_may_have_doubled(graph: Graph, way: str) -> None:
    assert load_by(way, graph, KNOWN, "merge").may_double == {}
    assert load_by(way, graph, KNOWN, "merge").may_double == {"Knows": 2}
    assert load_by(way, graph, [edge("Knows", "a", "b", id="k")], "merge").may_double == {}
    assert load_by(way, graph, KNOWN, "append").may_double == {}


@BOTH
def test_edges_are_merged_by_their_ends(graph: Graph, way: str) -> None:
    graph.load(KNOWN, mode="append")
    again = [edge("Knows", "a", "b", since=7), edge("Knows", "b", "c", since=8), edge("Knows", "b", "c", since=9)]

    done = load_by(way, graph, again, "merge", dedupe="ends")

    assert (done.edges, done.may_double) == ({"Knows": 2}, {})
    rows = graph.query(
        "query q() { match { $a $k: knows $b } return { $a.name as a, $b.name as b, $k.since as s } order { s asc } }"
    ).rows
    assert [(row["a"], row["b"], row["s"]) for row in rows] == [("a", "c", 2), ("a", "b", 7), ("b", "c", 9)]


def test_edges_with_ids_are_not_merged_by_their_ends(graph: Graph) -> None:
    before = look(graph)
    with pytest.raises(OptionError, match="records of Knows have ids"):
        graph.load([*KNOWN, edge("Knows", "a", "b", id="k")], mode="merge", dedupe="ends")
    with pytest.raises(OptionError, match="for the mode merge"):
        graph.load(KNOWN, mode="append", dedupe="ends")

    assert look(graph) == before
