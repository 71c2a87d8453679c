"""Changes of the schema in the history of a graph: what was there before, what comes again, and what they separate."""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path

import pytest

import omnigraph
from omnigraph.commit.store import Store
from omnigraph.graph import Graph
from tests.schema.town import CHANGES, PERSON, SCHEMA, edited, look, make, node, renamed
from tests.support.faults import assert_settled

WITHOUT_TOWN = CHANGES["drop a node type and its edges"].schema
HUMAN = CHANGES["rename a node type"].schema


@pytest.mark.slow
def test_every_commit_is_read_by_the_schema_of_its_time(graph: Graph) -> None:
    seen = {graph.commits()[0].commit_id: look(graph)}
    for change in ("add a property", "drop a property", "rename a node type"):
        done = graph.apply_schema(CHANGES[change].schema)
        assert done.commit
        seen[done.commit.commit_id] = look(graph)
        graph.load([{"type": next(iter(graph.catalog.nodes)), "data": {"name": f"by {change}"}}], mode="append")
        seen[graph.commits()[0].commit_id] = look(graph)

    for handle in (graph, omnigraph.open(graph.uri), omnigraph.open(graph.uri, read_only=True)):
        assert {commit: look(handle, commit) for commit in seen} == seen
    ages = "query q() { match { $p: Person } return { $p.age } order { $p.age } }"
    assert graph.query(ages, snapshot=next(iter(seen))).rows == [{"p.age": age} for age in range(3)]
    with pytest.raises(omnigraph.errors.QueryError, match="years"):
        graph.query(ages.replace("age", "years"), snapshot=next(iter(seen)))


def test_a_type_that_comes_again_begins_empty_and_its_past_stays(graph: Graph, store: Store) -> None:
    before, old = look(graph), graph.commits()[0].commit_id
    graph.apply_schema(WITHOUT_TOWN)
    graph.apply_schema(SCHEMA)
    assert [one for one in look(graph) if one.get("type") == "Town"] == []
    graph.load([node("Town", name="Rom")], mode="append")
    between = graph.commits()[0].commit_id
    graph.apply_schema(WITHOUT_TOWN)
    graph.apply_schema(SCHEMA)

    assert look(graph, old) == before
    assert [one["data"]["name"] for one in look(graph, between) if one.get("type") == "Town"] == ["Rom"]
    assert [one for one in look(graph) if one.get("type") == "Town"] == []
    graph.load([node("Town", name="Ulm")], mode="append")
    assert graph.query("query q() { match { $t: Town } return { $t.name } }").rows == [{"t.name": "Ulm"}]
    assert_settled(store)


def test_a_property_that_comes_again_is_empty_and_may_have_another_type(graph: Graph) -> None:
    before, old = look(graph), graph.commits()[0].commit_id
    graph.apply_schema(CHANGES["drop a property"].schema)
    graph.apply_schema(edited(("age: I32?", "age: String?")))

    assert [one["data"]["age"] for one in look(graph) if one.get("type") == "Person"] == [None] * 3
    graph.mutate('query set() { update Person set { age: "old" } where name = "ann" }')
    assert [one["data"]["age"] for one in look(graph) if one.get("type") == "Person"] == ["old", None, None]
    assert look(graph, old) == before
    graph.ensure_indices()
    found = graph.query('query q() { match { $p: Person { age: "old" } } return { $p.name } }')
    assert found.rows == [{"p.name": "ann"}]


@pytest.mark.slow
def test_a_new_type_may_take_the_name_that_another_gave_up(graph: Graph, store: Store) -> None:
    before, old = look(graph), graph.commits()[0].commit_id
    both = HUMAN + "node Person { name: String @key  rank: I64? }"
    graph.apply_schema(HUMAN)
    for at in range(5):  # so that the versions of one are not those of the other
        graph.load([node("Human", name=f"h{at}")], mode="append")
    graph.apply_schema(both)
    graph.load([node("Person", name="new", rank=1), node("Human", name="eve")], mode="append")
    entries = store.manifest.load().snapshot.entries

    assert entries["node:Human"].table.path != entries[PERSON].table.path
    people = "query q() { match { $p: %s } return { $p.name } order { $p.name } }"
    assert [row["p.name"] for row in graph.query(people % "Person").rows] == ["new"]
    assert len(graph.query(people % "Human").rows) == 9
    assert look(graph, old) == before
    third = both.replace("Human", "Being").replace('("Person")', '("Human")')
    graph.apply_schema(third)
    fourth = third + "node Human { name: String @key }"
    graph.apply_schema(fourth)
    assert [len(graph.query(people % name).rows) for name in ("Person", "Being", "Human")] == [1, 9, 0]
    graph.optimize()
    assert look(graph, old) == before
    assert_settled(store)


