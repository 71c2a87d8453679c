"""Exchanging keys between tasks: files of 128-bit key numbers, cut by number, so that each task gets its share.

Payload stays where it is; only keys travel. A key is met with where it comes from: `at` is the place of an input row,
`task << 32 | row`, or the address of a committed row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
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
    """Two keys that differ share half of their numbers. Another seed numbers them apart."""


@dataclass(frozen=True)
class Numbered:
    """Keys in the order of their places."""

    high: U64
    low: U64
    at: U64

    @classmethod
    def of(cls, columns: Sequence[pa.ChunkedArray], at: U64, seed: int) -> Numbered:
        """Number rows, whose places ascend."""
        return Numbered(*hash_columns(columns, seed), at)

    @classmethod
    def joined(cls, parts: Iterable[Numbered]) -> Numbered:
        """Put parts together whose places ascend from one to the next."""
        found = list(parts)
        if not found:
            return Numbered(_NONE, _NONE, _NONE)
        return Numbered(*(np.concatenate([getattr(part, name) for part in found]) for name in ("high", "low", "at")))

    def __len__(self) -> int:
        return len(self.high)

    def where(self, chosen: np.ndarray[Any, Any]) -> Self:
        return type(self)(self.high[chosen], self.low[chosen], self.at[chosen])

    def without(self, at: U64) -> Self:
        """Leave out the keys that come from these places."""
        return self.where(~np.isin(self.at, at)) if len(at) else self

    def within(self, others: Keys) -> np.ndarray[Any, Any]:
        """Tell of each key whether it is among the others."""
        _ = others.starts  # sees that their numbers are good
        found = pc.index_in(pa.array(self.high), pa.array(others.high))
        same: np.ndarray[Any, Any] = found.is_valid().to_numpy(zero_copy_only=False)
        places = found.drop_null().to_numpy()
        if np.any(others.low[places] != (self.low if same.all() else self.low[same])):
            raise CollisionError
        return same

    def in_order(self) -> Keys:
        order = _order(self.high)
        return Keys(self.high[order], self.low[order], self.at[order])


class Keys(Numbered):
    """Keys in the order of their numbers, and those of one number in that of their places."""

    @cached_property
    def starts(self) -> np.ndarray[Any, Any]:
        """Where each distinct key begins."""
        same = self.high[1:] == self.high[:-1]
        if np.any(same & (self.low[1:] != self.low[:-1])):
            raise CollisionError
        return np.flatnonzero(np.concatenate([[True], ~same])) if len(self) else np.empty(0, np.int64)

    @cached_property
    def counts(self) -> np.ndarray[Any, Any]:
        """How often each distinct key occurs."""
        return np.diff(np.append(self.starts, len(self)))

    @property
    def later(self) -> U64:
        """Where each key comes from after the first time."""
        first = np.zeros(len(self), bool)
        first[self.starts] = True
        return self.at[~first]

    @property
    def earlier(self) -> U64:
        """Where each key comes from before the last time."""
        last = np.zeros(len(self), bool)
        last[self.starts + self.counts - 1] = True
        return self.at[~last]


def _order(numbers: U64) -> np.ndarray[Any, Any]:
    """Sort so that equal numbers stay as they are; only for those, since it takes twice as long."""
    order: np.ndarray[Any, Any] = np.argsort(numbers)
    ordered = numbers[order]
    same = ordered[1:] == ordered[:-1]
    if same.any():
        repeated = np.concatenate([same, [False]]) | np.concatenate([[False], same])
        again = order[repeated]
        order[repeated] = again[np.lexsort((again, numbers[again]))]
    return order


def places(task: int, rows: int) -> U64:
    """The places of the rows of one task's input."""
    return (np.uint64(task << _ROW_BITS)) + np.arange(rows, dtype=np.uint64)


def task_of(at: U64) -> np.ndarray[Any, Any]:
    return (at >> np.uint64(_ROW_BITS)).astype(np.int64)


def row_of(at: U64) -> np.ndarray[Any, Any]:
    return (at & np.uint64(2**_ROW_BITS - 1)).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Section:
    """Keys of one space and role in a file: where they begin in it, and where each share of them does."""

    space: str
    role: str
    file: str
    start: int
    bounds: tuple[int, ...]

    @property
    def count(self) -> int:
        return self.bounds[-1]


class KeyFile:
    """The keys that one task hands on."""

    def __init__(self, name: str, shares: int) -> None:
        self.name = name
        self._shares = shares
        self._parts: list[bytes] = []
        self._size = 0
        self.sections: list[Section] = []

    def add(self, space: str, role: str, keys: Numbered) -> None:
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
        """Keep some numbers beside the keys; return where they begin."""
        start = self._size
        self._parts.append(numbers.tobytes())
        self._size += len(self._parts[-1])
        return start

    def write(self, objects: ObjectStore) -> None:
        if self._size:
            objects.write(self.name, b"".join(self._parts))


def _share_of(numbers: U64, shares: int) -> np.ndarray[Any, Any]:
    """Tell which share each number belongs to: the first ones have the smallest."""
    share: np.ndarray[Any, Any] = (((numbers >> _HALF) * np.uint64(shares)) >> _HALF).astype(np.uint8)
    return share


def read_shares(objects: ObjectStore, sections: Iterable[Section], shares: Sequence[int]) -> Numbered:
    """Read some shares of the keys of some sections, in the order of the sections."""
    parts = []
    for section in sections:
        for share in shares:
            begin, end = section.bounds[share], section.bounds[share + 1]
            if begin < end:
                data = objects.read_range(section.file, section.start + begin * _ITEM, (end - begin) * _ITEM)
                parts.append(Numbered(*np.frombuffer(data, np.uint64).reshape(3, -1)))
    return Numbered.joined(parts)
