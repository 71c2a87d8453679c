"""The rows of a pipeline on Spark: any format that Spark reads, expressions and queries of its SQL."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import functions
from pyspark.sql import types as spark_types
from pyspark.sql.pandas.types import to_arrow_schema

from omnigraph.api.pipelines import ColumnEntry, SourceEntry, TypeEntry, parts_of
from omnigraph.core.location import Location
from omnigraph.errors import PipelineSourceError
from omnigraph.formats.batch import Declared
from omnigraph.formats.dialect import CsvDialect
from omnigraph.formats.files import File
from omnigraph.formats.fitting import (
    PROBLEM,
    TypeRows,
    chosen_columns,
    fit,
    keys_of,
    needs_fitting,
    no_column,
    target_type,
)
from omnigraph.formats.plain import plain_format
from omnigraph.history.resolve import no_commit, resolve
from omnigraph.manifest.publisher import Manifest
from omnigraph.spark.columns import converted, spark_schema
from omnigraph.spark.datasource import register
from omnigraph.spark.jobs import SparkJobs
from omnigraph.spark.reader import read_frame
from omnigraph.spark.scans import ScanRequest
from omnigraph.spark.session import spark_session
from omnigraph.spark.streams import latest
from omnigraph.spark.worker import shown_plainly
from omnigraph.storage.columns import arrow_type

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_BY, _CORRUPT = "__by", "_corrupt_record"
_SHOWN = 1000
_WHOLE_NUMBER = r"^[+-]?[0-9]{1,18}$"
Bound = int | float | str


class SparkRows:
    """Reads sources as DataFrames. What is counted is kept on the disks of Spark, so that nothing is read twice."""

    def __init__(self, address: Callable[[str], str], master: str | None, conf: Mapping[str, str]) -> None:
        self.spark = spark_session(master, dict(conf))
        self.jobs = SparkJobs(self.spark, operation="pipeline")
        self.address = address
        self.frames: dict[str, DataFrame] = {}
        self.kept: list[DataFrame] = []
        self.bad: list[dict[str, Any]] = []
        register(self.spark)

    def open(self, name: str, source: SourceEntry, files: Sequence[File], since: str | None) -> str | None:
        version = None
        if source.sql is not None:
            frame = self.jobs.call("read", lambda: self.spark.sql(str(source.sql)))
        elif source.format == "omnigraph":
            version, frame = self._graph(name, source, since)
        elif files:
            frame = self._files(name, source, files)
        else:
            reader = self.spark.read.format(str(source.format)).options(**source.options)
            paths = [self.address(path) for path in source.path or ()]
            frame = self.jobs.call("read", lambda: reader.load(paths) if paths else reader.load())
        self._keep(name, frame)
        return version

    def columns(self, name: str) -> list[str]:
        return list(self.frames[name].columns)

    def highest(self, name: str, column: str) -> Bound | None:
        frame = self.frames[name]
        if column not in frame.columns:
            raise no_column(name, column, frame.columns)
        values = self._comparable(frame, column)
        rows = self.jobs.run("watermark", frame.select(functions.max(values)).collect, 1)
        found = rows[0][0]
        return found if found is None or isinstance(found, Bound) else found.isoformat()

    def between(self, name: str, column: str, low: Bound | None, high: Bound | None) -> None:
        frame = self.frames[name]
        values, kind = self._comparable(frame, column), frame.schema[column].dataType
        is_text = isinstance(kind, spark_types.StringType)
        for bound, keep in ((low, values.__gt__), (high, values.__le__)):
            if bound is not None:
                literal = functions.lit(bound)
                frame = frame.where(keep(literal if is_text else literal.cast(kind)))
        self._keep(name, frame)

    def count(self, name: str) -> int:
        return int(self.jobs.run("count", self.frames[name].count, 1))

    def rows(self, entry: TypeEntry, source: SourceEntry, declared: Declared) -> TypeRows:
        frame = self.frames[entry.source]
        if entry.where is not None:
            frame = frame.where(entry.where)
        chosen = chosen_columns(entry, frame.columns, declared)
        made = [_value(entry, frame, one).alias(name) for name, one in chosen.items()]
        if entry.latest_by is not None:
            made.append(self._comparable(frame, entry.latest_by).alias(_BY))
        found = frame.select(*made)
        if entry.latest_by is not None:
            found = latest(found, keys_of(declared), _BY).drop(_BY)
        if entry.distinct:
            found = found.distinct()
        return self._fitted(found, entry, source, declared)

    def joined(self, parts: Sequence[Any]) -> Any:
        first, *others = parts
        for other in others:
            first = first.unionByName(other, allowMissingColumns=True)
        return first

    def bad_lines(self) -> list[dict[str, Any]]:
        return self.bad

    def close(self) -> None:
        for frame in self.kept:
            frame.unpersist()

    def _keep(self, name: str, frame: DataFrame) -> None:
        kept = frame.persist(StorageLevel.DISK_ONLY)
        self.kept.append(kept)
        self.frames[name] = kept
        kept.createOrReplaceTempView(name)

    def _graph(self, name: str, source: SourceEntry, since: str | None) -> tuple[str, DataFrame]:
        """Read a type of a graph: all rows, or those that were inserted or updated since a commit."""
        graph = Location.parse(self.address(str(source.options.get("graph", ""))))
        type_name, branch = str(source.options.get("type", "")), str(source.options.get("branch", "main"))
        head = resolve(Manifest(graph), branch, no_commit).head
        assert head, "a graph begins with a commit"
        if since is None:
            return head.commit_id, read_frame(ScanRequest(graph, type_name, snapshot=head.commit_id), self.spark)
        changed = read_frame(ScanRequest(graph, type_name, since=since, until=head.commit_id), self.spark)
        deleted = self.jobs.run("deletes", changed.where("operation = 'delete'").count, 3)
        if deleted and source.options.get("deletes") != "ignore":
            message = f"the source '{name}' has lost {deleted} rows since commit {since}, and a load removes none"
            hint = "delete them from the target too, then set the option `deletes: ignore`"
            raise PipelineSourceError(message, source=name, hint=hint)
        return head.commit_id, changed.where("operation != 'delete'").select("id", "after.*")

    def _files(self, name: str, source: SourceEntry, files: Sequence[File]) -> DataFrame:
        paths = [one.uri.replace("s3://", "s3a://", 1) if not one.is_local else one.uri for one in files]
        chosen = source.format or plain_format(paths[0])
        if chosen == "parquet":
            return self.jobs.call("read", lambda: self.spark.read.parquet(*paths))
        if chosen == "jsonl":
            reader = self.spark.read.option("columnNameOfCorruptRecord", _CORRUPT)
            return self._without_corrupt(name, self.jobs.run("read", lambda: reader.json(paths), 1))
        return self._without_corrupt(name, self._csv(source, paths))

    def _csv(self, source: SourceEntry, paths: list[str]) -> DataFrame:
        """Read CSV as texts: what they spell is for the types of the graph to say."""
        dialect = CsvDialect.of(source.csv)
        options: dict[str, Any] = {
            "header": dialect.header,
            "sep": dialect.delimiter,
            "quote": dialect.quote,
            "escape": dialect.quote,
            "multiLine": True,
            "ignoreLeadingWhiteSpace": dialect.trim,
            "ignoreTrailingWhiteSpace": dialect.trim,
            "columnNameOfCorruptRecord": _CORRUPT,
            "enforceSchema": False,
        }
        names = list(dialect.names) or self.jobs.run(
            "read", lambda: self.spark.read.options(**options).csv(paths[0]).columns, 1
        )
        fields = [spark_types.StructField(one, spark_types.StringType()) for one in [*names, _CORRUPT]]
        schema = spark_types.StructType(fields)
        frame = self.jobs.call("read", lambda: self.spark.read.options(**options).schema(schema).csv(paths))
        for null in dialect.nulls:
            frame = frame.select(
                *[functions.nullif(functions.col(one), functions.lit(null)).alias(one) for one in frame.columns]
            )
        return frame

    def _without_corrupt(self, name: str, frame: DataFrame) -> DataFrame:
        if _CORRUPT not in frame.columns:
            return frame
        # Spark refuses to read the column of corrupt records alone, unless the rows are kept.
        kept = frame.persist(StorageLevel.DISK_ONLY)
        self.kept.append(kept)
        corrupt = kept.where(functions.col(_CORRUPT).isNotNull()).select(_CORRUPT).limit(_SHOWN)
        for row in self.jobs.run("read", corrupt.collect, 1):
            message = f"not a record: {row[0]!r:.200}"
            self.bad.append(
                {"rule": "shape", "type": None, "source": name, "file": None, "line": None, "message": message}
            )
        return kept.where(functions.col(_CORRUPT).isNull()).drop(_CORRUPT)

    def _comparable(self, frame: DataFrame, column: str) -> Column:
        """Return texts that are whole numbers as numbers: as texts, 9 would come after 10."""
        values = functions.col(column)
        if not isinstance(frame.select(values).schema[0].dataType, spark_types.StringType):
            return values
        whole = functions.min(values.rlike(_WHOLE_NUMBER))
        numbers = self.jobs.run("watermark", frame.select(whole).collect, 1)[0][0]
        return values.cast("bigint") if numbers else values

    def _fitted(self, frame: DataFrame, entry: TypeEntry, source: SourceEntry, declared: Declared) -> TypeRows:
        columns = to_arrow_schema(frame.schema, timezone="UTC")
        types = {name: target_type(declared, name) for name in columns.names}
        wanted = {
            field.name: arrow_type(type_)
            for field in columns
            if (type_ := types[field.name]) is not None and needs_fitting(field.type, type_)
        }
        if not wanted:
            kept = self._kept(frame)
            return TypeRows(kept, int(self.jobs.run("count", kept.count, 1)))
        stored = pa.schema([pa.field(name, type_) for name, type_ in wanted.items()])
        made = {field.name: field for field in spark_schema(stored, list(wanted)).fields}
        target = [made.get(field.name, field) for field in frame.schema.fields]
        target = [spark_types.StructField(field.name, field.dataType) for field in target]
        schema = spark_types.StructType([*target, spark_types.StructField(PROBLEM, spark_types.StringType())])
        work = self.jobs.work(_Fitting(declared, CsvDialect.of(source.csv), schema))
        kept = self._kept(frame.mapInArrow(work, schema))
        count = int(self.jobs.run("count", kept.count, 1))
        bad = kept.where(functions.col(PROBLEM).isNotNull())
        found = self.jobs.run("count", bad.select(PROBLEM).limit(_SHOWN).collect, 1)
        problems = [{**json.loads(row[0]), "source": entry.source} for row in found]
        number = int(self.jobs.run("count", bad.count, 1)) if len(problems) == _SHOWN else len(problems)
        return TypeRows(kept.where(functions.col(PROBLEM).isNull()).drop(PROBLEM), count, problems, number)

    def _kept(self, frame: DataFrame) -> DataFrame:
        kept = frame.persist(StorageLevel.DISK_ONLY)
        self.kept.append(kept)
        return kept


@dataclass(frozen=True, slots=True)
class _Fitting:
    """Fits batches of rows to a type, in a task."""

    declared: Declared
    dialect: CsvDialect
    schema: spark_types.StructType

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        target = to_arrow_schema(self.schema, timezone="UTC")
        with shown_plainly():
            for batch in batches:
                rows, problems = fit(pa.table(batch), self.declared, self.dialect)
                columns = [converted(_whole(rows[name]), target.field(name).type) for name in rows.column_names]
                yield pa.RecordBatch.from_arrays([*columns, problems], schema=target)


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks()


def _value(entry: TypeEntry, frame: DataFrame, one: ColumnEntry) -> Column:
    if one.sql is not None:
        return functions.expr(one.sql)
    if one.column is not None:
        return _column(entry, frame, one.column)
    if one.text is None:
        return functions.lit(one.value)
    parts = []
    for text, column in parts_of(one.text):
        parts += [functions.lit(text)] if text else []
        parts += [_column(entry, frame, column).cast("string")] if column else []
    return functions.concat(*parts) if parts else functions.lit("")


def _column(entry: TypeEntry, frame: DataFrame, name: str) -> Column:
    if name in frame.columns:
        return functions.col(f"`{name}`")
    if name.partition(".")[0] in frame.columns:
        return functions.col(name)
    raise no_column(entry.source, name, frame.columns)
