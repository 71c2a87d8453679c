"""What the processes of the scenarios do."""

from __future__ import annotations

import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from types import FrameType

import omnigraph
from omnigraph.errors import ExpectedVersionMismatchError, OmnigraphError
from tests.chaos.graph import add
from tests.support.forks import FORKS, forked

SET = "query set($n: String, $v: I32) { update Counter set { value: $v } where name = $n }"


@contextmanager
def started(target: Callable[..., None], *arguments: object) -> Iterator[tuple[BaseProcess, Connection]]:
    """Start a process that reports over a connection; end it when the block ends."""
    ours, theirs = FORKS.Pipe()
    process = forked(target, (theirs, *arguments), daemon=True)
    process.start()
    theirs.close()
    try:
        yield process, ours
    finally:
        process.kill()
        process.join()
        ours.close()


def write_for_ever(connection: Connection, uri: str, prefix: str) -> None:
    """Make one commit after another. What is acknowledged is reported before the next begins."""
    graph = omnigraph.open(uri)
    for number in count():
        name = f"{prefix}-{number}"
        connection.send(("try", name))
        connection.send(add(graph, name))


def write_some(connection: Connection, uri: str, prefix: str, commits: int) -> None:
    """Make a number of commits, each with a handle that is new if the one before failed."""
    graph = None
    for number in range(commits):
        name = f"{prefix}-{number}"
        connection.send(("try", name))
        try:
            graph = graph or omnigraph.open(uri)
        except OmnigraphError as error:
            connection.send((f"{type(error).__name__} at the open", name))
            continue
        told = add(graph, name)
        graph = graph if told[0] == "ack" else None
        connection.send(told)


def write_many(connection: Connection, uri: str, me: str, commits: int) -> None:
    """Make a number of commits; every tenth counts itself, and is repeated when others were faster."""
    graph = omnigraph.open(uri)
    for number in range(commits):
        if number % 10:
            name = f"{me}-{number}"
            connection.send(("try", name))
            connection.send(add(graph, name))
            continue
        while True:
            try:
                graph.mutate(SET, {"n": me, "v": number // 10 + 1})
            except ExpectedVersionMismatchError:
                connection.send(("conflict", me))
            else:
                break
    connection.send(("done", me))


class _Interrupts:
    """Raises KeyboardInterrupt, as Python's own handler does, but only inside a write."""

    def __init__(self) -> None:
        self.inside = self.missed = False
        signal.signal(signal.SIGINT, self)

    def __call__(self, _: int, __: FrameType | None) -> None:
        if self.inside:
            raise KeyboardInterrupt
        self.missed = True


def write_interrupted(connection: Connection, uri: str, prefix: str) -> None:
    """Write, and report what each interrupt became."""
    graph = omnigraph.open(uri)
    interrupts = _Interrupts()
    for number in count():
        name = f"{prefix}-{number}"
        connection.send(("try", name))
        told: tuple[str, str] | None = None
        became = ""
        try:
            interrupts.inside = True
            told = add(graph, name)
            interrupts.inside = False
        except KeyboardInterrupt:
            interrupts.inside = False
            became = "interrupt KeyboardInterrupt"
        except BaseException as error:  # noqa: BLE001 - what it is, is the question
            interrupts.inside = False
            places = [f"{frame.name}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)[-6:]]
            became = f"interrupt {type(error).__name__}: {error} at {' > '.join(places)}"
        if told is not None:
            connection.send(told)
        if became:
            connection.send((became, name))
        if interrupts.missed:
            interrupts.missed = False
            connection.send(("missed", name))
