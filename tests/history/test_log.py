"""The history is told newest first, and drawn so that every line of descent can be followed."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import omnigraph
from omnigraph.api.results import Commit
from omnigraph.errors import BranchNotFoundError, RefNameError
from omnigraph.history.log import drawn, newest_first, parents_of


def commit(name: str, *parents: str, at: int = 0) -> Commit:
    first, second = (*parents, None, None)[:2]
    return Commit(name, None, 1, first, second, None, at)


def ordered(commits: list[Commit]) -> list[Commit]:
    return list(newest_first({one.commit_id: one for one in commits}))


def drawing(*commits: Commit) -> list[str]:
    return [f"{lanes} {one.commit_id if one else ''}".rstrip() for lanes, one in drawn(ordered(list(commits)))]


def test_one_line_of_commits_is_one_lane() -> None:
    assert drawing(commit("a", at=1), commit("b", "a", at=2)) == ["* b", "* a"]


def test_a_merge_opens_a_lane_that_ends_where_the_branches_parted() -> None:
    history = [
        commit("a", at=1),
        commit("b", "a", at=2),
        commit("side", "a", at=3),
        commit("merge", "b", "side", at=4),
        commit("c", "merge", at=5),
    ]

    assert drawing(*history) == ["* c", "* merge", "|\\", "| * side", "* | b", "|/", "* a"]


def test_branches_that_were_merged_both_ways_stay_apart() -> None:
    history = [
        commit("a", at=1),
        commit("b", "a", at=2),
        commit("x", "a", at=3),
        commit("m", "b", "x", at=4),
        commit("n", "x", "b", at=5),
    ]

    assert drawing(*history) == [
        "* n",
        "|\\",
        "| | * m",
        "| | |\\",
        "|_|_|/",
        "* | | x",
        "| |/",
        "| * b",
        "|/",
        "* a",
    ]


def test_two_histories_without_a_common_commit_end_each_for_itself() -> None:
    assert drawing(commit("a", at=1), commit("b", at=2), commit("c", "a", at=3), commit("d", "b", at=4)) == [
        "* d",
        "| * c",
        "* | b",
        " /",
        "* a",
    ]


def test_a_lane_that_ends_in_the_middle_moves_those_beside_it() -> None:
    roots = [commit("a", at=1), commit("b", at=3), commit("c", at=2)]
    heads = [commit("x", "a", at=6), commit("y", "b", at=5), commit("z", "c", at=4)]
    assert drawing(*roots, *heads) == ["* x", "| * y", "| | * z", "| * | b", "|  /", "| * c", "* a"]


def test_a_clock_that_went_backwards_does_not_put_a_commit_before_its_child() -> None:
    assert [one.commit_id for one in ordered([commit("a", at=9), commit("b", "a", at=5), commit("c", "b", at=7)])] == [
        "c",
        "b",
        "a",
    ]


@st.composite
def histories(draw: st.DrawFn) -> list[Commit]:
    """Commits that come from any of the earlier ones, or from none."""
    made: list[Commit] = []
    for number in range(draw(st.integers(1, 12))):
        earlier = [one.commit_id for one in made]
        parents = draw(st.lists(st.sampled_from(earlier), max_size=2, unique=True)) if earlier else []
        made.append(commit(f"c{number}", *parents, at=draw(st.integers(0, 5))))
    return made


@given(histories())
def test_every_commit_is_drawn_once_in_order_and_no_lane_is_left_open(history: list[Commit]) -> None:
    lines = list(drawn(ordered(history)))
    shown = [one for _, one in lines if one]

    assert sorted(one.commit_id for one in shown) == sorted(one.commit_id for one in history)
    for at, one in enumerate(shown):
        assert not {later.commit_id for later in shown[:at]} & set(parents_of(one))
    assert all(lanes.count("*") == (1 if one else 0) for lanes, one in lines)
    last, _ = lines[-1]
    assert last == "*", "the oldest commit ends the last lane"


def test_the_log_names_the_branches_and_tags_at_each_commit(tmp_path: Path) -> None:
    graph = omnigraph.init(tmp_path / "g", "node Person { name: String @key }")
    graph.mutate('query a() { insert Person { name: "Ann" } }')
    graph.create_branch("side")
    graph.create_tag("v1")
    graph.mutate('query b() { insert Person { name: "Bob" } }', branch="side")
    graph.mutate('query c() { insert Person { name: "Cleo" } }')
    graph.merge("side")

    found = graph.log()

    assert [(entry.branches, entry.tags) for entry in found] == [
        (("main",), ()),
        ((), ()),
        (("side",), ()),
        ((), ("v1",)),
        ((), ()),
    ]
    assert len({entry.commit.commit_id for entry in found}) == 5
    assert [entry.branches for entry in graph.log(["side"])] == [("side",), (), ()]
    with pytest.raises(BranchNotFoundError):
        graph.log(["nowhere"])
    for name in ("", "x" * 10_000):
        with pytest.raises(RefNameError):
            graph.log([name])
