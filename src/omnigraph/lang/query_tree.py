"""The syntax tree of a `.gq` file, as written and before any rule is checked."""

from __future__ import annotations

from dataclasses import field

from omnigraph.lang.source import NOWHERE, Name, Span, TreeNode
from omnigraph.lang.types import Type

# Spans are excluded from comparison: trees that differ in layout only are equal, which the formatter tests rely on.

# Expressions ---------------------------------------------------------------------------------------
# Those made of others have a `depth`: the builder refuses what is so deep that walking it would exhaust the stack.


class Literal(TreeNode):
    """A literal and its type; a date or date-time is kept as text until type-checking."""

    value: str | float | bool
    type: Type
    span: Span = field(default=NOWHERE, compare=False)


class ListLiteral(TreeNode):
    items: tuple[Literal | ListLiteral, ...]
    span: Span = field(default=NOWHERE, compare=False)


class Variable(TreeNode):
    """`$name`: a bound node, a bound edge or a parameter. The name is kept without the dollar."""

    name: Name

    @property
    def span(self) -> Span:
        return self.name.span


class PropertyAccess(TreeNode):
    variable: Name
    name: Name

    @property
    def span(self) -> Span:
        return Span(self.variable.span.start, self.name.span.end)


class AliasRef(TreeNode):
    """A bare word: a reference to a result column."""

    name: Name

    @property
    def span(self) -> Span:
        return self.name.span


class Now(TreeNode):
    span: Span = field(default=NOWHERE, compare=False)


class Nearest(TreeNode):
    vector: PropertyAccess
    query: Expression
    approximate: bool = False
    span: Span = field(default=NOWHERE, compare=False)
    depth: int = field(default=1, compare=False)


class TextCall(TreeNode):
    """`search`, `fuzzy` or `match_text`."""

    function: Name
    text: Expression
    query: Expression
    edits: Expression | None = None
    depth: int = field(default=1, compare=False)

    @property
    def span(self) -> Span:
        return self.function.span


class Bm25(TreeNode):
    text: Expression
    query: Expression
    span: Span = field(default=NOWHERE, compare=False)
    depth: int = field(default=1, compare=False)


class Rrf(TreeNode):
    first: Nearest | Bm25
    second: Nearest | Bm25
    k: Expression | None
    span: Span = field(default=NOWHERE, compare=False)
    depth: int = field(default=1, compare=False)


class AggregateCall(TreeNode):
    function: Name
    argument: Expression
    distinct: bool = False
    depth: int = field(default=1, compare=False)

    @property
    def span(self) -> Span:
        return self.function.span


class ObjectCall(TreeNode):
    """`object($p)`: a node or an edge with its properties."""

    variable: Name
    span: Span = field(default=NOWHERE, compare=False)


class MetaAccess(TreeNode):
    """`$p.@id`; without a variable, `@id` of the entity that a mutation changes."""

    variable: Name | None
    name: Name

    @property
    def span(self) -> Span:
        return Span(self.variable.span.start, self.name.span.end) if self.variable else self.name.span


class Binary(TreeNode):
    """A comparison, `contains`, `starts_with`, `in` or arithmetic."""

    left: Expression
    operator: Name
    right: Expression
    depth: int = field(default=1, compare=False)

    @property
    def span(self) -> Span:
        return Span(self.left.span.start, self.right.span.end)


class Unary(TreeNode):
    """`not x`, `-x`, `x is null` or `x is not null`."""

    operator: Name
    operand: Expression
    depth: int = field(default=1, compare=False)

    @property
    def span(self) -> Span:
        spans = (self.operator.span, self.operand.span)
        return Span(min(spans).start, max(spans).end)


class Connective(TreeNode):
    """`x and y and z`, or `x or y or z`."""

    operator: Name
    operands: tuple[Expression, ...]
    depth: int = field(default=1, compare=False)

    @property
    def span(self) -> Span:
        return Span(self.operands[0].span.start, self.operands[-1].span.end)


class FunctionCall(TreeNode):
    function: Name
    arguments: tuple[Expression, ...]
    depth: int = field(default=1, compare=False)

    @property
    def span(self) -> Span:
        return self.function.span


