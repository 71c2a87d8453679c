"""How a graph makes vectors of texts: with the embedder it was given, or with the one the environment asks for."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property
from threading import Lock
from typing import Any

import numpy as np

from omnigraph.embed.embedder import Embedder, Purpose, Vectors, embed_texts
from omnigraph.embed.settings import embedder_from_environment
from omnigraph.errors import EmbeddingModelError
from omnigraph.lang.catalog import NodeType, Property

_KEPT = 256

Vector = np.ndarray[Any, np.dtype[np.float32]]


class Embedding:
    """Makes vectors for the properties of a graph. Who never needs one need not configure anything."""

    def __init__(self, embedder: Embedder | None = None) -> None:
        self._given = embedder
        self._lock = Lock()
        self._kept: OrderedDict[tuple[str, int], Vector] = OrderedDict()

    @cached_property
    def embedder(self) -> Embedder:
        return self._given or embedder_from_environment()

    def query(self, text: str, node: NodeType, property_: Property) -> Vector:
        """The vector to search a property with. The latest ones are kept: the same text is searched for again."""
        self._check_model(node, property_)
        key = (text, property_.type.dimension)
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        vector: Vector = embed_texts(self.embedder, [text], property_.type.dimension, Purpose.QUERY)[0]
        with self._lock:
            self._kept[key] = vector
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return vector

    def documents(self, texts: Sequence[str], node: NodeType, property_: Property) -> Vectors:
        """The vectors to store in a property."""
        self._check_model(node, property_)
        return embed_texts(self.embedder, texts, property_.type.dimension, Purpose.DOCUMENT)

    def _check_model(self, node: NodeType, property_: Property) -> None:
        """See that the vectors are of the model that the schema records, if it records one."""
        recorded, configured = property_.embed.model if property_.embed else None, self.embedder.model
        if recorded is None or recorded == configured:
            return
        label = f"{node.name}.{property_.name}"
        message = f"the vectors of {label} are of the model '{recorded}', and the configured one is '{configured}'"
        hint = "set OMNIGRAPH_EMBED_MODEL to the first, or give the vector itself"
        raise EmbeddingModelError(message, property=label, recorded=recorded, configured=configured, hint=hint)
