"""Random queries of random graphs against the oracle, however tables are read and whatever indices they have."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest

import omnigraph
from omnigraph.graph import Graph
from omnigraph.query import expansion, view
from tests.query import generator, oracle
from tests.query.conftest import read_late
from tests.support.mutations import store_of

SEEDS = range(1000, 1020) if "OMNIGRAPH_SOAK" in os.environ else range(2)
QUERIES = 260


@dataclass(frozen=True)
class Case:
    """A query as text, and what it must answer."""

    text: str
    parameters: dict[str, Any]
    columns: list[str]
    answer: oracle.Answer

    def check(self, graph: Graph) -> None:
        found = graph.query(self.text, self.parameters)
        try:
            assert found.columns == self.columns
            self.answer.check([list(row.values()) for row in found.rows])
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.text}\n{self.parameters}") from None


def cases(random: Random, data: oracle.Data) -> Iterator[Case]:
    while True:
        maker = generator.Maker(random)
        query = maker.query()
        try:
            answer = oracle.answer(data, query)
        except oracle.TooManyError:
            continue
        columns = [item.column for item in query.items]
        yield Case(*generator.spelled(query, maker.parameters), columns, answer)


@pytest.mark.parametrize("seed", SEEDS)
def test_random_queries_answer_what_the_oracle_does(
    seed: int, copy_of: Callable[[str], Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(seed)  # noqa: S311
    graph = copy_of("random")
    is_indexed_in_part = seed % 2 == 1
    generator.build(random, graph, index_early=is_indexed_in_part)
    store = store_of(graph.uri)
    data = generator.rows_of(store)
    chosen = [case for case, _ in zip(cases(random, data), range(QUERIES), strict=False)]
    assert sum(bool(case.answer.rows) for case in chosen) > QUERIES / 20, "most queries find nothing"

    for case in chosen:
        case.check(graph)
    with monkeypatch.context() as patched:
        patched.setattr(view, "_MOST_TEXT", 0)  # texts as they are beyond two gigabytes
        large = omnigraph.open(graph.uri, read_only=True)
        for case in chosen[3::8]:
            case.check(large)
    read_late(monkeypatch)
    assert view.SMALL_TABLE == 0
    monkeypatch.setenv(expansion.VARIABLE, expansion.Mode.INDEX)
    late = omnigraph.open(graph.uri, read_only=True)
    for case in chosen[::4]:
        case.check(late)
    if not is_indexed_in_part:
        generator.index(store)
    indexed = omnigraph.open(graph.uri, read_only=True)
    for case in chosen[2::4]:
        case.check(indexed)
    monkeypatch.setenv(expansion.VARIABLE, expansion.Mode.AUTO)
    monkeypatch.setattr(expansion, "SMALL_EDGES", 0)
    for case in chosen[1::4]:  # some by lookups, some by adjacency, as the costs say
        case.check(indexed)
