"""Compute the functions and arithmetic operators of expressions on Arrow columns, as `lang/functions.py` types them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.core.values import (
    DAY_MILLISECONDS,
    FIRST_DAY,
    FIRST_MILLISECOND,
    LAST_DAY,
    LAST_MILLISECOND,
    number_in,
    parse_date,
    parse_datetime,
)
from omnigraph.errors import LiteralError
from omnigraph.lang import ir
from omnigraph.lang.source import Span
from omnigraph.lang.types import DATE, DATETIME
from omnigraph.storage.columns import arrow_type, to_array

Arrays = Sequence[pa.Array]
Kernel = Callable[[Arrays], pa.Array]
_MILLISECONDS = {"second": 1_000, "minute": 60_000, "hour": 3_600_000, "day": DAY_MILLISECONDS}
_MONTHS = {"month": 1, "year": 12}
_WEEK = 7


class Undefined(Exception):  # noqa: N818 - becomes an ExpressionError where the source is known
    """A function has no result for the values of some row."""

    def __init__(self, message: str, span: Span) -> None:
        super().__init__(message)
        self.message = message
        self.span = span


def computed(call: ir.Computed, arguments: Arrays) -> pa.Array:
    """Apply a function to columns of equal length; raises Undefined where it has no result."""
    try:
        found = _KERNELS[call.function](arguments)
    except (pa.ArrowInvalid, OverflowError) as problem:
        raise Undefined(f"`{call.function}`: {_in_words(str(problem))}", call.span) from None
    wanted = arrow_type(call.type)
    found = found if found.type == wanted else found.cast(wanted)
    if pa.types.is_floating(found.type) and pc.any(pc.invert(pc.is_finite(found))).as_py():
        raise Undefined(f"`{call.function}`: the result is too large, or not a number", call.span)
    return found


def _in_words(problem: str) -> str:
    if "divide by zero" in problem:
        return "division by zero"
    if "square root" in problem:
        return "the square root of a negative number"
    return problem if problem.startswith("the ") else "the result does not fit a 64-bit integer"


# Arithmetic ----------------------------------------------------------------------------------------


def _numbers(arguments: Arrays) -> list[pa.Array]:
    """Convert numbers to what they are computed as: 64-bit integers, or floats if one of them is a float."""
    is_float = any(pa.types.is_floating(one.type) for one in arguments)
    return [one.cast(pa.float64() if is_float else pa.int64(), safe=not is_float) for one in arguments]


def _checked(operation: Callable[..., pa.Array]) -> Kernel:
    return lambda arguments: operation(*_numbers(arguments))


def _difference(arguments: Arrays) -> pa.Array:
    numbers = _numbers(arguments)
    return pc.negate_checked(numbers[0]) if len(numbers) == 1 else pc.subtract_checked(*numbers)


def _remainder(arguments: Arrays) -> pa.Array:
    number, by = _numbers(arguments)
    return pc.subtract_checked(number, pc.multiply_checked(pc.divide_checked(number, by), by))


def _rounding(operation: Callable[[pa.Array], pa.Array]) -> Kernel:
    def of(arguments: Arrays) -> pa.Array:
        (number,) = _numbers(arguments)
        return operation(number) if pa.types.is_floating(number.type) else number

    return of


def _rounded(arguments: Arrays) -> pa.Array:
    (number,) = _numbers(arguments[:1])
    if len(arguments) == 1:
        is_float = pa.types.is_floating(number.type)
        return pc.round(number, round_mode="half_towards_infinity") if is_float else number
    digits = pc.min_element_wise(pc.max_element_wise(arguments[1].cast(pa.int64()), -300), 300).cast(pa.int32())
    return pc.round_binary(number, digits, round_mode="half_towards_infinity")


# Texts ---------------------------------------------------------------------------------------------

_Texts = np.dtypes.StringDType


def _by_row(texts: Arrays, compute: Callable[..., Any], type_: pa.DataType) -> pa.Array:
    """Compute texts that differ from row to row, which Arrow takes as constants only; null where one is null."""
    valid = np.ones(len(texts[0]), bool)
    for one in texts:
        valid &= one.is_valid().to_numpy(zero_copy_only=False)
    filled = [one.fill_null("").to_numpy(zero_copy_only=False).astype(_Texts()) for one in texts]
    found = compute(*filled)
    return pa.array(found.astype(object) if type_ == pa.string() else found, type_, mask=~valid)


def _constant(array: pa.Array) -> Any:
    """Return the value that all rows share, or None if they do not."""
    kinds = array.unique()
    return kinds[0].as_py() if len(kinds) == 1 else None


def _substring(arguments: Arrays) -> pa.Array:
    text, start, *counts = arguments
    starts = start.cast(pa.int64())
    if pc.any(pc.less(starts, 1)).as_py():
        raise pa.ArrowInvalid("the first character has the number 1")
    if counts and pc.any(pc.less(counts[0].cast(pa.int64()), 0)).as_py():
        raise pa.ArrowInvalid("the number of characters is negative")
    first, count = _constant(starts), _constant(counts[0].cast(pa.int64())) if counts else None
    if first is not None and (not counts or count is not None):
        return pc.utf8_slice_codeunits(text, first - 1, None if count is None else min(first - 1 + count, 2**62))
    return _cut(text, starts, counts[0].cast(pa.int64()) if counts else None)


def _cut(text: pa.Array, starts: pa.Array, counts: pa.Array | None) -> pa.Array:
    lengths = counts or pa.array(np.full(len(text), 2**62))
    rows = zip(text.to_pylist(), starts.to_pylist(), lengths.to_pylist(), strict=True)
    # Rows that differ in where they are cut are rare, and no kernel takes them.
    found = [
        None if word is None or first is None or count is None else word[first - 1 : first - 1 + count]
        for word, first, count in rows
    ]
    return pa.array(found, pa.string())


def _replaced(arguments: Arrays) -> pa.Array:
    text, part, by = arguments
    old, new = _constant(part), _constant(by)
    if old is not None and new is not None:
        return pc.replace_substring(text, old, new) if old else text
    return _by_row(
        arguments, lambda all_, olds, news: np.where(olds == "", all_, _replace(all_, olds, news)), pa.string()
    )


def _replace(texts: Any, olds: Any, news: Any) -> Any:
    return np.strings.replace(texts, np.where(olds == "", "\0", olds), news)


def _joined(arguments: Arrays) -> pa.Array:
    return pc.binary_join_element_wise(*arguments, pa.scalar(""))


def _ends(arguments: Arrays) -> pa.Array:
    return _by_row(arguments, np.strings.endswith, pa.bool_())


# Lists ---------------------------------------------------------------------------------------------


def _item(arguments: Arrays) -> pa.Array:
    """Return an element by its number, from 1; null where there is none."""
    lists, number = arguments
    at, lengths = number.cast(pa.int64()), pc.list_value_length(lists)
    inside = pc.and_(pc.greater_equal(at, 1), pc.less_equal(at, lengths)).fill_null(False)  # noqa: FBT003
    found = np.asarray(inside)
    places = lists.offsets.to_numpy()[:-1] + at.fill_null(1).to_numpy(zero_copy_only=False) - 1
    return lists.values.take(pa.array(np.where(found, places, 0), mask=~found))


# Dates ---------------------------------------------------------------------------------------------


def _days(moments: pa.Array) -> pa.Array:
    """Return the days since 1970, in UTC."""
    if pa.types.is_date32(moments.type):
        return moments.view(pa.int32()).cast(pa.int64())
    return pa.array(_floored(moments, DAY_MILLISECONDS), mask=_nulls(moments))


def _floored(moments: pa.Array, unit: int) -> np.ndarray[Any, Any]:
    # Not Arrow's division, which rounds towards zero, and so before 1970 up.
    found: np.ndarray[Any, Any] = _filled(moments.view(pa.int64())) // unit
    return found


def _filled(numbers: pa.Array) -> np.ndarray[Any, Any]:
    found: np.ndarray[Any, Any] = numbers.fill_null(0).to_numpy(zero_copy_only=False)
    return found


def _nulls(array: pa.Array) -> np.ndarray[Any, Any]:
    found: np.ndarray[Any, Any] = array.is_null().to_numpy(zero_copy_only=False)
    return found


def _part_of(operation: Callable[[pa.Array], pa.Array]) -> Kernel:
    def of(arguments: Arrays) -> pa.Array:
        (moments,) = arguments
        is_date = pa.types.is_date32(moments.type)
        return operation(moments if is_date else moments.view(pa.int64()).cast(pa.timestamp("ms")))

    return of


def _days_between(arguments: Arrays) -> pa.Array:
    first, last = map(_days, arguments)
    return pc.subtract(last, first)


def _seconds_between(arguments: Arrays) -> pa.Array:
    first, last = (one.view(pa.int64()) for one in arguments)
    apart = pc.subtract(last, first)
    return pa.array(_filled(apart) // 1_000, mask=_nulls(apart))


def _moved(arguments: Arrays) -> pa.Array:
    moments, number, units = arguments
    unit = _constant(units)
    missing = _nulls(moments) | _nulls(number)
    if unit is None:  # there are no rows
        return moments
    count = _filled(number.cast(pa.int64()))
    _within(np.abs(np.where(missing, 0, count.astype(np.float64))), 0, 1e13)
    is_date = pa.types.is_date32(moments.type)
    if unit in _MONTHS:
        days = _months_later(_filled(_days(moments)), count * _MONTHS[unit])
    elif is_date:
        days = _filled(_days(moments)) + count * (_WEEK if unit == "week" else 1)
    if is_date:
        _within(np.where(missing, 0, days), FIRST_DAY, LAST_DAY)
        return pa.array(days.astype(np.int32), mask=missing).view(pa.date32())
    time = _filled(moments.view(pa.int64()))
    step = _WEEK * DAY_MILLISECONDS if unit == "week" else _MILLISECONDS.get(unit, 0)
    later = days * DAY_MILLISECONDS + time % DAY_MILLISECONDS if unit in _MONTHS else time + count * step
    _within(np.where(missing, 0, later), FIRST_MILLISECOND, LAST_MILLISECOND)
    return pa.array(later, mask=missing).view(pa.date64())


def _months_later(days: np.ndarray[Any, Any], months: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Move days by months; a day that the month lacks becomes its last one."""
    _within(np.abs(months.astype(np.float64)), 0, 12 * 10_000)
    dates = days.astype("datetime64[D]")
    old = dates.astype("datetime64[M]")
    new = old + months
    last = ((new + 1).astype("datetime64[D]") - new.astype("datetime64[D]")).astype(np.int64) - 1
    offset = np.minimum((dates - old.astype("datetime64[D]")).astype(np.int64), last)
    found: np.ndarray[Any, Any] = new.astype("datetime64[D]").astype(np.int64) + offset
    return found


