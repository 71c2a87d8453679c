"""The data source `omnigraph` of Spark: a type of a graph as a DataFrame, and a DataFrame loaded into a type.

    register(spark)
    people = spark.read.format("omnigraph").option("graph", uri).option("type", "Person").load()
    people.write.format("omnigraph").option("graph", other).option("type", "Person").mode("append").save()

Reading: `branch` or `snapshot`, a commit, name the state; it is resolved once, at `load()`, and stays the same for each
use of the DataFrame. `columns`, separated by commas, and `where`, conditions such as `[["age", ">", 35]]`, restrict the
data that is read. Spark itself passes no columns to such a source. It would pass comparisons, but version 4.3.0 then
applies those of one use of a DataFrame to every other.

Writing: `branch` and `actor`. Mode append is a load in mode append, mode overwrite replaces the type. Executors only
write the rows to files; the driver loads them with all checks, in one commit. The columns are those of a load of
Parquet.

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
import secrets
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt
from lance.blob import BlobType
from pyspark.sql import types as spark_types
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema

from omnigraph.api.options import Engine, LoadMode
from omnigraph.api.results import TableVersion
from omnigraph.commit.store import Store
from omnigraph.core.location import Location
from omnigraph.core.refs import MAIN
from omnigraph.core.values import NUMERIC, TEMPORAL, ConversionError, Scalar, scalar_value, to_float
from omnigraph.errors import ExportTypeError, GraphNotFoundError, InputColumnsError, ParameterError, UnsupportedUriError
from omnigraph.formats.files import written
from omnigraph.formats.sources import discover
from omnigraph.formats.writers import with_items
from omnigraph.history.resolve import state_to_read
from omnigraph.ingest.load import LoadSpec, load
from omnigraph.ingest.scan import Fragments, column_names, groups, in_any_order
from omnigraph.lang.ir import Operator
from omnigraph.lang.source import did_you_mean
from omnigraph.lang.types import Type
from omnigraph.manifest.publisher import Manifest
from omnigraph.spark.session import make_active, ship_package
from omnigraph.storage.columns import arrow_type
from omnigraph.storage.objects import ObjectStore
from omnigraph.storage.predicates import AllOf, Predicate, comparison
from omnigraph.storage.stage import TableStorage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
_WHERE_EXAMPLE = 'write [["age", ">", 35]]'
_CONDITION_LENGTH = 3


def register(spark: SparkSession) -> None:
    """Register the format `omnigraph` with a session."""
    # First: the source is a class of this package, and executors unpickle it.
    ship_package(spark)
    spark.dataSource.register(OmnigraphSource)
    # A write looks up its source in the active session of its thread, which need not be the one of `spark`.
    make_active(spark)


# Reading -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PinnedTable:
    """The version of a table that a DataFrame reads."""

    graph: Location
    table: TableVersion


class OmnigraphSource(DataSource):
    """A type of a graph."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._pinned: PinnedTable | None = None

    @classmethod
    def name(cls) -> str:
        return "omnigraph"

    def schema(self) -> spark_types.StructType:
        """Return the columns. Spark keeps this object, so that all later steps see the version pinned here."""
        pinned = self._pin()
        tables = TableStorage(pinned.graph)
        stored = tables.open(pinned.table).schema
        fields = [stored.field(name) for name in self._columns(column_names(tables, pinned.table))]
        return spark_types.StructType(
            [spark_types.StructField(field.name, _spark_type(field.type), field.nullable) for field in fields]
        )

    def reader(self, schema: spark_types.StructType) -> DataSourceReader:
        pinned = self._pin()
        stored = TableStorage(pinned.graph).open(pinned.table).schema
        return TypeReader(pinned, schema, where_predicate(self.options.get("where", "[]"), stored))

    def writer(self, schema: spark_types.StructType, overwrite: bool) -> DataSourceArrowWriter:  # noqa: FBT001 - so Spark calls it
        graph, type_name = self._address()
        mode = LoadMode.OVERWRITE if overwrite else LoadMode.APPEND
        return TypeWriter(LoadTarget(graph, type_name, mode, self._branch, self.options.get("actor")), schema)

    def _pin(self) -> PinnedTable:
        if self._pinned is None:
            graph, type_name = self._address()
            manifest, snapshot = Manifest(graph), self.options.get("snapshot")
            # Once for each DataFrame: Spark calls `schema` and `reader` at different times, and a commit may come in
            # between.
            state = state_to_read(manifest, self.options.get("branch", MAIN), snapshot)
            tables = [entry.table for entry in state.snapshot.entries.values()]
            self._pinned = PinnedTable(graph, _table_of(tables, type_name))
        return self._pinned

    @property
    def _branch(self) -> str | None:
        name = self.options.get("branch")
        return None if name == MAIN else name

    def _address(self) -> tuple[Location, str]:
        graph, type_name = self.options.get("graph"), self.options.get("type")
        if not graph:
            raise UnsupportedUriError("no graph given", uri="", hint='add .option("graph", ...)')
        if not type_name:
            raise ExportTypeError("no type given", type_name="", hint='add .option("type", ...)')
        return Location.parse(graph), type_name

    def _columns(self, names: list[str]) -> list[str]:
        wanted = [name.strip() for name in self.options.get("columns", "").split(",") if name.strip()]
        for name in wanted:
            if name not in names:
                message = f"{self.options['type']} has no column '{name}'"
                raise InputColumnsError(message, path=None, columns=names, hint=did_you_mean(name, names))
        return wanted or names


