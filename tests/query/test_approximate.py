"""Nearest by the index of the storage: what an approximate search may miss, and what it may not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import omnigraph
from omnigraph.graph import Graph
from omnigraph.query import approximate
from omnigraph.storage import layout
from omnigraph.storage.read import TableReader
from tests.query.scene import node

COUNT, SIZE, LIMIT, FLOOR = 1_500, 16, 10, 0.95
SCHEMA = f"""
node Doc {{ name: String @key  group: I64 @index  text: String?  place: Vector({SIZE})? @index }}
edge Cites: Doc -> Doc
"""


def vectors(kind: str) -> np.ndarray[Any, Any]:
    random = np.random.default_rng(5)
    if kind == "uniform":
        return random.random((COUNT, SIZE), np.float32)
    centres = 4 * random.standard_normal((40, SIZE))
    return (centres[random.integers(0, 40, COUNT)] + 0.1 * random.standard_normal((COUNT, SIZE))).astype(np.float32)


@pytest.fixture(scope="module", params=["uniform-24", "uniform-120", "uniform-400", "clusters-24", "clusters-120"])
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Graph]:
    kind, rows_per_partition = request.param.split("-")
    graph = omnigraph.init(tmp_path_factory.mktemp("near") / kind, SCHEMA, upkeep="off")
    rows = [
        node("Doc", name=f"d{at}", group=at % 100, text="graph" if at % 3 else "tree", place=place.tolist())
        for at, place in enumerate(vectors(kind))
    ]
    graph.load([*rows, node("Doc", name="none", group=0)], mode="append")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(layout, "_ROWS_PER_PARTITION", int(rows_per_partition))
        graph.optimize()
        assert len(graph.query(ask(approximately=True), {"v": [0.0] * SIZE}).rows) == LIMIT
        yield graph


def ask(*, approximately: bool, match: str = "$d: Doc", limit: int = LIMIT) -> str:
    call = f"nearest($d.place, $v{', approximate: true' if approximately else ''})"
    head = f"query q($v: Vector({SIZE})) {{ match {{ {match} }}"
    return f"{head} return {{ $d.name, {call} as away }} order {{ {call} }} limit {limit} }}"


def questions(graph: Graph) -> list[list[float]]:
    near = vectors(graph.uri.rsplit("/", 1)[-1])[::101]
    return [[float(number) for number in one + np.float32(0.01)] for one in near]


def recall(graph: Graph, match: str) -> float:
    """The share of the nearest that is found; distances are always right."""
    shares = []
    for place in questions(graph):
        exact = graph.query(ask(approximately=False, match=match), {"v": place}).rows
        found = graph.query(ask(approximately=True, match=match), {"v": place}).rows
        away = {row["d.name"]: row["away"] for row in exact}
        assert len(found) == len(exact)
        assert all(row["away"] == away.get(row["d.name"], row["away"]) for row in found)
        assert found == sorted(found, key=lambda row: (row["away"], row["d.name"]))
        shares.append(len(away.keys() & {row["d.name"] for row in found}) / len(exact))
    return float(np.mean(shares))


@pytest.mark.parametrize(
    "match", ["$d: Doc", "$d: Doc { group: 7 }", "$d: Doc  $d.group < 50", "$d: Doc  $d.group < 9"]
)
def test_nearly_all_of_the_nearest_are_found(library: Graph, match: str) -> None:
    assert recall(library, match) >= FLOOR


def test_few_partitions_alone_would_miss_most_of_what_is_spread_evenly(
    library: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(approximate, "_MORE", 1)  # two looks at the same partitions

    if library.uri.endswith("uniform") and layout.partitions(COUNT) > approximate._SHARE:
        assert recall(library, "$d: Doc") < FLOOR


def test_rows_that_no_index_covers_are_found_and_those_that_are_gone_are_not(library: Graph) -> None:
    place = questions(library)[1]
    [nearest, *_] = library.query(ask(approximately=True), {"v": place}).rows
    library.create_branch("tail")
    library.load([node("Doc", name="new", group=1, place=place)], mode="append", branch="tail")
    library.mutate("query q($n: String) { delete Doc where name = $n }", {"n": nearest["d.name"]}, branch="tail")

    found = library.query(ask(approximately=True), {"v": place}, branch="tail").rows

    assert found[0] == {"d.name": "new", "away": 0.0}
    assert nearest["d.name"] not in {row["d.name"] for row in found}
    library.delete_branch("tail")


def test_answers_do_not_depend_on_what_is_in_memory(library: Graph) -> None:
    place = questions(library)[3]
    fused = ask(approximately=True).replace("order { nearest", "order { nearest")
    cold = omnigraph.open(library.uri, read_only=True).query(fused, {"v": place}).rows
    library.query(ask(approximately=False), {"v": place})

    assert [library.query(fused, {"v": place}).rows for _ in range(3)] == [cold] * 3


def test_a_fused_ranking_takes_an_approximate_arm(library: Graph) -> None:
    arm = "nearest($d.place, $v, approximate: true)"
    source = f"""query q($v: Vector({SIZE})) {{
        match {{ $d: Doc }} return {{ $d.name }} order {{ rrf({arm}, bm25($d.text, "tree")) }} limit 5 }}"""
    exact = source.replace(", approximate: true", "")
    for place in questions(library)[:3]:
        assert library.query(source, {"v": place}).rows == library.query(exact, {"v": place}).rows


def test_a_selective_match_is_compared_exactly(library: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise AssertionError("the index is asked")

    monkeypatch.setattr(TableReader, "nearest", refuse)
    place = questions(library)[0]

    assert library.query(ask(approximately=True, match="$d: Doc { group: 7 }"), {"v": place}).rows
    with pytest.raises(AssertionError, match="asked"):
        library.query(ask(approximately=True), {"v": place})


def test_explain_says_that_a_ranking_is_approximate(library: Graph) -> None:
    steps = library.explain(ask(approximately=True), {"v": questions(library)[0]}).steps

    assert [step.text for step in steps if step.kind == "Rank"] == ["nearest($d.place, approximate), the best 10"]
