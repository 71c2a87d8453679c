"""Evaluate expressions over rows, a column at a time; or push them down to the table that has the rows."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.core.values import NUMERIC, Scalar, moment_at
from omnigraph.lang import ir
from omnigraph.lang.ir import Operator
from omnigraph.lang.operations import fails
from omnigraph.lang.types import BOOL, Type
from omnigraph.storage.columns import arrow_type, to_array
from omnigraph.storage.functions import computed
from omnigraph.storage.predicates import (
    AllOf,
    AnyOf,
    Compare,
    Null,
    OneOf,
    Predicate,
    Present,
    comparison,
    satisfying,
)

Mask = np.ndarray[Any, np.dtype[np.bool_]]
Values = Callable[[ir.Expr], ir.PlainValue]


class RowValues(Protocol):
    """Rows that have a value for each property of some variables."""

    @property
    def count(self) -> int: ...

    def value(self, variable: str, name: str) -> pa.Array:
        """Return a property of a variable for each row."""

    def take(self, rows: np.ndarray[Any, Any]) -> Self:
        """Select rows by index or mask."""


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


_NEGATED = {
    Operator.EQ: Operator.NE,
    Operator.NE: Operator.EQ,
    Operator.LT: Operator.GE,
    Operator.LE: Operator.GT,
    Operator.GT: Operator.LE,
    Operator.GE: Operator.LT,
}


# Down to the table ---------------------------------------------------------------------------------


def pushed(test: ir.Expr, values: Values, *, negated: bool = False) -> Predicate | None:
    """Return a condition on the columns of one table as a predicate; None if it is anything else.

    Negations move inward to the comparisons. These are false where they would be null, which is what counts: a row is
    kept where the condition is true.
    """
    match test:
        case ir.Not(operand):
            return pushed(operand, values, negated=not negated)
        case ir.Junction(conjunctive, operands):
            parts = [pushed(one, values, negated=negated) for one in operands]
            known = tuple(one for one in parts if one is not None)
            if len(known) < len(parts):
                return None
            return AllOf(known) if conjunctive is not negated else AnyOf(known)
        case ir.IsNull(ir.PropertyRef(_, name, type_)) if type_.is_comparable:
            return Null(name, negated=negated)
        case ir.PropertyRef(_, name, type_) if type_.same_shape(BOOL):
            return Compare(name, Scalar.BOOL, Operator.EQ, not negated)
        case ir.Comparison():
            return _pushed_comparison(test, values, negated=negated)
        case _:
            return None


def _pushed_comparison(test: ir.Comparison, values: Values, *, negated: bool) -> Predicate | None:
    sides = (test.left, test.operator, test.right)
    if test.operator is Operator.CONTAINS and test.left.type.is_list:
        return _pushed_membership(test.left, test.right, values, negated=negated)
    if test.operator in _SWAPPED and isinstance(test.right, ir.PropertyRef):
        sides = (test.right, _SWAPPED[test.operator], test.left)
    left, sign, right = sides
    if not isinstance(left, ir.PropertyRef) or right.variables or sign not in _SWAPPED:
        return None
    return comparison(left.property, left.type, _NEGATED[sign] if negated else sign, values(right))


def _pushed_membership(items: ir.Expr, item: ir.Expr, values: Values, *, negated: bool) -> Predicate | None:
    if not isinstance(item, ir.PropertyRef) or items.variables:
        return None
    wanted = values(items)
    if wanted is None:
        return AnyOf(())
    assert isinstance(wanted, tuple)
    each = [comparison(item.property, item.type, Operator.EQ, one) for one in wanted]
    # A value that the column cannot hold is left out.
    kept = [one.value for one in each if isinstance(one, Compare)]
    found = OneOf(item.property, to_array(Type(item.type.scalar), kept), negated=negated)
    return AllOf((Present(item.property, item.type.scalar), found)) if negated else found


# Over rows -----------------------------------------------------------------------------------------


def holds(test: ir.Expr, rows: RowValues, values: Values) -> Mask:
    """Return for which rows a condition is true; null counts as false."""
    found = pushed(test, values)
    # The same predicate that a scan pushes down: a filter must not answer differently for where it runs.
    if found is not None and len(test.variables) == 1:
        (variable,) = test.variables
        mask = np.zeros(rows.count, bool)
        columns = {name: rows.value(variable, name) for name in found.columns}
        mask[satisfying(found, columns, rows.count)] = True
        return mask
    return (
        _compared_rows(test, rows, values) if isinstance(test, ir.Comparison) else _mask(evaluate(test, rows, values))
    )


def evaluate(expression: ir.Expr, rows: RowValues, values: Values) -> pa.Array:
    """Return the value of an expression for each row."""
    match expression:
        case ir.PropertyRef(variable, name):
            return rows.value(variable, name)
        case ir.Comparison(left, _, right):
            known = _is_known(left, rows, values) & _is_known(right, rows, values)
            return pa.array(holds(expression, rows, values), mask=~known)
        case ir.Junction(conjunctive, operands):
            return _joined(operands, rows, values, conjunctive=conjunctive)
        case ir.Not(operand):
            return pc.invert(evaluate(operand, rows, values))
        case ir.IsNull(operand):
            return evaluate(operand, rows, values).is_null()
        case ir.Computed("if", (condition, yes, no)):
            return _chosen(condition, (yes, no), rows, values, expression.type)
        case ir.Computed("coalesce", arguments):
            return _first_known(arguments, rows, values, expression.type)
        case ir.Computed(_, arguments):
            return computed(expression, [evaluate(one, rows, values) for one in arguments])
        case _:
            return constant(values(expression), expression.type, rows.count)


def _is_known(side: ir.Expr, rows: RowValues, values: Values) -> Mask:
    """Return where a side of a comparison is neither null nor NaN."""
    if not side.variables:
        return np.full(rows.count, values(side) is not None)
    found = evaluate(side, rows, values)
    return np.asarray(_without_nan(found).is_valid().to_numpy(zero_copy_only=False))


def _joined(operands: tuple[ir.Expr, ...], rows: RowValues, values: Values, *, conjunctive: bool) -> pa.Array:
    join = pc.and_kleene if conjunctive else pc.or_kleene
    found = evaluate(operands[0], rows, values)
    for one in operands[1:]:
        if not fails(one):
            found = join(found, evaluate(one, rows, values))
            continue
        # What may have no value is computed only where it decides: `$n != 0 and 1.0 / $n > 2` never divides by zero.
        is_open = pc.not_equal(found, pa.scalar(not conjunctive)).fill_null(True)  # noqa: FBT003
        rest = _on(_mask(is_open), one, rows, values)
        found = pc.if_else(is_open, join(found, rest), found)
    return found


def _on(mask: Mask, expression: ir.Expr, rows: RowValues, values: Values) -> pa.Array:
    """Evaluate an expression on some rows; it is null for the others."""
    found = evaluate(expression, rows.take(mask), values)
    return found.take(pa.array(np.cumsum(mask) - 1, mask=~mask))


def _chosen(
    condition: ir.Expr, sides: tuple[ir.Expr, ir.Expr], rows: RowValues, values: Values, type_: Type
) -> pa.Array:
    mask = holds(condition, rows, values)
    yes, no = (_converted(_on(on, side, rows, values), type_) for on, side in zip((mask, ~mask), sides, strict=True))
    return pc.if_else(pa.array(mask), yes, no)


def _first_known(arguments: tuple[ir.Expr, ...], rows: RowValues, values: Values, type_: Type) -> pa.Array:
    found = _converted(evaluate(arguments[0], rows, values), type_)
    for one in arguments[1:]:
        missing = _mask(found.is_null())
        if not missing.any():
            break
        found = pc.coalesce(found, _converted(_on(missing, one, rows, values), type_))
    return found


def _converted(array: pa.Array, type_: Type) -> pa.Array:
    wanted = arrow_type(type_)
    return array if array.type == wanted else array.cast(wanted)


class TableRows:
    """The rows of a table, whose entity is the only variable."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table
        self.count = table.num_rows

    def value(self, variable: str, name: str) -> pa.Array:
        assert variable == ir.ROW, f"${variable} is not bound here"
        column = self.table[name].combine_chunks()
        return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column

    def take(self, rows: np.ndarray[Any, Any]) -> Self:
        chosen = np.flatnonzero(rows) if rows.dtype == bool else rows
        return type(self)(self.table.take(pa.array(chosen)))


