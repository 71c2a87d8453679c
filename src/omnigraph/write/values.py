"""Values of a mutation at run time: a parameter or the clock, converted to what its property stores."""

from __future__ import annotations

import base64
import binascii
import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from omnigraph.lang import ir
from omnigraph.lang.ir import PlainValue
from omnigraph.lang.types import FLOATS, INTEGER_BOUNDS, Scalar, Type

_BASE64 = "base64:"
_ELEMENT_OF_VECTOR = Type(Scalar.F32)


class MisfitError(ValueError):
    """Why a value does not fit; it becomes a ValueRejectedError where the property is known."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class RequestValues:
    """What one request brings: its parameters and its time, which is the same wherever it says `now()`."""

    parameters: Mapping[str, PlainValue]
    time: dt.datetime

    def value(self, value: ir.Value) -> PlainValue:
        match value:
            case ir.Constant(constant):
                return constant
            case ir.ParameterRef(name):
                return self.parameters[name]
            case ir.RequestTime():
                return self.time

    def stored(self, value: ir.Value, type_: Type) -> Any:
        """Return what a property of the type stores; a constant was converted when the query was compiled."""
        return value.value if isinstance(value, ir.Constant) else stored(type_, self.value(value))


def stored(type_: Type, value: PlainValue) -> Any:
    """Convert a value to what a property of the type stores, or raise MisfitError."""
    if value is None:
        if not type_.nullable:
            raise MisfitError("it is required, and the value is null", "give it a value")
        return None
    if isinstance(value, tuple):
        element = _ELEMENT_OF_VECTOR if type_.is_vector else type_.element
        return [None if item is None else _scalar(element.scalar, item) for item in value]
    return _scalar(type_.scalar, value)


def _scalar(scalar: Scalar, value: PlainValue) -> Any:
    if scalar in INTEGER_BOUNDS:
        assert isinstance(value, int)
        low, high = INTEGER_BOUNDS[scalar]
        if not low <= value <= high:
            raise MisfitError(f"{value} exceeds the {scalar} range", f"it holds {low} to {high}")
    elif scalar in FLOATS:
        assert isinstance(value, int | float)
        return _float(scalar, value)
    elif scalar is Scalar.BLOB:
        return _blob(str(value))
    return value


def _float(scalar: Scalar, value: float) -> float:
    with np.errstate(over="ignore"):
        if not np.isfinite(np.float32(value) if scalar is Scalar.F32 else np.float64(value)):
            raise MisfitError(f"{value} exceeds the {scalar} range")
    return float(value)


def _blob(text: str) -> bytes:
    if not text.startswith(_BASE64):
        raise MisfitError("an external blob is not allowed", f"pass its content as `{_BASE64}...`")
    try:
        return base64.b64decode(text.removeprefix(_BASE64), validate=True)
    except (binascii.Error, ValueError):
        raise MisfitError("invalid base64 blob data", "use the standard alphabet, padded") from None
