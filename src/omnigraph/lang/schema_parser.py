"""From `.pg` text to its syntax tree."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from lark import Token, Transformer, v_args

from omnigraph.lang import parsing
from omnigraph.lang.parsing import Grammar, annotation_name, name_of, span_of
from omnigraph.lang.schema_tree import (
    Annotation,
    Bounds,
    CardDecl,
    Declaration,
    EdgeDecl,
    InterfaceDecl,
    NodeDecl,
    PropertyDecl,
    Rule,
    SchemaTree,
    TypeExpression,
    Value,
)
from omnigraph.lang.source import Name, Rejection, Source, Span

_SYNTAX = "P1"
_ESCAPE = "P36"
_MAX_U64_DIGITS = 20
_T = TypeVar("_T")


def parse_schema_tree(source: Source) -> tuple[SchemaTree, list[Rejection]]:
    """Parse a schema. The tree holds the sound declarations, the list every syntax error."""
    trees, errors = GRAMMAR.parse_all(source)
    return SchemaTree(tuple(decl for tree in trees for decl in tree.declarations)), errors


def _only(kind: type[_T], children: Iterable[object]) -> tuple[_T, ...]:
    return tuple(child for child in children if isinstance(child, kind))


@v_args(inline=True)
class _Builder(Transformer[Token, Any]):
    """One method a grammar rule; lark calls it as soon as the rule is complete."""

    def start(self, *declarations: Declaration) -> SchemaTree:
        return SchemaTree(declarations)

    def interface(self, _keyword: Token, name: Token, *properties: PropertyDecl) -> InterfaceDecl:
        return InterfaceDecl(name_of(name), properties)

    def node(self, _keyword: Token, name: Token, *parts: Any) -> NodeDecl:
        implements = _only(tuple, parts)
        return NodeDecl(
            name_of(name),
            _only(Annotation, parts),
            implements[0] if implements else (),
            _only(PropertyDecl, parts),
            _only(Rule, parts),
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
            _only(Rule, parts),
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
        span = Span(names[0].span.start, names[-1].span.end)
        return TypeExpression(Name("String", span), nullable=nullable is not None, enum=names)

    def vector(self, base: Token, dimension: Token, nullable: Token | None) -> TypeExpression:
        return TypeExpression(name_of(base), nullable=nullable is not None, dimension=name_of(dimension))

    def rule(self, kind: Token, *arguments: Name | Value | Bounds) -> Rule:
        return Rule(annotation_name(kind), arguments)

    def bounds(self, lower: Token, upper: Token | None) -> Bounds:
        end = span_of(upper or lower).end
        return Bounds(_number(lower), _number(upper) if upper else None, Span(span_of(lower).start, end))

    def upper_bound(self, upper: Token) -> Bounds:
        return Bounds(None, _number(upper), span_of(upper))

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
        return Value(_number(token), span_of(token))


def _number(token: Token) -> float:
    """An exact integer where one is written: 2**53 + 1 must not become 2**53."""
    return parsing.float_of(token, _SYNTAX) if "." in token else _signed(token)


def _signed(token: Token) -> int:
    """An integer bound: any that a column of 64 bits could reach, with or without a sign."""
    digits = token.lstrip("-").lstrip("0") or "0"
    if len(digits) > _MAX_U64_DIGITS:
        raise Rejection(_SYNTAX, "the number does not fit a 64-bit integer", span_of(token))
    return -int(digits) if token.startswith("-") else int(digits)


GRAMMAR = Grammar("schema.lark", _Builder, _SYNTAX, r"(?:node|edge|interface)[ \t]+\w")
