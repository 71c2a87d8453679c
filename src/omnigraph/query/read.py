"""Execute the plan of a read on one snapshot of the graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.api.rows import NODE_TYPE
from omnigraph.lang import ir
from omnigraph.lang.expressions import ANONYMOUS
from omnigraph.lang.read_check import type_of
from omnigraph.query import count_pushdown
from omnigraph.query.frame import NOTHING, ONE_ROW, Frame
from omnigraph.query.match import Matcher
from omnigraph.query.memory import check_room, keeping, settle
from omnigraph.query.rank import PLACE, rank
from omnigraph.query.view import GraphView, Positions
from omnigraph.storage.columns import arrow_type
from omnigraph.storage.expressions import Values, evaluate, holds

Rows = np.ndarray[Any, Any]
_FIRST = "@first"
_FEW = 8  # a limit below one row in so many needs no sorting of all of them
_FOLDS = {"count": "count", "sum": "sum", "avg": "mean", "min": "min", "max": "max"}


@dataclass
class BoundRows:
    """Bindings until the result is shaped; then its columns, with the bindings while they still match the rows."""

    frame: Frame
    shaped: list[pa.Array] | None = None

    def take(self, rows: np.ndarray[Any, Any]) -> BoundRows:
        chosen = None if self.shaped is None else [array.take(pa.array(rows)) for array in self.shaped]
        # An aggregate leaves a frame without columns, whose rows are no longer those of the result.
        return BoundRows(self.frame.take(rows) if len(self.frame.columns) else self.frame, chosen)

    def standing_for(self) -> int:
        """Return the number of matches: a weighted row counts as many."""
        if self.shaped is None and count_pushdown.WEIGHT in self.frame.columns:
            return count_pushdown.total(self.frame)
        return self.count

    @property
    def count(self) -> int:
        return self.frame.count if self.shaped is None else len(self.shaped[0])


@dataclass(frozen=True, slots=True)
class Shaped:
    """The columns of the result, as rows of an expression."""

    columns: list[pa.Array]

    @property
    def count(self) -> int:
        return len(self.columns[0])

    def value(self, variable: str, name: str) -> pa.Array:
        assert variable == ir.RESULT, f"${variable} is not bound any more"
        return self.columns[int(name)]

    def take(self, rows: Rows) -> Shaped:
        chosen = pa.array(np.flatnonzero(rows) if rows.dtype == bool else rows)
        return Shaped([column.take(chosen) for column in self.columns])


class Execution:
    """Executes one read."""

    def __init__(self, graph: GraphView, values: Any, plan: ir.ReadPlan) -> None:
        self.graph = graph
        self.values = values
        self.plan = plan
        self.matcher = Matcher(graph, values)
        # Sorted or added up afterwards, edges need no order of their own.
        self.is_sorted = any(isinstance(step, ir.Order) for step in plan.steps)
        self.is_grouped = any(isinstance(step, ir.Aggregate) for step in plan.steps)
        self.is_distinct = any(isinstance(step, ir.Distinct) for step in plan.steps)
        self.matcher.orders_edges = not self.is_sorted and not self.is_grouped
        self.counts = count_pushdown.only_counts(plan)
        self.needed = count_pushdown.needed_after(plan.steps) if self.counts else []
        self.tally = count_pushdown.Tally(self.matcher)

    def table(self) -> pa.Table:
        plan = self.plan
        matching = [step for step in plan.steps if isinstance(step, ir.MatchStep)]
        begin = count_pushdown.start() if self.counts else ONE_ROW
        rows = self._joined(self._matched(0, matching, begin))
        for at, step in enumerate(plan.steps[len(matching) :], len(matching)):
            rows = self._done(at, step, rows)
        assert rows.shaped is not None, "a plan shapes its result"
        fields = [*map(_field, plan.columns)]
        arrays = [
            array if array.type == one.type else array.cast(one.type)
            for array, one in zip(rows.shaped, fields, strict=True)
        ]
        return pa.Table.from_arrays(arrays, schema=pa.schema(fields))

    def _matched(self, first: int, steps: Sequence[ir.MatchStep], frame: Frame) -> Iterator[Frame]:
        """Run the match steps. Rows that a step would make too many of are worked on in parts, to the end of the match.

        So what later steps drop never takes memory all at once, and a query can be stopped between two parts.
        """
        last = max((at for at, step in enumerate(steps) if _drops(step)), default=-1)
        for at, step in enumerate(steps):
            parts = self._parts(first + at, step, frame, drops=self.counts or at < last)
            if len(parts) > 1:
                with keeping(frame.count, len(frame.columns)):
                    for part in parts:
                        made = self._done(first + at, step, BoundRows(frame.take(part))).frame
                        yield from self._matched(first + at + 1, steps[at + 1 :], made)
                return
            frame = self._done(first + at, step, BoundRows(frame)).frame
        yield frame

    def _parts(self, at: int, step: ir.MatchStep, frame: Frame, *, drops: bool) -> list[Positions]:
        if self.counts and self.tally.adds_up(step, frame, self.needed[at]):
            return []
        return self.matcher.parts(step, frame, drops=drops)

    def _joined(self, parts: Iterator[Frame]) -> BoundRows:
        """Join the rows of all parts; of a count only what they add up to."""
        found: list[Frame] = []
        with ExitStack() as kept:
            for part in parts:
                found.append(part)
                if self.counts and len(found) > 1:
                    found = [count_pushdown.added(found)]
                elif len(found) > 1:
                    check_room(sum(one.count for one in found), len(part.columns))
                kept.enter_context(keeping(found[-1].count, len(part.columns)))
            return BoundRows(Frame.joined(found))

    def _done(self, at: int, step: ir.Step, rows: BoundRows) -> BoundRows:
        made = self.step(at, step, rows)
        settle(made.count, len(made.frame.columns) + len(made.shaped or ()))
        return made

    def step(self, at: int, step: ir.Step, rows: BoundRows) -> BoundRows:
        match step:
            case ir.Project(columns):
                check_room(rows.count, 2 * len(columns))
                return BoundRows(rows.frame, [_cell(one.expression, rows.frame, self.values) for one in columns])
            case ir.Aggregate(columns) if self.counts:
                return BoundRows(Frame(0), [pa.array([count_pushdown.total(rows.frame)], pa.int64())] * len(columns))
            case ir.Aggregate(columns):
                check_room(rows.count, 2 * len(columns))
                return BoundRows(Frame(0), _aggregate(columns, rows.frame, self.values))
            case ir.Having(predicate):
                assert rows.shaped is not None
                return rows.take(np.flatnonzero(holds(predicate, Shaped(rows.shaped), self.values)))
            case ir.Distinct():
                assert rows.shaped is not None
                return rows.take(_firsts(rows.shaped))
            case ir.Order():
                return rows.take(self._sorted(step, rows, at))
            case ir.Limit(count, offset):
                return rows.take(self._cut(rows, count, offset))
            case ir.Rank():
                return BoundRows(rank(step, rows.frame.bound(step.ranking.variable), self.values))
            case _ if self.counts:
                return BoundRows(self.tally.step(step, rows.frame, self.needed[at]))
            case _:
                return BoundRows(self.matcher.step(step, rows.frame))

    def _cut(self, rows: BoundRows, count: int | ir.ParameterRef | None, offset: int | ir.ParameterRef) -> Rows:
        assert not isinstance(count, ir.ParameterRef)
        assert not isinstance(offset, ir.ParameterRef)
        last = rows.count if count is None else min(offset + count, rows.count)
        if self.is_sorted or (last == rows.count and not offset):
            return np.arange(min(offset, last), last)
        return self._first(rows, last)[offset:]

    def _sorted(self, step: ir.Order, rows: BoundRows, at: int) -> Rows:
        """Return the order of rows; if few of them are wanted, only that of those whose first key may be among them."""
        wanted, few = self._wanted(at + 1), None
        if wanted and step.keys and rows.frame.scores is None and wanted * _FEW < rows.count:
            few = _first_by(self._key(step.keys[0].by, rows), wanted, step.keys[0])
        if few is None:
            return self._order(step, rows)
        found: Rows = few[self._order(step, rows.take(few))]
        return found

    def _wanted(self, at: int) -> int | None:
        """Return how many of the sorted rows the rest of the plan takes; None if it may take any of them."""
        later = [step for step in self.plan.steps[at:] if not isinstance(step, ir.Project)]
        match later[:1]:
            case [ir.Limit(int(count), int(offset))]:
                return count + offset
            case _:
                return None

    def _order(self, step: ir.Order, rows: BoundRows) -> np.ndarray[Any, Any]:
        frame = rows.frame
        check_room(rows.count, 2 * len(step.keys) + len(step.tie_break))
        keys = [] if frame.scores is None else [_places(frame.scores)]
        keys += [_ranks(self._key(key.by, rows), key) for key in step.keys]
        keys += [frame.columns[name] for name in (PLACE,) if name in frame.columns]
        # An aggregate leaves no bindings behind: then there is nothing to break ties by.
        ties = [name for name in step.tie_break if name in frame.columns]
        keys += [_id_ranks(frame, name) for name in ties]
        keys += self._group_ranks(rows)
        # `lexsort` takes the most significant key last, and is stable.
        return np.lexsort(tuple(reversed(keys))) if keys else np.arange(rows.count)

    def _first(self, rows: BoundRows, count: int) -> np.ndarray[Any, Any]:
        """Choose the rows of a limit where no order is asked for: the same ones, however the match was done."""
        frame = rows.frame
        # A `$_` is in no result, and its name depends on where it is written.
        named = sorted(name for name in frame.views if not name.startswith(ANONYMOUS))
        keys = self._group_ranks(rows) or [frame.columns[name] for name in named]
        if not keys or not count:
            return np.arange(count)
        last = np.partition(keys[0], count - 1)[count - 1]
        candidates = np.flatnonzero(keys[0] <= last)
        order = np.lexsort(tuple(key[candidates] for key in reversed(keys)))
        return candidates[order[:count]]

    def _group_ranks(self, rows: BoundRows) -> list[np.ndarray[Any, Any]]:
        """Return the ranks of the groups by what they are grouped by; nothing before groups are made."""
        if rows.shaped is None or not (self.is_grouped or self.is_distinct):
            return []
        pairs = zip(rows.shaped, self.plan.columns, strict=True)
        return [_ranks(array) for array, column in pairs if self.is_distinct or isinstance(column, ir.Column)]

    def _key(self, by: ir.Expr | ir.EntityRef | ir.ResultColumn, rows: BoundRows) -> pa.Array:
        if isinstance(by, ir.ResultColumn):
            assert rows.shaped is not None
            return rows.shaped[by.position]
        if rows.shaped is not None and not isinstance(by, ir.EntityRef):
            return evaluate(by, Shaped(rows.shaped), self.values)
        return _cell(by, rows.frame, self.values)


def _id_ranks(frame: Frame, name: str) -> np.ndarray[Any, Any]:
    positions = frame.columns[name]
    there = positions != NOTHING
    ranks = np.full(frame.count, -1)
    ranks[there] = frame.views[name].id_ranks(positions[there])
    return ranks


def _drops(step: ir.MatchStep) -> bool:
    """Whether a step may drop rows, instead of making more of them."""
    return not isinstance(step, ir.Scan | ir.Expand) or (isinstance(step, ir.Expand) and step.closes)


def _places(scores: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the rank of each row; rows with equal scores share one."""
    new = np.ones(len(scores), np.int64)
    new[1:] = scores[1:] != scores[:-1]
    return np.cumsum(new)


