"""The ends of all edges of a type as positions of nodes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from omnigraph.api.results import TableVersion
from omnigraph.lang.ir import Direction
from omnigraph.query.arrays import Integers, Mask, narrow
from omnigraph.query.growth import Growth
from omnigraph.query.view import GraphView, TableView
from omnigraph.storage.read import DST, ID, SRC

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

    def chosen(self, edges: Integers) -> Ends:
        """Return the ends of some edges."""
        return replace(self, sources=self.sources[edges], targets=self.targets[edges])

    @property
    def whole(self) -> Mask:
        return np.asarray((self.sources != MISSING) & (self.targets != MISSING))


Versions = tuple[TableVersion, TableVersion, TableVersion]
_ENDS = "@ends"


def ends_of(graph: GraphView, edge_type: str) -> Ends:
    """Return the ends of an edge type: resolved once, then both directions are made of them."""
    views = graph.ends(edge_type)
    return graph.cache.grown(
        (*(view.table.path for view in views), _ENDS),
        (*(view.table for view in views), _ENDS),
        lambda other, old: _grown(graph, edge_type, other[:3], old),
        lambda: _resolved(*views),
        lambda made: made.nbytes,
    )


def known_ends(graph: GraphView, versions: Versions) -> Ends | None:
    """Return the ends of other versions, if they are cached."""
    found: Ends | None = graph.cache.peek((*versions, _ENDS))
    return found


def growths(graph: GraphView, edge_type: str, versions: Versions) -> list[Growth] | None:
    """Return how the three tables of an edge type became what they are; None if that is not known of one of them."""
    found = [view.growth(since) for view, since in zip(graph.ends(edge_type), versions, strict=True)]
    known = [one for one in found if one is not None]
    return known if len(known) == len(found) else None


def own_ends(graph: GraphView, edge_type: str, grown: Growth) -> Ends:
    """Return the ends of the edges that another version lacks."""
    view, source, target = graph.ends(edge_type)
    own = view.own(grown, SRC, DST)
    ids = own or [pa.array([], pa.string())] * 2
    return Ends(
        _numbers(source, source.locate(ids[0])), _numbers(target, target.locate(ids[1])), source.count, target.count
    )


def _grown(graph: GraphView, edge_type: str, versions: Versions, old: Ends) -> Ends | None:
    found = growths(graph, edge_type, versions)
    if found is None:
        return None
    edges, *nodes = found
    # An edge that led nowhere may lead to a node that is new.
    if not old.whole.all() and any(len(one.added) for one in nodes):
        return None
    _, source, target = graph.ends(edge_type)
    own = own_ends(graph, edge_type, edges)
    sources = edges.arranged(_followed(source, nodes[0], versions[1], old.sources), own.sources)
    targets = edges.arranged(_followed(target, nodes[1], versions[2], old.targets), own.targets)
    return Ends(sources, targets, source.count, target.count)


def _followed(view: TableView, grown: Growth, since: TableVersion, ends: Integers) -> Integers:
    """Return where the nodes are that edges of another version have at an end."""
    moved = _moved(view, grown, since)
    kept = ends if moved is None else np.append(moved, MISSING)[ends]  # of a missing node, -1, the last number
    return kept.astype(narrow(view.count), copy=False)


def _moved(view: TableView, grown: Growth, since: TableVersion) -> Integers | None:
    """Return where each node of another version is; None if all are where they were."""
    if grown.is_plain:
        return None
    moved, gone = grown.moved.copy(), grown.gone
    if len(gone):
        # An update deletes a row and writes it again: the node is there, at another position.
        ids = replace(view, table=since, count=grown.before).take(gone, ID)
        moved[gone] = _numbers(view, view.locate(ids))
    return moved


def _resolved(view: TableView, source: TableView, target: TableView) -> Ends:
    # The texts are not kept: they are many times as large as the numbers, and nothing else asks for them.
    sources, targets = view.columns_once(SRC, DST)
    ends = (_numbers(source, source.positions_of(sources)), _numbers(target, target.positions_of(targets)))
    return Ends(*ends, source.count, target.count)


def _numbers(view: TableView, positions: pa.Array) -> Integers:
    found: Integers = positions.fill_null(MISSING).to_numpy(zero_copy_only=False)
    return found.astype(narrow(view.count))
