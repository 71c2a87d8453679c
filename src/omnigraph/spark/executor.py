"""The executor on Spark: one row of a DataFrame for each task, and one for each result."""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from omnigraph.api.progress import SILENT, Progress
from omnigraph.core.executor import Parcel, ParcelRoute, Scattered
from omnigraph.errors import SparkError
from omnigraph.ingest.executor import rows_of
from omnigraph.spark import exchange
from omnigraph.spark.exchange import SparkParcels
from omnigraph.spark.jobs import SparkJobs
from omnigraph.spark.session import parallelism

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

T = TypeVar("T")
R = TypeVar("R")

_PARTITIONS, _PARTITIONS_PER_CORE = 128, 4  # at most, whichever is more: to schedule one takes some 20 ms
_RESULT = "task int, rows bigint, result binary"
# Spark converts no types: a batch with others than it expects fails in the JVM, which names no column.
_RESULT_SCHEMA = pa.schema([("task", pa.int32()), ("rows", pa.int64()), ("result", pa.binary())])


class SparkExecutor:
    """Runs the tasks on the executors of a Spark session, classic or Connect."""

    def __init__(self, spark: SparkSession, progress: Progress = SILENT, operation: str = "") -> None:
        self._spark = spark
        self._progress = progress
        self._jobs = SparkJobs(spark, progress, operation)

    def run(self, phase: str, step: Callable[[T], R], tasks: Sequence[T]) -> list[R]:
        assert _is_of_a_module(step), f"{step} is no function of a module, so no executor can find it"
        if not tasks:
            self._progress.phase(phase, 0)
            return []
        partitions = self._partitions(phase, len(tasks))
        # In the function, not in a DataFrame: to divide one among partitions takes a shuffle.
        work = self._jobs.work(partial(_run_tasks, step, pack_tasks(tasks)))
        numbers = partial(self._spark.range, 0, len(tasks), 1, partitions)
        rows = self._jobs.collect(phase, lambda: numbers().mapInArrow(work, _RESULT), len(tasks), partitions)
        self._progress.advance(0, sum(row.rows for row in rows))
        return [pickle.loads(row.result) for row in _in_order(phase, rows, len(tasks))]  # noqa: S301 - of our workers

    def scatter(
        self, phase: str, step: Callable[[T], tuple[R, Sequence[Parcel]]], tasks: Sequence[T]
    ) -> SparkParcels[R]:
        if not tasks:
            self._progress.phase(phase, 0)
            return SparkParcels(self._jobs, None, [], 0)
        numbers = partial(self._spark.range, 0, len(tasks), 1, self._partitions(phase, len(tasks)))
        sent = exchange.scatter(
            self._jobs, phase, numbers, partial(_send_all, step, pack_tasks(tasks)), tasks=len(tasks)
        )
        self._progress.advance(0, sum(map(rows_of, sent.results)))
        return sent

    def scatter_frame(
        self, phase: str, step: Callable[..., tuple[R, Sequence[Parcel]]], task: Any, frame: DataFrame, first: int
    ) -> SparkParcels[R]:
        """Run a step over the rows of a DataFrame; each of its partitions is a task, numbered from `first`."""
        send = partial(_send_partition, step, pickle.dumps(task), first)
        sent = exchange.scatter(self._jobs, phase, lambda: frame, send, tasks=None, first=first)
        self._progress.advance(0, sum(map(rows_of, sent.results)))
        return sent

    def gather(
        self,
        phase: str,
        step: Callable[[T, list[Parcel]], R],
        tasks: Sequence[T],
        sent: Sequence[Scattered[Any]],
        routes: Mapping[int, ParcelRoute],
    ) -> list[R]:
        parts = [part for part in sent if isinstance(part, SparkParcels)]
        assert len(parts) == len(sent), "an executor gathers what it scattered"
        return exchange.gather(self._jobs, phase, step, tasks, sent=parts, routes=routes)

    def _partitions(self, phase: str, tasks: int) -> int:
        if tasks <= _PARTITIONS:
            return tasks
        cores = self._jobs.call(phase, partial(parallelism, self._spark))
        return min(tasks, max(_PARTITIONS, _PARTITIONS_PER_CORE * cores))


