"""The Spark session of this process: started on first use, shared by all threads, silent, restarted if its JVM dies.

All calls into the JVM run in threads of their own (`in_thread`). Ctrl-C raises KeyboardInterrupt in the main thread,
wherever that is; in the middle of a call it would leave the answer to one question for the next one to read.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Self, TypeVar, cast

from omnigraph.core.extras import require
from omnigraph.errors import SparkError
from omnigraph.spark.java import ClassArchive, Java, cache_directory, find_java

if TYPE_CHECKING:
    from py4j.java_gateway import JavaGateway
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

MASTER_VARIABLE = "OMNIGRAPH_SPARK_MASTER"
DEFAULT_MASTER = "local[*,4]"  # plain local[*] never tries a failed task again

_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_SUBMITTED = "PYSPARK_GATEWAY_PORT"  # spark-submit sets it for the program that it runs
_LOOPBACK = "127.0.0.1"
_THIS_MACHINE = {_LOOPBACK, "localhost", "::1", "[::1]"}
# The JVM only schedules, so the second compiler would cost more than it brings.
_LEAN_JVM = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
_PATIENCE = 20.0
_TAIL = 4_000
_T = TypeVar("_T")

_CONF = {
    "spark.app.name": "omnigraph",
    "spark.driver.memory": "1g",
    # Workers keep the memory of one batch for the next: allocating it each time takes a fifth of their time.
    "spark.executorEnv.MALLOC_MMAP_THRESHOLD_": str(2**25),
    "spark.executorEnv.MALLOC_TRIM_THRESHOLD_": str(2**28),
    "spark.executorEnv.MALLOC_TOP_PAD_": str(2**24),
    "spark.executorEnv.LANCE_CPU_THREADS": "1",  # a worker has one core
    "spark.log.level": "ERROR",
    "spark.python.task.killTimeout": "100ms",  # a cancelled task has nothing to finish
    "spark.python.worker.reuse": "true",  # else every task imports lance again
    "spark.scheduler.mode": "FAIR",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
_LOCAL_CONF = {"spark.sql.shuffle.partitions": "8"}
_CLUSTER_CONF = {"spark.executor.extraJavaOptions": " ".join(_LEAN_JVM)}
_LOOPBACK_CONF = {"spark.driver.bindAddress": _LOOPBACK, "spark.driver.host": _LOOPBACK}


@dataclass(frozen=True, slots=True)
class _SparkOptions:
    """The master and settings that a caller asks for."""

    master: str | None
    conf: dict[str, str]


@dataclass(frozen=True, slots=True)
class _RunningSpark:
    """The context that this module started, and its JVM if it was launched for it."""

    context: SparkContext
    options: _SparkOptions
    jvm: JavaGateway | None


_LOCK = threading.RLock()
_running: _RunningSpark | None = None


def spark_session(master: str | None = None, conf: Mapping[str, str] | None = None) -> SparkSession:
    """Return the session that all threads share; start it if there is none.

    A session that you started yourself is returned as it is. The master is the argument, or the variable
    OMNIGRAPH_SPARK_MASTER, or this machine. `conf` is added to the default settings, and overrides them.
    """
    connected = _connect_session()
    if connected is not None:
        return connected
    options = _SparkOptions(master, dict(conf or {}))
    session = _active_session(in_thread(lambda: _session_of(_context(options))).result())
    make_active(session)
    return session


def stop_session() -> None:
    """Stop the session that this module started, and its JVM. A session that you started is left alone."""
    in_thread(_stop).result()


def in_thread(call: Callable[[], _T], thread: Callable[..., threading.Thread] = threading.Thread) -> Future[_T]:
    """Run a call in a daemon thread, so that Ctrl-C interrupts waiting for it, but not the call."""
    # A ThreadPoolExecutor would not do: its threads are joined when Python exits, even if the JVM hangs.
    future = _Call[_T]()
    thread(target=future.run, args=(call,), daemon=True).start()
    return future


class _Call(Future[_T]):
    """The future of a call; everything that the call raises is raised again where its result is awaited."""

    def run(self, call: Callable[[], _T]) -> None:
        with self:
            self.set_result(call())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if error is not None:
            self.set_exception(error)
        return True


def _connect_session() -> SparkSession | None:
    """Return the session of a caller that uses Spark Connect: the active one of this thread, else the default one."""
    if "pyspark.sql.connect.session" not in sys.modules:
        return None
    from pyspark.sql import is_remote  # noqa: PLC0415
    from pyspark.sql.connect.session import SparkSession as ConnectSession  # noqa: PLC0415

    session = ConnectSession.getActiveSession()
    if session is None and is_remote():
        session = ConnectSession._get_default_session()  # noqa: SLF001
    return cast("SparkSession | None", session)


def _active_session(other: SparkSession) -> SparkSession:
    """Return the active session of this thread, which may have settings of its own; without one, the other."""
    SparkSession = type(other)  # noqa: N806 - the class itself is meant
    # Asked in the JVM: pyspark remembers the session that made the last DataFrame, in whichever thread.
    found = SparkSession._get_j_spark_session_class(other._jvm).getActiveSession()  # noqa: SLF001
    if not found.isDefined() or found.get().sparkContext().isStopped():
        return other
    for known in (other, SparkSession._activeSession):  # noqa: SLF001
        if known is not None and known._jsparkSession.equals(found.get()):  # noqa: SLF001
            return known
    return SparkSession(other.sparkContext, found.get())


def _session_of(context: SparkContext) -> SparkSession:
    from pyspark.sql import SparkSession  # noqa: PLC0415

    with _LOCK:
        session = SparkSession._instantiatedSession  # noqa: SLF001 - `getActiveSession` knows this thread only
        return session if session is not None and session.sparkContext is context else SparkSession(context)


def make_active(session: SparkSession) -> None:
    """Make it the active session of this thread: the thread that started it was another one."""
    if is_connect(session):
        return
    SparkSession = type(session)  # noqa: N806 - the class itself is meant
    SparkSession._get_j_spark_session_class(session._jvm).setActiveSession(session._jsparkSession)  # noqa: SLF001


def _context(options: _SparkOptions) -> SparkContext:
    global _running  # noqa: PLW0603 - there is one context in a process, by the nature of Spark
    with _LOCK:
        context = _active_context()
        if context is None:
            _running = _start(options)
            return _running.context
        if _running is not None and _running.context is context:
            _check_same(options, _running.options)
        return context


def _check_same(options: _SparkOptions, running: _SparkOptions) -> None:
    """Refuse other options than those of the running context: a process has one context."""
    same_master = options.master in (None, running.master)
    if not same_master or (options.conf and options.conf != running.conf):
        raise SparkError(
            f"Spark is running already, with master {running.master} and {_named(running.conf)}",
            hint="call `stop_session` first, or use the same options",
            detail=f"asked for: master {options.master}, {_named(options.conf)}",
        )


def _named(conf: Mapping[str, str]) -> str:
    """Name settings without their values: some are passwords."""
    return f"own values of {', '.join(sorted(conf))}" if conf else "no settings of its own"


# Running contexts ----------------------------------------------------------------------------------


def _active_context() -> SparkContext | None:
    """Return the context of this process, ours or the caller's; clear away a dead one."""
    if "pyspark" not in sys.modules:
        return None
    from pyspark import SparkContext  # noqa: PLC0415

    context = SparkContext._active_spark_context  # noqa: SLF001 - there is no public way to ask without making one
    gateway = SparkContext._gateway  # noqa: SLF001
    if gateway is not None and has_died(gateway):
        _forget(context, gateway)
        return None
    # A context that the JVM has stopped by itself still counts as active for pyspark.
    if context is not None and context._jsc.sc().isStopped():  # noqa: SLF001
        context.stop()
        return None
    return context


