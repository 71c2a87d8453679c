"""Compressed adjacency (CSR) of one edge type in one direction, built from whole columns."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from omnigraph.core.nonblocking import may_block
from omnigraph.lang.ir import Direction
from omnigraph.query.arrays import Integers, among, spread, without_repeats
from omnigraph.query.frame import check_room
from omnigraph.query.view import GraphView, Positions, TableView
from omnigraph.storage.read import DST, SRC


@dataclass(frozen=True)
class Adjacency:
    """The targets of the edges of each origin, in order. Edge positions are computed on first use."""

    origins: int
    targets_count: int
    starts: Integers  # of origin i: from starts[i] to starts[i + 1]
    targets: Integers
    find_edges: Callable[[], Integers] = field(repr=False)

    @classmethod
    def of(cls, codes: Integers, origins: int, targets_count: int, find_edges: Callable[[], Integers]) -> Adjacency:
        """Build it from sorted pairs of origin and target, each packed into one number."""
        # Where there are no targets there are no codes either; `max` only keeps the remainder defined.
        starts = np.searchsorted(codes, np.arange(origins + 1) * targets_count)
        return cls(origins, targets_count, starts, codes % max(targets_count, 1), find_edges)

    @property
    def nbytes(self) -> int:
        """Its size with everything computed. The cache must charge for what is added later, too."""
        return int(2 * self.starts.nbytes + 4 * self.targets.nbytes)

    @cached_property
    def edges(self) -> Integers:
        may_block()  # reads both ends of every edge
        return self.find_edges()

    @cached_property
    def distinct(self) -> Adjacency:
        """The adjacency without parallel edges."""
        pairs = without_repeats(self.codes)
        if len(pairs) == len(self.targets):
            return self
        return Adjacency.of(pairs, self.origins, self.targets_count, _no_edges)

    @cached_property
    def codes(self) -> Integers:
        """Every pair of origin and target packed into one number, sorted."""
        may_block()  # computed from all edges; `distinct` and `connects` come through here
        codes = np.repeat(np.arange(self.origins) * self.targets_count, np.diff(self.starts))
        # In place: the array has a number for each edge, and a second one of this size would double the memory.
        codes += self.targets
        return codes

    def expand(self, origins: Positions) -> tuple[Integers, Integers]:
        """Follow the edges of some origins; return for each edge the index of its origin, and its target."""
        counts = self.degrees(origins)
        return np.repeat(np.arange(len(origins)), counts), self.targets[spread(self.starts[origins], counts)]

    def expand_edges(self, origins: Positions) -> tuple[Integers, Integers, Integers]:
        """Like `expand`, with the positions of the edges."""
        counts = self.degrees(origins)
        at = spread(self.starts[origins], counts)
        return np.repeat(np.arange(len(origins)), counts), self.targets[at], self.edges[at]

    def targets_of(self, origins: Positions) -> Integers:
        """Return the targets of the edges of some origins, origin by origin."""
        # All origins in order, as after a scan without predicates: return the whole array without copying it.
        if len(origins) == self.origins and np.array_equal(origins, np.arange(self.origins)):
            return self.targets
        targets: Integers = self.targets[spread(self.starts[origins], self.degrees(origins))]
        return targets

    def degrees(self, origins: Positions) -> Integers:
        """Return the number of edges of each origin."""
        return self.starts[origins + 1] - self.starts[origins]

    def connects(self, origins: Positions, targets: Positions) -> np.ndarray[Any, Any]:
        """Return which pairs an edge connects."""
        return among(origins * self.targets_count + targets, self.codes)

    @cached_property
    def loops(self) -> np.ndarray[Any, Any]:
        """Return which nodes have an edge to themselves."""
        may_block()  # computed from all edges
        at = np.zeros(max(self.origins, self.targets_count, 1), bool)
        origins = np.repeat(np.arange(self.origins), np.diff(self.starts))
        at[origins[origins == self.targets]] = True
        return at


def _no_edges() -> Integers:
    raise AssertionError("a pair may stand for several edges")


@dataclass(frozen=True, slots=True)
class Steps:
    """How many steps a walk takes, and whether it leads from its target to its origin."""

    least: int
    most: int
    backwards: bool = False


def adjacency(graph: GraphView, edge_type: str, direction: Direction) -> Adjacency:
    """Return the adjacency of an edge type, built once per version of the three tables."""
    views = _views(graph, edge_type)
    key = adjacency_key(graph, edge_type, direction)
    return graph.cache.get(key, lambda: _build(*views, direction), lambda made: made.nbytes)


def adjacency_key(graph: GraphView, edge_type: str, direction: Direction) -> Hashable:
    """Return the cache key of the adjacency."""
    return (*(view.table for view in _views(graph, edge_type)), direction)


def _views(graph: GraphView, edge_type: str) -> tuple[TableView, TableView, TableView]:
    edge = graph.catalog.edges[edge_type]
    return graph.edge(edge_type), graph.node(edge.source), graph.node(edge.target)


def _build(view: TableView, source: TableView, target: TableView, direction: Direction) -> Adjacency:
    counts = (target.count, source.count) if direction is Direction.IN else (source.count, target.count)

    def find_edges() -> Integers:
        codes, edges = _listed(view, source, target, direction)
        # Parallel edges are in no order here; a step that returns edges sorts them by id.
        return edges[np.argsort(codes)]

    codes, _ = _listed(view, source, target, direction)
    return Adjacency.of(np.sort(codes), *counts, find_edges)


def _listed(view: TableView, source: TableView, target: TableView, direction: Direction) -> tuple[Integers, Integers]:
    """Return the packed ends of all edges, and their positions. With both directions a loop counts once."""
    sources, targets = view.columns(SRC, DST)
    ends = (source.positions_of(sources), target.positions_of(targets))
    # An edge whose node is missing, as another program may leave it, leads nowhere and matches nothing.
    whole = pa.compute.and_(ends[0].is_valid(), ends[1].is_valid()).to_numpy(zero_copy_only=False)
    src, dst = (integers(end)[whole] for end in ends)
    edges = np.flatnonzero(whole)
    if direction is Direction.IN:
        return dst * source.count + src, edges
    codes = src * target.count + dst
    if direction is Direction.OUT:
        return codes, edges
    other = src != dst
    return np.concatenate([codes, (dst * target.count + src)[other]]), np.concatenate([edges, edges[other]])


def integers(positions: pa.Array) -> Integers:
    # Filled first: with nulls in it, NumPy would get floats, which cannot index.
    numbers: Integers = positions.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return numbers


def walk(adjacent: Adjacency, origins: Positions, steps: Steps) -> tuple[Integers, Integers]:
    """Walk breadth-first over nodes of one type; return pairs of origin and node reached within the bounds.

    A node is met where it is first reached. One with a loop is met one step later as well, for the loop is walked once
    and leads nowhere; that is the node where the walk ends, which going backwards is the origin.
    """
    pairs = adjacent.distinct
    size = max(adjacent.targets_count, 1)
    # The walks of all origins run at once: a pair of origin and node is one number, so one array is one frontier.
    start = np.arange(len(origins)) * size + origins
    visited = _Flags(len(origins) * size, start) if len(origins) * size <= _MOST_FLAGS else _Codes(start)
    loops = pairs.loops
    found = [start[loops[origins]]] if steps.least == 1 else []
    fresh = start
    for depth in range(1, steps.most + 1):
        if not len(fresh):
            break
        # Before the step is taken: what it reaches, what is known already, and what the walk has found.
        check_room(int(pairs.degrees(fresh % size).sum()) + len(visited) + sum(map(len, found)), _COPIES)
        fresh = visited.add(_followed(pairs, fresh, size))
        if depth >= steps.least:
            found.append(fresh)
        elif depth == steps.least - 1:
            ends = origins[fresh // size] if steps.backwards else fresh % size
            found.append(fresh[loops[ends]])
    met = np.sort(np.concatenate(found)) if found else np.empty(0, np.int64)
    return met // size, met % size


_MOST_FLAGS = 2**25  # bytes, one for each pair
_COPIES = 3  # of the pairs of a step, while they are packed, sorted and compared


def _followed(pairs: Adjacency, codes: Integers, size: int) -> Integers:
    """Take one step from packed pairs of origin and node."""
    rows, nodes = np.divmod(codes, size)
    targets = pairs.targets_of(nodes)
    if len(rows) and rows[-1] == 0:  # there is one origin only
        return targets
    return np.repeat(rows * size, pairs.degrees(nodes)) + targets


class _Flags:
    """Visited nodes as one flag each."""

    def __init__(self, size: int, start: Integers) -> None:
        self.flags = np.zeros(size, bool)
        self.flags[start] = True

    def __len__(self) -> int:
        return 0  # what they take is bounded

    def add(self, codes: Integers) -> Integers:
        """Mark nodes as visited; return the new ones, sorted."""
        new = np.zeros(len(self.flags), bool)
        new[codes] = True
        new &= ~self.flags
        self.flags |= new
        # Flags come out in order: the caller relies on sorted codes.
        return np.flatnonzero(new)


class _Codes:
    """Visited nodes as a sorted list, for when flags for all pairs would take too much memory."""

    def __init__(self, start: Integers) -> None:
        self.codes = np.sort(start)

    def __len__(self) -> int:
        return len(self.codes)

    def add(self, codes: Integers) -> Integers:
        """Mark nodes as visited; return the new ones, sorted."""
        codes = without_repeats(np.sort(codes))
        fresh: Integers = codes[~among(codes, self.codes)]
        self.codes = np.union1d(self.codes, fresh)
        return fresh
