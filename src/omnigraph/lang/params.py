"""Query parameters: from JSON values to values of the declared types. Every front end decodes here."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from enum import Enum
from functools import partial
from typing import Any, TypeVar

from omnigraph.errors import LiteralError, ParameterError
from omnigraph.lang.ir import PlainValue
from omnigraph.lang.source import did_you_mean
from omnigraph.lang.types import INTEGER_BOUNDS, Scalar, Type
from omnigraph.lang.values import parse_date, parse_datetime

_SAFE_INTEGER = 2**53 - 1
_MAX_I64 = 2**63 - 1
_MAX_DIGITS = 20

_T = TypeVar("_T")


class IntegerMode(Enum):
    """Whether JSON integers are exact. JavaScript's are not past 2**53 - 1, and must come as text there."""

    STANDARD = "standard"
    JAVASCRIPT = "javascript"


def decode_parameters(
    declared: Mapping[str, Type], given: object, mode: IntegerMode = IntegerMode.STANDARD
) -> dict[str, PlainValue]:
    """Decode a JSON object of parameters. A missing nullable one is null, a missing required one an error."""
    if given is None:
        given = {}
    if not isinstance(given, Mapping):
        raise ParameterError(f"parameters must be a JSON object, not {_json_kind(given)}", parameter=None)
    if not all(isinstance(name, str) for name in given):
        raise ParameterError("the names of parameters must be strings", parameter=None)
    values = {name: _declared(name, declared, given, mode) for name in declared}
    extra = {name: _inferred(name, item, mode) for name, item in given.items() if name not in declared}
    return values | extra


def _declared(name: str, declared: Mapping[str, Type], given: Mapping[str, Any], mode: IntegerMode) -> PlainValue:
    type_ = declared[name]
    if name not in given:
        if type_.nullable:
            return None
        undeclared = did_you_mean(name, [key for key in given if key not in declared])
        hint = f"pass a {type_}" + (f"; {undeclared}" if undeclared else "")
        raise ParameterError(f"parameter '{name}' not provided", parameter=name, hint=hint)
    item = given[name]
    if item is None:
        if type_.nullable:
            return None
        message = f"parameter '{name}': null is not accepted for non-nullable parameter"
        raise ParameterError(message, parameter=name, hint=f"declare it as `{type_}?` to allow null")
    try:
        return _decoded(type_, item, mode)
    except _Misfit as problem:
        raise ParameterError(f"parameter '{name}': {problem}", parameter=name, hint=problem.hint) from None


class _Misfit(Exception):  # noqa: N818 - becomes a ParameterError where the parameter's name is known
    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


def _decoded(type_: Type, item: object, mode: IntegerMode) -> PlainValue:
    if type_.is_vector:
        return _vector(type_, item)
    if type_.is_list:
        if not isinstance(item, list | tuple):
            raise _Misfit(f"expected an array for {type_}, got {_json_kind(item)}")
        decode = partial(_decoded, type_.element, mode=mode)
        return tuple(_at(at, decode, element) for at, element in enumerate(item))
    if type_.scalar in INTEGER_BOUNDS:
        return _integer(type_.scalar, item, mode)
    return _DECODERS[type_.scalar](item)


def _vector(type_: Type, item: object) -> tuple[float, ...]:
    if not isinstance(item, list | tuple):
        raise _Misfit(f"expected an array of numbers for {type_}, got {_json_kind(item)}")
    if len(item) != type_.dimension:
        raise _Misfit(f"expected {type_.dimension} values for {type_}, got {len(item)}")
    return tuple(_at(at, _float, element) for at, element in enumerate(item))


def _at(position: int, decode: Callable[[object], _T], item: object) -> _T:
    """Decode an element; what is wrong with it is told with its position."""
    try:
        return decode(item)
    except _Misfit as problem:
        raise _Misfit(f"element {position}: {problem}", problem.hint) from None


