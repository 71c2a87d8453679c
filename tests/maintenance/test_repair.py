"""`repair`: what moved a table is read from its transactions; what changed no rows is kept, the rest needs force."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import lance
import pytest

import omnigraph
from omnigraph.commit import failpoints
from omnigraph.commit.publish import begin, publish
from omnigraph.commit.store import Store
from omnigraph.errors import DriftError, RepairError
from omnigraph.graph import Graph
from omnigraph.maintenance.repair import ACTOR, FORCE_ACTOR, Action, Classification, TableRepair
from tests.maintenance.scene import KNOWS, PERSON, PLACE, add, people, table_of
from tests.support.faults import CrashError, assert_settled, crash, dataset
from tests.support.graphs import append, heads_and_pins, plan

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
        assert by_key[key].action is Action.NONE
    return by_key[PERSON]


def test_a_look_changes_nothing_and_tells_what_happened(graph: Graph, store: Store, drift: Drift) -> None:
    before, commits = heads_and_pins(store), graph.commits()
    done = graph.repair()
    row = of_person(done.tables)
    head, pin = before[PERSON]
    assert (row.manifest_version, row.lance_head_version) == (pin, head)
    assert (row.classification, row.action, row.operations) == (drift[1], Action.PREVIEW, drift[2])
    assert bool(row.error) is (drift[1] is UNVERIFIABLE)
    assert (heads_and_pins(store), graph.commits(), done.commit) == (before, commits, None)


def test_a_confirmed_repair_keeps_only_what_is_proven_to_have_changed_no_rows(
    graph: Graph, store: Store, drift: Drift
) -> None:
    before, commits = people(graph), len(graph.commits())
    done = graph.repair(confirm=True)
    healed = drift[1] is VERIFIED
    assert of_person(done.tables).action is (Action.HEALED if healed else Action.REFUSED)
    assert done.is_refused is not healed
    assert len(graph.commits()) == commits + healed
    assert people(omnigraph.open(graph.uri)) == before
    if not healed:
        with pytest.raises(DriftError):
            add(graph, 50)
        return
    assert done.commit == graph.commits()[0]
    assert done.commit.actor_id == ACTOR
    add(graph, 50)
    assert_settled(store)


def test_a_forced_repair_keeps_whatever_is_there(graph: Graph, store: Store, drift: Drift) -> None:
    done = graph.repair(confirm=True, force=True)
    assert of_person(done.tables).action is (Action.HEALED if drift[1] is VERIFIED else Action.FORCED)
    assert done.commit
    assert done.commit.actor_id == FORCE_ACTOR
    add(graph, 50)
    assert_settled(store)
    assert graph.repair().commit is None


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


def test_a_dead_write_is_no_drift_and_is_finished_first(graph: Graph, store: Store) -> None:
    txn = begin(store)
    with pytest.raises(CrashError), failpoints.armed(failpoints.PUBLISH_BEFORE_MANIFEST, crash):
        publish(store, plan(txn, append(store, txn, PERSON, [{"id": "late", "name": "late"}])))
    assert {row.classification for row in graph.repair().tables} == {NO_DRIFT}
    assert len(people(graph)) == 7
