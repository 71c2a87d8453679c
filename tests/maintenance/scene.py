"""Graphs to look after: many small commits, every kind of index, and looks at what a table is made of."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import omnigraph
from omnigraph.api.maintenance import CleanupResult, UpkeepResult
from omnigraph.api.results import TableVersion
from omnigraph.commit.store import Store
from omnigraph.graph import Graph
from omnigraph.maintenance.cleanup import CleanupRequest, cleanup
from omnigraph.manifest.rows import MANIFEST_PATH
from omnigraph.storage import observe, reclaim
from omnigraph.storage.layout import TableLayout, layout_of
from tests.support.mutations import store_of

SCHEMA = """
node Person {
    name: String @key
    age: I32? @index
    bio: String? @index
    near: Vector(2)? @index
    mood: enum(calm, wild)? @index
    tags: [String]?
    photo: Blob?
}
node Place { title: String }
edge Knows: Person -> Person { since: Date? }
"""
PERSON, PLACE, KNOWS = "node:Person", "node:Place", "edge:Knows"
ALL = "query all() { match { $p: Person } return { $p.name, $p.age } order { $p.name asc } }"


def grown(uri: Path | str, people: int = 6) -> Graph:
    """A graph in which every person, and who they know, came with a commit of its own, and no table is folded."""
    graph = omnigraph.init(str(uri), SCHEMA, upkeep="off")
    for at in range(people):
        add(graph, at)
        if at:
            graph.mutate(f'query add() {{ insert Knows {{ from: "p{at - 1}", to: "p{at}" }} }}')
    return graph


def add(graph: Graph, at: int, branch: str = "main") -> None:
    text = f'query add() {{ insert Person {{ name: "p{at}", age: {at}, bio: "text {at}", mood: "calm" }} }}'
    graph.mutate(text, branch=branch)


def people(graph: Graph, **where: Any) -> list[dict[str, Any]]:
    return graph.query(ALL, **where).rows


def named(graph: Graph, name: str) -> list[Any]:
    """What an index on the key finds."""
    text = f'query one() {{ match {{ $p: Person {{ name: "{name}" }} }} return {{ $p.age }} }}'
    return [row["p.age"] for row in graph.query(text).rows]


def cleaned(store: Store, meanwhile: Callable[[], object] = lambda: None, **policy: Any) -> CleanupResult:
    """Clean up as if all versions of the manifest were old; others act when the first table is done."""
    actions = [meanwhile]

    def advance() -> None:
        while actions:
            actions.pop()()

    request = CleanupRequest(**policy, confirm=True, manifest_age=dt.timedelta(), audit_age=dt.timedelta())
    return cleanup(store, request, advance)


def manifest_versions(store: Store, branch: str | None = None) -> list[int]:
    return reclaim.versions(store.tables, MANIFEST_PATH, branch)


def table_of(graph: Graph, key: str, branch: str = "main") -> TableVersion:
    return graph.snapshot(branch).entries[key].table


def made_of(graph: Graph, key: str, branch: str = "main") -> TableLayout:
    return layout_of(store_of(graph.uri).tables, table_of(graph, key, branch))


def coverage(graph: Graph, key: str, branch: str = "main") -> dict[str, bool]:
    """Of each index of a table whether it covers all of it."""
    found = made_of(graph, key, branch)
    return {name: found.covered(name) == found.numbers for name in found.indices}


@contextmanager
def whenever(operation: str, action: Callable[[], object]) -> Iterator[None]:
    """Act before every durable write of one kind."""
    with at_each({operation: action}):
        yield


@contextmanager
def at_each(actions: Mapping[str, Callable[[], object]]) -> Iterator[None]:
    """Act before every durable write of some kinds."""

    def hook(name: str, _: str) -> None:
        if name in actions:
            actions[name]()

    previous = observe.set_write_hook(hook)
    try:
        yield
    finally:
        observe.set_write_hook(previous)


@dataclass(frozen=True, slots=True)
class Tidy:
    """An order to optimize a graph, for those who carry out orders."""

    def run(self, graph: Graph) -> UpkeepResult:
        return graph.optimize()


@dataclass(frozen=True, slots=True)
class Index:
    def run(self, graph: Graph) -> UpkeepResult:
        return graph.ensure_indices()


@dataclass(frozen=True, slots=True)
class Clean:
    def run(self, graph: Graph) -> Any:
        return cleaned(store_of(graph.uri), keep=1)


@dataclass(frozen=True, slots=True)
class Mend:
    def run(self, graph: Graph) -> Any:
        return graph.repair(confirm=True, force=True)
