"""A power cut at every durable write: the graph opens without help, and what was acknowledged is there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import omnigraph
from omnigraph.commit.publish import begin, publish
from omnigraph.commit.store import Store
from omnigraph.core.location import Location
from omnigraph.errors import GraphReplacedError, OmnigraphError, StorageError
from omnigraph.graph import Graph
from omnigraph.storage.durability import Medium
from tests.support.faults import assert_settled
from tests.support.graphs import person, plan
from tests.support.power import Cut, Recorder, distinct_states, write_files
from tests.support.together import inserting, publish_together

SCHEMA = "node Person { name: String @key  age: I32? }\nedge Knows: Person -> Person\n"
INSERT = "query q($name: String, $age: I32) { insert Person { name: $name  age: $age } }"
BIRTHDAY = "query q($name: String, $age: I32) { update Person set { age: $age } where name = $name }"
NAMES = "query q() { match { $p: Person } return { $p.name $p.age } order { $p.name } }"
SUBSETS = 50 if os.environ.get("OMNIGRAPH_SOAK") else 1

Rows = list[dict[str, object]]
Seen = tuple[Rows, list[str]]


def people(graph: Graph, branch: str = "main") -> Rows:
    return graph.query(NAMES, branch=branch).rows


def seen(graph: Graph) -> Seen:
    return people(graph), sorted(graph.branches())


def insert(graph: Graph, name: str, age: int = 1, branch: str = "main") -> None:
    graph.mutate(INSERT, {"name": name, "age": age}, branch=branch)


def _mutate(graph: Graph) -> None:
    insert(graph, "new")


def _update(graph: Graph) -> None:
    graph.mutate(BIRTHDAY, {"name": "ann", "age": 99})


def _load(graph: Graph) -> None:
    records = [{"type": "Person", "data": {"name": f"p{n}"}} for n in range(5)]
    graph.load([*records, {"edge": "Knows", "from": "p1", "to": "ann"}], mode="merge", engine="local")


def _merge(graph: Graph) -> None:
    graph.merge("review", into="main")


def _on_branch(graph: Graph) -> None:
    insert(graph, "first on the branch", branch="fresh")


def _schema(graph: Graph) -> None:
    graph.apply_schema(SCHEMA.replace("age: I32?", "age: I32?  city: String?"))


def _optimize(graph: Graph) -> None:
    graph.optimize()


def _cleanup(graph: Graph) -> None:
    graph.cleanup(keep=1, confirm=True)


def _create(graph: Graph) -> None:
    graph.create_branch("another")


def _delete(graph: Graph) -> None:
    graph.delete_branch("review")


def _group(graph: Graph) -> None:
    store = Store.at(Location.parse(graph.uri), durability="full")
    done = publish_together(store, [inserting(store, {"node:Person": [person(name)]}) for name in ("eve", "fay")])
    assert len({one.result().commit.manifest_version for one in done}) == 1


def _folds(graph: Graph) -> None:
    before = graph.snapshot().entries["node:Person"].table.version
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("omnigraph.graph._FOLD_WITHIN", before + 1)
        patch.setattr("omnigraph.maintenance.fold.FEW", 2)
        insert(graph, "eve")
    assert graph.snapshot().entries["node:Person"].table.version == before + 2


OPERATIONS: dict[str, Callable[[Graph], None]] = {
    "mutation": _mutate,
    "mutation that folds": _folds,
    "group": _group,
    "update": _update,
    "load": _load,
    "merge": _merge,
    "write on a new branch": _on_branch,
    "schema change": _schema,
    "optimize": _optimize,
    "cleanup": _cleanup,
    "branch create": _create,
    "branch delete": _delete,
}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("power") / "graph"
    graph = omnigraph.init(root, SCHEMA)
    for name in ("ann", "bob", "cyd"):
        insert(graph, name, 30)
    graph.create_branch("review")
    insert(graph, "dee", branch="review")
    graph.create_branch("fresh")
    return root


@pytest.mark.slow(5)
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_power_cut_anywhere_loses_nothing_that_was_acknowledged(template: Path, tmp_path: Path, name: str) -> None:
    root = shutil.copytree(template, tmp_path / "graph")
    if name == "schema change":  # needs a graph with main alone
        for branch in ("review", "fresh"):
            omnigraph.open(root).delete_branch(branch)
    graph = omnigraph.open(root, durability="full")
    before = seen(graph)
    cuts = Recorder(root).run(lambda: OPERATIONS[name](graph))
    after = seen(graph)
    assert any(cut.at == "sync" for cut in cuts), "an operation is synced before it is acknowledged"
    states = _survive(root, cuts, before, after)
    print(f"{name}: {len(cuts)} moments, {states} disks")  # noqa: T201 - the number of states is part of the answer


def _survive(root: Path, cuts: list[Cut], before: Seen, after: Seen) -> int:
    states = list(distinct_states(cuts, SUBSETS))
    for acknowledged, what, disk in states:
        write_files(root, disk)
        try:
            _opens(root, [after] if acknowledged else [before, after])
        except Exception as error:
            error.add_note(what)
            raise
    return len(states)


def _opens(root: Path, allowed: list[Seen]) -> None:
    assert seen(omnigraph.open(root, read_only=True)) in allowed
    graph = omnigraph.open(root, durability="full")
    found, branches = seen(graph)
    assert (found, branches) in allowed
    insert(graph, "afterwards")
    assert len(people(graph)) == len(found) + 1
    for branch in branches:
        people(graph, branch)
    assert_settled(Store.at(Location.parse(root)))
    assert graph.doctor().is_healthy


# The check above can fail ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mutation", "load", "merge", "branch create", "branch delete"])
def test_without_durability_a_cut_loses_what_was_acknowledged(template: Path, tmp_path: Path, name: str) -> None:
    root = shutil.copytree(template, tmp_path / "graph")
    graph = omnigraph.open(root, durability="off")
    before = seen(graph)
    cuts = Recorder(root).run(lambda: OPERATIONS[name](graph))
    after = seen(graph)
    assert before != after
    assert not any(cut.at == "sync" for cut in cuts)
    with pytest.raises((AssertionError, StorageError)):
        _survive(root, cuts[-1:], before, after)


@pytest.mark.slow
@pytest.mark.parametrize("name, barriers", [("mutation", 2), ("branch create", 1), ("branch delete", 1)])
def test_no_barrier_can_be_left_out(
    template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, barriers: int
) -> None:
    sync, calls = Medium.sync, list[int]()
    for left_out in range(barriers):

        def all_but_one(medium: Medium, *paths: str, left_out: int = left_out) -> None:
            calls.append(len(calls))
            if calls[-1] != left_out:
                sync(medium, *paths)

        root = shutil.copytree(template, tmp_path / f"graph{left_out}")
        graph = omnigraph.open(root, durability="full")
        before = seen(graph)
        calls.clear()
        with monkeypatch.context() as patch:
            patch.setattr(Medium, "sync", all_but_one)
            cuts = Recorder(root).run(lambda: OPERATIONS[name](graph))  # noqa: B023 - called at once
        assert len(calls) == barriers
        with pytest.raises((AssertionError, OmnigraphError)):
            _survive(root, cuts, before, seen(graph))


def test_a_torn_newest_version_is_set_aside_and_named_in_the_audit(template: Path, tmp_path: Path) -> None:
    root = shutil.copytree(template, tmp_path / "graph")
    newest = min((root / "__manifest" / "_versions").glob("*.manifest"))
    newest.write_bytes(b"")
    reader = omnigraph.open(root, read_only=True)
    assert [row["p.name"] for row in people(reader)] == ["ann", "bob"]
    assert newest.exists(), "a reader changes nothing"
    graph = omnigraph.open(root)
    assert newest.with_name(f"{newest.name}.torn").read_bytes() == b"", "it is set aside, not deleted"
    assert "TornSetAside" in [row.kind.value for row in Store.at(Location.parse(root)).audit.rows()]
    insert(graph, "afterwards")
    assert [row["p.name"] for row in people(graph)] == ["afterwards", "ann", "bob"]


# Another graph at the same address ------------------------------------------------------------------


def test_a_handle_goes_on_with_a_backup_that_was_copied_back(template: Path, tmp_path: Path) -> None:
    """The defect: its cached tables were taken for those of the copy, and three acknowledged inserts were lost."""
    root = shutil.copytree(template, tmp_path / "graph")
    graph = omnigraph.open(root)
    insert(graph, "early")
    backup = shutil.copytree(root, tmp_path / "backup")
    insert(graph, "lost 1")
    insert(graph, "lost 2")
    shutil.rmtree(root)
    shutil.copytree(backup, root)
    for name in ("kept 1", "kept 2", "kept 3"):
        insert(graph, name)
    expected = ["ann", "bob", "cyd", "early", "kept 1", "kept 2", "kept 3"]
    assert [row["p.name"] for row in people(graph)] == expected
    assert [row["p.name"] for row in people(omnigraph.open(root))] == expected
    assert omnigraph.open(root).doctor().is_healthy


def test_a_reader_notices_another_history_that_reached_the_same_version(template: Path, tmp_path: Path) -> None:
    root = shutil.copytree(template, tmp_path / "graph")
    graph, backup = omnigraph.open(root), shutil.copytree(root, tmp_path / "backup")
    insert(graph, "ours")
    assert "ours" in str(people(graph))
    shutil.rmtree(root)
    shutil.copytree(backup, root)
    insert(omnigraph.open(root), "theirs")
    assert "theirs" in str(people(graph))
    assert "ours" not in str(people(graph))


def test_a_write_prepared_on_another_graph_is_refused(template: Path, tmp_path: Path) -> None:
    root = shutil.copytree(template, tmp_path / "graph")
    graph = omnigraph.open(root)
    stale = Store.at(Location.parse(root))
    txn = begin(stale)
    shutil.rmtree(root)
    other = omnigraph.init(root, SCHEMA)
    for name in ("x", "y", "z", "u", "v"):
        insert(other, name)
    with pytest.raises(GraphReplacedError):
        publish(stale, plan(txn))
    assert len(people(graph)) == 5
    assert len(other.commits()) == 6
