"""The syntax tree of a `.gq` file, as written and before any rule is checked."""

from __future__ import annotations

from dataclasses import dataclass, field

from omnigraph.lang.source import NOWHERE, Name, Span
from omnigraph.lang.types import Type

# Spans are excluded from comparison: trees that differ in layout only are equal, which the formatter tests rely on.

# Expressions ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Literal:
    """A literal and its type; a date or date-time is kept as text until type-checking."""

    value: str | float | bool
    type: Type
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class ListLiteral:
    items: tuple[Literal | ListLiteral, ...]
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Variable:
    """`$name`: a bound node, a bound edge or a parameter. The name is kept without the dollar."""

    name: Name

    @property
    def span(self) -> Span:
        return self.name.span


@dataclass(frozen=True, slots=True)
class PropertyAccess:
    variable: Name
    name: Name

    @property
    def span(self) -> Span:
        return Span(self.variable.span.start, self.name.span.end)


@dataclass(frozen=True, slots=True)
class AliasRef:
    """A bare word: a reference to a result column."""

    name: Name

    @property
    def span(self) -> Span:
        return self.name.span


@dataclass(frozen=True, slots=True)
class Now:
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Nearest:
    vector: PropertyAccess
    query: Expression
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class TextCall:
    """`search`, `fuzzy` or `match_text`."""

    function: Name
    text: Expression
    query: Expression
    edits: Expression | None = None

    @property
    def span(self) -> Span:
        return self.function.span


@dataclass(frozen=True, slots=True)
class Bm25:
    text: Expression
    query: Expression
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Rrf:
    first: Nearest | Bm25
    second: Nearest | Bm25
    k: Expression | None
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class AggregateCall:
    function: Name
    argument: Expression

    @property
    def span(self) -> Span:
        return self.function.span


Rank = Nearest | Bm25 | Rrf
Expression = Literal | ListLiteral | Variable | PropertyAccess | AliasRef | Now | TextCall | Rank | AggregateCall

# Clauses -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Assignment:
    """`name: value`, in a binding or in a mutation."""

    property: Name
    value: Expression


@dataclass(frozen=True, slots=True)
class Binding:
    variable: Name
    type: Name
    entries: tuple[Assignment, ...]


@dataclass(frozen=True, slots=True)
class Hops:
    """`{least,most}` as written. A missing upper bound parses, and is reported by the type checker."""

    least: int
    most: int | None
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Traversal:
    """`$source edge $target`; `binding` is the edge variable, if there is one."""

    source: Name
    edge: Name
    target: Name
    hops: Hops | None = None
    undirected: bool = False
    binding: Name | None = None


@dataclass(frozen=True, slots=True)
class FilterClause:
    left: Expression
    operator: Name
    right: Expression


@dataclass(frozen=True, slots=True)
class TextClause:
    call: TextCall


@dataclass(frozen=True, slots=True)
class Negation:
    clauses: tuple[Clause, ...]
    span: Span = field(default=NOWHERE, compare=False)


Clause = Binding | Traversal | FilterClause | TextClause | Negation

# Bodies --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Item:
    expression: Expression
    alias: Name | None


@dataclass(frozen=True, slots=True)
class Key:
    expression: Expression
    direction: Name | None


@dataclass(frozen=True, slots=True)
class ReadBody:
    match: tuple[Clause, ...]
    items: tuple[Item, ...]
    order: tuple[Key, ...]
    limit: int | None


@dataclass(frozen=True, slots=True)
class Predicate:
    property: Name
    operator: Name
    value: Expression


@dataclass(frozen=True, slots=True)
class Insert:
    type: Name
    assignments: tuple[Assignment, ...]


@dataclass(frozen=True, slots=True)
class Update:
    type: Name
    assignments: tuple[Assignment, ...]
    predicate: Predicate


@dataclass(frozen=True, slots=True)
class Delete:
    type: Name
    predicate: Predicate


Statement = Insert | Update | Delete


@dataclass(frozen=True, slots=True)
class WriteBody:
    statements: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class ParameterDecl:
    name: Name
    type: Type


@dataclass(frozen=True, slots=True)
class QueryDecl:
    name: Name
    parameters: tuple[ParameterDecl, ...]
    description: str | None
    instruction: str | None
    body: ReadBody | WriteBody


@dataclass(frozen=True, slots=True)
class QueryTree:
    queries: tuple[QueryDecl, ...]
