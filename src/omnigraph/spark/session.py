"""The Spark session: made when it is first needed, shared by all threads, quiet, and made anew if its JVM dies."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from omnigraph.core.extras import require
from omnigraph.errors import SparkError
from omnigraph.spark.class_archive import ClassArchive, cache_directory
from omnigraph.spark.errand import Errand
from omnigraph.spark.java import Java, find_java
from omnigraph.spark.shipping import is_local

if TYPE_CHECKING:
    from py4j.java_gateway import JavaGateway
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

MASTER_VARIABLE = "OMNIGRAPH_SPARK_MASTER"
DEFAULT_MASTER = "local[*,4]"  # plain local[*] never tries a failed task again

_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_SUBMITTED = "PYSPARK_GATEWAY_PORT"  # spark-submit sets it for the program that it runs
_LOOPBACK = "127.0.0.1"
# The JVM only schedules, so the second compiler would cost more than it brings.
_LEAN_JVM = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
_PATIENCE = 20.0
_TAIL = 4_000

_CONF = {
    "spark.app.name": "omnigraph",
    "spark.driver.memory": "1g",
    # A worker keeps the memory of one batch for the next: to get it anew each time takes a fifth of its time.
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
class _Wish:
    """What a caller asks for."""

    master: str | None
    conf: dict[str, str]


@dataclass(frozen=True, slots=True)
class _Running:
    """The context that this module has made, and the JVM, if it was launched for it."""

    context: SparkContext
    wish: _Wish
    jvm: JavaGateway | None


EXTRA = "omnigraph[spark]"
_LOCK = threading.RLock()
_running: _Running | None = None


def spark_session(master: str | None = None, conf: Mapping[str, str] | None = None) -> SparkSession:
    """Return the session that all threads share; start it if there is none.

    A session that the caller has made himself is returned as it is. The master is the argument, or the variable
    OMNIGRAPH_SPARK_MASTER, or this machine. `conf` is added to our own settings, and wins.
    """
    require("pyspark", EXTRA)
    wish = _Wish(master, dict(conf or {}))
    session = Errand(lambda: _session_of(_context(wish))).result()
    make_active(session)
    return session


def spark_context(master: str | None = None, conf: Mapping[str, str] | None = None) -> SparkContext:
    """Do the same without Spark SQL, which takes a second more to start."""
    require("pyspark", EXTRA)
    wish = _Wish(master, dict(conf or {}))
    return Errand(lambda: _context(wish)).result()


def begin_session(master: str | None = None, conf: Mapping[str, str] | None = None) -> None:
    """Start the context in the background, for somebody who will need it soon. He will also meet what goes wrong."""
    wish = _Wish(master, dict(conf or {}))
    Errand(lambda: _context(wish))


def stop_session() -> None:
    """Stop what this module has started, its JVM included. The session of a caller is left alone."""
    Errand(_stop).result()


def _session_of(context: SparkContext) -> SparkSession:
    from pyspark.sql import SparkSession  # noqa: PLC0415

    with _LOCK:
        session = SparkSession._instantiatedSession  # noqa: SLF001 - `getActiveSession` knows this thread only
        return session if session is not None and session.sparkContext is context else SparkSession(context)


def make_active(session: SparkSession) -> None:
    """Make it the session of this thread, as whoever asks for one expects; a thread of ours has got it."""
    SparkSession = type(session)  # noqa: N806 - the class itself is meant
    SparkSession._get_j_spark_session_class(session._jvm).setActiveSession(session._jsparkSession)  # noqa: SLF001


def _context(wish: _Wish) -> SparkContext:
    global _running  # noqa: PLW0603 - there is one context in a process, by the nature of Spark
    with _LOCK:
        context = _active_context()
        if context is None:
            _running = _start(wish)
            return _running.context
        if _running is not None and _running.context is context:
            _check_same(wish, _running.wish)
        return context


def _check_same(wish: _Wish, running: _Wish) -> None:
    """One process has one context. Never give somebody another one than he asks for without a word."""
    same_master = wish.master in (None, running.master)
    if not same_master or (wish.conf and wish.conf != running.conf):
        raise SparkError(
            f"Spark is running already, with master {running.master} and settings {running.conf}",
            hint="call `stop_session` first, or ask for the same",
            detail=f"asked for: master {wish.master}, settings {wish.conf}",
        )


# Contexts that are there ---------------------------------------------------------------------------


def _active_context() -> SparkContext | None:
    """Find the context of this process, ours or the caller's, and clear away a dead one."""
    if "pyspark" not in sys.modules:
        return None
    from pyspark import SparkContext  # noqa: PLC0415

    context = SparkContext._active_spark_context  # noqa: SLF001 - there is no public way to ask without making one
    gateway = SparkContext._gateway  # noqa: SLF001
    if gateway is not None and has_died(gateway):
        _forget(context, gateway)
        return None
    if context is not None and context._jsc.sc().isStopped():  # noqa: SLF001
        context.stop()
        return None
    return context


def has_died(gateway: JavaGateway) -> bool:
    process: subprocess.Popen[bytes] | None = gateway.proc
    return process is not None and process.poll() is not None


