"""Work on a graph in a process of its own that dies, stops or competes where a test says so.

    publish <uri>             make the change of the crash tests
    group <uri>               make the changes of the crash tests of groups, together
    open <uri>                open the graph read-write
    write <uri> <name> <n>    commit a person and a company n times, preparing anew
    hold <uri> <gate>...      take gates (`~` before a name: shared) until told to let go
    count <uri> <gate> <n>    add one to a number n times, each time behind a gate
    sign <uri> <gate> <n> <a> add a letter to a text n times, each time behind a gate

It says when it stops where it was told to, and goes on when it is told to.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import count
from multiprocessing.connection import Connection
from typing import Self

from omnigraph.commit import failpoints, lease
from omnigraph.commit.gates import DIRECTORY, LEASE_SECONDS, Gate, LeaseGates
from omnigraph.commit.plan import PublishPlan, WriteTxn
from omnigraph.commit.publish import begin, publish
from omnigraph.commit.store import Store
from omnigraph.core.location import Location
from omnigraph.graph import Graph, init
from omnigraph.manifest.publisher import Lineage
from omnigraph.storage import observe
from tests.support import graphs
from tests.support.deaths import die_each
from tests.support.forks import forked
from tests.support.graphs import COMPANY, KNOWS, PERSON, append, company, delete, edge, person, plan, upsert, write_plan
from tests.support.together import inserting, publish_together

AT_ONCE = 4
COUNTER = "counter"
LIFETIME = 5.0  # of a lease whose holder dies, and for which others have to wait
_PATIENCE = 300.0


# What a test uses ----------------------------------------------------------------------------------


class Child:
    """A process that runs one of the commands. Leaving the block ends it."""

    def __init__(self, *arguments: str) -> None:
        self._connection, theirs = multiprocessing.Pipe()
        self._process = forked(_main, (arguments, theirs))
        self._process.start()
        theirs.close()

    @property
    def pid(self) -> int | None:
        return self._process.pid

    def wait_until_stopped(self) -> None:
        """Wait until it says that it is where it was told to stop."""
        assert self._connection.poll(_PATIENCE), "the child does not stop"
        assert self._connection.recv() == "stopped"

    def go_on(self) -> None:
        self._connection.send("go on")

    def kill(self) -> None:
        """End it from outside, as it is: SIGKILL cannot be handled."""
        self._process.kill()
        self._process.join(_PATIENCE)

    def wait(self) -> None:
        """Wait for the end, good or bad."""
        self._process.join(_PATIENCE)
        assert self._process.exitcode is not None, "the child does not end"

    def succeed(self) -> None:
        """Wait for the end, which must be a good one."""
        self.wait()
        assert self._process.exitcode == 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


@dataclass(frozen=True, slots=True)
class Death:
    """An order to work on a graph and to die before a durable write."""

    command: str
    uri: str
    ordinal: int


def die(deaths: Iterable[Death]) -> None:
    """Carry out orders, each in a process of its own."""
    die_each(_die, deaths)


def store_at(uri: str, *, timeout: float = 60, lifetime: float = LEASE_SECONDS) -> Store:
    """Open a store as `Store.at` does, with leases of a given lifetime on an object store."""
    store = Store.at(Location.parse(uri), timeout)
    if store.location.is_local:
        return store
    return replace(store, gates=LeaseGates(store.objects, timeout, lifetime))


def peopled(uri: str) -> Store:
    """Make a graph with rows in each of its tables."""
    init(uri, graphs.SCHEMA)
    store = store_at(uri)
    txn = begin(store)
    rows = (
        append(store, txn, PERSON, [person("ann", 30), person("bob", 2), person("cat", 3)]),
        append(store, txn, KNOWS, [edge("e1", "ann", "bob"), edge("e2", "bob", "cat")]),
        append(store, txn, COMPANY, [company("xerc")]),
    )
    publish(store, plan(txn, *rows))
    return store


def after_a_lifetime(store: Store) -> Store:
    """Let a store have watched the leases of a graph for longer than they last: those of the dead are over."""
    if isinstance(store.gates, LeaseGates):
        for path in [f"{DIRECTORY}/{name}" for name in store.objects.list(DIRECTORY)]:
            found = store.objects.read_versioned(path)
            assert found
            store.gates._seen[path] = (lease._state(lease._read_body(found[0])), -math.inf)
    return store


@contextmanager
def hooked(hook: observe.WriteHook) -> Iterator[None]:
    """Have a hook called before every durable write, for a while."""
    previous = observe.set_write_hook(hook)
    try:
        yield
    finally:
        observe.set_write_hook(previous)


def is_lease(path: str) -> bool:
    return f"/{DIRECTORY}/" in path


def is_renewal(path: str) -> bool:
    """Tell whether the write at hand renews a lease: that is done in the background, whenever the clock says so."""
    return is_lease(path) and threading.current_thread().daemon


class Ordinals:
    """Counts durable writes, and dies before the k-th."""

    def __init__(self, ordinal: int = 0) -> None:
        self.written: list[str] = []
        self._ordinal = ordinal

    def __call__(self, operation: str, path: str) -> None:
        if is_renewal(path):
            return
        self.written.append(operation)
        if len(self.written) == self._ordinal:
            failpoints.die()


def three_tables(store: Store) -> PublishPlan:
    """The change of the crash tests: an insert, an upsert and a delete, each on a table of its own."""
    txn = begin(store)
    actions = (
        upsert(store, txn, PERSON, [person("ann", 31), person("dan", 4)]),
        delete(store, txn, KNOWS, "id = 'e1'"),
        append(store, txn, COMPANY, [company("yard")]),
    )
    return plan(txn, *actions, actor="ann")


def three_members(store: Store) -> list[PublishPlan]:
    """The changes of the crash tests of groups: two inserts into one table, one of them into another too, a delete."""
    first = inserting(store, {PERSON: [person("dan")]}, "operation-1")
    second = inserting(store, {PERSON: [person("eve")], COMPANY: [company("yard")]}, "operation-2")
    txn = begin(store)
    gone = plan(txn, delete(store, txn, KNOWS, "id = 'e1'"))
    return [first, second, replace(gone, lineage=Lineage.new("cat", operation_id="operation-3"))]


def pairs(store: Store, name: str) -> Callable[[WriteTxn], PublishPlan]:
    """Prepare a person and a company of one name: whoever sees one of them must see the other."""

    def prepare(txn: WriteTxn) -> PublishPlan:
        rows = append(store, txn, PERSON, [person(name)]), append(store, txn, COMPANY, [company(name)])
        return plan(txn, *rows, actor=name)

    return prepare


def gate(text: str) -> Gate:
    return Gate(text.removeprefix("~"), shared=text.startswith("~"))


# The program ---------------------------------------------------------------------------------------


def _die(death: Death) -> None:
    with hooked(Ordinals(death.ordinal)):
        _run(death.command, after_a_lifetime(store_at(death.uri)), [], failpoints.die)


def _run(command: str, store: Store, arguments: list[str], stop: Callable[[], None]) -> None:  # noqa: C901 - a table
    match command:
        case "publish":
            publish(store, three_tables(store))
        case "group":
            publish_together(store, three_members(store))
        case "open":
            Graph(store, read_only=False)
        case "write":
            name, commits = arguments
            stop()
            for number in range(int(commits)):
                write_plan(store, None, pairs(store, f"{name}-{number}"))
        case "hold":
            with store.gates.hold([gate(text) for text in arguments]):
                stop()
        case "count":
            name, times = arguments
            stop()
            for _ in range(int(times)):
                with store.gates.hold([gate(name)]):
                    store.objects.write(COUNTER, str(int(store.objects.read(COUNTER)) + 1).encode())
        case "sign":
            name, times, letter = arguments
            for _ in range(int(times)):
                with store.gates.hold([gate(name)]):
                    store.objects.write(COUNTER, store.objects.read(COUNTER) + letter.encode())
        case _:
            raise AssertionError(command)


def _at_pass(number: int, action: Callable[[], None]) -> Callable[[], None]:
    """Do something when a failpoint is reached for the n-th time."""
    passes = count(1)

    def reached() -> None:
        if next(passes) == number:
            action()

    return reached


def _main(words: Sequence[str], connection: Connection) -> None:
    def stop() -> None:
        connection.send("stopped")
        connection.recv()

    parser = argparse.ArgumentParser()
    parser.add_argument("command")
    parser.add_argument("uri")
    parser.add_argument("arguments", nargs="*")
    parser.add_argument("--stop-at", help="the name of a failpoint")
    parser.add_argument("--pass", type=int, default=1, dest="number", help="at which pass of the failpoint to stop")
    parser.add_argument("--lifetime", type=float, default=LEASE_SECONDS, help="of leases, in seconds")
    given = parser.parse_args(words)
    with ExitStack() as stack:
        if given.stop_at:
            stack.enter_context(failpoints.armed(given.stop_at, _at_pass(given.number, stop)))
        _run(given.command, store_at(given.uri, lifetime=given.lifetime), given.arguments, stop)
