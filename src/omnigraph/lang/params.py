"""Query parameters: from JSON values to values of the declared types. Every front end decodes here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from functools import partial
from typing import Any, TypeVar

from omnigraph.core.values import (
    INTEGER_BOUNDS,
    ConversionError,
    Scalar,
    clipped,
    kind_of,
    to_bool,
    to_date,
    to_datetime,
    to_float,
    to_integer,
    to_text,
)
from omnigraph.errors import ParameterError
from omnigraph.lang.ir import PlainValue
from omnigraph.lang.source import did_you_mean
from omnigraph.lang.types import Type

_SAFE_INTEGER = 2**53 - 1
_MAX_I64 = 2**63 - 1
# Of the largest U64. Leading zeros do not count.
_MAX_DIGITS = 20

_T = TypeVar("_T")


class IntegerMode(Enum):
    """Whether JSON integers are exact. JavaScript's are not past 2**53 - 1, and must come as text there."""

    STANDARD = "standard"
    JAVASCRIPT = "javascript"


def decode_parameters(
    declared: Mapping[str, Type], given: object, mode: IntegerMode = IntegerMode.STANDARD
) -> dict[str, PlainValue]:
    """Decode a JSON object of parameters. Unknown ones are refused; a missing nullable one is null."""
    if given is None:
        given = {}
    if not isinstance(given, Mapping):
        raise ParameterError(f"parameters must be a JSON object, not {kind_of(given)}", parameter=None)
    if not all(isinstance(name, str) for name in given):
        raise ParameterError("the names of parameters must be strings", parameter=None)
    for name in given:
        # First, because a misspelt name is also a missing one, and the person typed the misspelt one.
        if name not in declared:
            hint = did_you_mean(name, declared) or _declares(declared)
            raise ParameterError(f"unknown parameter '{clipped(name)}'", parameter=name, hint=hint)
    return {name: _declared(name, declared, given, mode) for name in declared}


def _declares(declared: Mapping[str, Type]) -> str:
    names = ", ".join(f"${name}" for name in declared)
    return f"the query declares {names}" if names else "the query declares no parameters"


def _declared(name: str, declared: Mapping[str, Type], given: Mapping[str, Any], mode: IntegerMode) -> PlainValue:
    type_ = declared[name]
    if name not in given:
        if type_.nullable:
            return None
        raise ParameterError(f"parameter '{name}' not provided", parameter=name, hint=f"pass a {type_}")
    item = given[name]
    if item is None:
        if type_.nullable:
            return None
        message = f"parameter '{name}': null is not accepted for non-nullable parameter"
        raise ParameterError(message, parameter=name, hint=f"declare it as `{type_}?` to allow null")
    try:
        return _decoded(type_, item, mode)
    except ConversionError as problem:
        raise ParameterError(f"parameter '{name}': {problem}", parameter=name, hint=problem.hint) from None


def _decoded(type_: Type, item: object, mode: IntegerMode) -> PlainValue:
    if type_.is_vector:
        return _vector(type_, item)
    if type_.is_list:
        if not isinstance(item, list | tuple):
            raise ConversionError(f"expected an array for {type_}, got {kind_of(item)}")
        decode = partial(_decoded, type_.element, mode=mode)
        return tuple(_at(at, decode, element) for at, element in enumerate(item))
    if type_.scalar in INTEGER_BOUNDS:
        return _integer(type_.scalar, item, mode)
    return _DECODERS[type_.scalar](item)


def _vector(type_: Type, item: object) -> tuple[float, ...]:
    if not isinstance(item, list | tuple):
        raise ConversionError(f"expected an array of numbers for {type_}, got {kind_of(item)}")
    if len(item) != type_.dimension:
        raise ConversionError(f"expected {type_.dimension} values for {type_}, got {len(item)}")
    # As a stored vector: beyond F32 a number would become infinite, and every distance with it.
    return tuple(_at(at, partial(to_float, Scalar.F32), element) for at, element in enumerate(item))


def _at(position: int, decode: Callable[[object], _T], item: object) -> _T:
    """Decode an element; an error names its position."""
    try:
        return decode(item)
    except ConversionError as problem:
        raise ConversionError(f"element {position}: {problem}", problem.hint) from None


def _integer(scalar: Scalar, item: object, mode: IntegerMode) -> int:
    if isinstance(item, str):
        value = to_integer(scalar, _digits(scalar, item))
    elif mode is IntegerMode.JAVASCRIPT and isinstance(item, int) and abs(item) > _SAFE_INTEGER:
        raise ConversionError("the integer is not exact in JavaScript", 'pass it as text: "9007199254740993"')
    else:
        value = to_integer(scalar, item)
    if value > _MAX_I64:
        raise ConversionError("a U64 parameter must fit a signed 64-bit integer", "load larger values with `load`")
    return value


def _digits(scalar: Scalar, text: str) -> int:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()):
        raise ConversionError(f"expected an integer for {scalar}, got the text {clipped(text)!r}")
    if len(digits.lstrip("0")) > _MAX_DIGITS:  # Python refuses to read integers of more than 4,300 digits
        raise ConversionError(f"the value exceeds the {scalar} range")
    return int(text)


# For F32 too: a query may compare with more than the property holds.
_float = partial(to_float, Scalar.F64)


def _text(item: object) -> str:
    text = to_text(item)
    if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
        raise ConversionError("the text holds a lone surrogate, which is no character")
    return text


# A date comes as text only: a load takes days since 1970 as well, but JSON numbers are ambiguous in a query.
_DECODERS: Mapping[Scalar, Callable[[object], PlainValue]] = {
    Scalar.STRING: _text,
    Scalar.BLOB: _text,
    Scalar.BOOL: to_bool,
    Scalar.F32: _float,
    Scalar.F64: _float,
    Scalar.DATE: lambda item: to_date(_text(item)),
    Scalar.DATETIME: lambda item: to_datetime(_text(item)),
}
