"""The graph that every scenario writes to, and what must be true of it afterwards.

A commit inserts an item, its copy and an edge between them, all with one name: three tables, so half a commit shows.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

import omnigraph
from omnigraph import Graph
from omnigraph.errors import OmnigraphError, OutcomeUnknownError
from tests.support.forks import FORKS, forked

SCHEMA = """
node Item { name: String @key  value: I32 }
node Copy { name: String @key  value: I32 }
edge Of: Copy -> Item
node Counter { name: String @key  value: I32 }
"""
ADD = """query add($n: String) {
    insert Item { name: $n, value: 1 }
    insert Copy { name: $n, value: 1 }
    insert Of { from: $n, to: $n }
}"""
_TAKE = "query take($n: String) { delete Item where name = $n  delete Copy where name = $n }"
_ITEMS = "query items() { match { $i: Item } return { $i.name } }"
_COPIES = "query copies() { match { $c: Copy } return { $c.name } }"
_EDGES = "query edges() { match { $c: Copy  $c of $i } return { $c.name, $i.name } }"
_PATIENCE = 600.0


@dataclass
class Told:
    """What writers were told: names they tried, names whose commit was acknowledged, and errors by class."""

    tried: set[str] = field(default_factory=set)
    acknowledged: set[str] = field(default_factory=set)
    unknown: dict[str, str] = field(default_factory=dict)  # name -> operation id
    errors: dict[str, int] = field(default_factory=dict)
    answered: set[str] = field(default_factory=set)

    def hear(self, message: tuple[str, str]) -> None:
        kind, name = message
        if kind == "try":
            self.tried.add(name)
            return
        self.answered.add(name)
        if kind == "ack":
            self.acknowledged.add(name)
        elif kind.startswith("unknown "):
            self.unknown[name] = kind.removeprefix("unknown ")
        else:
            self.errors[kind] = self.errors.get(kind, 0) + 1

    def listen(self, connection: Connection) -> None:
        """Hear what a writer sends until it ends, however it does."""
        try:
            while True:
                self.hear(connection.recv())
        except (EOFError, ConnectionResetError):
            return

    def __str__(self) -> str:
        errors = ", ".join(f"{count} {name}" for name, count in sorted(self.errors.items()))
        parts = [f"{len(self.tried):,} tried", f"{len(self.acknowledged):,} acknowledged"]
        parts += [f"{len(self.unknown)} unknown"] if self.unknown else []
        return ", ".join([*parts, errors] if errors else parts)


def add(graph: Graph, name: str) -> tuple[str, str]:
    """Make one commit; return what the caller was told of it. Only errors of ours are an answer."""
    try:
        graph.mutate(ADD, {"n": name})
    except OutcomeUnknownError as error:
        return f"unknown {error.operation_id}", name
    except OmnigraphError as error:
        return type(error).__name__, name
    return "ack", name


def check(uri: str, told: Told, *, may_be_there: Collection[str] = ()) -> int:
    """Check a graph in a process of its own, so that no file of it stays open; return how many commits it has."""
    ours, theirs = FORKS.Pipe()
    process = forked(_check, (theirs, uri, told, set(may_be_there)))
    process.start()
    theirs.close()
    assert ours.poll(_PATIENCE), "the check came to no end"
    problem, commits = ours.recv()
    process.join()
    assert not problem, problem
    return int(commits)


def _check(connection: Connection, uri: str, told: Told, may_be_there: set[str]) -> None:
    try:
        connection.send(("", judge(uri, told, may_be_there)))
    except Exception as error:  # noqa: BLE001 - it is reported where the scenario runs
        connection.send((f"{type(error).__name__}: {error}", 0))


def judge(uri: str, told: Told, may_be_there: Collection[str] = ()) -> int:
    """Check a graph in this process. Each assertion is an oracle; `test_oracles.py` shows each of them red."""
    found = names(omnigraph.open(uri, read_only=True))
    assert told.acknowledged <= found, f"lost for a reader: {sorted(told.acknowledged - found)[:5]}"
    graph = omnigraph.open(uri)
    whole = names(graph)
    assert told.acknowledged <= whole, f"lost: {sorted(told.acknowledged - whole)[:5]}"
    assert whole <= told.tried, f"from nowhere: {sorted(whole - told.tried)[:5]}"
    allowed = told.acknowledged | set(told.unknown) | set(may_be_there)
    assert whole <= allowed, f"there, though it was refused: {sorted(whole - allowed)[:5]}"
    for name, operation in told.unknown.items():
        assert (graph.outcome(operation) is not None) == (name in whole), f"wrong outcome of {operation}"
    after = f"after-{len(whole)}-{len(graph.commits())}"
    assert add(graph, after) == ("ack", after), "the graph cannot be written"
    graph.mutate(_TAKE, {"n": after})
    _check_chain(graph)
    report = graph.doctor()
    assert report.is_healthy, f"doctor found {[str(finding) for finding in report.findings]}"
    return len(graph.commits())


def names(graph: Graph) -> set[str]:
    """Return the names in the graph. Each must be there once as an item, as a copy, and as an edge between them."""
    items = [row["i.name"] for row in graph.query(_ITEMS).rows]
    copies = [row["c.name"] for row in graph.query(_COPIES).rows]
    edges = [(row["c.name"], row["i.name"]) for row in graph.query(_EDGES).rows]
    assert len(items) == len(set(items)), "an item is there twice"
    assert sorted(items) == sorted(copies), "half a commit: items and copies differ"
    assert sorted(edges) == sorted((name, name) for name in items), "half a commit: edges differ"
    return set(items)


def _check_chain(graph: Graph) -> None:
    commits = graph.commits()
    assert [one.parent_id for one in commits[:-1]] == [one.commit_id for one in commits[1:]], "history is no chain"
    assert commits[-1].parent_id is None