def has_died(gateway: JavaGateway) -> bool:
    process: subprocess.Popen[bytes] | None = gateway.proc
    return process is not None and process.poll() is not None


def _forget(context: SparkContext | None, gateway: JavaGateway) -> None:
    """Make pyspark forget a JVM that is gone: it would keep calling it."""
    from py4j.protocol import Py4JError  # noqa: PLC0415
    from pyspark import SparkContext  # noqa: PLC0415

    if context is not None:
        context._jsc = None  # noqa: SLF001 - or `stop` would call the dead JVM
        context.stop()
    with suppress(Py4JError, OSError):
        gateway.shutdown()
    with suppress(OSError):
        gateway.proc.stdin.close()
    SparkContext._gateway = None  # noqa: SLF001
    SparkContext._jvm = None  # noqa: SLF001
    if "pyspark.sql" in sys.modules:
        from pyspark.sql import SparkSession  # noqa: PLC0415

        SparkSession._instantiatedSession = None  # noqa: SLF001
        SparkSession._activeSession = None  # noqa: SLF001


def _stop() -> None:
    global _running
    with _LOCK:
        running, _running = _running, None
        if running is None:
            return
        gateway = running.jvm
        if gateway is not None and has_died(gateway):
            _forget(running.context, gateway)
            return
        running.context.stop()
        if gateway is not None:
            _end(gateway)


