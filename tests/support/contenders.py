"""Processes that do the same at the same moment, and say how each has fared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import omnigraph
from omnigraph.core.location import Location
from omnigraph.errors import AlreadyInitializedError, ConflictError
from omnigraph.manifest.publisher import Changes, Lineage, Manifest
from omnigraph.manifest.rows import VersionRow
from tests.support.forks import FORKS, forked

Act = Callable[..., str]
_READY = "ready"


@contextmanager
def contending(count: int, act: Act, *given: Any) -> Iterator[Callable[..., list[str]]]:
    """Start processes; what the block calls makes all of them act at once, and returns what each says.

    Each calls `act(number, *given, *order)`, with its own number. It is a function of a module that can be imported.
    """
    ends = [FORKS.Pipe() for _ in range(count)]
    processes = [forked(_obey, (theirs, act, number, given), daemon=True) for number, (_, theirs) in enumerate(ends)]
    for process in processes:
        process.start()
    ours = [end for end, _ in ends]
    assert [end.recv() for end in ours] == [_READY] * count

    def all_at_once(*order: Any) -> list[str]:
        for end in ours:
            end.send(order)
        return [end.recv() for end in ours]

    try:
        yield all_at_once
    finally:
        for end, process in zip(ours, processes, strict=True):
            end.send(None)
            process.join()
            end.close()
        for _, theirs in ends:
            theirs.close()


def _obey(orders: Connection, act: Act, number: int, given: tuple[Any, ...]) -> None:
    orders.send(_READY)
    while (order := orders.recv()) is not None:
        orders.send(act(number, *given, *order))


def make_graph(_: int, schema: str, uri: str) -> str:
    try:
        omnigraph.init(uri, schema)
    except AlreadyInitializedError:
        return "already"
    return "made"


def publish_version(number: int, uri: str, version: int) -> str:
    """Publish a version of the table of people, with the number of this process as its count of rows."""
    manifest = Manifest(Location.parse(uri))
    changes = Changes((VersionRow("node:Person", version, None, number),))
    try:
        manifest.publish(None, changes, {"node:Person": version - 1}, Lineage.new(str(number)))
    except ConflictError as error:
        return type(error).__name__
    return "won"
