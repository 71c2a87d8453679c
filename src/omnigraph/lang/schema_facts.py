"""A schema as facts about types and properties by their ids, so that two schemas can be compared through renames."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from omnigraph.lang.catalog import (
    Catalog,
    Check,
    EdgeType,
    Embed,
    InterfaceType,
    Metadata,
    NodeType,
    Property,
    Range,
    by_name,
)
from omnigraph.lang.schema_ids import Declared, SchemaIds, TypeIds, declared_types

Fact = tuple[Any, ...]
"""What a fact is about: the id of a type, that of a property or an empty text, and the aspect."""
Facts = Mapping[Fact, Any]

NAME, KIND = "name", "kind"
PROSE = ("description", "instruction")
_COLUMN_RULES = ("unique", "index")


@dataclass(frozen=True, slots=True)
class IdentifiedSchema:
    """A schema with the identity of its types, and the text that it was read from."""

    catalog: Catalog
    ids: SchemaIds
    text: str

    @property
    def types(self) -> dict[str, str]:
        """The key of each type by its id."""
        return {one.id: key for key, one in self.ids.items()}

    def named(self, aliases: Mapping[str, str]) -> IdentifiedSchema:
        """Return the schema with other ids for some types and properties."""

        def of(one: TypeIds) -> TypeIds:
            properties = {name: aliases.get(id_, id_) for name, id_ in one.properties.items()}
            return TypeIds(aliases.get(one.id, one.id), properties)

        return replace(self, ids={key: of(one) for key, one in self.ids.items()}) if aliases else self

    @property
    def facts(self) -> dict[Fact, Any]:
        return dict(_facts(self))


def plain(catalog: Catalog) -> Catalog:
    """Return a catalog without hints for renames, which say nothing about what it is."""

    def of(declared: Any) -> Any:
        properties = {
            name: replace(one, metadata=replace(one.metadata, rename_from=None))
            for name, one in declared.properties.items()
        }
        if isinstance(declared, InterfaceType):
            return replace(declared, properties=properties)
        return replace(declared, properties=properties, metadata=replace(declared.metadata, rename_from=None))

    kinds = (catalog.interfaces, catalog.nodes, catalog.edges)
    return Catalog(*({name: of(one) for name, one in kind.items()} for kind in kinds))


# From a schema to facts ------------------------------------------------------------------------------


def _facts(schema: IdentifiedSchema) -> Iterator[tuple[Fact, Any]]:
    for key, declared in declared_types(schema.catalog):
        ids = schema.ids[key]
        for aspect, value in _of_type(schema, key, declared):
            yield (ids.id, "", *aspect), value
        for name, property_ in declared.properties.items():
            for label, value in _of_property(schema, ids, property_):
                yield (ids.id, ids.properties[name], label), value


def _of_type(schema: IdentifiedSchema, key: str, declared: Declared) -> Iterator[tuple[Fact, Any]]:
    kind, _, name = key.partition(":")
    yield (NAME,), name
    yield (KIND,), kind
    if isinstance(declared, InterfaceType):
        return
    ids = {**schema.ids[key].properties, "src": "src", "dst": "dst"}
    for rule, found in zip(_COLUMN_RULES, (declared.unique, declared.indexes), strict=True):
        yield from (((rule, frozenset(ids[one] for one in columns)), True) for columns in found)
    if isinstance(declared, NodeType):
        yield ("key",), frozenset(ids[one] for one in declared.key)
        yield ("implements",), _interfaces(schema, declared.implements)
        # All rules of one property are one fact: two bounds that both sides have changed contradict each other.
        for name in declared.properties:
            ranges = frozenset((one.lower, one.upper) for one in declared.ranges if one.property == name)
            checks = frozenset(one.pattern for one in declared.checks if one.property == name)
            yield from (((rule, ids[name]), one) for rule, one in (("range", ranges), ("check", checks)) if one)
    else:
        yield ("source",), schema.ids[f"node:{declared.source}"].id
        yield ("target",), schema.ids[f"node:{declared.target}"].id
        yield ("cardinality",), declared.cardinality
    yield from (((label,), value) for label, value in _of_metadata(declared.metadata))


def _of_property(schema: IdentifiedSchema, ids: TypeIds, declared: Property) -> Iterator[tuple[str, Any]]:
    yield NAME, declared.name
    yield "type", declared.type
    yield "interfaces", _interfaces(schema, declared.interfaces)
    if declared.embed:
        source = declared.embed.source  # of an interface, it may be a property of the node
        yield "embed", (ids.properties.get(source, source), declared.embed.model)
    yield from _of_metadata(declared.metadata)


def _of_metadata(metadata: Metadata) -> Iterator[tuple[str, Any]]:
    found = {"description": metadata.description, "instruction": metadata.instruction, "opaque": metadata.opaque}
    yield from ((label, value) for label, value in found.items() if value)


def _interfaces(schema: IdentifiedSchema, names: tuple[str, ...]) -> frozenset[str]:
    return frozenset(schema.ids[f"interface:{name}"].id for name in names)


def named_in(place: Fact, value: Any) -> frozenset[str]:
    """Return the ids of types and properties that a fact refers to."""
    match place[2]:
        case "unique" | "index":
            return frozenset(place[3]) - {"src", "dst"}
        case "range" | "check":
            return frozenset({place[3]})
        case "key" | "implements" | "interfaces":
            return frozenset(value)
        case "source" | "target":
            return frozenset({value})
        case "embed":
            return frozenset({value[0]})
    return frozenset()


# And back ----------------------------------------------------------------------------------------------


def schema_of(facts: Facts) -> tuple[Catalog, dict[str, TypeIds]]:
    """Build the catalog of facts, and its ids. A name that an absent type or property should have is a KeyError."""
    names = {(type_, property_): name for (type_, property_, *aspect), name in facts.items() if aspect == [NAME]}
    kinds = {type_: kind for (type_, _, *aspect), kind in facts.items() if aspect == [KIND]}
    built: dict[str, dict[str, Any]] = {"interface": {}, "node": {}, "edge": {}}
    ids = {}
    for type_, kind in kinds.items():
        one = _BuiltType(facts, names, type_)
        built[kind][one.name] = one.declared(kind)
        ids[f"{kind}:{one.name}"] = TypeIds(type_, {name: id_ for id_, name in one.properties.items()})
    return Catalog(by_name(built["interface"]), by_name(built["node"]), by_name(built["edge"])), ids


class _BuiltType:
    """Builds one type of facts."""

    def __init__(self, facts: Facts, names: Mapping[tuple[str, str], str], type_: str) -> None:
        self.facts = {place[1:]: value for place, value in facts.items() if place[0] == type_}
        self.names = names
        self.name = names[type_, ""]
        self.properties = {id_: name for (owner, id_), name in names.items() if owner == type_ and id_}
        self.columns = {**self.properties, "src": "src", "dst": "dst"}

    def declared(self, kind: str) -> Declared:
        properties = by_name({name: self._property(id_, name) for id_, name in self.properties.items()})
        if kind == "interface":
            return InterfaceType(self.name, properties)
        unique, indexes = (self._rules(rule) for rule in _COLUMN_RULES)
        metadata = self._metadata("")
        if kind == "edge":
            source, target = (self.names[self.facts["", end], ""] for end in ("source", "target"))
            cardinality = self.facts["", "cardinality"]
            return EdgeType(self.name, source, target, properties, cardinality, unique, indexes, metadata)
        key = tuple(sorted(self.columns[one] for one in self.facts.get(("", "key"), ())))
        bounds = ((self.columns[one], found) for one, found in self._about("range"))
        patterns = ((self.columns[one], found) for one, found in self._about("check"))
        ranges = tuple(sorted((Range(name, *one) for name, found in bounds for one in found), key=str))
        checks = tuple(sorted((Check(name, one) for name, found in patterns for one in found), key=str))
        implements = self._interfaces(self.facts.get(("", "implements"), ()))
        return NodeType(self.name, properties, key, unique, indexes, ranges, checks, implements, metadata)

    def _about(self, rule: str) -> list[tuple[Any, Any]]:
        return [(place[2], value) for place, value in self.facts.items() if place[:2] == ("", rule)]

    def _rules(self, rule: str) -> tuple[tuple[str, ...], ...]:
        return tuple(sorted(tuple(sorted(self.columns[one] for one in ids)) for ids, _ in self._about(rule)))

    def _property(self, id_: str, name: str) -> Property:
        embed = self.facts.get((id_, "embed"))
        return Property(
            name,
            self.facts[id_, "type"],
            Embed(self.columns.get(embed[0], embed[0]), embed[1]) if embed else None,
            self._metadata(id_),
            self._interfaces(self.facts.get((id_, "interfaces"), ())),
        )

    def _metadata(self, id_: str) -> Metadata:
        description, instruction, opaque = (self.facts.get((id_, label)) for label in (*PROSE, "opaque"))
        return Metadata(description, instruction, None, opaque or ())

    def _interfaces(self, ids: Any) -> tuple[str, ...]:
        return tuple(sorted(self.names[one, ""] for one in ids))
