"""Conditions that choose rows where they are read: `[["age", ">", 35], ["name", "=", "ann"]]`."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from omnigraph.core.values import NUMERIC, TEMPORAL, ConversionError, Scalar, scalar_value, to_float
from omnigraph.errors import ParameterError
from omnigraph.lang.ir import Operator
from omnigraph.lang.types import Type
from omnigraph.spark.columns import SCALARS
from omnigraph.storage.predicates import AllOf, Predicate, comparison

_OPERATORS = {operator.value: operator for operator in Operator} | {"==": Operator.EQ}
_EXAMPLE = 'write [["age", ">", 35]]'
_LENGTH = 3


def where_predicate(where: Any, stored: pa.Schema) -> Predicate | None:
    """Read conditions, or their text as JSON; None if there are none.

    All must hold, and null satisfies none. The operators are `=`, `!=`, `<`, `<=`, `>` and `>=`. Values are written as
    in a load of JSON, dates as text.
    """
    document = _document(where) if isinstance(where, str) else where
    if not isinstance(document, list | tuple):
        raise _bad_where("expected a list")
    found = tuple(_condition(one, stored) for one in document)
    return AllOf(found) if found else None


def _document(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise _bad_where(f"not JSON: {error}") from None


def _condition(one: Any, stored: pa.Schema) -> Predicate:
    if not isinstance(one, list | tuple) or len(one) != _LENGTH or one[0] not in stored.names:
        raise _bad_where(f"{one!r:.80} is not a column, an operator and a value")
    column, word, value = one
    scalar = SCALARS.get(stored.field(column).type)
    operator = _OPERATORS.get(str(word))
    if scalar is None or operator in (None, Operator.CONTAINS, Operator.STARTS_WITH):
        raise _bad_where(f"'{column}' cannot be compared with {word!r}")
    return comparison(column, Type(scalar), operator, _operand(scalar, value))


def _operand(scalar: Scalar, value: Any) -> Any:
    if scalar in TEMPORAL and not isinstance(value, str):
        raise _bad_where(f"{value!r:.80} is not a {scalar}")
    try:
        if scalar not in NUMERIC:
            return scalar_value(scalar, value)
        to_float(Scalar.F64, value)
    except ConversionError as error:
        raise _bad_where(str(error)) from None
    return value  # not converted: a column of integers may be compared with a fraction


def _bad_where(why: str) -> ParameterError:
    return ParameterError(f"`where` cannot be used: {why}", parameter="where", hint=_EXAMPLE)
