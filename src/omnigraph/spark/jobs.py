"""Jobs on Spark, classic or Connect: progress while they run, Ctrl-C at any time, errors of their tasks as they were.

Everything that calls Spark runs in a thread of its own, see `session`, and the session of the caller stays as it is:
names, groups, pools and tags belong to a thread.
"""

from __future__ import annotations

import itertools
import math
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from omnigraph.api.progress import SILENT, Progress
from omnigraph.errors import SparkError
from omnigraph.ingest.executor import credentials
from omnigraph.spark.package import ship_package
from omnigraph.spark.session import (
    has_died,
    in_thread,
    is_connect,
    make_active,
    missing_on_executors,
    reason_in,
    runs_on_this_machine,
    server_of,
)
from omnigraph.spark.worker import ArrowFunction, Work, credentials_file, failure_in

if TYPE_CHECKING:
    from pyspark import SparkStageInfo
    from pyspark.sql import DataFrame, Row, SparkSession

T = TypeVar("T")

_POLL_SECONDS = 0.1
_CANCEL_SECONDS, _SETTLE_SECONDS = 15.0, 5.0
_KILL_TIMEOUT = "spark.python.task.killTimeout"  # Spark gives a cancelled task so long before it kills its worker
_ANSWER_SECONDS = 60.0  # a client of Spark Connect would try for ten minutes to reach its server
_CONNECT_SECONDS = 2.0
_ABSENT_SECONDS = 20.0  # a server that nothing connects to for so long is gone
_PHASES = {"keys": "read keys", "check": "check keys"}  # for those who see no more of the job than its description
_POOL = "spark.scheduler.pool"
_POOLS = 8
_NUMBERS = itertools.count()


