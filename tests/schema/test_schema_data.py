"""What a change does to the data and the indices of a table: as little as can be."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import omnigraph
from omnigraph.graph import Graph
from omnigraph.storage.observe import RequestCounts, counted
from tests.schema.town import CHANGES, PERSON, SCHEMA, edited, look
from tests.support.mutations import store_of
from tests.support.templates import Templates

TYPES = {
    "String": "text",
    "Bool": True,
    "I32": -3,
    "I64": 2**40,
    "U32": 7,
    "U64": 2**63,
    "F32": 0.5,
    "F64": -2.25,
    "Date": "2026-11-16",
    "DateTime": "2026-11-16T12:00:00.000Z",
    "Vector(3)": [0.5, 1.0, -1.0],
    "Blob": "base64:AQID",
    "[String]": ["a", "b"],
    "[I64]": [1, 2],
    "enum(up, down)": "up",
}


def test_a_property_of_every_type_can_be_added_filled_and_dropped(graph: Graph) -> None:
    declared = "\n".join(f"p{at}: {type_}?" for at, type_ in enumerate(TYPES))
    graph.apply_schema(edited(("age: I32?", f"age: I32?\n{declared}")))
    values = {f"p{at}": value for at, value in enumerate(TYPES.values())}
    empty = dict.fromkeys(values)
    assert [empty.items() <= _data(graph, name).items() for name in ("ann", "bob", "cat")] == [True] * 3

    graph.load([{"type": "Person", "data": {"name": "ann", **values}}], mode="merge")

    assert values.items() <= _data(graph, "ann").items()
    assert empty.items() <= _data(graph, "bob").items()
    graph.optimize()
    assert values.items() <= _data(graph, "ann").items()
    graph.apply_schema(SCHEMA)
    assert _data(graph, "ann").keys() == {"id", "name", "age", "mood", "bio"}


def _data(graph: Graph, name: str) -> dict[str, object]:
    return next(dict(one["data"]) for one in look(graph) if one["data"]["id"] == name)


def test_indices_go_on_under_new_names_and_go_with_their_property(graph: Graph) -> None:
    graph.apply_schema(CHANGES["rename a property"].schema)
    years = "query q($y: I32) { match { $p: Person { years: $y } } return { $p.name } }"
    assert graph.query(years, {"y": 1}).rows == [{"p.name": "bob"}]
    graph.mutate('query q() { insert Person { name: "eve", years: 1 } }')
    assert len(graph.query(years, {"y": 1}).rows) == 2
    for tidy in (graph.ensure_indices, graph.optimize):
        tidy()
        assert len(graph.query(years, {"y": 1}).rows) == 2
    search = 'query q() { match { $p: Person search($p.bio, "cat") } return { $p.name } }'
    assert graph.query(search).rows == [{"p.name": "cat"}]
    graph.apply_schema(CHANGES["drop a property"].schema.replace("    bio: String? @index\n", ""))
    for tidy in (graph.ensure_indices, graph.optimize):
        tidy()
    assert len(look(graph)) == 7
    assert graph.doctor().is_healthy


def test_an_index_under_the_name_of_before_is_dropped_when_the_new_one_is_built(graph: Graph) -> None:
    """Until then it serves the property under its new name."""
    graph.apply_schema(CHANGES["rename a property"].schema)
    assert {"age_btree"} <= set(_indices(graph)), "a rename touches no index"
    graph.optimize()
    names = _indices(graph)
    assert "years_btree" in names
    assert "age_btree" not in names
    assert graph.optimize().commit is None
    assert graph.doctor().findings == ()
    years = "query q($y: I32) { match { $p: Person { years: $y } } return { $p.name } }"
    assert graph.query(years, {"y": 1}).rows == [{"p.name": "bob"}]


def _indices(graph: Graph) -> list[str]:
    table = graph.snapshot().entries[PERSON].table
    return [one.name for one in store_of(graph.uri).tables.open(table).describe_indices()]


def test_a_property_that_takes_the_name_of_another_gets_indices_of_its_own(graph: Graph) -> None:
    """Lance keeps the name of an index when its column is renamed, and has no two indices of one name."""
    graph.apply_schema(edited(("bio: String? @index", 'story: String? @index @rename_from("bio")')))
    graph.apply_schema(edited(("bio: String? @index", "story: String? @index\n bio: String? @index")))
    graph.load([{"type": "Person", "data": {"name": "eve", "bio": "swims", "story": "walks"}}], mode="append")
    found = "query q($w: String) { match { $p: Person search($p.%s, $w) } return { $p.name } }"
    for tidy in (graph.refresh, graph.ensure_indices, graph.optimize):
        tidy()
        assert graph.query(found % "bio", {"w": "swims"}).rows == [{"p.name": "eve"}]
        assert graph.query(found % "story", {"w": "cat"}).rows == [{"p.name": "cat"}]
        assert graph.query(found % "bio", {"w": "cat"}).rows == []
    table = graph.snapshot().entries[PERSON].table
    columns = {one.name: one.field_names for one in store_of(graph.uri).tables.open(table).describe_indices()}
    assert columns["bio_inverted"] == ["bio"]
    assert columns["story_inverted"] == ["story"]


def test_an_index_is_asked_for_without_touching_a_table_and_built_by_upkeep(graph: Graph) -> None:
    versions = {key: entry.table.version for key, entry in graph.snapshot().entries.items()}
    graph.apply_schema(CHANGES["add an index"].schema)
    assert {key: entry.table.version for key, entry in graph.snapshot().entries.items()} == versions
    done = graph.optimize()
    assert [row.table_key for row in done.tables if row.committed] == [PERSON]


@pytest.mark.slow
@pytest.mark.parametrize("change", ["add a property", "rename a property", "drop a property", "rename a node type"])
def test_no_change_reads_or_writes_rows(tmp_path: Path, templates: Templates, change: str) -> None:
    """A table of many rows costs the requests and the bytes that one of a few costs."""
    few, many = (_cost(tmp_path / str(rows), rows, change, templates) for rows in (100, 50_000))
    assert few[0] == many[0], "requests"
    assert many[1] < few[1] + 4_000, "bytes written"


def _people(uri: str, rows: int) -> None:
    people = pa.table({"name": [f"p{at}" for at in range(rows)], "age": pa.array(range(rows), pa.int32())})
    omnigraph.init(uri, SCHEMA).load({"Person": people}, mode="append", engine="local")


def _cost(path: Path, rows: int, change: str, templates: Templates) -> tuple[RequestCounts, int]:
    """The requests of a change, and how much larger the graph is afterwards."""
    graph = templates.copy(f"town of {rows} people", lambda uri: _people(uri, rows), path)
    table = store_of(graph.uri).manifest.load().snapshot.entries[PERSON].table
    files, before = _sizes(path / table.path / "data"), sum(_sizes(path).values())
    with counted() as requests:
        graph.apply_schema(CHANGES[change].schema)
    assert _sizes(path / table.path / "data") == files
    assert graph.snapshot().entries.keys() >= {PERSON} or change == "rename a node type"
    return requests.requests, sum(_sizes(path).values()) - before


def _sizes(path: Path) -> dict[str, int]:
    return {str(file): file.stat().st_size for file in path.rglob("*") if file.is_file()}
