"""What a branch did since it forked, the history of one entity, and commits and entities that are brought elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import omnigraph
from omnigraph.api.results import ChangeCounts, MergeOutcome
from omnigraph.errors import (
    AmbiguousRefError,
    ChangeRequestError,
    EntityNotFoundError,
    MergeConflictError,
    MergeError,
    OptionError,
    RefNameError,
)
from omnigraph.graph import Graph
from omnigraph.storage.observe import counted
from tests.history.people import ages, head, new_graph, refused, rows, run
from tests.support.cli import command

OLDER = 'update Person set { age: 31 } where name = "Alice"'
EVE = 'insert Person { name: "Eve", age: 22 } insert Knows { from: "Eve", to: "Dan" }'


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    return new_graph(tmp_path)


@pytest.fixture
def forked(graph: Graph) -> Graph:
    """Branch b has changed Alice and brought Eve; main has changed Bob since."""
    graph.create_branch("b")
    run(graph, OLDER, "b", actor="ann", message="Alice had a birthday")
    run(graph, EVE, "b", actor="eve")
    run(graph, 'update Person set { age: 26 } where name = "Bob"')
    return graph


# What a branch did


def test_a_difference_since_the_fork_leaves_out_what_the_other_side_did(forked: Graph) -> None:
    found = [(str(one.operation), one.type_name, one.id) for one in forked.diff("main...b") if one.kind == "node"]

    assert found == [("update", "Person", "Alice"), ("insert", "Person", "Eve")]
    assert "Bob" in {one.id for one in forked.diff("main", "b")}
    assert [one.id for one in forked.diff("b...main")] == ["Bob"]
    assert [one.id for one in forked.diff("...b", kinds=["node"])] == ["Alice", "Eve"]


def test_a_branch_whose_work_was_merged_has_done_nothing_since(forked: Graph) -> None:
    forked.merge("b")

    assert list(forked.diff("main...b")) == []
    assert forked.log(["main..b"]) == []


def test_branches_that_were_merged_crosswise_have_no_single_fork(forked: Graph) -> None:
    main, other = head(forked), head(forked, "b")
    forked.merge(main, "b")
    forked.merge(other)

    with pytest.raises(AmbiguousRefError) as caught:
        forked.diff("main...b")

    assert set(caught.value.candidates) == {main, other}
    assert caught.value.hint
    assert list(forked.diff(caught.value.candidates[0], "b")) != []


@pytest.mark.parametrize("text", ["main", "main..b", "main....b", "main...", "..."])
def test_a_single_state_is_no_difference(forked: Graph, text: str) -> None:
    with pytest.raises(RefNameError):
        forked.diff(text)


def test_the_log_of_a_range_has_the_commits_that_one_side_lacks(forked: Graph) -> None:
    since = [entry.commit.actor_id for entry in forked.log(["main..b"])]

    assert since == ["eve", "ann"]
    forked.merge("b")
    assert [entry.commit.actor_id for entry in forked.log(["b..main"])] == [None, None]


def test_the_log_of_a_range_has_what_merges_brought_in(forked: Graph) -> None:
    forked.create_branch("c", "main~1")
    forked.merge("b", "c", actor="carl")

    assert [entry.commit.actor_id for entry in forked.log(["main..c"])] == ["carl", "eve", "ann"]


# One query on several branches

AGES = "query ages() { match { $p: Person } return { $p.name, $p.age } order { $p.name asc } limit 2 }"


def test_a_query_of_several_branches_names_the_branch_of_each_row(forked: Graph) -> None:
    found = forked.query(AGES, branches=["main", "b", "main", "main~1"])

    assert found.columns == ["branch", "p.name", "p.age"]
    assert [(row["branch"], row["p.name"], row["p.age"]) for row in found.rows] == [
        ("main", "Alice", 30),
        ("main", "Bob", 26),
        ("b", "Alice", 31),
        ("b", "Bob", 25),
        ("main~1", "Alice", 30),
        ("main~1", "Bob", 25),
    ]


def test_tables_that_branches_share_are_read_once(graph: Graph) -> None:
    names = [f"b{number}" for number in range(8)]
    for name in names:
        graph.create_branch(name)
    reader = omnigraph.open(graph.uri, read_only=True)
    reader.query(AGES)

    with counted() as requests:
        assert len(reader.query(AGES, branches=names).rows) == 16
    with counted() as one:
        omnigraph.open(graph.uri, read_only=True).query(AGES)
    # What a branch costs is to look at its manifest, a handful of requests, and no table.
    assert requests.requests.total / 8 < one.requests.total


@pytest.mark.parametrize(
    "more", [{"branches": []}, {"branches": ["b"], "branch": "b"}, {"branches": ["b"], "snapshot": "b"}]
)
def test_branches_exclude_other_states(forked: Graph, more: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        forked.query(AGES, **more)
    with pytest.raises(OptionError):
        forked.query("query q() { match { $p: Person } return { $p.name as branch } }", branches=["b"])


def test_the_difference_of_two_answers_has_the_rows_that_one_lacks(forked: Graph) -> None:
    main, other = forked.query(AGES), forked.query(AGES, branch="b")

    only_main, only_other = main.difference(other)
    assert only_main == [{"p.name": "Alice", "p.age": 30}, {"p.name": "Bob", "p.age": 26}]
    assert only_other == [{"p.name": "Alice", "p.age": 31}, {"p.name": "Bob", "p.age": 25}]
    assert main.difference(main) == ([], [])


# Messages


def test_every_write_takes_a_message(graph: Graph) -> None:
    graph.create_branch("b")
    run(graph, OLDER, "b", message="m1")
    graph.load([{"type": "Person", "data": {"name": "Fay"}}], mode="append", message="m2")
    graph.merge("b", message="m3")
    graph.revert(head(graph), message="m4")
    graph.cherry_pick("main~1", message="m5")
    graph.restore_entities("Person", ["Alice"], ref="main~1", message="m6")
    graph.delete_branch("b")
    graph.apply_schema(graph.schema.replace("age: I32?", "age: I32?  city: String?"), message="  m7\nand why  ")

    assert [commit.message for commit in graph.commits()[:6]] == ["m7\nand why", "m6", "m5", "m4", "m3", "m2"]
    assert graph.commits()[5].details == {"message": "m2"}


@pytest.mark.parametrize("message", ["x" * 8193, "é" * 4097, "a\x1b[2Jb", "a\0b", "\ud800"])
def test_a_message_that_is_no_text_of_8_kib_changes_nothing(graph: Graph, message: str) -> None:
    error = refused(graph, lambda: graph.mutate(f"query q() {{ {OLDER} }}", message=message))

    assert isinstance(error, OptionError)
    assert error.option == "message"


def test_a_blank_message_is_none(graph: Graph) -> None:
    run(graph, OLDER, message=" \n ")

    assert graph.commits()[0].details is None


# The history of one entity


def _told(graph: Graph, name: str, **more: object) -> list[tuple[str, tuple[str, ...], str | None]]:
    found = graph.history_of("Person", name, **more)  # type: ignore[arg-type]
    return [(str(one.change.operation), one.change.changed, one.commit.actor_id) for one in found]


def test_the_history_of_an_entity_names_its_commits_and_properties(graph: Graph) -> None:
    run(graph, OLDER, actor="ann")
    run(graph, 'insert Person { name: "Zoe" }')
    run(graph, 'delete Person where name = "Alice"', actor="bea")
    run(graph, 'insert Person { name: "Alice" }', actor="cid")
    run(graph, 'update Person set { age: 31 } where name = "Alice"', actor="dan")

    assert _told(graph, "Alice") == [
        ("update", ("age",), "dan"),
        ("insert", (), "cid"),
        ("delete", (), "bea"),
        ("update", ("age",), "ann"),
        ("insert", (), None),
    ]
    assert _told(graph, "Alice", limit=2) == [("update", ("age",), "dan"), ("insert", (), "cid")]
    assert len(_told(graph, "Alice", branch="main~3")) == 3 - 1
    [newest, *_] = graph.history_of("Person", "Alice", limit=1)
    assert (newest.change.before, newest.change.after) == ({"name": "Alice", "age": None}, {"name": "Alice", "age": 31})


def test_the_history_of_an_entity_goes_through_merges(forked: Graph) -> None:
    merge = forked.merge("b", actor="meg").commit
    run(forked, 'update Person set { age: 32 } where name = "Alice"', actor="tom")

    newest, merged, first = forked.history_of("Person", "Alice")
    assert (newest.commit.actor_id, newest.merge) == ("tom", None)
    assert (merged.commit.actor_id, merged.commit.message, merged.merge) == ("ann", "Alice had a birthday", merge)
    assert (first.change.operation, first.merge) == ("insert", None)
    assert [one.commit.actor_id for one in forked.history_of("Person", "Eve")] == ["eve"]


def test_of_a_deleted_branch_the_merge_itself_is_listed(forked: Graph) -> None:
    merge = forked.merge("b").commit
    forked.delete_branch("b")

    [newest, first] = forked.history_of("Person", "Alice")
    assert (newest.commit, newest.merge, newest.change.changed) == (merge, None, ("age",))
    assert first.change.operation == "insert"


def test_the_history_survives_compactions_and_rewritten_values(graph: Graph) -> None:
    run(graph, OLDER, actor="ann")
    graph.load([{"type": "Person", "data": {"name": "Alice", "age": 31}}], mode="merge")
    graph.optimize()
    run(graph, 'insert Person { name: "Zoe" }')

    assert _told(graph, "Alice") == [("update", ("age",), "ann"), ("insert", (), None)]


def test_an_edge_has_a_history_too(forked: Graph) -> None:
    [edge] = [row for row in rows(forked, "b") if row.get("from") == "Eve"]

    [made] = forked.history_of("Knows", edge["data"]["id"], "b")
    assert (made.change.operation, made.change.endpoints, made.commit.actor_id) == ("insert", ("Eve", "Dan"), "eve")


@pytest.mark.parametrize("type_name, name", [("Persn", "Alice"), ("Person", "Alic")])
def test_the_history_of_what_is_not_there_is_refused(graph: Graph, type_name: str, name: str) -> None:
    with pytest.raises(ChangeRequestError if type_name == "Persn" else EntityNotFoundError) as caught:
        graph.history_of(type_name, name)
    assert caught.value.hint


def test_the_history_costs_what_touched_the_table_and_not_the_length_of_the_log(tmp_path: Path) -> None:
    graph = new_graph(tmp_path, "node Person { name: String @key  age: I32? } node Note { name: String @key }", "")
    run(graph, 'insert Person { name: "Alice" }')
    costs = []
    for commits in (12, 120):
        for number in range(commits):
            run(graph, f'insert Note {{ name: "{commits}-{number}" }}')
        run(graph, f'update Person set {{ age: {commits} }} where name = "Alice"')  # noqa: S608 - .gq
        with counted() as requests:
            versions = graph.history_of("Person", "Alice")
        costs.append(requests.requests.total / len(versions))

    # A binary search among all commits for each change: ten times as many commits are three or four more steps.
    assert [one.change.operation for one in versions] == ["update", "update", "insert"]
    assert costs[1] < 2 * costs[0]


# Cherry-picks


def test_a_commit_is_picked_without_those_before_it(forked: Graph) -> None:
    picked = forked.cherry_pick("b", actor="pia")

    assert (picked.outcome, picked.commit and picked.commit.details) == (
        MergeOutcome.MERGED,
        {"picked": head(forked, "b")},
    )
    assert picked.commit
    assert (picked.commit.actor_id, picked.commit.merged_parent_id) == ("pia", None)
    assert ages(forked) == {"Alice": 30, "Bob": 26, "Carol": 40, "Dan": 50, "Eve": 22}
    assert forked.cherry_pick("b").outcome is MergeOutcome.ALREADY_UP_TO_DATE
    merged = forked.merge("b")  # what was picked is no conflict
    assert merged.changes == {"node:Person": ChangeCounts(0, 1, 0)}


def test_a_picked_commit_that_contradicts_the_branch_is_a_conflict(forked: Graph) -> None:
    run(forked, 'update Person set { age: 99 } where name = "Alice"')
    error = refused(forked, lambda: forked.cherry_pick("b~1"))

    assert isinstance(error, MergeConflictError)
    forked.cherry_pick("b~1", resolve="theirs")
    assert ages(forked)["Alice"] == 31


def test_the_first_commit_cannot_be_picked(graph: Graph) -> None:
    assert isinstance(refused(graph, lambda: graph.cherry_pick("main~1")), MergeError)


# Restored entities


def test_entities_are_restored_to_what_they_were(graph: Graph) -> None:
    before = ages(graph)
    run(graph, OLDER)
    run(graph, 'delete Person where name = "Bob"')
    run(graph, 'insert Person { name: "Zoe" }')
    then = graph.commits()[3].commit_id

    done = graph.restore_entities("Person", ["Alice"], ref="main~3")
    assert done.commit
    assert done.commit.details == {
        "restored": {"commit": then, "table_key": "node:Person", "ids": ["Alice"], "count": 1}
    }
    assert ages(graph) == {"Alice": 30, "Carol": 40, "Dan": 50, "Zoe": None}
    graph.restore_entities("Person", ref=then)
    assert ages(graph) == before
    assert graph.restore_entities("Person", ref=then).outcome is MergeOutcome.ALREADY_UP_TO_DATE
    assert graph.restore_entities("Knows", ref=then).changes == {"edge:Knows": ChangeCounts(1, 0, 0)}


def test_a_node_that_edges_refer_to_is_not_restored_to_nothing(graph: Graph) -> None:
    run(graph, EVE)

    error = refused(graph, lambda: graph.restore_entities("Person", ["Eve"], ref="main~1"))

    assert isinstance(error, MergeConflictError)
    assert [one.kind for one in error.conflicts] == ["orphan_edge"]


def test_an_entity_of_neither_state_is_not_restored(graph: Graph) -> None:
    run(graph, OLDER)
    assert isinstance(
        refused(graph, lambda: graph.restore_entities("Person", ["Alic"], ref="main~1")), EntityNotFoundError
    )


def test_entities_are_restored_on_a_branch_from_main(forked: Graph) -> None:
    before = ages(forked, "b")

    forked.restore_entities("Person", ["Bob"], ref="main", branch="b")

    assert ages(forked, "b") == before | {"Bob": 26}
    assert ages(forked, "main")["Alice"] == 30


# The command line


def test_the_commands_say_what_a_branch_did(forked: Graph) -> None:
    uri = forked.uri

    assert "~ Alice  age: 30 -> 31" in command("diff", "main...b", "--uri", uri).out
    assert command("log", uri, "--branch", "main..b").out.splitlines()[-1].endswith('ann "Alice had a birthday"')
    told = command("history", "Person", "Alice", uri, "--branch", "b").out.splitlines()
    assert told[0].endswith('ann "Alice had a birthday"')
    assert told[1] == "  ~ age: 30 -> 31"
    assert command("cherry-pick", "b", uri, "-m", "take Eve").code == 0
    assert (
        command("restore-entities", "Person", uri, "--id", "Eve", "--from", "b")
        .out.strip()
        .endswith("nothing to change")
    )
    assert "message: take Eve" in command("commit", "show", "main", uri).out