def _forget(context: SparkContext | None, gateway: JavaGateway) -> None:
    """Make pyspark forget a JVM that is gone: it would try to talk to it for ever."""
    from py4j.protocol import Py4JError  # noqa: PLC0415
    from pyspark import SparkContext  # noqa: PLC0415

    if context is not None:
        context._jsc = None  # noqa: SLF001 - there is nobody to tell any more
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
    """End a JVM. It may still write its class archive when we have gone on."""
    _forget(None, gateway)
    Errand(gateway.proc.wait).wait(_PATIENCE)


# Starting ------------------------------------------------------------------------------------------


def _start(wish: _Wish) -> _Running:
    java = find_java()  # before pyspark is imported: without Java it would only be in the way
    with _environment(_variables(_master(wish))):
        from py4j.protocol import Py4JError  # noqa: PLC0415
        from pyspark import SparkContext  # noqa: PLC0415
        from pyspark.errors import PySparkException  # noqa: PLC0415

        conf = _settings(wish, java)
        # There may be the JVM of a caller who has stopped his context. It is taken as it is.
        launched = _launch(conf) if SparkContext._gateway is None else None  # noqa: SLF001
        try:
            context = SparkContext(conf=conf, gateway=launched)
        except (Py4JError, PySparkException, OSError, ValueError) as error:
            detail = str(error)
            if launched is not None:
                _end(launched)
            raise _not_started(detail) from None
    return _Running(context, _Wish(context.master, wish.conf), launched)


def _master(wish: _Wish) -> str:
    return wish.master or wish.conf.get("spark.master") or os.environ.get(MASTER_VARIABLE) or DEFAULT_MASTER


def _settings(wish: _Wish, java: Java) -> SparkConf:
    """Put together ours and those of the caller, who wins; what spark-submit was told stays as it is."""
    from pyspark import SparkConf  # noqa: PLC0415

    conf = SparkConf()
    ours = {} if _SUBMITTED in os.environ else _defaults(_master(wish), java)
    theirs = dict(wish.conf)
    if _JAVA_OPTIONS in theirs and _JAVA_OPTIONS in ours:
        theirs[_JAVA_OPTIONS] = f"{ours[_JAVA_OPTIONS]} {theirs[_JAVA_OPTIONS]}"
    for name, value in {**ours, **theirs}.items():
        conf.set(name, value)
    if wish.master is not None:
        conf.setMaster(wish.master)
    return conf


def _defaults(master: str, java: Java) -> dict[str, str]:
    local = _LOCAL_CONF if is_local(master) else _CLUSTER_CONF
    loopback = _LOOPBACK_CONF if _is_here(master) else {}
    options = " ".join([*_LEAN_JVM, _error_file(), *_archive_options(java)])
    return {**_CONF, **local, **loopback, "spark.master": master, _JAVA_OPTIONS: options}


def _is_here(master: str) -> bool:
    """Tell whether all of Spark runs on this machine, where nobody else needs to reach it."""
    return is_local(master) or master.startswith((f"spark://{_LOOPBACK}:", "spark://localhost:"))


def _error_file() -> str:
    """Where a JVM that crashes leaves its report: not where the user happens to be."""
    return f'"-XX:ErrorFile={tempfile.gettempdir()}/omnigraph-jvm-%p.log"'


def _archive_options(java: Java) -> list[str]:
    import pyspark  # noqa: PLC0415

    home = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
    try:
        return ClassArchive.of(java, home / "jars", cache_directory()).options()
    except (OSError, RuntimeError):  # no jars, or no home to keep it in
        return []


def _variables(master: str) -> dict[str, str]:
    """What Spark takes from the environment only."""
    variables = {"PYSPARK_PYTHON": sys.executable, "SPARK_LAUNCHER_OPTS": " ".join(_LEAN_JVM)}
    return {**variables, "SPARK_LOCAL_IP": _LOOPBACK} if _is_here(master) else variables


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables for the length of a block; those that the caller has set stay as they are."""
    ours = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            os.environ.pop(name, None)


def _launch(conf: SparkConf) -> JavaGateway:
    """Start a JVM that is silent from its first moment on: all it says goes into a file without a name."""
    from pyspark.errors import PySparkException  # noqa: PLC0415
    from pyspark.java_gateway import launch_gateway  # noqa: PLC0415

    with tempfile.TemporaryFile() as log, _calm_launch():
        with suppress(PySparkException):
            return launch_gateway(conf, popen_kwargs={"stdout": log, "stderr": log})  # type: ignore[no-untyped-call]
        raise _not_started(_tail(log))


@contextmanager
def _calm_launch() -> Iterator[None]:
    """Launch without warnings: those about forking do not mean a fork with an exec at once."""
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
        hint="check the master and the settings; `detail` of this error has all that Spark said",
        detail=detail,
    )


def reason_in(text: str) -> str:
    """Find the line that says why, in a long text of Java."""
    reason = re.search(r"^.*(?:Exception|Error): (.*\S)", text, re.MULTILINE)
    return reason[1] if reason else text.strip().partition("\n")[0] or "it does not say why"
