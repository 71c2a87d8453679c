"""The parser of `.gq` text."""

from __future__ import annotations

from typing import Any

from lark import Token, Transformer, v_args

from omnigraph.core.values import Scalar
from omnigraph.lang import parsing, types
from omnigraph.lang import query_tree as tree
from omnigraph.lang.parsing import Grammar, annotation_name, name_of, span_of
from omnigraph.lang.source import Name, Rejection, Source, Span, TreeNode
from omnigraph.lang.types import MAX_VECTOR_DIMENSION, Type

SYNTAX = "Q000"


def parse_query_file(source: Source) -> tuple[tree.QueryTree, list[Rejection]]:
    """Parse a query file into the tree of its sound queries and a list of its syntax errors."""
    trees, errors = GRAMMAR.parse_all(source)
    return tree.QueryTree(tuple(query for parsed in trees for query in parsed.queries)), errors


class _Undirected(TreeNode):
    """An edge in angle brackets, while its traversal is being built."""

    edge: Name


@v_args(inline=True)
class _QueryBuilder(Transformer[Token, Any]):
    """One method per grammar rule; lark calls it as soon as the rule is complete."""

    def start(self, *queries: tree.QueryDecl) -> tree.QueryTree:
        return tree.QueryTree(queries)

    # Queries and parameters

    def query(self, name: Token, parameters: tuple[tree.ParameterDecl, ...] | None, *parts: Any) -> tree.QueryDecl:
        *annotations, body = parts
        texts: dict[str, str] = {}
        for kind, text in annotations:
            # The last one would silently win.
            if kind in texts:
                raise Rejection(SYNTAX, f"duplicate @{kind}", kind.span, hint="keep one")
            texts[kind] = text
        return tree.QueryDecl(name_of(name), parameters or (), texts.get("description"), texts.get("instruction"), body)

    def query_annotation(self, kind: Token, text: Token) -> tuple[Name, str]:
        return annotation_name(kind), parsing.text_of(text, SYNTAX)

    def parameters(self, *parameters: tree.ParameterDecl) -> tuple[tree.ParameterDecl, ...]:
        return parameters

    def parameter(self, variable: Token, type_: Type) -> tree.ParameterDecl:
        return tree.ParameterDecl(name_of(variable, skip=1), type_)

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
        match: tuple[tree.Clause, ...],
        items: tuple[tree.Item, ...],
        order: tuple[tree.Key, ...] | None,
        limit: int | None,
    ) -> tree.ReadBody:
        return tree.ReadBody(match, items, order or (), limit)

    def match(self, *clauses: tree.Clause) -> tuple[tree.Clause, ...]:
        return clauses

    def return_(self, *items: tree.Item) -> tuple[tree.Item, ...]:
        return items

    def order(self, *keys: tree.Key) -> tuple[tree.Key, ...]:
        return keys

    def limit(self, count: Token) -> int:
        return parsing.integer_of(count, SYNTAX)

    def negation(self, keyword: Token, *clauses: tree.Clause) -> tree.Negation:
        return tree.Negation(clauses, span_of(keyword))

    def binding(self, variable: Token, type_: Token, *entries: tree.Assignment | None) -> tree.Binding:
        return tree.Binding(name_of(variable, skip=1), name_of(type_), tuple(entry for entry in entries if entry))

    def match_entry(self, name: Token, value: tree.Expression) -> tree.Assignment:
        return tree.Assignment(name_of(name), value)

    def traversal(
        self, source: Token, edge: Token | _Undirected, hops: tree.Hops | None, target: Token
    ) -> tree.Traversal:
        return _traversal(source, None, edge, hops, target)

    def bound_traversal(
        self, source: Token, binding: Token, edge: Token | _Undirected, hops: tree.Hops | None, target: Token
    ) -> tree.Traversal:
        return _traversal(source, binding, edge, hops, target)

    def undirected(self, edge: Token) -> _Undirected:
        return _Undirected(name_of(edge))

    def hops(self, least: Token, most: Token | None) -> tree.Hops:
        upper = parsing.integer_of(most, SYNTAX) if most else None
        span = Span(span_of(least).start, span_of(most or least).end)
        return tree.Hops(parsing.integer_of(least, SYNTAX), upper, span)

    def filter(self, left: tree.Expression, operator: Token, right: tree.Expression) -> tree.FilterClause:
        return tree.FilterClause(left, name_of(operator), right)

    def word_filter(self, left: Token, operator: Token, right: tree.Expression) -> tree.FilterClause:
        return tree.FilterClause(self.variable(left), name_of(operator), right)

    def text_clause(self, call: tree.TextCall) -> tree.TextClause:
        return tree.TextClause(call)

    def item(self, expression: tree.Expression, alias: Token | None) -> tree.Item:
        return tree.Item(expression, name_of(alias) if alias else None)

    def key(self, expression: tree.Expression, direction: Token | None) -> tree.Key:
        # The grammar accepts it, so that the message can be better than a syntax error.
        if direction and isinstance(expression, tree.Nearest):
            message = f"nearest takes no direction; unexpected `{direction}`"
            raise Rejection(SYNTAX, message, span_of(direction), hint="nearest always ranks the closest first")
        return tree.Key(expression, name_of(direction) if direction else None)

    # Expressions

    def variable(self, token: Token) -> tree.Variable:
        return tree.Variable(name_of(token, skip=1))

    # A rule of its own in the grammar, so that the parser can decide between filter and traversal after it.
    variable_operand = variable

    def property(self, variable: Token, name: Token) -> tree.PropertyAccess:
        return tree.PropertyAccess(name_of(variable, skip=1), name_of(name))

    def alias(self, name: Token) -> tree.AliasRef:
        return tree.AliasRef(name_of(name))

    def now(self, keyword: Token) -> tree.Now:
        return tree.Now(span_of(keyword))

    def nearest(
        self, keyword: Token, vector: tree.PropertyAccess, query: tree.Expression, approximate: Token | None
    ) -> tree.Nearest:
        return tree.Nearest(vector, query, approximate == "true", span_of(keyword))

    def search(
        self, function: Token, text: tree.Expression, query: tree.Expression, edits: tree.Expression | None = None
    ) -> tree.TextCall:
        return tree.TextCall(name_of(function), text, query, edits)

    fuzzy = match_text = search

    def bm25(self, keyword: Token, text: tree.Expression, query: tree.Expression) -> tree.Bm25:
        return tree.Bm25(text, query, span_of(keyword))

    def rrf(
        self,
        keyword: Token,
        first: tree.Nearest | tree.Bm25,
        second: tree.Nearest | tree.Bm25,
        k: tree.Expression | None = None,
    ) -> tree.Rrf:
        return tree.Rrf(first, second, k, span_of(keyword))

    def aggregate(self, function: Token, argument: tree.Expression) -> tree.AggregateCall:
        return tree.AggregateCall(name_of(function), argument)

    # Literals

    def list(self, bracket: Token, *items: tree.Literal | tree.ListLiteral | None) -> tree.ListLiteral:
        return tree.ListLiteral(tuple(item for item in items if item), span_of(bracket))

    def datetime(self, keyword: Token, text: Token) -> tree.Literal:
        return tree.Literal(parsing.text_of(text, SYNTAX), types.DATETIME, span_of(keyword))

    def date(self, keyword: Token, text: Token) -> tree.Literal:
        return tree.Literal(parsing.text_of(text, SYNTAX), types.DATE, span_of(keyword))

    def string(self, token: Token) -> tree.Literal:
        return tree.Literal(parsing.text_of(token, SYNTAX), types.STRING, span_of(token))

    def float(self, token: Token) -> tree.Literal:
        return tree.Literal(parsing.float_of(token, SYNTAX), types.F64, span_of(token))

    def integer(self, token: Token) -> tree.Literal:
        return tree.Literal(parsing.integer_of(token, SYNTAX), types.I64, span_of(token))

    def boolean(self, token: Token) -> tree.Literal:
        return tree.Literal(token == "true", types.BOOL, span_of(token))

    # Writing

    def write(self, *statements: tree.Statement) -> tree.WriteBody:
        return tree.WriteBody(statements)

    def insert(self, type_: Token, *assignments: tree.Assignment) -> tree.Insert:
        return tree.Insert(name_of(type_), assignments)

    def update(self, type_: Token, *parts: Any) -> tree.Update:
        *assignments, predicate = parts
        return tree.Update(name_of(type_), tuple(assignments), predicate)

    def delete(self, type_: Token, predicate: tree.Predicate) -> tree.Delete:
        return tree.Delete(name_of(type_), predicate)

    assignment = match_entry

    def predicate(self, name: Token, operator: Token, value: tree.Expression) -> tree.Predicate:
        return tree.Predicate(name_of(name), name_of(operator), value)


def _traversal(
    source: Token, binding: Token | None, edge: Token | _Undirected, hops: tree.Hops | None, target: Token
) -> tree.Traversal:
    undirected = isinstance(edge, _Undirected)
    word = edge.edge if isinstance(edge, _Undirected) else name_of(edge)
    # The contextual lexer reads `not` as a name here. An edge called Not would make `$a not { ... }` ambiguous.
    if word == "not":
        raise Rejection(SYNTAX, "`not` cannot name an edge", word.span, hint="write a negation as `not { ... }`")
    return tree.Traversal(
        name_of(source, skip=1),
        word,
        name_of(target, skip=1),
        hops,
        undirected,
        name_of(binding, skip=1) if binding else None,
    )


GRAMMAR = Grammar("query.lark", _QueryBuilder, SYNTAX, r"query[ \t]+\w")
