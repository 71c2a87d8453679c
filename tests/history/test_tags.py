"""A tag names a commit for good: it can be read, branched from, and is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

import omnigraph
from omnigraph.errors import (
    BranchInUseError,
    BranchNotFoundError,
    RefExistsError,
    RefNameError,
    StorageError,
    TagNotFoundError,
)
from omnigraph.graph import Graph
from tests.history.people import ages, head, new_graph, rows, run
from tests.support.faults import failing

EVE = 'insert Person { name: "Eve", age: 22 }'


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    return new_graph(tmp_path)


def names(graph: Graph) -> list[str]:
    return [tag.name for tag in graph.tags()]


def test_a_tag_stays_at_its_commit_whatever_happens_to_the_branch(graph: Graph) -> None:
    made = graph.create_tag("v1")
    run(graph, EVE)

    assert (made.name, made.commit) == ("v1", graph.commits()[1])
    assert graph.tags() == omnigraph.open(graph.uri, read_only=True).tags() == [made]


def test_tags_are_made_of_branches_tags_and_commits_and_listed_by_name(graph: Graph) -> None:
    graph.create_branch("feature")
    run(graph, EVE, "feature")
    first = graph.commits()[-1]

    graph.create_tag("b-of-branch", "feature")
    graph.create_tag("a-of-commit", first.commit_id)
    graph.create_tag(" c ", "b-of-branch")

    found = {tag.name: tag.commit for tag in graph.tags()}
    assert list(found) == ["a-of-commit", "b-of-branch", "c"]
    assert found["a-of-commit"] == first
    assert found["b-of-branch"].commit_id == found["c"].commit_id == head(graph, "feature")


def test_a_tag_of_a_branch_that_has_no_commit_of_its_own_names_that_of_its_base(graph: Graph) -> None:
    graph.create_branch("feature")

    assert graph.create_tag("v1", "feature").commit == graph.commits()[0]
    graph.delete_branch("feature")


def test_what_a_tag_names_can_be_branched_from_and_compared(graph: Graph) -> None:
    graph.create_tag("v1")
    before = rows(graph)
    run(graph, EVE)

    graph.create_branch("old", "v1")

    assert rows(graph, "old") == before
    assert [change.id for change in graph.diff("v1", "main")] == ["Eve"]


def test_a_tag_keeps_the_branch_that_it_is_on(graph: Graph) -> None:
    graph.create_branch("feature")
    run(graph, EVE, "feature")
    graph.create_tag("v1", "feature")

    with pytest.raises(BranchInUseError, match="tag 'v1'"):
        graph.delete_branch("feature")
    assert "Eve" in ages(graph, "feature")

    graph.delete_tag("v1")
    graph.delete_branch("feature")


def test_a_tag_keeps_its_commit_from_a_cleanup(graph: Graph) -> None:
    run(graph, EVE)
    graph.create_tag("v1")
    tagged, before = head(graph), rows(graph)
    for age in range(3):
        run(graph, f'update Person set {{ age: {age} }} where name = "Eve"')  # noqa: S608 - .gq

    graph.cleanup(keep=1, confirm=True)

    assert sorted(graph.export(snapshot=tagged)) == sorted(graph.export(snapshot=graph.tags()[0].commit.commit_id))
    graph.create_branch("old", "v1")
    assert rows(graph, "old") == before


@pytest.mark.parametrize("name", ["ännchen", "v1-日本", "²"])
def test_a_tag_that_could_not_be_listed_again_is_not_made(graph: Graph, name: str) -> None:
    """Lance writes such a name in one way and looks for it in another: then no tag can be read any more."""
    with pytest.raises(RefNameError, match="ASCII"):
        graph.create_tag(name)

    assert graph.tags() == []


def test_a_name_is_given_once_and_can_be_given_again(graph: Graph) -> None:
    graph.create_tag("v1")
    run(graph, EVE)

    for name in ("v1", " v1 "):
        with pytest.raises(RefExistsError):
            graph.create_tag(name)
    with pytest.raises(RefNameError, match="already exists"):
        graph.create_tag("main")
    with pytest.raises(RefNameError, match="cannot name a tag"):
        graph.create_tag("v1/a")
    graph.delete_tag(" v1 ")
    assert graph.create_tag("v1").commit == graph.commits()[0]


def test_what_is_not_there_is_not_found(graph: Graph) -> None:
    with pytest.raises(TagNotFoundError) as caught:
        graph.delete_tag("v1")
    assert (caught.value.tag, caught.value.http_status) == ("v1", 404)
    with pytest.raises(BranchNotFoundError, match="no branch, tag or commit 'nowhere'"):
        graph.create_tag("v1", "nowhere")
    assert names(graph) == []


@pytest.mark.parametrize("operation", ["create tag", "delete tag"])
def test_a_tag_is_there_or_not_when_the_storage_fails(graph: Graph, operation: str) -> None:
    if operation == "delete tag":
        graph.create_tag("v1")
    before = names(graph)

    with failing(operation, "v1"), pytest.raises(StorageError):
        graph.create_tag("v1") if operation == "create tag" else graph.delete_tag("v1")

    assert names(graph) == before
