"""Upkeep in one call: what is due is done, and nothing else; and what the command line says about it."""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path

import pytest

import omnigraph
from omnigraph.errors import FormatTooNewError, HistoryReclaimedError
from omnigraph.graph import Graph
from omnigraph.maintenance import upkeep
from omnigraph.manifest import migrations, publisher
from omnigraph.version import INTERNAL_SCHEMA_VERSION
from tests.maintenance.scene import add, grown, made_of, people
from tests.support.cli import command
from tests.support.faults import assert_settled
from tests.support.mutations import store_of
from tests.support.templates import Templates

PERSON = "node:Person"


@pytest.fixture
def graph(templates: Templates, tmp_path: Path) -> Graph:
    return templates.copy("grown", grown, tmp_path / "g")


def test_a_graph_in_good_shape_is_left_alone(graph: Graph) -> None:
    commits = graph.commits()
    done = graph.upkeep()
    assert (done.optimized, done.cleanup) == ((), None)
    assert graph.commits() == commits


@pytest.mark.parametrize("what", ["MANY_FRAGMENTS", "MANY_ROWS"])
def test_a_branch_that_is_due_is_optimized_and_the_others_are_not(
    graph: Graph, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(upkeep, what, 3)
    graph.create_branch("feature")
    before = people(graph)
    assert graph.upkeep().optimized == ("main",)
    assert graph.commits()[0].actor_id == upkeep.ACTOR
    assert people(graph) == before
    assert len(made_of(graph, PERSON).parts) == 1
    assert graph.upkeep().optimized == (), "what was done is not due again"
    assert_settled(store_of(graph.uri))


def test_a_cleanup_removes_what_the_policy_lets_go_and_forks_of_deleted_branches(graph: Graph) -> None:
    graph.create_branch("feature")
    add(graph, 50, "feature")
    graph.delete_branch("feature")
    done = graph.upkeep(keep=1)
    assert done.cleanup
    assert done.cleanup.confirmed
    assert sum(row.old_versions_removed for row in done.cleanup.tables) > 0
    assert [row.forks_removed for row in done.cleanup.tables if row.forks_removed]
    assert graph.upkeep(older_than=dt.timedelta(days=7)).optimized == ()
    assert len(people(graph)) == 6


def test_the_command_does_the_same(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "MANY_FRAGMENTS", 3)
    document = command("upkeep", graph.uri, "--keep", "2", "--json").document
    assert document["optimized"] == ["main"]
    assert document["old_versions_removed"] > 0
    again = command("upkeep", graph.uri)
    assert "nothing was due" in again.out
    assert command("upkeep", graph.uri, "--older-than", "soon").code == 2


def test_a_write_command_says_when_upkeep_is_due(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNIGRAPH_UPKEEP", "off")
    monkeypatch.setattr(upkeep, "MANY_FRAGMENTS", 10)
    graph = omnigraph.init(tmp_path / "g", "node Person { name: String @key }")
    for at in range(13):
        graph.mutate(f'query add() {{ insert Person {{ name: "p{at}" }} }}')
    change = ("mutate", "--store", graph.uri, "-e", 'query add() { insert Person { name: "%s" } }')

    def run(name: str, *options: str) -> str:
        return command(*change[:-1], change[-1] % name, *options).err

    assert "note:" not in run("a")
    assert "note: table 'node:Person' has 15 small files without an index: run `omnigraph optimize`" in run("b")
    assert "note:" not in run("c")


def test_a_long_history_is_mentioned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "MANY_VERSIONS", 12)
    graph = omnigraph.init(tmp_path / "g", "node Person { name: String @key }")
    for at in range(13):  # with two folds on the way they make 16 versions
        graph.mutate(f'query add() {{ insert Person {{ name: "p{at}" }} }}')
    found = graph.upkeep_due()
    assert found
    assert "remove old ones with `omnigraph cleanup`" in found


# Others that rely on what upkeep removes -----------------------------------------------------------

NAMES = "query q() { match { $p: Person } return { $p.name } }"  # a count would not read the rows


def aged(graph: Graph, by: dt.timedelta) -> None:
    """Let time pass: all files of a graph are older than they are."""
    for path in Path(graph.uri).rglob("*"):
        was = path.stat().st_mtime
        os.utime(path, (was - by.total_seconds(),) * 2)


def test_a_reader_pinned_for_a_day_reads_its_state_or_is_refused_and_nothing_is_lost(graph: Graph) -> None:
    """A pin keeps nothing: only tags and the policy do. The error says that it is gone, and no other rows are read."""
    branch, unread = (omnigraph.open(graph.uri, read_only=True) for _ in range(2))
    warm, cold = graph.at("main"), unread.at("main")
    before = warm.query(NAMES).rows
    first = graph.commits()[0].commit_id
    assert branch.query(NAMES).rows == before
    for at in range(50, 70):
        add(graph, at)
        aged(graph, dt.timedelta(hours=2))
    done = omnigraph.open(graph.uri).upkeep(keep=1)
    assert done.cleanup
    assert sum(row.old_versions_removed for row in done.cleanup.tables) > 0
    for late in (lambda: warm.query(NAMES), lambda: cold.query(NAMES), lambda: omnigraph.open(graph.uri).at(first)):
        with pytest.raises(HistoryReclaimedError) as gone:
            late()
        assert gone.value.hint
    assert branch.query(NAMES).rows == graph.query(NAMES).rows
    assert len(graph.query(NAMES).rows) == len(before) + 20
    assert omnigraph.open(graph.uri).doctor(deep=True).is_healthy
    assert_settled(store_of(graph.uri))


@pytest.mark.parametrize("when", ["open before", "opened now"])
def test_a_cleanup_by_a_program_of_an_older_format_is_refused_and_removes_nothing(
    graph: Graph, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """It would not know the log segments, and so take the commits in them for left over."""
    aged(graph, dt.timedelta(days=30))
    files = sorted(Path(graph.uri).rglob("*"))
    opened = omnigraph.open(graph.uri)
    for module in (migrations, publisher):  # as a release that knows no later one
        monkeypatch.setattr(module, "INTERNAL_SCHEMA_VERSION", INTERNAL_SCHEMA_VERSION - 1)
    opened._store.manifest.forget()
    with pytest.raises(FormatTooNewError) as refused:
        (opened if when == "open before" else omnigraph.open(graph.uri)).cleanup(keep=1, confirm=True)
    assert "upgrade" in (refused.value.hint or "").lower()
    assert sorted(Path(graph.uri).rglob("*")) == files
