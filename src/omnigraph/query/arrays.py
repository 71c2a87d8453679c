"""Operations on arrays of whole numbers that NumPy lacks."""

from __future__ import annotations

from typing import Any

import numpy as np

Integers = np.ndarray[Any, np.dtype[Any]]
"""Whole numbers, of 32 or 64 bits."""
Mask = np.ndarray[Any, np.dtype[np.bool_]]


def narrow(size: int) -> type[np.int32 | np.int64]:
    """Return the smallest type that numbers all of `size` rows."""
    return np.int32 if size <= np.iinfo(np.int32).max else np.int64


def spread(starts: Integers, counts: Integers) -> Integers:
    """Return the numbers of many ranges one after the other, each given by its start and how many they are."""
    ends = np.cumsum(counts, dtype=np.int64)
    numbers = np.repeat(starts - ends + counts, counts)
    numbers += np.arange(len(numbers))
    return numbers


def without_repeats(ordered: Integers) -> Integers:
    """Remove repetitions from sorted numbers."""
    new = np.ones(len(ordered), bool)
    new[1:] = ordered[1:] != ordered[:-1]
    distinct: Integers = ordered[new]
    return distinct


def among(numbers: Integers, ordered: Integers) -> Mask:
    """Return which numbers are in a sorted array."""
    if not len(ordered):
        return np.zeros(len(numbers), bool)
    at = np.minimum(np.searchsorted(ordered, numbers), len(ordered) - 1)
    return np.asarray(ordered[at] == numbers)