def _within(numbers: np.ndarray[Any, Any], low: float, high: float) -> None:
    if len(numbers) and (numbers.min() < low or numbers.max() > high):
        raise pa.ArrowInvalid("the date is outside of the years 1 to 9999")


# Conversions ---------------------------------------------------------------------------------------


def _to_string(arguments: Arrays) -> pa.Array:
    (values,) = arguments
    if pa.types.is_date64(values.type):
        moments = values.view(pa.int64()).cast(pa.timestamp("ms"))
        return pc.strftime(moments, format="%Y-%m-%dT%H:%M:%SZ")  # Arrow writes the fraction itself
    return values.cast(pa.string())


def _to_integer(arguments: Arrays) -> pa.Array:
    (values,) = arguments
    if pa.types.is_string(values.type):
        return _read(values, _integer_in, lambda found: pa.array(found, pa.int64()))
    # A float loses its fraction; one too large has no result.
    return pc.trunc(values).cast(pa.int64()) if pa.types.is_floating(values.type) else values.cast(pa.int64())


def _integer_in(text: str) -> int | None:
    number = number_in(text)
    return number if isinstance(number, int) and -(2**63) <= number < 2**63 else None


def _float_in(text: str) -> float | None:
    number = number_in(text)
    try:
        found = None if isinstance(number, str) else float(number)
    except OverflowError:
        return None
    return found if found is not None and math.isfinite(found) else None


