"""The shares that the keys of a load are divided into: none is much larger than others, and all bad edges are found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import omnigraph
from omnigraph import Graph
from omnigraph.api.options import Engine, LoadMode
from omnigraph.core.executor import Parcel, ParcelRoute, R, Scattered, T
from omnigraph.errors import LoadRejectedError, ProblemCount
from omnigraph.formats.sources import discover
from omnigraph.ingest import distributed
from omnigraph.ingest.executor import LocalExecutor, LocalParcels
from omnigraph.ingest.load import LoadSpec, load
from tests.support.loads import by_pipeline

SCHEMA = "node Person { name: String @key }\nedge Knows: Person -> Person"
PEOPLE, EDGES = 2_000, 20_000


class Weighing(LocalExecutor):
    """Notes how many bytes each task that compares keys receives."""

    def __init__(self) -> None:
        super().__init__()
        self.weights: Counter[int] = Counter()

    def gather(
        self,
        phase: str,
        step: Callable[[T, list[Parcel]], R],
        tasks: Sequence[T],
        sent: Sequence[Scattered[Any]],
        routes: Mapping[int, ParcelRoute],
    ) -> list[R]:
        for some in sent:
            assert isinstance(some, LocalParcels)
            for parcel, fetch in some.addressed():
                route = routes.get(parcel.section)
                for receiver in route.receivers(parcel.share, parcel.of) if route else ():
                    self.weights[receiver] += len(fetch().data)
        return super().gather(phase, step, tasks, sent, routes)


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    return omnigraph.init(tmp_path / "graph", SCHEMA)


def _hot(folder: Path, target: str) -> Path:
    """Write people, and edges that all lead to one of them, in several row groups."""
    folder.mkdir()
    names = [f"p{at}" for at in range(PEOPLE)]
    pq.write_table(pa.table({"name": names}), folder / "Person.parquet")
    ends = {"from": [names[at % PEOPLE] for at in range(EDGES)], "to": [target] * EDGES}
    pq.write_table(pa.table(ends), folder / "Knows.parquet", row_group_size=EDGES // 4)
    return folder


def test_no_share_is_twice_as_large_as_the_mean_if_all_edges_lead_to_one_node(
    graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distributed, "_KEYS_PER_TASK", 0)
    weighing = Weighing()
    with by_pipeline(split=1000):
        splits = discover([_hot(tmp_path / "data", "p7")], graph.catalog)
        request = LoadSpec(splits, LoadMode.APPEND, engine=Engine.SPARK, spark=lambda _: weighing)
        done = load(graph._store, request)

    weights = weighing.weights.values()
    assert done.edges == {"Knows": EDGES}
    assert len(weights) == 4
    assert max(weights) <= 2 * sum(weights) / len(weights)
    # A task sends each node that it names once: without its place, for 16 bytes.
    assert sum(weights) <= 24 * PEOPLE + 4 * 16 * (PEOPLE + 1)


def test_all_edges_to_a_node_that_there_is_not_are_found(graph: Graph, tmp_path: Path) -> None:
    with by_pipeline(split=1000), pytest.raises(LoadRejectedError) as caught:
        graph.load(_hot(tmp_path / "data", "nobody"), mode="append", engine="local", rejects=tmp_path / "rejects.jsonl")

    assert list(caught.value.counts) == [ProblemCount("endpoint", "Knows", EDGES)]
    assert [one.line for one in caught.value.violations] == list(range(1, 1001))
    assert len((tmp_path / "rejects.jsonl").read_bytes().splitlines()) == EDGES
