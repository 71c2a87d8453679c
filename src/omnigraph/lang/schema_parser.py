"""The syntax tree of a `.pg` schema, as written and before any rule is checked, and its parser."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from typing import Any, TypeVar

from lark import Token, Transformer, v_args

from omnigraph.lang import parsing
from omnigraph.lang.parsing import Grammar, annotation_name, name_of, span_of
from omnigraph.lang.source import NOWHERE, Name, Rejection, Source, Span, TreeNode

_SYNTAX = "P1"
_ESCAPE = "P36"
_MAX_U64_DIGITS = 20
_T = TypeVar("_T")


# The tree -----------------------------------------------------------------------------------------


class Value(TreeNode):
    """A literal: string, integer, float or bool."""

    value: str | float | bool
    span: Span = field(default=NOWHERE, compare=False)


class Bounds(TreeNode):
    """`lo..hi`; either bound may be missing."""

    lower: float | None
    upper: float | None
    span: Span = field(default=NOWHERE, compare=False)


class Annotation(TreeNode):
    """`@name`, `@name(value)` or `@name(value, key=value)`."""

    name: Name
    value: Value | Name | None = None
    keywords: tuple[tuple[Name, Value], ...] = ()


class RuleDecl(TreeNode):
    """`@key(...)`, `@unique(...)`, `@index(...)`, `@range(...)` or `@check(...)` in a body."""

    kind: Name
    arguments: tuple[Name | Value | Bounds, ...]


class TypeExpression(TreeNode):
    """A property type as written: exactly one of scalar, list, enum, vector."""

    base: Name
    is_list: bool = False
    nullable: bool = False
    enum: tuple[Name, ...] = ()
    dimension: Name | None = None


class PropertyDecl(TreeNode):
    name: Name
    type: TypeExpression
    annotations: tuple[Annotation, ...] = ()


class InterfaceDecl(TreeNode):
    name: Name
    properties: tuple[PropertyDecl, ...]


class NodeDecl(TreeNode):
    name: Name
    annotations: tuple[Annotation, ...]
    implements: tuple[Name, ...]
    properties: tuple[PropertyDecl, ...]
    rules: tuple[RuleDecl, ...]


class CardDecl(TreeNode):
    """`@card(lower..upper)` as written; the checker validates the bounds."""

    lower: Name
    upper: Name | None
    span: Span = field(default=NOWHERE, compare=False)


class EdgeDecl(TreeNode):
    name: Name
    source: Name
    target: Name
    card: CardDecl | None
    annotations: tuple[Annotation, ...]
    properties: tuple[PropertyDecl, ...]
    rules: tuple[RuleDecl, ...]


Declaration = InterfaceDecl | NodeDecl | EdgeDecl


class SchemaTree(TreeNode):
    declarations: tuple[Declaration, ...]


# The parser ---------------------------------------------------------------------------------------


def parse_schema_tree(source: Source) -> tuple[SchemaTree, list[Rejection]]:
    """Parse a schema into the tree of its sound declarations and a list of its syntax errors."""
    trees, errors = GRAMMAR.parse_all(source)
    return SchemaTree(tuple(decl for tree in trees for decl in tree.declarations)), errors


def _only(kind: type[_T], children: Iterable[object]) -> tuple[_T, ...]:
    return tuple(child for child in children if isinstance(child, kind))


@v_args(inline=True)
class _SchemaBuilder(Transformer[Token, Any]):
    """One method per grammar rule; lark calls it as soon as the rule is complete."""

    def start(self, *declarations: Declaration) -> SchemaTree:
        return SchemaTree(declarations)

    def interface(self, _keyword: Token, name: Token, *properties: PropertyDecl) -> InterfaceDecl:
        return InterfaceDecl(name_of(name), properties)

    def node(self, _keyword: Token, name: Token, *parts: Any) -> NodeDecl:
        # Annotations, interfaces, properties and rules come in one list; their classes distinguish them.
        implements = _only(tuple, parts)
        return NodeDecl(
            name_of(name),
            _only(Annotation, parts),
            implements[0] if implements else (),
            _only(PropertyDecl, parts),
            _only(RuleDecl, parts),
        )

    def implements(self, *names: Token) -> tuple[Name, ...]:
        return tuple(map(name_of, names))

    def edge(
        self, _keyword: Token, name: Token, source: Token, target: Token, card: CardDecl | None, *parts: Any
    ) -> EdgeDecl:
        return EdgeDecl(
            name_of(name),
            name_of(source),
            name_of(target),
            card,
            _only(Annotation, parts),
            _only(PropertyDecl, parts),
            _only(RuleDecl, parts),
        )

    def card(self, keyword: Token, lower: Token, upper: Token | None) -> CardDecl:
        return CardDecl(name_of(lower), name_of(upper) if upper else None, span_of(keyword))

    def property(self, name: Token, type_: TypeExpression, *annotations: Annotation) -> PropertyDecl:
        return PropertyDecl(name_of(name), type_, annotations)

    def scalar(self, base: Token, nullable: Token | None) -> TypeExpression:
        return TypeExpression(name_of(base), nullable=nullable is not None)

    def list(self, base: Token, nullable: Token | None) -> TypeExpression:
        return TypeExpression(name_of(base), is_list=True, nullable=nullable is not None)

    def enum(self, *parts: Token | None) -> TypeExpression:
        *values, nullable = parts
        names = tuple(name_of(value) for value in values if value)
        # An enum is a String with a closed set of values, so the rules for Strings apply to it.
        span = Span(names[0].span.start, names[-1].span.end)
        return TypeExpression(Name("String", span), nullable=nullable is not None, enum=names)

    def vector(self, base: Token, dimension: Token, nullable: Token | None) -> TypeExpression:
        return TypeExpression(name_of(base), nullable=nullable is not None, dimension=name_of(dimension))

    def rule(self, kind: Token, *arguments: Name | Value | Bounds) -> RuleDecl:
        return RuleDecl(annotation_name(kind), arguments)

    def bounds(self, lower: Token, upper: Token | None) -> Bounds:
        # `lo..` has no upper token to end at.
        end = span_of(upper or lower).end
        return Bounds(_number_of(lower), _number_of(upper) if upper else None, Span(span_of(lower).start, end))

    def upper_bound(self, upper: Token) -> Bounds:
        return Bounds(None, _number_of(upper), span_of(upper))

    def annotation(self, name: Token, value: Value | Name | None = None, *keywords: tuple[Name, Value]) -> Annotation:
        return Annotation(annotation_name(name), value, keywords)

    def keyword(self, name: Token, value: Value) -> tuple[Name, Value]:
        return name_of(name), value

    def name(self, token: Token) -> Name:
        return name_of(token)

    def string(self, token: Token) -> Value:
        return Value(parsing.text_of(token, _ESCAPE), span_of(token))

    def float(self, token: Token) -> Value:
        return Value(parsing.float_of(token, _SYNTAX), span_of(token))

    def integer(self, token: Token) -> Value:
        return Value(parsing.integer_of(token, _SYNTAX), span_of(token))

    def boolean(self, token: Token) -> Value:
        return Value(token == "true", span_of(token))

    def number(self, token: Token) -> Value:
        return Value(_number_of(token), span_of(token))


def _number_of(token: Token) -> float:
    """Decode a number; an integer stays exact, because 2**53 + 1 must not become 2**53."""
    return parsing.float_of(token, _SYNTAX) if "." in token else _signed(token)


def _signed(token: Token) -> int:
    """Decode an integer bound: any value of a signed or unsigned 64-bit column."""
    digits = token.lstrip("-").lstrip("0") or "0"
    if len(digits) > _MAX_U64_DIGITS:
        raise Rejection(_SYNTAX, "the number does not fit a 64-bit integer", span_of(token))
    return -int(digits) if token.startswith("-") else int(digits)


GRAMMAR = Grammar("schema.lark", _SchemaBuilder, _SYNTAX, r"(?:node|edge|interface)[ \t]+\w")
