"""What a query does: its steps with the rows that were guessed and the rows that came, and what each cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from omnigraph.api.rows import PlanStep
from omnigraph.lang import ir
from omnigraph.query.describe import describe
from omnigraph.query.estimate import rows_after
from omnigraph.query.frame import Frame
from omnigraph.query.match import Matcher
from omnigraph.query.read import Execution, Rows
from omnigraph.query.view import GraphView
from omnigraph.storage.observe import counted

_T = TypeVar("_T")


class Trace:
    """Notes steps while they run."""

    def __init__(self, graph: GraphView) -> None:
        self.graph = graph
        self.steps: list[PlanStep] = []
        self._open = [self.steps]
        self._estimates = [1.0]
        self.matcher: Matcher | None = None

    def note(self, step: ir.Step, run: Callable[[], _T], rows_of: Callable[[_T], int]) -> _T:
        self._estimates[-1] = rows_after(step, self._estimates[-1], self.graph)
        noted = PlanStep(type(step).__name__, describe(step), round(self._estimates[-1]))
        self._open[-1].append(noted)
        self._open.append(noted.inner)
        self._estimates.append(self._estimates[-1])
        assert self.matcher
        self.matcher.choice = None
        begun = time.perf_counter()
        with counted() as requests:
            found = run()
        noted.seconds, noted.requests, noted.rows = time.perf_counter() - begun, requests.total, rows_of(found)
        self._open.pop()
        self._estimates.pop()
        choice = self.matcher.choice
        if isinstance(step, ir.Expand) and choice is not None:
            noted.expansion, noted.reason = str(choice.mode), choice.reason
        return found


class _TracedMatcher(Matcher):
    def __init__(self, execution: Execution, trace: Trace) -> None:
        super().__init__(execution.graph, execution.values)
        self.trace = trace

    def run(self, steps: Sequence[ir.MatchStep], frame: Frame) -> Frame:
        """The steps inside a `not`; the others are noted by the execution."""
        for step in steps:
            frame = self._noted(step, frame)
        return frame

    def _noted(self, step: ir.MatchStep, frame: Frame) -> Frame:
        return self.trace.note(step, lambda: self.step(step, frame), lambda found: found.count)


class TracedExecution(Execution):
    """A read that notes what it does."""

    def __init__(self, graph: GraphView, values: Any, plan: ir.ReadPlan) -> None:
        super().__init__(graph, values, plan)
        self.trace = Trace(graph)
        self.matcher = _TracedMatcher(self, self.trace)
        self.trace.matcher = self.tally.matcher = self.matcher

    def step(self, at: int, step: ir.Step, rows: Rows) -> Rows:
        return self.trace.note(step, lambda: super(TracedExecution, self).step(at, step, rows), Rows.standing_for)
