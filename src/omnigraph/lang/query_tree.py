"""The syntax tree of a `.gq` file, as written and before any rule is checked."""

from __future__ import annotations

from dataclasses import field

from omnigraph.lang.source import NOWHERE, Name, Span, TreeNode
from omnigraph.lang.types import Type

# Spans are excluded from comparison: trees that differ in layout only are equal, which the formatter tests rely on.

# Expressions ---------------------------------------------------------------------------------------


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


class TextCall(TreeNode):
    """`search`, `fuzzy` or `match_text`."""

    function: Name
    text: Expression
    query: Expression
    edits: Expression | None = None

    @property
    def span(self) -> Span:
        return self.function.span


class Bm25(TreeNode):
    text: Expression
    query: Expression
    span: Span = field(default=NOWHERE, compare=False)


class Rrf(TreeNode):
    first: Nearest | Bm25
    second: Nearest | Bm25
    k: Expression | None
    span: Span = field(default=NOWHERE, compare=False)


class AggregateCall(TreeNode):
    function: Name
    argument: Expression

    @property
    def span(self) -> Span:
        return self.function.span


Rank = Nearest | Bm25 | Rrf
Expression = Literal | ListLiteral | Variable | PropertyAccess | AliasRef | Now | TextCall | Rank | AggregateCall

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
    left: Expression
    operator: Name
    right: Expression


class TextClause(TreeNode):
    call: TextCall


class Negation(TreeNode):
    clauses: tuple[Clause, ...]
    span: Span = field(default=NOWHERE, compare=False)


Clause = Binding | Traversal | FilterClause | TextClause | Negation

# Bodies --------------------------------------------------------------------------------------------


class Item(TreeNode):
    expression: Expression
    alias: Name | None


class Key(TreeNode):
    expression: Expression
    direction: Name | None


class ReadBody(TreeNode):
    match: tuple[Clause, ...]
    items: tuple[Item, ...]
    order: tuple[Key, ...]
    limit: int | None


class Predicate(TreeNode):
    property: Name
    operator: Name
    value: Expression


class Insert(TreeNode):
    type: Name
    assignments: tuple[Assignment, ...]


class Update(TreeNode):
    type: Name
    assignments: tuple[Assignment, ...]
    predicate: Predicate


class Delete(TreeNode):
    type: Name
    predicate: Predicate


Statement = Insert | Update | Delete


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
