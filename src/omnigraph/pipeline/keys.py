"""Exchanging keys between tasks: sorted files of 128-bit key numbers, cut by number, so that each task gets its share.

Payload stays where it is; only keys travel. A key is met with where it comes from: `at` is the place of an input row,
`task << 32 | row`, or the address of a committed row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import pyarrow as pa

from omnigraph.pipeline.hashing import U64, hash_columns
from omnigraph.storage.objects import ObjectStore

_ITEM = 24  # bytes of a key in a file: two halves of its number, and where it comes from
_ROW_BITS = 32


class CollisionError(Exception):
    """Two keys that differ share half of their numbers. Another seed numbers them apart."""


@dataclass(frozen=True)
class Keys:
    """Keys in the order of their numbers."""

    high: U64
    low: U64
    at: U64

    @classmethod
    def of(cls, columns: Sequence[pa.ChunkedArray], at: U64, seed: int) -> Self:
        """Number rows, whose places ascend."""
        high, low = hash_columns(columns, seed)
        order = np.argsort(high)
        ordered = high[order]
        if np.any(ordered[1:] == ordered[:-1]):  # then their places must ascend as well, which takes longer
            order = np.argsort(high, kind="stable")
        return cls(high[order], low[order], at[order])

    @classmethod
    def merged(cls, parts: Iterable[Keys]) -> Self:
        """Put parts together whose places ascend from one to the next."""
        found = list(parts)
        if not found:
            none = np.empty(0, np.uint64)
            return cls(none, none, none)
        high, low, at = (np.concatenate([getattr(part, name) for part in found]) for name in ("high", "low", "at"))
        order = np.argsort(high, kind="stable")
        return cls(high[order], low[order], at[order])

    def __len__(self) -> int:
        return len(self.high)

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

    def within(self, others: Keys) -> np.ndarray[Any, Any]:
        """Tell of each key whether it is among the others."""
        if not len(others):
            return np.zeros(len(self), bool)
        _ = others.starts  # sees that their numbers are good
        found = np.minimum(np.searchsorted(others.high, self.high), len(others) - 1)
        same: np.ndarray[Any, Any] = others.high[found] == self.high
        if np.any(same & (others.low[found] != self.low)):
            raise CollisionError
        return same

    def where(self, chosen: np.ndarray[Any, Any]) -> Self:
        return type(self)(self.high[chosen], self.low[chosen], self.at[chosen])

    def without(self, at: U64) -> Self:
        """Leave out the keys that come from these places."""
        return self.where(~np.isin(self.at, at)) if len(at) else self

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

    def add(self, space: str, role: str, keys: Keys) -> None:
        if not len(keys):
            return
        cuts = np.searchsorted(keys.high, _cuts(self._shares)).tolist()
        self.sections.append(Section(space, role, self.name, self._size, (0, *cuts, len(keys))))
        packed = np.stack([keys.high, keys.low, keys.at], axis=1).tobytes()
        self._parts.append(packed)
        self._size += len(packed)

    def add_plain(self, numbers: np.ndarray[Any, Any]) -> int:
        """Keep some numbers beside the keys; return where they begin."""
        start = self._size
        self._parts.append(numbers.tobytes())
        self._size += len(self._parts[-1])
        return start

    def write(self, objects: ObjectStore) -> None:
        if self._size:
            objects.write(self.name, b"".join(self._parts))


def _cuts(shares: int) -> U64:
    return np.array([(at << 64) // shares for at in range(1, shares)], np.uint64)


def read_share(objects: ObjectStore, sections: Iterable[Section], share: int) -> Keys:
    """Read one share of the keys of some sections."""
    parts = []
    for section in sections:
        begin, end = section.bounds[share], section.bounds[share + 1]
        if begin < end:
            data = objects.read_range(section.file, section.start + begin * _ITEM, (end - begin) * _ITEM)
            items = np.frombuffer(data, np.uint64).reshape(-1, 3)
            parts.append(Keys(items[:, 0].copy(), items[:, 1].copy(), items[:, 2].copy()))
    return Keys.merged(parts)