def _table_of(tables: Sequence[TableVersion], type_name: str) -> TableVersion:
    """Find a type by name, or as `node:Name` or `edge:Name`; if two types share the name, the node."""
    keys = (f"node:{type_name}", f"edge:{type_name}", type_name)
    found = {table.key: table for table in tables}
    for key in keys:
        if key in found:
            return found[key]
    hint = did_you_mean(type_name, [key.partition(":")[2] for key in found])
    raise ExportTypeError(f"unknown type '{type_name}'", type_name=type_name, hint=hint)


def _spark_type(type_: pa.DataType) -> spark_types.DataType:
    if isinstance(type_, BlobType):
        return spark_types.BinaryType()
    if pt.is_list(type_) or pt.is_fixed_size_list(type_):
        return spark_types.ArrayType(_spark_type(type_.value_type))
    return _SPARK[_SCALARS[type_]]


@dataclass(frozen=True, slots=True)
class FragmentPartition(InputPartition):
    """Some fragments of the pinned table, for one task; an empty table has one partition without fragments."""

    fragments: Fragments


class TypeReader(DataSourceReader):
    """Reads a type, some fragments in each task."""

    def __init__(self, pinned: PinnedTable, schema: spark_types.StructType, predicate: Predicate | None) -> None:
        self.pinned = pinned
        self.schema = schema
        self.predicate = predicate

    def partitions(self) -> Sequence[FragmentPartition]:
        found = groups(TableStorage(self.pinned.graph), self.pinned.table)
        # Without any, Spark would call `read` with a partition of its own making.
        return [FragmentPartition(group) for group in found] or [FragmentPartition(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, FragmentPartition)
        target = to_arrow_schema(self.schema, timezone="UTC")
        for rows in self._rows(partition.fragments):
            arrays = [_converted(rows[field.name].combine_chunks(), field.type) for field in target]
            yield pa.RecordBatch.from_arrays(arrays, schema=target)

    def _rows(self, fragments: Fragments) -> Iterator[pa.Table]:
        if not fragments:
            return iter(())
        tables = TableStorage(self.pinned.graph)
        return in_any_order(tables, self.pinned.table, self.schema.fieldNames(), fragments, self.predicate)


def _converted(column: pa.Array, target: pa.DataType) -> pa.Array:
    """Convert a column to the Arrow type that Spark expects."""
    if pt.is_list(target):
        return with_items(column, _converted(column.flatten(), target.value_type)).cast(target)
    if pt.is_date64(column.type):
        return column.view(pa.int64()).view(pa.timestamp("ms", "UTC")).cast(target)
    return column.cast(target)


# Writing -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LoadTarget:
    """The type to load rows into, and the mode."""

    graph: Location
    type_name: str
    mode: LoadMode
    branch: str | None
    actor: str | None


@dataclass(frozen=True, slots=True)
class WrittenFile(WriterCommitMessage):
    """A file that one task wrote."""

    name: str


class TypeWriter(DataSourceArrowWriter):
    """Writes rows to files on the executors, and loads them on the driver."""

    def __init__(self, target: LoadTarget, schema: spark_types.StructType) -> None:
        self.target = target
        self.schema = schema
        self.directory = f"__tmp/input-{secrets.token_hex(8)}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenFile:
        """Write a file with a unique name, because a task may run twice."""
        name = f"{self.directory}/{uuid.uuid4().int}/{self.target.type_name.rpartition(':')[2]}.parquet"
        schema = to_arrow_schema(self.schema, timezone="UTC")
        with written(self.target.graph, name) as stream, pq.ParquetWriter(stream, schema) as writer:
            for batch in iterator:
                writer.write_table(pa.Table.from_batches([batch]).cast(schema))
        return WrittenFile(name)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Load the files of the successful tasks, in this process, which has no Spark session."""
        try:
            # Without rows an empty file is loaded all the same: an overwrite by nothing must empty the type.
            parts = [message for message in messages if isinstance(message, WrittenFile)] or [self.write(iter(()))]
            _load(self.target, [self.target.graph.child(part.name) for part in parts])
        finally:
            self._clean()

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002 - there may be more than these
        self._clean()

    def _clean(self) -> None:
        ObjectStore(self.target.graph).discard_below(self.directory)


def _load(target: LoadTarget, files: Sequence[str]) -> None:
    store = Store.at(target.graph)
    contract = store.schema_of(store.manifest.load())
    if contract is None:
        uri = target.graph.uri
        raise GraphNotFoundError(f"no graph at {uri}", uri=uri, hint="create one with `omnigraph init`")
    # Migrates an older format. `Graph` does it when it opens; here none was opened.
    store.manifest.load_to_write(None)
    mapping = {"files": {"*.parquet": {"type": target.type_name}}}
    splits = discover(files, contract.catalog, mapping=mapping)
    load(store, LoadSpec(splits, target.mode, target.branch, target.actor, Engine.LOCAL))


# Conditions ----------------------------------------------------------------------------------------


def where_predicate(text: str, stored: pa.Schema) -> Predicate | None:
    """Read the conditions of `where`; None if there are none.

    They are JSON: `[["age", ">", 35], ["name", "=", "ann"]]`; all must hold, and null satisfies none. The operators are
    `=`, `!=`, `<`, `<=`, `>` and `>=`. Values are written as in a load of JSON, dates as text.
    """
    try:
        document = json.loads(text)
    except ValueError as error:
        raise _bad_where(f"not JSON: {error}") from None
    if not isinstance(document, list):
        raise _bad_where("expected a list")
    found = tuple(_condition(one, stored) for one in document)
    return AllOf(found) if found else None


def _condition(one: Any, stored: pa.Schema) -> Predicate:
    if not isinstance(one, list) or len(one) != _CONDITION_LENGTH or one[0] not in stored.names:
        raise _bad_where(f"{json.dumps(one)} is not a column, an operator and a value")
    column, word, value = one
    scalar = _SCALARS.get(stored.field(column).type)
    operator = _OPERATORS.get(str(word))
    if scalar is None or operator in (None, Operator.CONTAINS, Operator.STARTS_WITH):
        raise _bad_where(f"'{column}' cannot be compared with {word!r}")
    return comparison(column, Type(scalar), operator, _operand(scalar, value))


def _operand(scalar: Scalar, value: Any) -> Any:
    if scalar in TEMPORAL and not isinstance(value, str):
        raise _bad_where(f"{json.dumps(value)} is not a {scalar}")
    try:
        if scalar not in NUMERIC:
            return scalar_value(scalar, value)
        to_float(Scalar.F64, value)
    except ConversionError as error:
        raise _bad_where(str(error)) from None
    return value  # not converted: a column of integers may be compared with a fraction


def _bad_where(why: str) -> ParameterError:
    return ParameterError(f"`where` cannot be used: {why}", parameter="where", hint=_WHERE_EXAMPLE)