def _end(gateway: JavaGateway) -> None:
    """End a JVM; it may go on writing its class archive after this returns."""
    _forget(None, gateway)
    wait([in_thread(gateway.proc.wait)], _PATIENCE)


# Starting ------------------------------------------------------------------------------------------


def _start(options: _SparkOptions) -> _RunningSpark:
    require("pyspark", "omnigraph[spark]")
    _check_answers(_master(options))
    java = find_java()  # before pyspark is imported, which takes a second and fails without Java in its own words
    with _environment(_variables(_master(options))):
        from py4j.protocol import Py4JError  # noqa: PLC0415
        from pyspark import SparkContext  # noqa: PLC0415
        from pyspark.errors import PySparkException  # noqa: PLC0415

        conf = _settings(options, java)
        # A caller who stopped a context leaves its JVM behind; pyspark can only start the next one in there.
        launched = _launch(conf) if SparkContext._gateway is None else None  # noqa: SLF001
        try:
            context = SparkContext(conf=conf, gateway=launched)
        except (Py4JError, PySparkException, OSError, ValueError) as error:
            detail = str(error)
            if launched is not None:
                _end(launched)
            raise _not_started(detail) from None
    return _RunningSpark(context, _SparkOptions(context.master, options.conf), launched)


def _master(options: _SparkOptions) -> str:
    return options.master or options.conf.get("spark.master") or os.environ.get(MASTER_VARIABLE) or DEFAULT_MASTER


def _check_answers(master: str) -> None:
    """Refuse the address of a cluster where nothing listens: Spark would try for a minute, and then say less."""
    addresses = re.findall(r"([^,/]+):(\d+)", master.removeprefix("spark://")) if master.startswith("spark://") else []
    for host, port in addresses:
        with suppress(OSError), socket.create_connection((host.strip("[]"), int(port)), timeout=_PATIENCE):
            return
    if addresses:
        hint = "see whether the master of the cluster runs there, and whether this machine can reach it"
        raise SparkError(f"no master of a Spark cluster answers at {master}", hint=hint, detail="")


def _settings(options: _SparkOptions, java: Java) -> SparkConf:
    """Combine our settings with those of the caller, who wins; under spark-submit, ours are left out."""
    from pyspark import SparkConf  # noqa: PLC0415

    conf = SparkConf()
    ours = {} if _SUBMITTED in os.environ else _defaults(_master(options), java)
    theirs = dict(options.conf)
    if _JAVA_OPTIONS in theirs and _JAVA_OPTIONS in ours:
        # Theirs last: of an option that is given twice the JVM takes the last.
        theirs[_JAVA_OPTIONS] = f"{ours[_JAVA_OPTIONS]} {theirs[_JAVA_OPTIONS]}"
    for name, value in {**ours, **theirs}.items():
        conf.set(name, value)
    if options.master is not None:
        conf.setMaster(options.master)
    return conf


def _defaults(master: str, java: Java) -> dict[str, str]:
    local = _LOCAL_CONF if is_local(master) else _CLUSTER_CONF
    loopback = _LOOPBACK_CONF if _is_here(master) else {}
    java_options = " ".join([*_LEAN_JVM, _error_file(), *_archive_options(java)])
    return {**_CONF, **local, **loopback, "spark.master": master, _JAVA_OPTIONS: java_options}


def _is_here(master: str) -> bool:
    """Return whether all of Spark runs on this machine, so that no other machine needs to reach it."""
    return is_local(master) or master.startswith((f"spark://{_LOOPBACK}:", "spark://localhost:"))


def _error_file() -> str:
    """Return the option that keeps the report of a crashed JVM out of the working directory."""
    return f'"-XX:ErrorFile={tempfile.gettempdir()}/omnigraph-jvm-%p.log"'


