"""What reaches the driver of a load is bounded: results have the same size for n and for 10 n rows, good and bad."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

import omnigraph
from omnigraph.errors import LoadRejectedError
from omnigraph.graph import Graph
from omnigraph.ingest import executor
from omnigraph.ingest.executor import LocalExecutor, LocalParcels
from omnigraph.ingest.problems import FIRST
from tests.support.loads import by_pipeline, edge, left_over, lines, node

FEW, MANY = 1_500, 15_000
SLACK = 200  # bytes: numbers of rows have some more digits
SCHEMA = """
node Person { name: String @key  nick: String? @unique  age: I32?  @range(age, 0..150) }
edge Knows: Person -> Person @card(0..2)
"""
Records = Callable[[int], Iterable[dict[str, Any]]]


class _Spy(LocalExecutor):
    """Counts the bytes of all results, pickled as on their way to a driver."""

    received: ClassVar[list[int]] = []

    def run(self, *arguments: Any) -> Any:
        return self._counted(super().run(*arguments))

    def gather(self, *arguments: Any) -> Any:
        return self._counted(super().gather(*arguments))

    def scatter(self, *arguments: Any) -> LocalParcels[Any]:
        sent = super().scatter(*arguments)
        self._counted(sent.results)
        return sent

    def _counted(self, results: list[Any]) -> list[Any]:
        self.received.append(len(pickle.dumps(results)))
        return results


@pytest.fixture(autouse=True)
def received(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    _Spy.received = []
    monkeypatch.setattr("omnigraph.ingest.distributed.LocalExecutor", _Spy)
    monkeypatch.setattr(executor, "LocalExecutor", _Spy)
    with by_pipeline():
        yield _Spy.received


def people(count: int) -> Iterator[dict[str, Any]]:
    return (node("Person", name=f"p{at:06}", nick=f"n{at:06}") for at in range(count))


def graph_of(directory: Path, count: int, more: Records = lambda _: ()) -> Graph:
    graph = omnigraph.init(directory, SCHEMA)
    graph.load([*people(count), *more(count)], mode="append", engine="local")
    return graph


def measured(tmp_path: Path, count: int, mode: str, records: Records, before: Records = lambda _: ()) -> Any:
    """Load so many records into a graph of so many people; return the bytes of results, and the refusal, if any."""
    graph = graph_of(tmp_path / f"graph{count}", count, before)
    file = tmp_path / f"{count}.jsonl"
    file.write_text(lines(*records(count)))
    _Spy.received.clear()
    refused = None
    try:
        graph.load(file, mode=mode, engine="local")
    except LoadRejectedError as error:
        refused = error
    assert left_over(graph.uri) == []
    return sum(_Spy.received), refused, graph


def known(count: int) -> Iterator[dict[str, Any]]:
    return (edge("Knows", f"p{at:06}", f"p{at:06}", id=f"k{at:06}") for at in range(count))


GOOD: dict[str, tuple[str, Records, Records]] = {
    "rows that are new": ("append", known, lambda _: ()),
    "rows that replace committed ones": ("merge", lambda count: [*people(count), *known(count)], known),
    "rows that replace each other": ("merge", lambda count: [*known(count), *known(count)], lambda _: ()),
    "an overwrite": ("overwrite", lambda count: [*people(count), *known(count)], known),
}


@pytest.mark.parametrize("kind", GOOD)
def test_results_of_a_good_load_have_the_same_size_for_ten_times_the_rows(kind: str, tmp_path: Path) -> None:
    mode, records, before = GOOD[kind]
    few, refused, _ = measured(tmp_path, FEW, mode, records, before)
    many, again, graph = measured(tmp_path, MANY, mode, records, before)

    assert (refused, again) == (None, None)
    assert abs(many - few) <= SLACK
    found = graph.query("query q() { match { $a knows $b } return { count($a) as n } }").rows
    assert found == [{"n": MANY}]


BAD: dict[str, tuple[str, Records]] = {
    "range": ("append", lambda count: (node("Person", name=f"x{at:06}", age=200) for at in range(count))),
    "json": ("append", lambda count: ({"type": "Person", "data": {"name": 1}} for _ in range(count))),
    "key": ("append", lambda count: (node("Person", name=f"p{at:06}") for at in range(count))),
    "unique": ("append", lambda count: (node("Person", name=f"x{at:06}", nick=f"n{at:06}") for at in range(count))),
    "twice": ("append", lambda count: [node("Person", name=f"x{at // 2:06}") for at in range(2 * count)]),
    "endpoint": ("append", lambda count: (edge("Knows", f"p{at:06}", "nobody") for at in range(count))),
    "cardinality": ("append", lambda count: [edge("Knows", f"p{at // 3:06}", "p000001") for at in range(3 * count)]),
}


@pytest.mark.parametrize("kind", BAD)
def test_results_of_a_refused_load_have_the_same_size_for_ten_times_the_problems(kind: str, tmp_path: Path) -> None:
    mode, records = BAD[kind]
    few, refused, _ = measured(tmp_path, FEW, mode, records)
    many, again, _ = measured(tmp_path, MANY, mode, records)

    assert abs(many - few) <= SLACK
    for error, count in ((refused, FEW), (again, MANY)):
        assert error is not None
        assert (error.count, [one.count for one in error.counts]) == (count, [count])
        assert len(error.violations) == FIRST
        found = [one.line for one in error.violations]
        assert found == sorted(found), "the first of the input, in its order"
        assert len(str(error).splitlines()) < 30
        assert len(json.dumps(error.details())) < 20_000


def test_the_first_problems_are_those_of_the_first_records_whatever_finds_them(tmp_path: Path) -> None:
    graph = graph_of(tmp_path / "graph", 3)
    bad = [node("Person", name="p000000"), node("Person", name="x", age=200), edge("Knows", "nobody", "p000001")] * FEW
    with by_pipeline(2_000, shares=3), pytest.raises(LoadRejectedError) as caught:
        graph.load(bad, mode="append", engine="local")

    assert [one.line for one in caught.value.violations] == sorted(one.line or 0 for one in caught.value.violations)
    assert {one.line for one in caught.value.violations} >= set(range(1, 300))
    assert {(one.rule, one.type_name): one.count for one in caught.value.counts} == {
        ("range", "Person"): FEW,
        ("unique", "Person"): 2 * FEW - 2,
        ("key", "Person"): 1,
        ("endpoint", "Knows"): FEW,
        ("cardinality", "Knows"): 1,
    }