class Block(TreeNode):
    """`exists { ... }`, `count { ... }` or `sum(x) { ... }`: what a pattern has for each row."""

    function: Name
    clauses: tuple[Clause, ...]
    argument: Expression | None = None
    distinct: bool = False
    depth: int = field(default=1, compare=False)

    @property
    def span(self) -> Span:
        return self.function.span


Rank = Nearest | Bm25 | Rrf
_Leaf = Literal | ListLiteral | Variable | PropertyAccess | MetaAccess | ObjectCall | AliasRef | Now
_Operation = Binary | Unary | Connective | FunctionCall
Expression = _Leaf | _Operation | TextCall | Rank | AggregateCall | Block


def parts_of(expression: Expression) -> tuple[Expression, ...]:
    """Return the expressions that an expression is made of."""
    match expression:
        case Binary():
            return (expression.left, expression.right)
        case Unary():
            return (expression.operand,)
        case Connective(_, operands) | FunctionCall(_, operands):
            return operands
        case AggregateCall():
            return (expression.argument,)
        case TextCall():
            return (expression.text, expression.query)
        case _:
            return ()


# Clauses -------------------------------------------------------------------------------------------


class Assignment(TreeNode):
    """`name: value`, in a binding or in a mutation."""

    property: Name
    value: Expression


class Binding(TreeNode):
    variable: Name
    type: Name
    entries: tuple[Assignment, ...]


class Hops(TreeNode):
    """`{least,most}` as written. A missing upper bound parses, and is reported by the type checker."""

    least: int
    most: int | None
    span: Span = field(default=NOWHERE, compare=False)


class Traversal(TreeNode):
    """`$source edge $target`; `binding` is the edge variable, if there is one."""

    source: Name
    edge: Name
    target: Name
    hops: Hops | None = None
    undirected: bool = False
    binding: Name | None = None


class FilterClause(TreeNode):
    """A condition. `traversal` is another reading of `$a and $b`: an edge of that name, if the schema has one."""

    condition: Expression
    traversal: Traversal | None = None


class Negation(TreeNode):
    clauses: tuple[Clause, ...]
    span: Span = field(default=NOWHERE, compare=False)


class OptionalClause(TreeNode):
    clauses: tuple[Clause, ...]
    span: Span = field(default=NOWHERE, compare=False)


class Option(TreeNode):
    """`name: value` of a procedure."""

    name: Name
    value: Expression


class ProcedureClause(TreeNode):
    """`call pagerank(knows, damping: 0.9) yield $node, $value`."""

    name: Name
    edge: Name
    options: tuple[Option, ...]
    node: Name
    value: Name


Clause = ProcedureClause | Binding | Traversal | FilterClause | Negation | OptionalClause

# Bodies --------------------------------------------------------------------------------------------


class Item(TreeNode):
    expression: Expression
    alias: Name | None


class Key(TreeNode):
    expression: Expression
    direction: Name | None
    nulls_first: bool | None = None


class ReadBody(TreeNode):
    match: tuple[Clause, ...]
    items: tuple[Item, ...]
    order: tuple[Key, ...]
    limit: int | Variable | None
    offset: int | Variable | None = None
    having: tuple[FilterClause, ...] = ()
    distinct: bool = False


class Insert(TreeNode):
    """`insert`, or `insert new`, which refuses a key that exists."""

    type: Name
    assignments: tuple[Assignment, ...]
    new: bool = False


class Upsert(TreeNode):
    type: Name
    assignments: tuple[Assignment, ...]


class Update(TreeNode):
    type: Name
    assignments: tuple[Assignment, ...]
    predicate: Expression


class Delete(TreeNode):
    type: Name
    predicate: Expression


Statement = Insert | Upsert | Update | Delete


class WriteBody(TreeNode):
    statements: tuple[Statement, ...]


class ParameterDecl(TreeNode):
    name: Name
    type: Type


class QueryDecl(TreeNode):
    name: Name
    parameters: tuple[ParameterDecl, ...]
    description: str | None
    instruction: str | None
    body: ReadBody | WriteBody


class QueryTree(TreeNode):
    queries: tuple[QueryDecl, ...]
