"""The plan of a checked query: immutable, typed nodes that assert their invariants.

A read is a sequence of steps over rows of bindings; a mutation is a sequence of statements.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import field, replace
from enum import StrEnum

from omnigraph.lang.source import NOWHERE, Span, TreeNode
from omnigraph.lang.types import BOOL, Type

# Values --------------------------------------------------------------------------------------------

PlainValue = str | int | float | bool | dt.date | dt.datetime | tuple["PlainValue", ...] | None


VALUE = "value"
"""The property of a variable that a procedure has bound: its value."""


class _Expression(TreeNode):
    @property
    def variables(self) -> frozenset[str]:
        """The variables whose properties it reads."""
        return variables_of(self)


class Constant(_Expression):
    value: PlainValue
    type: Type


class ParameterRef(_Expression):
    name: str
    type: Type


class RequestTime(_Expression):
    """`now()`: one value for the whole request."""

    type: Type


class PropertyRef(_Expression):
    variable: str
    property: str
    type: Type


class EntityRef(TreeNode):
    """A bound node; its value is the node's id."""

    variable: str
    type_name: str


# Expressions ---------------------------------------------------------------------------------------


class Operator(StrEnum):
    EQ = "="
    NE = "!="
    LT = "<"
    LE = "<="
    GT = ">"
    GE = ">="
    CONTAINS = "contains"
    STARTS_WITH = "starts_with"


class Comparison(_Expression):
    """`left op right`; null if a side is null. `x in list` is `list contains x`."""

    left: Expr
    operator: Operator
    right: Expr

    def __post_init__(self) -> None:
        left, right = self.left.type, self.right.type
        if self.operator is Operator.CONTAINS:
            assert not right.is_list
            assert left.element.accepts(right) if left.is_list else left.is_string and right.is_string
        elif self.operator is Operator.STARTS_WITH:
            assert left.is_string
            assert right.is_string
        else:
            assert left.is_comparable
            assert left.accepts(right)

    @property
    def type(self) -> Type:
        return replace(BOOL, nullable=self.left.type.nullable or self.right.type.nullable)


class Junction(_Expression):
    """`a and b and c`, or `a or b or c`: false wins an `and`, true an `or`, then null."""

    conjunctive: bool
    operands: tuple[Expr, ...]

    def __post_init__(self) -> None:
        assert len(self.operands) > 1
        assert all(operand.type.scalar is BOOL.scalar for operand in self.operands)

    @property
    def type(self) -> Type:
        return replace(BOOL, nullable=any(operand.type.nullable for operand in self.operands))


class Not(_Expression):
    """`not a`; null stays null."""

    operand: Expr

    @property
    def type(self) -> Type:
        return replace(BOOL, nullable=self.operand.type.nullable)


class IsNull(_Expression):
    """`a is null`, which is never null itself."""

    operand: Expr
    type: Type = BOOL


class Computed(_Expression):
    """A function or an arithmetic operator, by its name in `lang/functions.py`, with its arguments."""

    function: str
    arguments: tuple[Expr, ...]
    type: Type
    span: Span = field(default=NOWHERE, compare=False)


class Subquery(_Expression):
    """What the inner steps, started from a row, yield for it: whether a row, how many, or an aggregate of these."""

    steps: tuple[MatchStep, ...]
    outer: frozenset[str]
    function: str
    argument: Expr | None
    type: Type
    distinct: bool = False


Value = Constant | ParameterRef | RequestTime
Operand = Value | PropertyRef
Expr = Operand | Comparison | Junction | Not | IsNull | Computed | Subquery


def parts_of(expression: _Expression) -> tuple[Expr, ...]:
    """Return the expressions that an expression is made of."""
    match expression:
        case Comparison(left, _, right):
            return (left, right)
        case Junction(_, operands):
            return operands
        case Not(operand) | IsNull(operand):
            return (operand,)
        case Computed(_, arguments):
            return arguments
        case _:
            return ()


def variables_of(expression: _Expression) -> frozenset[str]:
    """Return the variables whose properties an expression reads."""
    if isinstance(expression, PropertyRef):
        return frozenset({expression.variable})
    if isinstance(expression, Subquery):
        return expression.outer
    return frozenset().union(*map(variables_of, parts_of(expression)))


def subqueries(expression: Predicate) -> tuple[Subquery, ...]:
    """Return the blocks in an expression."""
    if isinstance(expression, TextMatch):
        return ()
    if isinstance(expression, Subquery):
        return (expression,)
    return tuple(inner for one in parts_of(expression) for inner in subqueries(one))


