"""Vectors that inserts leave out: each is made of the text that its `@embed` names."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from omnigraph.embed.embedding import Embedding
from omnigraph.lang import ir
from omnigraph.lang.catalog import Catalog, NodeType, Property
from omnigraph.write.values import Request

_Owner = tuple[str, str]


class OmittedVectors:
    """The vectors of one mutation. A text is embedded once, however often the mutation is prepared.

    The first time that happens before any gate is taken; when it is prepared again inside the gates, all is known.
    """

    def __init__(self, embedding: Embedding) -> None:
        self._embedding = embedding
        self._known: dict[tuple[_Owner, str], list[float]] = {}
        self._required: dict[str, list[tuple[Property, str]]] = {}

    def prepare(self, catalog: Catalog, statements: Iterable[ir.Statement], request: Request) -> None:
        """Make all vectors that the statements leave out, those of one property together."""
        self._required = {node.name: [*_required(node)] for node in catalog.nodes.values()}
        wanted: dict[_Owner, dict[str, None]] = defaultdict(dict)
        for statement in statements:
            if isinstance(statement, ir.InsertNode) and self._required[statement.type_name]:
                given = dict(statement.values)
                for property_, source in self._omitted(statement.type_name, given):
                    text = request.value(given[source])
                    if isinstance(text, str) and text.strip():
                        wanted[statement.type_name, property_.name][text] = None
        for (type_name, name), texts in wanted.items():
            node = catalog.nodes[type_name]
            self._make(node, node.properties[name], texts)

    def _make(self, node: NodeType, property_: Property, texts: Iterable[str]) -> None:
        owner = (node.name, property_.name)
        new = [text for text in texts if (owner, text) not in self._known]
        if new:
            vectors = self._embedding.documents(new, node, property_).tolist()
            self._known |= {(owner, text): vector for text, vector in zip(new, vectors, strict=True)}

    def of(self, node: NodeType, row: Mapping[str, Any]) -> Iterator[tuple[Property, list[float]]]:
        """The vectors that a row of a prepared statement leaves out; an empty one where there was no text."""
        for property_, source in self._omitted(node.name, row):
            yield property_, self._known.get(((node.name, property_.name), row[source]), [])

    def _omitted(self, type_name: str, given: Mapping[str, Any]) -> Iterator[tuple[Property, str]]:
        """The required vectors that an insert does not give, and the sources of their texts, which it does give."""
        return ((property_, source) for property_, source in self._required[type_name] if property_.name not in given)


def _required(node: NodeType) -> Iterator[tuple[Property, str]]:
    """The vectors that every node has, and the sources of their texts."""
    for property_ in node.properties.values():
        if property_.embed and not property_.type.nullable:
            yield property_, property_.embed.source
