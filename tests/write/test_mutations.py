"""Mutations among others: handles, actors, conditions, limits, faults half-way, and tables that strangers moved.

What a single mutation does to a graph is in the case files; here is what needs more than a query to show.
"""

from __future__ import annotations

import datetime as dt
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import omnigraph
from omnigraph.commit import failpoints
from omnigraph.commit.plan import OpClass, PublishPlan, TableAction, WriterKind
from omnigraph.commit.publish import begin, publish
from omnigraph.errors import (
    ConstraintError,
    DriftError,
    ExpectedVersionMismatchError,
    OutcomeUnknownError,
    PreconditionFailedError,
    QueryError,
    ResourceLimitError,
    StorageError,
)
from omnigraph.graph import Graph
from omnigraph.lang.ir import Operator
from omnigraph.lang.types import STRING
from omnigraph.manifest.publisher import Changes, Lineage
from omnigraph.storage.layout import IndexSpec
from omnigraph.storage.predicates import comparison
from omnigraph.write.pending import Pending, scan_with_pending
from tests.support.faults import assert_settled, foreign_commit
from tests.support.graphs import COMPANY, KNOWS, PERSON
from tests.write.scene import before_writing, check_done, difference, look, nothing_changes, rows_of, store_of

ADD = "query add($n: String) { insert Person { name: $n } }"
AGE = "query age($n: String, $a: I32) { update Person set { age: $a } where name = $n }"
REMOVE = "query remove($n: String) { delete Person where name = $n }"
DIANA: dict[str, dict[str, Any]] = {AGE: {"n": "Diana", "a": 1}, REMOVE: {"n": "Diana"}}
HIRE = "query hire($n: String) { insert Company { name: $n } }"
BOTH = 'query both() { insert Person { name: "Eve" } insert Company { name: "New" } }'


def ages(graph: Graph) -> dict[str, int | None]:
    return {row["name"]: row["age"] for row in rows_of(graph, PERSON)}


def other(graph: Graph) -> Graph:
    return omnigraph.open(graph.uri)


# One write for all of it


@pytest.mark.parametrize(
    "query, staged",
    [
        ('insert Knows { from: "Bob", to: "Alice" } insert Knows { from: "Bob", to: "Bob" }', ["append"]),
        ('insert Person { name: "x" } update Person set { age: 1 } where name = "x"', ["append"]),
        ('insert Person { name: "Bob" } update Person set { age: 1 } where age > 29', ["upsert"]),
        ('delete Knows where to = "Bob" delete Knows where to = "Diana"', ["delete"]),
        ('delete Person where name = "Charlie" delete Knows where from = "Alice"', ["delete", "delete"]),
        ('update Person set { age: 1 } where name = "x"', []),
        ('delete Person where name = "x"', []),
    ],
)
def test_each_table_is_staged_once_whatever_the_statements(people: Graph, query: str, staged: list[str]) -> None:
    with before_writing("stage ", lambda: None) as seen:  # "stage" alone is the manifest
        people.mutate(f"query q() {{ {query} }}")

    assert seen == [f"stage {kind}" for kind in staged]


def test_a_mutation_that_finds_nothing_writes_nothing_at_all(people: Graph) -> None:
    with before_writing("", lambda: None) as written:
        done = people.mutate(REMOVE, {"n": "Nobody"}, actor="eve")

    assert (done.affected_nodes, done.affected_edges, done.commit) == (0, 0, None)
    assert written == []


def test_a_mixed_mutation_is_refused_before_any_table_is_read(people: Graph) -> None:
    shutil.rmtree(Path(people.uri) / "nodes")

    with pytest.raises(QueryError, match="`mixed`"):
        people.mutate('query mixed() { update Person set { age: 1 } where age > 1 delete Person where name = "Bob" }')


def test_a_pending_row_hides_the_committed_one_and_only_an_id_tells(people: Graph) -> None:
    node, store = people.catalog.nodes["Person"], store_of(people)
    table = store.manifest.load().snapshot.entries[PERSON].table
    pending = Pending(node)
    pending.extend(Pending(node).image(), pending.mode)
    wanted = comparison("name", STRING, Operator.GE, "Bob")

    found = scan_with_pending(store.tables, table, pending.image(), ["id", "name"], wanted)
    with pytest.raises(AssertionError, match="the id is needed"):
        scan_with_pending(store.tables, table, pending.image(), ["name"], wanted)

    assert sorted(found["name"].to_pylist()) == ["Bob", "Charlie", "Diana"]


def test_the_newest_commit_names_the_actor(people: Graph) -> None:
    before = look(people)

    done = people.mutate(ADD, {"n": "Eve"}, actor="ada")

    assert (people.commits()[0], done.actor_id) == (done.commit, "ada")
    assert people.commits()[0].actor_id == "ada"
    assert people.commits(actor="ada") == [done.commit]
    check_done(before, look(people), done)


