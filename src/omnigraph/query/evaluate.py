"""Evaluate values and comparisons over rows of bindings, a column at a time."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.core.values import NUMERIC, Scalar
from omnigraph.lang import ir
from omnigraph.lang.ir import Operator
from omnigraph.lang.types import Type
from omnigraph.query.frame import Frame
from omnigraph.query.view import satisfying
from omnigraph.storage.columns import arrow_type, to_array
from omnigraph.storage.predicates import Predicate, comparison

Mask = np.ndarray[Any, np.dtype[np.bool_]]
Values = Callable[[ir.Value], ir.PlainValue]

# The comparisons that a column predicate can express, and each with its sides exchanged.
_SWAPPED = {
    Operator.LT: Operator.GT,
    Operator.LE: Operator.GE,
    Operator.GT: Operator.LT,
    Operator.GE: Operator.LE,
    Operator.EQ: Operator.EQ,
    Operator.NE: Operator.NE,
}
_COMPARE = {
    Operator.EQ: (pc.equal, operator.eq),
    Operator.NE: (pc.not_equal, operator.ne),
    Operator.LT: (pc.less, operator.lt),
    Operator.LE: (pc.less_equal, operator.le),
    Operator.GT: (pc.greater, operator.gt),
    Operator.GE: (pc.greater_equal, operator.ge),
}


def pushed(test: ir.Comparison, values: Values) -> Predicate | None:
    """Return the comparison of a property with a constant as a column predicate; None for any other comparison."""
    sides = (test.left, test.operator, test.right)
    if test.operator in _SWAPPED and isinstance(test.right, ir.PropertyRef):
        sides = (test.right, _SWAPPED[test.operator], test.left)
    left, sign, right = sides
    if not isinstance(left, ir.PropertyRef) or isinstance(right, ir.PropertyRef) or sign not in _SWAPPED:
        return None
    return comparison(left.property, left.type, sign, values(right))


def holds(test: ir.Comparison, frame: Frame, values: Values) -> Mask:
    """Return which rows satisfy a comparison; null counts as false."""
    predicate = pushed(test, values)
    # The same predicate that a scan pushes down: a filter must not answer differently for where it runs.
    if predicate is not None:
        reference = test.left if isinstance(test.left, ir.PropertyRef) else test.right
        assert isinstance(reference, ir.PropertyRef)
        mask = np.zeros(frame.count, bool)
        column = frame.value(reference.variable, reference.property)
        mask[satisfying(predicate, {reference.property: column}, frame.count)] = True
        return mask
    left, right = (operand(side, frame, values) for side in (test.left, test.right))
    if test.operator is Operator.CONTAINS:
        return _contains(_as_stored(left, test.left, test.right), _as_stored(right, test.right, test.left))
    if test.operator is Operator.STARTS_WITH:
        return _texts(left, right, np.strings.startswith)
    return _compared(left, right, test.operator, numeric=test.left.type.scalar in NUMERIC)


def _as_stored(given: pa.Array, side: ir.Operand, other: ir.Operand) -> pa.Array:
    """Round numbers that are compared with an F32 property as its values were; a column predicate does so, too."""
    if isinstance(side, ir.PropertyRef) or not isinstance(other, ir.PropertyRef) or other.type.scalar is not Scalar.F32:
        return given
    # Unsafe: a number beyond the F32 range becomes infinite, which no stored value is.
    return given.cast(arrow_type(replace(side.type, scalar=Scalar.F32)), safe=False)


def operand(side: ir.Operand, frame: Frame, values: Values) -> pa.Array:
    """Return the value of one side for each row."""
    if isinstance(side, ir.PropertyRef):
        return frame.value(side.variable, side.property)
    return constant(values(side), side.type, frame.count)


def constant(value: ir.PlainValue, type_: Type, count: int) -> pa.Array:
    """Repeat a value for each row."""
    if value is None:
        return pa.nulls(count, arrow_type(type_))
    plain = list(value) if isinstance(value, tuple) else value
    return to_array(type_, [plain]).take(pa.array(np.zeros(count, np.int64)))


def _compared(left: pa.Array, right: pa.Array, sign: Operator, *, numeric: bool) -> Mask:
    if pa.types.is_floating(left.type) or pa.types.is_floating(right.type):
        left, right = (_without_nan(side) for side in (left, right))
    if not numeric or left.type == right.type:
        return _mask(_COMPARE[sign][0](left, right))
    known = _mask(pc.and_(left.is_valid(), right.is_valid()))
    # Numbers of two types are compared as numbers: the widest float holds every integer of 64 bits exactly.
    sides = (side.fill_null(0).to_numpy(zero_copy_only=False).astype(np.longdouble) for side in (left, right))
    return np.asarray(_COMPARE[sign][1](*sides)) & known


def _without_nan(side: pa.Array) -> pa.Array:
    """Turn NaN into null: no comparison with it holds."""
    return pc.if_else(pc.is_nan(side), None, side) if pa.types.is_floating(side.type) else side


def _contains(left: pa.Array, right: pa.Array) -> Mask:
    if pa.types.is_list(left.type):
        return _list_contains(left, right)
    return _texts(left, right, lambda texts, parts: np.strings.find(texts, parts) >= 0)


def _list_contains(lists: pa.Array, needles: pa.Array) -> Mask:
    parents = pc.list_parent_indices(lists).to_numpy()
    # One comparison over all items, each with the needle of its row.
    items, wanted = pc.list_flatten(lists), needles.take(pa.array(parents))
    numeric = not (
        pa.types.is_string(items.type) or pa.types.is_temporal(items.type) or pa.types.is_boolean(items.type)
    )
    same = _compared(items, wanted, Operator.EQ, numeric=numeric)
    mask = np.zeros(len(lists), bool)
    mask[parents[same]] = True
    return mask


def _texts(left: pa.Array, right: pa.Array, test: Callable[[Any, Any], Any]) -> Mask:
    kind = np.dtypes.StringDType()  # Arrow compares with one needle only; here each row has its own
    sides = (side.fill_null("").to_numpy(zero_copy_only=False).astype(kind) for side in (left, right))
    return np.asarray(test(*sides)) & _mask(pc.and_(left.is_valid(), right.is_valid()))


def _mask(known: pa.Array) -> Mask:
    found: Mask = known.fill_null(False).to_numpy(zero_copy_only=False)  # noqa: FBT003
    return found
