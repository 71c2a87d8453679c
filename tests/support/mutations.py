"""Graphs that queries change: a schema with every kind of rule, a check of all of it, and rivals that write at once."""

from __future__ import annotations

import multiprocessing
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from multiprocessing.connection import Connection
from typing import Any, Self

import omnigraph
from omnigraph.api.results import MutationResult
from omnigraph.commit import failpoints
from omnigraph.commit.plan import OpClass, PublishPlan, TableAction, WriterKind, gates_for
from omnigraph.commit.publish import begin, publish
from omnigraph.commit.recovery import head_row
from omnigraph.commit.store import Store
from omnigraph.core.location import Location
from omnigraph.errors import ExpectedVersionMismatchError, OmnigraphError
from omnigraph.graph import Graph
from omnigraph.manifest.publisher import Changes, Lineage
from omnigraph.storage import observe
from omnigraph.storage.layout import IndexSpec
from tests.support.deaths import die_each
from tests.support.faults import dataset
from tests.support.forks import forked
from tests.support.graphs import append, contents, edge, plan

SCHEMA = """
node Person {
    name: String @key
    nickName: String? @unique
    age: I32?
    score: F64?
    @range(age, 0..120)
}
node Note {
    text: String
    rank: I64? @unique
}
edge Knows: Person -> Person @card(0..3) { how: String? }
edge Wrote: Person -> Note @card(1..2) { @unique(src, dst) }
"""
PERSON, NOTE, KNOWS, WROTE = "node:Person", "node:Note", "edge:Knows", "edge:Wrote"
_PATIENCE = 300.0

