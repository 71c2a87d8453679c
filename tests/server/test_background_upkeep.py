"""Automatic upkeep of a server: by its settings, in one process, and without harm to requests."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

import omnigraph
from omnigraph.errors import ConfigError, StorageError
from omnigraph.graph import Graph
from omnigraph.maintenance import upkeep as rules
from omnigraph.server import upkeep
from omnigraph.server.config import Options, plan_of
from omnigraph.server.metrics import Metrics
from omnigraph.server.open_graphs import open_graphs
from omnigraph.server.settings import ServedGraph, Serving, UpkeepPolicy
from omnigraph.server.upkeep import BackgroundUpkeep

SCHEMA = "node Person { name: String @key }"


@pytest.fixture
def uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A graph of some small commits, which counts as due."""
    monkeypatch.setattr(rules, "MANY_FRAGMENTS", 3)
    graph = omnigraph.init(tmp_path / "g", SCHEMA)
    for at in range(4):
        graph.mutate(f'query add() {{ insert Person {{ name: "p{at}" }} }}')
    return graph.uri


def background(uri: str, policy: UpkeepPolicy, folder: Path | None = None) -> tuple[BackgroundUpkeep, Metrics]:
    serving = Serving({"one": ServedGraph(uri, upkeep=policy)}, folder=None if folder is None else str(folder))
    metrics = Metrics()
    return BackgroundUpkeep(serving, open_graphs(serving).graphs, metrics), metrics


def actors(uri: str) -> list[str | None]:
    return [commit.actor_id for commit in omnigraph.open(uri).commits()]


def test_a_round_optimizes_what_is_due_and_counts_it(uri: str) -> None:
    one, metrics = background(uri, UpkeepPolicy())
    one.round()
    assert actors(uri)[0] == rules.ACTOR
    one.round()
    assert actors(uri).count(rules.ACTOR) == 1
    assert b'omnigraph_upkeep_runs_total{outcome="done"} 2.0' in metrics.render()


def test_nothing_is_removed_unless_the_settings_say_what_to_keep(uri: str) -> None:
    first = omnigraph.open(uri).commits()[-2].commit_id
    background(uri, UpkeepPolicy())[0].round()
    assert omnigraph.open(uri).at(first).query("query q() { match { $p: Person } return { $p.name } }").rows
    background(uri, UpkeepPolicy("off", keep=1))[0].round()
    assert actors(uri).count(rules.ACTOR) == 1
    with pytest.raises(omnigraph.errors.HistoryReclaimedError):
        omnigraph.open(uri).at(first).query("query q() { match { $p: Person } return { $p.name } }")


def test_a_graph_whose_upkeep_is_off_is_left_alone(uri: str) -> None:
    one, _ = background(uri, UpkeepPolicy("off"))
    one.start()
    one.round()
    one.stop(1)
    assert rules.ACTOR not in actors(uri)


def test_one_process_of_a_server_does_it_and_another_when_that_one_ends(uri: str, tmp_path: Path) -> None:
    first, second = (background(uri, UpkeepPolicy(), tmp_path)[0] for _ in range(2))
    assert first._has_turn()
    assert not second._has_turn()
    assert first._has_turn()
    first._turn.close()
    assert second._has_turn()


@pytest.mark.parametrize(
    "error", [StorageError("the disk is gone", path="", operation="test"), MemoryError("the disk is gone")], ids=repr
)
def test_a_round_that_fails_is_logged_and_counted_and_the_next_one_comes(
    uri: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    def fail(_: Graph, *__: object) -> None:
        raise error

    one, metrics = background(uri, UpkeepPolicy())
    with monkeypatch.context() as patched:
        patched.setattr(Graph, "upkeep", fail)
        one.round()
    assert "upkeep of graph 'one' failed" in caplog.text
    assert "the disk is gone" in caplog.text
    assert b'omnigraph_upkeep_runs_total{outcome="failed"} 1.0' in metrics.render()
    one.round()
    assert actors(uri)[0] == rules.ACTOR


def test_a_thread_begins_rounds_and_ends_with_the_server(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "_SECONDS", 0.0)
    one, _ = background(uri, UpkeepPolicy())
    one.start()
    while rules.ACTOR not in actors(uri):
        assert one._thread.is_alive()
    one.stop(120)
    assert not one._thread.is_alive()


# Settings ------------------------------------------------------------------------------------------


def planned(folder: Path, upkeep: str) -> UpkeepPolicy:
    path = folder / "omnigraph.yaml"
    path.write_text(f"graphs: {{one: {{uri: g, upkeep: {upkeep}}}}}")
    options = Options(None, str(path), None, None, None, unauthenticated=True, require_all_graphs=False)
    return plan_of(options, {}).serving.graphs["one"].upkeep


@pytest.mark.parametrize(
    "text, policy",
    [
        ("{}", UpkeepPolicy()),
        ("{optimize: off}", UpkeepPolicy("off")),
        ("{cleanup: off}", UpkeepPolicy()),
        ("{cleanup: {keep: 3}}", UpkeepPolicy(None, 3)),
        ("{optimize: off, cleanup: {older_than: 7d}}", UpkeepPolicy("off", None, dt.timedelta(days=7))),
    ],
)
def test_the_settings_of_a_graph_say_what_is_done(tmp_path: Path, text: str, policy: UpkeepPolicy) -> None:
    assert planned(tmp_path, text) == policy


@pytest.mark.parametrize(
    "text, problem",
    [
        (
            "{cleanup: {}}",
            "graphs.one.upkeep.cleanup has neither keep nor older_than: give one of them, or remove the key",
        ),
        ("{cleanup: {keep: 0}}", "graphs.one.upkeep.cleanup.keep must be a number, at least 1"),
        ("{cleanup: {older_than: soon}}", "graphs.one.upkeep.cleanup.older_than must be a duration"),
        ("{cleanup: {older_than: 0d}}", "graphs.one.upkeep.cleanup.older_than must be a duration of more than 0"),
        ("{optimize: never}", "graphs.one.upkeep.optimize is 'never', which is not one of auto, off"),
        ("{optimise: auto}", "graphs.one.upkeep.optimise is not a setting"),
    ],
)
def test_settings_that_contradict_themselves_are_refused_with_the_key(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        planned(tmp_path, text)
