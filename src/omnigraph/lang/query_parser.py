"""The parser of `.gq` text."""

from __future__ import annotations

from collections.abc import Sequence
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
        self, match: tuple[tree.Clause, ...], result: tuple[bool, tuple[tree.Item, ...]], *rest: Any
    ) -> tree.ReadBody:
        having, order, offset, limit = rest
        distinct, items = result
        return tree.ReadBody(match, items, order or (), limit, offset, having or (), distinct=distinct)

    def match(self, *clauses: tree.Clause) -> tuple[tree.Clause, ...]:
        return clauses

    def return_(self, distinct: Token | None, *items: tree.Item) -> tuple[bool, tuple[tree.Item, ...]]:
        return distinct is not None, items

    def having(self, *conditions: tree.FilterClause) -> tuple[tree.FilterClause, ...]:
        return conditions

    def order(self, *keys: tree.Key) -> tuple[tree.Key, ...]:
        return keys

    def limit(self, count: Token) -> int | tree.Variable:
        return self.variable(count) if count.type == "VAR" else parsing.integer_of(count, SYNTAX)

    offset = limit

    def negation(self, keyword: Token, *clauses: tree.Clause) -> tree.Negation:
        return tree.Negation(clauses, span_of(keyword))

    def optional(self, keyword: Token, *clauses: tree.Clause) -> tree.OptionalClause:
        return tree.OptionalClause(clauses, span_of(keyword))

    def procedure(self, name: Token, edge: Token, *rest: Any) -> tree.ProcedureClause:
        *options, node, value = rest
        variables = (name_of(one, skip=1) for one in (node, value))
        return tree.ProcedureClause(name_of(name), name_of(edge), tuple(options), *variables)

    def option(self, name: Token, value: tree.Expression) -> tree.Option:
        return tree.Option(name_of(name), value)

    def block(self, function: Token, *parts: Any) -> tree.Block:
        if function.type != "AGGREGATE":
            return tree.Block(name_of(function), parts)
        distinct, argument, *clauses = parts
        depth = _depth(function, argument)
        return tree.Block(name_of(function), tuple(clauses), argument, distinct=distinct is not None, depth=depth)

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

    def either(self, source: Token, word: Token, target: Token) -> tree.Traversal | tree.FilterClause:
        followed = _traversal(source, None, word, None, target)
        # These two have always been traversals here, whatever the schema says.
        if word.type == "WORD_OP":
            return followed
        return tree.FilterClause(_operation(self.variable(source), word, self.variable(target)), followed)

    def filter(self, condition: tree.Expression) -> tree.FilterClause:
        return tree.FilterClause(condition)

    def word_filter(self, left: Token, *rest: Any) -> tree.FilterClause:
        parts = [self.variable(one) if isinstance(one, Token) and one.type == "VAR" else one for one in rest]
        return tree.FilterClause(self.chain(self.variable(left), *parts))

    def item(self, expression: tree.Expression, alias: Token | None) -> tree.Item:
        return tree.Item(expression, name_of(alias) if alias else None)

    def key(self, expression: tree.Expression, direction: Token | None, nulls: Token | None) -> tree.Key:
        # The grammar accepts it, so that the message can be better than a syntax error.
        if direction and isinstance(expression, tree.Nearest):
            message = f"nearest takes no direction; unexpected `{direction}`"
            raise Rejection(SYNTAX, message, span_of(direction), hint="nearest always ranks the closest first")
        first = None if nulls is None else nulls.endswith("first")
        return tree.Key(expression, name_of(direction) if direction else None, first)

    # Expressions

    def variable(self, token: Token) -> tree.Variable:
        return tree.Variable(name_of(token, skip=1))

    def chain(self, *parts: Any) -> tree.Expression:
        return _Chain(parts).expression()

    def group(self, inner: tree.Expression) -> tree.Expression:
        return inner

    def call(self, function: Token, *arguments: tree.Expression) -> tree.FunctionCall:
        return tree.FunctionCall(name_of(function), arguments, _depth(function, *arguments))

    def meta(self, *tokens: Token) -> tree.MetaAccess:
        *variable, name = tokens
        return tree.MetaAccess(name_of(variable[0], skip=1) if variable else None, annotation_name(name))

    def property(self, variable: Token, name: Token) -> tree.PropertyAccess:
        return tree.PropertyAccess(name_of(variable, skip=1), name_of(name))

    def alias(self, name: Token) -> tree.AliasRef:
        return tree.AliasRef(name_of(name))

    def now(self, keyword: Token) -> tree.Now:
        return tree.Now(span_of(keyword))

    def nearest(
        self, keyword: Token, vector: tree.PropertyAccess, query: tree.Expression, approximate: Token | None
    ) -> tree.Nearest:
        return tree.Nearest(vector, query, approximate == "true", span_of(keyword), _depth(keyword, query))

    def search(
        self, function: Token, text: tree.Expression, query: tree.Expression, edits: tree.Expression | None = None
    ) -> tree.TextCall:
        return tree.TextCall(name_of(function), text, query, edits, _depth(function, text, query, edits))

    fuzzy = match_text = search

    def bm25(self, keyword: Token, text: tree.Expression, query: tree.Expression) -> tree.Bm25:
        return tree.Bm25(text, query, span_of(keyword), _depth(keyword, text, query))

    def rrf(
        self,
        keyword: Token,
        first: tree.Nearest | tree.Bm25,
        second: tree.Nearest | tree.Bm25,
        k: tree.Expression | None = None,
    ) -> tree.Rrf:
        return tree.Rrf(first, second, k, span_of(keyword), _depth(keyword, first, second, k))

    def aggregate(self, function: Token, distinct: Token | None, argument: tree.Expression) -> tree.AggregateCall:
        depth = _depth(function, argument)
        return tree.AggregateCall(name_of(function), argument, distinct=distinct is not None, depth=depth)

    def object(self, keyword: Token, variable: Token) -> tree.ObjectCall:
        return tree.ObjectCall(name_of(variable, skip=1), span_of(keyword))

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

    def named_condition(self, name: Token, *rest: Any) -> tree.Expression:
        return self.chain(self.alias(name), *rest)

    def write(self, *statements: tree.Statement) -> tree.WriteBody:
        return tree.WriteBody(statements)

    def insert(self, new: Token | None, type_: Token, *assignments: tree.Assignment) -> tree.Insert:
        return tree.Insert(name_of(type_), assignments, new is not None)

    def upsert(self, type_: Token, *assignments: tree.Assignment) -> tree.Upsert:
        return tree.Upsert(name_of(type_), assignments)

    def update(self, type_: Token, *parts: Any) -> tree.Update:
        *assignments, predicate = parts
        return tree.Update(name_of(type_), tuple(assignments), predicate)

    def delete(self, type_: Token, predicate: tree.Expression) -> tree.Delete:
        return tree.Delete(name_of(type_), predicate)

    assignment = match_entry