def _read(texts: pa.Array, read: Callable[[str], Any], column: Callable[[list[Any]], pa.Array]) -> pa.Array:
    """Read what texts spell, each distinct one once; null for what spells nothing."""
    kinds = texts.dictionary_encode()
    return column([_or_null(read, text) for text in kinds.dictionary.to_pylist()]).take(kinds.indices)


def _or_null(read: Callable[[str], Any], text: str) -> Any:
    try:
        return read(text)
    except LiteralError:
        return None


def _to_float(arguments: Arrays) -> pa.Array:
    (values,) = arguments
    if pa.types.is_string(values.type):
        return _read(values, _float_in, lambda found: pa.array(found, pa.float64()))
    return values.cast(pa.float64(), safe=False)


def _to_date(arguments: Arrays) -> pa.Array:
    (values,) = arguments
    if pa.types.is_string(values.type):
        return _read(values, parse_date, lambda found: to_array(DATE, found))
    return values if pa.types.is_date32(values.type) else _days(values).cast(pa.int32()).view(pa.date32())


def _to_datetime(arguments: Arrays) -> pa.Array:
    (values,) = arguments
    if pa.types.is_string(values.type):
        return _read(values, parse_datetime, lambda found: to_array(DATETIME, found))
    if pa.types.is_date64(values.type):
        return values
    return pc.multiply(_days(values), DAY_MILLISECONDS).view(pa.date64())


