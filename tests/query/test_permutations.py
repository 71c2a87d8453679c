"""The order of clauses: every one of them gives the answer of the oracle, in every state of graph and cache.

A pair is one query in one state: 3,000 of them here, 50,000 with OMNIGRAPH_SOAK.
"""

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

SEEDS = range(2000, 2032) if "OMNIGRAPH_SOAK" in os.environ else range(2)
QUERIES, ORDERS, STATES = 200, 4, 8
_SMALL = 3  # clauses; of so many every order is tried


def mentioned(clause: oracle.Clause) -> set[str]:
    """The variables that a clause names."""
    match clause:
        case oracle.Bind() | oracle.Search():
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


def orders_of(random: Random, clauses: tuple[oracle.Clause, ...]) -> Iterator[tuple[oracle.Clause, ...]]:
    """As they are written, and in other orders: every one that is allowed, of a few clauses."""
    yield clauses
    if len(clauses) > _SMALL:
        yield from (tuple(shuffled(random, clauses)) for _ in range(ORDERS - 1))
        return
    for order in permutations(clauses):
        known = set[str]()
        for clause in order:
            if not is_ready(clause, known, bound(clauses)):
                break
            known |= bound([clause])
        else:
            yield order


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
        orders = (replace(query, clauses=order) for order in orders_of(random, query.clauses))
        spelled = [generator.spelled(one, maker.parameters) for one in orders]
        return cls(tuple(dict.fromkeys(text for text, _ in spelled)), spelled[0][1], query)

    def check(self, ask: Ask, answer: oracle.Answer, texts: Iterable[str]) -> None:
        first: list[list[Any]] | None = None
        for text in texts:
            found = [list(row.values()) for row in ask(text, self.parameters).rows]
            try:
                answer.check(found)
                if self.query.limit is not None:  # a limit keeps the same rows in whatever order they are written
                    first = found if first is None else first
                    assert sorted(map(repr, found)) == sorted(map(repr, first))
            except AssertionError as error:
                raise AssertionError(f"{error}\n{text}\n{self.parameters}") from None


Ask = Callable[[str, dict[str, Any]], Any]


class Pairs:
    """Queries that are asked in one state of a graph after the other."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.queries = [Orders.of(random) for _ in range(QUERIES)]
        self.done = self.states = 0
        self._answers: dict[tuple[int, int], tuple[oracle.Data, oracle.Answer | None]] = {}

    def check(self, ask: Ask, data: oracle.Data, *, every: bool = False) -> None:
        """Ask all queries: in every order, or in one for each, and some in two."""
        self.states += 1
        for at, one in enumerate(self.queries):
            answer = self._answer(at, data)
            if answer is not None:
                few = [one.texts[(self.states + at) % len(one.texts)], *one.texts[: at % 4 == 0]]
                one.check(ask, answer, one.texts if every else few)
                self.done += 1

    def _answer(self, at: int, data: oracle.Data) -> oracle.Answer | None:
        if (at, id(data)) not in self._answers:
            try:
                found = oracle.answer(data, self.queries[at].query)
            except oracle.TooManyError:
                found = None
            self._answers[at, id(data)] = data, found  # the data as well, so that no other has its number
        return self._answers[at, id(data)][1]


@pytest.mark.parametrize("seed", SEEDS)
def test_the_order_of_clauses_changes_nothing(
    seed: int, copy_of: Callable[[str], Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(seed)  # noqa: S311
    graph = copy_of("random")
    monkeypatch.setattr(meet, "_PART", 3)  # several parts, although there are few rows
    generator.build(random, graph, index_early=seed % 2 == 1)
    store, pairs = store_of(graph.uri), Pairs(random)
    past, before = graph.commits()[0].commit_id, generator.rows_of(store)

    pairs.check(graph.query, before, every=True)  # cold, and warm from the second order on
    graph.create_branch("side")
    graph.mutate('query q() { insert A { name: "z1"  i: 1 }  insert Ra { from: "z1"  to: "z1"  x: 1 } }')
    pairs.check(graph.query, generator.rows_of(store))
    graph.mutate('query q() { delete Ra where x = 1  delete A where name = "z1"  delete Ab where ok = false }')
    after = generator.rows_of(store)
    pairs.check(graph.query, after)
    graph.optimize()
    pairs.check(graph.query, after)
    pairs.check(graph.at("side").query, before)
    pairs.check(graph.at(past).query, before)
    graph.delete_branch("side")
    graph.apply_schema(generator.SCHEMA.replace("node A {", "node A {\n    extra: I64? @index"))
    graph.apply_schema(generator.SCHEMA, allow_data_loss=True)
    pairs.check(graph.query, after)
    read_late(monkeypatch)
    monkeypatch.setattr(expansion, "SMALL_EDGES", 0)
    pairs.check(omnigraph.open(graph.uri, read_only=True).query, after)

    assert pairs.states == STATES
    assert pairs.done > 0.95 * QUERIES * STATES


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
    Orders(tuple(texts), {}, query).check(graph.query, oracle.answer(data, query), texts)