class SparkJobs:
    """Runs the jobs of one session."""

    def __init__(self, spark: SparkSession, progress: Progress = SILENT, operation: str = "") -> None:
        self._spark = spark
        self._progress = progress
        self._operation = operation
        self._package, self._here = self.call("start", self._prepare)

    def work(self, function: ArrowFunction) -> Work:
        """Wrap a function for `mapInArrow`. Make it for each job: it uses the credentials of this moment."""
        # Credentials are not sent to other machines.
        return Work(function, credentials_file(credentials()) if self._here else None, self._package)

    def collect(
        self, phase: str, frame: Callable[[], DataFrame], tasks: int, partitions: int | None = None
    ) -> list[Row]:
        """Make a DataFrame, and return all of its rows. See `run`."""
        return self.run(phase, lambda: frame().collect(), tasks, partitions)

    def run(self, phase: str, action: Callable[[], T], tasks: int, partitions: int | None = None) -> T:
        """Run a function that starts jobs, in a thread of its own, and return its result.

        Progress is shown as `tasks`, which Spark runs as so many partitions, of all stages together.
        """
        self._progress.phase(phase, tasks)
        job = _Job(self._spark, phase, action, described(self._operation, phase))
        try:
            return self._follow(job, tasks, partitions or tasks)
        finally:
            job.close()

    def call(self, phase: str, function: Callable[[], T]) -> T:
        """Call a function that asks Spark, but starts no jobs."""
        with _explaining(self._spark, phase):
            asking = in_thread(function)
            if not wait([asking], _ANSWER_SECONDS if is_connect(self._spark) else None).done:
                raise _gone(self._spark, phase)
            return asking.result()

    def _prepare(self) -> tuple[str | None, bool]:
        return ship_package(self._spark), runs_on_this_machine(self._spark)

    def _follow(self, job: _Job[T], tasks: int, partitions: int) -> T:
        """Wait in this thread, which never calls Spark, and report the progress that other threads count."""
        reported = 0
        running = job.start()
        while not wait([running], _POLL_SECONDS).done:
            if job.is_gone:
                raise _gone(self._spark, job.phase)
            reported = self._report(reported, min(job.completed, partitions) * tasks // partitions)
        result = running.result()
        self._report(reported, tasks)
        return result

    def _report(self, reported: int, now: int) -> int:
        if now > reported:  # a stage that runs again counts from zero
            self._progress.advance(now - reported, 0)
        return max(now, reported)


def described(operation: str, phase: str) -> str:
    """Describe a job to those who look at Spark: `omnigraph load: check keys`."""
    words = re.sub(r"\B([A-Z])", r" \1", f"omnigraph {operation}".strip()).lower()
    return f"{words}: {_PHASES.get(phase, phase)}"


# One job -------------------------------------------------------------------------------------------


class _Job(Generic[T]):
    """A thread that runs an action, and one that counts its tasks and cancels it when it is closed early."""

    def __init__(self, spark: SparkSession, phase: str, action: Callable[[], T], description: str) -> None:
        self.phase = phase
        self.completed = 0
        self.is_gone = False
        self._spark = spark
        self._action = action
        self._description = description
        self._closed = threading.Event()
        self._done = threading.Event()
        self._succeeded = False
        self._watcher: Future[None] | None = None

    def start(self) -> Future[T]:
        # py4j prints an error when a thread that has called the JVM before calls it after its end.
        if _has_died(self._spark):
            raise _died(self.phase, "its JVM has ended")
        with _explaining(self._spark, self.phase):  # a thread that inherits properties asks the JVM for them
            self._control = _control(self._spark, self._description)
            running = in_thread(self._run, self._control.thread)
            self._watcher = in_thread(self._watch, self._control.thread)
            return running

    def close(self) -> None:
        """Leave no task running, whatever happened."""
        self._closed.set()
        if self._watcher is not None:
            wait([self._watcher], _CANCEL_SECONDS)

    def _run(self) -> T:
        try:
            with _explaining(self._spark, self.phase), self._control.labelled():
                result = self._action()
            self._succeeded = True
            return result
        finally:
            self._done.set()

    def _watch(self) -> None:
        """Count completed tasks, and cancel the job once it is closed; a failed job ends with its last task."""
        while not self._done.wait(_POLL_SECONDS):
            if self._closed.is_set():
                self._control.cancel()
            self.completed = self._control.completed()
            self.is_gone = self._control.is_gone()
        if not self._succeeded:
            # A cancelled task goes on until it notices, and would write files after they were cleaned up.
            self._control.settle()


class _Control(Protocol):
    """What differs between a classic session and one of Spark Connect."""

    @property
    def thread(self) -> Callable[..., threading.Thread]:
        """Make threads that inherit what the caller has set for its jobs."""

    def labelled(self) -> Any:
        """Label all jobs that this thread starts in a block, so that they are found and cancelled."""

    def cancel(self) -> None: ...

    def is_gone(self) -> bool:
        """Return whether Spark has gone away in a way that it does not notice itself."""

    def completed(self) -> int:
        """Return how many tasks of Spark have completed, in all stages."""

    def settle(self) -> None:
        """Wait until no task of a failed or cancelled job is running."""


def _control(spark: SparkSession, description: str) -> _Control:
    return _Connect(spark, description) if is_connect(spark) else _Classic(spark, description)


class _Classic:
    """Jobs of a classic session are found by their group, which is unique: cancelling one cancels all its jobs."""

    def __init__(self, spark: SparkSession, description: str) -> None:
        from pyspark import InheritableThread  # noqa: PLC0415

        self.thread: Callable[..., threading.Thread] = partial(InheritableThread, session=spark)
        self._spark = spark
        self._context = spark.sparkContext
        self._description = description
        self._name = f"omnigraph-{uuid.uuid4().hex}"

    @contextmanager
    def labelled(self) -> Iterator[None]:
        context = self._context
        make_active(self._spark)  # Python functions are registered with the active session
        context.setJobGroup(self._name, self._description, interruptOnCancel=True)
        # A broadcast runs in a group of its own, and has the tags of the job that needs it.
        context.addJobTag(self._name)
        # A pool of the caller wins. Ours are few: the fair scheduler keeps each pool for ever.
        if context.getLocalProperty(_POOL) is None:
            context.setLocalProperty(_POOL, f"omnigraph-{next(_NUMBERS) % _POOLS}")
        yield

    def cancel(self) -> None:
        self._context.cancelJobGroup(self._name)
        self._context.cancelJobsWithTag(self._name)

    def is_gone(self) -> bool:
        return False  # a JVM that dies ends all calls to it

    def completed(self) -> int:
        return sum(stage.numCompletedTasks for stage in self._stages())

    def settle(self) -> None:
        deadline = time.monotonic() + _SETTLE_SECONDS
        while time.monotonic() < deadline and any(stage.numActiveTasks for stage in self._stages()):
            time.sleep(_POLL_SECONDS)

    def _stages(self) -> list[SparkStageInfo]:
        tracker = self._context.statusTracker()
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(self._name)]
        stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
        return [stage for stage in stages if stage is not None]


