"""Rows that tasks send to each other: divided by hash or by ranges of ids, so that equal values meet in one task.

The rows travel with their values and are compared by them. A hash only decides which share a row goes to.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from operator import methodcaller
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc

from omnigraph.core.executor import Parcel
from omnigraph.storage.read import ID

_U64 = np.ndarray[Any, np.dtype[np.uint64]]
_TEXTS = 2**14  # hashed at a time
_HALF = np.uint64(32)
_WEIGHTS: _U64 = np.random.default_rng(0).integers(2**63, 2**64, 64, np.uint64) | np.uint64(1)
_FACTOR = np.uint64(0x9E3779B97F4A7C15)


def hashed_parcels(section: int, rows: pa.Table, keys: Sequence[str], shares: int) -> Iterator[Parcel]:
    """Divide rows by the values of some columns, which are never null."""
    if shares == 1:
        yield from [Parcel(section, 0, _packed(rows))] if rows.num_rows else ()
        return
    share = _share_of([rows[name] for name in keys], shares)
    ordered = rows.take(np.argsort(share, kind="stable"))
    bounds = np.concatenate([[0], np.cumsum(np.bincount(share, minlength=shares))]).tolist()
    yield from _cut(section, ordered, bounds)


def ranged_parcels(section: int, rows: pa.Table, first: Sequence[str]) -> Iterator[Parcel]:
    """Divide rows by id; share 0 ends before the first of the given ids, and each of them begins another one."""
    ordered = rows.take(pc.sort_indices(rows[ID]))
    ids = pa.concat_arrays([*ordered[ID].chunks, pa.array([], pa.string())])
    at = [bisect_left(ids, bound, key=methodcaller("as_py")) for bound in first]
    yield from _cut(section, ordered, [0, *at, rows.num_rows])


def received(parcels: Iterable[Parcel], section: int, schema: pa.Schema) -> pa.Table:
    """Return the rows of a section, in the order of their senders."""
    parts = [pa.ipc.open_stream(one.data).read_all() for one in parcels if one.section == section]
    return pa.concat_tables([schema.empty_table(), *(part.cast(schema) for part in parts)])


def _cut(section: int, ordered: pa.Table, bounds: Sequence[int]) -> Iterator[Parcel]:
    for share, (begin, end) in enumerate(pairwise(bounds)):
        if begin < end:
            yield Parcel(section, share, _packed(ordered.slice(begin, end - begin)))


def _packed(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_table(rows.combine_chunks())  # a slice of a chunk would be sent with the whole of it
    return bytes(sink.getvalue())


def _share_of(columns: Sequence[pa.ChunkedArray], shares: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    total = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        total = total * _FACTOR + _hashes(_texts(column))
    total = total * _FACTOR
    total ^= total >> _HALF
    total *= _FACTOR
    return (((total >> _HALF) * np.uint64(shares)) >> _HALF).astype(np.int64)


def _texts(column: pa.ChunkedArray) -> pa.LargeStringArray:
    """Write values as texts, equal values as equal texts."""
    if pa.types.is_floating(column.type):
        column = pc.add(column, pa.scalar(0.0, column.type))  # the two zeros are one value
    elif pa.types.is_temporal(column.type):
        column = column.cast(pa.int32() if pa.types.is_date32(column.type) else pa.int64())
    return column.cast(pa.large_string()).combine_chunks()


def _hashes(texts: pa.LargeStringArray) -> _U64:
    offsets = np.frombuffer(texts.buffers()[1], np.int64)[texts.offset : texts.offset + len(texts) + 1]
    data = np.frombuffer(texts.buffers()[2] or b"", np.uint8)
    found = np.zeros(len(texts), np.uint64)
    for begin in range(0, len(texts), _TEXTS):
        ends = offsets[begin : begin + _TEXTS + 1]
        lengths = np.diff(ends)
        filled = np.flatnonzero(lengths)  # `reduceat` has no empty sums
        if len(filled):
            starts = ends[:-1][filled] - ends[0]
            some = data[ends[0] : ends[-1]].astype(np.uint64) + np.uint64(1)
            place = np.arange(len(some)) - np.repeat(starts, lengths[filled])
            found[begin + filled] = np.add.reduceat(some * _WEIGHTS[place % len(_WEIGHTS)], starts)
    return found
