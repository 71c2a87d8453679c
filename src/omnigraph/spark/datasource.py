"""The data source `omnigraph` of Spark: a type of a graph as a DataFrame, and a DataFrame loaded into a type.

    register(spark)
    people = spark.read.format("omnigraph").option("graph", uri).option("type", "Person").load()
    people.write.format("omnigraph").option("graph", other).option("type", "Person").mode("append").save()

Reading: `branch` or `snapshot` name the state; it is resolved once, at `load()`, and stays the same for each use of the
DataFrame. `since` and `until` read the changes between two states instead. `columns`, separated by commas, `where`,
conditions such as `[["age", ">", 35]]`, and `limit` restrict the data that is read. Spark itself passes no columns to
such a source. It would pass comparisons, but version 4.3.0 then applies those of one use of a DataFrame to every other.

Writing: `branch`, `actor`, `message`, `mode` (merge, with the save mode append), and `columns`, names of columns as
JSON. See `writer.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import types as spark_types
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
)

from omnigraph.api.options import LoadMode, message_option
from omnigraph.core.location import Location
from omnigraph.core.refs import MAIN
from omnigraph.errors import ExportTypeError, ParameterError, UnsupportedUriError
from omnigraph.formats.tables import Columns
from omnigraph.spark.batches import BatchWriter
from omnigraph.spark.package import ship_package
from omnigraph.spark.scans import ChangeScan, ScanRequest, TableScan
from omnigraph.spark.session import make_active
from omnigraph.spark.source import ChangeStream
from omnigraph.spark.worker import shown_plainly
from omnigraph.spark.writer import WriteTarget, type_writer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OF_A_TABLE = "option."  # Spark passes the options of CREATE TABLE twice, once with this prefix
_VIEW = "CREATE TEMPORARY VIEW people USING omnigraph OPTIONS (graph '...', type 'Person')"


def register(spark: SparkSession) -> None:
    """Register the format `omnigraph` with a session."""
    # First: the source is a class of this package, and executors unpickle it.
    ship_package(spark)
    spark.dataSource.register(OmnigraphSource)
    # A write looks up its source in the active session of its thread, which need not be the one of `spark`.
    make_active(spark)


class OmnigraphSource(DataSource):
    """A type of a graph."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._scan: TableScan | ChangeScan | None = None

    @classmethod
    def name(cls) -> str:
        return "omnigraph"

    def schema(self) -> spark_types.StructType:
        """Return the columns. Spark keeps this object, so that all later steps see the version pinned here."""
        with shown_plainly():
            self._refuse_table()
            return self._pinned().schema()

    def reader(self, schema: spark_types.StructType) -> DataSourceReader:
        with shown_plainly():
            return ScanReader(self._pinned(), schema)

    def writer(self, schema: spark_types.StructType, overwrite: bool) -> DataSourceArrowWriter:  # noqa: FBT001 - so Spark calls it
        with shown_plainly():
            graph, type_name = self._address()
            mode = _load_mode(LoadMode.OVERWRITE if overwrite else LoadMode.APPEND, self.options.get("mode"))
            columns = _renamed(self.options.get("columns"))
            branch = self.options.get("branch", MAIN)
            on = None if branch == MAIN else branch
            actor, message = self.options.get("actor"), message_option(self.options.get("message"))
            return type_writer(WriteTarget(graph, type_name, mode, on, actor, columns, message), schema)

    def streamReader(self, schema: spark_types.StructType) -> DataSourceStreamReader:  # noqa: N802 - so Spark calls it
        with shown_plainly():
            if "since" not in self.options:
                message = "a stream reads the changes of a type, and there is no `since`"
                raise ParameterError(message, parameter="since", hint='name a state, or "" to begin with all rows')
            most = _number("maxCommits", self.options.get("maxCommits"), least=1)
            return ChangeStream(self._request(), schema, most)

    def streamWriter(self, schema: spark_types.StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: FBT001, N802
        with shown_plainly():
            graph, type_name = self._address()
            if overwrite:
                message = "a stream adds to a type, and its output mode is 'complete'"
                raise ParameterError(message, parameter="outputMode", hint="use the output mode append or update")
            return BatchWriter.of(graph, type_name, schema, self.options)

    def _pinned(self) -> TableScan | ChangeScan:
        # Once for each DataFrame: Spark calls `schema` and `reader` at different times, and a commit may come between.
        if self._scan is None:
            self._scan = self._request().pin()
        return self._scan

    def _request(self) -> ScanRequest:
        option = self.options.get
        graph, type_name = self._address()
        columns = [name.strip() for name in option("columns", "").split(",") if name.strip()]
        where, limit = option("where", "[]"), _number("limit", option("limit"))
        states = (option("branch", MAIN), option("snapshot"), option("since"), option("until"))
        return ScanRequest(graph, type_name, columns, () if where == "[]" else where, limit, *states)

    def _refuse_table(self) -> None:
        if any(name.startswith(_OF_A_TABLE) for name in self.options):
            message = "a graph cannot be a table of the catalog: Spark reads such a table without its options"
            raise ParameterError(message, parameter="graph", hint=f"make a view: {_VIEW}")

    def _address(self) -> tuple[Location, str]:
        graph, type_name = self.options.get("graph"), self.options.get("type")
        if not graph:
            hint = f'add .option("graph", ...), or in SQL {_VIEW}'
            raise UnsupportedUriError("no graph given", uri="", hint=hint)
        if not type_name:
            raise ExportTypeError("no type given", type_name="", hint='add .option("type", ...)')
        return Location.parse(graph), type_name


def _number(option: str, text: str | None, *, least: int = 0) -> int | None:
    if text is None:
        return None
    if not text.isdecimal() or int(text) < least:
        raise ParameterError(f"the {option} {text!r:.40} is no number", parameter=option, hint=f"give {least} or more")
    return int(text)


def _load_mode(saved: LoadMode, asked: str | None) -> LoadMode:
    """Combine the save mode, which has no word for a merge, with the option `mode`."""
    if asked is None or asked == saved:
        return saved
    if saved is LoadMode.APPEND and asked == LoadMode.MERGE:
        return LoadMode.MERGE
    message = f"the option mode={asked!r} and the save mode '{saved}' do not go together"
    raise ParameterError(message, parameter="mode", hint='to merge, write .mode("append").option("mode", "merge")')


def _renamed(text: str | None) -> Columns:
    """Read the mapping of columns, the member `columns` of a mapping of files."""
    try:
        found = json.loads(text or "{}")
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(isinstance(name, str | None) for name in found.values()):
        message = f"the option columns={text!r:.80} is no mapping of columns"
        raise ParameterError(message, parameter="columns", hint='write {"full_name": "name", "remark": null}')
    return found


@dataclass(frozen=True, slots=True)
class ScanPartition(InputPartition):
    """A part of a scan, for one task; a scan without parts has one partition of None."""

    part: Any


class ScanReader(DataSourceReader):
    """Reads a scan, a part in each task."""

    def __init__(self, scan: TableScan | ChangeScan, schema: spark_types.StructType) -> None:
        self.scan = scan
        self.schema = schema

    def partitions(self) -> Sequence[ScanPartition]:
        with shown_plainly():
            # Without any, Spark would call `read` with a partition of its own making.
            return [ScanPartition(part) for part in self.scan.parts()] or [ScanPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, ScanPartition)
        with shown_plainly():
            if partition.part is not None:
                yield from self.scan.batches(partition.part, self.schema)