# Columns of the result -----------------------------------------------------------------------------


def _cell(expression: ir.Expr | ir.EntityRef | ir.ObjectRef | ir.Score, frame: Frame, values: Values) -> pa.Array:
    """Return the value of an expression for each row."""
    if isinstance(expression, ir.EntityRef):
        return frame.ids(expression.variable)
    if isinstance(expression, ir.ObjectRef):
        arrays = [evaluate(value, frame, values) for _, value in expression.fields]
        fields = [pa.field(name, arrow_type(value.type)) for name, value in expression.fields]
        columns = [
            array if array.type == one.type else array.cast(one.type) for array, one in zip(arrays, fields, strict=True)
        ]
        return pa.StructArray.from_arrays(columns, fields=fields, mask=arrays[0].is_null())
    if isinstance(expression, ir.Score):
        assert frame.scores is not None, "a score is only typed behind a rank"
        return pa.array(frame.scores, pa.float64())
    return evaluate(expression, frame, values)


def _field(column: ir.Column | ir.AggregateColumn) -> pa.Field:
    """Return the field of a result column; one of nodes carries their type, so that ids of two types stay apart."""
    if isinstance(column, ir.Column) and isinstance(column.expression, ir.ObjectRef):
        fields = [pa.field(name, arrow_type(value.type)) for name, value in column.expression.fields]
        return pa.field(column.name, pa.struct(fields))
    field = pa.field(column.name, arrow_type(type_of(column)))
    if isinstance(column, ir.Column) and isinstance(column.expression, ir.EntityRef):
        return field.with_metadata({NODE_TYPE: column.expression.type_name})
    return field


