"""Count push-down: count matches without materializing them, by carrying a weight per node."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from omnigraph.lang import ir
from omnigraph.query.adjacency import walk
from omnigraph.query.arrays import Integers
from omnigraph.query.frame import ONE_ROW, Frame
from omnigraph.query.match import Matcher

WEIGHT = "@weight"  # how many matches a row stands for
_FEW = 64  # rows that are not worth adding up
_SPARSE = 8  # up to one target in so many received a weight: sort them instead of counting over all nodes


def only_counts(plan: ir.ReadPlan) -> bool:
    """Whether a query only asks how many matches there are."""
    # A node of an optional block may be null, and is not counted then.
    others = any(isinstance(step, ir.Rank | ir.Having | ir.Optional | ir.Procedure) for step in plan.steps)
    return all(map(_counts_rows, plan.columns)) and not others


def _counts_rows(column: ir.Column | ir.AggregateColumn) -> bool:
    """Whether a column counts a node, which is never null."""
    if isinstance(column, ir.Column):
        return False
    return column.function == "count" and isinstance(column.argument, ir.EntityRef) and not column.distinct


def needed_after(steps: Sequence[ir.Step]) -> list[frozenset[str]]:
    """Return for each step the variables that later steps use."""
    needed: list[frozenset[str]] = []
    later: frozenset[str] = frozenset()
    for step in reversed(steps):
        needed.append(later)
        later |= _used(step)
    return needed[::-1]


def _used(step: ir.Step) -> frozenset[str]:
    match step:
        case ir.Expand():
            return frozenset({step.origin, *([step.target] if step.closes else [])})
        case ir.Meet(arms):
            return frozenset(arm.origin for arm in arms)
        case ir.Filter(predicate):
            return predicate.variables
        case ir.AntiJoin(steps):
            return frozenset().union(*(_used(inner) for inner in steps))
        case _:
            return frozenset()


def start() -> Frame:
    return ONE_ROW.hide(WEIGHT, np.ones(1, np.int64))


def total(frame: Frame) -> int:
    return int(frame.columns[WEIGHT].sum())


def added(frames: Sequence[Frame]) -> Frame:
    """Return one row that stands for all of these."""
    return Frame(1, {WEIGHT: np.array([sum(map(total, frames))], np.int64)})


class Tally:
    """Runs match steps on weighted rows."""

    def __init__(self, matcher: Matcher) -> None:
        self.matcher = matcher

    def adds_up(self, step: ir.MatchStep, frame: Frame, needed: frozenset[str]) -> bool:
        """Whether a step adds up weights instead of making a row of each match."""
        if isinstance(step, ir.Meet):
            return step.target not in needed
        return isinstance(step, ir.Expand) and not step.closes and self._ends_here(step, frame, needed)

    def step(self, step: ir.MatchStep, frame: Frame, needed: frozenset[str]) -> Frame:
        if isinstance(step, ir.Expand) and self.adds_up(step, frame, needed):
            return self._spread(step, frame, target_is_needed=step.target in needed)
        if isinstance(step, ir.Meet) and step.target not in needed:
            return _merged(self._met(step, frame), needed)
        return _merged(self.matcher.step(step, frame), needed)

    def _met(self, step: ir.Meet, frame: Frame) -> Frame:
        """Multiply the weight of each row with the number of nodes that all arms lead to."""
        found = np.zeros(frame.count, np.int64)
        for rows, _ in self.matcher.meeting(step, frame):
            found += np.bincount(rows, minlength=frame.count)
        return frame.hide(WEIGHT, frame.columns[WEIGHT] * found).take(found > 0)

    def _ends_here(self, step: ir.Expand, frame: Frame, needed: frozenset[str]) -> bool:
        """Whether later steps use neither the bound variables nor the edge."""
        return not needed & {*frame.views, *([step.edge_variable] if step.edge_variable else [])}

    def _spread(self, step: ir.Expand, frame: Frame, *, target_is_needed: bool) -> Frame:
        """Pass the weight of each origin on to its targets."""
        hops = self.matcher.hops(step)
        weights = frame.columns[WEIGHT]
        if hops is None:
            return self.matcher.bind_target(step, Frame(0, {WEIGHT: weights[:0]}), weights[:0])
        found = self.matcher.follow(step, frame.columns[step.origin], hops)
        if step.predicates:
            found = self.matcher.narrowed(step, found)
        # Parallel edges are matches of their own only where the query binds the edge.
        pairs = found.adjacent if step.edge_variable else found.adjacent.distinct
        if hops.most == 1 and not target_is_needed:
            # Each origin stands for as many matches as it has edges: no target is looked at.
            return Frame(1, {WEIGHT: np.array([np.dot(weights, pairs.degrees(found.numbers))], np.int64)})
        if hops.most == 1:
            targets = pairs.targets_of(found.numbers)
            handed = np.repeat(weights, pairs.degrees(found.numbers))
        else:
            distinct, inverse = np.unique(found.numbers, return_inverse=True)
            which, targets = walk(pairs, distinct, hops)
            handed = _summed(inverse, weights, len(distinct))[which]
        if not target_is_needed:
            return Frame(1, {WEIGHT: handed.sum(keepdims=True)})
        nodes, sums = _by_target(targets, handed, pairs.targets_count)
        return self.matcher.bind_target(step, Frame(len(nodes), {WEIGHT: sums}), found.positions(nodes))


def _merged(frame: Frame, needed: frozenset[str]) -> Frame:
    """Add up the weights of rows that differ only in what no later step looks at."""
    kept = [name for name in frame.views if name in needed]
    weights = frame.columns[WEIGHT]
    if frame.count < _FEW or len(kept) > 1:
        return frame
    if not kept:
        return Frame(1, {WEIGHT: weights.sum(keepdims=True)})
    (name,) = kept
    if len(frame.views) == 1:
        return frame  # each node is in one row already, or soon enough
    nodes, sums = _by_target(frame.columns[name], weights, frame.views[name].count)
    return Frame(len(nodes), {WEIGHT: sums, name: nodes}, {name: frame.views[name]})


def _by_target(targets: Integers, handed: Integers, size: int) -> tuple[Integers, Integers]:
    """Add up the weights that each target received."""
    if len(targets) * _SPARSE < size:
        nodes, inverse = np.unique(targets, return_inverse=True)
        return nodes, _summed(inverse, handed, len(nodes))
    sums = _summed(targets, handed, size)
    nodes = np.flatnonzero(sums)
    return nodes, sums[nodes]


def _summed(at: Integers, numbers: Integers, size: int) -> Integers:
    """Add up numbers by their place."""
    # Not `bincount`: it adds floats, and a count of paths soon outgrows the integers that these hold exactly.
    sums = np.zeros(size, np.int64)
    np.add.at(sums, at, numbers)
    return sums