def test_a_name_that_comes_again_after_many_versions_is_made_in_a_few_writes(graph: Graph) -> None:
    for at in range(12):
        graph.load([node("Town", name=f"t{at}")], mode="append")
    renamed_town = edited(
        ("node Town {", 'node City @rename_from("Town") {'), ("LivesIn: Person -> Town", "LivesIn: Person -> City")
    )
    graph.apply_schema(renamed_town)
    made = []

    def hook(operation: str, _: str) -> None:
        made.append(operation)

    previous = omnigraph.storage.observe.set_write_hook(hook)
    try:
        graph.apply_schema(renamed_town + "node Town { name: String @key }")
    finally:
        omnigraph.storage.observe.set_write_hook(previous)
    assert sum(operation in ("clone table", "create table") for operation in made) <= 5


def test_a_text_that_differs_only_in_comments_takes_its_place_without_a_commit(graph: Graph, store: Store) -> None:
    for base in (SCHEMA, CHANGES["add a property"].schema):
        graph.apply_schema(base)
        version, commented = store.manifest.load().version, "// who lives where\n" + base
        done = graph.apply_schema(commented)
        assert (done.applied, done.plan.steps, done.commit) == (False, (), None)
        assert graph.schema == omnigraph.open(graph.uri).schema == commented
        assert store.manifest.load().version == version


# What a change separates ---------------------------------------------------------------------------


def test_a_change_feed_goes_on_over_a_change_of_the_types(graph: Graph) -> None:
    start = graph.commits()[0].commit_id
    graph.mutate('query q() { insert Person { name: "zoe" } }')
    done = graph.apply_schema(CHANGES["rename a property"].schema)
    assert done.commit
    graph.mutate('query q() { insert Person { name: "eve", years: 3 } }')

    page = graph.changes(after=start)
    assert [[change.id for change in block.changes] for block in page.blocks] == [["zoe"], [], ["eve"]]
    assert [block.schema and [step.kind for step in block.schema.steps] for block in page.blocks] == [
        None,
        ["rename_property"],
        None,
    ]
    assert page.caught_up
    page = graph.changes(after=done.commit.commit_id)
    assert [change.id for block in page.blocks for change in block.changes] == ["eve"]


def test_a_change_that_touches_no_table_tells_a_feed_nothing(graph: Graph) -> None:
    start = graph.commits()[0].commit_id
    graph.apply_schema(CHANGES["extend an enum"].schema)
    graph.mutate('query q() { insert Person { name: "eve", mood: "wild" } }')
    page = graph.changes(after=start)
    assert [change.id for block in page.blocks for change in block.changes] == ["eve"]


def test_a_diff_across_changes_tells_what_the_entities_and_the_types_became(graph: Graph) -> None:
    old = graph.commits()[0].commit_id
    graph.apply_schema(CHANGES["rename a property"].schema)
    graph.mutate('query q() { update Person set { years: 77 } where name = "bob" }')
    found = graph.diff(old, "main")
    assert found.schema.renamed == ("node:Person.age -> node:Person.years",)
    assert found.schema.properties_added == found.schema.properties_removed == ()
    assert [(change.id, change.changed, (change.before or {})["years"]) for change in found] == [("bob", ("years",), 1)]


def test_a_diff_across_a_property_that_came_again_with_another_type_can_be_told(graph: Graph) -> None:
    old = graph.commits()[0].commit_id
    graph.apply_schema(CHANGES["drop a property"].schema)
    graph.apply_schema(edited(("age: I32?", "age: String?")))
    graph.mutate('query set() { update Person set { age: "old" } where name = "ann" }')
    changes = {change.id: change for change in graph.diff(old, "main")}
    assert (changes["ann"].after or {})["age"] == "old"
    assert {change.operation for change in changes.values()} == {"update"}


