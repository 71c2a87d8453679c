"""`doctor --deep` is the work of tasks: it finds the same however that is divided, and little returns to the driver."""

from __future__ import annotations

from pathlib import Path

import lance
import pytest

import omnigraph
from omnigraph import Graph
from omnigraph.maintenance import deep
from tests.support.executors import Weighed

SCHEMA = "node Person { name: String @key } edge Knows: Person -> Person"


@pytest.fixture
def damaged(tmp_path: Path) -> Graph:
    """A graph in which another program has repeated three nodes and removed one that has edges, on a branch too."""
    graph = omnigraph.init(tmp_path / "graph", SCHEMA)
    names = [f"p{number}" for number in range(9)]
    ends = [("p0", "p1"), ("p1", "p0"), ("p1", "p8"), ("p8", "p8"), ("p2", "p3")]
    people = [{"type": "Person", "data": {"name": name}} for name in names]
    graph.load([*people, *({"edge": "Knows", "from": a, "to": b} for a, b in ends)], mode="append")
    graph.ensure_indices()
    graph.create_branch("side")
    graph.mutate('query q() { insert Person { name: "new" } }', branch="side")
    uri = str(tmp_path / "graph" / graph.snapshot().entries["node:Person"].table.path)
    table = lance.dataset(uri)
    table.delete("id = 'p8'")
    lance.write_dataset(table.to_table().slice(0, 3), uri, mode="append")
    graph.repair(confirm=True, force=True)
    return graph


def messages(graph: Graph, engine: str) -> list[str]:
    found = graph.doctor(deep=True, engine=engine).findings
    return sorted(one.message for one in found if one.severity == "problem")


@pytest.mark.parametrize("engine", ["local", "spark"])
@pytest.mark.parametrize("rows", [1, 1_000])
def test_it_finds_the_same_however_the_work_is_divided(
    damaged: Graph, rows: int, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deep, "ROWS_PER_SHARE", rows)
    version = damaged.snapshot().entries["node:Person"].table.version
    edges = damaged.snapshot().entries["edge:Knows"].table.version
    assert messages(damaged, engine) == [
        f"edge:Knows, version {edges}: 1 edges have a src that is no Person",
        f"edge:Knows, version {edges}: 2 edges have a dst that is no Person",
        f"node:Person, version {version}: 3 ids occur more than once",
    ]


def test_what_returns_from_tasks_does_not_grow_with_the_rows(tmp_path: Path) -> None:
    def returned(count: int) -> int:
        graph = omnigraph.init(tmp_path / str(count), SCHEMA)
        graph.load([{"type": "Person", "data": {"name": f"p{number}"}} for number in range(count)], mode="append")
        weighed = Weighed()
        assert deep.findings(graph._store, lambda _: weighed) == []
        return weighed.bytes

    assert returned(5_000) < 1.2 * returned(50)
