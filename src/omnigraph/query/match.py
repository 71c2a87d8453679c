"""The match steps: each turns rows of bindings into rows of bindings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import cast

import numpy as np
import pyarrow as pa

from omnigraph.lang import ir
from omnigraph.query.adjacency import Steps, walk
from omnigraph.query.arrays import spread
from omnigraph.query.blocks import BLOCK, RowsWithBlocks, folded
from omnigraph.query.ends import ends_of
from omnigraph.query.expansion import Choice, Reach, adjacency_used, follow
from omnigraph.query.frame import NOTHING, Frame
from omnigraph.query.meet import meeting, met
from omnigraph.query.memory import check_room, keeping, settle
from omnigraph.query.procedures import run
from omnigraph.query.text_search import text_mask
from omnigraph.query.view import GraphView, Positions, TableView
from omnigraph.storage.expressions import Values, holds, pushed

_ROW, _TARGET = "@row", "@target"
_PART = 2**22  # positions that a step makes at once, if it starts at several rows
_MANY_EDGES = 8  # beyond one edge in so many, a predicate is tried on all edges first


class Matcher:
    """Runs match steps on one snapshot, with the values of one request."""

    def __init__(self, graph: GraphView, values: Values) -> None:
        self.graph = graph
        self.values = values
        self.choice: Choice | None = None  # how the edges of the last expansion were found
        self.orders_edges = True  # whether the edges of one row must come in the order of their ids
        self._alone: dict[int, Frame] = {}  # what a scan has found, by the number of the step

    def stream(self, steps: Sequence[ir.MatchStep], frame: Frame) -> Iterator[Frame]:
        """Run steps; where one would make too many rows, part by part to the last step."""
        for at, step in enumerate(steps):
            parts = self.parts(step, frame, drops=True)
            if len(parts) > 1:
                with keeping(frame.count, len(frame.columns)):
                    for part in parts:
                        yield from self.stream(steps[at + 1 :], self.done(step, frame.take(part)))
                return
            frame = self.done(step, frame)
        yield frame

    def run(self, steps: Sequence[ir.MatchStep], frame: Frame) -> Frame:
        """Run steps, and join the rows of all parts."""
        with keeping(frame.count, len(frame.columns)):
            return Frame.joined([*self.stream(steps, frame)])

    def done(self, step: ir.MatchStep, frame: Frame) -> Frame:
        made = self.step(step, frame)
        settle(made.count, len(made.columns))
        return made

    def parts(self, step: ir.MatchStep, frame: Frame, *, drops: bool) -> list[Positions]:
        """Divide rows so that a step makes a limited number from each part; nothing if they need no division.

        Unless a later step drops rows, all that are made are asked for first.
        """
        counts = self._fan_out(step, frame) if frame.count > 1 else None
        columns = len(frame.columns) + 1
        if counts is None or (total := int(counts.sum())) * columns <= _PART:
            return []
        if not drops:
            check_room(total, 2 * columns)
        ends = np.cumsum(counts) // max(_PART // columns, 1)
        return np.split(np.arange(frame.count), np.flatnonzero(np.diff(ends)) + 1)

    def _fan_out(self, step: ir.MatchStep, frame: Frame) -> Positions | None:
        """Return how many rows a step makes of each row at most; None if that is few, or not known."""
        if isinstance(step, ir.Scan):
            return np.full(frame.count, self._scanned(step).count)
        if not isinstance(step, ir.Expand) or step.most > 1 or (step.closes and step.edge_variable is None):
            return None
        origins = frame.columns[step.origin]
        there = origins != NOTHING
        adjacent, self.choice = adjacency_used(self.graph, step, origins[there])
        if adjacent is None:
            return None
        counts = np.zeros(frame.count, np.int64)
        counts[there] = (adjacent if step.edge_variable else adjacent.distinct).degrees(origins[there])
        return counts

    def step(self, step: ir.MatchStep, frame: Frame) -> Frame:
        match step:
            case ir.Scan():
                return self._scan(step, frame)
            case ir.ScanEdges():
                return self._scan_edges(step, frame)
            case ir.Meet():
                return self._meet(step, frame)
            case ir.Expand():
                return self._expand(step, frame)
            case ir.Filter():
                return frame.take(self.mask(step.predicate, frame))
            case ir.AntiJoin():
                return self._without(step, frame)
            case ir.Optional():
                return self._optional(step, frame)
            case ir.Procedure():
                return self._called(step, frame)

    def mask(self, predicate: ir.Predicate, frame: Frame) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        if isinstance(predicate, ir.TextMatch):
            return text_mask(predicate, frame, self.values)
        if not ir.subqueries(predicate):
            return holds(predicate, frame, self.values)
        columns: list[pa.Array] = []

        def computed(block: ir.Subquery) -> ir.PropertyRef:
            columns.append(self._block(block, frame))
            return ir.PropertyRef(BLOCK, str(len(columns) - 1), block.type)

        return holds(ir.with_subqueries(predicate, computed), RowsWithBlocks(frame, columns), self.values)

    def _block(self, block: ir.Subquery, frame: Frame) -> pa.Array:
        """Return what the rows of a block are for each row: whether there is one, how many, or an aggregate."""
        # Rows that agree in what the block looks at have the same answer, but are rarely worth the search for them.
        numbered = Frame(frame.count, {name: frame.columns[name] for name in block.outer}, frame.views)
        for name in block.outer:
            numbered = numbered.hide(_ROW, np.arange(frame.count)) if _ROW not in numbered.columns else numbered
            numbered = numbered.bound(name)
        found = self.run(block.steps, numbered)
        return folded(block, found, found.columns[_ROW], frame.count, self.values)

    def _called(self, step: ir.Procedure, frame: Frame) -> Frame:
        frame = frame.bound(step.node)
        found = run(self.graph, step, self.values)
        frame = frame.take(np.asarray(found.values.is_valid())[frame.columns[step.node]])
        # No table: typing makes sure that expressions are all that a value is used in, and these only take from it.
        return frame.bind(step.value, frame.columns[step.node], cast("TableView", found))

    def _optional(self, step: ir.Optional, frame: Frame) -> Frame:
        # A block around this one has numbered its rows, too.
        name = f"{_ROW}{sum(one.startswith(_ROW) for one in frame.columns)}"
        numbered = frame.hide(name, np.arange(frame.count))
        found = self.run(step.steps, numbered)
        alone = np.ones(frame.count, bool)
        alone[found.columns[name]] = False
        if not alone.any():
            return found.drop(name)
        rest = numbered.take(alone)
        for variable, kind, type_name in step.binds:
            if kind == "value":
                view = found.views[variable]
                rest = rest.bind(variable, np.full(rest.count, NOTHING, np.int64), view)
                continue
            view = self.graph.node(type_name) if kind == "node" else self.graph.edge(type_name)
            rest = rest.bind(variable, np.full(rest.count, NOTHING, np.int64), view)
        columns = {one: np.concatenate([found.columns[one], column]) for one, column in rest.columns.items()}
        joined = Frame(found.count + rest.count, columns, rest.views)
        return joined.take(np.argsort(columns[name], kind="stable")).drop(name)

    def _scan(self, step: ir.Scan, frame: Frame) -> Frame:
        return _product(frame, self._scanned(step), step.variable)

    def _scanned(self, step: ir.Scan) -> Frame:
        if id(step) not in self._alone:
            self._alone[id(step)] = self._found(self.graph.node(step.type_name), step.variable, step.predicates)
        return self._alone[id(step)]

    def _found(self, view: TableView, variable: str, predicates: Sequence[ir.Predicate]) -> Frame:
        """Return the rows of a table that satisfy predicates on it alone."""
        rest: list[ir.Predicate] = []
        found = []
        for predicate in predicates:
            on_column = None if isinstance(predicate, ir.TextMatch) else pushed(predicate, self.values)
            if on_column is None:
                rest.append(predicate)
            else:
                found.append(on_column)
        positions = view.find(found)  # on the whole table, so that an index or a cached column can serve it
        check_room(len(positions), 1)
        alone = Frame(len(positions)).bind(variable, positions, view)
        for predicate in rest:
            alone = alone.take(self.mask(predicate, alone))
        return alone

    def _scan_edges(self, step: ir.ScanEdges, frame: Frame) -> Frame:
        """Return one row for each edge, with both of its ends; edges without a node match nothing."""
        assert frame.count == 1, "a plan begins with it"
        alone = self._found(self.graph.edge(step.edge_type), step.edge_variable, step.predicates)
        edges = alone.columns[step.edge_variable]
        check_room(len(edges), 3)
        ends = ends_of(self.graph, step.edge_type).chosen(edges)
        columns = {step.source: ends.sources, step.target: ends.targets}
        kinds = {step.source: step.source_type, step.target: step.target_type}
        if not ends.whole.all():
            alone = alone.take(ends.whole)
            columns = {name: column[ends.whole] for name, column in columns.items()}
        for name, column in columns.items():
            alone = alone.bind(name, column.astype(np.int64), self.graph.node(kinds[name]))
        for name, column in frame.columns.items():  # the weight of a count
            alone = alone.hide(name, np.repeat(column, alone.count))
        return alone

    def _meet(self, step: ir.Meet, frame: Frame) -> Frame:
        """Bind the nodes that all arms lead to, part by part."""
        rows, targets = met(self.meeting(step, frame), len(frame.columns) + 1)
        return self.bind_target(step.arms[0], frame.take(rows), targets)

    def meeting(self, step: ir.Meet, frame: Frame) -> Iterator[tuple[Positions, Positions]]:
        """Find the nodes that all arms lead to: part by part the index of the row of each, and its position."""
        reached = [self.follow(arm, frame.columns[arm.origin], Steps(1, 1)) for arm in step.arms]
        return meeting([one.adjacent.distinct for one in reached], [one.numbers for one in reached])

    def _expand(self, step: ir.Expand, frame: Frame) -> Frame:
        # What an optional block has not bound leads nowhere.
        frame = frame.bound(step.origin)
        if step.closes:
            frame = frame.bound(step.target)
        if step.edge_variable is not None:
            return self._expand_edges(step, frame)
        hops = self.hops(step)
        if hops is None:
            return self.bind_target(step, frame.take(np.arange(0)), np.empty(0, np.int64))
        found = self.follow(step, frame.columns[step.origin], hops)
        adjacent, origins = found.adjacent, found.numbers
        if hops.most == 1:
            if step.closes:
                return frame.take(adjacent.connects(origins, frame.columns[step.target]))
            # Degrees are known before anything is expanded: too many rows are refused before memory is allocated.
            check_room(int(adjacent.distinct.degrees(origins).sum()), len(frame.columns) + 1)
            rows, targets = adjacent.distinct.expand(origins)
            return self.bind_target(step, frame.take(rows), targets)
        # Many rows may start at one node: walk from it once, then repeat what was found for each of its rows.
        distinct, inverse = np.unique(origins, return_inverse=True)
        which, numbers = walk(adjacent, distinct, hops)
        targets = found.positions(numbers)
        if step.closes:
            size = max(self.graph.node(step.target_type).count, 1)
            return frame.take(np.isin(inverse * size + frame.columns[step.target], which * size + targets))
        starts = np.searchsorted(which, np.arange(len(distinct) + 1))
        counts = np.diff(starts)[inverse]
        check_room(int(counts.sum()), len(frame.columns) + 1)
        rows = np.repeat(np.arange(frame.count), counts)
        reached = targets[spread(starts[inverse], counts)]
        return self.bind_target(step, frame.take(rows), reached)

    def follow(self, step: ir.Expand, origins: Positions, hops: Steps) -> Reach:
        found = follow(self.graph, step, origins, hops)
        self.choice = found.choice
        return found

    def hops(self, step: ir.Expand) -> Steps | None:
        """Return the hops of a step; None if it can match nothing: between two types only one hop is possible."""
        if self.graph.catalog.edges[step.edge_type].is_reflexive:
            return Steps(step.least, step.most, step.backwards)
        return Steps(1, 1) if step.least == 1 else None

    def bind_target(self, step: ir.Expand, frame: Frame, targets: Positions) -> Frame:
        return frame if step.closes else frame.bind(step.target, targets, self.graph.node(step.target_type))

    def _expand_edges(self, step: ir.Expand, frame: Frame) -> Frame:
        """Return one row for each edge; edges of one row in the order of their ids."""
        assert step.edge_variable is not None
        view = self.graph.edge(step.edge_type)
        found = self.follow(step, frame.columns[step.origin], Steps(1, 1))
        made = int(found.adjacent.degrees(found.numbers).sum())
        predicates = step.predicates
        if predicates and made > view.count // _MANY_EDGES:
            found, predicates = self.narrowed(step, found), ()
            made = int(found.adjacent.degrees(found.numbers).sum())
        check_room(made, len(frame.columns) + 2)
        rows, targets, edges = found.adjacent.expand_edges(found.numbers)
        if self.orders_edges:
            # Parallel edges have no order in the adjacency: without this, the answer would depend on how it was built.
            order = np.lexsort((view.id_ranks(edges), rows))
            rows, targets, edges = rows[order], targets[order], edges[order]
        bound = frame.take(rows).bind(step.edge_variable, edges, view)
        if predicates:
            bound = bound.hide(_TARGET, targets)
            for predicate in predicates:
                bound = bound.take(self.mask(predicate, bound))
            targets = bound.columns[_TARGET]
            bound = bound.drop(_TARGET)
        if step.closes:
            return bound.take(targets == bound.columns[step.target])
        return bound.bind(step.target, targets, self.graph.node(step.target_type))

    def narrowed(self, step: ir.Expand, found: Reach) -> Reach:
        """Return only the edges that satisfy the predicates of a step."""
        assert step.edge_variable is not None
        view = self.graph.edge(step.edge_type)
        wanted = np.zeros(view.count, bool)
        wanted[self._found(view, step.edge_variable, step.predicates).columns[step.edge_variable]] = True
        return replace(found, adjacent=found.adjacent.only(wanted))

    def _without(self, step: ir.AntiJoin, frame: Frame) -> Frame:
        """Drop each row for which the inner steps match."""
        # The number of its row travels with every match; the numbers that come out again are the rows to drop.
        numbered = frame.hide(_ROW, np.arange(frame.count))
        kept = np.ones(frame.count, bool)
        with keeping(frame.count, len(frame.columns)):
            for part in self.stream(step.steps, numbered):
                kept[part.columns[_ROW]] = False
        return frame.take(kept)


def _product(frame: Frame, other: Frame, variable: str) -> Frame:
    """Combine every row with every other."""
    if frame.count == 1 and not frame.columns:
        return other if frame.scores is None else Frame(other.count, other.columns, other.views)
    check_room(frame.count * other.count, len(frame.columns) + 1)
    left = frame.take(np.repeat(np.arange(frame.count), other.count))
    right = np.tile(other.columns[variable], frame.count)
    return left.bind(variable, right, other.views[variable])
