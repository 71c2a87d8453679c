"""Predicates on the columns of one table, each with an equivalent Lance filter and Arrow expression.

Null never satisfies one, and neither does NaN. Numbers are compared as numbers, across their types.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_, or_
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.core.values import FLOATS, INTEGER_BOUNDS, Scalar
from omnigraph.lang.ir import Operator, PlainValue
from omnigraph.lang.types import Type
from omnigraph.storage.columns import to_array

_NEVER, _ALWAYS = "false", "true"
Rows = np.ndarray[Any, np.dtype[np.int64]]
_F32_MAX = float(np.finfo(np.float32).max)
_LEAST = -(2**63)
# Lance sorts NaN above every number, so these operators would match it.
_FINDS_NAN = frozenset({Operator.GT, Operator.GE, Operator.NE})
_ABOVE = frozenset({Operator.LT, Operator.LE, Operator.NE})
_BELOW = frozenset({Operator.GT, Operator.GE, Operator.NE})


@dataclass(frozen=True, slots=True)
class Compare:
    """Compares a column with a value of its type."""

    column: str
    scalar: Scalar
    operator: Operator
    value: PlainValue

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)


@dataclass(frozen=True, slots=True)
class Present:
    """The column is not null."""

    column: str
    scalar: Scalar

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)


@dataclass(frozen=True, slots=True)
class Never:
    """Matches no row."""

    columns = ()


@dataclass(frozen=True, slots=True)
class Null:
    """The column is null; or, negated, it is not."""

    column: str
    negated: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)


@dataclass(frozen=True, slots=True)
class OneOf:
    """The column holds one of these values, none of them null; or, negated, it holds none, and may be null."""

    column: str
    values: pa.Array
    negated: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)


@dataclass(frozen=True, slots=True)
class _Joined:
    predicates: tuple[Predicate, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for one in self.predicates for name in one.columns))


@dataclass(frozen=True, slots=True)
class AllOf(_Joined):
    """The conjunction of predicates; of none it is true."""


@dataclass(frozen=True, slots=True)
class AnyOf(_Joined):
    """The disjunction of predicates; of none it is false."""


Predicate = Compare | Present | Null | Never | OneOf | AllOf | AnyOf


def comparison(column: str, type_: Type, operator: Operator, value: PlainValue) -> Predicate:
    """Compare a column with a value, which may be null or a number of another type."""
    if value is None:
        return Never()
    wanted = Compare(column, type_.scalar, operator, value)
    if type_.scalar in INTEGER_BOUNDS:
        assert isinstance(value, int | float)
        return _with_integer(wanted, value)
    if type_.scalar in FLOATS:
        assert isinstance(value, int | float)
        return _with_float(wanted, value)
    return wanted


def lance_filter(predicate: Predicate) -> str:
    match predicate:
        case Never():
            return _NEVER
        case Present(column, scalar):
            return f"{_quoted(column)} IS NOT NULL{_not_nan(column, scalar)}"
        case Null(column, negated):
            return f"{_quoted(column)} IS {'NOT ' if negated else ''}NULL"
        case OneOf(column, values, negated):
            if not len(values):
                return _ALWAYS if negated else _NEVER
            return f"{_quoted(column)} {'NOT ' if negated else ''}IN ({', '.join(_literals(values))})"
        case AllOf(predicates):
            return " AND ".join(f"({lance_filter(one)})" for one in predicates) or _ALWAYS
        case AnyOf(predicates):
            return " OR ".join(f"({lance_filter(one)})" for one in predicates) or _NEVER
        case Compare(column, scalar, operator, value):
            test = f"{_quoted(column)} {operator} {_literals(to_array(Type(scalar), [value]))[0]}"
            return test + _not_nan(column, scalar) if operator in _FINDS_NAN else test


def arrow_expression(predicate: Predicate) -> pc.Expression:
    match predicate:
        case Never():
            return pc.scalar(False)  # noqa: FBT003
        case Present(column, scalar):
            present = pc.field(column).is_valid()
            return present & ~pc.is_nan(pc.field(column)) if scalar in FLOATS else present
        case Null(column, negated):
            return pc.field(column).is_valid() if negated else pc.field(column).is_null()
        case OneOf(column, values, negated):
            found = pc.field(column).isin(_with_both_zeros(values))
            return ~found if negated else found
        case AllOf(predicates):
            return reduce(and_, map(arrow_expression, predicates)) if predicates else pc.scalar(True)  # noqa: FBT003
        case AnyOf(predicates):
            return reduce(or_, map(arrow_expression, predicates)) if predicates else pc.scalar(False)  # noqa: FBT003
        case Compare(column, scalar, operator, value):
            test = _OPERATORS[operator](pc.field(column), pc.scalar(to_array(Type(scalar), [value])[0]))
            return test & ~pc.is_nan(pc.field(column)) if scalar in FLOATS else test


def satisfying(predicate: Predicate, columns: Mapping[str, pa.Array], count: int) -> Rows:
    """Return the indices of the rows that satisfy a predicate, in order; null counts as false."""
    # The count is given, because a predicate that nothing satisfies may need no column.
    numbered = pa.table({**columns, "@at": np.arange(count)})
    found: Rows = numbered.filter(arrow_expression(predicate))["@at"].to_numpy()
    return found


_OPERATORS = {
    Operator.EQ: pc.Expression.__eq__,
    Operator.NE: pc.Expression.__ne__,
    Operator.LT: pc.Expression.__lt__,
    Operator.LE: pc.Expression.__le__,
    Operator.GT: pc.Expression.__gt__,
    Operator.GE: pc.Expression.__ge__,
}


def _with_integer(wanted: Compare, value: float) -> Predicate:
    low, high = INTEGER_BOUNDS[wanted.scalar]
    # An integer column never equals a fraction: compare with the next whole number, which an index can find.
    if value != math.floor(value):
        if wanted.operator in (Operator.EQ, Operator.NE):
            return _outside(wanted, wanted.operator is Operator.NE)
        down = wanted.operator in (Operator.LT, Operator.LE)
        operator, value = (Operator.LE, math.floor(value)) if down else (Operator.GE, math.ceil(value))
        wanted = replace(wanted, operator=operator)
    if value > high:
        return _outside(wanted, wanted.operator in _ABOVE)
    if value < low:
        return _outside(wanted, wanted.operator in _BELOW)
    return replace(wanted, value=int(value))


def _with_float(wanted: Compare, value: float) -> Predicate:
    """Compare with a float column. For F32 the value is rounded as a stored one would be; for F64 it is exact."""
    if wanted.scalar is Scalar.F32:
        with np.errstate(over="ignore"):
            stored = float(np.float32(value))
        return _beyond_f32(wanted, stored) if math.isinf(stored) else replace(wanted, value=stored)
    # An integer beyond 2**53 may have no exact float; then the comparison is moved to the side of the gap.
    near = float(value)
    if near == value:
        return replace(wanted, value=near)
    if wanted.operator in (Operator.EQ, Operator.NE):
        return _outside(wanted, wanted.operator is Operator.NE)
    less = wanted.operator in (Operator.LT, Operator.LE)
    between = {(True, True): Operator.LE, (True, False): Operator.LT, (False, True): Operator.GT}
    return replace(wanted, operator=between.get((less, near < value), Operator.GE), value=near)


def _beyond_f32(wanted: Compare, infinity: float) -> Predicate:
    """Compare with a value beyond the F32 range: all finite numbers are on one side of it."""
    if wanted.operator in (Operator.EQ, Operator.NE):
        return _outside(wanted, wanted.operator is Operator.NE)
    less = wanted.operator in (Operator.LT, Operator.LE)
    greatest = math.copysign(_F32_MAX, infinity)
    if infinity > 0:
        return replace(wanted, operator=Operator.LE if less else Operator.GT, value=greatest)
    return replace(wanted, operator=Operator.LT if less else Operator.GE, value=greatest)


def _with_both_zeros(values: pa.Array) -> pa.Array:
    """Add the other zero: Arrow distinguishes 0.0 and -0.0, Lance does not."""
    if not pa.types.is_floating(values.type) or not pc.any(pc.equal(values, 0)).as_py():
        return values
    return pa.concat_arrays([values, pa.array([0.0, -0.0], values.type)])


def _outside(wanted: Compare, all_values: bool) -> Predicate:  # noqa: FBT001 - the two ways a bound can be missed
    return Present(wanted.column, wanted.scalar) if all_values else Never()


def _quoted(column: str) -> str:
    return f"`{column}`"


def _not_nan(column: str, scalar: Scalar) -> str:
    return f" AND NOT isnan({_quoted(column)})" if scalar in FLOATS else ""


def _literals(values: pa.Array) -> list[str]:
    """Spell values as Lance literals."""
    if pa.types.is_date64(values.type):
        # The only spelling for which Lance uses an index on the column.
        return [f"arrow_cast({value}, 'Date64')" for value in values.view(pa.int64()).to_pylist()]
    return [_literal(value) for value in values.to_pylist()]


def _literal(value: PlainValue) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dt.date):
        return f"DATE '{value.isoformat()}'"
    if value == _LEAST and isinstance(value, int):
        return f"({_LEAST + 1} - 1)"  # Lance would parse the plain literal as a float
    return _text(value) if isinstance(value, str) else repr(value)


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
