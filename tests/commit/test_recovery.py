"""Recovery: whatever stopped a write, the next one finds all of it or none of it, and a record of what was done."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import omnigraph
from omnigraph.commit import audit, failpoints
from omnigraph.commit.audit import RecoveryKind, TableOutcome
from omnigraph.commit.gates import _Locked
from omnigraph.commit.plan import OpClass, PublishPlan, TableAction, WriterKind, gates_for
from omnigraph.commit.publish import begin, publish
from omnigraph.commit.recovery import RECOVERY_ACTOR, heal, recover
from omnigraph.commit.sidecar import DIRECTORY
from omnigraph.commit.store import Store
from omnigraph.errors import (
    ConflictError,
    CorruptGraphError,
    DriftError,
    ExpectedVersionMismatchError,
    GateTimeoutError,
    OmnigraphError,
    OutcomeUnknownError,
    RecoveryRequiredError,
    StorageError,
)
from omnigraph.manifest.publisher import Changes, Lineage
from omnigraph.manifest.rows import TableRow, TombstoneRow, VersionRow
from omnigraph.storage.layout import IndexSpec
from omnigraph.storage.observe import counted
from tests.commit.child import Child, after_a_lifetime, store_at
from tests.commit.places import copied, mostly_local, once
from tests.support.faults import (
    CrashError,
    add_company,
    assert_settled,
    at_arrival,
    crash,
    dataset,
    doing,
    failing,
    foreign_commit,
    fork,
    interrupt,
    on_branch,
    pin_of,
    pins,
    recovery_commits,
    refuse,
    small_graph,
    unfork,
    write_record,
)
from tests.support.graphs import (
    COMPANY,
    KNOWS,
    PERSON,
    WORKS_AT,
    append,
    company,
    contents,
    delete,
    edge,
    person,
    plan,
    table,
    upsert,
)

FORWARD, BACK, ORPHAN = RecoveryKind.ROLLED_FORWARD, RecoveryKind.ROLLED_BACK, RecoveryKind.ORPHANED_BRANCH_DISCARDED
ALL_MOVED = failpoints.PUBLISH_BEFORE_MANIFEST
ONE_MOVED = failpoints.PUBLISH_AFTER_TABLE_COMMIT
NONE_MOVED = failpoints.PUBLISH_AFTER_SIDECAR
ALL_VISIBLE = failpoints.PUBLISH_AFTER_MANIFEST


@pytest.fixture(scope="module")
def templates() -> Callable[[str], str]:
    return once(lambda uri: small_graph(uri).location.uri)


@pytest.fixture
def template(root_uri: str, templates: Callable[[str], str]) -> str:
    return templates(root_uri)


@pytest.fixture
def store(template: str) -> Store:
    return store_at(copied(template))


def opened(store: Store, **options: float) -> Store:
    """The same graph as somebody else opens it."""
    return store_at(store.location.uri, **options)


def behead(store: Store, key: str) -> str:
    """Remove the newest version of a table; return where the table is."""
    path = store.manifest.load().snapshot.entries[key].table.path
    names = store.objects.list(f"{path}/_versions")
    store.objects.delete(f"{path}/_versions/{min(name for name in names if name.endswith('.manifest'))}")
    return path


def fence(store: Store) -> int:
    """How far undoing moves a table that had not moved: on an object store it is restored as well."""
    return int(store.gates.can_be_lost)


def mutation(store: Store, branch: str | None = None, actor: str | None = "ada") -> PublishPlan:
    """One person is changed, another is new, a friendship ends; on main."""
    txn = begin(store, branch)
    people = upsert(store, txn, PERSON, [person("ada", 37), person("dan", 19)])
    return plan(txn, people, delete(store, txn, KNOWS, "id = 'k1'"), actor=actor)


def overwrite(store: Store) -> PublishPlan:
    txn = begin(store)
    people = table(store, txn, PERSON, [person("zoe")])
    nobody = table(store, txn, KNOWS, [])
    actions = (
        TableAction(store.tables.stage_overwrite(txn.entries[PERSON].table, people)),
        TableAction(store.tables.stage_overwrite(txn.entries[KNOWS].table, nobody)),
    )
    return PublishPlan(txn, WriterKind.LOAD, actions, lineage=Lineage.new("ada"))


def indices(store: Store) -> PublishPlan:
    txn = begin(store)
    actions = tuple(
        TableAction(
            store.tables.stage_create_indices(txn.entries[key].table, [IndexSpec("id", "BTREE")]), OpClass.MAINTENANCE
        )
        for key in (PERSON, KNOWS)
    )
    return PublishPlan(txn, WriterKind.ENSURE_INDICES, actions, lineage=Lineage.new("ada"))


def seen(store: Store) -> dict[str, Any]:
    """What a reader finds in the two tables that the writes here change: rows and indices."""
    entries = store.manifest.load().snapshot.entries
    names = {key: [index.name for index in store.tables.open(entries[key].table).describe_indices()] for key in entries}
    return {key: (contents(store)[key], names[key]) for key in (PERSON, KNOWS)}


def again_by_writing(store: Store) -> None:
    add_company(store, "later")


def again_by_refreshing(store: Store) -> None:
    """Opened read-only, for a read-write open would recover by itself."""
    graph = omnigraph.Graph(store, read_only=True)
    graph.read_only = False
    graph.refresh()


def again_by_opening(store: Store) -> None:
    omnigraph.Graph(opened(store), read_only=False)


AGAIN = [again_by_writing, again_by_refreshing, again_by_opening]
PREPARED_AND_AGAIN = [(mutation, again) for again in AGAIN] + [
    (overwrite, again_by_opening),
    (indices, again_by_writing),
]
STOPS = [(ALL_MOVED, FORWARD), (ONE_MOVED, BACK), (NONE_MOVED, BACK), (ALL_VISIBLE, FORWARD)]
Again = Callable[[Store], None]


# All or nothing ------------------------------------------------------------------------------------


@mostly_local("prepare, again", PREPARED_AND_AGAIN, [(mutation, again_by_opening), (indices, again_by_writing)])
def test_a_write_that_moved_every_table_but_was_not_published_is_finished(
    store: Store, template: str, prepare: Callable[[Store], PublishPlan], again: Again
) -> None:
    undisturbed = store_at(copied(template))
    publish(undisturbed, prepare(undisturbed))
    before, was = seen(store), pins(store)
    work = prepare(store)
    operation_id = interrupt(store, work, ALL_MOVED)
    assert (seen(store), pins(store)) == (before, was)

    again(store)

    assert seen(store) == seen(undisturbed) != before
    assert_settled(store)
    (row,) = store.audit.rows()
    assert row.graph_commit_id == recovery_commits(store)[0]
    assert (row.kind, row.actor, row.operation_id, row.writer_kind) == (FORWARD, "ada", operation_id, work.kind)
    assert row.outcomes == (TableOutcome(PERSON, 2, 3), TableOutcome(KNOWS, 2, 3))
    assert len(recovery_commits(store)) == 1
    assert len(contents(store)[COMPANY]) == 1 + (again is again_by_writing)


@mostly_local("prepare, again", PREPARED_AND_AGAIN, [(mutation, again_by_opening), (indices, again_by_writing)])
def test_a_write_that_moved_only_some_tables_is_undone(
    store: Store, prepare: Callable[[Store], PublishPlan], again: Again
) -> None:
    before = seen(store)
    operation_id = interrupt(store, prepare(store), ONE_MOVED)
    assert seen(store) == before

    again(store)

    assert seen(store) == before
    assert_settled(store)
    (row,) = store.audit.rows()
    assert row.graph_commit_id == recovery_commits(store)[0]
    assert (row.kind, row.actor, row.operation_id) == (BACK, "ada", operation_id)
    assert row.outcomes == (TableOutcome(PERSON, 3, 2),), "the table that never moved has no outcome"
    published = pins(store)[PERSON], pins(store)[KNOWS]
    assert published == (4, 2 + fence(store)), "what is published is the restoring commit"
    assert len(recovery_commits(store)) == 1
    assert len(contents(store)[COMPANY]) == 1 + (again is again_by_writing)


@mostly_local("again", AGAIN, [again_by_refreshing])
def test_a_write_that_moved_nothing_is_undone_by_a_commit_that_changes_nothing(store: Store, again: Again) -> None:
    before, was = seen(store), pins(store)
    interrupt(store, mutation(store), NONE_MOVED)
    again(store)
    assert seen(store) == before
    assert [pins(store)[key] for key in (PERSON, KNOWS)] == [was[key] + fence(store) for key in (PERSON, KNOWS)]
    assert [(row.kind, row.outcomes) for row in store.audit.rows()] == [(BACK, ())]
    assert store.audit.rows()[0].graph_commit_id in recovery_commits(store)
    assert_settled(store)


@mostly_local("again", AGAIN, [again_by_opening])
def test_a_published_write_whose_record_was_left_behind_is_recorded_and_nothing_more(
    store: Store, again: Again
) -> None:
    work = mutation(store)
    interrupt(store, work, ALL_VISIBLE)
    after, was = seen(store), pins(store)
    again(store)
    assert seen(store) == after
    assert {key: pins(store)[key] for key in (PERSON, KNOWS)} == {key: was[key] for key in (PERSON, KNOWS)}
    (row,) = store.audit.rows()
    assert (row.kind, row.graph_commit_id) == (FORWARD, work.lineage.commit_id)
    assert row.outcomes == (TableOutcome(PERSON, 2, 3), TableOutcome(KNOWS, 2, 3))
    assert recovery_commits(store) == []
    assert_settled(store)


def test_the_recovery_commit_follows_the_head_and_names_nobody_but_recovery(store: Store) -> None:
    interrupt(store, mutation(store), ALL_MOVED)
    head = store.manifest.load().head
    again_by_opening(store)
    found = store.manifest.load().head
    assert head is not None
    assert found is not None
    assert (found.actor_id, found.parent_id, found.merged_parent_id) == (RECOVERY_ACTOR, head.commit_id, None)
    assert found.branch is None
    assert head.created_at <= found.created_at <= time.time_ns() // 1000


def test_a_table_is_undone_by_the_restore_that_its_record_announced(store: Store) -> None:
    operation_id = interrupt(store, mutation(store), ONE_MOVED)
    record = store.sidecars.read(operation_id)
    assert record is not None
    again_by_opening(store)
    head = store.manifest.load().snapshot.entries[PERSON].table
    made_by = store.tables.made_by(head)
    assert made_by
    assert made_by.uuid == record.tables[0].rollback_uuid


def test_a_second_recovery_finds_nothing_to_do(store: Store) -> None:
    interrupt(store, mutation(store), ONE_MOVED)
    assert heal(store) == 1
    rows, was = store.audit.rows(), store.manifest.load().version
    assert heal(store) == 0
    again_by_opening(store)
    assert (store.audit.rows(), store.manifest.load().version) == (rows, was)


@pytest.mark.parametrize("root_uri", ["local"], indirect=True)  # an object store has no power cuts that lose a record
def test_a_write_whose_record_is_lost_is_undone_by_opening(store: Store) -> None:
    before = contents(store)
    interrupt(store, mutation(store), ALL_MOVED)
    (operation,) = store.sidecars.pending()
    store.sidecars.delete(operation)

    again_by_opening(store)

    assert contents(store) == before
    assert_settled(store)


def test_a_schema_apply_without_the_files_it_writes_last_is_undone(store: Store) -> None:
    txn = begin(store)
    before = pins(store)
    store.tables.create("nodes/city", store.tables.open(txn.entries[COMPANY].table).schema)
    work = PublishPlan(
        txn,
        WriterKind.SCHEMA_APPLY,
        (append(store, txn, PERSON, [person("dan")]),),
        (TableRow("node:City", "nodes/city"),),
        (TombstoneRow(COMPANY, txn.entries[COMPANY].table.version + 1),),
    )
    interrupt(store, work, ALL_MOVED)
    again_by_opening(store)
    assert pins(store).keys() == before.keys()
    (row,) = store.audit.rows()
    assert row.kind is RecoveryKind.ROLLED_BACK
    assert row.outcomes == (TableOutcome(PERSON, 3, 2),)


def test_undoing_a_plan_that_adds_tables_claims_no_outcome_for_them(store: Store) -> None:
    txn = begin(store)
    actions = (append(store, txn, PERSON, [person("dan")]), append(store, txn, COMPANY, [company("new")]))
    store.tables.create("nodes/city", store.tables.open(txn.entries[COMPANY].table).schema)
    work = PublishPlan(txn, WriterKind.SCHEMA_APPLY, actions, (TableRow("node:City", "nodes/city"),))
    interrupt(store, work, ONE_MOVED)
    again_by_opening(store)
    assert "node:City" not in pins(store)
    assert [row.outcomes for row in store.audit.rows()] == [(TableOutcome(PERSON, 3, 2),)]


# What moved a table is a fact ----------------------------------------------------------------------


def test_a_stranger_where_our_commit_was_planned_is_not_taken_for_ours(store: Store) -> None:
    txn = begin(store)
    before = contents(store)
    interrupt(store, plan(txn, append(store, txn, PERSON, [person("dan")])), NONE_MOVED)
    assert foreign_commit(store, PERSON) == 3
    again_by_opening(store)
    assert contents(store) == before
    assert [(row.kind, row.outcomes) for row in store.audit.rows()] == [(BACK, (TableOutcome(PERSON, 3, 2),))]
    assert_settled(store)


def test_a_stranger_on_top_of_our_commit_undoes_both(store: Store) -> None:
    txn = begin(store)
    before = contents(store)
    interrupt(store, plan(txn, append(store, txn, PERSON, [person("dan")])), ALL_MOVED)
    assert foreign_commit(store, PERSON) == 4
    again_by_opening(store)
    assert contents(store) == before
    assert [(row.kind, row.outcomes) for row in store.audit.rows()] == [(BACK, (TableOutcome(PERSON, 4, 2),))]
    assert_settled(store)


def test_a_stranger_who_comes_while_we_finish_is_not_published_with_us(store: Store) -> None:
    interrupt(store, mutation(store), ALL_MOVED)
    with failpoints.armed(failpoints.RECOVERY_BEFORE_ROLL_FORWARD, doing(foreign_commit, store, PERSON)):
        again_by_opening(store)
    assert pins(store)[PERSON] == 3
    assert [row.outcomes for row in store.audit.rows()] == [(TableOutcome(PERSON, 2, 3), TableOutcome(KNOWS, 2, 3))]
    txn = begin(store)
    with pytest.raises(DriftError):
        publish(store, plan(txn, append(store, txn, PERSON, [person("eli")])))


def test_maintenance_that_follows_a_finished_write_does_not_make_it_an_undone_one(store: Store) -> None:
    work, upkeep = mutation(store), indices(store)
    upkeep = PublishPlan(upkeep.txn, upkeep.kind, upkeep.actions[:1])
    with failing("delete", DIRECTORY):
        publish(store, work)
    publish(store, upkeep)
    assert pins(store)[PERSON] == 4
    again_by_opening(store)
    assert [(row.kind, row.graph_commit_id) for row in store.audit.rows()] == [(FORWARD, work.lineage.commit_id)]


def test_a_head_before_its_pin_stops_recovery_loudly(store: Store) -> None:
    operation_id = interrupt(store, mutation(store), ONE_MOVED)
    behead(store, KNOWS)
    fresh = opened(store)

    with pytest.raises(CorruptGraphError, match=r"edge:Knows.* version 1, before its pin 2"):
        again_by_opening(fresh)

    assert fresh.sidecars.pending() == [operation_id]
    assert fresh.audit.rows() == []
    assert recovery_commits(fresh) == []
    assert omnigraph.open(store.location.uri, read_only=True).snapshot().entries[PERSON].table.version == 2


def test_a_head_before_its_pin_does_not_stop_writes_to_other_tables(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    operation_id = interrupt(store, mutation(store), ONE_MOVED)
    behead(store, KNOWS)
    fresh = opened(store)
    with caplog.at_level(logging.WARNING):
        again_by_refreshing(fresh)
        again_by_writing(fresh)
    assert operation_id in caplog.text
    assert fresh.sidecars.pending() == [operation_id]
    assert recovery_commits(fresh) == []
    with pytest.raises(RecoveryRequiredError):
        publish(fresh, three_tables(fresh))


# Records of earlier versions -----------------------------------------------------------------------


def _rules() -> Iterator[Any]:
    """Kind, version, moves of the head, the record (relative to the pin; confirmed None is left out), the decision."""
    for kind in ("Mutation", "Load"):
        for version in (1, 2):
            yield kind, version, 1, {}, FORWARD
        yield kind, 2, 1, {"post_commit_pin": 2}, BACK
        yield kind, 2, 1, {"expected_version": 1}, BACK
        yield kind, 2, 1, {"expected_version": -1}, BACK
        yield kind, 2, 2, {}, BACK
        yield kind, 2, 2, {"post_commit_pin": 2}, BACK
    for kind, version in (("EnsureIndices", 2), ("Optimize", 2), ("BranchMerge", 1)):
        yield kind, version, 1, {}, FORWARD
        yield kind, version, 3, {}, FORWARD
        yield kind, version, 1, {"expected_version": 1}, BACK
        yield kind, version, 2, {"expected_version": -1}, BACK
    yield "BranchMerge", 2, 3, {"confirmed_version": 3}, FORWARD
    yield "BranchMerge", 2, 3, {"confirmed_version": 2}, BACK
    yield "BranchMerge", 2, 1, {}, BACK
    yield "BranchMerge", 2, 1, {"confirmed_version": 1, "expected_version": 1}, BACK
    for kind in ("Mutation", "Load", "SchemaApply", "BranchMerge", "EnsureIndices", "Optimize"):
        yield kind, 2, 0, {}, BACK


@mostly_local(
    "kind, version, moves, changes, decision",
    [*_rules()],
    [("Mutation", 2, 1, {}, FORWARD), ("Mutation", 2, 2, {}, BACK), ("Load", 2, 0, {}, BACK)],
)
def test_a_record_without_transactions_keeps_the_rule_of_its_writer(
    store: Store, *, kind: str, version: int, moves: int, changes: dict[str, int], decision: RecoveryKind
) -> None:
    before = contents(store)
    operation_id = write_record(store, kind, [pin_of(store, COMPANY, changes)], version=version)
    foreign_commit(store, COMPANY, moves)
    again_by_opening(store)
    assert_settled(store)
    added = len(contents(store)[COMPANY]) - len(before[COMPANY])
    assert added == (moves if decision is FORWARD else 0)
    (row,) = store.audit.rows()
    assert (row.kind, row.operation_id, row.actor, row.writer_kind) == (decision, operation_id, "eve", kind)
    expected = 2 + changes.get("expected_version", 0)
    forward, back = TableOutcome(COMPANY, expected, 2 + moves), TableOutcome(COMPANY, 2 + moves, 2)
    assert row.outcomes == ((forward if decision is FORWARD else back,) if moves else ())
    assert recovery_commits(store) == [row.graph_commit_id]


@mostly_local("kind", ["Mutation", "Load", "EnsureIndices", "Optimize"], ["Mutation"])
def test_one_table_that_did_not_move_undoes_the_others(store: Store, kind: str) -> None:
    before = contents(store)
    write_record(store, kind, [pin_of(store, COMPANY), pin_of(store, PERSON)])
    foreign_commit(store, COMPANY)
    again_by_opening(store)
    assert contents(store) == before
    assert [(row.kind, row.outcomes) for row in store.audit.rows()] == [(BACK, (TableOutcome(COMPANY, 3, 2),))]
    assert_settled(store)


def test_one_table_that_is_past_its_record_does_not_let_another_drift(store: Store) -> None:
    before = contents(store)
    write_record(store, "Mutation", [pin_of(store, COMPANY), pin_of(store, PERSON, {"expected_version": -1})])
    foreign_commit(store, COMPANY)
    again_by_opening(store)
    assert contents(store) == before
    assert [row.kind for row in store.audit.rows()] == [BACK]
    assert_settled(store)


def test_a_record_without_tables_is_finished(store: Store) -> None:
    was = pins(store)
    write_record(store, "Mutation", [])
    again_by_opening(store)
    assert pins(store) == was
    assert [(row.kind, row.outcomes) for row in store.audit.rows()] == [(FORWARD, ())]
    assert_settled(store)


@mostly_local("kind, taken", [("Mutation", 1), ("Optimize", 1), ("Optimize", 2)], [("Optimize", 1)])
def test_an_old_record_of_a_write_that_is_visible_already_is_finished_by_a_commit_without_changes(
    store: Store, kind: str, taken: int
) -> None:
    write_record(store, kind, [pin_of(store, COMPANY, {"expected_version": -taken, "post_commit_pin": 1 - taken})])
    was = pins(store)
    again_by_opening(store)
    assert pins(store) == was
    (row,) = store.audit.rows()
    assert row.kind is FORWARD
    assert [row.graph_commit_id] == recovery_commits(store)
    assert_settled(store)


def test_an_old_record_of_a_merge_is_finished_with_two_parents(store: Store) -> None:
    genesis = store.manifest.load().commits()[0]
    pinned = pin_of(store, COMPANY, {"confirmed_version": 2})
    write_record(store, "BranchMerge", [pinned], merge_source_commit_id=genesis.commit_id)
    foreign_commit(store, COMPANY, 2)
    again_by_opening(store)
    head = store.manifest.load().head
    assert head is not None
    assert (head.actor_id, head.merged_parent_id) == (RECOVERY_ACTOR, genesis.commit_id)
    assert_settled(store)


def test_an_undone_merge_has_one_parent(store: Store) -> None:
    genesis = store.manifest.load().commits()[0]
    write_record(store, "BranchMerge", [pin_of(store, COMPANY)], merge_source_commit_id=genesis.commit_id)
    foreign_commit(store, COMPANY, 2)
    again_by_opening(store)
    head = store.manifest.load().head
    assert head is not None
    assert (head.actor_id, head.merged_parent_id) == (RECOVERY_ACTOR, None)


def test_an_old_schema_change_without_its_staging_files_is_undone(store: Store) -> None:
    before = contents(store)
    write_record(store, "SchemaApply", [pin_of(store, COMPANY)])
    foreign_commit(store, COMPANY)
    again_by_opening(store)
    assert contents(store) == before
    assert [row.kind for row in store.audit.rows()] == [BACK]
    assert_settled(store)


def test_two_records_of_one_table_are_taken_in_the_order_of_time(store: Store) -> None:
    first = write_record(store, "Optimize", [pin_of(store, COMPANY)])
    second = write_record(store, "Mutation", [pin_of(store, COMPANY, {"expected_version": 1, "post_commit_pin": 2})])
    foreign_commit(store, COMPANY, 2)
    again_by_opening(store)
    assert [(row.operation_id, row.kind) for row in store.audit.rows()] == [(first, FORWARD), (second, FORWARD)]
    assert pins(store)[COMPANY] == 4
    assert_settled(store)


def test_what_the_first_record_undid_is_not_undone_again_by_the_second(store: Store) -> None:
    before = contents(store)
    first = write_record(store, "Mutation", [pin_of(store, COMPANY)])
    second = write_record(store, "Mutation", [pin_of(store, COMPANY, {"expected_version": 1, "post_commit_pin": 2})])
    foreign_commit(store, COMPANY, 2)
    again_by_opening(store)
    assert contents(store) == before
    assert pins(store)[COMPANY] == 5
    assert [row.operation_id for row in store.audit.rows()] == [first, second]
    assert store.audit.rows()[0].outcomes == (TableOutcome(COMPANY, 4, 2),)
    assert_settled(store)


# Branches ------------------------------------------------------------------------------------------


@mostly_local(
    "at, kind, again",
    [
        (at, kind, again)
        for at, kind in ((ALL_MOVED, FORWARD), (ONE_MOVED, BACK))
        for again in (again_by_writing, again_by_opening)
    ],
    [(ALL_MOVED, FORWARD, again_by_opening), (ONE_MOVED, BACK, again_by_writing)],
)
def test_a_write_on_a_branch_is_recovered_on_that_branch(
    store: Store, at: str, kind: RecoveryKind, again: Again
) -> None:
    fork(store, "feature")
    main, history, before = seen(store), store.manifest.load().commits(), contents(store, "feature")
    interrupt(store, on_branch(store, "feature"), at)
    again(store)
    after = contents(store, "feature")
    assert [row["id"] for row in after[PERSON]] == ["ada", "bob", "cleo", *(["dan"] if kind is FORWARD else [])]
    assert (after == before) is (kind is BACK)
    assert [row.kind for row in store.audit.rows()] == [kind]
    entry = store.manifest.load("feature").snapshot.entries[PERSON].table
    assert (entry.owner, entry.version) == ("feature", 3 if kind is FORWARD else 4)
    head = store.manifest.load("feature").head
    assert head is not None
    assert (head.branch, head.actor_id) == ("feature", RECOVERY_ACTOR)
    assert head.commit_id == store.audit.rows()[0].graph_commit_id
    assert seen(store) == main
    assert store.manifest.load().commits()[: len(history)] == history
    assert recovery_commits(store) == []
    assert_settled(store, "feature")
    assert_settled(store)


def test_an_old_record_of_a_branch_is_undone_on_that_branch(store: Store) -> None:
    fork(store, "feature")
    before = contents(store, "feature"), contents(store)
    table = store.manifest.load().snapshot.entries[COMPANY].table
    path = table.path
    dataset(store, path).create_branch("feature", table.version, storage_options=store.location.storage_options)
    tree = dataset(store, f"{path}/tree/feature")
    tree.insert(tree.to_table())
    tree.insert(tree.to_table())
    pinned = pin_of(store, COMPANY, branch="feature")
    write_record(store, "Mutation", [pinned], branch="feature")
    again_by_opening(store)
    assert (contents(store, "feature"), contents(store)) == before
    assert [(row.kind, row.outcomes) for row in store.audit.rows()] == [(BACK, (TableOutcome(COMPANY, 4, 2),))]
    assert recovery_commits(store) == []
    assert_settled(store, "feature")


@mostly_local(
    "at, again",
    [(ALL_MOVED, again_by_writing), (ONE_MOVED, again_by_refreshing), (NONE_MOVED, again_by_opening)],
    [(ONE_MOVED, again_by_opening)],
)
def test_a_write_on_a_branch_that_is_gone_is_discarded(store: Store, at: str, again: Again) -> None:
    fork(store, "feature")
    operation_id = interrupt(store, on_branch(store, "feature"), at)
    unfork(store, "feature")
    before, was = seen(store), pins(store)
    again(store)
    (row,) = store.audit.rows()
    assert (row.kind, row.operation_id, row.actor, row.outcomes) == (ORPHAN, operation_id, "ada", ())
    assert recovery_commits(store) == [row.graph_commit_id]
    assert seen(store) == before
    assert pins(store)[PERSON] == was[PERSON]
    assert_settled(store)


@mostly_local(
    "operation, part, version",
    [
        (*fault, version)
        for fault in (("create", audit.PATH), ("delete", DIRECTORY), ("publish", "__manifest"))
        for version in (2, 3)
    ],
    [("create", audit.PATH, 3)],
)
def test_an_orphan_is_recorded_once_across_faults(store: Store, operation: str, part: str, version: int) -> None:
    fork(store, "feature")
    if version == 3:
        interrupt(store, on_branch(store, "feature"), ALL_MOVED)
    else:
        write_record(store, "Mutation", [pin_of(store, COMPANY, branch="feature")], branch="feature")
    unfork(store, "feature")
    for again in (again_by_opening, again_by_writing):
        with failing(operation, part), pytest.raises(StorageError):
            again(store)
        assert len(store.sidecars.pending()) == 1
    again_by_writing(store)
    assert [(row.kind, row.outcomes) for row in store.audit.rows()] == [(ORPHAN, ())]
    if version == 3 or operation != "create":  # a commit without a known id may come again until the audit has it
        assert len(recovery_commits(store)) == 1
    assert_settled(store)


def test_an_orphan_has_no_outcomes_not_even_for_tables_it_would_have_added(store: Store) -> None:
    city = {"table_key": "node:City", "table_path": "nodes/city"}
    write_record(store, "SchemaApply", [], branch="feature", additional_registrations=[city])
    again_by_opening(store)
    assert [(row.kind, row.outcomes) for row in store.audit.rows()] == [(ORPHAN, ())]


def test_a_branch_that_cannot_be_opened_is_not_taken_for_one_that_is_gone(store: Store) -> None:
    fork(store, "feature")
    operation_id = interrupt(store, on_branch(store, "feature"), ALL_MOVED)
    versions = "__manifest/tree/feature/_versions"
    hidden = {name: store.objects.read(f"{versions}/{name}") for name in store.objects.list(versions)}
    store.objects.delete_below(versions)
    with pytest.raises(OmnigraphError):
        again_by_opening(store)
    assert store.sidecars.pending() == [operation_id]
    assert store.audit.rows() == []
    for name, content in hidden.items():
        store.objects.write(f"{versions}/{name}", content)
    again_by_opening(store)
    assert [row.kind for row in store.audit.rows()] == [FORWARD]


# Storage that fails --------------------------------------------------------------------------------


def test_a_write_whose_record_cannot_be_written_moves_nothing(store: Store) -> None:
    before, was = seen(store), pins(store)
    work = mutation(store)
    with failing("write", DIRECTORY) as failed, pytest.raises(StorageError, match="the storage fails"):
        publish(store, work)
    assert len(failed) == 1
    assert (seen(store), pins(store)) == (before, was)
    assert_settled(store)
    assert store.audit.rows() == []
    publish(store, work)
    assert seen(store) != before
    assert_settled(store)


@mostly_local("again", AGAIN, [again_by_writing])
def test_a_write_whose_record_cannot_be_deleted_has_succeeded(
    store: Store, again: Again, caplog: pytest.LogCaptureFixture
) -> None:
    work = mutation(store)
    with failing("delete", DIRECTORY), caplog.at_level(logging.WARNING):
        published = publish(store, work)
    (operation_id,) = store.sidecars.pending()
    assert operation_id in caplog.text
    after = seen(store)
    assert published.commit == store.manifest.load().head
    again(store)
    assert seen(store) == after
    assert [(row.kind, row.operation_id) for row in store.audit.rows()] == [(FORWARD, operation_id)]
    assert_settled(store)


def test_when_the_records_cannot_be_listed_nothing_is_written(store: Store) -> None:
    operation_id = interrupt(store, mutation(store), ALL_MOVED)
    was = store.manifest.load().version
    for again in AGAIN:
        with failpoints.armed(failpoints.RECOVERY_SIDECAR_LIST, refuse), pytest.raises(StorageError):
            again(store)
    assert store.sidecars.pending() == [operation_id]
    assert store.manifest.load().version == was
    again_by_opening(store)
    add_company(store, "later")
    assert_settled(store)


INTERRUPTIONS = [
    (ALL_MOVED, failpoints.RECOVERY_AFTER_LIST),
    (ALL_MOVED, failpoints.RECOVERY_BEFORE_ROLL_FORWARD),
    (ONE_MOVED, failpoints.RECOVERY_AFTER_TABLE_RESTORE),
    *((at, failpoints.RECOVERY_RECORD_AUDIT) for at, _ in STOPS),
    *((at, failpoints.RECOVERY_SIDECAR_DELETE) for at, _ in STOPS),
]
FINISHED = (TableOutcome(PERSON, 2, 3), TableOutcome(KNOWS, 2, 3))
ENDS = {  # what is recorded, the pins of the two tables, and the commits of recovery
    ALL_MOVED: (FORWARD, FINISHED, (3, 3), 1),
    ONE_MOVED: (BACK, (TableOutcome(PERSON, 3, 2),), (4, 2), 1),
    NONE_MOVED: (BACK, (), (2, 2), 1),
    ALL_VISIBLE: (FORWARD, FINISHED, (3, 3), 0),
}


@mostly_local(
    "at, stop",
    INTERRUPTIONS,
    [
        (ALL_MOVED, failpoints.RECOVERY_BEFORE_ROLL_FORWARD),
        (ONE_MOVED, failpoints.RECOVERY_AFTER_TABLE_RESTORE),
        (ONE_MOVED, failpoints.RECOVERY_RECORD_AUDIT),
        (NONE_MOVED, failpoints.RECOVERY_SIDECAR_DELETE),
    ],
)
def test_a_recovery_that_is_interrupted_ends_like_one_that_is_not(store: Store, at: str, stop: str) -> None:
    interrupt(store, mutation(store), at)
    for _ in range(1 if stop == failpoints.RECOVERY_AFTER_TABLE_RESTORE else 2):
        with failpoints.armed(stop, crash), pytest.raises(CrashError):
            again_by_opening(store)
    again_by_opening(store)
    (row,) = store.audit.rows()
    published = pins(store)
    kind, outcomes, expected, commits = ENDS[at]
    if kind is BACK:
        expected = max(expected[0], 2 + fence(store)), max(expected[1], 2 + fence(store))
    assert (row.kind, row.outcomes, len(recovery_commits(store))) == (kind, outcomes, commits)
    assert (published[PERSON], published[KNOWS]) == expected
    assert row.graph_commit_id in [commit.commit_id for commit in store.manifest.load().commits()]
    assert_settled(store)


@mostly_local(
    "kind, moves, changes",
    [("Mutation", 1, {}), ("Optimize", 3, {}), ("BranchMerge", 3, {"confirmed_version": 3})],
    [("Optimize", 3, {})],
)
def test_an_old_record_whose_recovery_could_not_be_recorded_is_recorded_later_as_what_it_was(
    store: Store, kind: str, moves: int, changes: dict[str, int]
) -> None:
    write_record(store, kind, [pin_of(store, COMPANY, changes)])
    foreign_commit(store, COMPANY, moves)
    with failing("create", audit.PATH), pytest.raises(StorageError):
        again_by_opening(store)
    assert len(store.sidecars.pending()) == 1
    again_by_opening(store)
    assert [(row.kind, row.outcomes) for row in store.audit.rows()] == [
        (FORWARD, (TableOutcome(COMPANY, 2, 2 + moves),))
    ]
    assert_settled(store)


@mostly_local(
    "operation, part, at, kind, again",
    [
        (*fault, *end)
        for fault in (("publish", "__manifest"), ("create", audit.PATH), ("delete", DIRECTORY))
        for end in ((ALL_MOVED, FORWARD, again_by_writing), (ONE_MOVED, BACK, again_by_opening))
    ],
    [
        ("publish", "__manifest", ONE_MOVED, BACK, again_by_opening),
        ("create", audit.PATH, ALL_MOVED, FORWARD, again_by_writing),
    ],
)
def test_a_recovery_that_storage_stops_is_an_error_and_is_done_later(
    store: Store, *, operation: str, part: str, at: str, kind: RecoveryKind, again: Again
) -> None:
    operation_id = interrupt(store, mutation(store), at)
    with failing(operation, part), pytest.raises(StorageError, match="the storage fails"):
        again(store)
    assert store.sidecars.pending() == [operation_id]
    again(store)
    assert [row.kind for row in store.audit.rows()] == [kind]
    assert len(recovery_commits(store)) == 1
    assert_settled(store)


def test_a_table_that_cannot_be_restored_is_restored_later(store: Store) -> None:
    before = seen(store)
    operation_id = interrupt(store, mutation(store), ONE_MOVED)
    with failing("commit table", "nodes/"), pytest.raises(StorageError):
        again_by_opening(store)
    assert store.sidecars.pending() == [operation_id]
    again_by_opening(store)
    assert seen(store) == before
    assert_settled(store)


def test_a_record_that_vanishes_between_listing_and_reading_is_no_matter(store: Store) -> None:
    operation_id = write_record(store, "Mutation", [pin_of(store, COMPANY)])
    was = store.manifest.load().version
    with failpoints.armed(
        failpoints.RECOVERY_AFTER_LIST, lambda: store.objects.delete(f"{DIRECTORY}/{operation_id}.json")
    ):
        again_by_opening(store)
    assert store.manifest.load().version == was
    assert store.audit.rows() == []


# Writes that fail by themselves --------------------------------------------------------------------


def three_tables(store: Store) -> PublishPlan:
    txn = begin(store)
    return plan(
        txn,
        append(store, txn, COMPANY, [company("new")]),
        upsert(store, txn, PERSON, [person("ada", 37)]),
        append(store, txn, WORKS_AT, [edge("w1", "ada", "new")]),
        actor="ada",
    )


def change_all_people(store: Store) -> None:
    opened = dataset(store, store.manifest.load().snapshot.entries[PERSON].table.path)
    opened.update({"age": "1"})


@mostly_local("stranger", [change_all_people, lambda store: foreign_commit(store, PERSON)], [change_all_people])
def test_a_stranger_in_the_middle_of_a_write_undoes_it_at_once(store: Store, stranger: Callable[[Store], Any]) -> None:
    before = contents(store)
    work = three_tables(store)
    with (
        failpoints.armed(failpoints.PUBLISH_AFTER_SIDECAR, doing(stranger, store)),
        pytest.raises(ConflictError),
    ):
        publish(store, work)
    assert contents(store) == before
    assert_settled(store)
    (row,) = store.audit.rows()
    assert (row.kind, row.actor) == (BACK, "ada")
    assert {outcome.table_key for outcome in row.outcomes} == {COMPANY, PERSON}
    publish(store, three_tables(store))
    assert contents(store)[PERSON][0]["age"] == 37
    assert_settled(store)


@mostly_local("moved", [0, 1, 2], [1])
def test_storage_that_fails_in_the_middle_of_a_write_undoes_it_at_once(store: Store, moved: int) -> None:
    before = contents(store)
    work = three_tables(store)
    with failing("commit table", "", after=moved, times=1), pytest.raises(StorageError, match="the storage fails"):
        publish(store, work)
    assert contents(store) == before
    assert_settled(store)
    assert [(row.kind, len(row.outcomes)) for row in store.audit.rows()] == ([(BACK, moved)] if moved else [])
    publish(store, three_tables(store))
    assert_settled(store)


def test_a_write_that_cannot_be_undone_at_once_is_undone_by_the_next(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    before = contents(store)
    with (
        failing("commit table", "", after=1),
        caplog.at_level(logging.WARNING),
        pytest.raises(OutcomeUnknownError, match=r"commit table .*the storage fails") as caught,
    ):
        publish(store, three_tables(store))
    (operation_id,) = store.sidecars.pending()
    assert caught.value.operation_id == operation_id
    assert operation_id in caplog.text
    assert contents(store) == before
    add_company(store, "later")
    assert contents(store)[PERSON] == before[PERSON]
    assert [(row.kind, row.operation_id) for row in store.audit.rows()] == [(BACK, operation_id)]
    assert_settled(store)


def test_a_write_that_cannot_be_published_says_which_operation_is_left_and_the_next_finishes_it(store: Store) -> None:
    work = three_tables(store)
    with failing("publish", "__manifest"), pytest.raises(OutcomeUnknownError, match="the storage fails") as caught:
        publish(store, work)
    (operation_id,) = store.sidecars.pending()
    assert caught.value.operation_id == operation_id == work.lineage.commit_id
    add_company(store, "later")
    assert [row["id"] for row in contents(store)[COMPANY]] == ["acme", "later", "new"]
    assert [(row.kind, row.operation_id) for row in store.audit.rows()] == [(FORWARD, operation_id)]
    assert_settled(store)


# Drift ---------------------------------------------------------------------------------------------


def test_a_table_that_a_stranger_moved_is_refused_with_the_remedy(store: Store) -> None:
    work = three_tables(store)
    foreign_commit(store, PERSON, 2)
    for attempt in (work, three_tables(store)):
        with pytest.raises(DriftError, match="omnigraph repair") as caught:
            publish(store, attempt)
        assert (caught.value.table_key, caught.value.pin, caught.value.head) == (PERSON, 2, 4)
        assert "node:Person" in caught.value.message
    assert store.sidecars.pending() == []
    assert store.audit.rows() == []
    add_company(store, "elsewhere")


def test_a_write_prepared_before_another_stopped_recovers_it_and_is_told_to_read_again(store: Store) -> None:
    work = three_tables(store)
    interrupt(store, mutation(store), ONE_MOVED)
    with pytest.raises(ExpectedVersionMismatchError) as caught:
        publish(store, work)
    assert (caught.value.table_key, caught.value.expected, caught.value.actual) == (PERSON, 2, 4)
    assert [row.kind for row in store.audit.rows()] == [BACK]
    publish(store, three_tables(store))
    assert_settled(store)


@pytest.mark.usefixtures("short_waits")
def test_a_write_that_another_blocks_is_told_to_reopen_and_not_to_repair(store: Store) -> None:
    work = three_tables(store)
    operation_id = interrupt(store, mutation(store), ONE_MOVED)
    with ExitStack() as others:
        gates = opened(store).gates.hold(gates_for(None, [PERSON]))
        others.enter_context(failpoints.armed(failpoints.RECOVERY_AFTER_LIST, doing(others.enter_context, gates)))
        with pytest.raises(RecoveryRequiredError, match="reopen") as caught:
            publish(opened(store, timeout=0.05), work)
    assert caught.value.operation_id == operation_id
    assert "repair" not in str(caught.value)
    assert store.sidecars.pending() == [operation_id]
    assert store.audit.rows() == []
    publish(store, three_tables(store))
    assert_settled(store)


def test_a_record_of_another_branch_hides_none_that_blocks_a_write(tmp_path: Path) -> None:
    local = small_graph(str(tmp_path / "graph"))
    work = three_tables(local)
    fork(local, "other")
    elsewhere = interrupt(local, on_branch(local, "other"), NONE_MOVED)
    name = f"{DIRECTORY}/{elsewhere}.json"
    kept = local.objects.read(name)
    local.objects.delete(name)
    blocking = interrupt(local, mutation(local), NONE_MOVED)
    local.objects.write(name, kept)
    assert local.sidecars.pending() == [elsewhere, blocking], "the oldest first"
    publish(local, work)
    assert local.sidecars.pending() == [elsewhere], "what could contradict the write was recovered before it"


def test_when_a_drift_cannot_be_explained_both_remedies_are_named(store: Store) -> None:
    work = three_tables(store)
    foreign_commit(store, PERSON)
    with (
        failpoints.armed(failpoints.RECOVERY_SIDECAR_LIST, refuse),
        pytest.raises(OmnigraphError, match=r"(?s)repair.*reopen|reopen.*repair"),
    ):
        publish(store, work)
    assert store.sidecars.pending() == []


def test_a_head_before_its_pin_is_refused_before_anything_moves(store: Store) -> None:
    work = three_tables(store)
    path = behead(store, PERSON)
    fresh = opened(store)
    with pytest.raises((CorruptGraphError, StorageError), match=path):
        publish(fresh, work)
    assert fresh.sidecars.pending() == []
    assert fresh.tables.head_version(work.actions[0].staged.base) == 2


# Several at once -----------------------------------------------------------------------------------


@mostly_local("at, kind", STOPS, [(ALL_MOVED, FORWARD), (ONE_MOVED, BACK)])
def test_two_threads_that_open_at_once_recover_once(store: Store, at: str, kind: RecoveryKind) -> None:
    interrupt(store, mutation(store), at)
    both_have_listed = threading.Barrier(2, timeout=300)
    with (
        failpoints.armed(failpoints.RECOVERY_AFTER_LIST, doing(both_have_listed.wait)),
        ThreadPoolExecutor(2) as pool,
    ):
        for opened in [pool.submit(again_by_opening, store) for _ in range(2)]:
            opened.result(300)
    assert [row.kind for row in store.audit.rows()] == [kind]
    assert len(recovery_commits(store)) == (at != ALL_VISIBLE)
    assert_settled(store)


@pytest.mark.usefixtures("many_renewals")
@mostly_local(
    "at, stop",
    [
        (ALL_MOVED, failpoints.RECOVERY_BEFORE_ROLL_FORWARD),
        (ALL_MOVED, failpoints.RECOVERY_RECORD_AUDIT),
        (ONE_MOVED, failpoints.RECOVERY_AFTER_TABLE_RESTORE),
        (ONE_MOVED, failpoints.RECOVERY_SIDECAR_DELETE),
    ],
    [(ONE_MOVED, failpoints.RECOVERY_AFTER_TABLE_RESTORE)],
)
def test_one_who_comes_while_another_recovers_leaves_it_to_him(store: Store, at: str, stop: str) -> None:
    interrupt(store, mutation(store), at)
    first = failpoints.Rendezvous()
    with failpoints.armed(stop, first), ThreadPoolExecutor(1) as pool:
        recovering = pool.submit(again_by_opening, store)
        first.wait_until_reached()
        rows = store.audit.rows()
        again_by_opening(store)
        assert store.audit.rows() == rows
        assert len(store.sidecars.pending()) == 1
        first.release()
        recovering.result(300)
    assert len(store.audit.rows()) == 1
    assert len(recovery_commits(store)) == 1
    assert_settled(store)


def test_a_write_that_comes_while_another_recovers_waits_for_him(store: Store) -> None:
    interrupt(store, mutation(store), ALL_MOVED)
    first, behind = failpoints.Rendezvous(), threading.Event()
    with (
        failpoints.armed(failpoints.RECOVERY_BEFORE_ROLL_FORWARD, first),
        failpoints.armed(failpoints.RECOVERY_AFTER_LIST, at_arrival(2, behind.set)),
        ThreadPoolExecutor(2) as pool,
    ):
        recovering = pool.submit(again_by_opening, store)
        first.wait_until_reached()
        writing = pool.submit(add_company, opened(store), "later")
        assert behind.wait(300)
        first.release()
        recovering.result(300)
        commit = writing.result(300)
    assert store.manifest.load().head == commit
    assert commit.parent_id == store.audit.rows()[0].graph_commit_id
    assert len(store.audit.rows()) == 1
    assert_settled(store)


def test_two_processes_that_open_at_once_recover_once(store: Store) -> None:
    interrupt(store, mutation(store), ALL_MOVED)
    with (
        opening(store, failpoints.RECOVERY_AFTER_LIST) as first,
        opening(store, failpoints.RECOVERY_AFTER_LIST) as second,
    ):
        for process in (first, second):
            process.wait_until_stopped()
        for process in (first, second):
            process.go_on()
        for process in (first, second):
            process.succeed()
    assert [row.kind for row in store.audit.rows()] == [FORWARD]
    assert len(recovery_commits(store)) == 1
    assert_settled(store)


def test_a_recovery_whose_process_dies_is_taken_up(store: Store) -> None:
    operation_id = interrupt(store, mutation(store), ONE_MOVED)
    with opening(store, failpoints.RECOVERY_AFTER_TABLE_RESTORE) as process:
        process.wait_until_stopped()
        process.kill()
    assert store.sidecars.pending() == [operation_id]
    if store.gates.can_be_lost:  # the lease of the dead one has to end first, which a write does not wait for
        omnigraph.Graph(after_a_lifetime(opened(store)), read_only=False)
    else:
        again_by_writing(store)
    assert [row.kind for row in store.audit.rows()] == [BACK]
    assert len(recovery_commits(store)) == 1
    assert pins(store)[PERSON] == 4, "what the dead one restored is not restored again"
    assert_settled(store)


def opening(store: Store, at: str) -> Child:
    """Open a graph in a process that stops at a failpoint."""
    return Child("open", store.location.uri, "--stop-at", at)


@pytest.mark.parametrize("also", ["record gone", "record there", "half of it"])
def test_one_who_lost_his_gates_to_another_recoverer_agrees_with_him(store: Store, also: str) -> None:
    """On an object store a lease can pass to somebody else while its holder sleeps."""
    operation_id = interrupt(store, mutation(store), ALL_MOVED)
    record = store.sidecars.read(operation_id)
    assert record is not None

    def meanwhile() -> None:
        if also == "record gone":
            recover(store, record, _Locked([]))
        elif also == "record there":
            with failing("create", audit.PATH), pytest.raises(StorageError):
                recover(store, record, _Locked([]))
        else:
            rows = VersionRow(PERSON, 3, None, 4)
            store.manifest.publish(None, Changes((rows,)), {PERSON: 2}, Lineage.new())

    with failpoints.armed(failpoints.RECOVERY_BEFORE_ROLL_FORWARD, at_arrival(1, meanwhile)):
        again_by_opening(store)
    if also == "half of it" and not store.location.is_local:
        assert store.sidecars.pending() == [operation_id]
        assert store.audit.rows() == []
    elif also == "half of it":  # on a disk, opening looks at every head once more
        assert [row.kind for row in store.audit.rows()] == [BACK]
        assert_settled(store)
    else:
        assert [row.kind for row in store.audit.rows()] == [FORWARD]
        assert len(recovery_commits(store)) == 1
        assert_settled(store)


@pytest.mark.usefixtures("many_renewals")
@mostly_local("at", [NONE_MOVED, ONE_MOVED, ALL_MOVED, ALL_VISIBLE], [ONE_MOVED])
def test_a_write_that_is_alive_is_left_alone(store: Store, at: str) -> None:
    work, writer = mutation(store), failpoints.Rendezvous()
    with failpoints.armed(at, writer), ThreadPoolExecutor(3) as pool:
        publishing = pool.submit(publish, store, work)
        writer.wait_until_reached()
        for other in [pool.submit(again, opened(store)) for again in (again_by_opening, again_by_refreshing)]:
            other.result(300)
        assert len(store.sidecars.pending()) == 1
        writer.release()
        published = publishing.result(300)
    assert published.commit == store.manifest.load().head
    assert store.audit.rows() == []
    assert recovery_commits(store) == []
    assert_settled(store)


def test_a_write_that_finishes_while_we_wait_for_its_gates_is_not_recovered(store: Store) -> None:
    work, writer, listed = mutation(store), failpoints.Rendezvous(), threading.Event()
    with (
        failpoints.armed(ALL_MOVED, writer),
        failpoints.armed(failpoints.RECOVERY_AFTER_LIST, listed.set),
        ThreadPoolExecutor(2) as pool,
    ):
        publishing = pool.submit(publish, store, work)
        writer.wait_until_reached()
        healing = pool.submit(heal, opened(store), patience=60)
        assert listed.wait(300)
        assert not healing.done()
        writer.release()
        publishing.result(300)
        assert healing.result(300) == 0
    assert store.audit.rows() == []
    assert_settled(store)


@pytest.mark.usefixtures("short_waits")
@mostly_local("at, kind", [(ALL_MOVED, FORWARD), (ONE_MOVED, BACK)], [(ONE_MOVED, BACK)])
def test_a_record_whose_gates_cannot_be_had_is_left_for_later(
    store: Store, caplog: pytest.LogCaptureFixture, at: str, kind: RecoveryKind
) -> None:
    operation_id = interrupt(store, mutation(store), at)
    was = store.manifest.load().version
    hasty = opened(store, timeout=0.05)
    with (
        store.gates.hold(gates_for(None, [PERSON, KNOWS])),
        caplog.at_level(logging.INFO),
        ThreadPoolExecutor(2) as pool,
    ):
        assert heal(hasty) == 0
        assert operation_id in caplog.text
        others = [pool.submit(again, opened(store)) for again in (again_by_opening, again_by_refreshing)]
        with pytest.raises(GateTimeoutError) as caught:
            add_company(hasty, "later")
        for other in others:
            other.result(300)
        assert caught.value.holder in str(caught.value)
    assert store.sidecars.pending() == [operation_id]
    assert (store.manifest.load().version, store.audit.rows()) == (was, [])
    add_company(hasty, "later")
    assert [row.kind for row in store.audit.rows()] == [kind]
    assert_settled(store)


# Nothing to do -------------------------------------------------------------------------------------


def test_a_graph_at_rest_has_no_records_and_looking_for_them_is_one_listing(store: Store) -> None:
    publish(store, mutation(store))
    publish(store, indices(store))
    assert store.objects.list(DIRECTORY) == []
    with counted() as requests:
        assert heal(store) == 0
    assert (requests.total, requests.list) == (1, 1)
    assert store.audit.rows() == []


def test_a_read_only_handle_leaves_what_it_finds(store: Store) -> None:
    operation_id = interrupt(store, mutation(store), ALL_MOVED)
    was = store.manifest.load().version
    graph = omnigraph.open(store.location.uri, read_only=True)
    graph.refresh()
    assert graph.snapshot().manifest_version == was
    assert store.sidecars.pending() == [operation_id]
    assert json.loads(store.objects.read(f"{DIRECTORY}/{operation_id}.json"))["operation_id"] == operation_id
