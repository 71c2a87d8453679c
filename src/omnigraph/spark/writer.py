"""`df.write.format("omnigraph")`: the rows of one type, staged by the tasks of Spark, and published in one commit.

Spark calls `writer` on the driver, `write` in each task, and then `commit` or `abort` on the driver, each in a process
of its own that has no session. So tasks convert, check and write their rows, as in every load on Spark, and put their
keys into files; `commit` compares the keys, one share after the other, and publishes.

Spark aborts what it fails to commit, also after a commit that died in the middle of a publish. From the moment on when
`commit` owns the files, the mark of the write is gone, and `abort` touches nothing.
"""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from omnigraph.api.options import Engine, LoadMode
from omnigraph.api.results import TableVersion
from omnigraph.commit.plan import WriteTxn
from omnigraph.commit.publish import begin
from omnigraph.commit.store import Store
from omnigraph.core.executor import Parcel
from omnigraph.core.location import Location
from omnigraph.errors import ConflictError
from omnigraph.formats.sources import MappedType
from omnigraph.formats.tables import Columns
from omnigraph.ingest import steps
from omnigraph.ingest.distributed import DistributedLoad, FrameInput, LoadInput
from omnigraph.ingest.executor import LocalExecutor, LocalParcels
from omnigraph.ingest.keys import key_sections
from omnigraph.ingest.load import LoadSpec, publish_staged, type_named
from omnigraph.ingest.steps import FrameTask, KeyExchange, StageResult
from omnigraph.manifest.publisher import Lineage
from omnigraph.spark.frames import rows_input
from omnigraph.spark.worker import shown_plainly
from omnigraph.storage.unpublished import note_fork, taking_back

_SHARES = 4  # at least; keys are divided by their number


@dataclass(frozen=True, slots=True)
class WriteTarget:
    """The type to write rows to, and how."""

    graph: Location
    type_name: str
    mode: LoadMode
    branch: str | None
    actor: str | None
    columns: Columns
    message: str | None = None


@dataclass(frozen=True, slots=True)
class WrittenRows(WriterCommitMessage):
    """What one task has staged, and the file with its keys: section, share, size and `of` of each parcel."""

    number: int
    result: StageResult
    file: str
    parcels: tuple[tuple[int, int, int, int], ...]


class TypeWriter(DataSourceArrowWriter):
    """Stages rows in the tasks, and publishes them on the driver."""

    def __init__(self, target: WriteTarget, rows: FrameInput, task: FrameTask, before: TableVersion) -> None:
        self.target = target
        self.rows = rows
        self.task = task
        self.before = before

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenRows:
        context = TaskContext.get()
        assert context is not None, "this runs on an executor"
        with shown_plainly():
            return self.stage(context.partitionId(), iterator)

    def stage(self, number: int, batches: Iterator[pa.RecordBatch]) -> WrittenRows:
        """Write files with unique names, because a task may run twice."""
        result, parcels = steps.stage_rows(self.task, number, batches)
        file = f"{self.task.exchange.directory}/{uuid.uuid4().hex}.keys"
        self.task.exchange.objects.write(file, b"".join(parcel.data for parcel in parcels))
        index = tuple((parcel.section, parcel.share, len(parcel.data), parcel.of) for parcel in parcels)
        return WrittenRows(number, result, file, index)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish what the tasks that count have staged; in this process, which has no Spark session."""
        parts = [message for message in messages if isinstance(message, WrittenRows)]
        request = LoadSpec((), self.target.mode, self.target.branch, self.target.actor, Engine.LOCAL)
        with shown_plainly():
            load = _StagedLoad(self, sorted(parts, key=lambda part: part.number))
            try:
                lineage = Lineage.new(self.target.actor, message=self.target.message)
                publish_staged(load.store, request, lineage, load)
            finally:
                if not self.is_open:
                    load.delete_exchange()

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002 - there may be more than these
        """Delete what the tasks have staged; what a running one still writes is left to a cleanup."""
        if self.is_open:
            load = _StagedLoad(self, ())
            with taking_back(load.store.tables):
                load.own()
            load.delete_exchange()

    @property
    def base(self) -> TableVersion:
        return self.task.tables[self.task.type_key]

    @property
    def is_open(self) -> bool:
        """Return whether no commit has begun to publish the files."""
        return self.task.exchange.objects.exists(self._mark)

    def open(self) -> None:
        self.task.exchange.objects.write(self._mark, b"")

    def close(self) -> None:
        self.task.exchange.objects.delete(self._mark)

    @property
    def _mark(self) -> str:
        return f"{self.task.exchange.directory}/open"


def type_writer(target: WriteTarget, schema: StructType) -> TypeWriter:
    """Check the columns, and prepare a write; a table that the branch has only inherited is forked for it."""
    store = Store.at(target.graph)
    txn = begin(store, target.branch)
    mapped_type = MappedType(type_named(target.type_name, txn.catalog), tuple(target.columns.items()))
    rows = rows_input(mapped_type, schema, txn.catalog)
    before = txn.entries[rows.type_key].table
    directory, sections = f"__tmp/load-{secrets.token_hex(8)}", key_sections(txn.catalog)
    exchange = KeyExchange(store.location, directory, secrets.randbits(64), _SHARES, sections)
    tables = {rows.type_key: txn.writable_table(store.tables, rows.type_key)}
    task = FrameTask(rows.type_key, rows.source, rows.schema, rows.columns, "", txn.catalog, tables, exchange)
    writer = TypeWriter(target, rows, task, before)
    writer.open()
    return writer


class _StagedLoad(DistributedLoad):
    """A load whose input was staged by the tasks of a write."""

    def __init__(self, writer: TypeWriter, parts: Sequence[WrittenRows]) -> None:
        executor = _StagedExecutor(writer.task.exchange, parts)
        data = LoadInput((), [writer.rows])
        super().__init__(Store.at(writer.target.graph), executor, data, writer.target.mode, _SHARES)
        self.exchange = writer.task.exchange
        self._writer = writer

    def stage(self, txn: WriteTxn) -> None:
        writer, key = self._writer, self._writer.task.type_key
        self.own()
        writer.close()
        table = txn.entries[key].table
        if txn.catalog != writer.task.catalog or (table.path, table.branch) != (
            writer.before.path,
            writer.before.branch,
        ):
            message = f"the schema or the table of {key} changed while its rows were written; nothing was changed"
            raise ConflictError(message, hint="write again")
        if writer.base != writer.before:
            txn.forks[key] = writer.base
        super().stage(txn)

    def own(self) -> None:
        """Note all that was staged, also by attempts that do not count; what is not published will be deleted."""
        base = self._writer.base
        self.bases = {base.key: base}
        if base.branch != self._writer.before.branch:
            note_fork(base)
        self._note(self.exchange.staged())


class _StagedExecutor(LocalExecutor):
    """Compares keys in this process; those of the input are in files."""

    def __init__(self, exchange: KeyExchange, parts: Sequence[WrittenRows]) -> None:
        super().__init__()
        self._exchange = exchange
        self._parts = parts

    def scatter_frame(self, *_: Any) -> LocalParcels[StageResult]:
        """Return what the tasks have sent already."""
        sent = LocalParcels[StageResult]()
        for part in self._parts:
            sent.add(part.result, list(self._parcels(part)))
        return sent

    def _parcels(self, part: WrittenRows) -> Iterator[Parcel]:
        data, start = memoryview(self._exchange.objects.read(part.file)), 0
        for section, share, size, of in part.parcels:
            yield Parcel(section, share, data[start : start + size], of=of)  # type: ignore[arg-type]
            start += size
