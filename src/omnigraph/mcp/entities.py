"""One node by its key, with its neighbours."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from pydantic import Field

from omnigraph.api.access import Action
from omnigraph.api.rows import Result
from omnigraph.errors import OptionError
from omnigraph.lang.catalog import Catalog, NodeType
from omnigraph.lang.source import did_you_mean
from omnigraph.mcp.answers import Answer
from omnigraph.mcp.session import Session
from omnigraph.mcp.tool import StateArguments, place_of, tool

_NEIGHBOURS = 5
_NUMBERS = frozenset({"I32", "I64", "U32", "U64"})


class EntityArguments(StateArguments):
    type: str = Field(description="A node type.")
    id: str = Field(description="The key of the node.")


@tool("entity_get", Action.READ)
def _entity(session: Session, asked: EntityArguments) -> Answer:
    """Return one node by its key: its properties, and how many neighbours it has by edge type, with the first few."""
    place = place_of(session, asked)
    catalog = session.graph.at(place.get("snapshot") or place["branch"]).catalog
    found = _Node(session, node_type(catalog, asked.type), asked.id, place)
    shown = (f"$x.{name} as {name}" for name in found.properties())
    rows = found.query("", f"return {{ {', '.join(shown)} }}").rows
    if not rows:
        hint = "find its key with graph_search or graph_query"
        raise OptionError(f"there is no {asked.type} '{asked.id:.80}'", option="id", hint=hint)
    edges = list(_neighbours(found, catalog))
    return {"type": asked.type, "id": asked.id, "properties": rows[0], "edges": edges}


def _neighbours(found: _Node, catalog: Catalog) -> Iterator[Answer]:
    for edge in catalog.incident_edges(found.type.name):
        word = edge.name[0].lower() + edge.name[1:]
        for direction, start, end, pattern in (
            ("out", edge.source, edge.target, f"$x {word} $y"),
            ("in", edge.target, edge.source, f"$y {word} $x"),
        ):
            if start != found.type.name:
                continue
            [row] = found.query(pattern, "return { count($y) as n }").rows
            if row["n"]:
                some = found.query(pattern, f"return {{ $y as id }} limit {_NEIGHBOURS}").rows
                about = {"edge": edge.name, "direction": direction, "type": end, "count": row["n"]}
                yield {**about, "first": [one["id"] for one in some]}


@dataclass(frozen=True, slots=True)
class _Node:
    """A node that queries start from."""

    session: Session
    type: NodeType
    id: str
    place: dict[str, Any]

    def properties(self) -> list[str]:
        """What a model can read: no contents and no vectors."""
        return [name for name, one in self.type.properties.items() if not str(one.type).startswith(("Blob", "Vector"))]

    def query(self, pattern: str, returned: str) -> Result:
        """Run a query in which `$x` is the node."""
        if len(self.type.key) != 1:
            message = f"{self.type.name} has no key of one property"
            raise OptionError(message, option="type", hint="find it with graph_query")
        [key] = self.type.key
        kind = str(self.type.properties[key].type)
        text = f"query one($id: {kind}) {{ match {{ $x: {self.type.name} {{ {key}: $id }} {pattern} }} {returned} }}"
        return self.session.graph.query(text, {"id": self._value(kind)}, **self.place)

    def _value(self, kind: str) -> str | int:
        """The value of the key: ids are texts, whatever the type of the key."""
        if kind not in _NUMBERS:
            return self.id
        try:
            return int(self.id)
        except ValueError:
            message = f"the key of {self.type.name} is a number, not '{self.id:.80}'"
            raise OptionError(message, option="id", hint="give it as digits") from None


def node_type(catalog: Catalog, name: str) -> NodeType:
    """Find a node type, or say which ones there are."""
    found = catalog.nodes.get(name)
    if found is None:
        hint = did_you_mean(name, catalog.nodes) or f"use one of {', '.join(islice(catalog.nodes, 20))}"
        raise OptionError(f"the schema has no node type '{name:.80}'", option="type", hint=hint)
    return found