def _integer(scalar: Scalar, item: object, mode: IntegerMode) -> int:
    low, high = INTEGER_BOUNDS[scalar]
    if isinstance(item, str):
        digits = item.removeprefix("-")
        if not (digits.isascii() and digits.isdigit()):
            raise _Misfit(f"expected an integer for {scalar}, got the text {_clip(item)!r}")
        value = int(item) if len(digits.lstrip("0")) <= _MAX_DIGITS else high + 1
    elif isinstance(item, int) and not isinstance(item, bool):
        value = item
        if mode is IntegerMode.JAVASCRIPT and abs(value) > _SAFE_INTEGER:
            raise _Misfit("the integer is not exact in JavaScript", 'pass it as text: "9007199254740993"')
    else:
        raise _Misfit(f"expected an integer for {scalar}, got {_json_kind(item)}")
    if not low <= value <= high:
        raise _Misfit(f"the value exceeds {scalar}")
    if value > _MAX_I64:
        raise _Misfit("a U64 parameter must fit a signed 64-bit integer", "load larger values with `load`")
    return value


def _float(item: object) -> float:
    if isinstance(item, bool) or not isinstance(item, int | float):
        raise _Misfit(f"expected a number, got {_json_kind(item)}")
    try:
        value = float(item)
    except OverflowError:
        value = math.inf
    if not math.isfinite(value):
        raise _Misfit("expected a finite number")
    return value


def _text(item: object) -> str:
    if not isinstance(item, str):
        raise _Misfit(f"expected a string, got {_json_kind(item)}")
    if not item.isascii() and any("\ud800" <= char <= "\udfff" for char in item):
        raise _Misfit("the text holds a lone surrogate, which is no character")
    return item


def _bool(item: object) -> bool:
    if not isinstance(item, bool):
        raise _Misfit(f"expected true or false, got {_json_kind(item)}")
    return item


def _temporal(parse: Callable[[str], PlainValue]) -> Callable[[object], PlainValue]:
    def decode(item: object) -> PlainValue:
        try:
            return parse(_text(item))
        except LiteralError as error:
            raise _Misfit(error.message, error.hint) from None

    return decode


_DECODERS: Mapping[Scalar, Callable[[object], PlainValue]] = {
    Scalar.STRING: _text,
    Scalar.BLOB: _text,
    Scalar.BOOL: _bool,
    Scalar.F32: _float,
    Scalar.F64: _float,
    Scalar.DATE: _temporal(parse_date),
    Scalar.DATETIME: _temporal(parse_datetime),
}


def _inferred(name: str, item: object, mode: IntegerMode) -> PlainValue:
    """Decode a parameter the query does not declare: accepted, with the type its JSON suggests."""
    decode = partial(_suggested, mode=mode)
    try:
        if isinstance(item, list | tuple):
            return tuple(_at(at, decode, element) for at, element in enumerate(item))
        return decode(item)
    except _Misfit as problem:
        raise ParameterError(f"parameter '{name}': {problem}", parameter=name, hint=problem.hint) from None


def _suggested(item: object, mode: IntegerMode) -> PlainValue:
    if item is None or isinstance(item, bool):
        return item
    if isinstance(item, str):
        return _text(item)
    if isinstance(item, int):
        low, high = INTEGER_BOUNDS[Scalar.I64]
        exact = low <= item <= high or mode is IntegerMode.JAVASCRIPT
        return _integer(Scalar.I64, item, mode) if exact else _float(item)
    if isinstance(item, float):
        return _float(item)
    raise _Misfit(
        f"{_json_kind(item)} has no parameter type, and the query does not declare one", "pass a scalar or an array"
    )


def _json_kind(item: object) -> str:
    if item is None:
        return "null"
    if isinstance(item, bool):
        return "a boolean"
    for kind, name in (
        (int | float, "a number"),
        (str, "a string"),
        (list | tuple, "an array"),
        (Mapping, "an object"),
    ):
        if isinstance(item, kind):
            return name
    return f"a Python {type(item).__name__}"


def _clip(text: str) -> str:
    return text if len(text) <= 40 else text[:39] + "…"  # noqa: PLR2004 - what fits a line of an error
