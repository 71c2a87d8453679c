"""The order of clauses: every one of them gives the answer of the oracle, in every state of graph and cache."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import permutations
from random import Random
from typing import Any

import pytest

import omnigraph
from omnigraph.graph import Graph
from omnigraph.query import expansion, meet
from tests.query import generator, oracle
from tests.query.conftest import read_late
from tests.support.mutations import store_of

SOAK = os.environ.get("OMNIGRAPH_HYPOTHESIS_PROFILE") == "soak"
SEEDS = range(2000, 2200) if SOAK else range(2)
QUERIES, ORDERS = 14, 4


def mentioned(clause: oracle.Clause) -> set[str]:
    """The variables that a clause names."""
    match clause:
        case oracle.Bind():
            return {clause.variable}
        case oracle.Walk():
            return {clause.source, clause.target}
        case oracle.Test():
            return {side.variable for side in (clause.left, clause.right) if isinstance(side, oracle.Prop)}
        case oracle.Not():
            return set().union(*map(mentioned, clause.clauses))


def bound(clauses: Iterable[oracle.Clause]) -> set[str]:
    found = set[str]()
    for clause in clauses:
        if isinstance(clause, oracle.Bind | oracle.Walk):
            found |= mentioned(clause) - {"_"}
        if isinstance(clause, oracle.Walk) and clause.edge_variable:
            found.add(clause.edge_variable)
    return found


def is_ready(clause: oracle.Clause, known: set[str], every: set[str]) -> bool:
    """Whether a clause may be written next: tests name bound variables, and a word against its edge has a known end."""
    match clause:
        case oracle.Bind():
            return True
        case oracle.Walk():
            return clause.along or clause.undirected or bool(known & mentioned(clause))
        case _:
            return mentioned(clause) & every <= known


def shuffled(random: Random, clauses: Iterable[oracle.Clause]) -> Iterator[oracle.Clause]:
    left = list(clauses)
    known, every = set[str](), bound(left)
    while left:
        clause = random.choice([one for one in left if is_ready(one, known, every)])
        left.remove(clause)
        known |= bound([clause])
        yield clause


@dataclass(frozen=True)
class Orders:
    """A query in several orders of its clauses, each as text."""

    texts: tuple[str, ...]
    parameters: dict[str, Any]
    query: oracle.Query

    @classmethod
    def of(cls, random: Random) -> Orders:
        maker = generator.Maker(random)
        query = maker.query()
        orders = [query, *(replace(query, clauses=tuple(shuffled(random, query.clauses))) for _ in range(ORDERS - 1))]
        spelled = [generator.spelled(one, maker.parameters) for one in orders]
        return cls(tuple(text for text, _ in spelled), spelled[0][1], query)

    def check(self, ask: Callable[[str, dict[str, Any]], Any], data: oracle.Data) -> None:
        try:
            answer = oracle.answer(data, self.query)
        except oracle.TooManyError:
            return
        first: list[list[Any]] | None = None
        for text in dict.fromkeys(self.texts):
            found = [list(row.values()) for row in ask(text, self.parameters).rows]
            try:
                answer.check(found)
                if self.query.limit is not None:  # a limit keeps the same rows in whatever order they are written
                    first = found if first is None else first
                    assert sorted(map(repr, found)) == sorted(map(repr, first))
            except AssertionError as error:
                raise AssertionError(f"{error}\n{text}\n{self.parameters}") from None


@pytest.mark.parametrize("seed", SEEDS)
def test_the_order_of_clauses_changes_nothing(
    seed: int, copy_of: Callable[[str], Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(seed)  # noqa: S311
    graph = copy_of("random")
    monkeypatch.setattr(meet, "_PART", 3)  # several parts, although there are few rows
    generator.build(random, graph, index_early=seed % 2 == 1)
    store = store_of(graph.uri)
    queries = [Orders.of(random) for _ in range(QUERIES)]
    past, before = graph.commits()[0].commit_id, generator.rows_of(store)

    def check(ask: Callable[..., Any], data: oracle.Data) -> None:
        for one in queries:
            one.check(ask, data)

    check(graph.query, before)  # cold, and warm from the second order on
    graph.create_branch("side")
    graph.mutate('query q() { insert A { name: "z1"  i: 1 }  insert Ra { from: "z1"  to: "z1"  x: 1 } }')
    check(graph.query, generator.rows_of(store))
    graph.mutate('query q() { delete Ra where x = 1  delete A where name = "z1"  delete Ab where ok = false }')
    after = generator.rows_of(store)
    check(graph.query, after)
    graph.optimize()
    check(graph.query, after)
    check(graph.at("side").query, before)
    check(graph.at(past).query, before)
    read_late(monkeypatch)
    monkeypatch.setattr(expansion, "SMALL_EDGES", 0)
    check(omnigraph.open(graph.uri, read_only=True).query, after)


_WALK = oracle.Walk
CYCLES = (
    (_WALK("a", "Ra", "b"), _WALK("b", "Rb", "c"), _WALK("c", "Ra", "a")),
    (_WALK("a", "Ra", "b"), _WALK("b", "Ra", "c"), _WALK("a", "Ra", "c"), _WALK("c", "Ab", "d")),
    (_WALK("a", "Ab", "d"), _WALK("b", "Ab", "d"), _WALK("a", "Ra", "b", undirected=True)),
)


@pytest.mark.parametrize("cycle", CYCLES)
@pytest.mark.parametrize("function", [None, "count"])
def test_cycles_in_every_order(cycle: tuple[oracle.Walk, ...], function: str | None, copy_of: Any) -> None:
    graph = copy_of("random")
    generator.build(Random(5), graph, index_early=False)  # noqa: S311
    data = generator.rows_of(store_of(graph.uri))
    query = oracle.Query(cycle, (oracle.Item(oracle.Node("a"), "x", function),))
    texts = [generator.spelled(replace(query, clauses=order), {})[0] for order in permutations(cycle)]
    assert any(step.kind == "Meet" for step in graph.explain(texts[0]).steps)
    Orders(tuple(texts), {}, query).check(graph.query, data)
