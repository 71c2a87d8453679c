"""The functions and arithmetic operators of expressions: what they take, and the type of what they return.

How they are computed is in `storage/functions.py`, under the same names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from omnigraph.core.values import FLOATS, TEMPORAL, Scalar
from omnigraph.lang.types import BOOL, DATE, DATETIME, F64, I64, STRING, Type

_Types = Sequence[Type]
DATE_UNITS = ("day", "week", "month", "year")
TIME_UNITS = ("second", "minute", "hour", *DATE_UNITS)


@dataclass(frozen=True, slots=True)
class Function:
    """How a function is written, and the type of its result; None if the types of the arguments do not fit."""

    usage: str
    least: int
    most: int
    result: Callable[[_Types], Type | None]
    can_fail: bool = False

    def returns(self, types: _Types) -> Type | None:
        """Return the type of the result, which is null if an argument is, unless the function says otherwise."""
        found = self.result(types)
        if found is None or found.nullable or self.result in _DECIDES_NULL:
            return found
        return replace(found, nullable=any(one.nullable for one in types))


def _number(types: _Types) -> Type | None:
    """Integers give an I64, and one float makes the result an F64."""
    if not all(one.is_numeric for one in types):
        return None
    return F64 if any(one.scalar in FLOATS for one in types) else I64


def _float(types: _Types) -> Type | None:
    return F64 if all(one.is_numeric for one in types) else None


def _division(types: _Types) -> Type | None:
    return F64 if _number(types) == F64 else None


def _integer(types: _Types) -> Type | None:
    return I64 if all(one.is_integer for one in types) else None


def _rounded(types: _Types) -> Type | None:
    found = _number(types[:1])
    return found if found is None or all(one.is_integer for one in types[1:]) else None


def _texts(result: Type) -> Callable[[_Types], Type | None]:
    return lambda types: result if all(one.is_string for one in types) else None


def _part(types: _Types) -> Type | None:
    return STRING if types[0].is_string and all(one.is_integer for one in types[1:]) else None


def _size(types: _Types) -> Type | None:
    return I64 if types[0].is_list else None


def _item(types: _Types) -> Type | None:
    fits = types[0].is_list and types[1].is_integer
    return replace(types[0].element, nullable=True) if fits else None


def _is_moment(type_: Type) -> bool:
    return type_.scalar in TEMPORAL and not type_.is_list


def _part_of_date(types: _Types) -> Type | None:
    return I64 if _is_moment(types[0]) else None


def _part_of_time(types: _Types) -> Type | None:
    return I64 if types[0].same_shape(DATETIME) else None


def _moved(types: _Types) -> Type | None:
    moment, number, unit = types
    return Type(moment.scalar) if _is_moment(moment) and number.is_integer and unit.is_string else None


def _between(types: _Types) -> Type | None:
    return I64 if _is_moment(types[0]) and types[0].same_shape(types[1]) else None


def _seconds(types: _Types) -> Type | None:
    return I64 if all(one.same_shape(DATETIME) for one in types) else None


def common(types: _Types) -> Type | None:
    """Return the type that values of all these types have together."""
    first = types[0]
    if all(one.is_numeric for one in types):
        kinds = {one.scalar for one in types}
        shared = Type(first.scalar) if len(kinds) == 1 else _number(types)
    elif all(one.same_shape(first) for one in types):
        shared = replace(first, nullable=False)
    else:
        # Two enums, or an enum and a String.
        shared = STRING if all(one.is_string for one in types) else None
    return None if shared is None or shared.is_blob or shared.is_vector else shared


def _first_known(types: _Types) -> Type | None:
    shared = common(types)
    return shared and replace(shared, nullable=all(one.nullable for one in types))


def _chosen(types: _Types) -> Type | None:
    shared = common(types[1:]) if types[0].same_shape(BOOL) else None
    return shared and replace(shared, nullable=any(one.nullable for one in types[1:]))


def _unless_equal(types: _Types) -> Type | None:
    shared = types[0].is_comparable and types[0].accepts(types[1])
    return replace(types[0], nullable=True, enum=()) if shared else None


def _cast(result: Type, *, from_text: bool = True) -> Callable[[_Types], Type | None]:
    def of(types: _Types) -> Type | None:
        (given,) = types
        fits = given.is_numeric if result.is_numeric else given.scalar in TEMPORAL
        if given.is_list or not (fits or given.is_string or (result is STRING and given.is_comparable)):
            return None
        # A text may spell no such value: then the result is null.
        return replace(result, nullable=given.nullable or (from_text and given.is_string))

    return of


def _aligned(types: _Types) -> Type | None:
    return STRING if types[0].is_list and types[0].scalar is Scalar.STRING and types[1].is_string else None


_DECIDES_NULL = frozenset({_first_known, _chosen, _unless_equal})

FUNCTIONS: Mapping[str, Function] = {
    "lower": Function("lower(text)", 1, 1, _texts(STRING)),
    "upper": Function("upper(text)", 1, 1, _texts(STRING)),
    "trim": Function("trim(text)", 1, 1, _texts(STRING)),
    "length": Function("length(text)", 1, 1, _texts(I64)),
    "substring": Function("substring(text, from, count)", 2, 3, _part, can_fail=True),
    "replace": Function("replace(text, part, by)", 3, 3, _texts(STRING)),
    "concat": Function("concat(text, text, ...)", 2, 100, _texts(STRING)),
    "join": Function("join(list of texts, separator)", 2, 2, _aligned),
    "contains": Function("contains(text, part)", 2, 2, lambda _: None),
    "starts_with": Function("starts_with(text, part)", 2, 2, lambda _: None),
    "ends_with": Function("ends_with(text, part)", 2, 2, _texts(BOOL)),
    "abs": Function("abs(number)", 1, 1, _number, can_fail=True),
    "floor": Function("floor(number)", 1, 1, _number),
    "ceil": Function("ceil(number)", 1, 1, _number),
    "round": Function("round(number, digits)", 1, 2, _rounded, can_fail=True),
    "sqrt": Function("sqrt(number)", 1, 1, _float, can_fail=True),
    "div": Function("div(integer, integer)", 2, 2, _integer, can_fail=True),
    "mod": Function("mod(integer, integer)", 2, 2, _integer, can_fail=True),
    "coalesce": Function("coalesce(value, value, ...)", 2, 100, _first_known),
    "nullif": Function("nullif(value, value)", 2, 2, _unless_equal),
    "if": Function("if(condition, value, value)", 3, 3, _chosen),
    "size": Function("size(list)", 1, 1, _size),
    "item": Function("item(list, number)", 2, 2, _item),
    "year": Function("year(date)", 1, 1, _part_of_date),
    "month": Function("month(date)", 1, 1, _part_of_date),
    "day": Function("day(date)", 1, 1, _part_of_date),
    "hour": Function("hour(date-time)", 1, 1, _part_of_time),
    "minute": Function("minute(date-time)", 1, 1, _part_of_time),
    "second": Function("second(date-time)", 1, 1, _part_of_time),
    "date_add": Function('date_add(date, number, "day")', 3, 3, _moved, can_fail=True),
    "days_between": Function("days_between(from, to)", 2, 2, _between),
    "seconds_between": Function("seconds_between(from, to)", 2, 2, _seconds),
    "to_string": Function("to_string(value)", 1, 1, _cast(STRING, from_text=False)),
    "to_integer": Function("to_integer(text or number)", 1, 1, _cast(I64), can_fail=True),
    "to_float": Function("to_float(text or number)", 1, 1, _cast(F64)),
    "to_date": Function("to_date(text or date-time)", 1, 1, _cast(DATE)),
    "to_datetime": Function("to_datetime(text or date)", 1, 1, _cast(DATETIME)),
}

OPERATORS: Mapping[str, Function] = {
    "+": Function("number + number", 2, 2, _number, can_fail=True),
    "-": Function("number - number", 1, 2, _number, can_fail=True),
    "*": Function("number * number", 2, 2, _number, can_fail=True),
    "/": Function("number / number", 2, 2, _division, can_fail=True),
}


def can_fail(name: str) -> bool:
    """Whether a function has no result for some values that are not null."""
    return {**FUNCTIONS, **OPERATORS}[name].can_fail