class _Connect:
    """Operations of Spark Connect are found by a tag; the server sends their progress every two seconds."""

    thread = threading.Thread

    def __init__(self, spark: SparkSession, description: str) -> None:
        self._spark = spark
        self._inherited = set(spark.getTags())
        self._tag = f"{description} {uuid.uuid4().hex}".replace(",", "")  # Spark joins tags by commas
        self._presence = Presence(server_of(spark), _ABSENT_SECONDS)
        self._thread: int | None = None
        self._completed: dict[str | None, int] = {}

    @contextmanager
    def labelled(self) -> Iterator[None]:
        self._thread = threading.get_ident()
        for tag in (*self._inherited, self._tag):
            self._spark.addTag(tag)
        self._spark.registerProgressHandler(self._hear)  # type: ignore[arg-type]
        try:
            yield
        finally:
            self._spark.removeProgressHandler(self._hear)  # type: ignore[arg-type]

    def cancel(self) -> None:
        self._spark.interruptTag(self._tag)

    def is_gone(self) -> bool:
        return self._presence.is_over()

    def completed(self) -> int:
        return sum(list(self._completed.values()))

    def settle(self) -> None:
        # A client cannot ask which tasks are running.
        time.sleep(_kill_seconds(self._spark))

    def _hear(
        self,
        *,
        stages: Iterable[Any] | None,
        inflight_tasks: int,  # noqa: ARG002 - part of the protocol
        operation_id: str | None,
        done: bool,  # noqa: ARG002
    ) -> None:
        """Note the progress of an operation: of this job, if it is reported in its thread."""
        if threading.get_ident() == self._thread:
            self._completed[operation_id] = sum(stage.num_completed_tasks for stage in stages or ())


class Presence:
    """Notices when a server that could be connected to has been away for some time.

    Only then: through a proxy, a client may reach a server that nothing else connects to.
    """

    def __init__(self, address: tuple[str, int] | None, patience: float) -> None:
        self._address = address
        self._patience = patience
        self._seen: float | None = None
        self._asked = -math.inf

    def is_over(self) -> bool:
        now = time.monotonic()
        if self._address is not None and now - self._asked > self._patience / 10:
            self._asked = now
            with suppress(OSError), socket.create_connection(self._address, timeout=_CONNECT_SECONDS):
                self._seen = now
        return self._seen is not None and now - self._seen > self._patience


def _kill_seconds(spark: SparkSession) -> float:
    """Return how long a cancelled task may go on, and a little more."""
    text = str(spark.conf.get(_KILL_TIMEOUT, None) or "2s")
    found = re.fullmatch(r"(\d+)\s*(ms|s)?", text)
    return 0.5 + (int(found[1]) / (1 if found[2] == "s" else 1_000) if found else 2.0)


# Errors --------------------------------------------------------------------------------------------


@contextmanager
def _explaining(spark: SparkSession, phase: str) -> Iterator[None]:
    """Translate errors of Spark: raise the error of the task, or a SparkError."""
    from py4j.protocol import Py4JError  # noqa: PLC0415
    from pyspark.errors import PySparkException  # noqa: PLC0415

    try:
        yield
    except (Py4JError, PySparkException, OSError) as error:
        text = str(error)
        raise (_died(phase, text) if _has_died(spark) else _explained(phase, text)) from None


def _has_died(spark: SparkSession) -> bool:
    if is_connect(spark):
        return False
    gateway = spark.sparkContext._gateway  # noqa: SLF001
    return gateway is None or has_died(gateway)


def _died(phase: str, text: str) -> SparkError:
    return SparkError(f"Spark died in the phase '{phase}'", hint="try again: the next call restarts it", detail=text)


def _gone(spark: SparkSession, phase: str) -> SparkError:
    host, port = server_of(spark) or (spark.client.host, "")
    return SparkError(
        f"the server of Spark Connect at {host}:{port} does not answer, in the phase '{phase}'",
        hint="see whether it runs, connect to it again, and try again",
        detail="",
    )


def _explained(phase: str, text: str) -> Exception:
    """Find the error of a task in the output of Spark; without one, Spark itself failed."""
    hint = missing_on_executors(text) or "a worker that was killed may have had too little memory"
    message = f"Spark could not finish the phase '{phase}': {reason_in(text)}"
    return failure_in(text) or SparkError(message, hint=hint, detail=text)
