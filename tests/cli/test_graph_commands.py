"""`omnigraph init`, `snapshot` and `commit`: what they print, and their exit codes."""

from __future__ import annotations

from pathlib import Path

import pytest

import omnigraph
from omnigraph.commit import failpoints
from omnigraph.commit.publish import begin
from omnigraph.graph import Graph
from tests.support.cli import Run, command, error_on_stdout
from tests.support.faults import add_company, interrupt, small_graph
from tests.support.graphs import COMPANY, append, company, plan

SCHEMA = "node Person { name: String @key }\n"
ADD = 'query add() { insert Person { name: "ada" } }'


@pytest.fixture
def graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Graph:
    """A graph `g` in the working directory, with one commit of eve's on a branch."""
    monkeypatch.chdir(tmp_path)
    Path("people.pg").write_text(SCHEMA)
    made = omnigraph.init("g", SCHEMA)
    made.create_branch("side")
    made.mutate(ADD, branch="side", actor="eve")
    return made


def test_a_graph_is_made_once_and_with_the_directories_above_it(graph: Graph, tmp_path: Path) -> None:
    made = tmp_path / "above" / "new"

    assert command("init", "above/new", "--schema", "people.pg") == Run(0, f"initialized {made}\n", "")
    assert command("init", str(made), "--schema", "people.pg").code == 1
    assert command("init", str(made), "--schema", "people.pg", "--force").code == 1
    assert command("init", "other", "--schema", "none.pg").code == 1
    assert not (tmp_path / "other").exists()
    assert len(graph.commits()) == 1


def test_schema_files_that_an_init_left_behind_are_replaced_only_by_force(graph: Graph) -> None:
    Path("half").mkdir()
    Path("half/_schema.pg").write_text("node Other { name: String @key }\n")

    assert command("init", "half", "--schema", "people.pg").code == 1
    assert command("init", "half", "--schema", "people.pg", "--force").code == 0
    assert command("schema", "show", "half").out == graph.schema


def test_a_snapshot_and_commits_are_told_in_lines(graph: Graph) -> None:
    own, first = graph.commits("side")
    fork = graph.snapshot("side").entries["node:Person"].table.branch

    assert command("snapshot", "g", "--branch", "side").out.splitlines() == [
        "branch: side",
        f"manifest_version: {own.manifest_version}",
        f"node:Person v2 branch={fork} rows=1",
    ]
    assert command("commit", "list", "g", "--branch", "side").out.splitlines() == [
        f"{own.commit_id} branch=side version={own.manifest_version} actor=eve",
        f"{first.commit_id} branch=main version=1",
    ]
    assert command("commit", "show", own.commit_id, "--uri", "g").out.splitlines() == [
        f"graph_commit_id: {own.commit_id}",
        "branch: side",
        f"manifest_version: {own.manifest_version}",
        f"parent_commit_id: {first.commit_id}",
        "actor_id: eve",
        f"created_at: {own.created_at}",
    ]
    for wrong in (["snapshot", "none"], ["snapshot", "g", "--branch", "no"], ["commit", "show", "x", "--uri", "g"]):
        run = command(*wrong)
        assert (run.code, run.out) == (1, ""), wrong


def test_the_commits_of_recovery_are_found_by_their_actor(tmp_path: Path) -> None:
    store = small_graph(str(tmp_path / "g"))
    txn = begin(store)
    interrupt(store, plan(txn, append(store, txn, COMPANY, [company("x")])), failpoints.PUBLISH_BEFORE_MANIFEST)
    add_company(store, "later")

    found = command("commit", "list", store.location.uri, "--filter", "actor=omnigraph:recovery")

    (line,) = found.out.splitlines()
    assert line.endswith(" actor=omnigraph:recovery")
    assert len(command("commit", "list", store.location.uri).out.splitlines()) == 4


def test_filters_hold_together_and_one_that_nobody_knows_is_refused(graph: Graph) -> None:
    listed = ("commit", "list", "--store", "g", "--branch", "side", "--json", "--filter")

    assert len(command(*listed, "actor=eve").document["commits"]) == 1
    assert command(*listed, "actor=eve", "--filter", "actor=ada").document == {"commits": []}
    for wrong in ("branch=side", "actor", "actor="):
        run = command(*listed, wrong)
        assert (run.code, error_on_stdout(run)) == (1, True), wrong
        assert "actor=NAME" in run.err
    assert graph.branches() == ["main", "side"]
