"""`repair`: what moved a table is read from its transactions; what changed no rows is kept, the rest needs force."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pytest

import omnigraph
from omnigraph.api.maintenance import Classification, RepairAction, TableRepair
from omnigraph.commit import failpoints
from omnigraph.commit.publish import begin, publish
from omnigraph.commit.store import Store
from omnigraph.errors import DriftError, RecoveryRequiredError, RepairError
from omnigraph.graph import Graph
from omnigraph.maintenance.repair import ACTOR, FORCE_ACTOR
from tests.maintenance.scene import KNOWS, PERSON, PLACE, Mend, add, people, table_of
from tests.support.faults import CrashError, assert_settled, crash, dataset
from tests.support.graphs import append, heads_and_pins, plan
from tests.support.mutations import Death, at_write, die, store_of

NO_DRIFT, VERIFIED, SUSPICIOUS, UNVERIFIABLE = Classification


def compact(handle: lance.LanceDataset) -> None:
    handle.optimize.compact_files()


def compact_indexed(handle: lance.LanceDataset) -> None:
    """The second of the two is one that pylance cannot read back as an object."""
    handle.create_scalar_index("age", "BTREE")
    handle.optimize.compact_files()


def delete(handle: lance.LanceDataset) -> None:
    handle.delete("id = 'p1'")


def delete_and_lose_track(handle: lance.LanceDataset) -> None:
    handle.delete("id = 'p1'")
    handle.delete("id = 'p2'")
    Path(handle.uri, "_versions", f"{2**64 - 1 - (handle.version - 1):020d}.manifest").unlink()


DRIFTS: dict[str, tuple[Callable[[lance.LanceDataset], None], Classification, tuple[str, ...]]] = {
    "a compaction": (compact, VERIFIED, ("ReserveFragments", "Rewrite")),
    "an index and a compaction": (compact_indexed, SUSPICIOUS, ("CreateIndex", "ReserveFragments", "Rewrite")),
    "a delete": (delete, SUSPICIOUS, ("Delete",)),
    "a version that is gone": (delete_and_lose_track, UNVERIFIABLE, ()),
}
Drift = tuple[Callable[[lance.LanceDataset], None], Classification, tuple[str, ...]]


@pytest.fixture(params=DRIFTS)
def drift(request: pytest.FixtureRequest, graph: Graph, store: Store) -> Drift:
    """One way in which a table was moved behind our back."""
    found = DRIFTS[request.param]
    found[0](dataset(store, table_of(graph, PERSON).path))
    return found


def of_person(rows: tuple[TableRepair, ...]) -> TableRepair:
    by_key = {row.table_key: row for row in rows}
    for key in (KNOWS, PLACE):
        assert by_key[key].classification is NO_DRIFT
        assert by_key[key].action is RepairAction.NONE
    return by_key[PERSON]


def test_a_look_changes_nothing_and_tells_what_happened(graph: Graph, store: Store, drift: Drift) -> None:
    before, commits = heads_and_pins(store), graph.commits()
    done = graph.repair()
    row = of_person(done.tables)
    head, pin = before[PERSON]
    assert (row.manifest_version, row.lance_head_version) == (pin, head)
    assert (row.classification, row.action, row.operations) == (drift[1], RepairAction.PREVIEW, drift[2])
    assert bool(row.error) is (drift[1] is UNVERIFIABLE)
    assert (heads_and_pins(store), graph.commits(), done.commits) == (before, commits, ())


def test_a_confirmed_repair_keeps_only_what_is_proven_to_have_changed_no_rows(
    graph: Graph, store: Store, drift: Drift
) -> None:
    before, commits = people(graph), len(graph.commits())
    done = graph.repair(confirm=True)
    healed = drift[1] is VERIFIED
    assert of_person(done.tables).action is (RepairAction.HEALED if healed else RepairAction.REFUSED)
    assert done.is_refused is not healed
    assert len(graph.commits()) == commits + healed
    assert people(omnigraph.open(graph.uri)) == before
    if not healed:
        with pytest.raises(DriftError):
            add(graph, 50)
        return
    assert done.commits == (graph.commits()[0],)
    assert done.commits[0].actor_id == ACTOR
    add(graph, 50)
    assert_settled(store)


def test_a_forced_repair_keeps_whatever_is_there(graph: Graph, store: Store, drift: Drift) -> None:
    done = graph.repair(confirm=True, force=True)
    assert of_person(done.tables).action is (RepairAction.HEALED if drift[1] is VERIFIED else RepairAction.FORCED)
    assert [commit.actor_id for commit in done.commits] == [FORCE_ACTOR]
    add(graph, 50)
    assert_settled(store)
    assert graph.repair(confirm=True).commits == ()


@pytest.mark.parametrize(
    "change",
    [
        'query q() { insert Person { name: "x" } }',
        "query q() { update Person set { age: 1 } where age > 1 }",
        'query q() { delete Person where name = "p2" }',
    ],
)
def test_a_table_that_others_have_moved_is_not_written_to_and_what_they_did_is_not_folded_in(
    graph: Graph, store: Store, change: str
) -> None:
    delete(dataset(store, table_of(graph, PERSON).path))
    before, commits = people(graph), graph.commits()
    with pytest.raises(DriftError, match="repair"):
        graph.mutate(change)
    with pytest.raises(DriftError, match="repair"):
        graph.load([{"type": "Person", "data": {"name": "y"}}], mode="merge")
    assert (people(omnigraph.open(graph.uri)), graph.commits()) == (before, commits)


def test_nothing_is_forced_that_is_not_confirmed(graph: Graph) -> None:
    with pytest.raises(RepairError):
        graph.repair(force=True)


@pytest.mark.parametrize("branch", ["main", "feature"])
def test_nothing_is_repaired_while_a_write_that_stopped_half_way_is_not_settled(
    graph: Graph, store: Store, branch: str
) -> None:
    """What it has moved is no drift, and opening the graph settles it."""
    graph.create_branch("feature")
    add(graph, 60, branch="feature")
    compact(dataset(store, table_of(graph, KNOWS).path))
    txn = begin(store, None if branch == "main" else branch)
    with pytest.raises(CrashError), failpoints.armed(failpoints.PUBLISH_BEFORE_MANIFEST, crash):
        publish(store, plan(txn, append(store, txn, PERSON, [{"id": "late", "name": "late"}])))
    [operation] = store.sidecars.pending()
    commits = graph.commits()
    for options in ({}, {"confirm": True}, {"confirm": True, "force": True}):
        with pytest.raises(RecoveryRequiredError, match="reopen") as caught:
            graph.repair(**options)
        assert caught.value.operation_id == operation
    assert graph.commits() == commits
    again = omnigraph.open(graph.uri)
    drifted = [row.table_key for row in again.repair().tables if row.classification is not NO_DRIFT]
    assert drifted == [KNOWS]
    assert "late" in {row["p.name"] for row in people(again, branch=branch)}


# Branches ------------------------------------------------------------------------------------------


def forked(graph: Graph) -> Graph:
    """Let something else compact a table of main and one that a branch owns, and delete from another of its tables."""
    graph.create_branch("feature")
    for at in (60, 61):
        add(graph, at, branch="feature")
        graph.mutate(f'query q() {{ insert Knows {{ from: "p{at}", to: "p1" }} }}', branch="feature")
    store = store_of(graph.uri)
    compact(dataset(store, table_of(graph, KNOWS).path))
    compact(fork_of(graph, PERSON))
    delete_edge = fork_of(graph, KNOWS)
    delete_edge.delete("dst = 'p1'")
    return graph


def fork_of(graph: Graph, key: str) -> lance.LanceDataset:
    table = table_of(graph, key, "feature")
    return dataset(store_of(graph.uri), f"{table.path}/tree/{table.branch}")


def found(rows: tuple[TableRepair, ...]) -> dict[tuple[str, str], tuple[Classification, RepairAction]]:
    return {(row.branch, row.table_key): (row.classification, row.action) for row in rows}


def test_tables_that_a_branch_owns_are_repaired_on_that_branch(graph: Graph, store: Store) -> None:
    forked(graph)
    before = {name: people(graph, branch=name) for name in ("main", "feature")}
    with pytest.raises(DriftError):
        add(graph, 70, branch="feature")
    looked = graph.repair()
    assert looked.commits == ()
    assert found(looked.tables) == {
        ("main", PERSON): (NO_DRIFT, RepairAction.NONE),
        ("main", PLACE): (NO_DRIFT, RepairAction.NONE),
        ("main", KNOWS): (VERIFIED, RepairAction.PREVIEW),
        ("feature", PERSON): (VERIFIED, RepairAction.PREVIEW),
        ("feature", KNOWS): (SUSPICIOUS, RepairAction.PREVIEW),
    }, "what a branch has inherited is looked at where it belongs"

    done = graph.repair(confirm=True)

    assert done.is_refused
    assert [(one.branch, one.actor_id) for one in done.commits] == [(None, ACTOR), ("feature", ACTOR)]
    assert {row.action for row in done.tables if row.table_key == PERSON} == {RepairAction.NONE, RepairAction.HEALED}
    assert {name: people(omnigraph.open(graph.uri), branch=name) for name in before} == before
    add(graph, 70, branch="feature")
    forced = graph.repair(confirm=True, force=True)
    assert [(one.branch, one.actor_id) for one in forced.commits] == [("feature", FORCE_ACTOR)]
    for branch in (None, "feature"):
        assert store.sidecars.pending() == []
        own = {
            key for key, entry in store.manifest.load(branch).snapshot.entries.items() if entry.table.owner == branch
        }
        assert all(pair[0] == pair[1] for key, pair in heads_and_pins(store, branch).items() if key in own)
    graph.merge("feature")
    assert len(people(graph)) == 9


def test_a_repair_that_dies_at_any_durable_write_can_be_made_again(graph: Graph) -> None:
    forked(graph)
    counted = omnigraph.open(copied(graph))
    with at_write(0, crash) as writes:
        counted.repair(confirm=True, force=True)
    assert writes == ["stage", "publish"] * 2, "one for each branch"
    order: Any = Mend()
    deaths = [Death(copied(graph), order, ordinal) for ordinal in range(1, 5)]
    die(deaths)
    for death in deaths:
        again = omnigraph.open(death.uri)
        kept = [row.branch for row in again.repair().tables if row.classification is not NO_DRIFT]
        assert kept == ["main", "feature", "feature"][(death.ordinal - 1) // 2 :]
        again.repair(confirm=True, force=True)
        for branch in ("main", "feature"):
            add(again, 80, branch=branch)
        assert again.doctor().is_healthy


def copied(graph: Graph) -> str:
    """A copy to write to. Opening it makes its branch refer to its own files, which is no part of a repair."""
    return omnigraph.open(shutil.copytree(graph.uri, f"{graph.uri}-{uuid.uuid4().hex}")).uri