def with_subqueries(expression: Expr, change: Callable[[Subquery], Expr]) -> Expr:
    """Return an expression with others in place of its blocks."""
    if not subqueries(expression):
        return expression
    match expression:
        case Subquery():
            return change(expression)
        case Comparison(left, operator, right):
            return Comparison(with_subqueries(left, change), operator, with_subqueries(right, change))
        case Junction(conjunctive, operands):
            return Junction(conjunctive, tuple(with_subqueries(one, change) for one in operands))
        case Not(operand):
            return Not(with_subqueries(operand, change))
        case IsNull(operand):
            return IsNull(with_subqueries(operand, change))
        case Computed(_, arguments):
            return replace(expression, arguments=tuple(with_subqueries(one, change) for one in arguments))
        case _:
            raise AssertionError("the others have no parts")


class TextMatch(TreeNode):
    """`search`, `match_text` or `fuzzy`: the text contains a token of the query."""

    function: str
    text: PropertyRef
    query: Value
    edits: Value | None = None

    @property
    def variables(self) -> frozenset[str]:
        return frozenset({self.text.variable})


Predicate = Expr | TextMatch
"""What keeps a row if it is true; null counts as false."""

# Steps of a read -----------------------------------------------------------------------------------


class Direction(StrEnum):
    OUT = "out"
    IN = "in"
    BOTH = "both"

    def reversed(self) -> Direction:
        return {Direction.OUT: Direction.IN, Direction.IN: Direction.OUT}.get(self, self)


class Scan(TreeNode):
    """Bind a variable to every node of a type that satisfies the predicates; a cross product with earlier rows."""

    variable: str
    type_name: str
    predicates: tuple[Predicate, ...] = ()

    def __post_init__(self) -> None:
        # Storage evaluates them on single rows of the table, before anything else is bound.
        assert all(predicate.variables == {self.variable} for predicate in self.predicates)


class Expand(TreeNode):
    """Follow an edge type from a bound variable.

    Without `edge_variable` the step yields one row per distinct target, with it one row per edge.
    With `closes` the target is already bound: the step keeps the rows whose target is reached.
    With `backwards` a path of several hops leads from the target of this step to its origin.
    Only edges that satisfy the `predicates`, which are on the edge variable, are followed.
    """

    origin: str
    edge_type: str
    direction: Direction
    target: str
    target_type: str
    least: int = 1
    most: int = 1
    edge_variable: str | None = None
    closes: bool = False
    backwards: bool = False
    predicates: tuple[Predicate, ...] = ()

    def __post_init__(self) -> None:
        assert 1 <= self.least <= self.most
        # A path of several hops has no single edge to bind.
        assert self.edge_variable is None or self.most == 1
        assert all(predicate.variables == {self.edge_variable} for predicate in self.predicates)


class ScanEdges(TreeNode):
    """Bind an edge variable and both of its ends to every edge of a type that satisfies the predicates."""

    source: str
    source_type: str
    edge_type: str
    target: str
    target_type: str
    edge_variable: str
    predicates: tuple[Predicate, ...] = ()

    def __post_init__(self) -> None:
        assert self.source != self.target
        assert all(predicate.variables == {self.edge_variable} for predicate in self.predicates)


class Meet(TreeNode):
    """Bind a variable to the nodes that several single hops all lead to, from variables that are bound."""

    arms: tuple[Expand, ...]

    def __post_init__(self) -> None:
        assert len({arm.target for arm in self.arms}) == 1 < len(self.arms)
        assert not any(arm.closes or arm.edge_variable or arm.most > 1 for arm in self.arms)

    @property
    def target(self) -> str:
        return self.arms[0].target


class Filter(TreeNode):
    predicate: Predicate


class AntiJoin(TreeNode):
    """Drop each row for which the inner steps, started from it, yield a row. Without steps, drop every row."""

    steps: tuple[MatchStep, ...]


class Optional(TreeNode):
    """Keep each row once where the inner steps, started from it, yield none; what they bind is null then.

    `binds` has the new variables with their kind (node or edge) and type.
    """

    steps: tuple[MatchStep, ...]
    binds: tuple[tuple[str, str, str], ...]


class Procedure(TreeNode):
    """Run an algorithm over the edges of a type; give each row the value of its node, or drop it if there is none."""

    name: str
    edge_type: str
    options: tuple[tuple[str, Expr], ...]
    node: str
    value: str
    type: Type


MatchStep = Procedure | Scan | ScanEdges | Expand | Meet | Filter | AntiJoin | Optional


class NearestRank(TreeNode):
    """Rank by squared L2 distance to the query, closest first. A String query is embedded first."""

    vector: PropertyRef
    query: Value
    approximate: bool = False  # by an index, which may miss a few

    @property
    def variable(self) -> str:
        return self.vector.variable


class Bm25Rank(TreeNode):
    """Rank by BM25 score, best first; rows that match no token are dropped."""

    text: PropertyRef
    query: Value

    @property
    def variable(self) -> str:
        return self.text.variable


class FusedRank(TreeNode):
    """Rank by reciprocal rank fusion of two rankings of one variable."""

    first: NearestRank | Bm25Rank
    second: NearestRank | Bm25Rank
    k: Value

    def __post_init__(self) -> None:
        # Ranks are ranks of entities: two variables have no common ones to fuse.
        assert self.first.variable == self.second.variable

    @property
    def variable(self) -> str:
        return self.first.variable


