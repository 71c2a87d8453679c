"""Who is connected with whom: compressed adjacency of one edge type in one direction, made of whole columns at once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from omnigraph.lang.ir import Direction
from omnigraph.query.view import GraphView, Positions, TableView
from omnigraph.storage.tables import DST, SRC

Integers = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Adjacency:
    """For each origin the targets of its edges, and which edges these are, ordered by target and edge id."""

    origins: int
    targets_count: int
    starts: Integers  # of origin i: from starts[i] to starts[i + 1]
    targets: Integers
    edges: Integers

    @property
    def nbytes(self) -> int:
        return int(self.starts.nbytes + self.targets.nbytes + self.edges.nbytes)

    @cached_property
    def distinct(self) -> Adjacency:
        """The same without parallel edges: each target once per origin."""
        origins = np.repeat(np.arange(self.origins), np.diff(self.starts))
        new = np.ones(len(origins), bool)
        new[1:] = (origins[1:] != origins[:-1]) | (self.targets[1:] != self.targets[:-1])
        return _compressed(origins[new], self.targets[new], self.edges[new], self.origins, self.targets_count)

    @cached_property
    def codes(self) -> Integers:
        """Every pair of origin and target as one number, in order."""
        pairs = self.distinct
        origins = np.repeat(np.arange(self.origins), np.diff(pairs.starts))
        codes: Integers = origins * self.targets_count + pairs.targets
        return codes

    def expand(self, origins: Positions) -> tuple[Integers, Integers, Integers]:
        """Follow the edges of some origins: for each edge, which of the origins, its target, and the edge."""
        counts = self.starts[origins + 1] - self.starts[origins]
        rows = np.repeat(np.arange(len(origins)), counts)
        within = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        at = np.repeat(self.starts[origins], counts) + within
        return rows, self.targets[at], self.edges[at]

    def connects(self, origins: Positions, targets: Positions) -> np.ndarray[Any, Any]:
        """Tell of each pair whether an edge connects it."""
        return _among(origins * self.targets_count + targets, self.codes)

    def degrees(self) -> Integers:
        return np.diff(self.starts)


@dataclass(frozen=True, slots=True)
class Steps:
    """How many steps a walk takes, and whether it leads from its target to its origin."""

    least: int
    most: int
    backwards: bool = False


def adjacency(graph: GraphView, edge_type: str, direction: Direction) -> Adjacency:
    """The adjacency of an edge type, made once per version of the three tables."""
    edge = graph.catalog.edges[edge_type]
    view, source, target = graph.edge(edge_type), graph.node(edge.source), graph.node(edge.target)
    key = (view.table, source.table, target.table, direction)
    return graph.cache.get(key, lambda: _build(view, source, target, direction), lambda made: made.nbytes * 3)


def _build(view: TableView, source: TableView, target: TableView, direction: Direction) -> Adjacency:
    ends = (source.positions_of(view.column(SRC)), target.positions_of(view.column(DST)))
    whole = pa.compute.and_(ends[0].is_valid(), ends[1].is_valid()).to_numpy(zero_copy_only=False)
    src, dst = (_integers(end)[whole] for end in ends)
    edges = np.flatnonzero(whole)
    rank = view.id_ranks[edges]
    if direction is Direction.IN:
        src, dst = dst, src
    elif direction is Direction.BOTH:
        loops = src == dst
        edges, rank = np.concatenate([edges, edges[~loops]]), np.concatenate([rank, rank[~loops]])
        src, dst = np.concatenate([src, dst[~loops]]), np.concatenate([dst, src[~loops]])
    order = np.lexsort((rank, dst, src))
    counts = (target.count, source.count) if direction is Direction.IN else (source.count, target.count)
    return _compressed(src[order], dst[order], edges[order], *counts)


def _integers(positions: pa.Array) -> Integers:
    numbers: Integers = positions.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return numbers


def _compressed(src: Integers, dst: Integers, edges: Integers, origins: int, targets: int) -> Adjacency:
    starts = np.concatenate([[0], np.cumsum(np.bincount(src, minlength=origins))]).astype(np.int64)
    return Adjacency(origins, targets, starts, dst, edges)


def _among(codes: Integers, sorted_codes: Integers) -> np.ndarray[Any, Any]:
    if not len(sorted_codes):
        return np.zeros(len(codes), bool)
    at = np.minimum(np.searchsorted(sorted_codes, codes), len(sorted_codes) - 1)
    return np.asarray(sorted_codes[at] == codes)


def walk(adjacent: Adjacency, origins: Positions, steps: Steps) -> tuple[Integers, Integers]:
    """Walk breadth-first over nodes of one type: pairs of the number of an origin and a node met within the bounds.

    A node is met where it is first reached. One with a loop is met one step later as well, for the loop is walked once
    and leads nowhere; that is the node where the walk ends, which going backwards is the origin.
    """
    pairs = adjacent.distinct
    size = max(adjacent.targets_count, 1)
    rows, nodes = np.arange(len(origins)), np.asarray(origins, np.int64)
    start = rows * size + nodes
    visited = np.sort(start)
    loops = pairs.connects(np.arange(size), np.arange(size))
    found = [start[loops[nodes]]] if steps.least == 1 else []
    for depth in range(1, steps.most + 1):
        if not len(rows):
            break
        which, targets, _ = pairs.expand(nodes)
        codes = np.unique(rows[which] * size + targets)
        fresh = codes[~_among(codes, visited)]
        if depth >= steps.least:
            found.append(fresh)
        elif depth == steps.least - 1:
            ends = origins[fresh // size] if steps.backwards else fresh % size
            found.append(fresh[loops[ends]])
        visited = np.union1d(visited, fresh)
        rows, nodes = fresh // size, fresh % size
    met = np.sort(np.concatenate(found)) if found else np.empty(0, np.int64)
    return met // size, met % size
