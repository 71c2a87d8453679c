"""Execute the plan of a read on one snapshot of the graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np
import pyarrow as pa

from omnigraph.lang import ir
from omnigraph.query import count_pushdown
from omnigraph.query.frame import ONE_ROW, Frame
from omnigraph.query.match import Matcher
from omnigraph.query.rank import rank
from omnigraph.query.shape import aggregate, cell, order_of, project, ranks, type_of
from omnigraph.query.view import GraphView, Positions
from omnigraph.storage.columns import arrow_type

_MATCH = ir.Scan | ir.Expand | ir.Filter | ir.AntiJoin


@dataclass
class BoundRows:
    """Bindings until the result is shaped; then its columns, with the bindings while they still match the rows."""

    frame: Frame
    shaped: list[pa.Array] | None = None

    def take(self, rows: np.ndarray[Any, Any]) -> BoundRows:
        chosen = None if self.shaped is None else [array.take(pa.array(rows)) for array in self.shaped]
        return BoundRows(self.frame.take(rows) if len(self.frame.columns) else self.frame, chosen)

    def standing_for(self) -> int:
        """Return the number of matches: a weighted row counts as many."""
        if self.shaped is None and count_pushdown.WEIGHT in self.frame.columns:
            return count_pushdown.total(self.frame)
        return self.count

    @property
    def count(self) -> int:
        return self.frame.count if self.shaped is None else len(self.shaped[0])


class Execution:
    """Executes one read."""

    def __init__(self, graph: GraphView, values: Any, plan: ir.ReadPlan) -> None:
        self.graph = graph
        self.values = values
        self.plan = plan
        self.matcher = Matcher(graph, values)
        self.counts = count_pushdown.only_counts(plan)
        self.needed = count_pushdown.needed_after(plan.steps) if self.counts else []
        self.tally = count_pushdown.Tally(self.matcher)
        self.fused = next((step.ranking.variable for step in plan.steps if _is_fused(step)), None)
        self.scanned: dict[str, Positions] = {}  # the result of each scan, for a later ranking

    def table(self) -> pa.Table:
        plan = self.plan
        rows = BoundRows(count_pushdown.start() if self.counts else ONE_ROW)
        for at, step in enumerate(plan.steps):
            rows = self.step(at, step, rows)
        assert rows.shaped is not None, "a plan shapes its result"
        fields = [pa.field(column.name, arrow_type(type_of(column))) for column in plan.columns]
        arrays = [
            array if array.type == one.type else array.cast(one.type)
            for array, one in zip(rows.shaped, fields, strict=True)
        ]
        return pa.Table.from_arrays(arrays, schema=pa.schema(fields))

    def step(self, at: int, step: ir.Step, rows: BoundRows) -> BoundRows:
        match step:
            case ir.Project(columns):
                return BoundRows(rows.frame, project(columns, rows.frame, self.values))
            case ir.Aggregate(columns) if self.counts:
                return BoundRows(Frame(0), [pa.array([count_pushdown.total(rows.frame)], pa.int64())] * len(columns))
            case ir.Aggregate(columns):
                return BoundRows(Frame(0), aggregate(columns, rows.frame, self.values))
            case ir.Order():
                return rows.take(self._order(step, rows))
            case ir.Limit(count):
                return rows.take(np.arange(min(count, rows.count)))
            case ir.Rank():
                return BoundRows(rank(step, rows.frame, self.values, self.scanned.get(step.ranking.variable)))
            case ir.Scan(variable) if variable == self.fused:
                frame = self.matcher.step(step, rows.frame)
                self.scanned[variable] = frame.views[variable].distinct(frame.columns[variable])
                return BoundRows(frame)
            case _ if self.counts:
                return BoundRows(self.tally.step(step, rows.frame, self.needed[at]))
            case _:
                return BoundRows(self.matcher.step(step, rows.frame))

    def _order(self, step: ir.Order, rows: BoundRows) -> np.ndarray[Any, Any]:
        frame = rows.frame
        keys = [] if frame.scores is None else [_places(frame.scores)]
        keys += [ranks(self._key(key.by, rows), descending=key.descending) for key in step.keys]
        keys += [frame.views[name].id_ranks(frame.columns[name]) for name in self._ties(step.tie_break, frame)]
        return order_of(keys, rows.count)

    def _ties(self, names: Sequence[str], frame: Frame) -> list[str]:
        return [name for name in names if name in frame.columns]

    def _key(self, by: ir.Operand | ir.EntityRef | ir.ResultColumn, rows: BoundRows) -> pa.Array:
        if isinstance(by, ir.ResultColumn):
            assert rows.shaped is not None
            return rows.shaped[by.position]
        return cell(by, rows.frame, self.values)


def _is_fused(step: ir.Step) -> TypeGuard[ir.Rank]:
    return isinstance(step, ir.Rank) and isinstance(step.ranking, ir.FusedRank)


def _places(scores: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the rank of each row; rows with equal scores share one."""
    new = np.ones(len(scores), np.int64)
    new[1:] = scores[1:] != scores[:-1]
    return np.cumsum(new)
