"""A revert undoes what one commit changed, and nothing that came later."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

import omnigraph
from omnigraph.api.results import ChangeCounts, MergeOutcome
from omnigraph.commit import failpoints
from omnigraph.errors import CommitNotFoundError, HistoryReclaimedError, MergeConflictError, MergeError, ResolutionError
from omnigraph.graph import Graph
from tests.history.people import acquaintances, ages, head, new_graph, records, refused, rows, run
from tests.support.faults import CrashError, crash

EVE = 'insert Person { name: "Eve", age: 22 } insert Knows { from: "Eve", to: "Dan" }'
OLDER = 'update Person set { age: 31 } where name = "Alice"'
CHANGES = {
    "insert": EVE,
    "update": OLDER,
    "delete with its edges": 'delete Person where name = "Bob"',
    "delete of an edge": 'delete Knows where from = "Bob"',
}


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    return new_graph(tmp_path)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("later", ["", 'insert Person { name: "Zoe" }'], ids=["the last commit", "an earlier commit"])
def test_what_a_commit_changed_is_undone_and_what_came_later_stays(graph: Graph, change: str, later: str) -> None:
    before = rows(graph)
    run(graph, change)
    undone = head(graph)
    if later:
        run(graph, later)

    done = graph.revert(undone, actor="eve")

    assert [row for row in rows(graph) if row.get("data", {}).get("name") != "Zoe"] == before
    assert ("Zoe" in ages(graph)) == bool(later)
    assert (done.source, done.target, done.outcome) == (undone, "main", MergeOutcome.MERGED)
    assert done.commit == graph.commits()[0]
    assert (done.commit.merged_parent_id, done.commit.actor_id) == (None, "eve")
    assert done.commit.details == {"reverts": undone}


def test_a_revert_can_be_reverted(graph: Graph) -> None:
    run(graph, EVE)
    with_eve = rows(graph)
    graph.revert(head(graph))
    assert "Eve" not in ages(graph)

    done = graph.revert(head(graph))

    assert rows(graph) == with_eve
    assert done.changes == {"edge:Knows": ChangeCounts(1, 0, 0), "node:Person": ChangeCounts(1, 0, 0)}


def test_what_is_undone_already_is_not_undone_again(graph: Graph) -> None:
    run(graph, EVE)
    undone = head(graph)
    graph.revert(undone)
    commits = graph.commits()

    again = graph.revert(undone)

    assert (again.outcome, again.commit, again.changes) == (MergeOutcome.ALREADY_UP_TO_DATE, None, {})
    assert graph.commits() == commits


def test_what_was_changed_again_since_is_a_conflict(graph: Graph) -> None:
    run(graph, OLDER)
    undone = head(graph)
    run(graph, 'update Person set { age: 32 } where name = "Alice"')

    error = refused(graph, lambda: graph.revert(undone))

    assert isinstance(error, MergeConflictError)
    assert [(conflict.kind, conflict.id) for conflict in error.conflicts] == [("divergent_update", "Alice")]


@pytest.mark.parametrize("side, age, outcome", [("ours", 32, "already_up_to_date"), ("theirs", 30, "merged")])
def test_a_side_decides_over_what_was_changed_since(graph: Graph, side: str, age: int, outcome: str) -> None:
    run(graph, OLDER)
    undone = head(graph)
    run(graph, 'update Person set { age: 32 } where name = "Alice"')

    done = graph.revert(undone, resolve=side)

    assert (ages(graph)["Alice"], done.outcome) == (age, outcome)
    if done.commit:
        assert done.commit.details == {"reverts": undone, "resolution": {"default": "theirs"}}


def test_what_others_have_come_to_need_is_not_undone(graph: Graph) -> None:
    run(graph, 'insert Person { name: "Eve" }')
    undone = head(graph)
    run(graph, 'insert Knows { from: "Alice", to: "Eve" }')

    error = refused(graph, lambda: graph.revert(undone, resolve="theirs"))

    assert isinstance(error, MergeConflictError)
    assert [conflict.kind for conflict in error.conflicts] == ["orphan_edge"]


def test_a_merge_is_undone_with_all_that_it_brought(graph: Graph) -> None:
    graph.create_branch("feature")
    run(graph, EVE, "feature")
    run(graph, OLDER, "feature")
    run(graph, 'delete Person where name = "Carol"')
    before = rows(graph)
    graph.merge("feature")

    graph.revert(head(graph))

    assert rows(graph) == before
    assert graph.merge("feature").outcome is MergeOutcome.ALREADY_UP_TO_DATE


def test_a_commit_is_undone_on_the_branch_that_has_it(graph: Graph) -> None:
    run(graph, OLDER)
    undone = head(graph)
    graph.create_branch("feature")
    run(graph, EVE, "feature")
    main = rows(graph)

    graph.revert(undone, "feature")
    graph.revert(graph.commits("feature")[1].commit_id, "feature")

    assert ages(graph, "feature") == {"Alice": 30, "Bob": 25, "Carol": 40, "Dan": 50}
    assert acquaintances(graph, "feature") == [("Bob", "Carol")]
    assert rows(graph) == main


def test_what_cannot_be_undone_is_refused(graph: Graph) -> None:
    graph.create_branch("feature")
    run(graph, EVE, "feature")
    elsewhere, first = head(graph, "feature"), graph.commits()[-1].commit_id

    assert isinstance(refused(graph, lambda: graph.revert(elsewhere)), MergeError)
    assert isinstance(refused(graph, lambda: graph.revert(first)), MergeError)
    assert isinstance(refused(graph, lambda: graph.revert("nothing")), CommitNotFoundError)
    assert isinstance(refused(graph, lambda: graph.revert(head(graph), resolve="mine")), ResolutionError)


def test_a_revert_that_dies_before_it_is_visible_is_finished(graph: Graph) -> None:
    before = rows(graph)
    run(graph, EVE)
    undone = head(graph)

    with failpoints.armed(failpoints.PUBLISH_BEFORE_MANIFEST, crash), pytest.raises(CrashError):
        graph.revert(undone)

    again = omnigraph.open(graph.uri)
    assert rows(again) == before
    assert again.commits()[0].details == {"reverts": undone}
    assert records(again) == []


def test_what_was_cleaned_up_can_be_neither_undone_nor_named_nor_begun_at(graph: Graph) -> None:
    run(graph, OLDER)
    undone = head(graph)
    for age in range(3):
        run(graph, f'update Person set {{ age: {age} }} where name = "Bob"')  # noqa: S608 - .gq
    graph.cleanup(keep=1, confirm=True)
    again = omnigraph.open(graph.uri)

    for act in (again.revert, partial(again.create_tag, "old"), partial(again.create_branch, "old")):
        error = refused(again, lambda act=act: act(undone))  # type: ignore[misc]
        assert isinstance(error, HistoryReclaimedError)
    assert (again.tags(), again.branches()) == ([], ["main"])
