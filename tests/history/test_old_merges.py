"""Graphs with merges of releases before 0.2.0, which recorded nothing: they are recorded before a branch is deleted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import lance
import pytest
from typer.testing import CliRunner

import omnigraph
from omnigraph.cli import app
from omnigraph.graph import Graph
from omnigraph.history.old_merges import ACTOR, MARK
from tests.history.test_retired_branches import clean_up, delete, graph, insert, names, then

__all__ = ["graph", "then"]  # fixtures


def forget_merges(graph: Graph) -> Graph:
    """Make a graph as an older release would have left it: merges record nothing."""
    for name in graph.branches():
        path = Path(graph.uri, "__manifest", *(["tree", name] if name != "main" else []))
        if lance.dataset(path).count_rows("object_type = 'graph_merged_past'"):
            lance.dataset(path).delete("object_type = 'graph_merged_past'")
    Path(graph.uri, MARK).unlink(missing_ok=True)
    return omnigraph.open(graph.uri)


def merged_twice(graph: Graph) -> Graph:
    """T6: a branch is merged into two others, which have each other to be merged with."""
    for name in ("feature", "staging"):
        graph.create_branch(name)
    insert(graph, "bob", "feature")
    graph.merge("feature", into="staging")
    graph.merge("feature", into="main")
    return forget_merges(graph)


def test_a_row_that_was_deleted_does_not_come_back(graph: Graph, then: Callable[[Graph], None]) -> None:
    graph = merged_twice(graph)
    graph.delete_branch("feature")
    then(graph)
    delete(graph, "bob")

    done = omnigraph.open(graph.uri).merge("staging", into="main")

    assert names(graph) == ["ann"]
    assert done.commit
    assert done.commit.details is None, "nothing is uncertain"


def test_the_common_past_may_lie_on_a_branch_that_neither_merged(graph: Graph, then: Callable[[Graph], None]) -> None:
    """T7: the common ancestor was made on b1, and the merges named b2."""
    graph.create_branch("b1")
    insert(graph, "bob", "b1")
    graph.create_branch("b2", base="b1")
    for name in ("s", "t"):
        graph.create_branch(name)
        graph.merge("b2", into=name)
    graph = forget_merges(graph)
    graph.delete_branch("b2")
    then(graph)
    delete(graph, "bob", "s")

    graph.merge("t", into="s")

    assert names(graph, "s") == ["ann"]


def test_a_cleanup_and_a_delete_leave_every_pair_mergeable(graph: Graph) -> None:
    """T8."""
    graph = merged_twice(graph)
    insert(graph, "cleo")
    insert(graph, "dan", "staging")
    clean_up(graph)
    graph.delete_branch("feature")
    clean_up(graph)

    graph = omnigraph.open(graph.uri)
    assert graph.merge("staging", into="main").outcome == "merged"
    assert names(graph) == ["ann", "bob", "cleo", "dan"]


def test_they_are_recorded_once_and_only_where_something_is_missing(graph: Graph) -> None:
    graph = merged_twice(graph)
    graph.create_branch("other")
    heads = {name: graph.commits(name)[0].commit_id for name in ("staging", "main", "other")}
    graph.delete_branch("feature")
    made = {name: graph.commits(name)[0] for name in ("staging", "main", "other")}
    assert all(made[name].parent_id == heads[name] for name in heads), "one commit on each that has such merges"
    assert {one.actor_id for one in made.values()} == {ACTOR}
    graph.create_branch("late")
    insert(graph, "eve", "late")
    graph.merge("late", into="main")
    head = graph.commits()[0]
    graph.delete_branch("late")
    assert graph.commits()[0] == head, "a merge of today records what it brings in"


def test_a_graph_without_such_merges_gets_no_commit(graph: Graph) -> None:
    graph.create_branch("review")
    insert(graph, "bob", "review")
    graph.merge("review", into="main")
    head = graph.commits()[0]
    graph.delete_branch("review")
    assert graph.commits()[0] == head


def test_what_cannot_be_known_any_more_is_named(graph: Graph, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("feature", "staging"):
        graph.create_branch(name)
    insert(graph, "bob", "feature")
    made = graph.merge("feature", into="staging").commit
    other = graph.merge("feature", into="main").commit
    assert made
    assert other
    graph.delete_branch("feature")  # by a release that knew nothing of it
    graph = forget_merges(graph)

    found = {one.subject: one for one in graph.doctor().findings}
    assert {f"commit {made.commit_id}", f"commit {other.commit_id}"} <= found.keys()
    assert str(made.merged_parent_id) in found[f"commit {made.commit_id}"].message
    assert graph.doctor().is_healthy

    insert(graph, "cleo", "staging")
    said = CliRunner().invoke(app, ["branch", "merge", "staging", "--store", graph.uri])
    assert f"warning: the common past is uncertain; older releases did not record {made.commit_id}" in said.stderr
    done = graph.commits()[0]
    assert done.details == {"unknown_merges": sorted([made.commit_id, other.commit_id])}
    assert made.commit_id in caplog.text
    insert(graph, "dan", "staging")
    last = graph.merge("staging", into="main").commit
    assert last
    assert last.details is None, "what both have in common now is known"


def test_a_branch_that_cannot_be_read_does_not_keep_others_from_being_deleted(graph: Graph) -> None:
    graph = merged_twice(graph)
    graph.create_branch("broken")
    insert(graph, "eve", "broken")
    for file in Path(graph.uri, "__manifest", "tree", "broken", "_versions").glob("*.manifest"):
        file.write_bytes(b"damaged")
    graph = omnigraph.open(graph.uri)
    graph.delete_branch("feature")
    assert not Path(graph.uri, MARK).exists(), "it is tried again"
    graph.delete_branch("broken")
    assert graph.branches() == ["main", "staging"]
