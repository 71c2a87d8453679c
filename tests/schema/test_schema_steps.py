"""Every kind of change of a schema: what it makes of the data, of the past, and of what is written afterwards."""

from __future__ import annotations

from typing import Any

import pytest

import omnigraph
from omnigraph.commit.store import Store
from omnigraph.graph import Graph
from tests.schema.town import CHANGES, SCHEMA, Change, Record, in_order, look
from tests.support.faults import assert_settled, pins
from tests.support.loads import PIPELINE, SMALL, load_by

STEPS = list(CHANGES)
UNSUPPORTED = {
    "a required property": ("age: I32?", "age: I32? city: String", "OG-MF-103"),
    "another type of a property": ("age: I32?", "age: String?", "OG-MF-106"),
    "a narrower type of a property": ("since: I32?", "since: U32?", "OG-MF-106"),
    "an enum without a value that is used": ("enum(calm, glad)", "enum(glad)", "entity 'ann' does not allow it"),
    "a range that excludes a value": ("@index(age)", "@index(age) @range(age, 0..1)", "entity 'cat'"),
    "a pattern that excludes a value": ("@index(age)", '@index(age) @check(bio, "ann|bob")', "entity 'cat'"),
    "a unique value that occurs twice": ("@index(age)", "@index(age) @unique(mood)", "OG-MF-107"),
    "a cardinality that is too high": ("Knows: Person -> Person", "Knows: Person -> Person @card(2..)", "'ann'"),
    "a key": ("name: String @key\n", "name: String\n", "@key(name) cannot be removed"),
    "another end of an edge": ("LivesIn: Person -> Town", "LivesIn: Town -> Town", "endpoints"),
    "an interface of a node": ("node Town {", "interface I { x: I32? } node Town implements I {", "interfaces"),
    "a name from nowhere": (
        "node Town {",
        'node Place @rename_from("Nowhere") { name: String @key } node Town {',
        "Now",
    ),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_change_is_one_commit_that_makes_of_the_data_what_it_says(graph: Graph, store: Store, name: str) -> None:
    change, before, head = CHANGES[name], look(graph), graph.commits()[0]
    other = omnigraph.open(graph.uri)
    assert look(other) == before

    told = graph.plan_schema(change.schema)
    versions, manifest_version = pins(store), store.manifest.load().version
    done = graph.apply_schema(change.schema, actor="eve")

    assert tuple(map(str, told.plan.steps)) == tuple(map(str, done.plan.steps)) == change.steps
    assert (told.applied, told.manifest_version, done.applied) == (False, manifest_version, True)
    assert done.commit == graph.commits()[0]
    assert (done.commit.parent_id, done.commit.actor_id) == (head.commit_id, "eve")
    assert done.manifest_version == store.manifest.load().version == manifest_version + 1
    assert look(graph) == look(other) == _after(change, before)
    assert look(other, head.commit_id) == look(graph, head.commit_id) == before
    assert graph.schema == change.schema
    assert _moved(versions, pins(store), done.plan.to_dict()["steps"]) == change.moves
    assert_settled(store)


@pytest.mark.slow
@pytest.mark.parametrize("name", STEPS)
def test_every_way_to_write_goes_on_after_a_change(graph: Graph, store: Store, name: str) -> None:
    change, other = CHANGES[name], omnigraph.open(graph.uri)
    look(other)
    graph.apply_schema(change.schema)
    before = look(graph)

    other.mutate(*_insert(change.takes, "by mutation"))
    load_by(SMALL, other, [_named(change.takes, "by small load")], "merge")
    load_by(PIPELINE, other, [_named(change.takes, "by pipeline")], "merge")
    graph.create_branch("later")
    other.load([_named(change.takes, "by branch")], mode="append", branch="later")
    assert graph.merge("later").outcome == "fast_forward"
    other.optimize()

    new = [_named(change.takes, f"by {way}") for way in ("mutation", "small load", "pipeline", "branch")]
    assert look(other) == in_order([*before, *new])
    other.mutate(f'query remove() {{ delete {change.takes["type"]} where name = "by pipeline" }}')
    assert look(graph) == in_order([*before, *(one for one in new if one["data"]["id"] != "by pipeline")])
    assert_settled(store)


@pytest.mark.parametrize("name", STEPS)
def test_to_apply_the_same_schema_again_does_nothing(graph: Graph, store: Store, name: str) -> None:
    graph.apply_schema(CHANGES[name].schema)
    version = store.manifest.load().version

    again = graph.apply_schema(CHANGES[name].schema)

    assert (again.applied, again.commit, again.plan.steps) == (False, None, ())
    assert again.manifest_version == store.manifest.load().version == version


@pytest.mark.parametrize("why", UNSUPPORTED)
def test_a_change_that_cannot_be_made_changes_nothing(graph: Graph, store: Store, why: str) -> None:
    old, new, reason = UNSUPPORTED[why]
    text = SCHEMA.replace(old, new) + "node Club { name: String @key }"
    before, version = look(graph), store.manifest.load().version

    told = graph.plan_schema(text)
    with pytest.raises(omnigraph.errors.SchemaUnsupportedError) as refused:
        graph.apply_schema(text)

    assert not told.plan.supported
    assert any(reason in step for step in refused.value.steps)
    assert refused.value.hint
    assert (look(graph), graph.schema, store.manifest.load().version) == (before, SCHEMA, version)
    assert_settled(store)


def test_a_property_with_a_null_cannot_become_required(graph: Graph, store: Store) -> None:
    graph.mutate('query add() { insert Person { name: "dan" } }')
    text, version = CHANGES["make a property required"].schema, store.manifest.load().version

    with pytest.raises(omnigraph.errors.SchemaUnsupportedError, match="entity 'dan'") as refused:
        graph.apply_schema(text)

    (step,) = refused.value.steps
    assert "[OG-MF-104, validated]" in step
    assert [str(one) for one in graph.plan_schema(text).plan.steps] == [step]
    assert store.manifest.load().version == version
    graph.mutate('query fill() { update Person set { age: 7 } where name = "dan" }')
    assert graph.apply_schema(text).applied
    with pytest.raises(omnigraph.errors.OmnigraphError, match="age"):
        graph.mutate('query add() { insert Person { name: "eve" } }')
    assert graph.apply_schema(SCHEMA).applied
    graph.mutate('query add() { insert Person { name: "eve" } }')
    assert {one["data"]["id"]: one["data"].get("age") for one in look(graph)}["eve"] is None


def test_an_empty_type_can_get_a_required_property(graph: Graph) -> None:
    text = SCHEMA + "node Club { name: String @key }"
    graph.apply_schema(text)
    assert not graph.plan_schema(text.replace("node Town {", "node Town { size: I32")).plan.supported

    graph.apply_schema(text.replace("node Club {", "node Club { size: I32"))

    with pytest.raises(omnigraph.errors.OmnigraphError, match="size"):
        graph.mutate('query add() { insert Club { name: "c" } }')
    graph.load([{"type": "Club", "data": {"name": "c", "size": 3}}], mode="append")
    assert graph.query("query all() { match { $c: Club } return { $c.size } }").rows == [{"c.size": 3}]


def test_values_are_judged_as_the_change_makes_them(graph: Graph) -> None:
    """Under their new names, and in their new types."""
    text = SCHEMA.replace("age: I32?", 'years: I64? @rename_from("age")').replace("@index(age)", "@range(years, 0..1)")
    with pytest.raises(omnigraph.errors.SchemaUnsupportedError, match="entity 'cat' does not allow it"):
        graph.apply_schema(text)
    assert graph.apply_schema(text.replace("0..1)", "0..2)")).applied


@pytest.mark.parametrize("text", ["node {", "node A { x: Nope }", "", "edge E: A -> B"])
def test_a_schema_that_does_not_compile_changes_nothing(graph: Graph, store: Store, text: str) -> None:
    version = store.manifest.load().version
    before = look(graph)
    if text:
        with pytest.raises(omnigraph.errors.SchemaError):
            graph.apply_schema(text)
        assert store.manifest.load().version == version
        assert look(graph) == before
    else:  # an empty schema is one without types
        assert [step.kind for step in graph.plan_schema(text).plan.steps] == ["drop_type"] * 4


def test_a_plan_tells_how_many_entities_it_touches(graph: Graph) -> None:
    rows = {name: graph.plan_schema(change.schema).rows for name, change in CHANGES.items()}

    assert rows["add a node type"] == rows["extend an enum"] == rows["add an index"] == {}
    assert rows["add a property"] == rows["rename a property"] == rows["drop a property"] == {"node:Person": 3}
    assert rows["rename a type and change its properties"] == {"node:Town": 1}
    assert rows["drop a node type and its edges"] == {"node:Town": 1, "edge:LivesIn": 1}


def test_a_handle_that_only_reads_can_plan_and_not_apply(graph: Graph, store: Store) -> None:
    reader = omnigraph.open(graph.uri, read_only=True)
    version = store.manifest.load().version

    assert reader.plan_schema(CHANGES["add a property"].schema).plan.supported
    with pytest.raises(omnigraph.errors.ReadOnlyError):
        reader.apply_schema(CHANGES["add a property"].schema)
    assert store.manifest.load().version == version


def _after(change: Change, records: list[Record]) -> list[Record]:
    found = (change.becomes(record) for record in records)
    return in_order([record for record in found if record])


def _named(record: Record, name: str) -> Record:
    return {**record, "data": {"id": name, "name": name, **record["data"]}}


def _insert(record: Record, name: str) -> tuple[str, dict[str, Any]]:
    """A mutation that inserts a record; what is null is left out."""
    data = {"name": name, **record["data"]}
    given = [f"{key}: {_literal(value)}" for key, value in data.items() if value is not None]
    return f"query add() {{ insert {record['type']} {{ {', '.join(given)} }} }}", {}


def _literal(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


def _moved(before: dict[str, int], after: dict[str, int], steps: list[dict[str, Any]]) -> tuple[str, ...]:
    """The tables that got another version, by their names before."""
    old = {f"{s['type_kind']}:{s['to']}": f"{s['type_kind']}:{s['from']}" for s in steps if s["kind"] == "rename_type"}
    now = {old.get(key, key): version for key, version in after.items()}
    return tuple(key for key, version in before.items() if now.get(key, version) != version)
