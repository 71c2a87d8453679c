"""Spark for tests: the one session of this process, a server of Spark Connect, and a cluster."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from omnigraph.spark import session
from omnigraph.spark.java import ClassArchive, cache_directory, find_java
from omnigraph.spark.session import make_active, spark_session, stop_session

if TYPE_CHECKING:  # this module is imported for all tests, and PySpark takes its time
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
PATIENCE = 900
_SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
_CONF = {
    "spark.executor.memory": "512m",
    "spark.python.task.killTimeout": "100ms",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
}
_CONNECT_CONF = _CONF | {
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": "0",
    "spark.connect.progress.reportInterval": "100ms",
    "spark.eventLog.compress": "false",
    "spark.eventLog.enabled": "true",
}


@pytest.fixture(scope="session")
def _one_session() -> Iterator[None]:
    yield
    stop_session()


@pytest.fixture
def spark(_one_session: None) -> SparkSession:
    """The session that all tests of this process share, started by the first."""
    found = spark_session()
    # A test that has made a DataFrame with a session of its own leaves that one active.
    shared = type(found)._instantiatedSession or found
    make_active(shared)
    return shared


@contextmanager
def only_where_marked(item: pytest.Item) -> Iterator[None]:
    """A test that starts the session of this process without the marker would do so outside of the group of Spark."""
    before = session._running
    yield
    assert before or not session._running or item.get_closest_marker("spark"), "this test starts Spark; mark it `spark`"


class Cluster:
    """A standalone master and its workers, each a process of its own, with one core for each worker."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._master, log = self._start("master.Master", "127.0.0.1", "--port", "0")
        self.master = _found(log, r"spark://127\.0\.0\.1:\d+", self._master)
        self._workers: dict[str, subprocess.Popen[bytes]] = {}

    def replenish(self, count: int = 2) -> None:
        """See to it that there are so many workers."""
        self._workers = {host: worker for host, worker in self._workers.items() if worker.poll() is None}
        options = ["--port", "0", "--cores", "1", "--memory", "2g", "--work-dir", str(self._directory / "work")]
        # Each has an address of its own: Spark starts no copy of a slow task on the same one.
        free = [f"127.0.0.{at + 1}" for at in range(count) if f"127.0.0.{at + 1}" not in self._workers]
        started = {host: self._start("worker.Worker", host, *options, self.master) for host in free}
        for host, (worker, log) in started.items():
            _found(log, "Successfully registered with master", worker)
            self._workers[host] = worker

    def kill_a_worker(self) -> None:
        _, worker = self._workers.popitem()
        worker.kill()
        worker.wait()

    @contextmanager
    def submitted(self, code: str, *arguments: object) -> Iterator[None]:
        """Run a Python program by spark-submit, to its end."""
        file, log = self._directory / "submitted.py", self._directory / "submitted.log"
        file.write_text(code, encoding="utf-8")
        command = [str(_home() / "bin" / "spark-submit"), "--master", self.master, *_settings(_CONF), str(file)]
        running = _logged([*command, *map(str, arguments)], log)
        try:
            yield
            assert running.wait(timeout=PATIENCE) == 0, log.read_text(encoding="utf-8")
        finally:
            running.kill()
            running.wait()

    def stop(self) -> None:
        for process in [*self._workers.values(), self._master]:
            process.send_signal(signal.SIGTERM)
        for process in [*self._workers.values(), self._master]:
            process.wait(timeout=PATIENCE)

    def _start(self, role: str, host: str, *options: str) -> tuple[subprocess.Popen[bytes], Path]:
        log = self._directory / f"{role}-{time.monotonic_ns()}.log"
        command = [str(_home() / "bin" / "spark-class"), f"org.apache.spark.deploy.{role}", "--host", host]
        return _logged([*command, "--webui-port", "0", *options], log), log


def _logged(command: list[str], log: Path, **variables: str) -> subprocess.Popen[bytes]:
    """Start a program of Spark, which is talkative."""
    with log.open("wb") as opened:
        return subprocess.Popen(
            command,
            cwd=log.parent,
            env=os.environ | _environment() | variables,
            stdin=subprocess.DEVNULL,
            stdout=opened,
            stderr=opened,
        )


def _settings(conf: dict[str, str]) -> list[str]:
    lean = {f"spark.{role}.extraJavaOptions": _lean() for role in ("driver", "executor")}
    return [word for name, value in (lean | conf).items() for word in ("--conf", f"{name}={value}")]


@cache
def _home() -> Path:
    found = find_spec("pyspark")
    assert found is not None
    return Path(str(found.origin)).resolve().parent


@cache
def _lean() -> str:
    """Options of a JVM that lives a short time; most of its start is loading classes, and there may be an archive."""
    archive = ClassArchive.of(find_java(), _home() / "jars", cache_directory()).file
    return "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC" + f" -XX:SharedArchiveFile={archive}" * archive.exists()


def _environment() -> dict[str, str]:
    return {
        "SPARK_HOME": str(_home()),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": _lean(),
        "SPARK_LAUNCHER_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),  # for the steps of the tests; our package travels with the driver
    }


def _found(log: Path, pattern: str, writer: subprocess.Popen[bytes]) -> str:
    """Wait for something in the log of a running program."""
    deadline = time.monotonic() + PATIENCE
    while not (match := re.search(pattern, log.read_text(encoding="utf-8"))):
        assert writer.poll() is None, log.read_text(encoding="utf-8")
        assert time.monotonic() < deadline, log.read_text(encoding="utf-8")
        time.sleep(0.05)
    return match[0]


@pytest.fixture(scope="session")
def _one_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    yield cluster
    cluster.stop()


@pytest.fixture
def spark_cluster(_one_cluster: Cluster) -> Cluster:
    """A cluster with two workers, whatever the test before has done to it. Its driver is a process of its own."""
    _one_cluster.replenish()
    return _one_cluster


@dataclass(frozen=True, slots=True)
class ConnectServer:
    """Where a server of Spark Connect listens, and where it writes its logs."""

    address: str
    directory: Path


@pytest.fixture(scope="session")
def connect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    """A server of Spark Connect, as somebody else would run it: it does not know our package."""
    directory = tmp_path_factory.mktemp("connect")
    settings = _settings(_CONNECT_CONF | {"spark.eventLog.dir": str(directory)})
    submit = [str(_home() / "bin" / "spark-submit"), "--class", _SERVER, "--master", "local[2,4]", *settings]
    log = directory / "server.log"
    server = _logged([*submit, "spark-internal"], log, SPARK_DAEMON_MEMORY="1g")
    port = _found(log, r"Connect server started at: \S*:\d+", server).rpartition(":")[2]
    yield ConnectServer(f"sc://127.0.0.1:{port}", directory)
    server.terminate()
    server.wait(timeout=PATIENCE)


@contextmanager
def program(code: str, *arguments: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """Run a Python program that treats warnings as errors, as if in a terminal of its own."""
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", code, *arguments],
        cwd=ROOT,
        env=os.environ | variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def said(code: str, *arguments: str, **variables: str) -> tuple[int, str, str]:
    """Run a program to its end: its exit code, and what it has printed on stdout and on stderr."""
    with program(code, *arguments, **variables) as process:
        out, err = process.communicate(timeout=PATIENCE)
        return process.returncode, out, err
