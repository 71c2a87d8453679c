"""Exchange keys between tasks: 128-bit hashes, divided into shares by hash, so that equal keys meet in one task.

Keys are equal if all 128 bits are: among a trillion different keys, two share a hash with a chance of 2**-49. Half of
the bits would be too few, since among six billion keys two share a half more often than not; but one half finds nearly
all matches, and the other one confirms them. Rows stay where they are; only keys travel. Each key has a place, `at`:
that of an input row, `task << 32 | row`, or the address of a committed row.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.core.executor import Parcel
from omnigraph.formats.batch import Numbers
from omnigraph.formats.columns import BYTE_MASKS, WORD, overlapping_words
from omnigraph.formats.writers import without_dates
from omnigraph.lang.catalog import Catalog, EdgeType, NodeType
from omnigraph.storage.columns import table_key
from omnigraph.storage.read import DST, SRC

U64 = np.ndarray[Any, np.dtype[np.uint64]]

_ROW_BITS = 32
_HALF = np.uint64(32)
_NONE: U64 = np.empty(0, np.uint64)
_PAIR = np.dtype([("high", np.uint64), ("low", np.uint64)])
_TEXTS = 2**14
_KEY_BYTES = 24
_PARCEL_BYTES = 2**19
MOST_SHARES = 1024
# Odd multipliers with well spread bits, one for each half.
_FACTORS = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F))
_FINISH = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_SHIFT = np.uint64(29)


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

    def where(self, chosen: Numbers) -> Self:
        return type(self)(self.high[chosen], self.low[chosen], self.at[chosen])

    def without(self, at: U64) -> Self:
        """Leave out the keys from these places."""
        return self.where(~np.isin(self.at, at)) if len(at) else self

    def distinct(self) -> HashedKeys:
        """Return each key once, without a place."""
        found = pc.dictionary_encode(pa.array(self.high))
        index = found.indices.to_numpy()
        first = np.empty(len(found.dictionary), np.int64)
        first[index[::-1]] = np.arange(len(self))[::-1]
        high, low = self.high[first], self.low[first]
        unlike = low[index] != self.low
        if unlike.any():  # other keys that have the same `high`
            pairs = np.unique(_pairs(self, np.flatnonzero(unlike)))
            high, low = np.append(high, pairs["high"]), np.append(low, pairs["low"])
        return HashedKeys(high, low, _NONE)

    def within(self, others: SortedKeys) -> Numbers:
        """Return for each key whether it is among the others."""
        found = pc.index_in(pa.array(self.high), pa.array(others.high))
        same = np.array(found.is_valid())
        at = found.drop_null().to_numpy()
        rows = slice(None) if len(at) == len(self) else np.flatnonzero(same)
        unlike = others.low[at] != self.low[rows]
        if unlike.any():  # another key that has the same `high`: look among all of those
            doubtful = np.arange(len(self))[rows][unlike]
            same[doubtful] = np.isin(_pairs(self, doubtful), _pairs(others, np.isin(others.high, self.high[doubtful])))
        return same

    def in_order(self) -> SortedKeys:
        order = _order(self.high, self.low)
        return SortedKeys(self.high[order], self.low[order], self.at[order])


class SortedKeys(HashedKeys):
    """Keys sorted by hash, equal ones by place."""

    @cached_property
    def starts(self) -> Numbers:
        """The index of the first occurrence of each distinct key."""
        differs = (self.high[1:] != self.high[:-1]) | (self.low[1:] != self.low[:-1])
        return np.flatnonzero(np.concatenate([[True], differs])) if len(self) else np.empty(0, np.int64)

    @cached_property
    def counts(self) -> Numbers:
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

    def index_of(self, keys: HashedKeys) -> Numbers:
        """Return where each key is in these, which must be distinct; all keys must be among them."""
        found = np.searchsorted(self.high, keys.high)
        while (unlike := self.low[found] != keys.low).any():  # another key that has the same `high` comes first
            found = found + unlike
        return found


def _order(high: U64, low: U64) -> Numbers:
    """Sort stably. Only repeated numbers are sorted stably, because that takes twice as long."""
    order: Numbers = np.argsort(high)
    ordered = high[order]
    same = ordered[1:] == ordered[:-1]
    if same.any():
        repeated = np.concatenate([same, [False]]) | np.concatenate([[False], same])
        again = order[repeated]
        order[repeated] = again[np.lexsort((again, low[again], high[again]))]
    return order


def _pairs(keys: HashedKeys, chosen: Numbers) -> np.ndarray[Any, Any]:
    """Return both halves of some keys as one value each."""
    return np.stack([keys.high[chosen], keys.low[chosen]], axis=1).view(_PAIR).ravel()


def places(task: int, rows: int) -> U64:
    """Return the places of the rows of one task."""
    return (np.uint64(task << _ROW_BITS)) + np.arange(rows, dtype=np.uint64)


def task_of(at: U64) -> Numbers:
    return (at >> np.uint64(_ROW_BITS)).astype(np.int64)


def row_of(at: U64) -> Numbers:
    return (at & np.uint64(2**_ROW_BITS - 1)).astype(np.int64)


class KeyKind(StrEnum):
    ID = "id"
    UNIQUE = "unique"
    ENDS = "ends"  # of an edge that has no id of its own
    SOURCE = "source"  # the source of an edge, to count the edges of a node
    RECORD = "record"  # no keys: the record number of each row


@dataclass(frozen=True, slots=True)
class KeySpace:
    """A set of keys that are compared with each other: those of one kind, from one table and some of its columns."""

    kind: KeyKind
    table: str
    columns: tuple[str, ...] = ()


def ends_of(table: str) -> KeySpace:
    return KeySpace(KeyKind.ENDS, table, (SRC, DST))


class KeyOrigin(StrEnum):
    """The rows that a key comes from."""

    NEW = "new"  # the input
    OLD = "old"  # committed rows
    LOST = "lost"  # committed rows that an overwrite removes
    NAMED = "named"  # edges of the input, which name nodes: each node once for a task, and without a place


@dataclass(frozen=True, slots=True, order=True)
class EdgeEnd:
    """One end of the edges of a table, compared with the ids of nodes."""

    table: str
    column: str
    origin: KeyOrigin


KeyRole = KeyOrigin | EdgeEnd


class KeySection(NamedTuple):
    """Keys of one space in one role. A parcel names it by its number in `key_sections`."""

    space: KeySpace
    role: KeyRole


def key_sections(catalog: Catalog) -> tuple[KeySection, ...]:
    """Return every section that a load of this schema can have, always in the same order."""
    declared: list[NodeType | EdgeType] = [*catalog.nodes.values(), *catalog.edges.values()]
    return tuple(section for one in sorted(declared, key=table_key) for section in _sections_of(one))


def _sections_of(declared: NodeType | EdgeType) -> Iterator[KeySection]:
    key = table_key(declared)
    yield KeySection(KeySpace(KeyKind.RECORD, key), KeyOrigin.NEW)
    spaces = [KeySpace(KeyKind.ID, key), *(KeySpace(KeyKind.UNIQUE, key, columns) for columns in declared.unique)]
    if isinstance(declared, EdgeType):
        spaces += [KeySpace(KeyKind.SOURCE, key), ends_of(key)]
        for column, end in ((SRC, declared.source), (DST, declared.target)):
            for origin in (KeyOrigin.NEW, KeyOrigin.OLD):
                yield KeySection(KeySpace(KeyKind.ID, f"node:{end}"), EdgeEnd(key, column, origin))
    for space in spaces:
        yield from (KeySection(space, origin) for origin in KeyOrigin)


class KeyParcels:
    """The keys that one task sends, by section."""

    def __init__(self) -> None:
        self._keys: dict[int, list[HashedKeys]] = defaultdict(list)
        self._names: dict[int, HashedKeys] = {}

    def add(self, section: int, keys: HashedKeys) -> None:
        if len(keys):
            self._keys[section].append(keys)

    def add_names(self, section: int, keys: HashedKeys) -> None:
        """Add keys of which only those that are not there yet count: a million edges may lead to one node."""
        if len(keys):
            known = [self._names[section]] if section in self._names else []
            self._names[section] = HashedKeys.joined([*known, keys.distinct()]).distinct()

    def counts(self) -> dict[int, int]:
        counted = {section: sum(map(len, parts)) for section, parts in self._keys.items()}
        return counted | {section: len(keys) for section, keys in self._names.items()}

    def packed(self, fewest: int) -> list[Parcel]:
        """Divide all keys into shares, the more the more keys there are. Their places ascend within a share."""
        joined = {section: HashedKeys.joined(parts) for section, parts in self._keys.items()} | self._names
        return [
            Parcel(section, share, data, of=shares)
            for section, keys in joined.items()
            for shares in [shares_of(len(keys), _PARCEL_BYTES, fewest)]
            for share, data in _divided(keys, shares)
        ]


def shares_of(keys: int, size: int, fewest: int) -> int:
    """Return into how many shares of about `size` bytes to divide keys. They are nested: halves of halves."""
    shares = fewest
    while shares < MOST_SHARES and shares * size < keys * _KEY_BYTES:
        shares *= 2
    return shares


def _divided(keys: HashedKeys, shares: int) -> Iterator[tuple[int, bytes]]:
    # By the hash and not by rows: equal keys of different tasks must meet in one share.
    share = _share_of(keys.high, shares)
    # Stable, so that places ascend within a share: `SortedKeys` relies on it to find the first of equal keys.
    order = np.argsort(share, kind="stable")
    columns = [values[order] for values in (keys.high, keys.low, keys.at) if len(values)]
    bounds = np.concatenate([[0], np.cumsum(np.bincount(share, minlength=shares))]).tolist()
    for number, (begin, end) in enumerate(pairwise(bounds)):
        if begin < end:
            yield number, b"".join(values[begin:end].tobytes() for values in columns)


def _share_of(numbers: U64, shares: int) -> Numbers:
    """Return the share of each number; shares are ranges of numbers."""
    share: Numbers = (((numbers >> _HALF) * np.uint64(shares)) >> _HALF).astype(np.uint16)
    return share


def unpacked(parcels: Iterable[Parcel], *, named: bool = False) -> HashedKeys:
    """Return the keys of some parcels, which come in the order of their senders; names have no places."""
    columns = 2 if named else 3
    found = (np.frombuffer(one.data, np.uint64).reshape(columns, -1) for one in parcels)
    return HashedKeys.joined(HashedKeys(*one, *[_NONE] * named) for one in found)


def within_share(parcel: Parcel, share: int, shares: int, *, named: bool) -> Parcel:
    """Return the part of a parcel that belongs to one of so many shares; a sender may have made fewer."""
    if parcel.of % shares == 0:
        return parcel
    columns = np.frombuffer(parcel.data, np.uint64).reshape(2 if named else 3, -1)
    return parcel._replace(data=columns[:, _share_of(columns[0], shares) == share].tobytes())


# Hashes of whole columns ---------------------------------------------------------------------------


def hash_columns(columns: Sequence[pa.ChunkedArray | pa.Array], seed: int) -> tuple[U64, U64]:
    """Hash the rows by the values of some columns without nulls; return the two halves of the hashes."""
    texts = [_text(column) for column in columns]
    states = tuple(np.full(len(texts[0]), np.uint64((seed + half) % 2**64), np.uint64) for half in range(2))
    for text in texts:
        _mix_text(states, text)
    return states[0], states[1]


def _mix_text(states: tuple[U64, ...], text: pa.LargeStringArray) -> None:
    """Mix texts into the states, as many at a time as fit the caches of a processor."""
    offsets = np.frombuffer(text.buffers()[1], np.int64)[text.offset : text.offset + len(text) + 1]
    words = overlapping_words(text.buffers()[2])
    for begin in range(0, len(text), _TEXTS):
        chosen = slice(begin, begin + _TEXTS)
        _mix_some(tuple(state[chosen] for state in states), words, offsets[begin : begin + _TEXTS + 1])


def _mix_some(states: tuple[U64, ...], words: U64, offsets: Numbers) -> None:
    """Mix eight bytes of all texts at a time. The lengths are mixed in, so that padding changes no hash."""
    starts, lengths = offsets[:-1], np.diff(offsets)
    for half, state in enumerate(states):
        _mix(state, lengths.astype(np.uint64), half)
    for begin in range(0, int(lengths.max(initial=0)), WORD):
        has_more = lengths > begin
        if np.count_nonzero(has_more) > len(lengths) // 2:
            _mix_most(states, words, starts + begin, lengths - begin, has_more)
        else:
            _mix_few(states, words, starts + begin, lengths - begin, np.flatnonzero(has_more))


def _mix_most(states: tuple[U64, ...], words: U64, starts: Numbers, left: Numbers, chosen: Numbers) -> None:
    """Mix a word into all states, and keep the result for texts that are long enough."""
    word = words[np.minimum(starts, len(words) - 1)] & BYTE_MASKS[np.clip(left, 0, WORD)]
    for half, state in enumerate(states):
        mixed = state.copy()
        _mix(mixed, word, half)
        np.copyto(state, mixed, where=chosen)


def _mix_few(states: tuple[U64, ...], words: U64, starts: Numbers, left: Numbers, rows: Numbers) -> None:
    word = words[starts[rows]] & BYTE_MASKS[np.minimum(left[rows], WORD)]
    for half, state in enumerate(states):
        part = state[rows]
        _mix(part, word, half)
        state[rows] = part


def _mix(state: U64, words: U64, half: int) -> None:
    state ^= words
    state += _FINISH[1 - half]  # or a state of zero would stay one
    state *= _FACTORS[half]
    state ^= state >> _HALF
    state *= _FINISH[half]
    state ^= state >> _SHIFT


def _text(column: pa.ChunkedArray | pa.Array) -> pa.LargeStringArray:
    """Write values as texts, equal values as equal texts."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if pa.types.is_floating(column.type):
        column = pc.add(column, pa.scalar(0.0, column.type))  # the two zeros are one value
    return pc.cast(without_dates(column), pa.large_string())