class NoRows:
    """One row without variables, for expressions of constants and parameters."""

    count = 1

    def value(self, variable: str, name: str) -> pa.Array:
        raise AssertionError(f"${variable}.{name} is not constant")

    def take(self, rows: np.ndarray[Any, Any]) -> Self:
        found = type(self)()
        found.count = int(rows.sum()) if rows.dtype == bool else len(rows)
        return found


def constant_value(expression: ir.Expr, values: Values) -> ir.PlainValue:
    """Return the value of an expression without variables."""
    return plain_value(evaluate(expression, NoRows(), values))


def plain_value(array: pa.Array) -> ir.PlainValue:
    """Return the first value of an array as a plain one."""
    first = array[0]
    if first.as_py() is None:
        return None
    if pa.types.is_date64(array.type):
        return moment_at(first.value)
    if pa.types.is_list(array.type):
        return tuple(plain_value(first.values.slice(at, 1)) for at in range(len(first.values)))
    found: ir.PlainValue = first.as_py()
    return found


def _compared_rows(test: ir.Comparison, rows: RowValues, values: Values) -> Mask:
    left, right = (evaluate(side, rows, values) for side in (test.left, test.right))
    if test.operator is Operator.CONTAINS:
        return _contains(_as_stored(left, test.left, test.right), _as_stored(right, test.right, test.left))
    if test.operator is Operator.STARTS_WITH:
        return _texts(left, right, np.strings.startswith)
    return _compared(left, right, test.operator, numeric=test.left.type.scalar in NUMERIC)


def _as_stored(given: pa.Array, side: ir.Expr, other: ir.Expr) -> pa.Array:
    """Round numbers that are compared with an F32 property as its values were; a column predicate does so, too."""
    if isinstance(side, ir.PropertyRef) or not isinstance(other, ir.PropertyRef) or other.type.scalar is not Scalar.F32:
        return given
    # Unsafe: a number beyond the F32 range becomes infinite, which no stored value is.
    return given.cast(arrow_type(replace(side.type, scalar=Scalar.F32)), safe=False)


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
