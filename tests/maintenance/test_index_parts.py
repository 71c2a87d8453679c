"""An index on many rows is built in parts, each a segment: on texts and vectors too, and with the same answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import numpy as np
import pytest

import omnigraph
from omnigraph import Graph
from omnigraph.maintenance import tasks
from tests.maintenance.scene import made_of

DOC = "node:Doc"
COUNT, WIDTH = 60, 4
VECTORS = np.random.default_rng(7).normal(size=(COUNT, WIDTH)).astype(np.float32)
NEAR = VECTORS[25] + np.float32(0.01)


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    """Twelve fragments of five documents each; the first two and the last have no vectors."""
    made = omnigraph.init(
        tmp_path / "graph",
        f"node Doc {{ name: String @key  text: String @index  at: Vector({WIDTH})? @index }}",
        upkeep="off",
    )
    for first in range(0, COUNT, 5):
        made.load([_doc(number) for number in range(first, first + 5)], mode="append")
    return made


def _doc(number: int) -> dict[str, Any]:
    words = " ".join(f"w{number % divisor}" for divisor in (2, 3, 5, 7))
    vector = VECTORS[number].tolist() if 10 <= number < COUNT - 5 else None
    return {"type": "Doc", "data": {"name": f"d{number:02}", "text": words, "at": vector}}


def answers(graph: Graph) -> tuple[list[tuple[str, float]], list[str]]:
    """What the indices themselves answer, by Lance."""
    table = graph.snapshot().entries[DOC].table
    dataset = lance.dataset(f"{graph.uri}/{table.path}", version=table.version)
    found = dataset.scanner(columns=["id", "_score"], full_text_query="w6 w4").to_table()
    texts = sorted((row["id"], round(row["_score"], 4)) for row in found.to_pylist())
    near = dataset.scanner(columns=["id", "_distance"], nearest={"column": "at", "q": NEAR, "k": 8}).to_table()
    return texts, near["id"].to_pylist()


@pytest.mark.parametrize("engine", ["local", "spark"])
def test_texts_and_vectors_are_indexed_in_parts(graph: Graph, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "_ROWS_PER_SEGMENT", 10)
    graph.ensure_indices(engine=engine)
    layout = made_of(graph, DOC)
    assert {name: len(segments) for name, segments in layout.indices.items()} == {
        "id_btree": 6,
        "name_btree": 6,
        "text_btree": 6,
        "text_inverted": 6,
        "at_ivf_flat": 5,
    }
    assert all(layout.covered(name) == layout.numbers for name in layout.indices)
    assert graph.ensure_indices().commit is None
    found = answers(graph)
    monkeypatch.undo()
    assert found == in_one_segment(graph)
    assert found[1][0] == "d25"


def in_one_segment(graph: Graph) -> tuple[list[tuple[str, float]], list[str]]:
    again = omnigraph.init(f"{graph.uri}-whole", graph.schema)
    again.load([_doc(number) for number in range(COUNT)], mode="append")
    again.ensure_indices()
    assert all(len(segments) == 1 for segments in made_of(again, DOC).indices.values())
    return answers(again)
