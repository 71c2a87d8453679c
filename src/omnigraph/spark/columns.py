"""The columns of a graph in the types of Spark.

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

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.types as pt
from pyspark.sql import types as spark_types

from omnigraph.core.values import Scalar
from omnigraph.formats.writers import with_items
from omnigraph.lang.types import Type
from omnigraph.storage.columns import arrow_type

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
SCALARS = {arrow_type(Type(scalar)): scalar for scalar in Scalar if scalar not in (Scalar.BLOB, Scalar.VECTOR)}


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
    return _SPARK[SCALARS[type_]]


def converted(column: pa.Array, target: pa.DataType) -> pa.Array:
    """Convert a column to the Arrow type that Spark expects."""
    if pt.is_list(target):
        return with_items(column, converted(column.flatten(), target.value_type)).cast(target)
    if pt.is_date64(column.type):
        return column.view(pa.int64()).view(pa.timestamp("ms", "UTC")).cast(target)
    return column.cast(target)
