"""Every oracle of `make chaos` reports a planted bug."""

from __future__ import annotations

import re
import shutil
import signal
import sys
from collections.abc import Callable
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

import omnigraph
from omnigraph.commit.publish import begin, publish
from omnigraph.commit.store import Store
from omnigraph.core.location import Location
from omnigraph.errors import StorageError
from omnigraph.graph import Graph
from tests.chaos import clocks, graph, network, power, processes, systemcalls
from tests.chaos.graph import SCHEMA, Told, add, judge
from tests.chaos.skipped import SkippedError
from tests.chaos.writers import SET
from tests.support.graphs import append, plan
from tests.support.templates import Templates

Patch = pytest.MonkeyPatch
ITEM = "node:Item"


def make(uri: str | Path) -> Graph:
    made = omnigraph.init(uri, SCHEMA)
    for name in "ab":
        add(made, name)
    return made


@pytest.fixture
def made(templates: Templates, tmp_path: Path) -> Graph:
    return templates.copy("chaos", make, tmp_path / "graph")


def heard() -> Told:
    return Told({"a", "b"}, {"a", "b"})


# The graph that a scenario leaves ------------------------------------------------------------------


def loses_a_commit(_: Graph, told: Told, __: Patch) -> None:
    told.hear(("try", "c"))
    told.hear(("ack", "c"))


def undoes_a_commit_at_the_open(_: Graph, __: Told, patch: Patch) -> None:
    opened = omnigraph.open

    def careless(uri: str, *, read_only: bool = False) -> Graph:
        found = opened(uri, read_only=read_only)
        if not read_only:
            found.mutate(graph._TAKE, {"n": "a"})
        return found

    patch.setattr(omnigraph, "open", careless)


def commits_unasked(made: Graph, _: Told, __: Patch) -> None:
    add(made, "c")


def refuses_and_commits(made: Graph, told: Told, _: Patch) -> None:
    told.hear(("try", "c"))
    add(made, "c")
    told.hear(("StorageError", "c"))


def forgets_an_operation(made: Graph, told: Told, _: Patch) -> None:
    told.hear(("try", "c"))
    add(made, "c")
    told.hear(("unknown 01K8Z3J5V0000000000000000", "c"))


