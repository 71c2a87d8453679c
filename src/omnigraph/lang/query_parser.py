"""The parser of `.gq` text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lark import Token, Transformer, v_args

from omnigraph.core.values import Scalar
from omnigraph.lang import parsing, types
from omnigraph.lang.parsing import Grammar, annotation_name, name_of, span_of
from omnigraph.lang.query_tree import (
    AggregateCall,
    AliasRef,
    Assignment,
    Binding,
    Bm25,
    Clause,
    Delete,
    Expression,
    FilterClause,
    Hops,
    Insert,
    Item,
    Key,
    ListLiteral,
    Literal,
    Nearest,
    Negation,
    Now,
    Parameter,
    Predicate,
    PropertyAccess,
    QueryDecl,
    QueryTree,
    ReadBody,
    Rrf,
    Statement,
    TextCall,
    TextClause,
    Traversal,
    Update,
    Variable,
    WriteBody,
)
from omnigraph.lang.source import Name, Rejection, Source, Span
from omnigraph.lang.types import MAX_VECTOR_DIMENSION, Type

SYNTAX = "Q000"


def parse_query_file(source: Source) -> tuple[QueryTree, list[Rejection]]:
    """Parse a query file into the tree of its sound queries and a list of its syntax errors."""
    trees, errors = GRAMMAR.parse_all(source)
    return QueryTree(tuple(query for tree in trees for query in tree.queries)), errors


@dataclass(frozen=True, slots=True)
class _Undirected:
    """An edge in angle brackets, while its traversal is being built."""

    edge: Name


@v_args(inline=True)
class _QueryBuilder(Transformer[Token, Any]):
    """One method per grammar rule; lark calls it as soon as the rule is complete."""

    def start(self, *queries: QueryDecl) -> QueryTree:
        return QueryTree(queries)

    # Queries and parameters

    def query(self, name: Token, parameters: tuple[Parameter, ...] | None, *parts: Any) -> QueryDecl:
        *annotations, body = parts
        texts: dict[str, str] = {}
        for kind, text in annotations:
            # The last one would silently win.
            if kind in texts:
                raise Rejection(SYNTAX, f"duplicate @{kind}", kind.span, hint="keep one")
            texts[kind] = text
        return QueryDecl(name_of(name), parameters or (), texts.get("description"), texts.get("instruction"), body)

    def query_annotation(self, kind: Token, text: Token) -> tuple[Name, str]:
        return annotation_name(kind), parsing.text_of(text, SYNTAX)

    def parameters(self, *parameters: Parameter) -> tuple[Parameter, ...]:
        return parameters

    def parameter(self, variable: Token, type_: Type) -> Parameter:
        return Parameter(name_of(variable, skip=1), type_)

    def scalar(self, base: Token, nullable: Token | None) -> Type:
        return Type(Scalar(base), nullable=nullable is not None)

    def list_type(self, base: Token, nullable: Token | None) -> Type:
        if base == Scalar.BLOB:
            raise Rejection(SYNTAX, "list of Blob is not supported", span_of(base))
        return Type(Scalar(base), is_list=True, nullable=nullable is not None)

    def vector(self, _base: Token, dimension: Token, nullable: Token | None) -> Type:
        size = parsing.integer_of(dimension, SYNTAX)
        if not 1 <= size <= MAX_VECTOR_DIMENSION:
            message = f"Vector dimension must be between 1 and {MAX_VECTOR_DIMENSION}"
            raise Rejection(SYNTAX, message, span_of(dimension))
        return Type(Scalar.VECTOR, dimension=size, nullable=nullable is not None)

    # Reading

    def read(
        self,
        match: tuple[Clause, ...],
        items: tuple[Item, ...],
        order: tuple[Key, ...] | None,
        limit: int | None,
    ) -> ReadBody:
        return ReadBody(match, items, order or (), limit)

    def match(self, *clauses: Clause) -> tuple[Clause, ...]:
        return clauses

    def return_(self, *items: Item) -> tuple[Item, ...]:
        return items

    def order(self, *keys: Key) -> tuple[Key, ...]:
        return keys

    def limit(self, count: Token) -> int:
        return parsing.integer_of(count, SYNTAX)

    def negation(self, keyword: Token, *clauses: Clause) -> Negation:
        return Negation(clauses, span_of(keyword))

    def binding(self, variable: Token, type_: Token, *entries: Assignment | None) -> Binding:
        return Binding(name_of(variable, skip=1), name_of(type_), tuple(entry for entry in entries if entry))

    def match_entry(self, name: Token, value: Expression) -> Assignment:
        return Assignment(name_of(name), value)

    def traversal(self, source: Token, edge: Token | _Undirected, hops: Hops | None, target: Token) -> Traversal:
        return _traversal(source, None, edge, hops, target)

    def bound_traversal(
        self, source: Token, binding: Token, edge: Token | _Undirected, hops: Hops | None, target: Token
    ) -> Traversal:
        return _traversal(source, binding, edge, hops, target)

    def undirected(self, edge: Token) -> _Undirected:
        return _Undirected(name_of(edge))

    def hops(self, least: Token, most: Token | None) -> Hops:
        upper = parsing.integer_of(most, SYNTAX) if most else None
        span = Span(span_of(least).start, span_of(most or least).end)
        return Hops(parsing.integer_of(least, SYNTAX), upper, span)

    def filter(self, left: Expression, operator: Token, right: Expression) -> FilterClause:
        return FilterClause(left, name_of(operator), right)

    def word_filter(self, left: Token, operator: Token, right: Expression) -> FilterClause:
        return FilterClause(self.variable(left), name_of(operator), right)

    def text_clause(self, call: TextCall) -> TextClause:
        return TextClause(call)

    def item(self, expression: Expression, alias: Token | None) -> Item:
        return Item(expression, name_of(alias) if alias else None)

    def key(self, expression: Expression, direction: Token | None) -> Key:
        # The grammar accepts it, so that the message can be better than a syntax error.
        if direction and isinstance(expression, Nearest):
            message = f"nearest takes no direction; unexpected `{direction}`"
            raise Rejection(SYNTAX, message, span_of(direction), hint="nearest always ranks the closest first")
        return Key(expression, name_of(direction) if direction else None)

    # Expressions

    def variable(self, token: Token) -> Variable:
        return Variable(name_of(token, skip=1))

    # A rule of its own in the grammar, so that the parser can decide between filter and traversal after it.
    variable_operand = variable

    def property(self, variable: Token, name: Token) -> PropertyAccess:
        return PropertyAccess(name_of(variable, skip=1), name_of(name))

    def alias(self, name: Token) -> AliasRef:
        return AliasRef(name_of(name))

    def now(self, keyword: Token) -> Now:
        return Now(span_of(keyword))

    def nearest(self, keyword: Token, vector: PropertyAccess, query: Expression) -> Nearest:
        return Nearest(vector, query, span_of(keyword))

    def search(self, function: Token, text: Expression, query: Expression, edits: Expression | None = None) -> TextCall:
        return TextCall(name_of(function), text, query, edits)

    fuzzy = match_text = search

    def bm25(self, keyword: Token, text: Expression, query: Expression) -> Bm25:
        return Bm25(text, query, span_of(keyword))

    def rrf(self, keyword: Token, first: Nearest | Bm25, second: Nearest | Bm25, k: Expression | None = None) -> Rrf:
        return Rrf(first, second, k, span_of(keyword))

    def aggregate(self, function: Token, argument: Expression) -> AggregateCall:
        return AggregateCall(name_of(function), argument)

    # Literals

    def list(self, bracket: Token, *items: Literal | ListLiteral | None) -> ListLiteral:
        return ListLiteral(tuple(item for item in items if item), span_of(bracket))

    def datetime(self, keyword: Token, text: Token) -> Literal:
        return Literal(parsing.text_of(text, SYNTAX), types.DATETIME, span_of(keyword))

    def date(self, keyword: Token, text: Token) -> Literal:
        return Literal(parsing.text_of(text, SYNTAX), types.DATE, span_of(keyword))

    def string(self, token: Token) -> Literal:
        return Literal(parsing.text_of(token, SYNTAX), types.STRING, span_of(token))

    def float(self, token: Token) -> Literal:
        return Literal(parsing.float_of(token, SYNTAX), types.F64, span_of(token))

    def integer(self, token: Token) -> Literal:
        return Literal(parsing.integer_of(token, SYNTAX), types.I64, span_of(token))

    def boolean(self, token: Token) -> Literal:
        return Literal(token == "true", types.BOOL, span_of(token))

    # Writing

    def write(self, *statements: Statement) -> WriteBody:
        return WriteBody(statements)

    def insert(self, type_: Token, *assignments: Assignment) -> Insert:
        return Insert(name_of(type_), assignments)

    def update(self, type_: Token, *parts: Any) -> Update:
        *assignments, predicate = parts
        return Update(name_of(type_), tuple(assignments), predicate)

    def delete(self, type_: Token, predicate: Predicate) -> Delete:
        return Delete(name_of(type_), predicate)

    assignment = match_entry

    def predicate(self, name: Token, operator: Token, value: Expression) -> Predicate:
        return Predicate(name_of(name), name_of(operator), value)


def _traversal(
    source: Token, binding: Token | None, edge: Token | _Undirected, hops: Hops | None, target: Token
) -> Traversal:
    undirected = isinstance(edge, _Undirected)
    word = edge.edge if isinstance(edge, _Undirected) else name_of(edge)
    # The contextual lexer reads `not` as a name here. An edge called Not would make `$a not { ... }` ambiguous.
    if word == "not":
        raise Rejection(SYNTAX, "`not` cannot name an edge", word.span, hint="write a negation as `not { ... }`")
    return Traversal(
        name_of(source, skip=1),
        word,
        name_of(target, skip=1),
        hops,
        undirected,
        name_of(binding, skip=1) if binding else None,
    )


GRAMMAR = Grammar("query.lark", _QueryBuilder, SYNTAX, r"query[ \t]+\w")
