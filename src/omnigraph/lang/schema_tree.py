"""The syntax tree of a `.pg` schema: what was written, with its spans, before any rule is checked."""

from __future__ import annotations

from dataclasses import dataclass, field

from omnigraph.lang.source import NOWHERE, Name, Span


@dataclass(frozen=True, slots=True)
class Value:
    """A literal: text, integer, float or bool."""

    value: str | float | bool
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Bounds:
    """`lo..hi`, either end open."""

    lower: float | None
    upper: float | None
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Annotation:
    """`@name`, `@name(value)` or `@name(value, key=value)`."""

    name: Name
    value: Value | Name | None = None
    keywords: tuple[tuple[Name, Value], ...] = ()


@dataclass(frozen=True, slots=True)
class Rule:
    """`@key(...)`, `@unique(...)`, `@index(...)`, `@range(...)` or `@check(...)` in a body."""

    kind: Name
    arguments: tuple[Name | Value | Bounds, ...]


@dataclass(frozen=True, slots=True)
class TypeExpression:
    """A property type as written: exactly one of scalar, list, enum, vector."""

    base: Name
    is_list: bool = False
    nullable: bool = False
    enum: tuple[Name, ...] = ()
    dimension: Name | None = None


@dataclass(frozen=True, slots=True)
class PropertyDecl:
    name: Name
    type: TypeExpression
    annotations: tuple[Annotation, ...] = ()


@dataclass(frozen=True, slots=True)
class InterfaceDecl:
    name: Name
    properties: tuple[PropertyDecl, ...]


@dataclass(frozen=True, slots=True)
class NodeDecl:
    name: Name
    annotations: tuple[Annotation, ...]
    implements: tuple[Name, ...]
    properties: tuple[PropertyDecl, ...]
    rules: tuple[Rule, ...]


@dataclass(frozen=True, slots=True)
class CardDecl:
    """`@card(lower..upper)` as written; the bounds are checked with the other rules."""

    lower: Name
    upper: Name | None
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class EdgeDecl:
    name: Name
    source: Name
    target: Name
    card: CardDecl | None
    annotations: tuple[Annotation, ...]
    properties: tuple[PropertyDecl, ...]
    rules: tuple[Rule, ...]


Declaration = InterfaceDecl | NodeDecl | EdgeDecl


@dataclass(frozen=True, slots=True)
class SchemaTree:
    declarations: tuple[Declaration, ...]
