"""A branch that is deleted stays findable as the common past of those that merged it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path

import pytest

import omnigraph
from omnigraph.commit.store import Store
from omnigraph.core.location import Location
from omnigraph.errors import HistoryReclaimedError
from omnigraph.graph import Graph
from omnigraph.maintenance.cleanup import CleanupRequest, cleanup

SCHEMA = "node Person { name: String @key  age: I32? }\nnode Empty { name: String @key }\n"
INSERT = "query q($name: String) { insert Person { name: $name  age: 1 } }"
DELETE = "query q($name: String) { delete Person where name = $name }"
UPDATE = "query q($name: String, $age: I32) { update Person set { age: $age } where name = $name }"
NAMES = "query q() { match { $p: Person } return { $p.name as name } order { name } }"


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    made = omnigraph.init(tmp_path / "graph", SCHEMA)
    made.mutate(INSERT, {"name": "ann"})
    return made


def insert(graph: Graph, name: str, branch: str = "main") -> None:
    graph.mutate(INSERT, {"name": name}, branch=branch)


def delete(graph: Graph, name: str, branch: str = "main") -> None:
    graph.mutate(DELETE, {"name": name}, branch=branch)


def names(graph: Graph, branch: str = "main") -> list[str]:
    return [row["name"] for row in graph.query(NAMES, branch=branch).rows]


def clean_up(graph: Graph) -> None:
    """Remove everything that no merge can need, whatever its age."""
    never = dt.timedelta(0)
    cleanup(Store.at(Location.parse(graph.uri)), CleanupRequest(1, None, True, never, never))  # noqa: FBT003


def nothing(_: Graph) -> None:
    pass


@pytest.fixture(params=[nothing, clean_up], ids=["as it is", "cleaned up"])
def then(request: pytest.FixtureRequest) -> Callable[[Graph], None]:
    """What happens after the branch is deleted."""
    found: Callable[[Graph], None] = request.param
    return found


def test_a_row_that_was_deleted_does_not_come_back(graph: Graph, then: Callable[[Graph], None]) -> None:
    graph.create_branch("staging")
    graph.create_branch("feature")
    insert(graph, "x", "feature")
    graph.merge("feature", into="staging")
    graph.merge("feature", into="main")
    graph.delete_branch("feature")
    then(graph)
    delete(graph, "x")
    insert(graph, "s", "staging")
    graph.merge("staging", into="main")
    assert names(graph) == ["ann", "s"]


def test_what_each_side_merged_at_another_time_is_found(graph: Graph, then: Callable[[Graph], None]) -> None:
    graph.create_branch("staging")
    graph.create_branch("feature")
    insert(graph, "x", "feature")
    graph.merge("feature", into="staging")
    insert(graph, "y", "feature")
    graph.merge("feature", into="main")
    graph.delete_branch("feature")
    then(graph)
    delete(graph, "x")
    graph.merge("staging", into="main")
    assert names(graph) == ["ann", "y"]


def test_the_common_past_may_lie_on_a_branch_that_neither_merged(graph: Graph, then: Callable[[Graph], None]) -> None:
    for name in ("s", "t", "b1"):
        graph.create_branch(name)
    insert(graph, "x", "b1")
    graph.create_branch("b2", base="b1")
    graph.merge("b2", into="s")
    graph.merge("b2", into="t")
    graph.delete_branch("b2")
    then(graph)
    delete(graph, "x", "s")
    insert(graph, "u", "t")
    graph.merge("t", into="s")
    assert names(graph, "s") == ["ann", "u"]


def test_the_common_past_may_be_where_one_deleted_branch_left_another(
    graph: Graph, then: Callable[[Graph], None]
) -> None:
    for name in ("s", "t", "first"):
        graph.create_branch(name)
    insert(graph, "x", "first")
    graph.create_branch("second", base="first")
    insert(graph, "y", "second")
    insert(graph, "z", "first")
    graph.merge("second", into="s")
    graph.merge("first", into="t")
    graph.delete_branch("second")
    graph.delete_branch("first")
    then(graph)
    delete(graph, "x", "s")
    graph.merge("t", into="s")
    assert names(graph, "s") == ["ann", "y", "z"]


def test_the_past_travels_with_a_merge_of_a_merge(graph: Graph, then: Callable[[Graph], None]) -> None:
    for name in ("staging", "feature", "other"):
        graph.create_branch(name)
    insert(graph, "x", "feature")
    graph.merge("feature", into="staging")
    graph.merge("feature", into="other")
    graph.delete_branch("feature")
    graph.merge("staging", into="main")
    graph.delete_branch("staging")
    then(graph)
    delete(graph, "x")
    graph.merge("other", into="main")
    assert names(graph) == ["ann"]


def test_a_cleanup_and_a_delete_leave_every_pair_mergeable(graph: Graph, then: Callable[[Graph], None]) -> None:
    graph.create_branch("staging")
    graph.create_branch("feature")
    insert(graph, "x", "feature")
    graph.merge("feature", into="staging")
    graph.merge("feature", into="main")
    insert(graph, "m")
    insert(graph, "s", "staging")
    graph.cleanup(keep=1, confirm=True)
    graph.delete_branch("feature")
    then(graph)
    fresh = omnigraph.open(graph.uri)
    fresh.merge("main", into="staging")
    fresh.merge("staging", into="main")
    assert names(fresh) == ["ann", "m", "s", "x"]


def test_no_false_conflict_after_the_branch_is_gone(graph: Graph, then: Callable[[Graph], None]) -> None:
    graph.create_branch("staging")
    graph.create_branch("feature")
    graph.mutate(UPDATE, {"name": "ann", "age": 2}, branch="feature")
    graph.merge("feature", into="staging")
    graph.merge("feature", into="main")
    graph.delete_branch("feature")
    then(graph)
    graph.mutate(UPDATE, {"name": "ann", "age": 3})
    assert graph.merge("staging", into="main").conflicts == ()
    assert graph.query("query q() { match { $p: Person } return { $p.age as age } }").rows == [{"age": 3}]


def test_the_name_can_be_used_again_and_means_another_branch(graph: Graph, then: Callable[[Graph], None]) -> None:
    graph.create_branch("staging")
    graph.create_branch("feature")
    insert(graph, "x", "feature")
    graph.merge("feature", into="staging")
    graph.merge("feature", into="main")
    graph.delete_branch("feature")
    graph.create_branch("feature", base="staging")
    insert(graph, "again", "feature")
    then(graph)
    delete(graph, "x")
    graph.merge("feature", into="main")
    assert names(graph) == ["again", "ann"]


def test_a_cleanup_removes_what_no_merge_can_need(graph: Graph) -> None:
    graph.create_branch("scratch")
    insert(graph, "x", "scratch")
    graph.delete_branch("scratch")
    clean_up(graph)
    assert not [*Path(graph.uri).glob("nodes/*/tree/**/*.lance")]


def test_a_reverted_commit_of_a_merged_branch_is_found_on_main(graph: Graph) -> None:
    for name in ("b1", "s"):
        graph.create_branch(name)
    insert(graph, "x", "b1")
    made = graph.commits("b1")[0].commit_id
    graph.create_branch("b2", base="b1")
    graph.merge("b2", into="main")
    graph.delete_branch("b2")
    graph.revert(made)
    assert names(graph) == ["ann"]


@pytest.mark.parametrize("make", ["branch", "tag"])
def test_a_state_that_another_handle_cleaned_up_gets_no_name(graph: Graph, make: str) -> None:
    """A handle that has read a state earlier is no proof that the state is still there."""
    old = graph.commits()[0].commit_id
    assert graph.query(NAMES, snapshot=old).rows
    for number in range(3):
        insert(graph, f"n{number}")
    omnigraph.open(graph.uri).optimize()
    other = Store.at(Location.parse(graph.uri))
    cleanup(other, CleanupRequest(1, None, confirm=True, orphan_age=dt.timedelta(0)))
    with pytest.raises(HistoryReclaimedError):
        graph.create_branch("late", base=old) if make == "branch" else graph.create_tag("late", old)
    assert graph.branches() == ["main"]
    assert graph.tags() == []
