"""The adjacency against pairs that are looked at one by one, and what it takes."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from omnigraph.lang.ir import Direction
from omnigraph.query.adjacency import Adjacency, build
from omnigraph.query.ends import Ends

NODES = 40


def random_ends(random: np.random.Generator, edges: int) -> Ends:
    """Ends with parallel edges, loops, and edges whose nodes are missing."""
    sources, targets = random.integers(-1, NODES, (2, edges), np.int32)
    sources[: edges // 4] = 5  # a hub
    return Ends(sources, targets, NODES, NODES)


def pairs_of(ends: Ends, direction: Direction) -> Counter[tuple[int, int]]:
    there = [pair for pair in zip(ends.sources.tolist(), ends.targets.tolist(), strict=True) if -1 not in pair]
    back = [(target, source) for source, target in there]
    both = there + [pair for pair in back if pair[0] != pair[1]]
    return Counter({Direction.OUT: there, Direction.IN: back, Direction.BOTH: both}[direction])


def listed(adjacent: Adjacency) -> list[tuple[int, int]]:
    rows, targets = adjacent.expand(np.arange(adjacent.origins))
    return list(zip(rows.tolist(), targets.tolist(), strict=True))


@pytest.mark.parametrize("direction", list(Direction))
@pytest.mark.parametrize("edges", [0, 1, 7, 60, 900])
def test_it_has_the_pairs_of_all_edges(direction: Direction, edges: int) -> None:
    ends = random_ends(np.random.default_rng(edges), edges)
    expected = pairs_of(ends, direction)

    made = build(ends, direction)

    assert listed(made) == sorted(expected.elements())
    assert listed(made.distinct) == sorted(expected)
    origins, targets = (side.ravel() for side in np.indices((NODES, NODES)))
    connected = made.connects(origins, targets)
    assert {*zip(origins[connected].tolist(), targets[connected].tolist(), strict=True)} == expected.keys()
    assert np.flatnonzero(made.loops).tolist() == sorted({start for start, end in expected if start == end})
    rows, reached, found = made.expand_edges(np.arange(NODES))
    for row, target, edge in zip(rows.tolist(), reached.tolist(), found.tolist(), strict=True):
        own = (int(ends.sources[edge]), int(ends.targets[edge]))
        assert (row, target) in {Direction.OUT: {own}, Direction.IN: {own[::-1]}}.get(direction, {own, own[::-1]})
    assert Counter(found.tolist()).keys() == {*np.flatnonzero(ends.whole).tolist()}


def test_it_takes_four_bytes_for_an_edge_and_four_for_its_position() -> None:
    nodes = np.arange(30_000, dtype=np.int32) % NODES
    ends = Ends(nodes, nodes, NODES, NODES)
    made = build(ends, Direction.OUT)

    kept = [made.targets, made.edges, made.starts]

    assert [array.dtype.itemsize for array in kept] == [4, 4, 8]
    assert sum(array.nbytes for array in kept) <= made.nbytes
    assert made.nbytes <= 8.1 * 30_000 + made.distinct.nbytes
