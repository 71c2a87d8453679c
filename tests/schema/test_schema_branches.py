"""Schemas on branches: each kind of change made on one, then merged in both directions with data of both sides."""

from __future__ import annotations

import pytest

import omnigraph
from omnigraph.commit.store import Store
from omnigraph.errors import MergeConflictError, SchemaBoundaryError, SchemaUnsupportedError
from omnigraph.graph import Graph
from omnigraph.lang.schema_steps import DropProperty
from tests.schema.test_schema_steps import _after, _named
from tests.schema.town import CHANGES, NAMES, SCHEMA, edited, in_order, look, node
from tests.support.faults import assert_settled

STEPS = list(CHANGES)


@pytest.mark.parametrize("name", STEPS)
def test_a_change_on_a_branch_is_one_of_the_branch_alone(graph: Graph, store: Store, name: str) -> None:
    change, before = CHANGES[name], look(graph)
    graph.create_branch("side")

    done = graph.apply_schema(change.schema, branch="side")

    assert tuple(map(str, done.plan.steps)) == change.steps
    assert (look(graph), graph.schema) == (before, SCHEMA)
    other = omnigraph.open(graph.uri)
    for one in (graph, other):
        assert look(one, branch="side") == _after(change, before)
        assert one.at("side").schema == change.schema
    graph.load([_named(change.takes, "new")], mode="merge", branch="side")
    graph.mutate('query add() { insert Town { name: "Bonn" } }')
    assert_settled(store)


@pytest.mark.parametrize("name", STEPS)
def test_a_change_on_a_branch_comes_with_its_merge(graph: Graph, store: Store, name: str) -> None:
    """Main has gone on: its entities, old and new, are in the new schema afterwards."""
    change = CHANGES[name]
    graph.create_branch("side")
    graph.apply_schema(change.schema, branch="side")
    graph.load([_named(change.takes, "there")], mode="merge", branch="side")
    graph.mutate('query add() { insert Person { name: "here"  age: 8  bio: "likes x"  mood: "calm" } }')
    expected = _after(change, look(graph))
    there = [one for one in look(graph, branch="side") if one["data"]["id"] == "there"]

    lost = [f"node:Person.{step.property_name}" for step in graph.plan_schema(change.schema).plan.of(DropProperty)]
    result = graph.merge("side", resolve=[{"schema": label, "take": "theirs"} for label in lost])

    assert result.outcome == "merged"
    assert look(graph) == in_order([*expected, *there])
    assert look(omnigraph.open(graph.uri)) == look(graph)
    assert graph.merge("side").outcome == "already_up_to_date"
    assert graph.merge("main", into="side").outcome == "fast_forward"
    assert look(graph, branch="side") == look(graph)
    assert graph.at("side").schema == graph.schema
    assert_settled(store)


@pytest.mark.parametrize("name", STEPS)
def test_what_a_change_did_can_be_told(graph: Graph, name: str) -> None:
    """The diff knows what is renamed, the feed goes on, and no entity that stays has changed."""
    change, first = CHANGES[name], graph.commits()[0].commit_id
    gone = {one["data"]["id"] for one in look(graph) if change.becomes(one) is None}
    done = graph.apply_schema(change.schema)
    graph.load([_named(change.takes, "new")], mode="merge")
    assert done.commit

    page = graph.changes(after=first)
    blocks = {block.cause.commit_id: block for block in page.blocks}
    schema = blocks[done.commit.commit_id].schema
    assert schema is not None
    assert {str(step) for step in schema.steps} == {line.replace("(hard", "(soft") for line in change.steps}
    assert {one.id for one in blocks[done.commit.commit_id].changes} == gone
    found = graph.diff(first, "main")
    assert {(one.operation, one.id) for one in found} == {("insert", "new"), *(("delete", id_) for id_ in gone)}
    back = graph.diff("main", first)
    assert {(one.operation, one.id) for one in back} == {("delete", "new"), *(("insert", id_) for id_ in gone)}
    renamed = [step for step in schema.to_dict()["steps"] if step["kind"].startswith("rename")]
    assert len(found.schema.renamed) == len(back.schema.renamed) == len(renamed)


