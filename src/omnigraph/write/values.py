"""Values of a mutation at run time: parameters and the clock, converted to what properties store."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from omnigraph.core.values import ConversionError, Scalar, scalar_value
from omnigraph.lang import ir
from omnigraph.lang.ir import PlainValue
from omnigraph.lang.types import Type


@dataclass(frozen=True, slots=True)
class RequestValues:
    """The parameters and the time of one request. `now()` is the same everywhere in it."""

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
        """Return what a property of the type stores. Constants were converted at compile time."""
        return value.value if isinstance(value, ir.Constant) else stored(type_, self.value(value))


def stored(type_: Type, value: PlainValue) -> Any:
    """Convert a value to what a property of the type stores, or raise ConversionError."""
    if value is None:
        if not type_.nullable:
            raise ConversionError("it is required, and the value is null", "give it a value")
        return None
    if isinstance(value, tuple):
        element = Scalar.F32 if type_.is_vector else type_.scalar
        return [None if item is None else scalar_value(element, item) for item in value]
    return scalar_value(type_.scalar, value)