def _firsts(columns: Sequence[pa.Array]) -> Rows:
    """Return the index of the first of equal rows, in order."""
    rows = pa.table({f"c{at}": _groupable(column) for at, column in enumerate(columns)})
    numbered = rows.append_column(_FIRST, pa.array(np.arange(rows.num_rows)))
    first = numbered.group_by(rows.column_names, use_threads=False).aggregate([(_FIRST, "min")])[f"{_FIRST}_min"]
    return np.sort(first.to_numpy())


# Aggregates ----------------------------------------------------------------------------------------


def _aggregate(columns: Sequence[ir.Column | ir.AggregateColumn], frame: Frame, values: Values) -> list[pa.Array]:
    """Group by the plain columns, in order of first appearance, and aggregate the others."""
    names = [f"c{at}" for at in range(len(columns))]
    cells = [_argument(column, frame, values) for column in columns]
    keys = [name for name, column in zip(names, columns, strict=True) if isinstance(column, ir.Column)]
    if not keys:
        return [_fold(column, array) for column, array in zip(columns, cells, strict=True)]
    originals = dict(zip(names, cells, strict=True))
    rows = pa.table({name: _groupable(array) if name in keys else array for name, array in originals.items()})
    rows = rows.append_column(_FIRST, pa.array(np.arange(frame.count)))
    folds = [
        (name, *_fold_of(column))
        for name, column in zip(names, columns, strict=True)
        if isinstance(column, ir.AggregateColumn)
    ]
    # Only without threads does Arrow return the groups in the order of their first rows.
    grouped = rows.group_by(keys, use_threads=False).aggregate([*folds, (_FIRST, "min")])
    first = _whole(grouped[f"{_FIRST}_min"])
    found = []
    for name, column in zip(names, columns, strict=True):
        if isinstance(column, ir.Column):
            found.append(originals[name].take(first))  # the value itself, not what it was grouped by
        else:
            folded = _whole(grouped[f"{name}_{_fold_of(column)[0]}"])
            found.append((_known(folded) if column.function == "collect" else folded).cast(arrow_type(column.type)))
    return found


