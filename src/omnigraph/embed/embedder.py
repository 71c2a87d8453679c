"""The embedder protocol, the checks on its vectors, and the embedder of a graph."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from enum import StrEnum
from functools import cached_property
from threading import Lock
from typing import Any, Protocol

import numpy as np

from omnigraph.embed.providers import embedder_from_environment
from omnigraph.errors import EmbedderAnswerError, EmbeddingModelError, EmbeddingTextError
from omnigraph.lang.catalog import NodeType, Property

_KEPT = 256
Vector = np.ndarray[Any, np.dtype[np.float32]]
Vectors = np.ndarray[Any, np.dtype[np.float32]]
"""One row for each text."""


class Purpose(StrEnum):
    """What a vector is for; some models distinguish."""

    DOCUMENT = "document"  # to be found
    QUERY = "query"  # to find with


class Embedder(Protocol):
    """Embeds texts. Must be safe to call from several threads."""

    @property
    def model(self) -> str:
        """The name of the model. Vectors of different models cannot be compared."""

    def embed(self, texts: Sequence[str], dimension: int, purpose: Purpose) -> Any:
        """Return one vector of `dimension` numbers for each text, in order; anything that numpy reads as a matrix."""


def embed_texts(embedder: Embedder, texts: Sequence[str], dimension: int, purpose: Purpose) -> Vectors:
    """Embed texts, normalise the vectors to length one, and check that they are usable."""
    if any(not text.strip() for text in texts):
        raise EmbeddingTextError("cannot embed an empty text", hint="give a text with words, or the vector itself")
    if not texts:
        return np.empty((0, dimension), np.float32)
    # Checked here for every embedder: a wrong vector that is stored once is found by no later check.
    matrix = _matrix(embedder, embedder.embed(texts, dimension, purpose))
    if matrix.shape != (len(texts), dimension):
        found = " x ".join(map(str, matrix.shape))
        message = f"{embedder.model} returned {found} numbers; expected {len(texts)} x {dimension}"
        hint = f"choose a model with {dimension} dimensions, or declare the property with the dimension of the model"
        raise EmbedderAnswerError(message, model=embedder.model, hint=hint)
    # In float64: the square of a large float32 would overflow to infinity.
    lengths = np.sqrt(np.square(matrix, dtype=np.float64).sum(axis=1))
    # A zero vector has no direction: every distance to it is the same, and it would be found by every search.
    usable = np.isfinite(lengths) & (lengths > 0)
    if not usable.all():
        bad = int(np.flatnonzero(~usable)[0])
        message = f"{embedder.model} returned a vector that is zero or not finite, for text {bad + 1} of {len(texts)}"
        raise EmbedderAnswerError(message, model=embedder.model, hint="choose another model, or change the text")
    normalised: Vectors = (matrix / lengths[:, None]).astype(np.float32)
    return normalised


def _matrix(embedder: Embedder, found: Any) -> Vectors:
    try:
        return np.asarray(found, np.float32)
    except (TypeError, ValueError, OverflowError):
        message = f"{embedder.model} returned something other than equally long vectors of numbers"
        raise EmbedderAnswerError(message, model=embedder.model, hint="choose another model") from None


class Embedding:
    """Embeds texts for the properties of a graph. The embedder is looked up at first use, so it is optional."""

    def __init__(self, embedder: Embedder | None = None) -> None:
        self._given = embedder
        self._lock = Lock()
        self._kept: OrderedDict[tuple[str, int], Vector] = OrderedDict()

    @cached_property
    # Only at first use: a graph without vectors needs no configuration.
    def embedder(self) -> Embedder:
        return self._given or embedder_from_environment()

    def query(self, text: str, node: NodeType, property_: Property) -> Vector:
        """Return the vector to search a property with. Recent ones are cached: searches repeat their texts."""
        self._check_model(node, property_)
        key = (text, property_.type.dimension)
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        # Outside the lock: a slow service must not block searches whose vectors are cached.
        vector: Vector = embed_texts(self.embedder, [text], property_.type.dimension, Purpose.QUERY)[0]
        with self._lock:
            self._kept[key] = vector
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return vector

    def documents(self, texts: Sequence[str], node: NodeType, property_: Property) -> Vectors:
        """Return the vectors to store in a property."""
        self._check_model(node, property_)
        return embed_texts(self.embedder, texts, property_.type.dimension, Purpose.DOCUMENT)

    def _check_model(self, node: NodeType, property_: Property) -> None:
        """Raise if the schema records another model than the configured one: their vectors cannot be compared."""
        recorded, configured = property_.embed.model if property_.embed else None, self.embedder.model
        if recorded is None or recorded == configured:
            return
        label = f"{node.name}.{property_.name}"
        message = f"the vectors of {label} come from model '{recorded}', but '{configured}' is configured"
        hint = "set OMNIGRAPH_EMBED_MODEL to the recorded model, or give the vector itself"
        raise EmbeddingModelError(message, property=label, recorded=recorded, configured=configured, hint=hint)