def refuses_to_write(_: Graph, __: Told, patch: Patch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise StorageError("the disk is gone", path="x", operation="write")

    patch.setattr(Graph, "mutate", refuse)


def skips_a_commit_of_the_history(_: Graph, __: Told, patch: Patch) -> None:
    commits = Graph.commits
    patch.setattr(Graph, "commits", lambda self: [one for at, one in enumerate(commits(self)) if at != 1])


def loses_a_version_of_a_tag(made: Graph, told: Told, _: Patch) -> None:
    made.create_tag("kept")
    pinned = made.snapshot().entries[ITEM].table
    told.hear(("try", "c"))
    told.hear(add(made, "c"))
    (Path(made.uri, pinned.path, "_versions") / f"{2**64 - 1 - pinned.version}.manifest").unlink()


def commits_a_row_twice(made: Graph, _: Told, __: Patch) -> None:
    store = Store.at(Location.parse(made.uri))
    txn = begin(store)
    publish(store, plan(txn, append(store, txn, ITEM, [{"id": "a", "name": "a", "value": 1}])))


def commits_one_table_of_three(made: Graph, _: Told, __: Patch) -> None:
    made.mutate('query q() { insert Item { name: "c", value: 1 } }')


def commits_two_tables_of_three(made: Graph, _: Told, __: Patch) -> None:
    made.mutate('query q() { insert Item { name: "c", value: 1 } insert Copy { name: "c", value: 1 } }')


BUGS: dict[str, Callable[[Graph, Told, Patch], None]] = {
    "lost for a reader": loses_a_commit,
    "lost:": undoes_a_commit_at_the_open,
    "from nowhere": commits_unasked,
    "there, though it was refused": refuses_and_commits,
    "wrong outcome of": forgets_an_operation,
    "the graph cannot be written": refuses_to_write,
    "history is no chain": skips_a_commit_of_the_history,
    "doctor found": loses_a_version_of_a_tag,
    "an item is there twice": commits_a_row_twice,
    "half a commit: items and copies differ": commits_one_table_of_three,
    "half a commit: edges differ": commits_two_tables_of_three,
}


@pytest.mark.parametrize("oracle", BUGS)
def test_an_oracle_reports_a_planted_bug(oracle: str, made: Graph, monkeypatch: Patch) -> None:
    told = heard()
    BUGS[oracle](made, told, monkeypatch)
    with pytest.raises(AssertionError, match=f"^{re.escape(oracle)}"):
        judge(made.uri, told)


def test_every_oracle_of_the_graph_has_a_bug() -> None:
    text = Path(graph.__file__).read_text(encoding="utf-8")
    judging = text[text.index("def judge(") :]
    assert judging.count("assert ") == len(BUGS) + 1  # the last one is about the beginning of the history


def test_a_graph_without_a_bug_passes_and_a_process_reports_what_it_found(made: Graph) -> None:
    told = heard()
    assert graph.check(made.uri, told) == judge(made.uri, told) - 2
    loses_a_commit(made, told, Patch())
    with pytest.raises(AssertionError, match="AssertionError: lost for a reader"):
        graph.check(made.uri, told)


def test_the_feed_must_have_every_item(made: Graph) -> None:
    clocks._check_feed(made.uri, {"a", "b"})
    with pytest.raises(AssertionError, match="not in the feed: \\['c'\\]"):
        clocks._check_feed(made.uri, {"a", "c"})


# What writers report -------------------------------------------------------------------------------


def fails_now_and_then(connection: Connection, _: str, prefix: str) -> None:
    for number in count():
        connection.send(("try", f"{prefix}-{number}"))
        connection.send(("StorageError", f"{prefix}-{number}"))


def acknowledges_at_once(connection: Connection, _: str, prefix: str) -> None:
    for number in range(2):
        connection.send(("try", f"{prefix}-{number}"))
        connection.send(("ack", f"{prefix}-{number}"))
    connection.recv()


def counts_nothing(connection: Connection, _: str, me: str, __: int) -> None:
    connection.send(("done", me))


def stops_early(_: Connection, __: str, ___: str, ____: int) -> None:
    return


def commits_twice(connection: Connection, uri: str, me: str, _: int) -> None:
    for _ in range(2):
        omnigraph.open(uri).mutate(SET, {"n": me, "v": 1})
    connection.send(("done", me))


def swallows_interrupts(connection: Connection, _: str, prefix: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in count():
        connection.send(("try", f"{prefix}-{number}"))
        connection.send(("ack", f"{prefix}-{number}"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "writer, scenario, reported",
    [
        (fails_now_and_then, lambda path: processes.kills(path, 1), "StorageError"),
        (acknowledges_at_once, lambda path: processes.kills(path, 1), "lost for a reader"),
        (counts_nothing, lambda path: processes.many_writers(path, 1, 1), "'total': 0"),
        (stops_early, lambda path: processes.many_writers(path, 1, 1), "0 tried, 0 acknowledged"),
        (commits_twice, lambda path: processes.many_writers(path, 1, 1), "4 commits in the history"),
        (swallows_interrupts, lambda path: processes.interrupts(path, 1), "nothing: it was swallowed"),
    ],
    ids=lambda one: getattr(one, "__name__", None),
)
def test_a_scenario_reports_what_its_writers_do_wrong(
    tmp_path: Path, monkeypatch: Patch, writer: Any, scenario: Callable[[Path], str], reported: str
) -> None:
    for name in ("write_for_ever", "write_many", "write_interrupted"):
        monkeypatch.setattr(processes, name, writer)
    with pytest.raises(AssertionError, match=reported):
        scenario(tmp_path)


# Scenarios that need more than processes ------------------------------------------------------------


def commits_without_barriers(connection: Connection, uri: str, prefix: str) -> None:
    connection.send(add(omnigraph.open(uri, durability="off"), prefix))  # the first message: then the power is cut
    connection.recv()


def acknowledges_without_a_commit(connection: Connection, _: str, prefix: str) -> None:
    connection.send(("ack", prefix))
    connection.recv()


@pytest.mark.slow
@pytest.mark.parametrize("writer", [acknowledges_without_a_commit, commits_without_barriers])
def test_a_power_cut_reports_an_acknowledged_commit_that_is_lost(
    tmp_path: Path, monkeypatch: Patch, writer: Callable[..., None]
) -> None:
    monkeypatch.setattr(power, "write_for_ever", writer)
    monkeypatch.setattr(power, "_LONGEST", 0.0)
    try:
        with pytest.raises(AssertionError, match="lost for a reader"):
            power.cuts(tmp_path, 1)
    except SkippedError as why:
        pytest.skip(str(why))


def acknowledges_some(connection: Connection, _: str, prefix: str, __: int) -> None:
    connection.send(("try", prefix))
    connection.send(("ack", prefix))


def commits_some(connection: Connection, uri: str, prefix: str, _: int) -> None:
    connection.send(("try", prefix))
    connection.send(add(omnigraph.open(uri), prefix))


@pytest.mark.slow
@pytest.mark.parametrize(
    "writer, reported",
    [(acknowledges_some, "lost for a reader"), (commits_some, "no connection has failed")],
    ids=["acknowledges_some", "a proxy without faults"],
)
def test_a_bad_network_reports_a_lost_commit_and_faults_that_do_not_happen(
    tmp_path: Path, monkeypatch: Patch, writer: Callable[..., None], reported: str
) -> None:
    monkeypatch.setattr(network, "write_some", writer)
    monkeypatch.setattr(network, "_CHANCES", {network.Fault.NONE: 1.0})
    with pytest.raises(AssertionError, match=reported):
        network.failing(tmp_path, 2)


ACKNOWLEDGES = """print('["try", "x"]'); print('["ack", "x"]')"""


@pytest.mark.parametrize(
    "program, reported",
    [
        (ACKNOWLEDGES, "lost for a reader"),
        ("raise SystemError('no error of ours')", "seed 0: 1: .*SystemError"),
        ("", "0 tried"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", f"seed 0: {-signal.SIGSEGV}"),
    ],
    ids=["acknowledges at once", "raises an error that is not ours", "does nothing", "crashes"],
)
def test_failing_calls_report_what_their_writer_does_wrong(
    tmp_path: Path, monkeypatch: Patch, program: str, reported: str
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: name)
    monkeypatch.setattr(systemcalls, "_WRITER", (sys.executable, "-c", program))
    with pytest.raises(AssertionError, match=f"(?s){reported}"):
        systemcalls.failing(tmp_path, 1)


def test_failing_calls_report_that_none_has_failed(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: name)
    monkeypatch.setattr(systemcalls, "_WRITER", (sys.executable, "-c", ACKNOWLEDGES))
    monkeypatch.setattr(systemcalls, "check", lambda *_, **__: 0)
    with pytest.raises(AssertionError, match="no call has failed"):
        systemcalls.failing(tmp_path, 1)
