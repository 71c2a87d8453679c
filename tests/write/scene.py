"""Graphs to mutate, and what a test looks at before and after.

PEOPLE is the small graph of the language's behaviours; RULES has one of each rule that a schema can state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from omnigraph.api.results import MutationResult
from omnigraph.commit.store import Store
from omnigraph.core.location import Location
from omnigraph.graph import Graph
from omnigraph.storage import observe
from tests.support.faults import assert_settled, pins
from tests.support.graphs import SCHEMA

PEOPLE = SCHEMA
PEOPLE_DATA = """query seed() {
  insert Person { name: "Alice", age: 30 } insert Person { name: "Bob", age: 25 }
  insert Person { name: "Charlie", age: 35 } insert Person { name: "Diana", age: 28 }
  insert Company { name: "Acme" } insert Company { name: "Globex" }
  insert Knows { from: "Alice", to: "Bob" } insert Knows { from: "Alice", to: "Charlie" }
  insert Knows { from: "Bob", to: "Diana" }
  insert WorksAt { from: "Alice", to: "Acme" } insert WorksAt { from: "Bob", to: "Globex" }
}"""
RULES = """
node User {
    name: String @key
    email: String? @unique
    mood: enum(calm, sad)?
    age: I32?
    nick: String?
    size: U32?
    ratio: F32?
    score: F64?
    total: I64?
    firstName: String?
    firstname: I32?
    seen: DateTime?
    photo: Blob?
    face: Vector(2)?
    marks: [I32]?
    @unique(firstName, firstname)
    @range(age, 0..150)
    @check(nick, "^[a-z]+$")
}
node Note { text: String  pages: I32? }
node Company { name: String @key }
edge WorksAt: User -> Company @card(0..1)
edge Knows: User -> User @card(2..)
edge Owns: User -> Company @card(1..)
"""
RULES_DATA = """query seed() {
  insert User { name: "ann", age: 30, email: "a@x" } insert User { name: "ben", age: 25 } insert User { name: "cleo" }
  insert Company { name: "Acme" } insert Company { name: "Globex" }
  insert WorksAt { from: "ann", to: "Acme" } insert Owns { from: "ann", to: "Acme" }
  insert Knows { from: "ann", to: "ben" } insert Knows { from: "ann", to: "cleo" }
}"""
NEXT = 'query next() { insert Company { name: "Next" } }'
"""A write that suits both graphs."""


@dataclass(frozen=True, slots=True)
class State:
    """All that a reader of the graph can tell apart."""

    commits: list[str]
    versions: dict[str, int]
    rows: Counter[str]


def look(graph: Graph) -> State:
    """See the graph as it is published; no write may be under way, or have left anything behind."""
    assert_settled(store_of(graph))
    commits = [commit.commit_id for commit in graph.commits()]
    return State(commits, pins(store_of(graph)), Counter(_spelled(key, row) for key, row in _rows(graph)))


def store_of(graph: Graph) -> Store:
    """A store of its own: what it reads is on disk, and not what the handle remembers."""
    return Store.at(Location.parse(graph.uri))


def rows_of(graph: Graph, key: str) -> list[dict[str, Any]]:
    """The rows of a table, by their ids."""
    found = [row for found_key, row in _rows(graph) if found_key == key]
    return sorted(found, key=lambda row: str(row["id"]))


def difference(before: State, after: State) -> list[str]:
    """Name the rows that are gone and those that are new, in order."""
    gone, new = before.rows - after.rows, after.rows - before.rows
    return sorted([*(f"- {row}" for row in gone.elements()), *(f"+ {row}" for row in new.elements())])


@contextmanager
def nothing_changes(graph: Graph) -> Iterator[None]:
    """What happens inside must leave the graph as it is, and able to take the next write."""
    before = look(graph)
    yield
    assert look(graph) == before
    assert graph.mutate(NEXT).affected_nodes == 1
    after = look(graph)
    assert difference(before, after) == ["+ Company name=Next"]
    assert len(after.commits) == len(before.commits) + 1


def check_done(before: State, after: State, done: MutationResult) -> None:
    """See that a mutation is one commit over exactly the tables that it changed, or none if it changed nothing."""
    if done.commit is None:
        assert after == before
        return
    assert after.commits == [done.commit.commit_id, *before.commits]
    moved = {key: version - before.versions[key] for key, version in after.versions.items()}
    changed = {key.partition(":")[2] for key, steps in moved.items() if steps}
    assert set(moved.values()) <= {0, 1}
    assert {line.split()[1] for line in difference(before, after)} <= changed


@contextmanager
def before_writing(operation: str, action: Callable[[], object], *, number: int = 1) -> Iterator[list[str]]:
    """Do something once, right before the n-th durable write of a kind; yields the writes of that kind."""
    seen: list[str] = []

    def hook(tried: str, _: str) -> None:
        if tried.startswith(operation):
            seen.append(tried)
            if len(seen) == number:
                observe.set_write_hook(None)
                try:
                    action()
                finally:
                    observe.set_write_hook(hook)

    previous = observe.set_write_hook(hook)
    try:
        yield seen
    finally:
        observe.set_write_hook(previous)


def _rows(graph: Graph) -> list[tuple[str, dict[str, Any]]]:
    store = store_of(graph)
    found: list[tuple[str, dict[str, Any]]] = []
    for key, entry in store.manifest.load().snapshot.entries.items():
        rows = store.tables.open(entry.table).to_table(blob_handling="all_binary").to_pylist()
        found += [(key, row) for row in rows]
    return found


def _spelled(key: str, row: Mapping[str, Any]) -> str:
    """Spell a row for a case file: `Person age=22 name=Eve`, `Knows Eve -> Alice`; ids and nulls are left out."""
    ends = f" {row['src']} -> {row['dst']}" if "src" in row else ""
    told = {name: value for name, value in row.items() if name not in ("id", "src", "dst") and value is not None}
    return f"{key.partition(':')[2]}{ends}" + "".join(f" {name}={value}" for name, value in told.items())