def _fold_of(column: ir.AggregateColumn) -> tuple[str, Any]:
    """Return the aggregation of Arrow, and its options."""
    if column.function == "count":
        return ("count_distinct" if column.distinct else "count"), pc.CountOptions(mode="only_valid")
    if column.function == "collect":
        return ("distinct" if column.distinct else "list"), None
    return _FOLDS[column.function], None


def _known(lists: pa.ListArray) -> pa.ListArray:
    """Remove nulls from lists."""
    items, parents = lists.flatten(), pc.list_parent_indices(lists).to_numpy()
    valid = items.is_valid().to_numpy(zero_copy_only=False)
    ends = np.concatenate([[0], np.cumsum(np.bincount(parents[valid], minlength=len(lists)))])
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), items.filter(pa.array(valid)))


def _groupable(array: pa.Array) -> pa.Array:
    """Return a column that Arrow groups as the language compares: lists and vectors as numbers, both zeros as one."""
    if pa.types.is_floating(array.type):
        return pc.add(array, pa.scalar(0, array.type))  # -0.0 + 0.0 is 0.0; Arrow would make two groups of them
    if not pa.types.is_nested(array.type):
        return array
    # Each distinct item is a number, and each list the bytes of its numbers: equal lists have equal bytes.
    items = _groupable(array.flatten()).dictionary_encode().indices.fill_null(-1).to_numpy().astype(np.int32)
    filled = array.is_valid()
    lengths = pc.if_else(filled, pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
    ends = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]) * items.itemsize
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(items)]
    texts = pa.Array.from_buffers(pa.large_binary(), len(array), buffers)
    return pc.if_else(filled, texts.dictionary_encode().indices, None)


