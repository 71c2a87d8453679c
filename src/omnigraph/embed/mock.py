"""An embedder for tests and demonstrations: its vectors depend on the text alone, and mean nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from omnigraph.embed.embedder import Purpose, Vectors
from omnigraph.lang.identity import fnv1a

_LARGEST = np.float64(2**64 - 1)


@dataclass(frozen=True, slots=True)
class MockEmbedder:
    """Pseudo-random numbers that start from a hash of the text. It can stand in for any model by its name."""

    model: str = "mock"

    def embed(self, texts: Sequence[str], dimension: int, purpose: Purpose) -> Vectors:  # noqa: ARG002 - alike for both
        state = np.array([fnv1a(text.encode()) for text in texts], np.uint64)
        matrix = np.empty((len(texts), dimension), np.float32)
        for column in range(dimension):
            state ^= state << np.uint64(13)
            state ^= state >> np.uint64(7)
            state ^= state << np.uint64(17)
            ratio = (state.astype(np.float64) / _LARGEST).astype(np.float32)
            matrix[:, column] = ratio * np.float32(2) - np.float32(1)
        return matrix
