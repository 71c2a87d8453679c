"""The columns of a graph in the types of Spark, and conditions on them: `[["age", ">", 35], ["name", "=", "ann"]]`.

| property      | Spark          |                                            |
|---------------|----------------|--------------------------------------------|
| String, enum  | string         | also `id`, and of an edge `src` and `dst`  |
| Bool          | boolean        |                                            |
| I32, I64      | int, bigint    |                                            |
| U32, U64      | bigint, decimal(20,0) | Spark has no unsigned integers      |
| F32, F64      | float, double  |                                            |
| Date          | date           |                                            |
| DateTime      | timestamp      | an instant, exact to milliseconds          |
| Blob          | binary         |                                            |
| [T], Vector   | array          |                                            |
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.types as pt
from pyspark.sql import types as spark_types

from omnigraph.core.values import NUMERIC, TEMPORAL, ConversionError, Scalar, scalar_value, to_float
from omnigraph.errors import ParameterError
from omnigraph.formats.writers import with_items
from omnigraph.lang.ir import Operator
from omnigraph.lang.types import Type
from omnigraph.storage.columns import arrow_type
from omnigraph.storage.predicates import AllOf, Predicate, comparison

_SPARK: dict[Scalar, spark_types.DataType] = {
    Scalar.STRING: spark_types.StringType(),
    Scalar.BOOL: spark_types.BooleanType(),
    Scalar.I32: spark_types.IntegerType(),
    Scalar.I64: spark_types.LongType(),
    Scalar.U32: spark_types.LongType(),
    Scalar.U64: spark_types.DecimalType(20, 0),
    Scalar.F32: spark_types.FloatType(),
    Scalar.F64: spark_types.DoubleType(),
    Scalar.DATE: spark_types.DateType(),
    Scalar.DATETIME: spark_types.TimestampType(),
}
_SCALARS = {arrow_type(Type(scalar)): scalar for scalar in Scalar if scalar not in (Scalar.BLOB, Scalar.VECTOR)}
_OPERATORS = {operator.value: operator for operator in Operator} | {"==": Operator.EQ}
_EXAMPLE = 'write [["age", ">", 35]]'
_LENGTH = 3


def spark_schema(stored: pa.Schema, names: Sequence[str]) -> spark_types.StructType:
    """Return columns of a table, a Blob as its bytes, in the types of Spark."""
    fields = [stored.field(name) for name in names]
    return spark_types.StructType(
        [spark_types.StructField(field.name, _spark_type(field.type), field.nullable) for field in fields]
    )


def _spark_type(type_: pa.DataType) -> spark_types.DataType:
    if pt.is_large_binary(type_):
        return spark_types.BinaryType()
    if pt.is_list(type_) or pt.is_fixed_size_list(type_):
        return spark_types.ArrayType(_spark_type(type_.value_type))
    return _SPARK[_SCALARS[type_]]


def converted(column: pa.Array, target: pa.DataType) -> pa.Array:
    """Convert a column to the Arrow type that Spark expects."""
    if pt.is_list(target):
        return with_items(column, converted(column.flatten(), target.value_type)).cast(target)
    if pt.is_date64(column.type):
        return column.view(pa.int64()).view(pa.timestamp("ms", "UTC")).cast(target)
    return column.cast(target)


# Conditions ----------------------------------------------------------------------------------------


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
    scalar = _SCALARS.get(stored.field(column).type)
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
