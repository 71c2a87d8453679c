"""Parcels on Spark: tasks send them as rows of a DataFrame, and the shuffle of Spark brings them together.

A step that sends parcels may run twice for a task, and writes other files each time. So its rows are persisted, and
each carries a token of the attempt that made it. Spark computes rows again that were on a lost executor; under some
settings it does not say so, under others it ends the job. A task that receives a parcel of another attempt than the one
whose result the driver has fails. In both cases the load starts over. (A local checkpoint is never computed again, but
on Connect it needs to be of the active session, and nothing frees it.)
"""

from __future__ import annotations

import pickle
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import groupby
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import pyarrow as pa

from omnigraph.core.executor import Parcel, ParcelRoute, ParcelsLostError
from omnigraph.errors import SparkError
from omnigraph.spark.jobs import SparkJobs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

T = TypeVar("T")
R = TypeVar("R")

Sending = Callable[[Iterator[pa.RecordBatch]], Iterator[tuple[int, Any, Sequence[Parcel]]]]
"""Runs the tasks of a partition; yields the number, the result and the parcels of each."""

# How Spark ends a job whose lost rows it has computed again, and found to be others; it has no class for it.
_COMPUTED_AGAIN = "shuffle map stage with indeterminate output"
_RESULT = -1  # the section of the row that has the result of a task
_BATCH = 16 * 2**20  # bytes; a row of Spark may have 2 GB, but is copied several times
# Spark converts no types: a batch with others than it expects fails in the JVM, which names no column.
_SENT_SCHEMA = pa.schema(
    [
        ("task", pa.int32()),
        ("token", pa.string()),
        ("section", pa.int32()),
        ("share", pa.int32()),
        ("of", pa.int32()),
        ("data", pa.binary()),
        ("result", pa.binary()),  # a column of its own, so that reading the results does not read the parcels
    ]
)
_SENT = "task int, token string, section int, share int, of int, data binary, result binary"
_RECEIVED_SCHEMA = pa.schema([("task", pa.int32()), ("parcels", pa.int64()), ("result", pa.binary())])
_RECEIVED = "task int, parcels bigint, result binary"


class SparkParcels(Generic[R]):
    """The results of the tasks of a step, and a DataFrame of the parcels that they sent."""

    def __init__(self, jobs: SparkJobs, frame: DataFrame | None, rows: Sequence[Row], first: int) -> None:
        self._jobs = jobs
        self.frame = frame
        self.tokens = [str(row.token) for row in rows]
        self.first = first
        found = [pickle.loads(row.result) for row in rows]  # noqa: S301 - of our workers
        self.results: list[R] = [result for result, _ in found]
        self._sent: Counter[tuple[int, int]] = Counter()
        for _, sent in found:
            self._sent.update(sent)

    def count(self, routes: Mapping[int, ParcelRoute]) -> int:
        """Return how many parcels arrive by these routes; one may arrive at several tasks."""
        sent = self._sent.items()
        return sum(count * routes[section].copies(of) for (section, of), count in sent if section in routes)

    def read(self, section: int, senders: Collection[int]) -> list[Parcel]:
        def fetch() -> list[Row]:
            assert self.frame is not None, "the parcels were freed"
            return self.frame.where(f"section = {section} and task in ({', '.join(map(str, senders))})").collect()

        rows = self._jobs.run("locate", fetch, 1)
        return [Parcel(row.section, row.share, bytes(row.data), row.task, row.of) for row in rows]

    def close(self) -> None:
        frame, self.frame = self.frame, None
        if frame is not None:
            self._jobs.call("free", frame.unpersist)


def scatter(
    jobs: SparkJobs, phase: str, source: Callable[[], DataFrame], send: Sending, *, tasks: int | None, first: int = 0
) -> SparkParcels[Any]:
    """Run the tasks in the partitions of a DataFrame, and keep what they send; their numbers start with `first`."""
    work = jobs.work(partial(_send, send))

    def action() -> tuple[DataFrame, list[Row]]:
        from pyspark import StorageLevel  # noqa: PLC0415

        frame = source().mapInArrow(work, _SENT).persist(StorageLevel.DISK_ONLY)
        return frame, frame.where(f"section = {_RESULT}").select("task", "token", "result").collect()

    frame, rows = jobs.run(phase, action, tasks or 1)
    ordered = sorted(rows, key=lambda row: int(row.task))
    expected = range(first, first + (len(rows) if tasks is None else tasks))
    if [row.task for row in ordered] != list(expected):
        message = f"Spark returned {len(rows)} results for {len(expected)} tasks in the phase '{phase}'"
        raise SparkError(message, detail="")
    return SparkParcels(jobs, frame, ordered, first)


