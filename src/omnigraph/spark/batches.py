"""`df.writeStream.format("omnigraph")`: tasks write the rows of a batch to files, which the driver loads in one commit.

Spark calls `commit` in a process that has no session, so the load runs there, in this one process: for small batches.
`omnigraph.spark.sink` loads on all executors, several types in one commit.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from omnigraph.api.options import Engine, LoadMode, message_option, option
from omnigraph.api.results import StreamBatch
from omnigraph.commit.store import Store
from omnigraph.core.location import Location
from omnigraph.core.refs import MAIN, branch_of
from omnigraph.errors import OmnigraphError, ParameterError, StreamBatchDoneError
from omnigraph.formats.sources import MappedType, discover
from omnigraph.ingest.load import LoadSpec, load, type_named
from omnigraph.spark.frames import rows_input
from omnigraph.spark.worker import shown_plainly
from omnigraph.storage.columns import table_key
from omnigraph.storage.objects import ObjectStore

_ROWS_PER_GROUP = 65_536


@dataclass(frozen=True, slots=True)
class BatchFile(WriterCommitMessage):
    """The file with the rows of one task, below the root of the graph; None if it had none."""

    name: str | None


class BatchWriter(DataSourceStreamArrowWriter):
    """Writes the batches of one stream into one type."""

    def __init__(self, graph: Location, type_name: str, schema: StructType, options: Mapping[str, str]) -> None:
        self.graph = graph
        self.type_name = type_name
        self.schema = schema
        self.stream = _given(options, "stream", "the name of the stream")
        self.mode = option(LoadMode, "mode", options.get("mode", LoadMode.MERGE))
        self.branch = branch_of(options.get("branch", MAIN))
        self.actor = options.get("actor")
        self.message = message_option(options.get("message"))
        self.query = options.get("query")
        self.checkpoint = options.get("checkpointLocation")

    @classmethod
    def of(cls, graph: Location, type_name: str, schema: StructType, options: Mapping[str, str]) -> BatchWriter:
        """Check the options and the columns before the first batch comes."""
        writer = cls(graph, type_name, schema, options)
        if writer.mode is LoadMode.OVERWRITE:
            message = "a stream adds to a type, and mode 'overwrite' would leave its last batch only"
            raise ParameterError(message, parameter="mode", hint="use merge or append")
        store = Store.at(graph)
        contract = store.schema_of(store.manifest.load(writer.branch))
        assert contract, "the state was loaded"
        rows_input(MappedType(type_named(type_name, contract.catalog)), schema, contract.catalog)
        return writer

    def write(self, iterator: Iterator[pa.RecordBatch]) -> BatchFile:
        """Write a file with a unique name, because a task may run twice."""
        with shown_plainly():
            target = to_arrow_schema(self.schema, timezone="UTC")
            rows = pa.Table.from_batches([batch.cast(target) for batch in iterator], target)
            if not rows.num_rows:
                return BatchFile(None)
            sink = pa.BufferOutputStream()
            pq.write_table(rows, sink, row_group_size=_ROWS_PER_GROUP)
            name = f"__tmp/batch-{uuid.uuid4().hex}.parquet"
            ObjectStore(self.graph).write(name, bytes(sink.getvalue()))
            return BatchFile(name)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - so Spark calls it
        """Load the files of a batch in one commit, unless it was committed before; then delete them."""
        with shown_plainly():
            try:
                self._load(_names(messages), StreamBatch(self.stream, self._query(), batchId))
            except StreamBatchDoneError:
                pass
            finally:
                self.abort(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803
        """Delete the files of a batch; those of tasks that died are left to a cleanup."""
        objects = ObjectStore(self.graph)
        for name in _names(messages):
            objects.delete(name)

    def _load(self, names: list[str], batch: StreamBatch) -> None:
        store = Store.at(self.graph)
        contract = store.schema_of(store.manifest.load(self.branch))
        assert contract, "the graph was opened"
        kind = table_key(type_named(self.type_name, contract.catalog))
        mapping: dict[str, Any] = {"files": {"**": {"type": kind}}}
        addresses = [self.graph.child(name) for name in names]
        splits = discover(addresses, contract.catalog, format=None, mapping=mapping, csv=None) if names else []
        spec = LoadSpec(splits, self.mode, self.branch, self.actor, Engine.LOCAL, message=self.message, batch=batch)
        load(store, spec)

    def _query(self) -> str:
        """Return the id of the query, which Spark keeps in the checkpoint; the process of a commit has no session."""
        if self.query:
            return self.query
        if not self.checkpoint:
            message = "the id of the query is in its checkpoint, and no checkpoint is given"
            raise ParameterError(message, parameter="query", hint='add .option("checkpointLocation", ...)')
        try:
            found = json.loads(ObjectStore(Location.parse(self.checkpoint)).read("metadata"))
            return str(found["id"])
        except (OmnigraphError, ValueError, KeyError, TypeError) as error:
            message = f"the checkpoint {self.checkpoint} has no id of its query that can be read from here"
            hint = 'name the query: .option("query", ...), another one for each checkpoint'
            raise ParameterError(message, parameter="query", hint=hint) from error


def _names(messages: list[WriterCommitMessage | None]) -> list[str]:
    return [one.name for one in messages if isinstance(one, BatchFile) and one.name]


def _given(options: Mapping[str, str], name: str, what: str) -> str:
    found = options.get(name)
    if not found:
        raise ParameterError(f"no {name} given", parameter=name, hint=f'add .option("{name}", ...): {what}')
    return found