def test_a_diff_across_a_type_that_came_again_tells_its_entities_apart(graph: Graph) -> None:
    old = graph.commits()[0].commit_id
    graph.apply_schema(WITHOUT_TOWN)
    graph.apply_schema(SCHEMA)
    graph.load([node("Town", name="Rom")], mode="append")
    changes = [(change.operation, change.id) for change in graph.diff(old, "main", types=["Town"])]
    assert sorted(changes) == [("delete", "Ulm"), ("insert", "Rom")]


@pytest.mark.slow
def test_cleanup_keeps_what_kept_commits_need_of_types_that_changed_their_names(graph: Graph) -> None:
    seen = {}
    for at in range(3):
        graph.load([node("Town", name=f"t{at}")], mode="append")
        seen[graph.commits()[0].commit_id] = look(graph)
    city = edited(
        ("node Town {", 'node City @rename_from("Town") {'), ("LivesIn: Person -> Town", "LivesIn: Person -> City")
    )
    for schema in (city, city + "node Town { name: String @key }"):
        graph.apply_schema(schema)
        seen[graph.commits()[0].commit_id] = look(graph)
    graph.load([node("Town", name="new"), node("City", name="new")], mode="append")
    seen[graph.commits()[0].commit_id] = look(graph)

    graph.cleanup(keep=len(seen), confirm=True)

    fresh = omnigraph.open(graph.uri)  # the other one may know from before what is gone
    assert {commit: look(fresh, commit) for commit in seen} == seen
    graph.cleanup(keep=1, confirm=True)
    assert look(omnigraph.open(graph.uri)) == list(seen.values())[-1]


def test_cleanup_gives_back_the_space_of_a_type_that_is_gone(graph: Graph) -> None:
    path = Path(graph.uri)
    for file in path.rglob("*.txn"):
        os.utime(file, (0, 0))  # as in a graph that was not copied, before the version: Lance compares their ages
    graph.apply_schema(WITHOUT_TOWN)
    assert len(_data_files(path)) == 4
    told = graph.cleanup(keep=1, orphan_age=dt.timedelta(0))
    done = graph.cleanup(keep=1, confirm=True, orphan_age=dt.timedelta(0))
    assert told.tables == done.tables, "what it says beforehand is what it does, the last version of the type included"
    assert {row.table_key: row.old_versions_removed for row in done.tables}["node:Town"] == 3
    assert len(_data_files(path)) == 2
    assert not any(row.old_versions_removed for row in graph.cleanup(keep=1).tables)
    graph.apply_schema(SCHEMA)
    graph.load([node("Town", name="Rom")], mode="append")
    assert graph.query("query q() { match { $t: Town } return { $t.name } }").rows == [{"t.name": "Rom"}]


def _data_files(path: Path) -> list[Path]:
    return [file for kind in ("nodes", "edges") for file in (path / kind).rglob("data/*.lance")]


def test_a_renamed_key_and_its_ids_stay(tmp_path: Path) -> None:
    graph = make(str(tmp_path / "g"))
    text = edited(("node Town { name: String @key }", 'node Town { title: String @key @rename_from("name") }'))
    graph.apply_schema(text)
    towns = [one["data"] for one in look(graph) if one.get("type") == "Town"]
    assert towns == [renamed({"id": "Ulm", "name": "Ulm"}, "name", "title")]
    graph.load([node("Town", title="Ulm"), node("Town", title="Rom")], mode="merge")
    assert [one["data"]["id"] for one in look(graph) if one.get("type") == "Town"] == ["Rom", "Ulm"]


def test_names_come_again_and_drops_are_for_good_on_an_object_store_too(s3_uri: str) -> None:
    graph = make(s3_uri)
    before, old = look(graph), graph.commits()[0].commit_id
    graph.apply_schema(HUMAN)
    graph.apply_schema(HUMAN + "node Person { name: String @key }")
    graph.load([node("Person", name="new"), node("Human", name="eve")], mode="append")
    assert len(look(graph)) == len(before) + 2
    assert look(graph, old) == before

    graph.apply_schema(HUMAN, allow_data_loss=True)

    fresh = omnigraph.open(s3_uri)
    assert len(look(fresh)) == len(before) + 1
    assert look(fresh, old) == before
    with pytest.raises(omnigraph.errors.HistoryReclaimedError):
        look(fresh, graph.commits()[1].commit_id)
    assert fresh.doctor().is_healthy
