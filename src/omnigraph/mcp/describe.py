"""A schema in few words: the richest form that fits a number of tokens."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

from omnigraph.errors import OptionError
from omnigraph.lang.catalog import Catalog, EdgeType, NodeType, Property
from omnigraph.lang.source import did_you_mean

TOKENS = 2_000
# An estimate from schemas of many sizes: names in camel case are cut into more tokens than prose.
_CHARACTERS_OF_TOKEN = 3.3


def describe_schema(
    catalog: Catalog, source: str, types: Collection[str] | None, detail: str | None, max_tokens: int
) -> dict[str, Any]:
    """Describe a schema: in full, as typed lines, or by names; without `detail` the richest form that fits."""
    _check(catalog, types)
    forms: dict[str, Callable[[], str]] = {
        "full": lambda: source,
        "typed": lambda: _lines(catalog, types, _typed),
        "names": lambda: _lines(catalog, types, _named),
    }
    if detail is not None and detail not in forms:
        hint = f"use one of {', '.join(forms)}"
        raise OptionError(f"'{detail:.40}' is not a level of detail", option="detail", hint=hint)
    if types is not None:  # the source is one text: of some types the lines say all that a query needs
        del forms["full"]
        detail = "typed" if detail == "full" else detail
    most = int(max_tokens * _CHARACTERS_OF_TOKEN)
    for name in forms if detail is None else [detail]:
        text = forms[name]()
        if len(text) <= most:
            return {"detail": name, "schema": text, "truncated": False}
    cut = text[:most].rsplit("\n", 1)[0]
    hint = "name `types`, or raise `max_tokens`; the names of all types are in the answer for detail=names"
    return {
        "detail": name,
        "schema": cut,
        "truncated": True,
        "left_out": text.count("\n") - cut.count("\n"),
        "hint": hint,
    }


def _check(catalog: Catalog, types: Collection[str] | None) -> None:
    known = {*catalog.nodes, *catalog.edges}
    for name in types or ():
        if name not in known:
            hint = did_you_mean(name, known) or "see the names of all types with detail=names"
            raise OptionError(f"the schema has no type '{name:.80}'", option="types", hint=hint)


def _lines(catalog: Catalog, types: Collection[str] | None, properties: Callable[[Property], str]) -> str:
    def chosen(name: str) -> bool:
        return types is None or name in types

    nodes = (_node(one, properties) for name, one in catalog.nodes.items() if chosen(name))
    edges = (_edge(one, properties) for name, one in catalog.edges.items() if chosen(name))
    return "\n".join([*nodes, *edges])


def _node(one: NodeType, properties: Callable[[Property], str]) -> str:
    key = f" key({', '.join(one.key)})" if one.key else ""
    return f"node {one.name}{key}: {', '.join(map(properties, one.properties.values()))}{_about(one)}"


def _edge(one: EdgeType, properties: Callable[[Property], str]) -> str:
    own = f": {', '.join(map(properties, one.properties.values()))}" if one.properties else ""
    return f"edge {one.name} {one.source} -> {one.target}{own}{_about(one)}"


def _about(one: NodeType | EdgeType) -> str:
    return "".join(f"  # {text}" for text in (one.metadata.description, one.metadata.instruction) if text)


def _typed(one: Property) -> str:
    return f"{one.name} {one.type}"


def _named(one: Property) -> str:
    return one.name


def searchable(catalog: Catalog) -> Iterator[tuple[NodeType, str]]:
    """The text properties with an index: those that are worth a search by words."""
    for node in catalog.nodes.values():
        indexed = {columns[0] for columns in node.indexes if len(columns) == 1}
        for name, one in node.properties.items():
            if name in indexed and str(one.type).rstrip("?") == "String":
                yield node, name