@pytest.mark.parametrize("name", STEPS)
def test_a_commit_from_before_a_change_is_reverted_in_the_new_schema(graph: Graph, store: Store, name: str) -> None:
    graph.mutate('query add() { insert Person { name: "zoe"  age: 7  bio: "likes y"  mood: "calm" } }')
    added = graph.commits()[0].commit_id
    change = CHANGES[name]
    graph.apply_schema(change.schema)
    before = look(graph)

    graph.revert(added)

    assert look(graph) == [one for one in before if one["data"]["id"] != "zoe"]
    assert_settled(store)


def test_a_commit_that_changed_the_schema_or_what_is_gone_since_is_not_reverted(graph: Graph) -> None:
    graph.mutate('query set() { update Person set { age: 50 } where name = "ann" }')
    aged = graph.commits()[0].commit_id
    done = graph.apply_schema(CHANGES["drop a property"].schema)
    assert done.commit
    before = look(graph)

    for commit, why in ((aged, "age"), (done.commit.commit_id, "changed the schema")):
        with pytest.raises(SchemaBoundaryError, match=why) as refused:
            graph.revert(commit)
        assert refused.value.hint
    assert look(graph) == before


def test_a_branch_can_begin_before_a_change_and_be_merged_after_it(graph: Graph, store: Store) -> None:
    old = graph.commits()[0].commit_id
    graph.create_tag("release")
    graph.apply_schema(CHANGES["many things at once"].schema)
    graph.create_branch("late", old)
    assert graph.at("late").schema == SCHEMA
    graph.load([node("Person", name="late", age=3)], mode="append", branch="late")

    graph.merge("late")

    found = [one for one in look(graph) if one["data"]["id"] == "late"]
    assert found == [node("Human", id="late", name="late", years=3, mood=None, city=None)]
    assert_settled(store)


def test_data_is_only_given_up_on_main(graph: Graph) -> None:
    graph.create_branch("side")
    with pytest.raises(SchemaUnsupportedError, match="main"):
        graph.apply_schema(CHANGES["drop a property"].schema, allow_data_loss=True, branch="side")
    assert graph.at("side").schema == SCHEMA
    done = graph.apply_schema(CHANGES["drop a property"].schema, allow_data_loss=True)
    assert done.given_up
    assert [one["data"]["age"] for one in look(graph, branch="side") if one["data"]["id"] == "cat"] == [2]


@pytest.mark.parametrize("side", ["ours", "theirs"])
def test_two_schemas_that_contradict_each_other_are_a_conflict_to_decide(graph: Graph, store: Store, side: str) -> None:
    mine, other = edited(("age: I32?", "age: I64?")), edited(("age: I32?", "age: F64?"))
    graph.create_branch("side")
    graph.apply_schema(other, branch="side")
    graph.apply_schema(mine)
    graph.load([_named(node("Person", age=3), "new")], mode="merge", branch="side")
    version = store.manifest.load().version

    assert [str(one) for one in graph.merge("side", dry_run=True).conflicts] == [
        "schema_divergent: property Person.age: the two sides changed it differently: type"
    ]
    with pytest.raises(MergeConflictError) as refused:
        graph.merge("side")
    (conflict,) = refused.value.conflicts
    assert (conflict.kind, conflict.schema, conflict.table_key) == (
        "schema_divergent",
        "node:Person.age",
        "node:Person",
    )
    assert store.manifest.load().version == version

    with pytest.raises(MergeConflictError, match="F64"):  # not every value of the one type is one of the other
        graph.merge("side", resolve=side)
    assert store.manifest.load().version == version


@pytest.mark.parametrize("side, name", [("ours", "years"), ("theirs", "winters")])
def test_a_conflict_of_schemas_is_settled_by_a_side(graph: Graph, store: Store, side: str, name: str) -> None:
    graph.create_branch("side")
    for branch, new in (("main", "years"), ("side", "winters")):
        text = edited(("age: I32?", f'{new}: I32? @rename_from("age")'), ("@index(age)", f"@index({new})"))
        graph.apply_schema(text, branch=branch)
    graph.load([_named(node("Person", winters=3), "new")], mode="merge", branch="side")
    with pytest.raises(MergeConflictError) as refused:
        graph.merge("side")
    (conflict,) = refused.value.conflicts
    assert conflict.kind == "schema_rename"

    for undecided in ([{**conflict.to_dict(), "take": None}], None):
        with pytest.raises(MergeConflictError):
            graph.merge("side", resolve=undecided)
    graph.merge("side", resolve=[{**conflict.to_dict(), "take": side}])

    found = {one["data"]["id"]: one["data"] for one in look(graph)}
    assert (found["new"][name], found["cat"][name]) == (3, 2)
    assert (graph.commits()[0].details or {})["resolution"] == {"schema": {conflict.schema: side}}
    assert_settled(store)


