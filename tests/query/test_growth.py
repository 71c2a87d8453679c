"""What is cached of one version becomes that of another one, equal to what is made from scratch."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import omnigraph
from omnigraph.commit.publish import begin, publish
from omnigraph.graph import Graph
from omnigraph.lang.ir import Direction
from omnigraph.query import rank, text_search
from omnigraph.query import view as views
from omnigraph.query.adjacency import Adjacency, adjacency
from omnigraph.query.ends import ends_of
from omnigraph.query.rank import all_vectors
from omnigraph.query.text_search import TextIndex, text_index
from omnigraph.query.view import GraphView, TableCache, TableView
from omnigraph.storage.read import ID
from tests.query.scene import edge, node
from tests.support.graphs import append, plan
from tests.support.mutations import store_of

SCHEMA = """
node P { name: String @key  x: I64?  place: Vector(2)?  text: String? }
node Q { name: String @key }
edge R: P -> P { w: I32? }
edge S: P -> Q
"""
STEPS = 60 if "OMNIGRAPH_SOAK" in os.environ else 8
WORDS = ("graph", "graphs", "Graphing", "the", "tie", "tying", "Überblick", "日本語", "naïve", "naive", "x1", "rose")


class History:
    """Random commits on two branches, as a person would make them."""

    def __init__(self, graph: Graph, random: Random) -> None:
        self.graph, self.random, self.serial = graph, random, 0
        self.branch = "main"
        self.load()

    def step(self) -> str:
        chosen: Callable[[], Any] = self.random.choice(
            [self.load, self.load, self.edges, self.update, self.delete, self.delete_edges, self.fork, self.optimize]
        )
        chosen()
        return chosen.__name__

    def load(self) -> None:
        names = [f"{self.random.choice('abcxyz')}{self.serial + at}" for at in range(self.random.randint(1, 12))]
        self.serial += len(names)
        places = [None if self.random.random() < 0.2 else [self.random.random(), 2.0] for _ in names]
        records = [
            node("P", name=name, x=len(name), place=place, text=self.text())
            for name, place in zip(names, places, strict=True)
        ]
        records += [node("Q", name=name) for name in names[:3]]
        self.graph.load(records, mode="append", branch=self.branch)
        self.edges()

    def text(self) -> str | None:
        return self.random.choice((None, "", "the", " ".join(self.random.choices(WORDS, k=self.random.randint(1, 6)))))

    def edges(self) -> None:
        people, others = (self.names(kind) for kind in "PQ")
        pick = self.random.choice
        if people and others:
            made = [edge("R", pick(people), pick(people), w=at) for at in range(self.random.randint(1, 9))]
            made += [edge("S", pick(people), pick(others)) for _ in range(4)]
            self.graph.load(made, mode="append", branch=self.branch)

    def update(self) -> None:
        self._mutate('update P set { x: 7, text: "Graphs of a new Überblick" } where name = $n')

    def delete(self) -> None:
        self._mutate("delete P where name = $n")

    def delete_edges(self) -> None:
        self._mutate("delete R where from = $n")

    def fork(self) -> None:
        """Make a branch, or merge it, or go to the other one."""
        names = self.graph.branches()
        if "side" not in names:
            self.graph.create_branch("side")
        elif self.random.random() < 0.5:
            self.graph.merge("side", resolve="ours")
        self.branch = self.random.choice(["main", "side"])

    def optimize(self) -> None:
        self.graph.optimize(branch=self.branch)

    def names(self, kind: str) -> list[str]:
        rows = self.graph.query(f"query q() {{ match {{ $p: {kind} }} return {{ $p }} }}", branch=self.branch).rows
        return sorted(row["p"] for row in rows)

    def _mutate(self, statement: str) -> None:
        names = self.names("P")
        if names:
            source = f"query q($n: String) {{ {statement} }}"
            self.graph.mutate(source, {"n": self.random.choice(names)}, branch=self.branch)


def opened(graph: Graph, branch: str, cache: TableCache) -> GraphView:
    store = store_of(graph.uri)
    state = store.manifest.load(None if branch == "main" else branch)
    return GraphView(store.tables, state.snapshot, graph.catalog, cache)


def facts(graph: GraphView) -> dict[str, Any]:
    """Everything that a cache holds, as plain values."""
    found: dict[str, Any] = {}
    for name in ("P", "Q"):
        table = graph.node(name)
        found[f"{name}.ids"] = table.column(ID).to_pylist()
        found[f"{name}.order"] = table.ids.order.tolist()
    vectors = all_vectors(graph.node("P"), "place", 2)
    found["P.filled"] = (vectors.rows >= 0).tolist()
    found["P.place"] = vectors.chosen(vectors.rows[vectors.rows >= 0]).tolist()
    found["P.lengths"] = vectors.lengths[vectors.rows[vectors.rows >= 0]].tolist()
    found["P.text"] = terms(text_index(graph.node("P"), "text"))
    found["P.x"] = graph.node("P").column("x").to_pylist()
    found["R.w"] = graph.edge("R").column("w").to_pylist()
    for name in ("R", "S"):
        for direction in (Direction.OUT, Direction.IN, *([Direction.BOTH] if name == "R" else [])):
            found[f"{name}.{direction}"] = listed(adjacency(graph, name, direction))
        ends = ends_of(graph, name)
        found[f"{name}.ends"] = (ends.sources.tolist(), ends.targets.tolist(), ends.source_count, ends.target_count)
    return found


def terms(index: TextIndex) -> Any:
    """The statistics of all terms, and scores to the last bit."""
    known = sorted({one for part in index.parts for one in part.postings.terms.to_pylist()})
    held = [(one, np.flatnonzero(index.holding([[one]])).tolist(), index.scores([one]).tolist()) for one in known]
    return index.lengths(), [one for one in held if one[1]]


def listed(adjacent: Adjacency) -> Any:
    edges = [sorted(part.tolist()) for part in np.split(adjacent.edges, adjacent.starts[1:-1])]
    return adjacent.starts.tolist(), adjacent.targets.tolist(), edges, adjacent.targets_count, adjacent.dangling


@pytest.mark.parametrize("seed", range(6))
def test_what_has_grown_is_what_is_made_from_scratch(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "SMALL_TABLE", [0, 200_000][seed % 2])
    monkeypatch.setattr(rank, "_MOST_MATRICES", [8, 2][seed % 2])
    monkeypatch.setattr(text_search, "_MOST_PARTS", [8, 2][seed % 2])
    graph = omnigraph.init(tmp_path / "g", SCHEMA, upkeep="off" if seed % 3 else "auto")
    history = History(graph, Random(seed))  # noqa: S311
    cache = TableCache(2**28)
    steps = []
    for _ in range(STEPS):
        steps.append(history.step())
        for branch in {"main", history.branch}:
            grown = facts(opened(graph, branch, cache))

            made = facts(opened(graph, branch, TableCache(2**28)))

            assert {name for name in made if grown[name] != made[name]} == set(), steps


def test_an_edge_that_led_nowhere_leads_to_a_node_that_is_new(tmp_path: Path) -> None:
    graph = omnigraph.init(tmp_path / "g", SCHEMA, upkeep="off")
    graph.load([node("P", name=name) for name in "abc"], mode="append")
    store = store_of(graph.uri)
    txn = begin(store)
    # As another program may leave it: our own writers refuse it.
    rows = [{"id": "1", "src": "a", "dst": "ghost"}, {"id": "2", "src": "a", "dst": "b"}]
    publish(store, plan(txn, append(store, txn, "edge:R", rows)))
    cache = TableCache(2**28)
    before = facts(opened(graph, "main", cache))

    graph.load([node("P", name="other"), node("P", name="ghost")], mode="append")
    after = facts(opened(graph, "main", cache))

    assert before["R.out"][1] == [1]
    assert after["R.out"][1] == [1, 4]
    assert after == facts(opened(graph, "main", TableCache(2**28)))


def test_a_commit_reads_its_own_rows_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = omnigraph.init(tmp_path / "g", SCHEMA, upkeep="off")
    graph.load([node("P", name=f"p{at}") for at in range(300)], mode="append")
    graph.load([edge("R", f"p{at}", f"p{at * 7 % 300}") for at in range(300)], mode="append")
    cache = TableCache(2**28)
    monkeypatch.setattr(views, "SMALL_TABLE", 0)
    wanted = facts_read(opened(graph, "main", cache))
    graph.mutate('query q() { insert P { name: "new" }  insert R { from: "new"  to: "p1" } }')

    def refuse(self: TableView, *_: Any) -> Any:
        raise AssertionError(f"{self.table.key} is read as a whole")

    monkeypatch.setattr(TableView, "_read", refuse)
    after = facts_read(opened(graph, "main", cache))

    assert after == {"ids": wanted["ids"] + 1, "edges": wanted["edges"] + 1}


def facts_read(graph: GraphView) -> dict[str, int]:
    return {
        "ids": len(graph.node("P").column(ID)),
        "edges": len(adjacency(graph, "R", Direction.OUT).targets),
    }


def test_a_column_that_was_renamed_does_not_grow_out_of_another_one(tmp_path: Path) -> None:
    graph = omnigraph.init(tmp_path / "g", "node N { name: String @key  x: I64?  y: I64? }")
    graph.load([node("N", name="a", x=1, y=2)], mode="append")
    ask = "query q() { match { $n: N } return { $n.x } }"
    assert graph.query(ask).rows == [{"n.x": 1}]

    graph.apply_schema('node N { name: String @key  x: I64? @rename_from("y") }', allow_data_loss=True)

    assert graph.query(ask).rows == omnigraph.open(graph.uri).query(ask).rows
    assert pa.types.is_int64(graph.query(ask).to_arrow().schema.types[0])
