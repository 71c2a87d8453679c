"""128-bit hashes of keys, computed for whole columns at once.

Two different keys share a hash with a chance of 2**-128; users of the hashes compare all 128 bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

U64 = np.ndarray[Any, np.dtype[np.uint64]]
Places = np.ndarray[Any, Any]
_WORD = 8
_TEXTS = 2**14
# Odd multipliers with well spread bits, one for each half.
_FACTORS = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F))
_FINISH = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_SHIFT, _HALF = np.uint64(29), np.uint64(32)
# Keeps the bytes of the last word that belong to the text: a word reads on into the next text.
MASKS = np.array([(1 << (8 * count)) - 1 for count in range(_WORD)] + [2**64 - 1], np.uint64)


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


def _mix_some(states: tuple[U64, ...], words: U64, offsets: Places) -> None:
    """Mix eight bytes of all texts at a time. The lengths are mixed in, so that padding changes no hash."""
    starts, lengths = offsets[:-1], np.diff(offsets)
    for half, state in enumerate(states):
        _mix(state, lengths.astype(np.uint64), half)
    for begin in range(0, int(lengths.max(initial=0)), _WORD):
        has_more = lengths > begin
        if np.count_nonzero(has_more) > len(lengths) // 2:
            _mix_most(states, words, starts + begin, lengths - begin, has_more)
        else:
            _mix_few(states, words, starts + begin, lengths - begin, np.flatnonzero(has_more))


def _mix_most(states: tuple[U64, ...], words: U64, starts: Places, left: Places, chosen: Places) -> None:
    """Mix a word into all states, and keep the result for texts that are long enough."""
    word = words[np.minimum(starts, len(words) - 1)] & MASKS[np.clip(left, 0, _WORD)]
    for half, state in enumerate(states):
        mixed = state.copy()
        _mix(mixed, word, half)
        np.copyto(state, mixed, where=chosen)


def _mix_few(states: tuple[U64, ...], words: U64, starts: Places, left: Places, rows: Places) -> None:
    word = words[starts[rows]] & MASKS[np.minimum(left[rows], _WORD)]
    for half, state in enumerate(states):
        part = state[rows]
        _mix(part, word, half)
        state[rows] = part


def overlapping_words(data: pa.Buffer | None) -> U64:
    """Return the bytes as overlapping words: word i is made of the bytes i to i + 7."""
    raw = b"" if data is None else memoryview(data)
    padded = np.empty(len(raw) + _WORD, np.uint8)
    padded[: len(raw)] = np.frombuffer(raw, np.uint8)
    padded[len(raw) :] = 0
    return np.ndarray((len(raw) + 1,), np.dtype("<u8"), padded.data, 0, (1,))


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
    if pa.types.is_date64(column.type):
        column = column.view(pa.int64())
    elif pa.types.is_date32(column.type):
        column = column.view(pa.int32())
    elif pa.types.is_floating(column.type):
        column = pc.add(column, pa.scalar(0.0, column.type))  # the two zeros are one value
    return pc.cast(column, pa.large_string())
