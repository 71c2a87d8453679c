"""Nearest vectors by the index of the storage, where a query allows that a few are missed.

An index divides vectors into partitions, and a search looks at those whose centres are near. How many it takes depends
on the data: of vectors in clusters a few hold all that is near, of evenly spread ones hardly any do. So a search looks
at few partitions, and then at more: if both find the same, that is the answer, else it looks at all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from omnigraph.query.arrays import among
from omnigraph.query.view import Positions, TableView
from omnigraph.storage.layout import layout_of, partitions
from omnigraph.storage.read import ADDRESS

Floats = np.ndarray[Any, Any]

_SHARE = 32  # first one partition in so many is looked at
_MORE = 4  # then so many times as many
_LEAST = 10  # rows that two searches must agree on: one may be the same by chance
_SMALL = 16  # of fewer than one row in so many, comparing all of them costs less
_WIDER = 4


@dataclass(frozen=True, slots=True)
class Wanted:
    """The rows that the match has left, and how many of them are wanted."""

    left: Positions
    limit: int


def distances(vectors: Floats, query: Floats) -> Floats:
    """Return the squared distance of each vector."""
    # Computed from differences: products are not exact enough to order by.
    away = vectors - query
    return np.asarray(np.einsum("ij,ij->i", away, away).astype(np.float64))


def near_by_index(view: TableView, name: str, query: Floats, wanted: Wanted) -> tuple[Positions, Floats] | None:
    """Return rows with their exact distances, among them nearly all of the nearest; None if the index is no help.

    It depends on the state of the graph only, never on what is in memory: a query has one answer in one state.
    """
    count = view.cache.get((view.table, name, "@partitions"), lambda: _partitions(view, name), lambda _: 64)
    if count <= 1 or len(wanted.left) * _SMALL < view.count:
        return None
    return _Search(view, name, query, wanted, count).run()


def _partitions(view: TableView, name: str) -> int:
    """Return the number of partitions of the largest segment of an index; 0 without an index."""
    made_of = layout_of(view.tables, view.table)
    segments = made_of.indices.get(f"{name}_ivf_flat", ())
    covered = [sum(part.rows for part in made_of.parts if part.number in one.covers) for one in segments]
    return max(map(partitions, covered), default=0)


@dataclass(frozen=True, slots=True)
class _Search:
    view: TableView
    name: str
    query: Floats
    wanted: Wanted
    partitions: int

    def run(self) -> tuple[Positions, Floats] | None:
        enough = max(self.wanted.limit, _LEAST)
        pulled = int(enough * self.view.count / max(len(self.wanted.left), 1)) + _LEAST
        while pulled * _SMALL <= self.view.count:
            found = self._agreed(pulled, enough)
            if len(found[0]) >= enough:
                return found
            pulled *= _WIDER  # the match has left fewer of them than of the rest
        return None

    def _agreed(self, pulled: int, enough: int) -> tuple[Positions, Floats]:
        few = max(self.partitions // _SHARE, 1)
        # Always more than before: two looks at the same partitions would agree, whatever these lack.
        if few * _MORE < self.partitions:
            first, second = (self._probed(pulled, probes) for probes in (few, few * _MORE))
            if _nearest(first, enough) == _nearest(second, enough):
                return second
        return self._probed(pulled, self.partitions)

    def _probed(self, pulled: int, probes: int) -> tuple[Positions, Floats]:
        rows = self.view.tables.nearest(self.view.table, self.name, self.query, pulled, probes)
        positions = self.view.positions_at(rows[ADDRESS].to_numpy())
        vectors = rows[self.name].combine_chunks().flatten().to_numpy(zero_copy_only=False)
        away = distances(vectors.reshape(len(positions), -1), self.query)
        if len(self.wanted.left) == self.view.count:
            return positions, away
        kept = among(positions, self.wanted.left)
        return positions[kept], away[kept]


def _nearest(found: tuple[Positions, Floats], enough: int) -> set[int]:
    positions, away = found
    return {*positions[np.argsort(away, kind="stable")[:enough]].tolist()}