Rows = Mapping[str, list[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Query:
    """A mutation and its parameters."""

    text: str
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def run(self, graph: Graph) -> MutationResult:
        return graph.mutate(f"query change{self.text}", self.parameters)


def store_of(uri: str) -> Store:
    return Store.at(Location.parse(uri))


def small_graph(uri: str) -> Store:
    """Four people, five notes and who knows and wrote what. Ann has all the notes she may have; dan has no edge."""
    omnigraph.init(uri, SCHEMA)
    store = store_of(uri)
    txn = begin(store)
    people = {"ann": 30, "bob": 2, "cat": 3, "dan": None}
    knows = [edge("k1", "ann", "bob"), edge("k2", "ann", "cat"), edge("k3", "bob", "cat")]
    wrote = [edge("w1", "ann", "n1"), edge("w2", "ann", "n2"), edge("w3", "bob", "n3")]
    rows: dict[str, list[dict[str, Any]]] = {
        PERSON: [{"id": name, "name": name, "age": age} for name, age in people.items()],
        NOTE: [{"id": f"n{at}", "text": text} for at, text in enumerate(("one", "two", "three", "four", "five"), 1)],
        KNOWS: knows,
        WROTE: wrote,
    }
    publish(store, plan(txn, *(append(store, txn, key, found) for key, found in rows.items())))
    return store


def broken_rules(rows: Rows) -> list[str]:
    """Every rule of SCHEMA that a graph breaks, found by looking at all of it.

    That a source has at least one edge is told only of those that have some: who never had any is not wrong.
    """
    people, notes, knows, wrote = (rows[key] for key in (PERSON, NOTE, KNOWS, WROTE))
    per_knower, per_writer = (Counter(edge["src"] for edge in edges) for edges in (knows, wrote))
    names, notes_there = ({row["id"] for row in found} for found in (people, notes))
    findings = {
        "a person has another id than name": any(row["id"] != row["name"] for row in people),
        "two entities have one id": any(_repeats(row["id"] for row in rows[key]) for key in rows),
        "two people have one nickName": _repeats(row["nickName"] for row in people),
        "two notes have one rank": _repeats(row["rank"] for row in notes),
        "an age is out of range": any(not 0 <= row["age"] <= 120 for row in people if row["age"] is not None),
        "a note has no text": any(row["text"] is None for row in notes),
        "somebody unknown knows": not names >= {edge["src"] for edge in knows},
        "somebody unknown is known": not names >= {edge["dst"] for edge in knows},
        "somebody unknown wrote": not names >= {edge["src"] for edge in wrote},
        "something unknown was written": not notes_there >= {edge["dst"] for edge in wrote},
        "somebody knows too many": any(number > 3 for number in per_knower.values()),
        "somebody wrote too much": any(number > 2 for number in per_writer.values()),
        "somebody wrote a note twice": _repeats((edge["src"], edge["dst"]) for edge in wrote),
    }
    return [rule for rule, is_broken in findings.items() if is_broken]


def _repeats(values: Iterable[Any]) -> bool:
    return any(number > 1 for value, number in Counter(values).items() if value is not None)


# Upkeep --------------------------------------------------------------------------------------------


def build_index(store: Store, key: str, column: str = "id") -> None:
    """Index a column and publish that: a change of the table, but not of what is in it."""
    txn = begin(store)
    staged = store.tables.stage_create_indices(txn.entries[key].table, [IndexSpec(column, "BTREE")])
    action = TableAction(staged, OpClass.MAINTENANCE)
    publish(store, PublishPlan(txn, WriterKind.ENSURE_INDICES, (action,)))


def compact(store: Store, key: str) -> bool:
    """Rewrite the fragments of a table, as lance does it, and publish that, if there is anything to rewrite."""
    with store.gates.hold(gates_for(None, [key])):
        table = store.manifest.load().snapshot.entries[key].table
        dataset(store, table.path).optimize.compact_files()
        row = head_row(store, key, table.path, None)
        if row.version == table.version:
            return False
        store.manifest.publish(None, Changes((row,)), {key: table.version}, Lineage.new())
        return True


# Durable writes ------------------------------------------------------------------------------------


@contextmanager
def at_write(ordinal: int, action: Callable[[], object]) -> Iterator[list[str]]:
    """Act before the k-th durable write, if there is one; yields the names of the writes as they come."""
    written: list[str] = []

    def hook(operation: str, _: str) -> None:
        written.append(operation)
        if len(written) == ordinal:
            action()

    previous = observe.set_write_hook(hook)
    try:
        yield written
    finally:
        observe.set_write_hook(previous)


@contextmanager
def once_prepared(*actions: Callable[[], object]) -> Iterator[None]:
    """Have others act when the next mutation is prepared and begins to stage, once."""
    left = list(actions)

    def hook(operation: str, _: str) -> None:
        # Those who act stage something as well.
        acting = left[:] if operation.startswith("stage ") else []
        del left[: len(acting)]
        for action in acting:
            action()

    previous = observe.set_write_hook(hook)
    try:
        yield
        assert not left, "nothing was staged"
    finally:
        observe.set_write_hook(previous)


@dataclass(frozen=True, slots=True)
class Death:
    """An order to run a mutation and to die before its k-th durable write."""

    uri: str
    query: Query
    ordinal: int


def die(deaths: Iterable[Death]) -> None:
    """Carry out orders, each in a process of its own."""
    die_each(_die, deaths)


def _die(death: Death) -> None:
    graph = omnigraph.open(death.uri)
    with at_write(death.ordinal, failpoints.die):
        death.query.run(graph)


# Rivals --------------------------------------------------------------------------------------------


class Rival:
    """Somebody with a graph handle of its own who writes when told, in a thread or in a process."""

    def __init__(self, make: Callable[..., threading.Thread | multiprocessing.process.BaseProcess]) -> None:
        self._connection, theirs = multiprocessing.Pipe()
        self._worker = make(target=serve, args=(theirs,), daemon=True)
        self._worker.start()

    @classmethod
    def thread(cls) -> Self:
        return cls(threading.Thread)

    @classmethod
    def process(cls) -> Self:
        return cls(forked)

    def prepare(self, uri: str, query: Query) -> None:
        """Begin a mutation, and wait until it is prepared: it has read all it needs, and nothing is published."""
        self._connection.send(("mutate", uri, query))
        reached = self._received()
        assert reached == "prepared", reached

    def go_on(self) -> None:
        self._connection.send("go on")

    def start_many(self, uri: str, number: int, mutations: int) -> None:
        self._connection.send(("many", uri, number, mutations))

    def outcome(self, patience: float = _PATIENCE) -> Any:
        """Wait for the end: what the mutation returned, or the error that it raised."""
        return self._received(patience)

    def close(self) -> None:
        self._connection.send(("stop",))
        self._worker.join(_PATIENCE)

    def _received(self, patience: float = _PATIENCE) -> Any:
        assert self._connection.poll(patience), "the rival does not answer"
        return self._connection.recv()


_OWN = threading.local()


def serve(connection: Connection) -> None:
    """Carry out orders until told to stop. Every thread of a process has its own stop at the first staged write."""
    observe.set_write_hook(_reach)
    while (order := connection.recv())[0] != "stop":
        try:
            connection.send(_carry_out(connection, *order))
        except OmnigraphError as error:
            connection.send(error)


def _carry_out(connection: Connection, command: str, uri: str, *arguments: Any) -> Any:
    if command == "many":
        return write_many(omnigraph.open(uri), *arguments)
    (query,) = arguments
    graph = omnigraph.open(uri)

    def stop() -> None:
        connection.send("prepared")
        connection.recv()

    _OWN.stops = iter([stop])
    return query.run(graph)


def _reach(operation: str, _: str) -> None:
    for stop in getattr(_OWN, "stops", ()) if operation.startswith("stage ") else ():
        stop()


# Many writes ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Work:
    """What one of many writers did: the commits it was told of, and how often it had to try an update again."""

    commits: list[str]
    conflicts: int


def write_many(graph: Graph, number: int, mutations: int) -> Work:
    """Insert people and who they know, and update them, each in a commit of its own."""
    commits, conflicts = list[str](), count()
    for at in range(mutations):
        name, previous = f"w{number}-{at}", f"w{number}-{at - at % 4}"
        match at % 4:
            case 0:
                query = Query("($n: String) { insert Person { name: $n, score: 0.0 } }", {"n": name})
            case 1:
                query = Query('($n: String) { insert Knows { from: $n, to: "hub" } }', {"n": previous})
            case 2:
                text = "($n: String, $s: F64) { update Person set { score: $s } where name = $n }"
                query = Query(text, {"n": previous, "s": float(at)})
            case _:
                text = "($n: String, $p: String) { insert Person { name: $n } insert Knows { from: $p, to: $n } }"
                query = Query(text, {"n": name, "p": previous})
        commits.append(_insist(graph, query, conflicts))
    return Work(commits, next(conflicts))


def _insist(graph: Graph, query: Query, conflicts: Iterator[int]) -> str:
    """Try again as long as others are faster, as a client does."""
    while True:
        try:
            done = query.run(graph)
        except ExpectedVersionMismatchError:
            next(conflicts)
        else:
            assert done.commit
            return done.commit.commit_id


def snapshot(store: Store) -> tuple[Rows, int, list[str]]:
    """What a graph holds, the version of its manifest, and its commits."""
    state = store.manifest.load()
    return contents(store), state.version, [commit.commit_id for commit in state.commits()]