def _argument(column: ir.Column | ir.AggregateColumn, frame: Frame, values: Values) -> pa.Array:
    if isinstance(column, ir.Column):
        return _cell(column.expression, frame, values)
    found = _cell(column.argument, frame, values)
    if column.function not in ("sum", "avg"):
        return _groupable(found) if column.distinct and column.function == "count" else found
    # In 128 bits: Arrow's sum of integers wraps around silently, and that of floats forgets digits.
    exact = column.function == "sum" and pa.types.is_integer(found.type)
    return found.cast(pa.decimal128(38)) if exact else found.cast(pa.float64(), safe=False)


def _fold(column: ir.Column | ir.AggregateColumn, array: pa.Array) -> pa.Array:
    """Aggregate all rows into one, even if there are none."""
    assert isinstance(column, ir.AggregateColumn)
    if column.function == "count":
        return pa.array(
            [pc.count_distinct(array).as_py() if column.distinct else len(array) - array.null_count], pa.int64()
        )
    if column.function == "collect":
        items = array.drop_null().unique() if column.distinct else array.drop_null()
        return pa.ListArray.from_arrays(pa.array([0, len(items)], pa.int32()), items).cast(arrow_type(column.type))
    fold = {"sum": pc.sum, "avg": pc.mean, "min": pc.min, "max": pc.max}[column.function]
    return pa.array([fold(array)]).cast(arrow_type(column.type))


def _whole(array: pa.ChunkedArray | pa.Array) -> pa.Array:
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


# Order ---------------------------------------------------------------------------------------------


def _first_by(array: pa.Array, count: int, by: ir.SortKey) -> Rows | None:
    """Return the rows that may be among the first by a key, in order; None if that has to be found out by sorting."""
    kind = array.type
    is_float = pa.types.is_floating(kind)
    if not (is_float or pa.types.is_integer(kind) or pa.types.is_temporal(kind) or pa.types.is_string(kind)):
        return None
    known = array.drop_null()
    if not 0 < count < len(known) or (is_float and pc.any(pc.is_nan(known)).as_py()):
        return None
    best = pc.select_k_unstable(known, count, sort_keys=[("", "descending" if by.descending else "ascending")])
    last = known[best[count - 1].as_py()]
    # Those that share the last place as well: later keys decide between them.
    reached = (pc.greater_equal if by.descending else pc.less_equal)(array, last)
    found: Rows = pc.indices_nonzero(reached.fill_null(_nulls_come_first(by))).to_numpy().astype(np.int64)
    return found


def _nulls_come_first(by: ir.SortKey | None) -> bool:
    if by is None or by.nulls_first is None:
        return by is None or not by.descending
    return by.nulls_first


def _ranks(array: pa.Array, by: ir.SortKey | None = None) -> np.ndarray[Any, Any]:
    """Return the rank of every value: nulls first ascending, last descending; equal values share one."""
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.int8())
    if pa.types.is_nested(array.type):
        array = pa.array([repr(one) for one in array.to_pylist()], pa.string())  # lists have no order, but need one
    descending = by is not None and by.descending
    key = ("", "descending" if descending else "ascending", "at_start" if _nulls_come_first(by) else "at_end")
    found: np.ndarray[Any, Any] = pc.rank(array, sort_keys=[key], tiebreaker="dense").to_numpy()
    return found
