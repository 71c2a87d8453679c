"""`ensure_indices`: every index that the schema asks for covers all rows, and no answer depends on that."""

from __future__ import annotations

import shutil

import pytest

import omnigraph
from omnigraph.api.maintenance import PendingIndex
from omnigraph.commit.store import Store
from omnigraph.errors import DriftError, ReadOnlyError
from omnigraph.graph import Graph
from omnigraph.maintenance.tasks import NO_VECTORS
from tests.maintenance.scene import KNOWS, PERSON, PLACE, add, coverage, made_of, named, people, table_of
from tests.support.faults import assert_settled, doing, foreign_commit, refuse
from tests.support.graphs import contents
from tests.support.mutations import at_write

OF_PERSON = {"age_btree", "bio_btree", "bio_inverted", "id_btree", "mood_btree", "name_btree"}
OF_KNOWS = {"dst_btree", "id_btree", "src_btree"}


def test_every_index_of_the_schema_is_built_in_one_commit(graph: Graph, store: Store) -> None:
    before, commits = contents(store), len(graph.commits())
    done = graph.ensure_indices(actor="ann")
    assert coverage(graph, PERSON) == dict.fromkeys(OF_PERSON, True)
    assert coverage(graph, KNOWS) == dict.fromkeys(OF_KNOWS, True)
    assert coverage(graph, PLACE) == {}, "an empty table is left alone"
    assert len(graph.commits()) == commits + 1
    assert done.commit == graph.commits()[0]
    assert done.commit.actor_id == "ann"
    assert {row.table_key: set(row.indexes) for row in done.tables} == {
        PERSON: OF_PERSON,
        KNOWS: OF_KNOWS,
        PLACE: set(),
    }
    assert contents(store) == before
    assert_settled(store)


def test_to_ask_again_writes_nothing(graph: Graph) -> None:
    graph.ensure_indices()
    with at_write(1, refuse) as written:
        done = graph.ensure_indices()
    assert done.commit is None
    assert not any(row.committed for row in done.tables)
    assert written == []


def test_what_is_covered_in_part_is_covered_in_full(graph: Graph) -> None:
    graph.ensure_indices()
    add(graph, 50)
    assert coverage(graph, PERSON) == dict.fromkeys(OF_PERSON, False)
    graph.ensure_indices()
    assert coverage(graph, PERSON) == dict.fromkeys(OF_PERSON, True)
    segments = {name: len(found) for name, found in made_of(graph, PERSON).indices.items()}
    assert segments == dict.fromkeys(OF_PERSON, 2), "one row more is no reason to build all anew"
    assert named(graph, "p50") == [50]
    assert named(graph, "p3") == [3]


def test_an_index_on_vectors_waits_for_the_first(graph: Graph) -> None:
    pending = {row.table_key: row.pending_indexes for row in graph.ensure_indices().tables}
    assert pending == {PERSON: (PendingIndex("near", NO_VECTORS),), KNOWS: (), PLACE: ()}
    graph.mutate('query add() { insert Person { name: "v", near: [1.0, 2.0] } }')
    [row] = [row for row in graph.optimize().tables if row.table_key == PERSON]
    assert row.pending_indexes == ()
    assert coverage(graph, PERSON)["near_ivf_flat"]
    add(graph, 51)
    [row] = [row for row in graph.ensure_indices().tables if row.table_key == PERSON]
    assert "near_ivf_flat" not in row.indexes, "a row without a vector needs no index on vectors"
    assert graph.ensure_indices().commit is None


CHANGES = {
    "an insert": 'query q() { insert Person { name: "p3", age: 99 } insert Person { name: "new", age: 1 } }',
    "a delete": 'query q() { delete Person where name = "p3" }',
    "an update": "query q() { update Person set { age: 77 } where age >= 3 }",
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_write_that_comes_while_an_index_is_built_is_not_lost(graph: Graph, change: str) -> None:
    other, alone = omnigraph.open(graph.uri), omnigraph.open(shutil.copytree(graph.uri, f"{graph.uri}-2"))
    alone.mutate(change)
    with at_write(2, doing(other.mutate, change)):
        assert graph.ensure_indices().commit
    assert people(graph) == people(alone)
    assert named(graph, "p3") == named(alone, "p3")
    assert set(coverage(graph, PERSON)) == OF_PERSON


def test_indices_that_two_build_at_once_are_there_once(graph: Graph, store: Store) -> None:
    other = omnigraph.open(graph.uri)
    with at_write(2, doing(other.ensure_indices)):
        graph.ensure_indices()
    assert coverage(graph, PERSON) == dict.fromkeys(OF_PERSON, True)
    assert {len(found) for found in made_of(graph, PERSON).indices.values()} == {1}
    assert_settled(store)


def test_a_branch_looks_after_its_own_tables_and_leaves_those_of_others(graph: Graph) -> None:
    graph.create_branch("feature")
    add(graph, 60, branch="feature")
    of_main = table_of(graph, PERSON)
    done = graph.ensure_indices("feature")
    assert [row.table_key for row in done.tables] == [PERSON]
    assert coverage(graph, PERSON, "feature") == dict.fromkeys(OF_PERSON, True)
    assert coverage(graph, PERSON) == {}
    assert (table_of(graph, PERSON), table_of(graph, KNOWS, "feature")) == (of_main, table_of(graph, KNOWS))
    assert len(people(graph, branch="feature")) == len(people(graph)) + 1


def test_a_table_that_others_have_moved_is_refused(graph: Graph, store: Store) -> None:
    head = foreign_commit(store, PERSON)
    commits = graph.commits()
    with pytest.raises(DriftError) as caught:
        graph.ensure_indices()
    assert caught.value.details() == {"table_key": PERSON, "pin": head - 1, "head": head}
    assert graph.commits() == commits
    assert coverage(graph, KNOWS) == {}


def test_a_handle_that_is_read_only_builds_nothing(graph: Graph) -> None:
    with pytest.raises(ReadOnlyError):
        omnigraph.open(graph.uri, read_only=True).ensure_indices()
