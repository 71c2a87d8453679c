"""Scenarios of processes: writers that are killed, that are many, and that are interrupted."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import omnigraph
from tests.chaos.graph import SCHEMA, Told, check
from tests.chaos.writers import started, write_for_ever, write_interrupted, write_many

_WRITERS = 3  # at once, while they are killed
_CHECK_EVERY = 100  # kills
_LONGEST = 0.4  # seconds before a kill, at most
_KILL_WITHIN = 2.5  # commits
_PATIENCE = 120.0
_SWALLOWED = 20  # messages after an interrupt without a word of it


def kills(directory: Path, number: int) -> str:
    """Kill writers at random moments; check the graph again and again.

    A moment lies within a few commits of this machine as it is now: a longer life costs time and shows nothing more.
    """
    uri = str(directory / "kills")
    omnigraph.init(uri, SCHEMA)
    told, chance, checks, killed = Told(), random.Random(number), 0, 0
    with started(write_for_ever, uri, "first") as (process, connection):
        longest = min(_LONGEST, _KILL_WITHIN * _time_of_a_commit(connection, told))
        process.kill()
        told.listen(connection)
    while killed < number:
        writers = min(_WRITERS, number - killed)
        _kill_some(uri, [f"k{killed + at}" for at in range(writers)], told, partial(chance.uniform, 0.0, longest))
        killed += writers
        if killed // _CHECK_EVERY > checks:
            checks += 1
            check(uri, told, may_be_there=told.tried)
            print(f"kills: {killed:,} of {number:,}, {told}", file=sys.stderr, flush=True)
    commits = check(uri, told, may_be_there=told.tried)
    assert not told.errors, told
    return f"{number:,} kills, {told}, {commits:,} commits, {checks + 1} checks"


def _kill_some(uri: str, names: Sequence[str], told: Told, moment: Callable[[], float]) -> None:
    """Start writers, kill each at a moment of its own, and hear what they were told."""
    with ExitStack() as stack:
        writers = [stack.enter_context(started(write_for_ever, uri, name)) for name in names]
        for process, connection in writers:
            connection.poll(_PATIENCE)  # it has begun to write
            time.sleep(moment())
            os.kill(process.pid or 0, signal.SIGKILL)
            process.join()
        for _, connection in writers:
            told.listen(connection)


def many_writers(directory: Path, writers: int, commits: int) -> str:
    """Write from many processes at once; every commit must be there, and the counters exact."""
    uri = str(directory / "writers")
    graph = omnigraph.init(uri, SCHEMA)
    for number in range(writers):
        graph.mutate("query c($n: String) { insert Counter { name: $n, value: 0 } }", {"n": f"w{number}"})
    told = Told()
    with ExitStack() as stack:
        running = [stack.enter_context(started(write_many, uri, f"w{at}", commits)) for at in range(writers)]
        for _, connection in running:
            told.listen(connection)
    assert told.errors.pop("done", 0) == writers, told
    conflicts = told.errors.pop("conflict", 0)
    assert not told.errors, told
    assert not told.unknown, told
    before = sum(not commit.is_maintenance for commit in graph.commits())  # writers fold the tables now and then
    rows = graph.query("query c() { match { $c: Counter } return { sum($c.value) as total } }").rows
    counted = writers * len(range(0, commits, 10))
    assert rows[0]["total"] == counted, rows
    assert before == 1 + writers + writers * commits, f"{before} commits in the history"
    check(uri, told)
    return f"{writers} writers x {commits} commits, {told}, counted {counted} exactly, {conflicts} conflicts retried"


def interrupts(directory: Path, number: int) -> str:
    """Interrupt a writer at random moments: each interrupt must come out as KeyboardInterrupt."""
    uri = str(directory / "interrupts")
    omnigraph.init(uri, SCHEMA)
    told, chance, became = Told(), random.Random(number), dict[str, int]()
    with started(write_interrupted, uri, "i") as (process, connection):
        usual = _time_of_a_commit(connection, told)
        while sum(became.values()) < number:
            time.sleep(chance.uniform(0.0, 1.2 * usual))
            os.kill(process.pid or 0, signal.SIGINT)
            what = _what_became(connection, told)
            if what != "missed":  # between two writes
                became[what] = became.get(what, 0) + 1
    wrong = {what: count for what, count in became.items() if what != "KeyboardInterrupt"}
    assert not wrong, wrong
    assert not told.errors, told
    check(uri, told, may_be_there=told.tried)
    return f"{number} interrupts, all KeyboardInterrupt, {told}"


def _time_of_a_commit(connection: Connection, told: Told) -> float:
    """Wait for the second commit of a writer, and return how long it took."""
    began = 0.0
    for _ in range(4):  # tried, acknowledged, tried, acknowledged
        began, before = time.monotonic(), began
        assert connection.poll(_PATIENCE), "the writer does not begin"
        told.hear(connection.recv())
    return time.monotonic() - before


def _what_became(connection: Connection, told: Told) -> str:
    for _ in range(_SWALLOWED):
        assert connection.poll(_PATIENCE), "the writer stands still after an interrupt"
        kind, name = connection.recv()
        if kind == "missed":
            return "missed"
        if kind.startswith("interrupt "):
            return str(kind.removeprefix("interrupt "))
        told.hear((kind, name))
    return "nothing: it was swallowed"
