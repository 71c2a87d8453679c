"""Merges, writers and those who make and remove branches, all at once: each happens before the other or after it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

import omnigraph
from omnigraph.api.results import MergeResult
from omnigraph.commit import failpoints
from omnigraph.errors import (
    BranchNotFoundError,
    ConstraintError,
    MergeConflictError,
    OmnigraphError,
    RefExistsError,
)
from omnigraph.graph import Graph
from tests.commit.child import store_at
from tests.commit.places import copied
from tests.history.competing import Call, call, competing, meanwhile, outcome
from tests.history.crashing import arranged, branch_of, bring, drifted, knows, look, note, person
from tests.support.faults import at_arrival
from tests.support.mutations import broken_rules

Names = list[str]


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """A graph that is arranged for an operation, to copy."""

    @cache
    def made(name: str) -> str:
        return arranged(str(tmp_path_factory.mktemp("graphs") / "one"), name)

    return made


@pytest.fixture
def uri(graphs: Callable[[str], str], request: pytest.FixtureRequest) -> str:
    return copied(graphs(getattr(request, "param", "fast-forward")))


def _ids(uri: str, branch: str, key: str) -> Names:
    return [row["id"] for row in look(uri)[branch][key]]


def _assert_whole(uri: str) -> None:
    """All rules hold on all branches, every own head is its pin, history is one chain, and nothing is left over."""
    store = store_at(uri)
    assert [rule for rows in look(uri).values() for rule in broken_rules(rows)] == []
    assert drifted(store) == []
    assert store.sidecars.pending() == []
    assert store.audit.rows() == []
    for name in store.manifest.branches():
        commits = store.manifest.load(branch_of(name)).commits()
        assert [commit.parent_id for commit in commits] == [None, *(commit.commit_id for commit in commits[:-1])]


# A merge and a writer of its target ----------------------------------------------------------------

# The branch adds eve and a note, changes ann, and removes bob with his edges.
WRITES = 13
WRITERS: dict[str, tuple[Call, dict[str, Any]]] = {
    "something else": (call("mutate", 'query w() { insert Person { name: "zoe" } }'), {}),
    "the same entity": (
        call("mutate", 'query w() { update Person set { age: 99 } where name = "ann" }'),
        {"merge refused": "divergent_update"},
    ),
    "an edge to what goes": (
        call("mutate", 'query w() { insert Knows { from: "cat", to: "bob" } }'),
        {"merge refused": "orphan_edge", "writer refused": ConstraintError},
    ),
}


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("ordinal", [1, 6, 7, 8, 11, 12, 13])
def test_a_merge_and_a_writer_of_its_target_come_one_after_the_other(uri: str, writer: str, ordinal: int) -> None:
    writing, refused = WRITERS[writer]
    graph, other = omnigraph.open(uri), omnigraph.open(uri)
    with meanwhile(ordinal, lambda: outcome(other, writing)) as acts:
        merged = outcome(graph, call("merge", "feature"))
    written = acts.result()
    assert len(acts.written) >= min(WRITES, ordinal)

    commits = [commit.commit_id for commit in graph.commits()]
    wrote_first = not isinstance(written, OmnigraphError) and (
        isinstance(merged, OmnigraphError) or commits[1] == written.commit.commit_id
    )
    assert wrote_first == ("write record" not in acts.written[:ordinal])
    if wrote_first and "merge refused" in refused:
        assert isinstance(merged, MergeConflictError)
        assert {conflict.kind for conflict in merged.conflicts} == {refused["merge refused"]}
        assert "eve" not in _ids(uri, "main", "node:Person")
    elif not wrote_first and "writer refused" in refused:
        assert isinstance(written, refused["writer refused"])
    else:
        assert merged.outcome == ("merged" if wrote_first else "fast_forward")
        assert {"eve"} < set(_ids(uri, "main", "node:Person"))
        assert "bob" not in _ids(uri, "main", "node:Person")
    _assert_whole(uri)


def test_a_writer_that_was_prepared_before_a_merge_writes_behind_it_or_not_at_all(uri: str) -> None:
    """It adds an edge to somebody whom the merge removes: what it has seen is no longer so."""
    graph, other = omnigraph.open(uri), omnigraph.open(uri)
    with meanwhile(1, lambda: outcome(other, call("merge", "feature"))) as acts:
        written = outcome(graph, WRITERS["an edge to what goes"][0])
    assert isinstance(written, ConstraintError)
    assert isinstance(acts.result(), MergeResult)
    _assert_whole(uri)


def test_processes_that_merge_and_write_at_once_make_one_history(uri: str) -> None:
    """Six writers, two of the same merge, and one that merges the other way."""
    writers = [call("load", [person(f"w{number}", number)], mode="merge") for number in range(6)]
    merges = [call("merge", "feature"), call("merge", "feature"), call("merge", "main", "feature")]
    with competing(uri, [*writers, *merges]) as go:
        told = go()
    assert [one for one in told if isinstance(one, OmnigraphError)] == []
    names = _ids(uri, "main", "node:Person")
    assert names == ["ann", "cat", "dan", "eve", *(f"w{number}" for number in range(6))]
    assert "eve" in _ids(uri, "feature", "node:Person")
    graph = omnigraph.open(uri)
    merged = [commit for commit in graph.commits() if commit.merged_parent_id]
    assert len(merged) == len({result.commit.commit_id for result in told[6:8] if result.commit})
    _assert_whole(uri)
    graph.merge("main", "feature")
    assert graph.merge("feature").outcome in ("fast_forward", "already_up_to_date")
    assert look(uri)["main"] == look(uri)["feature"]


# Two merges ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("uri", ["fast-forward", "merge that takes tables over", "merge that forks"], indirect=True)
@pytest.mark.parametrize("ordinal", [1, 4, 6])
def test_of_two_equal_merges_at_once_one_commits_and_the_other_finds_nothing_to_do(
    uri: str, ordinal: int, request: pytest.FixtureRequest
) -> None:
    name = request.node.callspec.params["uri"]
    into = {"fast-forward": ("feature", "main"), "merge that takes tables over": ("main", "feature")}
    merging = call("merge", *into.get(name, ("feature", "other")))
    graph, other = omnigraph.open(uri), omnigraph.open(uri)
    with meanwhile(ordinal, lambda: outcome(other, merging)) as acts:
        told = [outcome(graph, merging), acts.result()]
    assert min(one.outcome for one in told) == "already_up_to_date"
    assert len([one for one in told if one.commit]) == 1
    _assert_whole(uri)


def test_merges_that_change_nothing_are_one_commit_as_well(uri: str) -> None:
    graph = omnigraph.open(uri)
    graph.create_branch("idle")
    graph.mutate('query w() { insert Knows { from: "dan", to: "ann" } }', branch="idle")
    graph.mutate('query w() { delete Knows where from = "dan" }', branch="idle")
    before = len(graph.commits())
    with competing(uri, [call("merge", "idle")] * 3) as go:
        told = sorted(one.outcome for one in go())
    assert told == ["already_up_to_date", "already_up_to_date", "fast_forward"]
    assert len(graph.commits()) == before + 1
    _assert_whole(uri)


# First writers -------------------------------------------------------------------------------------

FIRST = {
    "one table": ([person("eve", 1)], [person("fay", 2)]),
    "two tables": ([person("eve", 1)], [note("n6", "six")]),
    "more tables": ([person("eve", 1), note("n6", "six")], [note("n7", "seven"), knows("k9", "ann", "dan")]),
}


@pytest.mark.parametrize("uri", ["first write"], indirect=True)
@pytest.mark.parametrize("which", FIRST)
@pytest.mark.parametrize("ordinal", [2, 3, 4, 5])
def test_of_two_first_writers_of_a_branch_both_have_written(uri: str, which: str, ordinal: int) -> None:
    """Both fork the table; one of the forks becomes the branch's, and the other is never heard of again."""
    mine, theirs = FIRST[which]
    graph, other = omnigraph.open(uri), omnigraph.open(uri)
    with meanwhile(ordinal, lambda: bring(other, "feature", *theirs)):
        bring(graph, "feature", *mine)
    found = {row["id"] for rows in look(uri)["feature"].values() for row in rows}
    assert found >= {str(record["data"].get("id") or record["data"]["name"]) for record in (*mine, *theirs)}
    assert len(graph.commits("feature")) == len(graph.commits()) + 2
    assert graph.merge("feature").outcome == "fast_forward"
    assert look(uri)["main"] == look(uri)["feature"]
    _assert_whole(uri)


