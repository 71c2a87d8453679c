"""Several who work on one graph at once, in threads or processes, each with a handle of its own."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import omnigraph
from omnigraph.errors import OmnigraphError
from omnigraph.graph import Graph
from omnigraph.storage import observe
from tests.support.forks import forked

_PATIENCE = 300.0

Call = tuple[str, tuple[Any, ...], dict[str, Any]]


def call(name: str, *arguments: Any, **more: Any) -> Call:
    """A method of a graph, to be called by somebody else."""
    return name, arguments, more


def outcome(graph: Graph, one: Call) -> Any:
    """Make a call; return what it returned, or the error that it raised."""
    name, arguments, more = one
    try:
        return getattr(graph, name)(*arguments, **more)
    except OmnigraphError as error:
        return error


@contextmanager
def competing(uri: str, calls: Sequence[Call]) -> Iterator[Callable[[], list[Any]]]:
    """Have processes open a graph and stand ready to make a call each; yields how to let them, all at once."""
    ends = [multiprocessing.Pipe() for _ in calls]
    processes = [
        forked(_compete, (theirs, uri, one), daemon=True) for (_, theirs), one in zip(ends, calls, strict=True)
    ]
    for process in processes:
        process.start()
    ours = [connection for connection, _ in ends]
    assert [_received(connection) for connection in ours] == ["ready"] * len(calls)

    def go() -> list[Any]:
        for connection in ours:
            connection.send("go")
        return [_received(connection) for connection in ours]

    yield go
    for process in processes:
        process.join(_PATIENCE)
        process.kill()


def _received(connection: Connection) -> Any:
    assert connection.poll(_PATIENCE), "a competitor does not answer"
    return connection.recv()


def _compete(connection: Connection, uri: str, one: Call) -> None:
    graph = omnigraph.open(uri)
    connection.send("ready")
    connection.recv()
    connection.send(outcome(graph, one))


class Meanwhile:
    """Acts of others at one of the durable writes of this thread.

    Until the recovery record is written no gate is held, and others can be waited for; afterwards they must wait.
    """

    def __init__(self, ordinal: int, act: Callable[[], Any]) -> None:
        self._ordinal = ordinal
        self._act = act
        self._thread = threading.get_ident()
        self._pool = ThreadPoolExecutor(1)
        self.written: list[str] = []
        self.acting: Future[Any] | None = None

    def __call__(self, operation: str, path: str) -> None:
        if threading.get_ident() != self._thread:
            return
        self.written.append(f"{operation} record" if "/__recovery/" in path else operation)
        if len(self.written) == self._ordinal:
            self.acting = self._pool.submit(self._act)
            if "write record" not in self.written:
                self.acting.result(_PATIENCE)

    def result(self) -> Any:
        """What became of the others' act, if it began."""
        self._pool.shutdown()
        return self.acting.result(_PATIENCE) if self.acting else None


@contextmanager
def meanwhile(ordinal: int, act: Callable[[], Any]) -> Iterator[Meanwhile]:
    """Have others act at the k-th durable write of what this thread does."""
    hook = Meanwhile(ordinal, act)
    previous = observe.set_write_hook(hook)
    try:
        yield hook
    finally:
        observe.set_write_hook(previous)
        hook.result()
