"""Types of a graph as DataFrames: `mapInArrow` over the parts of a scan, with columns and conditions left to Lance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.types import StructType

from omnigraph.core.location import Location
from omnigraph.core.refs import MAIN
from omnigraph.history.resolve import state_to_read
from omnigraph.manifest.publisher import Manifest
from omnigraph.spark.jobs import SparkJobs
from omnigraph.spark.scans import ChangeScan, RejectScan, ScanRequest, TableScan
from omnigraph.spark.session import make_active, spark_session
from omnigraph.spark.worker import shown_plainly, take_credentials

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read_frame(request: ScanRequest, session: SparkSession | None = None) -> DataFrame:
    """Return a DataFrame of what a request names, pinned now and read when the DataFrame is used."""
    return _frame(request.pin(), session or spark_session())


def rejects_frame(address: str, session: SparkSession | None = None) -> DataFrame:
    return _frame(RejectScan(address), session or spark_session())


def _frame(scan: TableScan | ChangeScan | RejectScan, session: SparkSession) -> DataFrame:
    jobs = SparkJobs(session)
    parts, schema = scan.parts(), scan.schema()
    rows = _ScannedRows(scan, parts, schema, jobs.work(_no_rows).credentials)

    def make() -> DataFrame:
        make_active(session)  # Python functions are registered with the active session
        return session.range(0, len(parts), 1, max(len(parts), 1)).mapInArrow(rows, schema)

    return jobs.call("read", make)


@dataclass(frozen=True)
class _ScannedRows:
    """Reads the parts whose numbers come in. `credentials` is their file, None where workers have their own."""

    scan: Any
    parts: Sequence[Any]
    schema: StructType
    credentials: str | None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if self.credentials is not None:
            take_credentials(Path(self.credentials))
        with shown_plainly():
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    yield from self.scan.batches(self.parts[number], self.schema)


def _no_rows(_: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return iter(())


def type_views(
    graph: Location, session: SparkSession | None, branch: str = MAIN, snapshot: str | None = None, prefix: str = ""
) -> list[str]:
    """Make a temporary view of each type, all of one state; return their names."""
    session = session or spark_session()
    state = state_to_read(Manifest(graph), branch, snapshot)
    views = _view_names(sorted(state.snapshot.entries, reverse=True), prefix)
    for name, key in views.items():
        request = ScanRequest(graph, key, branch=branch, snapshot=state.commit.commit_id)
        _frame(request.pin(), session).createOrReplaceTempView(name)
    return list(views)


def _view_names(keys: Sequence[str], prefix: str) -> dict[str, str]:
    """Name views after types; Spark ignores case, so an edge that is named like a node is called `edge_Name`."""
    found: dict[str, str] = {}
    for key in keys:
        name = f"{prefix}{key.partition(':')[2]}"
        taken = {other.lower() for other in found}
        found[f"{prefix}{key.replace(':', '_')}" if name.lower() in taken else name] = key
    return found
