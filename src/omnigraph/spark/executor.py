"""The executor on Spark: one Spark task for each of our tasks, progress while it runs, Ctrl-C at any time."""

from __future__ import annotations

import base64
import gc
import io
import itertools
import pickle
import re
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeVar

from omnigraph.api.progress import SILENT, Progress
from omnigraph.errors import OmnigraphError, SparkError
from omnigraph.ingest.executor import credentials, rows_of, set_credentials
from omnigraph.spark.session import has_died, in_thread, is_local, reason_in, ship_package

if TYPE_CHECKING:
    from pyspark import Accumulator, SparkContext, SparkStageInfo
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")

_POLL_SECONDS = 0.1
_CANCEL_SECONDS, _SETTLE_SECONDS = 15.0, 5.0
_PARTITIONS, _PARTITIONS_PER_CORE = 128, 4  # at most, whichever is more: to schedule one takes some 20 ms
_POOL = "spark.scheduler.pool"
_POOLS = 8
_NUMBERS = itertools.count()
_FAILURE = re.compile(r"omnigraph-failure:([A-Za-z0-9+/=]+):")


class SparkExecutor:
    """Runs the tasks on the executors of a Spark session, or of a context without Spark SQL."""

    def __init__(self, spark: SparkSession | SparkContext, progress: Progress = SILENT) -> None:
        self._context: SparkContext = getattr(spark, "sparkContext", None) or spark  # type: ignore[assignment]
        self._progress = progress
        with _explaining(self._context, "start"):
            # Every call into the JVM is made in a thread of its own, see `session`.
            in_thread(partial(ship_package, self._context)).result()

    def run(self, phase: str, step: Callable[[T], R], tasks: Sequence[T]) -> list[R]:
        assert _is_of_a_module(step), f"{step} is no function of a module, so no executor can find it"
        self._progress.phase(phase, len(tasks))
        if not tasks:
            return []
        job = _Job(self._context, phase, step, pack_tasks(tasks))
        try:
            return self._follow(job, len(tasks))
        finally:
            job.close()

    def _follow(self, job: _Job, total: int) -> list[Any]:
        """Wait in this thread, which never calls the JVM, and report the progress that other threads count."""
        reported = _Count(0, 0)
        running = job.start()
        while not wait([running], _POLL_SECONDS).done:
            reported = self._report(reported, _Count(min(job.completed, total), int(job.rows.value)))
        results = running.result()
        self._report(reported, _Count(total, sum(map(rows_of, results))))
        return results

    def _report(self, reported: _Count, now: _Count) -> _Count:
        # A task that runs twice counts its rows twice, so the counters may go down at the end.
        tasks, rows = max(0, now.tasks - reported.tasks), max(0, now.rows - reported.rows)
        if tasks or rows:
            self._progress.advance(tasks, rows)
        return _Count(reported.tasks + tasks, reported.rows + rows)


@dataclass(frozen=True, slots=True)
class _Count:
    tasks: int
    rows: int


def _is_of_a_module(step: Callable[..., Any]) -> bool:
    """Return whether a function can be pickled by name; others would be pickled by value, with all they refer to."""
    return getattr(sys.modules.get(step.__module__), step.__name__, None) is step


# On the driver -------------------------------------------------------------------------------------


class _Job:
    """One Spark job: a thread that runs it, and one that counts its tasks and cancels it when it is closed early."""

    def __init__(self, context: SparkContext, phase: str, step: Callable[..., Any], packed: PackedTasks) -> None:
        self.completed = 0
        self.rows: Accumulator[int] = context.accumulator(0)
        self._context = context
        self._phase = phase
        # Unique: `cancelJobGroup` cancels every job of a group, also those of other callers.
        self._group = f"omnigraph-{uuid.uuid4().hex}"
        self._work = partial(_work, step, packed.common, _storage_variables(context.master), self.rows)
        self._tasks = packed.tasks
        self._partitions = len(packed.tasks)
        self._closed = threading.Event()
        self._done = threading.Event()
        self._succeeded = False
        self._watcher: Future[None] | None = None

    def start(self) -> Future[list[Any]]:
        from pyspark import InheritableThread  # noqa: PLC0415

        with _explaining(self._context, self._phase):  # an InheritableThread calls the JVM before it starts
            running = in_thread(self._run, InheritableThread)
            self._watcher = in_thread(self._watch, InheritableThread)
            return running

    def close(self) -> None:
        """Leave no task running, whatever happened."""
        self._closed.set()
        if self._watcher is not None:
            wait([self._watcher], _CANCEL_SECONDS)

    def _run(self) -> list[Any]:
        try:
            with _explaining(self._context, self._phase):
                results = self._collect()
            self._succeeded = True
            return results
        finally:
            self._done.set()

    def _collect(self) -> list[Any]:
        context = self._context
        most = max(_PARTITIONS, _PARTITIONS_PER_CORE * context.defaultParallelism)
        self._partitions = min(len(self._tasks), most)
        # The group is how the watcher finds the job, and how Ctrl-C cancels it.
        context.setJobGroup(self._group, f"omnigraph: {self._phase}", interruptOnCancel=True)
        # A pool of the caller wins. Ours are few: the fair scheduler keeps each pool for ever.
        if context.getLocalProperty(_POOL) is None:
            context.setLocalProperty(_POOL, f"omnigraph-{next(_NUMBERS) % _POOLS}")
        return context.parallelize(self._tasks, self._partitions).map(self._work).collect()

    def _watch(self) -> None:
        """Count completed tasks, and cancel the job once it is closed; a failed job ends with its last task."""
        while not self._done.wait(_POLL_SECONDS):
            if self._closed.is_set():
                self._context.cancelJobGroup(self._group)
            done = sum(stage.numCompletedTasks for stage in self._stages())
            self.completed = done * len(self._tasks) // self._partitions
        deadline = time.monotonic() + _SETTLE_SECONDS
        # A cancelled task goes on until it notices, and would write files after they were cleaned up.
        while not self._succeeded and time.monotonic() < deadline and any(s.numActiveTasks for s in self._stages()):
            time.sleep(_POLL_SECONDS)

    def _stages(self) -> list[SparkStageInfo]:
        tracker = self._context.statusTracker()
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(self._group)]
        stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
        return [stage for stage in stages if stage is not None]


