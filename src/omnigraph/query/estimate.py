"""Guesses of how many rows a step makes, from the sizes of tables alone."""

from __future__ import annotations

from omnigraph.lang import ir
from omnigraph.lang.ir import Operator
from omnigraph.query.view import GraphView, TableView

_EQUAL, _RANGE, _TEXT, _NOT, _GROUP = 0.1, 0.33, 0.1, 0.5, 0.1


def rows_after(step: ir.Step, before: float, graph: GraphView) -> float:
    """How many rows there may be behind a step, if so many come in."""
    match step:
        case ir.Scan():
            return before * _scanned(step, graph.node(step.type_name))
        case ir.Expand():
            return before * _expanded(step, graph)
        case ir.Filter(predicate):
            return before * _share(predicate)
        case ir.AntiJoin():
            return before * _NOT
        case ir.Rank(_, limit):
            return before if limit is None else min(before, limit)
        case ir.Limit(count):
            return min(before, count)
        case ir.Aggregate(columns):
            keys = any(isinstance(column, ir.Column) for column in columns)
            return max(before * _GROUP, 1.0) if keys else 1.0
        case _:
            return before


def _scanned(step: ir.Scan, view: TableView) -> float:
    rows = float(view.count)
    for predicate in step.predicates:
        rows = min(rows, 1.0) if _names_one(predicate, view) else rows * _share(predicate)
    return rows


def _names_one(predicate: ir.Predicate, view: TableView) -> bool:
    if not isinstance(predicate, ir.Comparison) or predicate.operator is not Operator.EQ:
        return False
    sides = (predicate.left, predicate.right)
    return any(isinstance(side, ir.PropertyRef) and side.property == view.key for side in sides)


def _share(predicate: ir.Predicate) -> float:
    """Which share of the rows satisfies it."""
    if isinstance(predicate, ir.TextMatch):
        return _TEXT
    return {Operator.EQ: _EQUAL, Operator.NE: 1 - _EQUAL, Operator.CONTAINS: _TEXT}.get(predicate.operator, _RANGE)


def _expanded(step: ir.Expand, graph: GraphView) -> float:
    """How many rows one becomes: as many as nodes have edges on average, hop after hop."""
    targets, edges = max(graph.node(step.target_type).count, 1), graph.edge(step.edge_type).count
    edge = graph.catalog.edges[step.edge_type]
    origins = max(graph.node(edge.source if step.direction is ir.Direction.OUT else edge.target).count, 1)
    degree = edges / origins * (2 if step.direction is ir.Direction.BOTH else 1)
    most = step.most if edge.is_reflexive else 1
    reached = min(sum(degree**hop for hop in range(step.least, most + 1)), float(targets))
    return min(reached / targets, 1.0) if step.closes else reached
