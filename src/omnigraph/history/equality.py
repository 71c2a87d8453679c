"""Telling which values of two columns differ, by type and to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Mask = np.ndarray[Any, np.dtype[np.bool_]]


def differing_rows(one: pa.Table, other: pa.Table) -> Mask:
    """Compare two tables of the same columns row by row."""
    differs = np.zeros(one.num_rows, np.bool_)
    for name in one.column_names:
        differs |= differing(one[name], other[name])
    return differs


def differing(one: pa.ChunkedArray, other: pa.ChunkedArray) -> Mask:
    """Compare two columns of one type: null equals null and nothing else, -0.0 is not 0.0, NaN is what its bits are."""
    assert one.type == other.type, "values of two types do not compare"
    return _differing(_whole(one), _whole(other))


def _whole(column: pa.ChunkedArray) -> pa.Array:
    combined = column.combine_chunks()
    return pa.concat_arrays(combined.chunks) if isinstance(combined, pa.ChunkedArray) else combined


def _differing(one: pa.Array, other: pa.Array) -> Mask:
    there, here = _numpy(one.is_valid()), _numpy(other.is_valid())
    differs: Mask = there != here
    both = there & here
    if both.any():
        mask = pa.array(both)
        differs[both] = _unequal(one.filter(mask), other.filter(mask))
    return differs


def _unequal(one: pa.Array, other: pa.Array) -> Mask:
    """Compare values none of which is null."""
    if pa.types.is_fixed_size_list(one.type):
        inner = _differing(one.flatten(), other.flatten())
        return np.asarray(inner.reshape(len(one), -1).any(axis=1))
    if pa.types.is_list(one.type):
        return _unequal_lists(one, other)
    if pa.types.is_floating(one.type):
        bits = np.dtype(f"u{one.type.bit_width // 8}")
        return np.asarray(_numpy(one).view(bits) != _numpy(other).view(bits))
    return np.asarray(_numpy(pc.not_equal(one, other)))


def _unequal_lists(one: pa.Array, other: pa.Array) -> Mask:
    lengths = _numpy(pc.list_value_length(one))
    differs: Mask = lengths != _numpy(pc.list_value_length(other))
    alike = np.flatnonzero(~differs)
    inner = _differing(one.take(alike).flatten(), other.take(alike).flatten())
    owners = np.repeat(alike, lengths[alike])
    differs[owners[inner]] = True
    return differs


def _numpy(array: pa.Array) -> Any:
    return array.to_numpy(zero_copy_only=False)