@pytest.mark.parametrize("uri", ["merge that takes tables over"], indirect=True)
@pytest.mark.parametrize("ordinal", [1, 2])
def test_a_table_that_is_written_meanwhile_is_merged_and_not_taken_over(uri: str, ordinal: int) -> None:
    graph, other = omnigraph.open(uri), omnigraph.open(uri)
    with meanwhile(ordinal, lambda: bring(other, "feature", note("n8", "eight"), knows("k8", "cat", "ann"))):
        merged = graph.merge("main", "feature")
    assert merged.outcome == "merged"
    found = look(uri)["feature"]
    assert {"n6", "n8"} < {row["id"] for row in found["node:Note"]}
    assert {"k8", "k9"} < {row["id"] for row in found["edge:Knows"]}
    _assert_whole(uri)


# Branches ------------------------------------------------------------------------------------------


def _delete(graph: Graph) -> None:
    graph.delete_branch("feature")


def _delete_and_make_anew(graph: Graph) -> None:
    graph.delete_branch("feature")
    graph.create_branch("feature")


@pytest.mark.parametrize("ordinal", [1, 2])
def test_a_write_to_a_branch_that_was_deleted_meanwhile_is_refused(uri: str, ordinal: int) -> None:
    graph, other = omnigraph.open(uri), omnigraph.open(uri)
    writing = call("mutate", 'query w() { insert Person { name: "zoe" } }', branch="feature")
    with meanwhile(ordinal, lambda: _delete(other)):
        written = outcome(graph, writing)
    assert graph.branches() == ["main"]
    assert isinstance(written, BranchNotFoundError) or ordinal > 1
    _assert_whole(uri)


