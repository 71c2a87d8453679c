"""Conditions on the rows of a table, written as JSON: `[["age", ">", 35], ["name", "=", "ann"]]`; all must hold.

The operators are `=`, `!=`, `<`, `<=`, `>` and `>=`; a column that is null fulfils none. A value is written as a load
takes it from JSON, a date as text.
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from omnigraph.core.values import Scalar, parse_date, parse_datetime
from omnigraph.errors import LiteralError, ParameterError
from omnigraph.lang.ir import Operator
from omnigraph.lang.types import Type
from omnigraph.storage.columns import arrow_type
from omnigraph.storage.predicates import AllOf, Predicate, comparison

SCALARS = {arrow_type(Type(scalar)): scalar for scalar in Scalar if scalar not in (Scalar.BLOB, Scalar.VECTOR)}
"""What a column of a table holds, by its type."""

_OPERATORS = {operator.value: operator for operator in Operator} | {"==": Operator.EQ}
_NUMBERS = (int, float)
_TAKEN: dict[Scalar, tuple[type, ...]] = {Scalar.STRING: (str,), Scalar.BOOL: (bool,)}
_EXAMPLE = 'write [["age", ">", 35]]'
_LENGTH = 3


def conditions(text: str, stored: pa.Schema) -> Predicate | None:
    """Read conditions on the columns of a table; None if there are none."""
    try:
        document = json.loads(text)
    except ValueError as error:
        raise _wrong(f"they are no JSON: {error}") from None
    if not isinstance(document, list):
        raise _wrong("they must be a list")
    found = tuple(_condition(one, stored) for one in document)
    return AllOf(found) if found else None


def _condition(one: Any, stored: pa.Schema) -> Predicate:
    if not isinstance(one, list) or len(one) != _LENGTH or one[0] not in stored.names:
        raise _wrong(f"{json.dumps(one)} is no column, operator and value")
    column, word, value = one
    scalar = SCALARS.get(stored.field(column).type)
    operator = _OPERATORS.get(word)
    if scalar is None or operator in (None, Operator.CONTAINS, Operator.STARTS_WITH):
        raise _wrong(f"'{column}' cannot be compared with {word!r}")
    return comparison(column, Type(scalar), operator, _value(scalar, value))


def _value(scalar: Scalar, value: Any) -> Any:
    try:
        if scalar is Scalar.DATE and isinstance(value, str):
            return parse_date(value)
        if scalar is Scalar.DATETIME and isinstance(value, str):
            return parse_datetime(value)
    except LiteralError as error:
        raise _wrong(error.message) from None
    taken = _TAKEN.get(scalar, _NUMBERS)
    if scalar in (Scalar.DATE, Scalar.DATETIME) or type(value) not in taken:  # a bool is no number
        raise _wrong(f"{json.dumps(value)} is no {scalar}")
    return value


def _wrong(why: str) -> ParameterError:
    return ParameterError(f"the conditions cannot be used: {why}", parameter="where", hint=_EXAMPLE)