def _is_of_a_module(step: Callable[..., Any]) -> bool:
    """Return whether a function can be pickled by name; others would be pickled by value, with all they refer to."""
    return getattr(sys.modules.get(step.__module__), step.__name__, None) is step


def _in_order(phase: str, rows: Sequence[Row], tasks: int) -> list[Row]:
    """Sort results by their tasks. Each must be there once: files of a second attempt must not count."""
    ordered = sorted(rows, key=lambda row: int(row.task))
    if [row.task for row in ordered] != list(range(tasks)):
        numbers = f"results of the tasks {[row.task for row in ordered]}"
        raise SparkError(f"Spark returned {len(rows)} results for {tasks} tasks in the phase '{phase}'", detail=numbers)
    return ordered


def _run_tasks(
    step: Callable[..., Any], packed: PackedTasks, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Run a step on the tasks whose numbers come in."""
    for batch in batches:
        numbers = batch.column(0).to_pylist()
        rows = [_run_task(step, packed, number) for number in numbers]
        yield pa.RecordBatch.from_pylist(rows, _RESULT_SCHEMA)


def _run_task(step: Callable[..., Any], packed: PackedTasks, number: int) -> dict[str, Any]:
    result = step(unpack_task(packed.tasks[number], packed.common))
    return {"task": number, "rows": rows_of(result), "result": pickle.dumps(result, pickle.HIGHEST_PROTOCOL)}


def _send_all(
    step: Callable[..., Any], packed: PackedTasks, batches: Iterator[pa.RecordBatch]
) -> Iterator[tuple[int, Any, Sequence[Parcel]]]:
    """Run a step on the tasks whose numbers come in."""
    for batch in batches:
        for number in batch.column(0).to_pylist():
            yield number, *step(unpack_task(packed.tasks[number], packed.common))


def _send_partition(
    step: Callable[..., Any], task: bytes, first: int, batches: Iterator[pa.RecordBatch]
) -> Iterator[tuple[int, Any, Sequence[Parcel]]]:
    """Run a step on the rows of a partition."""
    from pyspark import TaskContext  # noqa: PLC0415

    context = TaskContext.get()
    assert context is not None, "this runs on an executor"
    number = first + context.partitionId()
    yield number, *step(pickle.loads(task), number, batches)  # noqa: S301 - of our driver


# Tasks as bytes ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PackedTasks:
    """Tasks as bytes, and the objects that all of them share."""

    tasks: list[bytes]
    common: tuple[Any, ...]


def pack_tasks(tasks: Sequence[Any]) -> PackedTasks:
    """Pickle tasks. A field that is the same object in all of them, such as a catalog, is pickled once."""
    common = tuple(_common(tasks))
    return PackedTasks([_pack_one(task, common) for task in tasks], common)


def unpack_task(task: bytes, common: Sequence[Any]) -> Any:
    return _Unpickler(io.BytesIO(task), common).load()


def _common(tasks: Sequence[Any]) -> list[Any]:
    first = tasks[0]
    if len(tasks) == 1 or not is_dataclass(first) or any(type(task) is not type(first) for task in tasks):
        return []
    values = [(field.name, getattr(first, field.name)) for field in fields(first)]
    return [value for name, value in values if all(getattr(task, name) is value for task in tasks)]


def _pack_one(task: Any, common: Sequence[Any]) -> bytes:
    file = io.BytesIO()
    _Pickler(file, common).dump(task)
    return file.getvalue()


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, common: Sequence[Any]) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._at = {id(value): at for at, value in enumerate(common)}

    def persistent_id(self, value: Any) -> int | None:
        return self._at.get(id(value))


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, common: Sequence[Any]) -> None:
        super().__init__(file)
        self._common = common

    def persistent_load(self, at: int) -> Any:
        return self._common[at]
