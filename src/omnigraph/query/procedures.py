"""Algorithms over all edges of a type, on the compressed adjacency. Parallel edges count once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from omnigraph.core.nonblocking import may_block
from omnigraph.errors import ParameterError
from omnigraph.lang import ir
from omnigraph.lang.ir import Direction
from omnigraph.query.adjacency import Adjacency, adjacency
from omnigraph.query.arrays import spread
from omnigraph.query.ends import ends_of
from omnigraph.query.view import GraphView, Positions, TableView
from omnigraph.storage.expressions import Values

_ROUNDS, _CLOSE = 100, 1e-10
_PART = 2**20  # candidates of triangles that are tried at once
_DIRECTIONS = {"out": Direction.OUT, "in": Direction.IN, "both": Direction.BOTH}
Numbers = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class ValueView:
    """The values that a procedure has found, by the position of the node; a variable is bound to these positions."""

    values: pa.Array

    def take(self, positions: Positions, _: str) -> pa.Array:
        return self.values.take(pa.array(positions))


def run(graph: GraphView, step: ir.Procedure, values: Values) -> ValueView:
    """Run a procedure, or return what it has found on the same version; null where a node has no value."""
    given = tuple((name, values(option)) for name, option in step.options)
    tables = tuple(view.table for view in graph.ends(step.edge_type))
    may_block()
    found: ValueView = graph.cache.get(
        (*tables, step.name, given),
        lambda: ValueView(_PROCEDURES[step.name](_Edges(graph, step.edge_type), **dict(given))),
        lambda made: int(made.values.nbytes),
    )
    return found


@dataclass(frozen=True, slots=True)
class _Edges:
    """The edges that a procedure is about."""

    graph: GraphView
    edge_type: str

    def towards(self, direction: Direction) -> Adjacency:
        return adjacency(self.graph, self.edge_type, direction).distinct

    @property
    def nodes(self) -> TableView:
        return self.graph.ends(self.edge_type)[1]

    @property
    def count(self) -> int:
        return self.nodes.count

    def named(self, ranks: Numbers) -> pa.Array:
        """Return the ids that have these places in the order of all ids."""
        return self.nodes.ids.texts.take(pa.array(self.nodes.ids.order[ranks]))


def _pagerank(edges: _Edges, damping: float = 0.85, rounds: int = _ROUNDS) -> pa.Array:
    if not 0 <= damping < 1:
        raise _unusable("damping", damping, "a number from 0 to 1")
    back, degrees = edges.towards(Direction.IN), np.diff(edges.towards(Direction.OUT).starts)
    count = edges.count
    share = 1.0 / np.maximum(degrees, 1)
    rank = np.full(count, 1.0 / max(count, 1))
    for _ in range(rounds):
        spread_out = rank[degrees == 0].sum()  # nodes without edges share with all
        found = (1 - damping + damping * spread_out) / max(count, 1) + damping * _sums(back, rank * share)
        change, rank = float(np.abs(found - rank).sum()), found
        if change < _CLOSE:
            break
    return pa.array(rank, pa.float64())


def _sums(towards: Adjacency, numbers: Numbers) -> Numbers:
    """Add up the numbers of the targets of each node."""
    return _reduced(np.add, towards, numbers, 0.0)


def _reduced(operation: np.ufunc, towards: Adjacency, numbers: Numbers, none: Any) -> Numbers:
    found = np.full(towards.origins, none, numbers.dtype)
    filled = np.diff(towards.starts) > 0
    if filled.any():
        # `reduceat` takes a range up to the next start, so those of nodes without edges must not be in between.
        found[filled] = operation.reduceat(numbers[towards.targets], towards.starts[:-1][filled])
    return found


def _components(edges: _Edges) -> pa.Array:
    both, order = edges.towards(Direction.BOTH), edges.nodes.ids.order
    labels = np.empty(edges.count, np.int64)
    labels[order] = np.arange(edges.count)
    while True:
        found = np.minimum(labels, _reduced(np.minimum, both, labels, edges.count))
        found = found[order[found]]  # from the node that gives the name to the one that gives it its own
        if np.array_equal(found, labels):
            return edges.named(labels)
        labels = found


def _communities(edges: _Edges, rounds: int = _ROUNDS) -> pa.Array:
    """Give each node the label that most of its neighbours and it itself have, the smallest of several; repeat."""
    both, order, count = edges.towards(Direction.BOTH), edges.nodes.ids.order, edges.count
    labels = np.empty(count, np.int64)
    labels[order] = np.arange(count)
    origins = np.concatenate([np.repeat(np.arange(count), np.diff(both.starts)), np.arange(count)])
    targets = np.concatenate([both.targets, np.arange(count)])
    for _ in range(rounds):
        codes, often = np.unique(origins * max(count, 1) + labels[targets], return_counts=True)
        nodes, names = np.divmod(codes, max(count, 1))
        best = np.lexsort((names, -often, nodes))
        first = np.ones(len(best), bool)
        first[1:] = nodes[best][1:] != nodes[best][:-1]
        found = names[best][first]
        if np.array_equal(found, labels):
            break
        labels = found
    return edges.named(labels)


def _distances(edges: _Edges, direction: str = "out", weight: str | None = None, **options: Any) -> pa.Array:
    start = edges.nodes.ids.find(str(options["from"]))
    if weight is not None:
        return _weighted(edges, start, _DIRECTIONS[direction], weight)
    found = np.full(edges.count, -1)
    frontier, depth = start, 0
    towards = edges.towards(_DIRECTIONS[direction])
    while len(frontier):
        found[frontier] = depth
        near = towards.targets_of(frontier)
        frontier = np.unique(near[found[near] < 0]).astype(np.int64)
        depth += 1
    return pa.array(found, pa.int64(), mask=found < 0)


def _weighted(edges: _Edges, start: Positions, direction: Direction, name: str) -> pa.Array:
    """Shorten all paths until none gets shorter. An edge without a weight leads nowhere."""
    ends, view = ends_of(edges.graph, edges.edge_type), edges.graph.edge(edges.edge_type)
    origins, targets = ends.pairs(direction)
    stored = view.column(name).cast(pa.float64(), safe=False)
    weights = stored.fill_null(np.inf).to_numpy(zero_copy_only=False)[ends.edges(direction)]
    if len(weights) and weights.min() < 0:
        raise ParameterError(
            f"'{name}' is negative for some edges, which have no shortest paths",
            parameter=name,
            hint="filter or shift them",
        )
    found = np.full(edges.count, np.inf)
    found[start] = 0.0
    order = np.argsort(targets, kind="stable")
    origins, targets, weights = origins[order], targets[order], weights[order]
    first = np.flatnonzero(np.diff(targets, prepend=-1)) if len(targets) else targets
    while len(targets):
        shorter = np.minimum.reduceat(found[origins] + weights, first)
        better = shorter < found[targets[first]]
        if not better.any():
            break
        found[targets[first][better]] = shorter[better]
    return pa.array(found, pa.float64(), mask=np.isinf(found))


def _degree(edges: _Edges, direction: str = "out") -> pa.Array:
    return pa.array(np.diff(edges.towards(_DIRECTIONS[direction]).starts), pa.int64())


def _triangles(edges: _Edges) -> pa.Array:
    both, count = edges.towards(Direction.BOTH), edges.count
    degrees = np.diff(both.starts)
    origins = np.repeat(np.arange(count), degrees)
    targets = both.targets.astype(np.int64)
    # Each edge once, towards the node with more edges: so no node has many to follow.
    ahead = (degrees[origins] < degrees[targets]) | ((degrees[origins] == degrees[targets]) & (origins < targets))
    codes = np.sort(origins[ahead] * max(count, 1) + targets[ahead])
    onward = Adjacency.of(codes, count, count, lambda: codes[:0])
    near, far = np.divmod(codes, max(count, 1))
    found = np.zeros(count, np.int64)
    sizes = onward.degrees(far)
    for part in np.split(np.arange(len(codes)), np.flatnonzero(np.diff(np.cumsum(sizes) // _PART)) + 1):
        which = np.repeat(part, sizes[part])
        third = onward.targets[spread(onward.starts[far[part]], sizes[part])].astype(np.int64)
        closed = onward.connects(near[which], third)
        for corner in (near[which], far[which], third):
            found += np.bincount(corner[closed], minlength=count)
    return pa.array(found, pa.int64())


def _unusable(name: str, value: object, wanted: str) -> ParameterError:
    return ParameterError(f"'{name}' is {value}", parameter=name, hint=f"pass {wanted}")


_PROCEDURES: dict[str, Any] = {
    "pagerank": _pagerank,
    "components": _components,
    "communities": _communities,
    "distances": _distances,
    "degree": _degree,
    "triangles": _triangles,
}