_LOOSEST, _NOT_BINDS, _TESTS, _SIGN_BINDS = 1, 3, 4, 7
_BINDS = {
    "OR": 1,
    "AND": 2,
    "COMPARE": 4,
    "WORD_OP": 4,
    "IN": 4,
    "IS_NULL": 4,
    "PLUS": 5,
    "MINUS": 5,
    "STAR": 6,
    "SLASH": 6,
}
_MOST_DEEP = 100


class _Chain:
    """Operands and operators in a row; builds their tree by precedence."""

    def __init__(self, parts: Sequence[Any]) -> None:
        self.parts = parts
        self.at = 0
        self.open = 0  # expressions that are being built

    def expression(self, least: int = _LOOSEST) -> tree.Expression:
        """Build what is held together by operators that bind at least so tightly."""
        left = self._prefixed()
        tested = False
        while self.at < len(self.parts):
            operator = self.parts[self.at]
            binds = _BINDS[operator.type]
            if binds < least:
                break
            if binds == _TESTS and tested:
                message = f"unexpected `{operator}`; comparisons do not chain"
                raise Rejection(SYNTAX, message, span_of(operator), hint="join two comparisons with `and`")
            tested = binds == _TESTS
            self.at += 1
            if operator.type in ("AND", "OR"):
                left = self._joined(left, operator, binds)
            elif operator.type == "IS_NULL":
                left = _with_operator("is not null" if "not" in operator else "is null", operator, left)
            else:
                left = _operation(left, operator, self.expression(binds + 1))
        return left

    def _prefixed(self) -> tree.Expression:
        part = self.parts[self.at]
        self.at += 1
        if not isinstance(part, Token):
            operand: tree.Expression = part
            return operand
        self.open += 1
        # Before descending: so many signs would exhaust the stack here already.
        _depth(part, depth=self.open)
        operand = self.expression(_NOT_BINDS if part.type == "NEGATE" else _SIGN_BINDS)
        self.open -= 1
        return _negative(part, operand) if part.type == "MINUS" else _with_operator("not", part, operand)

    def _joined(self, left: tree.Expression, operator: Token, binds: int) -> tree.Connective:
        # All of them at once: a tree of pairs would be as deep as the chain is long.
        operands = [left, self.expression(binds + 1)]
        while self.at < len(self.parts) and self.parts[self.at].type == operator.type:
            self.at += 1
            operands.append(self.expression(binds + 1))
        return tree.Connective(name_of(operator), tuple(operands), _depth(operator, *operands))


def _depth(token: Token, *inner: object, depth: int = 0) -> int:
    """Return the depth of an expression around others; too deep, it could not be walked."""
    deepest = 1 + max((getattr(one, "depth", 0) for one in inner), default=depth)
    if deepest > _MOST_DEEP:
        hint = "join conditions with `and`, or compute a part of it outside"
        raise Rejection(SYNTAX, f"an expression is nested more than {_MOST_DEEP} deep", span_of(token), hint=hint)
    return deepest


def _operation(left: tree.Expression, operator: Token, right: tree.Expression) -> tree.Expression:
    depth = _depth(operator, left, right)
    if operator.type in ("AND", "OR"):
        return tree.Connective(name_of(operator), (left, right), depth)
    return tree.Binary(left, name_of(operator), right, depth)


def _with_operator(words: str, operator: Token, operand: tree.Expression) -> tree.Unary:
    return tree.Unary(Name(words, span_of(operator)), operand, _depth(operator, operand))


def _negative(sign: Token, operand: tree.Expression) -> tree.Expression:
    """Build `-x`; a number with a sign is a literal, so that it can stand wherever a literal can."""
    if isinstance(operand, tree.Literal) and operand.type in (types.I64, types.F64):
        assert isinstance(operand.value, int | float)
        return tree.Literal(-operand.value, operand.type, Span(span_of(sign).start, operand.span.end))
    return _with_operator("-", sign, operand)


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
