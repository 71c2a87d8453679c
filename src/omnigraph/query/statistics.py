"""What is known of a table without reading it: how many rows a predicate leaves, and how many edges a node has."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from omnigraph.core.nonblocking import is_nonblocking
from omnigraph.lang import ir
from omnigraph.lang.ir import Direction, Operator
from omnigraph.query.adjacency import Adjacency, adjacency_family
from omnigraph.query.view import GraphView, TableView
from omnigraph.storage.expressions import pushed
from omnigraph.storage.predicates import Predicate, satisfying
from omnigraph.storage.read import ID

# Shares of rows that satisfy a predicate where nothing is known about the values.
EQUAL, RANGE, TEXT, NOT, GROUP = 0.1, 0.33, 0.1, 0.5, 0.1
_SAMPLE = 1_000  # rows of a cached column that a predicate is tried on
_MOST_TRIED = 4  # predicates of one variable; trying more of them costs more than it gains
_NOTE = 256


@dataclass(frozen=True, slots=True)
class Degrees:
    """How many edges nodes have in one direction: on average, and on average over the edges that lead to a node.

    The second one is larger where few nodes have most of the edges: a walk meets these more often.
    """

    mean: float
    met: float
    origins: float  # that have an edge
    most: float

    @classmethod
    def of(cls, adjacent: Adjacency) -> Degrees:
        counts = np.diff(adjacent.starts).astype(np.float64)
        total, filled = float(counts.sum()), int(np.count_nonzero(counts))
        mean = total / max(len(counts), 1)
        met = float(np.dot(counts, counts)) / total if total else 0.0
        return cls(mean, met, filled, float(counts.max(initial=0)))

    def of_row(self, *, walked: bool) -> float:
        """The degree of a node that a row holds: one of all nodes, or one that edges have led to."""
        # Between both: in another direction, or along another edge, the same nodes need not be the large ones.
        return float(np.sqrt(self.mean * self.met)) if walked else self.mean


class Statistics:
    """Estimates for one snapshot. They read nothing: what is cached is used, else the sizes of the tables."""

    def __init__(self, graph: GraphView) -> None:
        self.graph = graph

    def degrees(self, edge_type: str, direction: Direction) -> Degrees:
        """Return the degrees of the nodes that an edge type starts at, in a direction."""
        edges, source, target = self.graph.ends(edge_type)
        # Of another version, if need be: a few edges more or less do not change which plan is the best one.
        adjacent: Adjacency | None = self.graph.cache.relative(adjacency_family(self.graph, edge_type, direction))
        near = target if direction is Direction.IN else source
        noted = (edges.table, direction, "@degrees")
        # A read that must not wait does without: they are computed from all nodes.
        if adjacent is None or (is_nonblocking() and not self.graph.cache.holds(noted)):
            mean = edges.count * (2 if direction is Direction.BOTH else 1) / max(near.count, 1)
            return Degrees(mean, mean, near.count, mean)
        found = adjacent
        return self.graph.cache.grown(
            (edges.table.path, direction, "@degrees"),
            noted,
            lambda _, old: old,
            lambda: Degrees.of(found),
            lambda _: _NOTE,
        )

    def connected(self, step: ir.Expand) -> float:
        """Return the share of pairs of nodes that an edge connects."""
        edges, source, target = self.graph.ends(step.edge_type)
        most = step.most if self.graph.catalog.edges[step.edge_type].is_reflexive else 1
        degree = edges.count / max(source.count, 1) * (2 if step.direction is Direction.BOTH else 1)
        reached = sum(degree**hop for hop in range(step.least, most + 1))
        return min(reached / max(target.count, 1), 1.0)

    def has_adjacency(self, edge_type: str, direction: Direction) -> bool:
        """Whether the adjacency is in memory, or grows out of that of another version."""
        return self.graph.cache.relative(adjacency_family(self.graph, edge_type, direction)) is not None

    def matching(self, view: TableView, predicates: tuple[ir.Predicate, ...]) -> float:
        """Estimate how many rows of a table satisfy all predicates on it."""
        if any(names_one(predicate, view) for predicate in predicates):
            return min(view.count, 1.0)
        tried = [self._tried(view, predicate) for predicate in predicates[:_MOST_TRIED]]
        shares = [share(one) if known is None else known for one, known in zip(predicates, tried, strict=False)]
        shares += [share(one) for one in predicates[_MOST_TRIED:]]
        return float(view.count * np.prod(shares)) if shares else float(view.count)

    def _tried(self, view: TableView, predicate: ir.Predicate) -> float | None:
        """Try a condition with constants on a part of its columns; None if these are not in memory."""
        if isinstance(predicate, ir.TextMatch) or not _is_constant(predicate):
            return None
        column = pushed(predicate, _constant)
        if column is None or not view.count:
            return None
        cached = {name: view.cache.peek((view.table, name)) for name in column.columns}
        if any(one is None for one in cached.values()):
            return None
        key = (view.table, predicate, "@share")
        if is_nonblocking() and not view.cache.holds(key):
            return None
        return view.cache.get(key, lambda: _share_of(column, cached, view.count), _noted)


def _noted(_: float) -> int:
    return _NOTE


def _share_of(predicate: Predicate, columns: dict[str, object], count: int) -> float:
    step = max(count // _SAMPLE, 1)
    rows = np.arange(0, count, step)
    sample = {name: column.take(rows) for name, column in columns.items()}  # type: ignore[attr-defined]
    found = len(satisfying(predicate, sample, len(rows)))
    # None of the sample does not mean none at all.
    return max(found, 0.5) / len(rows)


def _is_constant(predicate: ir.Expr) -> bool:
    if isinstance(predicate, ir.ParameterRef | ir.RequestTime | ir.Computed | ir.Subquery):
        return False
    return all(map(_is_constant, ir.parts_of(predicate)))


def _constant(value: ir.Expr) -> ir.PlainValue:
    assert isinstance(value, ir.Constant)
    return value.value


def names_one(predicate: ir.Predicate, view: TableView) -> bool:
    """Whether a predicate holds for one row at most: it names the key."""
    if not isinstance(predicate, ir.Comparison) or predicate.operator is not Operator.EQ:
        return False
    sides = (predicate.left, predicate.right)
    return any(isinstance(side, ir.PropertyRef) and side.property in (view.key, ID) for side in sides) and (
        len(predicate.variables) == 1
    )


def share(predicate: ir.Predicate) -> float:
    """Guess the share of rows that satisfy a predicate."""
    match predicate:
        case ir.TextMatch():
            return TEXT
        case ir.Comparison(_, operator):
            return {Operator.EQ: EQUAL, Operator.NE: 1 - EQUAL, Operator.CONTAINS: TEXT}.get(operator, RANGE)
        case ir.Junction(True, operands):
            return prod(map(share, operands))
        case ir.Junction(False, operands):
            return 1 - prod(1 - share(one) for one in operands)
        case ir.Not(operand):
            return 1 - share(operand)
        case ir.IsNull():
            return EQUAL
        case _:
            return NOT
