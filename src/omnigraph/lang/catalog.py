"""The compiled schema: every type, property and constraint of a graph, checked and in canonical order.

Types, properties and constraint columns are sorted by name, so equivalent schemas are equal.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TypeVar

from omnigraph.lang.source import TreeNode
from omnigraph.lang.types import Type

Columns = tuple[str, ...]


class Embed(TreeNode):
    """The text property that a vector embeds, and the model."""

    source: str
    model: str | None = None


class Metadata(TreeNode):
    """Annotations of a type or property that do not affect its data.

    `opaque` holds unknown annotations as canonical text; `rename_from` matters to schema changes only.
    """

    description: str | None = None
    instruction: str | None = None
    rename_from: str | None = None
    opaque: tuple[str, ...] = ()


NO_METADATA = Metadata()


class Property(TreeNode):
    """A property; `interfaces` names the interfaces it comes from, none if the type declares it itself."""

    name: str
    type: Type
    embed: Embed | None = None
    metadata: Metadata = NO_METADATA
    interfaces: Columns = ()


class Range(TreeNode):
    """Inclusive bounds of a numeric property; an open end is None."""

    property: str
    lower: float | None
    upper: float | None

    def __str__(self) -> str:
        lower = "" if self.lower is None else self.lower
        upper = "" if self.upper is None else self.upper
        return f"@range({self.property}, {lower}..{upper})"


class Check(TreeNode):
    """A regular expression that must match somewhere in a String property."""

    property: str
    pattern: str

    def __str__(self) -> str:
        return f"@check({self.property}, {json.dumps(self.pattern, ensure_ascii=False)})"


class Cardinality(TreeNode):
    """The number of edges of a type that one source node may have."""

    lower: int = 0
    upper: int | None = None

    def __str__(self) -> str:
        return f"@card({self.lower}..{'' if self.upper is None else self.upper})"


class InterfaceType(TreeNode):
    name: str
    properties: Mapping[str, Property]


class NodeType(TreeNode):
    name: str
    properties: Mapping[str, Property]
    key: Columns = ()
    unique: tuple[Columns, ...] = ()
    indexes: tuple[Columns, ...] = ()
    ranges: tuple[Range, ...] = ()
    checks: tuple[Check, ...] = ()
    implements: Columns = ()
    metadata: Metadata = NO_METADATA


class EdgeType(TreeNode):
    name: str
    source: str
    target: str
    properties: Mapping[str, Property]
    cardinality: Cardinality = Cardinality()
    unique: tuple[Columns, ...] = ()
    indexes: tuple[Columns, ...] = ()
    metadata: Metadata = NO_METADATA

    @property
    def is_reflexive(self) -> bool:
        """Return whether both ends have the same type, so that a path can repeat the edge."""
        return self.source == self.target


@dataclass(frozen=True)
class Catalog:
    """All types of a graph, by name."""

    interfaces: Mapping[str, InterfaceType]
    nodes: Mapping[str, NodeType]
    edges: Mapping[str, EdgeType]

    @cached_property
    def _edges_by_word(self) -> Mapping[str, EdgeType]:
        # Rule C3 guarantees that no two edge types fold to the same word.
        return {name.lower(): edge for name, edge in self.edges.items()}

    def edge_by_word(self, word: str) -> EdgeType | None:
        """Find the edge type that a traversal or a load record names, ignoring case."""
        # Exact first: that is the usual case, and needs no folded copy of the names.
        return self.edges.get(word) or self._edges_by_word.get(word.lower())

    def incident_edges(self, node_type: str) -> list[EdgeType]:
        return [edge for edge in self.edges.values() if node_type in (edge.source, edge.target)]

    @cached_property
    def fingerprint(self) -> str:
        """Identify the catalog: equal for equal catalogs, different for different ones."""
        return fingerprint_of(asdict(self))


def fingerprint_of(document: object) -> str:
    """Hash a catalog in the form of `asdict` or of a JSON file."""
    # Stored in graphs and compared across versions: neither the separators nor the key order may ever change.
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


_V = TypeVar("_V")


def by_name(items: Mapping[str, _V]) -> dict[str, _V]:
    """Sort a mapping by its keys."""
    return dict(sorted(items.items()))
