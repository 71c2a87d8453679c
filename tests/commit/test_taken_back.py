"""A write that fails takes back the files it staged, whatever stops it, as long as no head has moved."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

import omnigraph
from omnigraph.errors import StorageError
from omnigraph.graph import Graph
from omnigraph.history.old_merges import MARK
from omnigraph.storage import observe
from tests.commit.test_power_cuts import BIRTHDAY, SCHEMA, insert, people
from tests.support.faults import assert_settled
from tests.support.loads import by_pipeline, store_of
from tests.support.mutations import at_write

RECORDS = [
    *({"type": "Person", "data": {"name": name}} for name in ("ann", "eve", "fay")),
    {"edge": "Knows", "from": "eve", "to": "ann", "data": {"id": "k1"}},
    {"edge": "Knows", "from": "fay", "to": "ann", "data": {"id": "k1"}},
]
MOVES = "commit table"
RENAMED = SCHEMA.replace("node Person {", "node Human {").replace("Person -> Person", "Human -> Human")


def _mutate(graph: Graph) -> None:
    graph.mutate(
        'query q() { insert Person { name: "new" } update Person set { age: 3 } where name = "ann"\n'
        'insert Knows { from: "new", to: "bob" } }'
    )


def _insert(graph: Graph) -> None:
    graph.mutate('query q() { insert Person { name: "new" } insert Knows { from: "new", to: "bob" } }')


def _delete(graph: Graph) -> None:
    graph.mutate('query q() { delete Person where name = "ann" }')


def _on_branch(graph: Graph) -> None:
    insert(graph, "first on the branch", branch="fresh")


def _load(graph: Graph) -> None:
    graph.load(RECORDS, mode="merge", engine="local")


def _load_in_tasks(graph: Graph) -> None:
    with by_pipeline(100, shares=3):
        graph.load(RECORDS, mode="merge", engine="local")


def _load_on_branch(graph: Graph) -> None:
    with by_pipeline(100, shares=3):
        graph.load(RECORDS, mode="merge", branch="loaded", base="fresh", engine="local")


def _merge(graph: Graph) -> None:
    graph.merge("review", into="main")


def _merge_into_branch(graph: Graph) -> None:
    graph.merge("review", into="fresh")


def _schema(graph: Graph) -> None:
    graph.apply_schema(SCHEMA.replace("age: I32?", "age: I32?  city: String?"))


def _new_types(graph: Graph) -> None:
    """Add a column and two types. One has the name of a renamed type, so that its table needs another directory."""
    added = "node Person { name: String @key }\nnode Company { name: String @key }\n"
    graph.apply_schema(RENAMED.replace("age: I32?", "age: I32?  city: String?") + added)


def _optimize(graph: Graph) -> None:
    graph.optimize()


OPERATIONS: dict[str, Callable[[Graph], None]] = {
    "mutation": _mutate,
    "deletion": _delete,
    "first write to a branch": _on_branch,
    "load": _load,
    "load in tasks": _load_in_tasks,
    "load that makes a branch": _load_on_branch,
    "merge": _merge,
    "merge into a branch": _merge_into_branch,
    "schema change": _schema,
    "schema change with new types": _new_types,
    "optimize": _optimize,
}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("taken") / "graph"
    graph = omnigraph.init(root, SCHEMA)
    for name in ("ann", "bob", "cyd"):
        insert(graph, name, 30)
    graph.create_branch("review")
    insert(graph, "dee", branch="review")
    graph.mutate(BIRTHDAY, {"name": "bob", "age": 31}, branch="review")
    graph.create_branch("fresh")
    return root


def files(root: Path) -> set[str]:
    """All files but locks, which stay; and the branch references, which a load may have made and deleted."""
    found = (path.relative_to(root) for path in root.rglob("*") if path.is_file())
    return {str(path) for path in found if path.parts[0] != "__gates"}


def _fail() -> NoReturn:
    raise StorageError("the storage does not answer", path="", operation="test")


def _interrupt() -> NoReturn:
    raise KeyboardInterrupt


@contextmanager
def made(template: Path, root: Path, name: str) -> Iterator[Graph]:
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(template, root)
    if name.startswith("schema change"):  # needs a graph with main alone
        for branch in ("review", "fresh"):
            omnigraph.open(root).delete_branch(branch)
    if name == "schema change with new types":
        omnigraph.open(root).apply_schema(RENAMED.replace("node Human {", 'node Human @rename_from("Person") {'))
    with omnigraph.open(root, durability="off") as graph:
        yield graph


CASES = [(name, _fail, StorageError) for name in OPERATIONS] + [
    (name, _interrupt, KeyboardInterrupt) for name in ("mutation", "first write to a branch", "load in tasks")
]


@pytest.mark.parametrize("name, stop, raised", CASES)
def test_a_write_that_stops_before_a_head_moves_leaves_no_file(
    template: Path, tmp_path: Path, name: str, stop: Callable[[], NoReturn], raised: type[BaseException]
) -> None:
    root = tmp_path / "graph"
    with made(template, root, name) as graph, at_write(0, stop) as writes:
        OPERATIONS[name](graph)
    # An interrupt at the first commit leaves a record: whether that commit has landed is for recovery to say.
    last = writes.index(MOVES) + (stop is _fail)
    assert last > 1
    for ordinal in range(1, last + 1):
        with made(template, root, name) as graph:
            before = files(root)
            with pytest.raises(raised), at_write(ordinal, stop):
                OPERATIONS[name](graph)
            left = files(root) - before
            # Deleting the branch that a load made marks that older merges are recorded.
            assert {file for file in left if not file.startswith(("__recovery/", MARK))} == set(), writes[ordinal - 1]
            assert before <= files(root), "nothing else is deleted"


@pytest.mark.parametrize("name", ["mutation", "first write to a branch", "load in tasks", "optimize"])
def test_a_write_that_stops_after_a_head_moved_keeps_what_recovery_needs(
    template: Path, tmp_path: Path, name: str
) -> None:
    root = tmp_path / "graph"
    with made(template, root, name) as graph, at_write(0, _interrupt) as writes:
        OPERATIONS[name](graph)
    for ordinal in range(writes.index(MOVES) + 1, writes.index("publish") + 3):
        with made(template, root, name) as graph, pytest.raises(KeyboardInterrupt), at_write(ordinal, _interrupt):
            OPERATIONS[name](graph)
        with omnigraph.open(root) as graph:
            assert graph.doctor(deep=True).is_healthy, writes[ordinal - 1]
            assert_settled(store_of(str(root)))
            assert len(people(graph)) >= 2


def test_a_type_can_be_added_in_another_form_after_an_attempt_that_failed(template: Path, tmp_path: Path) -> None:
    """The table of the first attempt is gone, so nothing of it may be remembered."""
    with made(template, tmp_path / "graph", "schema change") as graph:
        for attempt in (2, 3):  # at the second table, and at the record
            with pytest.raises(StorageError), at_write(attempt, _fail):
                graph.apply_schema(
                    f"{SCHEMA}node Company {{ name: String @key  old{attempt}: I32? }}\nnode City {{ n: String @key }}"
                )
        graph.apply_schema(f"{SCHEMA}node Company {{ name: String @key  size: I32? }}")
        graph.mutate('query q() { insert Company { name: "acme", size: 3 } }')
        assert graph.query("query q() { match { $c: Company } return { $c.name $c.size } }").rows == [
            {"c.name": "acme", "c.size": 3}
        ]
        assert graph.doctor(deep=True).is_healthy


def test_a_write_that_lost_to_another_takes_back_its_first_attempt(template: Path, tmp_path: Path) -> None:
    root = tmp_path / "graph"
    with made(template, root, "mutation") as graph, made(template, tmp_path / "alone", "mutation") as alone:
        for one in (graph, alone):
            insert(one, "rival")
        rival, others = omnigraph.open(root), [_mutate]

        def hook(operation: str, _: str) -> None:
            if operation.startswith("stage ") and others:
                others.clear()
                insert(rival, "rival2")

        previous = observe.set_write_hook(hook)
        try:
            _insert(graph)
        finally:
            observe.set_write_hook(previous)
        insert(alone, "rival2")
        _insert(alone)
        assert not others, "a rival came first"
        assert len(people(graph)) == len(people(alone))
        assert _kinds(root) == _kinds(tmp_path / "alone"), "no more files than without a rival"


def _kinds(root: Path) -> dict[str, int]:
    found: dict[str, int] = {}
    for file in files(root):
        if "data/" in file or "_deletions/" in file:
            found[file.rpartition("/")[0]] = found.get(file.rpartition("/")[0], 0) + 1
    return {name: count for name, count in found.items() if not name.startswith("__manifest")}
