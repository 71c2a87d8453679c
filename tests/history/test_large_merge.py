"""A merge of large tables keeps the rules between entities, and what its tasks return does not grow with the rows."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import omnigraph
from omnigraph import Graph
from omnigraph.api.options import Resolution
from omnigraph.core.executor import Executor
from omnigraph.errors import MergeConflictError
from omnigraph.history import checks, large_merge
from omnigraph.history.merge import MergeSpec, merge
from tests.support.executors import Weighed

SCHEMA = """
node Person { name: String @key  nick: String? @unique }
edge Knows: Person -> Person @card(0..2)
edge Likes: Person -> Person { note: String?  @unique(src, dst) }
"""
NAMES = [f"p{number}" for number in range(8)]
Ends = tuple[str, str]


@dataclass(frozen=True)
class Side:
    """What one branch does: edges it adds, nodes it deletes, nicks it gives; and whether it is compacted then."""

    knows: Sequence[Ends] = ()
    likes: Sequence[Ends] = ()
    gone: Sequence[str] = ()
    nicks: dict[str, str] = field(default_factory=dict)
    compacted: bool = False


def two_sides(uri: str, ours: Side, theirs: Side) -> Graph:
    """A graph with a branch `other`, and two branches `one` and `two` of what main has become meanwhile."""
    graph = omnigraph.init(uri, SCHEMA)
    everyone = [_person(name) for name in NAMES]
    graph.load([*everyone, _edge("Knows", ("p0", "p1")), _edge("Likes", ("p0", "p1"))], mode="append")
    graph.create_branch("other")
    for branch, side in (("main", ours), ("other", theirs)):
        _change(graph, branch, side)
    graph.create_branch("one")
    graph.create_branch("two")
    return graph


def _change(graph: Graph, branch: str, side: Side) -> None:
    # One by one: what a side alone would break is left out, so that only the merge can break a rule.
    for record in (
        *(_edge("Knows", ends) for ends in side.knows),
        *(_edge("Likes", ends) for ends in side.likes),
        *(_person(name, nick) for name, nick in side.nicks.items()),
    ):
        try:
            graph.load([record], mode="merge", branch=branch)
        except omnigraph.errors.LoadRejectedError:
            continue
    for name in side.gone:
        graph.mutate(f'query q() {{ delete Person where name = "{name}" }}', branch=branch)
    if side.compacted:
        graph.optimize(branch)


def _person(name: str, nick: str | None = None) -> dict[str, Any]:
    return {"type": "Person", "data": {"name": name, "nick": nick}}


def _edge(name: str, ends: Ends) -> dict[str, Any]:
    return {"edge": name, "from": ends[0], "to": ends[1], "data": {}}


def outcome(graph: Graph, into: str, *, size: int | None = None, engine: str = "local", **options: Any) -> Any:
    """What a merge comes to; with a size, tables with more changed rows are large."""
    with pytest.MonkeyPatch.context() as patch:
        if size is not None:
            patch.setattr(large_merge, "MOST_ROWS", size)
            patch.setattr(checks, "ROWS_PER_SHARE", 3)
        try:
            found = graph.merge("other", into, engine=engine, **options)
        except MergeConflictError as error:
            return error.conflicts
    return found.changes, found.conflicts, sorted(graph.export(branch=into))


def files_below(directory: Path) -> set[Path]:
    """All files but the locks of gates."""
    return {path for path in directory.rglob("*") if path.is_file() and "__gates" not in path.parts}


FINE = (
    Side(knows=[("p1", "p2"), ("p2", "p0")], gone=["p7"], nicks={"p5": "x"}),
    Side(knows=[("p3", "p4"), ("p0", "p3")], likes=[("p4", "p5")], gone=["p6"], nicks={"p4": "y"}),
)
STRANDED = Side(knows=[("p4", "p3")], likes=[("p3", "p4")]), Side(gone=["p3", "p5"])
BROKEN = {
    "orphan_edge": (Side(gone=["p3"]), Side(knows=[("p4", "p3"), ("p3", "p4")], likes=[("p1", "p2")])),
    "cardinality_violation": (Side(knows=[("p0", "p2")]), Side(knows=[("p0", "p3"), ("p4", "p3")])),
    "unique_violation": (Side(nicks={"p1": "z"}), Side(nicks={"p2": "z"})),
}


@pytest.mark.parametrize("engine", ["local", "spark"])
def test_a_large_merge_does_what_a_small_one_does(tmp_path: Path, engine: str) -> None:
    graph = two_sides(str(tmp_path / "graph"), *FINE)
    expected = outcome(graph, "one")
    assert outcome(graph, "two", size=1, engine=engine) == expected
    assert expected[0]["edge:Knows"].inserted == 2
    assert not files_below(Path(tmp_path, "graph", "__tmp"))


@pytest.mark.parametrize("kind, sides", [*BROKEN.items(), ("orphan_edge", STRANDED)])
def test_a_large_merge_finds_the_rules_that_its_result_would_break(
    tmp_path: Path, kind: str, sides: tuple[Side, Side]
) -> None:
    graph = two_sides(str(tmp_path / "graph"), *sides)
    expected = outcome(graph, "one")
    head, files = graph.commits(branch="two")[0], files_below(tmp_path)
    assert outcome(graph, "two", size=1) == expected
    assert {conflict.kind for conflict in expected} == {kind}
    assert graph.commits(branch="two")[0] == head
    assert files_below(tmp_path) == files


@pytest.mark.spark
def test_on_spark_it_finds_them_too(tmp_path: Path) -> None:
    graph = two_sides(str(tmp_path / "graph"), *BROKEN["orphan_edge"])
    assert outcome(graph, "two", size=1, engine="spark") == outcome(graph, "one")


def test_a_preview_of_a_large_merge_leaves_nothing_behind(tmp_path: Path) -> None:
    graph = two_sides(str(tmp_path / "graph"), *FINE)
    files = files_below(tmp_path)
    changes, conflicts, _ = outcome(graph, "two", size=1, dry_run=True)
    assert files_below(tmp_path) == files
    with omnigraph.open(graph.uri, read_only=True) as reader:
        assert outcome(reader, "two", size=1, dry_run=True)[:2] == (changes, conflicts)
    assert (changes, conflicts) == outcome(graph, "one")[:2]


def test_a_branch_takes_over_a_large_table_of_main_without_a_copy(tmp_path: Path) -> None:
    graph = omnigraph.init(str(tmp_path / "graph"), SCHEMA)
    graph.load([_person(name) for name in NAMES[:2]], mode="append")
    graph.create_branch("behind")
    graph.mutate('query q() { insert Person { name: "new" } }', branch="behind")
    graph.load([_edge("Knows", ("p0", "p1")), _edge("Knows", ("p1", "p0"))], mode="append")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(large_merge, "MOST_ROWS", 1)
        graph.merge("main", "behind")
    taken = graph.snapshot("behind").entries["edge:Knows"].table
    assert taken == graph.snapshot("main").entries["edge:Knows"].table


ENDS = st.tuples(st.sampled_from(NAMES[:5]), st.sampled_from(NAMES[:5]))
SIDE = st.builds(
    Side,
    knows=st.lists(ENDS, max_size=3),
    likes=st.lists(ENDS, max_size=2),
    gone=st.lists(st.sampled_from(NAMES[:5]), max_size=2, unique=True),
    nicks=st.dictionaries(st.sampled_from(NAMES[:5]), st.sampled_from("xy"), max_size=2),
    compacted=st.booleans(),
)


@given(SIDE, SIDE, st.integers(1, 3))
@settings(max_examples=max(3, settings().max_examples // 10))
def test_random_changes_of_nodes_and_edges_are_merged_alike(ours: Side, theirs: Side, size: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        graph = two_sides(f"{directory}/graph", ours, theirs)
        assert outcome(graph, "two", size=size) == outcome(graph, "one")


def _returned(directory: Path, count: int, *, clash: bool) -> tuple[int, str]:
    graph = omnigraph.init(str(directory), SCHEMA)
    people = [_person(f"p{number:05}") for number in range(count)]
    graph.load(people, mode="append")
    graph.create_branch("other")
    graph.load([_person(f"p{number:05}", f"n{number}") for number in range(count)], mode="merge", branch="other")
    if clash:
        graph.load([_person(f"p{number:05}", f"m{number}") for number in range(count)], mode="merge")
    else:
        graph.mutate('query q() { insert Person { name: "new" } }')
    weighed, why = Weighed(), ""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(large_merge, "MOST_ROWS", count // 4)
        patch.setattr(large_merge, "MOST_REPORTED", 10)

        def choose(_: int) -> Executor:
            return weighed

        try:
            merge(graph._store, MergeSpec("other", None, resolution=Resolution()), choose)
        except MergeConflictError as error:
            why = error.message
    return weighed.bytes, why


@pytest.mark.parametrize("clash", [False, True])
def test_what_returns_from_tasks_does_not_grow_with_the_rows(tmp_path: Path, *, clash: bool) -> None:
    few, _ = _returned(tmp_path / "few", 400, clash=clash)
    many, why = _returned(tmp_path / "many", 4_000, clash=clash)
    assert many < 1.5 * few
    assert why == ("" if not clash else WHY)


WHY = "the two sides contradict each other, nothing was changed: 4,000 conflicts, of which the first 10 are reported"
