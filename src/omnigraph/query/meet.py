"""Nodes that several hops all lead to: the heart of triangles and other cycles.

The targets of the arm with the fewest are tried on the others, row by row, so that the work is that of the smallest
lists, whatever the order of the clauses. Pairs that no arm agrees on are never made rows of.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from omnigraph.core.running import proceed
from omnigraph.query.adjacency import Adjacency
from omnigraph.query.arrays import Integers
from omnigraph.query.memory import check_room

_PART = 2**20  # candidates that are tried at once: what they take stays small


def meeting(arms: Sequence[Adjacency], origins: Sequence[Integers]) -> Iterator[tuple[Integers, Integers]]:
    """Find the common targets of rows: part by part the index of the row of each, and the target."""
    check_room(len(origins[0]), 2 * len(arms))
    degrees = np.stack([arm.degrees(near) for arm, near in zip(arms, origins, strict=True)])
    fewest = degrees.argmin(axis=0)
    for at in range(len(arms)):
        yield from _tried(arms, origins, at, np.flatnonzero((fewest == at) & (degrees[at] > 0)))


def met(parts: Iterable[tuple[Integers, Integers]], columns: int) -> tuple[Integers, Integers]:
    """Join the parts, in the order of the rows."""
    found, count = [], 0
    for part in parts:
        found.append(part)
        count += len(part[0])
        check_room(count, columns)
    if not found:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    rows, targets = (np.concatenate(side) for side in zip(*found, strict=True))
    order = np.argsort(rows, kind="stable")
    return rows[order], targets[order]


def _tried(
    arms: Sequence[Adjacency], origins: Sequence[Integers], at: int, rows: Integers
) -> Iterator[tuple[Integers, Integers]]:
    """Follow one arm from some rows, and keep what the others lead to as well."""
    for some in _parts(rows, arms[at].degrees(origins[at][rows])):
        proceed()
        which, targets = arms[at].expand(origins[at][some])
        which = some[which]
        for other, (arm, near) in enumerate(zip(arms, origins, strict=True)):
            if other != at:
                there = arm.connects(near[which], targets)
                which, targets = which[there], targets[there]
        yield which, targets


def _parts(rows: Integers, counts: Integers) -> Iterator[Integers]:
    """Divide rows so that each part has about as many candidates."""
    if not len(rows):
        return
    parts = np.cumsum(counts) // _PART
    for part in np.split(rows, np.flatnonzero(np.diff(parts)) + 1):
        if len(part):
            yield part