def _unless_equal(arguments: Arrays) -> pa.Array:
    value, other = arguments
    if value.type != other.type and not pa.types.is_string(value.type):
        equal = pc.equal(*_numbers(arguments))
    else:
        equal = pc.equal(value, other)
    return pc.if_else(equal.fill_null(False), None, value)  # noqa: FBT003


_KERNELS: Mapping[str, Kernel] = {
    "+": _checked(pc.add_checked),
    "-": _difference,
    "*": _checked(pc.multiply_checked),
    "/": _checked(pc.divide_checked),
    "div": _checked(pc.divide_checked),
    "mod": _remainder,
    "abs": _checked(pc.abs_checked),
    "floor": _rounding(pc.floor),
    "ceil": _rounding(pc.ceil),
    "round": _rounded,
    "sqrt": lambda arguments: pc.sqrt_checked(arguments[0].cast(pa.float64(), safe=False)),
    "lower": lambda arguments: pc.utf8_lower(*arguments),
    "upper": lambda arguments: pc.utf8_upper(*arguments),
    "trim": lambda arguments: pc.utf8_trim_whitespace(*arguments),
    "length": lambda arguments: pc.utf8_length(*arguments),
    "substring": _substring,
    "replace": _replaced,
    "concat": _joined,
    "join": lambda arguments: pc.binary_join(*arguments),
    "ends_with": _ends,
    "size": lambda arguments: pc.list_value_length(*arguments),
    "item": _item,
    "nullif": _unless_equal,
    "year": _part_of(pc.year),
    "month": _part_of(pc.month),
    "day": _part_of(pc.day),
    "hour": _part_of(pc.hour),
    "minute": _part_of(pc.minute),
    "second": _part_of(pc.second),
    "date_add": _moved,
    "days_between": _days_between,
    "seconds_between": _seconds_between,
    "to_string": _to_string,
    "to_integer": _to_integer,
    "to_float": _to_float,
    "to_date": _to_date,
    "to_datetime": _to_datetime,
}
