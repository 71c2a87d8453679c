"""Which way edges are found: in the adjacency of the whole table, or by looking up those of a few nodes.

The adjacency takes a scan of the whole edge table, is kept, and answers everything from then on. A lookup by the `src`
or `dst` index costs per node, every time. Like renting before buying: as long as all lookups together have cost less
than the adjacency would, the next small one is a lookup; then the adjacency is built.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.errors import ParameterError
from omnigraph.lang.ir import Direction, Expand
from omnigraph.query.adjacency import Adjacency, Steps, adjacency, adjacency_key
from omnigraph.query.arrays import Integers
from omnigraph.query.view import GraphView, Positions, TableView
from omnigraph.storage.layout import layout_of
from omnigraph.storage.read import ADDRESS, DST, SRC

VARIABLE = "OMNIGRAPH_EXPANSION"
# Measured in microseconds: a node looked up by index, an edge that no index covers and so is scanned, and an edge of an
# adjacency that is built. Only how they compare matters.
_LOOKUP, _SCANNED, _BUILT = 60.0, 0.02, 0.35
SMALL_EDGES = 200_000  # an edge table up to so many rows is read whole at once


class Mode(StrEnum):
    """How edges are found, if the environment prescribes it."""

    AUTO = "auto"
    INDEX = "index"
    ADJACENCY = "adjacency"


@dataclass(frozen=True, slots=True)
class Choice:
    """How edges were found, and why; reported by `explain`."""

    mode: Mode
    reason: str


@dataclass(frozen=True, slots=True)
class Reach:
    """Adjacency with at least the edges of some origins, and the number of each origin in it.

    `nodes` are the positions of its targets; None where these are numbered by position already.
    """

    adjacent: Adjacency
    numbers: Integers
    nodes: Positions | None
    choice: Choice

    def positions(self, targets: Integers) -> Positions:
        return targets if self.nodes is None else self.nodes[targets]


def mode_of(environment: os._Environ[str] | dict[str, str] = os.environ) -> Mode:
    """Return the mode that the environment prescribes."""
    wish = environment.get(VARIABLE, Mode.AUTO)
    if wish not in list(Mode):
        message = f"{VARIABLE} is '{wish}'"
        raise ParameterError(message, parameter=VARIABLE, hint=f"set it to {', '.join(Mode)}, or not at all")
    return Mode(wish)


def follow(graph: GraphView, step: Expand, origins: Positions, hops: Steps) -> Reach:
    """Find the edges that a step follows from some origins, which may repeat."""
    choice, rent = _choose(graph, step, origins, hops)
    if choice.mode is Mode.ADJACENCY:
        return Reach(adjacency(graph, step.edge_type, step.direction), origins, None, choice)
    begun = time.perf_counter()
    found = _followed(graph, step, origins, hops, choice)
    # As it was estimated, and no less than it took: a hub has more edges than the mean.
    spent = max(rent, (time.perf_counter() - begun) * 1e6)
    graph.cache.spend(adjacency_key(graph, step.edge_type, step.direction), spent)
    return found


def _followed(graph: GraphView, step: Expand, origins: Positions, hops: Steps, choice: Choice) -> Reach:
    # Many rows may begin at one node: it is looked up once.
    distinct, inverse = np.unique(origins, return_inverse=True)
    if hops.most == 1:
        return Reach(_looked_up(graph, step, distinct), inverse, None, choice)
    adjacent, nodes = _explored(graph, step, distinct, hops.most)
    return Reach(adjacent, np.searchsorted(nodes, distinct)[inverse], nodes, choice)


def adjacency_used(graph: GraphView, step: Expand, origins: Positions) -> tuple[Adjacency | None, Choice]:
    """Return the adjacency if one hop from these origins is done with it; None if the edges are looked up."""
    choice, _ = _choose(graph, step, origins, Steps(1, 1))
    found = adjacency(graph, step.edge_type, step.direction) if choice.mode is Mode.ADJACENCY else None
    return found, choice


# Choosing ------------------------------------------------------------------------------------------


def _choose(graph: GraphView, step: Expand, origins: Positions, hops: Steps) -> tuple[Choice, float]:
    """Return how to find the edges, and what looking them up costs."""
    wish = mode_of()
    if wish is not Mode.AUTO:
        return Choice(wish, f"{VARIABLE} says so"), 0.0
    view = graph.edge(step.edge_type)
    key = adjacency_key(graph, step.edge_type, step.direction)
    # Before the layout is read: a warm query must not make a request to find out what it has in memory.
    if graph.cache.holds(key):
        return Choice(Mode.ADJACENCY, "it is in memory"), 0.0
    if view.count <= SMALL_EDGES:
        return Choice(Mode.ADJACENCY, f"there are only {view.count} edges"), 0.0
    lookups = _lookups(graph, step, origins, hops)
    bare = _uncovered(view, step.direction)
    rent, price = lookups * _LOOKUP + bare * _SCANNED, view.count * _BUILT
    if bare == view.count:
        return Choice(Mode.ADJACENCY, "no index covers the edges"), 0.0
    if graph.cache.spent(key) + rent > price:
        reason = f"about {lookups:.0f} lookups more would cost more than all {view.count} edges"
        return Choice(Mode.ADJACENCY, reason), 0.0
    return Choice(Mode.INDEX, f"about {lookups:.0f} lookups cost less than all {view.count} edges"), rent


def _lookups(graph: GraphView, step: Expand, origins: Positions, hops: Steps) -> float:
    """Estimate how many nodes will be looked up: each hop multiplies by the mean degree."""
    degree = graph.edge(step.edge_type).count / max(graph.node(step.target_type).count, 1)
    directions = 2 if step.direction is Direction.BOTH else 1
    return directions * len(origins) * sum(degree**hop for hop in range(hops.most))


def _uncovered(view: TableView, direction: Direction) -> int:
    """Count the edges that the index on the near end does not cover."""
    return view.cache.get((view.table, direction, "@bare"), lambda: _count_uncovered(view, direction), lambda _: 64)


def _count_uncovered(view: TableView, direction: Direction) -> int:
    made_of = layout_of(view.tables, view.table)
    covered = [made_of.covered(f"{column}_btree") for column in _columns(direction)]
    return sum(part.rows for part in made_of.parts if not all(part.number in one for one in covered))


def _columns(direction: Direction) -> tuple[str, ...]:
    return {Direction.OUT: (SRC,), Direction.IN: (DST,), Direction.BOTH: (SRC, DST)}[direction]


# Looking up ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Edges:
    """Edges: their near and far ends as positions, and their addresses."""

    near: Integers
    far: Integers
    addresses: Integers


def _looked_up(graph: GraphView, step: Expand, distinct: Positions) -> Adjacency:
    """Look up the edges of some origins, numbered in order."""
    found = _edges(graph, step, distinct)
    size = graph.node(step.target_type).count
    codes = np.searchsorted(distinct, found.near) * size + found.far
    return Adjacency.of(np.sort(codes), len(distinct), size, lambda: _places(graph, step, codes, found.addresses))


def _explored(graph: GraphView, step: Expand, distinct: Positions, most: int) -> tuple[Adjacency, Positions]:
    """Look up all edges within some hops of the origins; nodes are numbered in order of position."""
    parts, known, frontier = [], np.empty(0, np.int64), distinct
    for _ in range(most):
        parts.append(_edges(graph, step, frontier))
        known = np.union1d(known, frontier)
        # Only nodes that were not looked up yet; a cycle would otherwise be walked until `most`.
        frontier = np.setdiff1d(parts[-1].far, known)
        if not len(frontier):
            break
    near, far = (np.concatenate([getattr(part, side) for part in parts]) for side in ("near", "far"))
    nodes = np.union1d(known, far)
    codes = np.sort(np.searchsorted(nodes, near) * len(nodes) + np.searchsorted(nodes, far))
    return Adjacency.of(codes, len(nodes), len(nodes), lambda: np.empty(0, np.int64)), nodes


def _edges(graph: GraphView, step: Expand, origins: Positions) -> _Edges:
    """Look up the edges of some nodes."""
    parts = [_edges_by(graph, step, origins, column) for column in _columns(step.direction)]
    if len(parts) == 1:
        return parts[0]
    out, back = parts
    other = back.near != back.far  # a loop was already found by its source
    sides = ((out.near, back.near), (out.far, back.far), (out.addresses, back.addresses))
    return _Edges(*(np.concatenate([first, second[other]]) for first, second in sides))


def _edges_by(graph: GraphView, step: Expand, origins: Positions, column: str) -> _Edges:
    view, *ends = graph.ends(step.edge_type)
    near, far = ends if column == SRC else ends[::-1]
    ids = near.take(origins, "id")
    rows = view.tables.lookup(view.table, column, ids, [SRC, DST], addresses=True)
    starts = pc.index_in(rows[column].combine_chunks(), value_set=ids)
    targets = far.locate(rows[DST if column == SRC else SRC].combine_chunks())
    # An edge to a node that is missing matches nothing, exactly as in the adjacency.
    whole = targets.is_valid().to_numpy(zero_copy_only=False)
    return _Edges(
        origins[_integers(starts)][whole], _integers(targets)[whole], rows[ADDRESS].to_numpy().astype(np.int64)[whole]
    )


def _integers(positions: pa.Array) -> Integers:
    # Filled first: with nulls in it, NumPy would get floats, which cannot index.
    numbers: Integers = positions.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return numbers


def _places(graph: GraphView, step: Expand, codes: Integers, addresses: Integers) -> Positions:
    """Return the positions of edges in the order of their ends."""
    return graph.edge(step.edge_type).positions_at(addresses[np.argsort(codes)])
