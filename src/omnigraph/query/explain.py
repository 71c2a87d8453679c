"""`explain`: run a query and report its steps, their rows, and what they cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from omnigraph.api.rows import PlanStep
from omnigraph.lang import ir
from omnigraph.query.frame import Frame
from omnigraph.query.match import Matcher
from omnigraph.query.read import BoundRows, Execution
from omnigraph.query.statistics import GROUP, NOT, Statistics, share
from omnigraph.query.view import GraphView, Positions
from omnigraph.storage.observe import counted


def describe(step: ir.Step) -> str:
    """Return a step as text."""
    if isinstance(step, ir.MatchStep):
        return _matched(step)
    match step:
        case ir.Rank(ranking, limit):
            return _ranking(ranking) + ("" if limit is None else f", the best {limit}")
        case ir.Order(keys, ties):
            shown = [_value(key.by) + (" desc" if key.descending else "") for key in keys]
            return ", ".join([*shown, *(f"the id of ${name}" for name in ties)])
        case ir.Limit(count, offset):
            return ("all" if count is None else str(count)) + (f", after {offset}" if offset else "")
        case ir.Having(predicate):
            return _predicate(predicate)
        case ir.Distinct():
            return "rows that differ"
        case ir.Project(columns):
            return ", ".join(column.name for column in columns)
        case ir.Aggregate(columns):
            return ", ".join(map(_aggregated, columns))


def _matched(step: ir.MatchStep) -> str:
    match step:
        case ir.Scan(variable, type_name, predicates):
            return f"${variable}: {type_name}" + _where(predicates)
        case ir.ScanEdges():
            hop = ir.Expand(
                step.source, step.edge_type, ir.Direction.OUT, step.target, step.target_type, 1, 1, step.edge_variable
            )
            return _expand(hop) + _where(step.predicates)
        case ir.Meet(arms):
            return ", ".join(map(_expand, arms))
        case ir.Expand():
            return _expand(step) + _where(step.predicates)
        case ir.Filter(predicate):
            return _predicate(predicate)
        case ir.AntiJoin():
            return "rows for which there is none of"
        case ir.Procedure():
            return f"{step.name}({step.edge_type}) of ${step.node} as ${step.value}"
        case ir.Optional():
            return ", ".join(f"${name}" for name, _, _ in step.binds) + " where there is"


def _where(predicates: Sequence[ir.Predicate]) -> str:
    return f" where {', '.join(map(_predicate, predicates))}" if predicates else ""


def _expand(step: ir.Expand) -> str:
    left, right = {ir.Direction.OUT: ("-", "->"), ir.Direction.IN: ("<-", "-"), ir.Direction.BOTH: ("<-", "->")}[
        step.direction
    ]
    edge = f"${step.edge_variable}:{step.edge_type}" if step.edge_variable else step.edge_type
    bounds = "" if step.most == 1 else f"{{{step.least},{step.most}}}"
    closing = ", both known" if step.closes else ""
    return f"${step.origin} {left}{edge}{bounds}{right} ${step.target}{closing}"


def _predicate(predicate: ir.Predicate) -> str:
    if isinstance(predicate, ir.TextMatch):
        return f"{predicate.function}({_value(predicate.text)}, {_value(predicate.query)})"
    return _value(predicate)


def _ranking(ranking: ir.Ranking) -> str:
    match ranking:
        case ir.NearestRank(vector):
            return f"nearest({_value(vector)}{', approximate' if ranking.approximate else ''})"
        case ir.Bm25Rank(text, query):
            return f"bm25({_value(text)}, {_value(query)})"
        case ir.FusedRank(first, second, _):
            return f"rrf({_ranking(first)}, {_ranking(second)})"


def _aggregated(column: ir.Column | ir.AggregateColumn) -> str:
    if isinstance(column, ir.Column):
        return f"by {column.name}"
    return f"{column.function}({_value(column.argument)})"


def _value(value: ir.Expr | ir.EntityRef | ir.ResultColumn) -> str:
    match value:
        case ir.PropertyRef(variable, name):
            return f"column {int(name) + 1}" if variable == ir.RESULT else f"${variable}.{name}"
        case ir.EntityRef(variable):
            return f"${variable}"
        case ir.ParameterRef(name):
            return f"${name}"
        case ir.Constant(constant):
            return repr(constant)
        case ir.RequestTime():
            return "now()"
        case ir.ResultColumn(position):
            return f"column {position + 1}"
        case _:
            return _operation(value)


def _operation(value: ir.Expr) -> str:
    match value:
        case ir.Comparison(left, operator, right):
            return f"{_value(left)} {operator} {_value(right)}"
        case ir.Junction(conjunctive, operands):
            return f"({(' and ' if conjunctive else ' or ').join(map(_value, operands))})"
        case ir.Not(ir.IsNull(operand)):
            return f"{_value(operand)} is not null"
        case ir.Not(operand):
            return f"not {_value(operand)}"
        case ir.IsNull(operand):
            return f"{_value(operand)} is null"
        case ir.Computed(function, arguments):
            return f"{function}({', '.join(map(_value, arguments))})"
        case ir.Subquery(_, _, function, argument):
            return f"{function}{'' if argument is None else f'({_value(argument)})'} {{ ... }}"
        case _:
            raise AssertionError(f"{value} is made of nothing")


def rows_after(step: ir.Step, before: float, statistics: Statistics) -> float:
    """Estimate how many rows a step returns, given how many it receives."""
    graph = statistics.graph
    match step:
        case ir.Scan():
            return before * statistics.matching(graph.node(step.type_name), step.predicates)
        case ir.ScanEdges():
            return before * statistics.matching(graph.edge(step.edge_type), step.predicates)
        case ir.Expand():
            return before * _expanded(step, statistics)
        case ir.Meet(arms):
            first, *others = sorted(_expanded(arm, statistics) for arm in arms)
            shares = [other / max(graph.node(arms[0].target_type).count, 1) for other in others]
            return float(before * first * np.prod(shares))
        case ir.Filter(predicate) | ir.Having(predicate):
            return before * share(predicate)
        case ir.AntiJoin():
            return before * NOT
        case ir.Rank(_, limit):
            return before if limit is None else min(before, limit)
        case ir.Limit(int(count), int(offset)):
            return min(max(before - offset, 0.0), count)
        case ir.Aggregate(columns):
            keys = any(isinstance(column, ir.Column) for column in columns)
            return max(before * GROUP, 1.0) if keys else 1.0
        case _:
            return before


def _expanded(step: ir.Expand, statistics: Statistics) -> float:
    """Estimate how many rows one row becomes: the mean degree for each hop."""
    if step.closes:
        return statistics.connected(step)
    graph = statistics.graph
    edge = graph.catalog.edges[step.edge_type]
    degree = statistics.degrees(step.edge_type, step.direction).mean
    most = step.most if edge.is_reflexive else 1  # between two types there is no second hop
    # A walk meets each node once, so it cannot reach more of them than there are.
    targets = float(max(graph.node(step.target_type).count, 1))
    reached = min(sum(degree**hop for hop in range(step.least, most + 1)), targets)
    view = graph.edge(step.edge_type)
    return reached * statistics.matching(view, step.predicates) / max(view.count, 1) if step.predicates else reached


_T = TypeVar("_T")


class Trace:
    """Records steps while they run."""

    def __init__(self, graph: GraphView) -> None:
        self.statistics = Statistics(graph)
        self.steps: list[PlanStep] = []
        # Stacks, because the steps inside a `not` are noted below the step that runs them.
        self._open = [self.steps]
        self._estimates = [1.0]
        self.reasons: Mapping[str, str] = {}  # why the match begins where it does
        self._notes: dict[tuple[int, int], PlanStep] = {}
        self.matcher: Matcher | None = None

    def note(self, step: ir.Step, run: Callable[[], _T], rows_of: Callable[[_T], int]) -> _T:
        noted = self._noted(step)
        self._open.append(noted.inner)
        self._estimates.append(self._estimates[-1])
        assert self.matcher
        self.matcher.choice = None  # or a step that follows no edges would report the choice of an earlier one
        begun = time.perf_counter()
        with counted() as requests:
            found = run()
        noted.seconds += time.perf_counter() - begun
        noted.requests += requests.total
        noted.rows += rows_of(found)
        self._open.pop()
        self._estimates.pop()
        choice = self.matcher.choice
        # The first one: by the time that the rows are made, what the edges are found in may have come to memory.
        if isinstance(step, ir.Expand | ir.Meet) and choice is not None and noted.expansion is None:
            noted.expansion, noted.reason = str(choice.mode), choice.reason
        return found

    def _noted(self, step: ir.Step) -> PlanStep:
        """Return the note of a step; it has one already if it runs for another part of its rows."""
        key = (id(self._open[-1]), id(step))
        if key not in self._notes:
            self._estimates[-1] = rows_after(step, self._estimates[-1], self.statistics)
            self._notes[key] = PlanStep(type(step).__name__, describe(step), round(self._estimates[-1]))
            self._open[-1].append(self._notes[key])
            if isinstance(step, ir.Scan | ir.ScanEdges) and self._open[-1] is self.steps:
                begins = step.variable if isinstance(step, ir.Scan) else step.edge_variable
                self._notes[key].reason = self.reasons.get(begins)
        return self._notes[key]


class _TracedMatcher(Matcher):
    def __init__(self, execution: Execution, trace: Trace) -> None:
        super().__init__(execution.graph, execution.values)
        self.trace = trace

    def parts(self, step: ir.MatchStep, frame: Frame, *, drops: bool) -> list[Positions]:
        """Record what it takes to find out how many rows a step makes as a part of the step."""
        if frame.count <= 1:
            return []
        return self.trace.note(step, lambda: super(_TracedMatcher, self).parts(step, frame, drops=drops), lambda _: 0)

    def done(self, step: ir.MatchStep, frame: Frame) -> Frame:
        """Record a step inside a `not`; the execution records the others."""
        return self.trace.note(step, lambda: super(_TracedMatcher, self).done(step, frame), lambda found: found.count)


class TracedExecution(Execution):
    """An execution that records its steps."""

    def __init__(self, graph: GraphView, values: Any, plan: ir.ReadPlan) -> None:
        super().__init__(graph, values, plan)
        self.trace = Trace(graph)
        orders_edges = self.matcher.orders_edges
        self.matcher = _TracedMatcher(self, self.trace)
        self.matcher.orders_edges = orders_edges
        # A count runs its steps through the tally: it must use the matcher that notes them, too.
        self.trace.matcher = self.tally.matcher = self.matcher

    def step(self, at: int, step: ir.Step, rows: BoundRows) -> BoundRows:
        return self.trace.note(step, lambda: super(TracedExecution, self).step(at, step, rows), BoundRows.standing_for)