def test_one_handle_updates_a_row_again_and_again(people: Graph) -> None:
    for age in (40, 41, 41):
        assert people.mutate(AGE, {"n": "Bob", "a": age}).affected_nodes == 1

    assert ages(people)["Bob"] == 41
    assert len(people.commits()) == 5


def test_now_is_the_time_of_the_commit(rules: Graph) -> None:
    done = rules.mutate('query q() { insert User { name: "dan", seen: now() } }')

    assert done.commit
    store = store_of(rules)
    table = store.tables.open(store.manifest.load().snapshot.entries["node:User"].table)
    moment = dt.datetime.fromtimestamp(done.commit.created_at // 1000 / 1000, dt.UTC)
    (row,) = table.to_table(filter="name = 'dan'", columns={"at": "arrow_cast(seen, 'Int64')"}).to_pylist()
    assert row["at"] == round(moment.timestamp() * 1000)


# Other writers in between


def test_a_handle_that_saw_nothing_of_another_write_inserts_and_updates(people: Graph) -> None:
    fresh = other(people)
    fresh.mutate(ADD, {"n": "Eve"})

    assert people.mutate(ADD, {"n": "Fay"}).affected_nodes == 1
    assert fresh.mutate(AGE, {"n": "Fay", "a": 3}).affected_nodes == 1
    assert people.mutate(AGE, {"n": "Eve", "a": 4}).affected_nodes == 1

    assert ages(people) == {"Alice": 30, "Bob": 25, "Charlie": 35, "Diana": 28, "Eve": 4, "Fay": 3}
    assert_settled(store_of(people))


@pytest.mark.parametrize(
    "mine, theirs",
    [
        (ADD, "insert Person { name: 'Fay' }"),
        (ADD, "insert Company { name: 'Fay' }"),
        (ADD, "update Person set { age: 99 } where name = 'Bob'"),
        (ADD, "delete Person where name = 'Alice'"),
        (HIRE, "insert Person { name: 'Fay' }"),
        (HIRE, "insert Company { name: 'Fay' }"),
    ],
)
def test_an_insert_that_another_write_overtakes_is_prepared_anew(people: Graph, mine: str, theirs: str) -> None:
    before, rival = look(people), other(people)
    query = f"query other() {{ {theirs} }}".replace("'", '"')

    with before_writing("stage", lambda: rival.mutate(query, actor="rival")):
        done = people.mutate(mine, {"n": "Eve"})

    after = look(people)
    assert done.commit
    assert after.commits[0] == done.commit.commit_id
    assert len(after.commits) == len(before.commits) + 2
    assert people.commits()[1].actor_id == "rival"
    assert sum("Eve" in line for line in difference(before, after)) == 1


@pytest.mark.parametrize("mine", [AGE, REMOVE])
@pytest.mark.parametrize(
    "theirs",
    [
        "insert Person { name: 'Fay' }",
        "update Person set { age: 99 } where name = 'Bob'",
        "delete Person where name = 'Bob'",
    ],
)
def test_a_strict_mutation_that_a_change_of_its_table_overtakes_is_lost(people: Graph, mine: str, theirs: str) -> None:
    rival, pin = other(people), look(people).versions[PERSON]
    query = f"query other() {{ {theirs} }}".replace("'", '"')

    with (
        before_writing("stage", lambda: rival.mutate(query)),
        pytest.raises(ExpectedVersionMismatchError) as lost,
    ):
        people.mutate(mine, DIANA[mine])

    assert lost.value.details() == {"table_key": PERSON, "expected": pin, "actual": pin + 1}
    assert ages(people)["Diana"] == 28
    assert people.mutate(mine, DIANA[mine]).affected_nodes == 1
    assert_settled(store_of(people))


@pytest.mark.parametrize("mine", [AGE, REMOVE])
def test_a_strict_mutation_survives_a_change_of_another_table(people: Graph, mine: str) -> None:
    rival = other(people)

    with before_writing("stage", lambda: rival.mutate(HIRE, {"n": "New"})):
        assert people.mutate(mine, DIANA[mine]).affected_nodes == 1

    assert len(people.commits()) == 4


@pytest.mark.parametrize("mine", [AGE, REMOVE])
def test_a_strict_mutation_survives_upkeep_of_its_table(people: Graph, mine: str) -> None:
    with before_writing("stage", lambda: build_index(people)):
        assert people.mutate(mine, DIANA[mine]).affected_nodes == 1

    assert ages(people).get("Diana") == (1 if mine is AGE else None)
    assert_settled(store_of(people))


def build_index(graph: Graph) -> None:
    store = store_of(graph)
    txn = begin(store)
    staged = store.tables.stage_create_indices(txn.entries[PERSON].table, [IndexSpec("id", "BTREE")])
    publish(store, PublishPlan(txn, WriterKind.ENSURE_INDICES, (TableAction(staged, OpClass.MAINTENANCE),)))


def test_an_edge_to_a_node_that_another_deletes_meanwhile_is_refused(people: Graph) -> None:
    rival = other(people)
    rival.mutate(ADD, {"n": "Zoe"})

    with (
        before_writing("stage", lambda: rival.mutate(REMOVE, {"n": "Zoe"})),
        pytest.raises(ConstraintError, match="dst 'Zoe' not found in Person"),
    ):
        people.mutate('query q() { insert Knows { from: "Alice", to: "Zoe" } }')

    assert "Zoe" not in {row["dst"] for row in rows_of(people, KNOWS)}
    assert_settled(store_of(people))


def test_a_node_that_gets_an_edge_while_it_is_deleted_takes_that_edge_along(people: Graph) -> None:
    rival = other(people)
    rival.mutate(ADD, {"n": "Zoe"})
    friend = 'query q() { insert Knows { from: "Alice", to: "Zoe" } }'

    with before_writing("stage", lambda: rival.mutate(friend)):
        done = people.mutate(REMOVE, {"n": "Zoe"})

    assert (done.affected_nodes, done.affected_edges) == (1, 1)
    assert "Zoe" not in {row["dst"] for row in rows_of(people, KNOWS)}
    assert_settled(store_of(people))


def test_two_mutations_that_each_miss_what_the_other_inserts_do_not_both_happen(rules: Graph) -> None:
    rival = other(rules)
    theirs = 'query q() { update Note set { pages: 1 } where text = "new" insert User { name: "fay" } }'
    mine = 'query q() { update User set { age: 1 } where name = "fay" insert Note { text: "new" } }'

    with before_writing("stage", lambda: rival.mutate(theirs)), pytest.raises(ExpectedVersionMismatchError) as lost:
        rules.mutate(mine)

    assert lost.value.table_key == "node:User"
    assert rows_of(rules, "node:Note") == []
    assert rules.mutate(mine).affected_nodes == 2


def test_a_rival_that_wins_the_manifest_once_is_waited_for(people: Graph) -> None:
    manifest, before = store_of(people).manifest, look(people)

    def rival() -> None:
        manifest.publish(None, Changes(), {}, Lineage.new("rival"))

    with before_writing("publish", rival):
        done = people.mutate(ADD, {"n": "Eve"})

    after = look(people)
    assert done.commit
    assert after.commits[0] == done.commit.commit_id
    assert len(after.commits) == len(before.commits) + 2
    assert difference(before, after) == ["+ Person name=Eve"]


def test_an_edge_too_many_is_refused_also_if_the_last_one_allowed_came_from_another_handle(rules: Graph) -> None:
    query = 'query q($n: String) { insert WorksAt { from: $n, to: "Acme" } }'
    rival = other(rules)
    rival.mutate(query, {"n": "ben"})
    with pytest.raises(ConstraintError, match=r"source 'ben' has 2 edges \(max 1\)"):
        rules.mutate(query, {"n": "ben"})

    with (
        before_writing("stage", lambda: rival.mutate(query, {"n": "cleo"})),
        pytest.raises(ConstraintError, match=r"source 'cleo' has 2 edges \(max 1\)"),
    ):
        rules.mutate(query, {"n": "cleo"})

    assert sorted(row["src"] for row in rows_of(rules, "edge:WorksAt")) == ["ann", "ben", "cleo"]
    assert_settled(store_of(rules))


# On a condition


def test_a_mutation_may_depend_on_the_head_of_its_branch(people: Graph) -> None:
    head = people.commits()[0].commit_id
    done = people.mutate(ADD, {"n": "Eve"}, if_commit=head)
    assert done.commit
    assert done.commit.parent_id == head

    for query in (ADD, REMOVE, HIRE):
        before = look(people)
        with pytest.raises(PreconditionFailedError) as failed:
            people.mutate(query, {"n": "Nobody"}, if_commit=head)
        assert failed.value.details() == {"expected": head, "actual": done.commit.commit_id}
        assert look(people) == before
    with nothing_changes(people), pytest.raises(PreconditionFailedError):
        people.mutate(ADD, {"n": "Fay"}, if_commit="no commit")


def test_a_condition_holds_until_the_change_is_visible(people: Graph) -> None:
    rival, head = other(people), people.commits()[0].commit_id

    with before_writing("stage", lambda: rival.mutate(HIRE, {"n": "New"})), pytest.raises(PreconditionFailedError):
        people.mutate(ADD, {"n": "Eve"}, if_commit=head)

    assert "Eve" not in ages(people)
    assert_settled(store_of(people))


def test_a_condition_on_a_mutation_that_finds_nothing_is_no_commit(people: Graph) -> None:
    head = people.commits()[0].commit_id

    assert people.mutate(REMOVE, {"n": "Nobody"}, if_commit=head).commit is None
    assert people.commits()[0].commit_id == head


# Limits


@pytest.mark.slow
def test_a_query_inserts_as_many_entities_of_a_type_as_allowed_and_no_more(people: Graph) -> None:
    lines = [f'insert Company {{ name: "c{number}" }}' for number in range(8193)]
    with nothing_changes(people), pytest.raises(ResourceLimitError) as refused:
        people.mutate(f"query q() {{ {' '.join(lines)} }}")
    assert (refused.value.limit, refused.value.actual) == (8192, 8193)

    done = people.mutate(f'query q() {{ {" ".join(lines[1:])} insert Person {{ name: "Eve" }} }}')

    assert done.affected_nodes == 8193
    assert len(rows_of(people, COMPANY)) == 8195
    assert_settled(store_of(people))


# Stopped half-way


def interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("number", [1, 2])
def test_a_mutation_interrupted_while_it_stages_leaves_nothing(people: Graph, number: int) -> None:
    with nothing_changes(people), pytest.raises(KeyboardInterrupt), before_writing("stage", interrupt, number=number):
        people.mutate(BOTH)


@pytest.mark.parametrize("at", [failpoints.PUBLISH_AFTER_GATES, failpoints.PUBLISH_AFTER_SIDECAR])
@pytest.mark.parametrize("query", [BOTH, 'query q() { delete Person where name = "Alice" }'])
def test_a_mutation_interrupted_before_a_head_moved_is_undone(people: Graph, at: str, query: str) -> None:
    before = look(people)
    with pytest.raises(KeyboardInterrupt), failpoints.armed(at, interrupt):
        people.mutate(query)

    assert people.mutate(HIRE, {"n": "Next"}).affected_nodes == 1
    assert difference(before, look(people)) == ["+ Company name=Next"]


def test_a_fault_between_the_tables_of_a_delete_moves_no_head(people: Graph) -> None:
    def fail() -> None:
        raise StorageError("the disk is gone", path="", operation="stage")

    with nothing_changes(people), pytest.raises(StorageError), before_writing("stage delete", fail, number=2):
        people.mutate('query q() { delete Person where name = "Alice" delete Knows where from = "Bob" }')


def test_an_unknown_outcome_can_be_asked_for(people: Graph) -> None:
    def fail() -> None:
        raise StorageError("the network is gone", path="", operation="publish")

    before = look(people)
    with pytest.raises(OutcomeUnknownError) as unknown, before_writing("publish", fail):
        people.mutate(BOTH)

    assert unknown.value.operation_id
    commit = people.outcome(unknown.value.operation_id)
    assert commit
    assert people.commits()[0] == commit
    assert difference(before, look(people)) == ["+ Company name=New", "+ Person name=Eve"]
    assert people.outcome("nobody knows it") is None


# Tables that strangers moved


@pytest.mark.parametrize(
    "moved, query",
    [
        (PERSON, 'insert Person { name: "Eve" }'),
        (PERSON, "update Person set { age: 1 } where age > 1"),
        (PERSON, 'delete Person where name = "Bob"'),
        (KNOWS, 'insert Knows { from: "Bob", to: "Alice" }'),
        (KNOWS, 'delete Knows where from = "Alice"'),
        (KNOWS, 'delete Person where name = "Bob"'),
    ],
)
def test_a_table_that_a_stranger_moved_takes_no_write(people: Graph, moved: str, query: str) -> None:
    store, before = store_of(people), look(people)
    head = foreign_commit(store, moved)

    with pytest.raises(DriftError) as drift:
        people.mutate(f"query q() {{ {query} }}")

    assert (drift.value.table_key, drift.value.head, drift.value.pin) == (moved, head, head - 1)
    state = store_of(people).manifest.load()
    assert {key: entry.table.version for key, entry in state.snapshot.entries.items()} == before.versions
    assert len(state.commits()) == len(before.commits)
    assert store.tables.head(state.snapshot.entries[moved].table.path, None).version == head
    assert people.mutate(HIRE, {"n": "New"}).affected_nodes == 1


# Blobs


def test_a_blob_of_a_graph_of_many_is_kept_by_an_update_of_all(copy_of: Callable[[str], Graph]) -> None:
    graph = copy_of("rules")
    query = " ".join(f'insert User {{ name: "u{number}", photo: $b }}' for number in range(20))
    graph.mutate(f"query q($b: Blob) {{ {query} }}", {"b": "base64:" + "AQID" * 2000})

    assert graph.mutate('query q() { update User set { age: 5 } where name >= "u" }').affected_nodes == 20

    users = [row for row in rows_of(graph, "node:User") if row["age"] == 5]
    assert {row["photo"] for row in users} == {bytes([1, 2, 3]) * 2000}
