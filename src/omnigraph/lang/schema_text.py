"""Write a catalog as the text of a schema, for a schema that no person has written: that of a merge."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

from omnigraph.lang.catalog import (
    Cardinality,
    Catalog,
    EdgeType,
    InterfaceType,
    Metadata,
    NodeType,
    Property,
)
from omnigraph.lang.schema_ids import declared_types

_ESCAPES = str.maketrans({'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"})


def schema_text(catalog: Catalog) -> str:
    """Return a schema that compiles to the catalog."""
    types = [declared for _, declared in declared_types(catalog)]
    return "\n\n".join("\n".join(_type(catalog, one)) for one in types) + ("\n" if types else "")


def _type(catalog: Catalog, declared: InterfaceType | NodeType | EdgeType) -> Iterator[str]:
    members = [*_properties(catalog, declared), *_rules(declared)]
    head = _head(declared)
    if not members:
        yield head if isinstance(declared, EdgeType) else f"{head} {{}}"
        return
    yield f"{head} {{"
    yield from (f"    {member}" for member in members)
    yield "}"


def _head(declared: InterfaceType | NodeType | EdgeType) -> str:
    if isinstance(declared, InterfaceType):
        return f"interface {declared.name}"
    notes = list(_notes(declared.metadata))
    if isinstance(declared, NodeType):
        implements = f"implements {', '.join(declared.implements)}" if declared.implements else ""
        return " ".join(filter(None, (f"node {declared.name}", *notes, implements)))
    card = "" if declared.cardinality == Cardinality() else str(declared.cardinality)
    return " ".join(filter(None, (f"edge {declared.name}: {declared.source} -> {declared.target}", card, *notes)))


def _properties(catalog: Catalog, declared: InterfaceType | NodeType | EdgeType) -> Iterator[str]:
    for one in declared.properties.values():
        inherited = [catalog.interfaces[name].properties[one.name] for name in one.interfaces]
        # A node that does not declare the property itself has the annotations of its interface.
        if not inherited or any(_own(one) != _own(other) for other in inherited):
            yield " ".join((f"{one.name}: {one.type}", *_embed(one), *_notes(one.metadata)))


def _own(one: Property) -> tuple[object, ...]:
    return one.embed, one.metadata.description, one.metadata.opaque


def _embed(declared: Property) -> Iterator[str]:
    if declared.embed:
        model = f", model={_quoted(declared.embed.model)}" if declared.embed.model is not None else ""
        yield f"@embed({declared.embed.source}{model})"


def _notes(metadata: Metadata) -> Iterator[str]:
    for name, text in (("description", metadata.description), ("instruction", metadata.instruction)):
        if text is not None:
            yield f"@{name}({_quoted(text)})"
    yield from metadata.opaque


def _rules(declared: InterfaceType | NodeType | EdgeType) -> Iterator[str]:
    if isinstance(declared, InterfaceType):
        return
    if isinstance(declared, NodeType) and declared.key:
        yield f"@key({', '.join(declared.key)})"
    for rule, found in (("unique", declared.unique), ("index", declared.indexes)):
        yield from (f"@{rule}({', '.join(columns)})" for columns in found)
    if isinstance(declared, NodeType):
        for one in declared.ranges:
            yield f"@range({one.property}, {_number(one.lower)}..{_number(one.upper)})"
        yield from (f"@check({one.property}, {_quoted(one.pattern)})" for one in declared.checks)


def _number(bound: float | None) -> str:
    # The language has no exponents.
    return "" if bound is None else format(Decimal(repr(bound)), "f")


def _quoted(text: str) -> str:
    return f'"{text.translate(_ESCAPES)}"'