def test_a_drop_is_no_drop_of_what_the_other_side_has_changed(graph: Graph, store: Store) -> None:
    smaller = edited(("node Town { name: String @key }\n", ""), ("edge LivesIn: Person -> Town\n", ""))
    graph.create_branch("side")
    graph.apply_schema(smaller, branch="side")
    graph.mutate('query add() { insert Town { name: "Bonn" } }')
    before = look(graph)

    with pytest.raises(MergeConflictError) as refused:
        graph.merge("side", resolve="theirs")  # a default never drops data
    assert [(one.kind, one.schema) for one in refused.value.conflicts] == [("schema_drop_vs_change", "node:Town")]
    assert "1 entity" in refused.value.conflicts[0].message
    assert look(graph) == before

    graph.merge("side", resolve=[{"schema": "node:Town", "take": "theirs"}])
    assert look(graph) == [one for one in before if one["data"]["id"] not in ("Ulm", "Bonn", "l1")]
    assert_settled(store)


def test_a_rule_of_one_side_is_kept_by_what_the_other_side_did(graph: Graph, store: Store) -> None:
    graph.create_branch("side")
    graph.apply_schema(edited(("@index(age)", "@index(age) @unique(age) @range(age, 0..9)")), branch="side")
    graph.load([node("Person", name="dan", age=9)], mode="append", branch="side")
    graph.load([node("Person", name="eve", age=9)], mode="append")

    with pytest.raises(MergeConflictError, match=r"twice|taken"):
        graph.merge("side")
    graph.mutate('query set() { update Person set { age: 10 } where name = "eve" }')
    with pytest.raises(MergeConflictError, match="@range"):
        graph.merge("side")
    graph.mutate('query set() { update Person set { age: 8 } where name = "eve" }')
    graph.merge("side")
    assert {one["data"]["id"]: one["data"].get("age") for one in look(graph)}["eve"] == 8
    with pytest.raises(omnigraph.errors.OmnigraphError, match="@range"):
        graph.mutate('query add() { insert Person { name: "fay"  age: 10 } }')
    assert_settled(store)


def test_one_type_of_both_sides_is_one(graph: Graph, store: Store) -> None:
    text = SCHEMA + "node Club { name: String @key  size: I32? }"
    graph.create_branch("side")
    for branch in ("side", "main"):
        graph.apply_schema(text, branch=branch)
    graph.load([node("Club", name="a", size=1), node("Club", name="b")], mode="append")
    graph.load([node("Club", name="a"), node("Club", name="c")], mode="append", branch="side")

    graph.merge("side")

    clubs = [one["data"] for one in look(graph) if one.get("type") == "Club"]
    assert [(one["id"], one["size"]) for one in clubs] == [("a", 1), ("b", None), ("c", None)]
    assert_settled(store)


def test_merges_over_several_branches_keep_what_was_renamed(graph: Graph) -> None:
    """Criss-cross: each of two branches has the schema of the other before both are changed again."""
    for name in ("one", "two"):
        graph.create_branch(name)
    graph.apply_schema(CHANGES["rename a property"].schema, branch="one")
    graph.apply_schema(CHANGES["add a property of an edge"].schema, branch="two")
    graph.merge("one", into="two")
    graph.merge("two", into="one")
    graph.load([node("Person", name="x", years=1)], mode="append", branch="one")
    graph.load([node("Person", name="y", years=2)], mode="append", branch="two")
    graph.merge("one", into="two")
    graph.merge("two")
    found = {one["data"]["id"]: one["data"] for one in look(graph)}
    assert (found["x"]["years"], found["y"]["years"], found["k1"]["how"]) == (1, 2, None)
    graph.delete_branch("one")
    graph.delete_branch("two")
    graph.cleanup(keep=1, confirm=True)
    assert {one["data"]["id"] for one in look(graph)} == {*NAMES, "Ulm", "k1", "l1", "x", "y"}
