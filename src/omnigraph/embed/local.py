"""Embedders that run in this process: a small model from a package (`omnigraph[embed]`), and a mock for tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from omnigraph.embed.embedder import Purpose, Vectors
from omnigraph.errors import EmbedderAnswerError, EmbedderMissingError
from omnigraph.lang.identity import fnv1a

MODEL = "wordllama/l2_supercat_256"
LARGEST = 256
_LARGEST_HASH = np.float64(2**64 - 1)
_WEIGHTS = "weights/l2_supercat_256.safetensors"
_TOKENS = "tokenizers/l2_supercat_tokenizer_config.json"


class LocalEmbedder:
    """Sums the token vectors of a text. Made for 64, 128 and 256 dimensions; others take the first numbers."""

    model = MODEL

    def embed(self, texts: Sequence[str], dimension: int, purpose: Purpose) -> Vectors:  # noqa: ARG002 - alike for both
        if dimension > LARGEST:
            message = f"{MODEL} has at most {LARGEST} dimensions, not {dimension}"
            raise EmbedderAnswerError(message, model=MODEL, hint=f"declare the property as Vector({LARGEST})")
        tokens, weights = self._parts
        found = tokens.encode_batch(list(texts), add_special_tokens=False)
        return np.stack([weights[encoding.ids, :dimension].sum(axis=0) for encoding in found])

    @cached_property
    def _parts(self) -> tuple[Any, Vectors]:
        """Load the tokenizer and weights from the package. Its own code is not run: it configures global logging."""
        package = find_spec("wordllama")
        if package is None or not package.submodule_search_locations:
            message = "the local embedder needs the package `wordllama`, which is not installed"
            command = "pip install 'omnigraph[embed]'"
            hint = f"install it with: {command}, or choose another provider with OMNIGRAPH_EMBED_PROVIDER"
            raise EmbedderMissingError(message, variables=["OMNIGRAPH_EMBED_PROVIDER"], hint=hint)
        from safetensors.numpy import load_file  # noqa: PLC0415 - there only with the extra
        from tokenizers import Tokenizer  # noqa: PLC0415

        folder = Path(package.submodule_search_locations[0])
        tokens = Tokenizer.from_file(str(folder / _TOKENS))
        tokens.no_padding()
        # The configuration of the package pads and cuts; both would change the sum of the token vectors.
        tokens.no_truncation()
        return tokens, load_file(folder / _WEIGHTS)["embedding.weight"].astype(np.float32)


@dataclass(frozen=True, slots=True)
class MockEmbedder:
    """Pseudo-random vectors seeded by a hash of the text. Can carry the name of any model."""

    model: str = "mock"

    def embed(self, texts: Sequence[str], dimension: int, purpose: Purpose) -> Vectors:  # noqa: ARG002 - alike for both
        state = np.array([fnv1a(text.encode()) for text in texts], np.uint64)
        matrix = np.empty((len(texts), dimension), np.float32)
        for column in range(dimension):
            state ^= state << np.uint64(13)
            state ^= state >> np.uint64(7)
            state ^= state << np.uint64(17)
            ratio = (state.astype(np.float64) / _LARGEST_HASH).astype(np.float32)
            matrix[:, column] = ratio * np.float32(2) - np.float32(1)
        return matrix
