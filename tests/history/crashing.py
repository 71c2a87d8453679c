"""Operations on branches that die where a test says so, each on a graph that is arranged for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import omnigraph
from omnigraph.commit.store import Store
from omnigraph.graph import Graph
from tests.commit.child import Ordinals, after_a_lifetime, hooked, store_at
from tests.support.deaths import die_each
from tests.support.graphs import contents
from tests.support.mutations import Rows, small_graph

State = Mapping[str, Rows]


@dataclass(frozen=True, slots=True)
class Operation:
    """Something to do on a graph of four people and five notes: what must be there first, and which branch changes."""

    branch: str
    arrange: Callable[[Graph], object]
    act: Callable[[Graph], Any]


def person(name: str, age: int) -> dict[str, Any]:
    return {"type": "Person", "data": {"name": name, "age": age}}


def note(name: str, text: str) -> dict[str, Any]:
    return {"type": "Note", "data": {"id": name, "text": text}}


def knows(name: str, source: str, target: str) -> dict[str, Any]:
    return {"edge": "Knows", "from": source, "to": target, "data": {"id": name}}


def bring(graph: Graph, branch: str, *records: dict[str, Any]) -> None:
    graph.load(list(records), mode="merge", branch=branch)


def remove(graph: Graph, branch: str, what: str) -> None:
    graph.mutate(f"query remove() {{ delete {what} }}", branch=branch)


def _branch_off(graph: Graph) -> None:
    graph.create_branch("feature")


def _write_first(graph: Graph) -> None:
    """Write to two tables, without any id that is made up."""
    text = 'insert Person { name: "eve" } update Note set { rank: 9 } where text = "one"'
    graph.mutate(f"query write() {{ {text} }}", branch="feature")


def _change_everything(graph: Graph) -> None:
    """On a branch: inserts, updates and deletes, over all four tables."""
    graph.create_branch("feature")
    bring(graph, "feature", person("eve", 4), person("ann", 31), note("n6", "six"), knows("k9", "eve", "ann"))
    remove(graph, "feature", 'Person where name = "bob"')


def _change_both(graph: Graph) -> None:
    """On main as well, and one entity on both sides."""
    _change_everything(graph)
    bring(graph, "main", person("dan", 5), person("ann", 32), note("n7", "seven"))
    remove(graph, "main", 'Note where text = "five"')


def _lag_behind(graph: Graph) -> None:
    """A branch has changed one table; main has changed that one and two others."""
    graph.create_branch("feature")
    bring(graph, "feature", person("ann", 31))
    bring(graph, "main", person("dan", 5), note("n6", "six"), knows("k9", "dan", "ann"))


def _two_branches(graph: Graph) -> None:
    graph.create_branch("other")
    graph.create_branch("feature")
    bring(graph, "feature", person("eve", 4), note("n6", "six"))


def _one_more_commit(graph: Graph) -> None:
    records = [person("eve", 4), person("ann", 31), knows("k9", "eve", "ann")]
    graph.load(records, mode="merge", actor="eve")


def _revert(graph: Graph) -> None:
    graph.revert(graph.commits(actor="eve")[0].commit_id)


def _request(graph: Graph) -> str:
    """Ask for the merge of a branch into a protected one, and approve it."""
    _change_both(graph)
    graph.protect("main", checks=['query strangers() { match { $p: Person { name: "zoe" } } return { $p.name } }'])
    one = graph.requests.open("feature", title="feature", actor="ann")
    return graph.requests.approve(one.request_id, actor="eve").request_id


def _merge_request(graph: Graph) -> None:
    [one] = graph.requests.list("open")
    graph.requests.merge(one.request_id, resolve="theirs", actor="meg")


def _approve(graph: Graph) -> None:
    [one] = graph.requests.list("open")
    graph.requests.approve(one.request_id, actor="fay")


REVIEWS = {
    "merge of a request": Operation("main", _request, _merge_request),
    "approval": Operation("main", _request, _approve),
    "protection": Operation("main", _branch_off, lambda graph: graph.protect("main")),
}
OPERATIONS = {
    **REVIEWS,
    "first write": Operation("feature", _branch_off, _write_first),
    "fast-forward": Operation("main", _change_everything, lambda graph: graph.merge("feature")),
    "three-way merge": Operation("main", _change_both, lambda graph: graph.merge("feature", resolve="theirs")),
    "merge that takes tables over": Operation("feature", _lag_behind, lambda graph: graph.merge("main", "feature")),
    "merge that forks": Operation("other", _two_branches, lambda graph: graph.merge("feature", "other")),
    "branch create": Operation("feature", lambda _: None, _branch_off),
    "branch delete": Operation("feature", _change_everything, lambda graph: graph.delete_branch("feature")),
    "revert": Operation("main", _one_more_commit, _revert),
}


def arranged(uri: str, name: str) -> str:
    small_graph(uri)
    OPERATIONS[name].arrange(omnigraph.open(uri))
    return uri


def look(uri: str) -> State:
    """What every branch holds, as a reader finds it."""
    store = store_at(uri)
    return {name: contents(store, branch_of(name)) for name in store.manifest.branches()}


def branch_of(name: str) -> str | None:
    return None if name == "main" else name


def drifted(store: Store) -> list[tuple[str, str]]:
    """The tables of which a branch's own head is not its pin."""
    found = []
    for name in store.manifest.branches():
        for key, entry in store.manifest.load(branch_of(name)).snapshot.entries.items():
            table = entry.table
            head = store.tables.head(table.path, table.branch).version
            if table.owner == branch_of(name) and head != table.version:
                found.append((name, key))
    return found


def opened(uri: str) -> Graph:
    """Open a graph read-write, a lifetime after whoever held a lease has died."""
    return Graph(after_a_lifetime(store_at(uri)), read_only=False)


@dataclass(frozen=True, slots=True)
class Death:
    """An order to die before a durable write of an operation."""

    name: str
    uri: str
    ordinal: int


def die(deaths: Iterable[Death]) -> None:
    """Carry out orders, each in a process of its own."""
    die_each(_die, deaths)


def _die(death: Death) -> None:
    graph = opened(death.uri)
    with hooked(Ordinals(death.ordinal)):
        OPERATIONS[death.name].act(graph)


def writes_of(name: str, uri: str) -> tuple[str, ...]:
    """Carry out an operation and name its durable writes, those of recovery records with a mark."""
    written: list[str] = []
    ordinals = Ordinals()

    def hook(operation: str, path: str) -> None:
        before = len(ordinals.written)
        ordinals(operation, path)
        if len(ordinals.written) > before:
            written.append(f"{operation} record" if "/__recovery/" in path else operation)

    graph = opened(uri)
    with hooked(hook):
        OPERATIONS[name].act(graph)
    return tuple(written)