def test_a_write_that_has_begun_to_commit_is_done_before_its_branch_goes(uri: str) -> None:
    graph, other = omnigraph.open(uri), omnigraph.open(uri)
    with meanwhile(3, lambda: _delete(other)) as acts:
        done = graph.mutate('query w() { insert Person { name: "zoe" } }', branch="feature")
    assert acts.written[:3] == ["stage append", "write record", "commit table"]
    assert done.commit
    acts.result()
    assert graph.branches() == ["main"]
    _assert_whole(uri)


@pytest.mark.parametrize("uri", ["fast-forward", "first write"], indirect=True)
def test_a_write_does_not_bring_back_what_another_branch_of_the_name_had(uri: str) -> None:
    graph, other = omnigraph.open(uri), omnigraph.open(uri)
    with meanwhile(1, lambda: _delete_and_make_anew(other)):
        graph.mutate('query w() { insert Person { name: "zoe" } }', branch="feature")
    assert _ids(uri, "feature", "node:Person") == ["ann", "bob", "cat", "dan", "zoe"]
    _assert_whole(uri)


@pytest.mark.parametrize("act", [_delete, _delete_and_make_anew])
@pytest.mark.parametrize("ordinal", [1, 3, 6, 9])
def test_a_merge_of_a_branch_that_goes_meanwhile_happens_whole_or_not_at_all(
    uri: str, act: Callable[[Graph], None], ordinal: int
) -> None:
    graph, other = omnigraph.open(uri), omnigraph.open(uri)
    before = look(uri)["main"]
    after = look(uri)["feature"]
    with meanwhile(ordinal, lambda: act(other)):
        merged = outcome(graph, call("merge", "feature"))
    assert look(uri)["main"] == (before if isinstance(merged, OmnigraphError) else after)
    _assert_whole(uri)


def test_a_merge_of_a_branch_that_goes_meanwhile_takes_the_state_that_it_found(uri: str) -> None:
    graph, other = omnigraph.open(uri), omnigraph.open(uri)
    before = look(uri)["feature"]
    with failpoints.armed(failpoints.RECOVERY_SIDECAR_LIST, at_arrival(1, lambda: _delete(other))):
        merged = outcome(graph, call("merge", "feature"))
    assert isinstance(merged, MergeResult)
    assert look(uri) == {"main": before}
    _assert_whole(uri)


@pytest.mark.parametrize("uri", ["merge that forks"], indirect=True)
@pytest.mark.parametrize("ordinal", [1, 4, 5])
def test_a_merge_into_a_branch_that_goes_meanwhile_is_refused_unless_it_came_first(uri: str, ordinal: int) -> None:
    graph, other = omnigraph.open(uri), omnigraph.open(uri)
    with meanwhile(ordinal, lambda: other.delete_branch("other")) as acts:
        merged = outcome(graph, call("merge", "feature", "other"))
    came_first = "write record" in acts.written[:ordinal]
    assert isinstance(merged, MergeResult if came_first else BranchNotFoundError)
    acts.result()
    assert graph.branches() == ["main", "feature"]
    _assert_whole(uri)


def test_of_those_who_make_a_branch_of_one_name_at_once_one_does(uri: str) -> None:
    bases = ["main", "feature", "main", "feature"]
    with competing(uri, [call("create_branch", "new", base) for base in bases]) as go:
        told = go()
    (made,) = [base for base, one in zip(bases, told, strict=True) if one is None]
    assert [type(one) for one in told if one is not None] == [RefExistsError] * 3
    found = look(uri)
    assert found["new"] == found[made]
    _assert_whole(uri)


def test_of_those_who_make_a_branch_on_an_object_store_one_does(s3_uri: str) -> None:
    arranged(s3_uri, "branch create")
    told: list[Any] = []
    with meanwhile(1, lambda: outcome(omnigraph.open(s3_uri), call("create_branch", "new"))) as acts:
        told.append(outcome(omnigraph.open(s3_uri), call("create_branch", "new")))
    told.append(acts.result())
    assert sorted(type(one).__name__ for one in told) == ["NoneType", "RefExistsError"]


def test_of_those_who_delete_a_branch_at_once_one_does(uri: str) -> None:
    with competing(uri, [call("delete_branch", "feature")] * 3) as go:
        told = go()
    assert sorted(type(one).__name__ for one in told) == ["BranchNotFoundError", "BranchNotFoundError", "NoneType"]
    graph = omnigraph.open(uri)
    graph.create_branch("feature")
    bring(graph, "feature", person("zoe", 1))
    _assert_whole(uri)