def _archive_options(java: Java) -> list[str]:
    import pyspark  # noqa: PLC0415

    home = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
    try:
        return ClassArchive.of(java, home / "jars", cache_directory()).options()
    except (OSError, RuntimeError):  # no jars, or no home to keep it in
        return []


def _variables(master: str) -> dict[str, str]:
    """Return settings that Spark reads only from the environment."""
    variables = {"PYSPARK_PYTHON": sys.executable, "SPARK_LAUNCHER_OPTS": " ".join(_LEAN_JVM)}
    return {**variables, "SPARK_LOCAL_IP": _LOOPBACK} if _is_here(master) else variables


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables for a block; those that the caller has set keep their values."""
    ours = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            os.environ.pop(name, None)


def _launch(conf: SparkConf) -> JavaGateway:
    """Start a JVM without any output: all of it goes to an unnamed file, read only if the start fails."""
    from pyspark.errors import PySparkException  # noqa: PLC0415
    from pyspark.java_gateway import launch_gateway  # noqa: PLC0415

    with tempfile.TemporaryFile() as log, _calm_launch():
        with suppress(PySparkException):
            return launch_gateway(conf, popen_kwargs={"stdout": log, "stderr": log})  # type: ignore[no-untyped-call]
        raise _not_started(_tail(log))


@contextmanager
def _calm_launch() -> Iterator[None]:
    """Suppress warnings about forking: an exec follows the fork at once."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="lance is not fork-safe")
        warnings.filterwarnings("ignore", message="This process .* is multi-threaded")
        warnings.simplefilter("ignore", ResourceWarning)  # pyspark leaves the pipe of a JVM that fails open
        yield


def _tail(log: IO[bytes]) -> str:
    log.seek(max(0, log.seek(0, os.SEEK_END) - _TAIL))
    return log.read().decode(errors="replace").strip()


def _not_started(detail: str) -> SparkError:
    return SparkError(
        f"Spark did not start: {reason_in(detail)}",
        hint="check the master and the settings; the `detail` of this error is the output of Spark",
        detail=detail,
    )


def reason_in(text: str) -> str:
    """Find the line with the reason in the output of Java."""
    reason = re.search(r"^.*(?:Exception|Error): (.*\S)", text, re.MULTILINE)
    return reason[1] if reason else text.strip().partition("\n")[0] or "no reason given"


def missing_on_executors(text: str) -> str | None:
    """Return what to do if a module was not found; None if that is not what happened."""
    found = re.search(r"No module named '?([\w.]+)", text)
    if found is None:
        return None
    return (
        f"install {found[1].partition('.')[0]} where Spark runs its tasks: the dependencies of omnigraph are needed "
        "there, in the same versions; PYSPARK_PYTHON names the Python that runs them"
    )


# Sessions of all kinds -----------------------------------------------------------------------------


def is_connect(spark: SparkSession) -> bool:
    """Return whether a session is a client of Spark Connect, which has no context and no JVM."""
    return any(base.__module__.startswith("pyspark.sql.connect.") for base in type(spark).__mro__)


def runs_on_this_machine(spark: SparkSession) -> bool:
    """Return whether its tasks run as processes of this machine."""
    if not is_connect(spark):
        return is_local(spark.sparkContext.master)
    return spark.client.host in _THIS_MACHINE and is_local(spark.conf.get("spark.master", None))


def server_of(spark: SparkSession) -> tuple[str, int] | None:
    """Return host and port of the server that a client of Spark Connect talks to; None if it has its own ways."""
    # Of the ways to address a server, the one by URL has a port, and no public name for it.
    host, _, port = str(getattr(spark.client._builder, "endpoint", "")).rpartition(":")  # noqa: SLF001
    return (host.strip("[]"), int(port)) if host and port.isdigit() else None


def parallelism(spark: SparkSession) -> int:
    """Return how many tasks run at once, or 0 if a server does not say."""
    if is_connect(spark):
        return int(spark.conf.get("spark.default.parallelism", None) or 0)
    return spark.sparkContext.defaultParallelism


def is_local(master: str | None) -> bool:
    """Return whether tasks run as child processes of this one."""
    return master is not None and master.startswith("local") and not master.startswith("local-cluster")
