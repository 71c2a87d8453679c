"""`optimize`: fewer fragments, covered by their indices, in one commit; the rows stay, and so does who writes."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path

import pytest

import omnigraph
from omnigraph.api.maintenance import TableUpkeep
from omnigraph.commit import failpoints
from omnigraph.commit.gates import Gate
from omnigraph.commit.publish import begin, publish
from omnigraph.commit.store import Store
from omnigraph.core.location import Location
from omnigraph.errors import ExpectedVersionMismatchError, RecoveryRequiredError
from omnigraph.graph import Graph
from omnigraph.maintenance.optimize import CONTENDED, DRIFT
from omnigraph.maintenance.tasks import compaction_groups
from omnigraph.storage import maintain
from omnigraph.storage.maintain import can_rebase
from tests.maintenance.scene import (
    KNOWS,
    PERSON,
    PLACE,
    SCHEMA,
    add,
    coverage,
    made_of,
    named,
    people,
    table_of,
    whenever,
)
from tests.support.faults import CrashError, assert_settled, crash, dataset, doing, foreign_commit, refuse
from tests.support.graphs import append, contents, plan
from tests.support.mutations import at_write, once_prepared, store_of


def stats(graph: Graph, key: str) -> TableUpkeep:
    """Optimize, and tell what became of one table."""
    [row] = [row for row in graph.optimize().tables if row.table_key == key]
    return row


def test_many_small_commits_become_one_fragment_in_one_commit(graph: Graph, store: Store) -> None:
    before, commits = contents(store), len(graph.commits())
    done = {row.table_key: row for row in graph.optimize(actor="ann").tables}
    assert contents(store) == before
    assert [len(made_of(graph, key).parts) for key in (PERSON, KNOWS, PLACE)] == [1, 1, 0]
    assert all(coverage(graph, PERSON).values())
    assert len(graph.commits()) == commits + 1
    assert graph.commits()[0].actor_id == "ann"
    person = done[PERSON]
    assert (person.fragments_removed, person.fragments_added, person.committed, person.skipped) == (6, 1, True, None)
    assert person.manifest_version == table_of(graph, PERSON).version
    assert not done[PLACE].committed
    assert_settled(store)


def test_the_next_call_commits_nothing(graph: Graph) -> None:
    graph.optimize()
    with at_write(1, refuse) as written:
        done = graph.optimize()
    assert done.commit is None
    assert not any(row.committed for row in done.tables)
    assert written == []


@pytest.mark.slow
@pytest.mark.parametrize("commits", [1, 2, 5])
def test_it_can_be_called_after_any_number_of_commits(graph: Graph, commits: int) -> None:
    for start in (100, 200, 300):
        for at in range(start, start + commits):
            add(graph, at)
        graph.optimize()
        assert all(coverage(graph, PERSON).values())
    assert len(made_of(graph, PERSON).parts) == 1
    assert named(graph, "p200") == [200]
    assert len(people(graph)) == 6 + 3 * commits


def test_a_compaction_lets_changed_and_deleted_rows_go(graph: Graph) -> None:
    graph.ensure_indices()
    graph.mutate("query q() { update Person set { age: 50 } where age < 3 }")
    graph.mutate('query q() { delete Person where name = "p4" }')
    before = people(graph)
    graph.optimize()
    assert people(graph) == before
    assert [part.deleted for part in made_of(graph, PERSON).parts] == [0]
    assert named(graph, "p1") == [50]
    assert named(graph, "p4") == []


def test_rows_keep_the_numbers_and_times_that_history_knows_them_by(graph: Graph, store: Store) -> None:
    columns = ["id", "_rowid", "_row_created_at_version", "_row_last_updated_at_version"]
    path = table_of(graph, PERSON).path
    before = dataset(store, path).to_table(columns=columns).sort_by("id")
    graph.optimize()
    assert dataset(store, path).to_table(columns=columns).sort_by("id") == before


def test_blobs_are_rewritten_as_well(graph: Graph) -> None:
    for at in range(3):
        graph.load([{"type": "Person", "data": {"name": f"b{at}", "photo": "base64:aGk="}}], mode="append")
    graph.optimize()
    exported = [line for line in graph.export(types=["Person"]) if '"b1"' in line]
    assert len(exported) == 1
    assert "aGk=" in exported[0]
    assert len(made_of(graph, PERSON).parts) == 1


# Others who write ----------------------------------------------------------------------------------


def test_rows_that_come_meanwhile_are_there_afterwards_and_the_compaction_too(graph: Graph, store: Store) -> None:
    other = omnigraph.open(graph.uri)
    with at_write(3, doing(add, other, 70)):
        row = stats(graph, PERSON)
    assert (row.fragments_removed, row.fragments_added) == (6, 1)
    assert named(graph, "p70") == [70]
    assert len(people(graph)) == 7
    assert len(made_of(graph, PERSON).parts) == 2
    assert_settled(store)


CHANGES = {
    "a delete": 'query q() { delete Person where name = "p3" }',
    "an update": "query q() { update Person set { age: 77 } where age >= 3 }",
    "a load in the place of all": None,
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_was_rewritten_and_changed_meanwhile_is_rewritten_again(graph: Graph, change: str) -> None:
    other, text = omnigraph.open(graph.uri), CHANGES[change]
    records = [{"type": "Person", "data": {"name": f"p{at}", "age": 9}} for at in range(6)]
    act = doing(other.mutate, text) if text else lambda: other.load(records, mode="overwrite") and None
    with at_write(3, act):
        graph.optimize()
    expected = people(other)
    assert people(omnigraph.open(graph.uri)) == expected
    assert all(coverage(graph, PERSON).values())
    assert len(made_of(graph, PERSON).parts) == 1


def test_what_fits_a_later_version_does_so_at_every_reading(graph: Graph, store: Store) -> None:
    """Lance gives the settings of a column, and a Blob has two, in another order each time."""
    table = table_of(graph, PERSON)
    before = made_of(graph, PERSON)
    done = [maintain.rewrite(store.tables, table, group) for group in compaction_groups(before)]
    staged = maintain.stage_rewrite(store.tables, table, before, done)
    add(graph, 70)
    pin = table_of(graph, PERSON)
    assert all(can_rebase(store_of(graph.uri).tables, staged, pin) for _ in range(12))


def test_a_schema_that_was_changed_and_changed_back_meanwhile_stops_nothing(graph: Graph, store: Store) -> None:
    """The columns are what they were, but lance knows that they were not all the time."""
    other, rows = omnigraph.open(graph.uri), contents(store)

    def change() -> None:
        other.apply_schema(SCHEMA.replace("tags:", "town: String?  tags:"))
        other.apply_schema(SCHEMA)

    with at_write(3, change):
        assert graph.optimize().commit
    assert contents(store_of(graph.uri)) == rows
    assert [len(made_of(graph, key).parts) for key in (PERSON, KNOWS)] == [1, 1]
    assert_settled(store_of(graph.uri))


@pytest.mark.slow
def test_a_table_that_is_changed_every_time_is_left_and_the_others_are_done(graph: Graph) -> None:
    other = omnigraph.open(graph.uri)

    def change() -> None:
        with suppress(ExpectedVersionMismatchError):  # several indices are built at once, and each has its rival
            other.mutate("query q() { update Person set { age: 1 } where age >= 0 }")

    with whenever("build index", change):
        done = {row.table_key: row for row in graph.optimize().tables}
    assert done[PERSON].skipped == CONTENDED
    assert done[KNOWS].committed
    assert len(made_of(graph, KNOWS).parts) == 1
    assert [row["p.age"] for row in people(graph)] == [1] * 6


def test_writers_go_on_while_a_table_is_rewritten(graph: Graph, store: Store) -> None:
    """The gates are free while files are written: whoever writes does not even wait."""
    other = omnigraph.open(graph.uri)
    reached = failpoints.Rendezvous()
    with at_write(2, reached):
        worker = threading.Thread(target=graph.optimize)
        worker.start()
        reached.wait_until_reached()
        add(other, 80)
        reached.release()
        worker.join()
    assert named(graph, "p80") == [80]
    assert_settled(store)


def test_a_strict_delete_goes_on_after_an_optimize_and_an_update_does_not_after_a_change(graph: Graph) -> None:
    other = omnigraph.open(graph.uri)
    with once_prepared(doing(other.optimize)):
        assert graph.mutate('query q() { delete Person where name = "p2" }').affected_nodes == 1
    assert named(graph, "p2") == []
    with pytest.raises(ExpectedVersionMismatchError), once_prepared(doing(add, other, 81)):
        graph.mutate('query q() { update Person set { age: 5 } where name = "p3" }')
    assert named(graph, "p3") == [3]


# What stands in the way ----------------------------------------------------------------------------


def dead_write(store: Store) -> str:
    """A write that moved a table and died; returns its operation."""
    txn = begin(store)
    work = plan(txn, append(store, txn, PLACE, [{"id": "x", "title": "x"}]))
    with pytest.raises(CrashError), failpoints.armed(failpoints.PUBLISH_BEFORE_MANIFEST, crash):
        publish(store, work)
    [operation] = store.sidecars.pending()
    return operation


def test_a_write_that_stopped_half_way_is_finished_first(graph: Graph, store: Store) -> None:
    dead_write(store)
    graph.optimize()
    assert [row["title"] for row in contents(store)[PLACE]] == ["x"]
    assert len(made_of(graph, PERSON).parts) == 1
    assert_settled(store)


def test_it_refuses_while_a_write_that_stopped_half_way_cannot_be_finished(graph: Graph, store: Store) -> None:
    operation = dead_write(store)
    before = [made_of(graph, key) for key in (PERSON, KNOWS)]
    impatient = Graph(Store.at(Location.parse(graph.uri), gate_timeout=0.2), read_only=True)
    impatient.read_only = False
    with store.gates.hold([Gate(f"table:main:{PLACE}")]), pytest.raises(RecoveryRequiredError) as caught:
        impatient.optimize()
    assert caught.value.operation_id == operation
    assert [made_of(graph, key) for key in (PERSON, KNOWS)] == before


def test_a_table_that_others_have_moved_is_skipped_with_both_versions(graph: Graph, store: Store) -> None:
    head = foreign_commit(store, PERSON)
    done = {row.table_key: row for row in graph.optimize().tables}
    assert done[PERSON] == TableUpkeep(PERSON, skipped=DRIFT, manifest_version=head - 1, lance_head_version=head)
    assert done[KNOWS].committed
    assert len(people(graph)) == 6


def test_a_table_that_is_set_to_clean_itself_up_is_set_not_to(graph: Graph, store: Store) -> None:
    table = table_of(graph, PERSON)
    handle = dataset(store, table.path)
    handle.update_config({"lance.auto_cleanup.interval": "1000", "lance.auto_cleanup.older_than": "0s"})
    graph.repair(confirm=True, force=True)
    versions = [one["version"] for one in dataset(store, table.path).version_refs()]
    assert stats(graph, PERSON).committed
    after = dataset(store, table.path)
    assert not any(key.startswith("lance.auto_cleanup") for key in after.config())
    assert {one["version"] for one in after.version_refs()} >= set(versions)
    add(graph, 90)


# The books of the graph ----------------------------------------------------------------------------


def test_the_manifest_needs_no_optimizing(graph: Graph, store: Store) -> None:
    for at in range(90, 93):
        add(graph, at)
    assert not [row.table_key for row in graph.optimize().tables if row.table_key.startswith("_")]
    assert len(store.manifest.table.open().get_fragments()) == 1


def test_a_graph_without_rows_is_no_problem(tmp_path: Path) -> None:
    graph = omnigraph.init(tmp_path / "empty", "node A { x: I32? }")
    assert not any(row.committed for row in graph.optimize().tables)
    assert graph.ensure_indices().commit is None


# Branches ------------------------------------------------------------------------------------------


def test_a_branch_is_optimized_without_touching_what_it_inherits(graph: Graph) -> None:
    graph.ensure_indices()
    graph.create_branch("feature")
    for at in range(60, 63):
        add(graph, at, branch="feature")
    of_main, before = table_of(graph, PERSON), people(graph)
    expected = people(graph, branch="feature")
    done = graph.optimize("feature")
    assert [row.table_key for row in done.tables] == [PERSON]
    assert people(omnigraph.open(graph.uri), branch="feature") == expected
    assert len(made_of(graph, PERSON, "feature").parts) == 1
    assert all(coverage(graph, PERSON, "feature").values())
    assert (table_of(graph, PERSON), people(graph)) == (of_main, before)
    graph.merge("feature")
    assert len(people(graph)) == 9


# Spark ---------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("spark")
def test_spark_does_the_same(graph: Graph) -> None:
    before = people(graph)
    row = next(row for row in graph.optimize(engine="spark").tables if row.table_key == PERSON)
    assert (row.fragments_removed, row.fragments_added) == (6, 1)
    assert people(omnigraph.open(graph.uri)) == before
    assert all(coverage(graph, PERSON).values())
    assert named(graph, "p5") == [5]
    assert graph.optimize(engine="spark").commit is None
