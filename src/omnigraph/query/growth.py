"""What two versions of a table share: where the rows of the one are in the other.

A commit appends fragments and lists deleted rows; all other rows stay where they are. So what a query has made of one
version, such as an adjacency, becomes that of another one with the work of the rows that differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from omnigraph.api.results import TableVersion
from omnigraph.query.arrays import Integers, among
from omnigraph.storage.layout import Fragment, column_numbers, deleted_offsets, fragments, has_same_deletions
from omnigraph.storage.stage import TableStorage

GONE = -1


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of a fragment of the new version; `kept` are their positions in the old one, None if they are not there."""

    fragment: int
    count: int
    kept: Integers | slice | None


@dataclass(frozen=True)
class Growth:
    """A version of a table, piece by piece, as rows of another version and rows of its own."""

    before: int  # rows of the other version
    pieces: tuple[Piece, ...]

    @cached_property
    def is_plain(self) -> bool:
        """Whether every row of the other version is here, at the same position."""
        kept = [piece.kept for piece in self.pieces if isinstance(piece.kept, slice)]
        own = [piece.kept is None for piece in self.pieces]
        joined = all(one.stop == other.start for one, other in pairwise(kept))
        return len(kept) + sum(own) == len(own) and own == sorted(own) and joined and self.kept == self.before

    @property
    def kept(self) -> int:
        """How many rows of the other version are here."""
        return sum(piece.count for piece in self.pieces if piece.kept is not None)

    @property
    def own(self) -> list[int]:
        """The fragments whose rows are not in the other version."""
        return [piece.fragment for piece in self.pieces if piece.kept is None]

    @cached_property
    def added(self) -> Integers:
        """The positions of the rows of those fragments."""
        found = [np.arange(start, start + piece.count) for start, piece in self._starting() if piece.kept is None]
        return np.concatenate(found) if found else np.empty(0, np.int64)

    @cached_property
    def moved(self) -> Integers:
        """The position here of each row of the other version; -1 if it is gone."""
        moved = np.full(self.before, GONE, np.int64)
        for start, piece in self._starting():
            if piece.kept is not None:
                moved[piece.kept] = np.arange(start, start + piece.count)
        return moved

    @property
    def gone(self) -> Integers:
        """The positions, in the other version, of the rows that are not here."""
        return np.empty(0, np.int64) if self.is_plain else np.flatnonzero(self.moved == GONE)

    def arranged(self, old: Integers, own: Integers) -> Integers:
        """Put values of the rows of the other version, and those of the rows of its own, in order."""
        if self.is_plain:
            return np.concatenate([old, own.astype(old.dtype)])
        found = np.empty(self.kept + len(own), old.dtype)
        found[self.moved[self.moved != GONE]] = old[self.moved != GONE]
        found[self.added] = own
        return found

    def _starting(self) -> Iterator[tuple[int, Piece]]:
        start = 0
        for piece in self.pieces:
            yield start, piece
            start += piece.count


def growth(tables: TableStorage, since: TableVersion, table: TableVersion) -> Growth | None:
    """Compare two versions of a table; None if their rows are in another order, or their columns are others."""
    # After a change of the schema a name may stand for another column of the same file.
    if since != table and column_numbers(tables, since) != column_numbers(tables, table):
        return None
    known: dict[object, tuple[int, Fragment]] = {}
    before = 0
    for fragment in fragments(tables, since):
        known[fragment.files] = (before, fragment)
        before += fragment.live
    pieces, last = [], -1
    for fragment in fragments(tables, table):
        start, same = known.get(fragment.files, (last, None))
        if start < last:
            return None
        last = start
        kept = _kept(tables, (since, table), (same, fragment), start) if same else None
        pieces.append(Piece(fragment.number, fragment.live, kept))
    return Growth(before, tuple(pieces))


def _kept(
    tables: TableStorage, versions: tuple[TableVersion, TableVersion], pair: tuple[Fragment, Fragment], start: int
) -> Integers | slice | None:
    """Return the old positions of the rows of a fragment; None if rows that were deleted are back."""
    old, new = pair
    if has_same_deletions(old, new):
        return slice(start, start + old.live)
    before, after = (deleted_offsets(tables, *one) for one in zip(versions, pair, strict=True))
    if not among(before, after).all():
        return None
    live = np.setdiff1d(np.arange(old.rows), before, assume_unique=True)
    return start + np.flatnonzero(~among(live, after))