Ranking = NearestRank | Bm25Rank | FusedRank


class Rank(TreeNode):
    """Order the rows by a ranking of one variable and keep its best `limit` entities, and those that tie with the last.

    The Order after a Rank only breaks its ties.
    """

    ranking: Ranking
    limit: int | None


class Score(TreeNode):
    """The value that the rank step gave the row: a distance for `nearest`, otherwise a score."""

    type: Type


class ObjectRef(TreeNode):
    """A node or an edge with its id and its properties; null where nothing is bound."""

    variable: str
    kind: str
    type_name: str
    fields: tuple[tuple[str, Expr], ...]


class Column(TreeNode):
    name: str
    expression: Expr | EntityRef | ObjectRef | Score


class Project(TreeNode):
    columns: tuple[Column, ...]


class AggregateColumn(TreeNode):
    name: str
    function: str
    argument: Expr | EntityRef
    type: Type
    distinct: bool = False


class Aggregate(TreeNode):
    """Group by the plain columns, in order of first appearance, and aggregate the others."""

    columns: tuple[Column | AggregateColumn, ...]

    def __post_init__(self) -> None:
        assert any(isinstance(column, AggregateColumn) for column in self.columns)


RESULT = "@result"
"""The variable that stands for a row of the result; its properties are the positions of the columns."""


class ResultColumn(TreeNode):
    """A column of the result, by its position."""

    position: int


class Having(TreeNode):
    """Keep the rows of the result for which a condition is true."""

    predicate: Expr


class Distinct(TreeNode):
    """Keep the first of rows that are equal; null equals null."""


class SortKey(TreeNode):
    """One sort key; nulls come first ascending, last descending, unless it says otherwise."""

    by: Expr | EntityRef | ResultColumn
    descending: bool = False
    nulls_first: bool | None = None


class Order(TreeNode):
    """Sort the rows; the ids of the `tie_break` variables make the order total."""

    keys: tuple[SortKey, ...]
    tie_break: tuple[str, ...] = ()


class Limit(TreeNode):
    """Skip some rows, then keep at most `count` of the others."""

    count: int | ParameterRef | None
    offset: int | ParameterRef = 0


Step = MatchStep | Rank | Order | Limit | Project | Aggregate | Having | Distinct


class ReadPlan(TreeNode):
    """The steps in order of execution; exactly one Project or Aggregate defines the result."""

    steps: tuple[Step, ...]

    def __post_init__(self) -> None:
        # The engine takes the columns of the result from this one step.
        assert sum(isinstance(step, Project | Aggregate) for step in self.steps) == 1

    @property
    def columns(self) -> tuple[Column | AggregateColumn, ...]:
        return next(step.columns for step in self.steps if isinstance(step, Project | Aggregate))


# Mutations -----------------------------------------------------------------------------------------


class InsertNode(TreeNode):
    """Insert a node, or replace all of the one with its key; `new` refuses to replace."""

    type_name: str
    values: tuple[tuple[str, Expr], ...]
    span: Span = field(default=NOWHERE, compare=False)
    new: bool = False


class UpsertNode(TreeNode):
    """Change the named properties of the node with this key, or insert it."""

    type_name: str
    values: tuple[tuple[str, Expr], ...]
    span: Span = field(default=NOWHERE, compare=False)


class InsertEdge(TreeNode):
    type_name: str
    source: Expr
    target: Expr
    values: tuple[tuple[str, Expr], ...]
    span: Span = field(default=NOWHERE, compare=False)


ROW = ""
"""The variable that stands for the entity itself in the expressions of an update or a delete."""


class UpdateNodes(TreeNode):
    type_name: str
    values: tuple[tuple[str, Expr], ...]
    where: Expr
    span: Span = field(default=NOWHERE, compare=False)


class UpdateEdges(TreeNode):
    type_name: str
    values: tuple[tuple[str, Expr], ...]
    where: Expr
    span: Span = field(default=NOWHERE, compare=False)


class DeleteNodes(TreeNode):
    """Delete the matching nodes and every edge that touches them."""

    type_name: str
    where: Expr
    span: Span = field(default=NOWHERE, compare=False)


class DeleteEdges(TreeNode):
    type_name: str
    where: Expr
    span: Span = field(default=NOWHERE, compare=False)


Statement = InsertNode | UpsertNode | InsertEdge | UpdateNodes | UpdateEdges | DeleteNodes | DeleteEdges


class MutationPlan(TreeNode):
    """Statements that all insert or update, or all delete (rule D2)."""

    statements: tuple[Statement, ...]

    def __post_init__(self) -> None:
        # Staging relies on it: pending rows and delete predicates never concern the same table.
        destructive = [isinstance(statement, DeleteNodes | DeleteEdges) for statement in self.statements]
        assert all(destructive) or not any(destructive)


Plan = ReadPlan | MutationPlan
