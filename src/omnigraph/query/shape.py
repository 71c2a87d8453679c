"""Turn rows of bindings into a result: projection, aggregates, order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.lang import ir
from omnigraph.lang.types import STRING, Type
from omnigraph.query.evaluate import Values, operand
from omnigraph.query.frame import Frame
from omnigraph.storage.columns import arrow_type

_FIRST = "@first"
_FOLDS = {"count": "count", "sum": "sum", "avg": "mean", "min": "min", "max": "max"}


def project(columns: Sequence[ir.Column], frame: Frame, values: Values) -> list[pa.Array]:
    return [cell(column.expression, frame, values) for column in columns]


def cell(expression: ir.Operand | ir.EntityRef | ir.Score, frame: Frame, values: Values) -> pa.Array:
    """Return the value of an expression for each row."""
    if isinstance(expression, ir.EntityRef):
        return frame.ids(expression.variable)
    if isinstance(expression, ir.Score):
        assert frame.scores is not None, "a score is only typed behind a rank"
        return pa.array(frame.scores, pa.float64())
    return operand(expression, frame, values)


def type_of(column: ir.Column | ir.AggregateColumn) -> Type:
    """Return the type of a result column."""
    if isinstance(column, ir.AggregateColumn):
        return column.type
    return STRING if isinstance(column.expression, ir.EntityRef) else column.expression.type


# Aggregates ----------------------------------------------------------------------------------------


def aggregate(columns: Sequence[ir.Column | ir.AggregateColumn], frame: Frame, values: Values) -> list[pa.Array]:
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
        (name, _FOLDS[column.function], pc.CountOptions(mode="only_valid") if column.function == "count" else None)
        for name, column in zip(names, columns, strict=True)
        if isinstance(column, ir.AggregateColumn)
    ]
    grouped = rows.group_by(keys, use_threads=False).aggregate([*folds, (_FIRST, "min")])
    first = _whole(grouped[f"{_FIRST}_min"])
    found = []
    for name, column in zip(names, columns, strict=True):
        if isinstance(column, ir.Column):
            found.append(originals[name].take(first))
        else:
            found.append(_whole(grouped[f"{name}_{_FOLDS[column.function]}"]).cast(arrow_type(type_of(column))))
    return found


def _groupable(array: pa.Array) -> pa.Array:
    """Return a column that Arrow can group by: lists and vectors as JSON."""
    if not pa.types.is_nested(array.type):
        return array
    return pa.array([None if value is None else repr(value) for value in array.to_pylist()], pa.string())


def _argument(column: ir.Column | ir.AggregateColumn, frame: Frame, values: Values) -> pa.Array:
    if isinstance(column, ir.Column):
        return cell(column.expression, frame, values)
    found = cell(column.argument, frame, values)
    return found.cast(pa.float64(), safe=False) if column.function in ("sum", "avg") else found


def _fold(column: ir.Column | ir.AggregateColumn, array: pa.Array) -> pa.Array:
    """Aggregate all rows into one, even if there are none."""
    assert isinstance(column, ir.AggregateColumn)
    if column.function == "count":
        return pa.array([len(array) - array.null_count], pa.int64())
    fold = {"sum": pc.sum, "avg": pc.mean, "min": pc.min, "max": pc.max}[column.function]
    return pa.array([fold(array).as_py()], arrow_type(column.type))


def _whole(array: pa.ChunkedArray | pa.Array) -> pa.Array:
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


# Order ---------------------------------------------------------------------------------------------


def ranks(array: pa.Array, *, descending: bool) -> np.ndarray[Any, Any]:
    """Return the rank of every value: nulls first ascending, last descending; equal values share one."""
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.int8())
    key = ("", "descending", "at_end") if descending else ("", "ascending", "at_start")
    found: np.ndarray[Any, Any] = pc.rank(array, sort_keys=[key], tiebreaker="dense").to_numpy()
    return found


def order_of(keys: Sequence[np.ndarray[Any, Any]], count: int) -> np.ndarray[Any, Any]:
    """Return the stable order of rows by several keys."""
    return np.lexsort(tuple(reversed(keys))) if keys else np.arange(count)
