"""The ends of all edges of a type as positions of nodes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from omnigraph.lang.ir import Direction
from omnigraph.query.arrays import Integers, Mask, narrow
from omnigraph.query.view import GraphView, TableView
from omnigraph.storage.read import DST, SRC

MISSING = -1


@dataclass(frozen=True)
class Ends:
    """For each edge, in order of position, the positions of its source and target; -1 where there is no such node."""

    sources: Integers
    targets: Integers
    source_count: int
    target_count: int

    def __len__(self) -> int:
        return len(self.sources)

    @property
    def nbytes(self) -> int:
        return int(self.sources.nbytes + self.targets.nbytes)

    def counts(self, direction: Direction) -> tuple[int, int]:
        """Return how many origins and targets there are in a direction."""
        sizes = (self.source_count, self.target_count)
        return sizes[::-1] if direction is Direction.IN else sizes

    def pairs(self, direction: Direction) -> tuple[Integers, Integers]:
        """Return the origins and targets of all edges in a direction; with both, a loop counts once.

        An edge whose node is missing, as another program may leave it, leads nowhere and matches nothing.
        """
        sources, targets = (end[self.whole].astype(np.int64) for end in (self.sources, self.targets))
        if direction is Direction.IN:
            return targets, sources
        if direction is Direction.OUT:
            return sources, targets
        other = sources != targets
        return np.concatenate([sources, targets[other]]), np.concatenate([targets, sources[other]])

    def codes(self, direction: Direction) -> Integers:
        """Return each pair of origin and target packed into one number."""
        codes, targets = self.pairs(direction)
        codes *= self.counts(direction)[1]
        codes += targets
        return codes

    def edges(self, direction: Direction) -> Integers:
        """Return the position of the edge of each pair."""
        edges = np.flatnonzero(self.whole)
        if direction is not Direction.BOTH:
            return edges
        return np.concatenate([edges, edges[self.sources[edges] != self.targets[edges]]])

    @property
    def whole(self) -> Mask:
        return np.asarray((self.sources != MISSING) & (self.targets != MISSING))


def ends_of(graph: GraphView, edge_type: str) -> Ends:
    """Return the ends of an edge type: resolved once, then both directions are made of them."""
    views = graph.ends(edge_type)
    key = (*(view.table for view in views), "@ends")
    return graph.cache.get(key, lambda: _resolved(*views), lambda made: made.nbytes)


def _resolved(view: TableView, source: TableView, target: TableView) -> Ends:
    # The texts are not kept: they are many times as large as the numbers, and nothing else asks for them.
    sources, targets = view.columns_once(SRC, DST)
    return Ends(_numbers(source, sources), _numbers(target, targets), source.count, target.count)


def _numbers(view: TableView, ids: pa.Array) -> Integers:
    found: Integers = view.positions_of(ids).fill_null(MISSING).to_numpy(zero_copy_only=False)
    return found.astype(narrow(view.count))
