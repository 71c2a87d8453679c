"""A branch whose tables came with indices from main is looked after as any other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import omnigraph
from omnigraph.errors import HistoryReclaimedError
from omnigraph.graph import Graph
from omnigraph.storage import reclaim

SCHEMA = "node P { name: String @key  age: I32? @index  bio: String? @index }\n"
NAMES = "query q() { match { $p: P } return { $p.name } }"


def _people(prefix: str, count: int) -> list[dict[str, Any]]:
    return [{"type": "P", "data": {"name": f"{prefix}{n}", "age": n, "bio": f"text {n}"}} for n in range(count)]


def test_a_fork_that_came_with_indices_can_be_compacted_and_changed_again(tmp_path: Path) -> None:
    graph = omnigraph.init(tmp_path / "graph", SCHEMA)
    for prefix in "abc":
        graph.load(_people(prefix, 20), mode="append")
    graph.ensure_indices()
    graph.create_branch("other")
    for prefix in "xyz":
        graph.load(_people(prefix, 10), mode="merge", branch="other")
    graph.optimize("other")
    graph.load(_people("a", 3), mode="merge", branch="other")
    graph.mutate('query q() { update P set { age: 99 } where name = "b1" }', branch="other")
    graph.mutate('query q() { delete P where name = "c1" }', branch="other")
    graph.merge("other")

    ages = {
        row["p.name"]: row["p.age"]
        for row in graph.query("query q() { match { $p: P } return { $p.name, $p.age } }").rows
    }
    assert (len(ages), ages["b1"], "c1" in ages, ages["x9"]) == (89, 99, False, 9)


def _rewritten_on_both_sides(graph: Graph) -> str:
    """A branch that shares nothing but an index with the version that it was made from; returns that commit."""
    graph.load(_people("a", 3), mode="append")
    start = graph.ensure_indices().commit
    assert start
    graph.create_branch("other")
    graph.load(_people("b", 3), mode="merge", branch="other")
    graph.mutate("query q() { update P set { age: 5 } where age < 9 }", branch="other")
    graph.merge("other")
    graph.load(_people("c", 3), mode="overwrite")
    graph.merge("main", into="other")
    return start.commit_id


def test_a_version_that_a_fork_starts_from_stays_whole_or_goes(tmp_path: Path) -> None:
    """The defect: its version file stayed without its data, so that no backup could be made any more."""
    graph = omnigraph.init(tmp_path / "graph", SCHEMA)
    start = _rewritten_on_both_sides(graph)
    graph.cleanup(keep=1, confirm=True)
    assert graph.backup(tmp_path / "backups").heads.keys() == {"main", "other"}
    fresh = omnigraph.open(tmp_path / "graph")
    fresh.create_branch("again", base=start)
    assert len(fresh.query(NAMES, branch="again").rows) == 3
    assert fresh.doctor().is_healthy

    for branch in ("again", "other"):
        fresh.delete_branch(branch)
    fresh.cleanup(keep=1, confirm=True)
    with pytest.raises(HistoryReclaimedError):
        omnigraph.open(tmp_path / "graph").create_branch("again", base=start)


def test_a_graph_that_an_earlier_release_cleaned_up_can_be_backed_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = omnigraph.init(tmp_path / "graph", SCHEMA)
    _rewritten_on_both_sides(graph)
    with monkeypatch.context() as patch:
        patch.setattr(reclaim, "shared_with_forks", lambda *_: frozenset())
        graph.cleanup(keep=1, confirm=True)
    made = graph.backup(tmp_path / "backups")
    omnigraph.restore(tmp_path / "backups", tmp_path / "restored")
    restored = omnigraph.open(tmp_path / "restored")
    assert made.heads == {branch: restored.commits(branch)[0].commit_id for branch in ("main", "other")}
    assert restored.doctor().is_healthy
    assert [len(restored.query(NAMES, branch=branch).rows) for branch in ("main", "other")] == [3, 3]


def test_a_fork_that_a_power_cut_tore_is_in_the_way_of_nothing(tmp_path: Path) -> None:
    """The defect: a version past the pin of a branch, of which the record was lost, was left until the next write."""
    graph = omnigraph.init(tmp_path / "graph", SCHEMA)
    graph.load(_people("a", 3), mode="append")
    graph.create_branch("other")
    graph.load(_people("b", 3), mode="merge", branch="other")
    [*_, newest] = sorted((tmp_path / "graph").glob("nodes/*/tree/*/other/_versions/*.manifest"), reverse=True)
    newest.with_name(f"{int(newest.stem) - 1}.manifest").write_bytes(b"")

    graph.backup(tmp_path / "backups")
    omnigraph.restore(tmp_path / "backups", tmp_path / "restored")
    assert len(omnigraph.open(tmp_path / "restored").query(NAMES, branch="other").rows) == 6
    newest.with_name(f"{int(newest.stem) - 1}.manifest").write_bytes(b"")
    assert [table.error for table in graph.cleanup(keep=1, confirm=True).tables if table.error] == []
    assert graph.doctor().is_healthy
    assert len(graph.query(NAMES, branch="other").rows) == 6
