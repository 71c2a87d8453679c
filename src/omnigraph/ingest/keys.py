"""Exchange keys between tasks: files of 128-bit key hashes, divided by hash, so that equal keys meet in one task.

Rows stay where they are; only keys travel. Each key has a place, `at`: that of an input row, `task << 32 | row`, or the
address of a committed row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import pairwise
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.formats.hashing import U64, hash_columns
from omnigraph.storage.objects import ObjectStore

_ITEM = 24  # bytes of a key in a file: two halves of its number, and where it comes from
_ROW_BITS = 32
_HALF = np.uint64(32)
_NONE: U64 = np.empty(0, np.uint64)


class CollisionError(Exception):
    """Two different keys share half of their hashes. Another seed separates them."""


@dataclass(frozen=True)
class HashedKeys:
    """Hashes of keys, in the order of their places."""

    high: U64
    low: U64
    at: U64

    @classmethod
    def of(cls, columns: Sequence[pa.ChunkedArray], at: U64, seed: int) -> HashedKeys:
        """Hash rows, whose places ascend."""
        return HashedKeys(*hash_columns(columns, seed), at)

    @classmethod
    def joined(cls, parts: Iterable[HashedKeys]) -> HashedKeys:
        """Concatenate parts whose places ascend from one to the next."""
        found = list(parts)
        if not found:
            return HashedKeys(_NONE, _NONE, _NONE)
        return HashedKeys(*(np.concatenate([getattr(part, name) for part in found]) for name in ("high", "low", "at")))

    def __len__(self) -> int:
        return len(self.high)

    def where(self, chosen: np.ndarray[Any, Any]) -> Self:
        return type(self)(self.high[chosen], self.low[chosen], self.at[chosen])

    def without(self, at: U64) -> Self:
        """Leave out the keys from these places."""
        return self.where(~np.isin(self.at, at)) if len(at) else self

    def within(self, others: SortedKeys) -> np.ndarray[Any, Any]:
        """Return for each key whether it is among the others."""
        _ = others.starts  # raises if their hashes collide
        found = pc.index_in(pa.array(self.high), pa.array(others.high))
        same: np.ndarray[Any, Any] = found.is_valid().to_numpy(zero_copy_only=False)
        places = found.drop_null().to_numpy()
        # Matches are found by `high` alone; a different `low` means that two keys collide.
        if np.any(others.low[places] != (self.low if same.all() else self.low[same])):
            raise CollisionError
        return same

    def in_order(self) -> SortedKeys:
        order = _order(self.high)
        return SortedKeys(self.high[order], self.low[order], self.at[order])


class SortedKeys(HashedKeys):
    """Keys sorted by hash, equal ones by place."""

    @cached_property
    def starts(self) -> np.ndarray[Any, Any]:
        """The index of the first occurrence of each distinct key."""
        same = self.high[1:] == self.high[:-1]
        if np.any(same & (self.low[1:] != self.low[:-1])):
            raise CollisionError
        return np.flatnonzero(np.concatenate([[True], ~same])) if len(self) else np.empty(0, np.int64)

    @cached_property
    def counts(self) -> np.ndarray[Any, Any]:
        """The number of occurrences of each distinct key."""
        return np.diff(np.append(self.starts, len(self)))

    @property
    def later(self) -> U64:
        """The places of all occurrences but the first of each key."""
        first = np.zeros(len(self), bool)
        first[self.starts] = True
        return self.at[~first]

    @property
    def earlier(self) -> U64:
        """The places of all occurrences but the last of each key."""
        last = np.zeros(len(self), bool)
        last[self.starts + self.counts - 1] = True
        return self.at[~last]


def _order(numbers: U64) -> np.ndarray[Any, Any]:
    """Sort stably. Only repeated numbers are sorted stably, because that takes twice as long."""
    order: np.ndarray[Any, Any] = np.argsort(numbers)
    ordered = numbers[order]
    same = ordered[1:] == ordered[:-1]
    if same.any():
        repeated = np.concatenate([same, [False]]) | np.concatenate([[False], same])
        again = order[repeated]
        order[repeated] = again[np.lexsort((again, numbers[again]))]
    return order


def places(task: int, rows: int) -> U64:
    """Return the places of the rows of one task."""
    return (np.uint64(task << _ROW_BITS)) + np.arange(rows, dtype=np.uint64)


def task_of(at: U64) -> np.ndarray[Any, Any]:
    return (at >> np.uint64(_ROW_BITS)).astype(np.int64)


def row_of(at: U64) -> np.ndarray[Any, Any]:
    return (at & np.uint64(2**_ROW_BITS - 1)).astype(np.int64)


class KeyKind(StrEnum):
    ID = "id"
    UNIQUE = "unique"
    SOURCE = "source"  # the source of an edge, to count the edges of a node


@dataclass(frozen=True, slots=True)
class KeySpace:
    """A set of keys that are compared with each other: those of one kind, from one table and some of its columns."""

    kind: KeyKind
    table: str
    columns: tuple[str, ...] = ()


class KeyOrigin(StrEnum):
    """The rows that a key comes from."""

    NEW = "new"  # the input
    OLD = "old"  # committed rows
    LOST = "lost"  # committed rows that an overwrite removes


@dataclass(frozen=True, slots=True, order=True)
class EdgeEnd:
    """One end of the edges of a table, compared with the ids of nodes."""

    table: str
    column: str
    origin: KeyOrigin


KeyRole = KeyOrigin | EdgeEnd


@dataclass(frozen=True, slots=True)
class Section:
    """The keys of one space and role in a file: where they start, and where each share of them starts."""

    space: KeySpace
    role: KeyRole
    file: str
    start: int
    bounds: tuple[int, ...]

    @property
    def count(self) -> int:
        return self.bounds[-1]


class KeyFile:
    """The keys that one task writes for the others."""

    def __init__(self, name: str, shares: int) -> None:
        self.name = name
        self._shares = shares
        self._parts: list[bytes] = []
        self._size = 0
        self.sections: list[Section] = []

    def add(self, space: KeySpace, role: KeyRole, keys: HashedKeys) -> None:
        if not len(keys):
            return
        share = _share_of(keys.high, self._shares)
        order = np.argsort(share, kind="stable")
        bounds = (0, *np.cumsum(np.bincount(share, minlength=self._shares)).tolist())
        self.sections.append(Section(space, role, self.name, self._size, bounds))
        columns = [values[order] for values in (keys.high, keys.low, keys.at)]
        for begin, end in pairwise(bounds):
            self._parts += [values[begin:end].tobytes() for values in columns]
        self._size += len(keys) * _ITEM

    def add_plain(self, numbers: np.ndarray[Any, Any]) -> int:
        """Store some numbers beside the keys; return where they start."""
        start = self._size
        self._parts.append(numbers.tobytes())
        self._size += len(self._parts[-1])
        return start

    def write(self, objects: ObjectStore) -> None:
        if self._size:
            objects.write(self.name, b"".join(self._parts))


def _share_of(numbers: U64, shares: int) -> np.ndarray[Any, Any]:
    """Return the share of each number; shares are ranges of numbers."""
    share: np.ndarray[Any, Any] = (((numbers >> _HALF) * np.uint64(shares)) >> _HALF).astype(np.uint8)
    return share


def read_shares(objects: ObjectStore, sections: Iterable[Section], shares: Sequence[int]) -> HashedKeys:
    """Read some shares of some sections, in the order of the sections."""
    parts = []
    for section in sections:
        for share in shares:
            begin, end = section.bounds[share], section.bounds[share + 1]
            if begin < end:
                data = objects.read_range(section.file, section.start + begin * _ITEM, (end - begin) * _ITEM)
                parts.append(HashedKeys(*np.frombuffer(data, np.uint64).reshape(3, -1)))
    return HashedKeys.joined(parts)
