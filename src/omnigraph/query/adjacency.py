"""Compressed adjacency (CSR) of one edge type in one direction, built from the ends of all edges."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from omnigraph.core.nonblocking import may_block
from omnigraph.lang.ir import Direction
from omnigraph.query.arrays import Integers, Mask, among, narrow, spread, without_repeats
from omnigraph.query.ends import Ends, ends_of, growths, known_ends, own_ends
from omnigraph.query.memory import check_room
from omnigraph.query.view import GraphView, Positions


@dataclass(frozen=True)
class Adjacency:
    """The targets of the edges of each origin, in order. Edge positions are computed on first use.

    What it keeps for each edge has 32 bits wherever these suffice; what it returns has 64, so that callers can
    multiply positions.
    """

    origins: int
    targets_count: int
    starts: Integers  # of origin i: from starts[i] to starts[i + 1]
    targets: Integers
    find_edges: Callable[[], Integers] = field(repr=False)
    dangling: int = 0  # edges that are left out, because a node is missing

    @classmethod
    def of(cls, codes: Integers, origins: int, targets_count: int, find_edges: Callable[[], Integers]) -> Adjacency:
        """Build it from sorted pairs of origin and target, each packed into one number."""
        # Where there are no targets there are no codes either; `max` only keeps the remainder defined.
        starts = np.searchsorted(codes, np.arange(origins + 1) * targets_count)
        targets = (codes % max(targets_count, 1)).astype(narrow(targets_count))
        return cls(origins, targets_count, starts, targets, find_edges)

    @property
    def nbytes(self) -> int:
        """Its size with everything computed. The cache must charge for what is added later, too."""
        apart = 0 if self.distinct is self else self.distinct.starts.nbytes + self.distinct.targets.nbytes
        return int(self.starts.nbytes + 2 * self.targets.nbytes + apart)

    @cached_property
    def edges(self) -> Integers:
        may_block()  # orders all edges
        return self.find_edges()

    @cached_property
    def distinct(self) -> Adjacency:
        """The adjacency without parallel edges."""
        may_block()  # computed from all edges
        new = np.ones(len(self.targets), bool)
        new[1:] = self.targets[1:] != self.targets[:-1]
        new[self.starts[:-1][np.diff(self.starts) > 0]] = True  # the first target of an origin is new in any case
        if new.all():
            return self
        starts = np.concatenate([[0], np.cumsum(new)])[self.starts]
        return Adjacency(self.origins, self.targets_count, starts, self.targets[new], _no_edges)

    def expand(self, origins: Positions) -> tuple[Integers, Integers]:
        """Follow the edges of some origins; return for each edge the index of its origin, and its target."""
        counts = self.degrees(origins)
        places = spread(self.starts[origins], counts)
        return np.repeat(np.arange(len(origins)), counts), self.targets[places].astype(np.int64)

    def expand_edges(self, origins: Positions) -> tuple[Integers, Integers, Integers]:
        """Like `expand`, with the positions of the edges."""
        rows, targets = self.expand(origins)
        return rows, targets, self.edges[spread(self.starts[origins], self.degrees(origins))].astype(np.int64)

    def targets_of(self, origins: Positions) -> Integers:
        """Return the targets of the edges of some origins, origin by origin; maybe of 32 bits."""
        # All origins in order, as after a scan without predicates: return the whole array without copying it.
        if len(origins) == self.origins and np.array_equal(origins, np.arange(self.origins)):
            return self.targets
        targets: Integers = self.targets[spread(self.starts[origins], self.degrees(origins))]
        return targets

    def degrees(self, origins: Positions) -> Integers:
        """Return the number of edges of each origin."""
        return self.starts[origins + 1] - self.starts[origins]

    def connects(self, origins: Positions, targets: Positions) -> Mask:
        """Return which pairs an edge connects."""
        if not len(self.targets):
            return np.zeros(len(origins), bool)
        at = self.places(origins, targets)
        last = len(self.targets) - 1
        return np.asarray((at < self.starts[origins + 1]) & (self.targets[np.minimum(at, last)] == targets))

    def places(self, origins: Positions, targets: Positions) -> Integers:
        """Return where the first edge of each pair is, or would be: a binary search of all pairs at once."""
        low, high = self.starts[origins], self.starts[origins + 1]
        # As often as the largest interval can be halved. Those that are settled stay as they are.
        for _ in range(int((high - low).max(initial=0)).bit_length()):
            middle = (low + high) // 2
            is_open = low < high
            before = is_open & (self.targets[np.where(is_open, middle, 0)] < targets)
            low = np.where(before, middle + 1, low)
            high = np.where(is_open & ~before, middle, high)
        return low

    def only(self, wanted: Mask) -> Adjacency:
        """Return it with some edges only, given as a flag for each position."""
        kept = wanted[self.edges]
        starts = np.concatenate([[0], np.cumsum(kept)])[self.starts]
        return Adjacency(self.origins, self.targets_count, starts, self.targets[kept], lambda: self.edges[kept])

    def resized(self, origins: int, targets_count: int, find_edges: Callable[[], Integers]) -> Adjacency:
        """Return the same edges among more nodes."""
        starts = np.append(self.starts, np.full(origins - self.origins, self.starts[-1]))
        targets = self.targets.astype(narrow(targets_count), copy=False)
        return Adjacency(origins, targets_count, starts, targets, find_edges, self.dangling)

    def without(self, origins: Positions, targets: Positions) -> Adjacency:
        """Return it without one edge for each of these pairs, which it has."""
        order = np.lexsort((targets, origins))
        origins, targets = origins[order], targets[order]
        # Of parallel edges each takes a place of its own, behind those of the pairs before it that are the same.
        new = np.ones(len(origins), bool)
        new[1:] = (origins[1:] != origins[:-1]) | (targets[1:] != targets[:-1])
        numbers = np.arange(len(origins))
        places = self.places(origins, targets) + numbers - numbers[new][np.cumsum(new) - 1]
        return replace(self, starts=self._shifted(origins, -1), targets=np.delete(self.targets, places))

    def having(self, origins: Positions, targets: Positions, dangling: int) -> Adjacency:
        """Return it with an edge more for each of these pairs, and so many that are left out."""
        order = np.lexsort((targets, origins))
        origins, targets = origins[order], targets[order]
        found = np.insert(self.targets, self.places(origins, targets), targets.astype(self.targets.dtype))
        return replace(self, starts=self._shifted(origins, 1), targets=found, dangling=dangling)

    def _shifted(self, origins: Positions, by: int) -> Integers:
        """Return where each origin begins after its edges have become more, or fewer."""
        shifts = np.zeros(len(self.starts), self.starts.dtype)
        np.add.at(shifts, origins + 1, by)
        return np.asarray(self.starts + np.cumsum(shifts))

    @cached_property
    def loops(self) -> Mask:
        """Return which nodes have an edge to themselves."""
        may_block()  # computed from all edges
        at = np.zeros(max(self.origins, self.targets_count, 1), bool)
        origins = np.repeat(np.arange(self.origins, dtype=self.targets.dtype), np.diff(self.starts))
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
    return graph.cache.grown(
        adjacency_family(graph, edge_type, direction),
        adjacency_key(graph, edge_type, direction),
        lambda other, old: _grown(graph, edge_type, other, old),
        lambda: build(ends_of(graph, edge_type), direction),
        lambda made: made.nbytes,
    )


def _grown(graph: GraphView, edge_type: str, other: Any, old: Adjacency) -> Adjacency | None:
    """Return the adjacency of these versions, made of that of others; None if nodes have moved, or too much is new."""
    *versions, direction = other
    found = growths(graph, edge_type, tuple(versions))
    # Where nodes have moved, nearly every target is another number: then sorting the ends again costs no more.
    if found is None or not found[1].is_plain or not found[2].is_plain:
        return None
    before, gone = known_ends(graph, tuple(versions)), found[0].gone
    if (len(gone) or old.dangling) and before is None:
        return None
    if old.dangling and (len(found[1].added) or len(found[2].added)):
        return None  # an edge that led nowhere may lead to a node that is new
    added = own_ends(graph, edge_type, found[0])
    made = old.resized(*added.counts(direction), lambda: _edges(ends_of(graph, edge_type), direction))
    if before is not None and len(gone):
        made = made.without(*before.chosen(gone).pairs(direction))
    return made.having(*added.pairs(direction), old.dangling + len(added) - int(added.whole.sum()))


def adjacency_family(graph: GraphView, edge_type: str, direction: Direction) -> Hashable:
    """Return what the adjacencies of all versions have in common."""
    return (*(view.table.path for view in graph.ends(edge_type)), direction)


def adjacency_key(graph: GraphView, edge_type: str, direction: Direction) -> Hashable:
    """Return the cache key of the adjacency."""
    return (*(view.table for view in graph.ends(edge_type)), direction)


def build(ends: Ends, direction: Direction) -> Adjacency:
    """Order the ends of all edges by origin and target."""
    check_room(len(ends), _COPIES)
    codes = ends.codes(direction)
    codes.sort()  # in place: a second array of this size would double the memory
    made = Adjacency.of(codes, *ends.counts(direction), lambda: _edges(ends, direction))
    return replace(made, dangling=len(ends) - int(ends.whole.sum()))


def _edges(ends: Ends, direction: Direction) -> Integers:
    # Parallel edges are in no order here; a step that returns edges sorts them by id.
    edges = ends.edges(direction)
    return edges[np.argsort(ends.codes(direction))].astype(narrow(len(ends)))


def walk(adjacent: Adjacency, origins: Positions, steps: Steps) -> tuple[Integers, Integers]:
    """Walk breadth-first over nodes of one type; return pairs of origin and node reached within the bounds.

    A node is met where it is first reached. One with a loop is met one step later as well, for the loop is walked once
    and leads nowhere; that is the node where the walk ends, which going backwards is the origin.
    """
    found = [*_walked(adjacent.distinct, origins, steps, 0)]
    size = max(adjacent.targets_count, 1)
    met = np.concatenate(found)
    return met // size, met % size


def _walked(pairs: Adjacency, origins: Positions, steps: Steps, first: int) -> Iterator[Integers]:
    """Walk from some origins, of which the first has a number; yield packed pairs in order, part by part."""
    size = max(pairs.targets_count, 1)
    # The walks of all origins run at once: a pair of origin and node is one number, so one array is one frontier.
    start = np.arange(len(origins)) * size + origins
    visited = _Flags(len(origins) * size, start) if len(origins) * size <= _MOST_FLAGS else _Codes(start)
    loops = pairs.loops
    found = [start[loops[origins]]] if steps.least == 1 else []
    fresh = start
    for depth in range(1, steps.most + 1):
        if not len(fresh):
            break
        reached = int(pairs.degrees(fresh % size).sum())
        if reached > _MOST_REACHED and len(origins) > 1:
            # Each half from its beginning: a step of so many pairs takes too much memory, and too long, at once.
            half = len(origins) // 2
            yield from _walked(pairs, origins[:half], steps, first)
            yield from _walked(pairs, origins[half:], steps, first + half)
            return
        # Before the step is taken: what it reaches, what is known already, and what the walk has found.
        check_room(reached + len(visited) + sum(map(len, found)), _COPIES)
        fresh = visited.add(_followed(pairs, fresh, size))
        if depth >= steps.least:
            found.append(fresh)
        elif depth == steps.least - 1:
            ends = origins[fresh // size] if steps.backwards else fresh % size
            found.append(fresh[loops[ends]])
    met = np.sort(np.concatenate(found)) if found else np.empty(0, np.int64)
    yield met + first * size


_MOST_REACHED = 2**23  # pairs of one step, if there are several origins
_MOST_FLAGS = 2**25  # bytes, one for each pair
_COPIES = 3  # of the pairs of a step, while they are packed, sorted and compared


def _followed(pairs: Adjacency, codes: Integers, size: int) -> Integers:
    """Take one step from packed pairs of origin and node."""
    rows, nodes = np.divmod(codes, size)
    targets = pairs.targets_of(nodes)
    if len(rows) and rows[-1] == 0:  # there is one origin only
        return targets.astype(np.int64)
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