@contextmanager
def _explaining(context: SparkContext, phase: str) -> Iterator[None]:
    """Translate errors of Spark: raise the error of the task, or a SparkError."""
    from py4j.protocol import Py4JError  # noqa: PLC0415
    from pyspark.errors import PySparkException  # noqa: PLC0415

    try:
        yield
    except (Py4JError, PySparkException, OSError) as error:
        text = str(error)
        gateway = context._gateway  # noqa: SLF001
        raise (_died(phase, text) if gateway is None or has_died(gateway) else _explained(phase, text)) from None


def _died(phase: str, text: str) -> SparkError:
    return SparkError(f"Spark died in the phase '{phase}'", hint="try again: the next call restarts it", detail=text)


def _explained(phase: str, text: str) -> Exception:
    """Find the error of a task in the output of Spark; without one, Spark itself failed."""
    packed = _FAILURE.search(text)
    if packed:
        failure: _TaskFailure = pickle.loads(base64.b64decode(packed[1]))  # noqa: S301 - made by `_work`
        return failure.revived()
    return SparkError(
        f"Spark could not finish the phase '{phase}': {reason_in(text)}",
        hint="a worker that was killed may have had too little memory",
        detail=text,
    )


def _storage_variables(master: str | None) -> dict[str, str] | None:
    """Return our storage credentials for workers on this machine; those of a cluster have their own."""
    if not is_local(master):
        return None
    return dict(credentials())


# On the executors ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _TaskFailure:
    """The error of a step, with its traceback."""

    error: Exception
    trace: str = field(repr=False)

    def revived(self) -> Exception:
        if not isinstance(self.error, OmnigraphError):
            self.error.add_note(f"on an executor:\n{self.trace}")
        return self.error


class _TaskFailedError(Exception):
    """Carries a failure as text through the JVM, which retries the task and reports the last failure."""


def _work(
    step: Callable[..., Any],
    common: Sequence[Any],
    variables: dict[str, str] | None,
    rows: Accumulator[int],
    task: bytes,
) -> Any:
    """Run a step on one task."""
    _freeze_imports()
    if variables is not None:
        set_credentials(variables)
    try:
        result = step(unpack_task(task, common))
    except Exception as error:  # noqa: BLE001 - raised again on the driver
        # As text: the JVM passes on the message of an exception and nothing else.
        raise _TaskFailedError(_packed(error)) from None
    # After the step: an accumulator of a failed attempt counts as well, and the bar would run ahead.
    rows.add(rows_of(result))
    return result


@cache
def _freeze_imports() -> None:
    """Exempt imported modules from garbage collection: Spark collects after every task (17 ms before, 1 ms now)."""
    gc.freeze()


def _packed(error: Exception) -> str:
    trace = "".join(traceback.format_exception(error))
    try:
        packed = pickle.dumps(_TaskFailure(error, trace))
        # Some errors can be pickled, but fail in their constructor when they are unpickled.
        pickle.loads(packed)  # noqa: S301 - our own bytes
    except (pickle.PickleError, TypeError, ValueError, AttributeError, AssertionError, RecursionError):
        packed = pickle.dumps(_TaskFailure(_summary(error, trace), trace))
    return f"omnigraph-failure:{base64.b64encode(packed).decode()}:"


def _summary(error: Exception, trace: str) -> SparkError:
    return SparkError(f"a task failed: {type(error).__name__}: {error}", detail=trace)


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