def gather(
    jobs: SparkJobs,
    phase: str,
    step: Callable[[T, list[Parcel]], R],
    tasks: Sequence[T],
    *,
    sent: Sequence[SparkParcels[Any]],
    routes: Mapping[int, ParcelRoute],
) -> list[R]:
    """Send the parcels of some sections to the tasks of a step."""
    parts = [part for part in sent if part.count(routes)]
    tokens = {
        (origin, part.first + at): token for origin, part in enumerate(parts) for at, token in enumerate(part.tokens)
    }
    work = jobs.work(partial(_receive, _Receiving(step, pickle.dumps(list(tasks)), tokens)))

    def action() -> list[Row]:
        routed = _routed(parts, routes, len(tasks))
        return routed.mapInArrow(work, _RECEIVED).collect()

    rows = _received(jobs, phase, action, len(tasks)) if parts and tasks else []
    expected, received = sum(part.count(routes) for part in parts), sum(row.parcels for row in rows)
    if expected != received:
        raise ParcelsLostError(f"{received} of {expected} parcels arrived in the phase '{phase}'")
    found = {row.task: pickle.loads(row.result) for row in rows}  # noqa: S301 - of our workers
    # A task that nothing was sent to has no rows, so it does not run on Spark.
    return [found[number] if number in found else step(task, []) for number, task in enumerate(tasks)]


def _received(jobs: SparkJobs, phase: str, action: Callable[[], list[Row]], tasks: int) -> list[Row]:
    try:
        return jobs.run(phase, action, tasks)
    except SparkError as error:
        if _COMPUTED_AGAIN in error.detail:
            raise ParcelsLostError(f"Spark has lost rows, and others came of computing them again: {error}") from error
        raise


def _routed(parts: Sequence[SparkParcels[Any]], routes: Mapping[int, ParcelRoute], tasks: int) -> DataFrame:
    # SQL, because the functions of pyspark make columns of one kind of session, and there may be both in a process.
    of = {
        name: _lookup({section: int(getattr(route, name)) for section, route in routes.items()})
        for name in ("first", "spread", "width")
    }
    # As `ParcelRoute.receivers` has it.
    is_part = f"of > 0 and {of['width']} > 0 and {of['spread']} > 0"
    first = f"{of['first']} + if({is_part}, share * {of['width']} div of, {of['spread']} * share)"
    copies = f"if({is_part}, greatest(1, {of['width']} div of), 1)"
    chosen = f"section in ({', '.join(map(str, routes))})"
    frames = [
        part.frame.where(chosen)
        .drop("result")
        .selectExpr("*", f"{origin} as origin", f"cast({first} as int) as first", f"cast({copies} as int) as copies")
        for origin, part in enumerate(parts)
        if part.frame is not None
    ]
    joined = reduce(lambda one, other: one.unionByName(other), frames)
    joined = joined.selectExpr("*", "explode(sequence(first, first + copies - 1)) as receiver").drop("first", "copies")
    if hasattr(joined, "repartitionById"):
        return joined.repartitionById(tasks, "receiver")
    # Before Spark 4.1 a number can only be hashed: some partitions get several tasks, others none.
    return joined.repartition(tasks, "receiver")


def _lookup(values: Mapping[int, int]) -> str:
    """Write the value of the section of a row as SQL."""
    return f"element_at(map({', '.join(f'{key}, {value}' for key, value in values.items())}), section)"


# On the executors ----------------------------------------------------------------------------------


def _send(send: Sending, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for number, result, parcels in send(batches):
        token = uuid.uuid4().hex
        sent = Counter((parcel.section, parcel.of) for parcel in parcels)
        whole = pickle.dumps((result, dict(sent)), pickle.HIGHEST_PROTOCOL)
        for some in _bounded([*parcels, Parcel(_RESULT, 0, b"")]):
            columns = [
                pa.array([number] * len(some), pa.int32()),
                pa.array([token] * len(some), pa.string()),
                pa.array([parcel.section for parcel in some], pa.int32()),
                pa.array([parcel.share for parcel in some], pa.int32()),
                pa.array([parcel.of for parcel in some], pa.int32()),
                pa.array([parcel.data for parcel in some], pa.binary()),
                pa.array([whole if parcel.section == _RESULT else None for parcel in some], pa.binary()),
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=_SENT_SCHEMA)


def _bounded(parcels: Iterable[Parcel]) -> Iterator[list[Parcel]]:
    some: list[Parcel] = []
    size = 0
    for parcel in parcels:
        if some and size + len(parcel.data) > _BATCH:
            yield some
            some, size = [], 0
        some.append(parcel)
        size += len(parcel.data)
    if some:
        yield some


@dataclass(frozen=True)
class _Receiving:
    """A step, its tasks, and the token of the attempt that counts for each sender."""

    step: Callable[[Any, list[Parcel]], Any]
    tasks: bytes
    tokens: Mapping[tuple[int, int], str]


def _receive(receiving: _Receiving, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    rows = [row for batch in batches for row in batch.to_pylist()]
    for row in rows:
        if receiving.tokens[row["origin"], row["task"]] != row["token"]:
            raise ParcelsLostError("a parcel comes from another attempt of its task")
    # Spark brings rows in any order.
    rows.sort(key=lambda row: (row["receiver"], row["origin"], row["task"]))
    tasks = pickle.loads(receiving.tasks)  # noqa: S301 - of our driver
    for number, group in groupby(rows, key=lambda row: int(row["receiver"])):
        parcels = [Parcel(row["section"], row["share"], row["data"], row["task"], row["of"]) for row in group]
        result = pickle.dumps(receiving.step(tasks[number], parcels), pickle.HIGHEST_PROTOCOL)
        received = {"task": number, "parcels": len(parcels), "result": result}
        yield pa.RecordBatch.from_pylist([received], _RECEIVED_SCHEMA)
