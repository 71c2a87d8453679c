"""Spark for tests: the one session of this process, and a cluster of a master and two workers."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from omnigraph.spark import session
from omnigraph.spark.session import spark_session, stop_session

if TYPE_CHECKING:  # this module is imported for all tests, and PySpark takes its time
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
PATIENCE = 300
_LEAN = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@pytest.fixture(scope="session")
def _one_session() -> Iterator[None]:
    yield
    stop_session()


@pytest.fixture
def spark(_one_session: None) -> SparkSession:
    """The session that all tests of this process share, started by the first."""
    return spark_session()


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
        self._master, log = self._start("master.Master", "--port", "0")
        self.master = _found(log, r"spark://127\.0\.0\.1:\d+")
        self._workers: list[subprocess.Popen[bytes]] = []

    def replenish(self, count: int = 2) -> None:
        """See to it that there are so many workers."""
        self._workers = [worker for worker in self._workers if worker.poll() is None]
        options = ["--port", "0", "--cores", "1", "--memory", "2g", "--work-dir", str(self._directory / "work")]
        started = [self._start("worker.Worker", *options, self.master) for _ in range(count - len(self._workers))]
        self._workers += [worker for worker, _ in started]
        for _, log in started:
            _found(log, "Successfully registered with master")

    def kill_a_worker(self) -> None:
        worker = self._workers.pop()
        worker.kill()
        worker.wait()

    def stop(self) -> None:
        for process in [*self._workers, self._master]:
            process.send_signal(signal.SIGTERM)
        for process in [*self._workers, self._master]:
            process.wait(timeout=PATIENCE)

    def _start(self, role: str, *options: str) -> tuple[subprocess.Popen[bytes], Path]:
        found = find_spec("pyspark")
        assert found is not None
        home = Path(str(found.origin)).parent
        log = self._directory / f"{role}-{time.monotonic_ns()}.log"
        command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{role}", "--host", "127.0.0.1"]
        with log.open("wb") as opened:
            process = subprocess.Popen(
                [*command, "--webui-port", "0", *options],
                env=os.environ | _environment(home),
                stdin=subprocess.DEVNULL,
                stdout=opened,
                stderr=opened,
            )
        return process, log


def _environment(home: Path) -> dict[str, str]:
    return {
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": _LEAN,
        "SPARK_LAUNCHER_OPTS": _LEAN,
        "PYTHONPATH": str(ROOT),  # for the steps of the tests; our package travels with the driver
    }


def _found(log: Path, pattern: str) -> str:
    """Wait for something in a log."""
    deadline = time.monotonic() + PATIENCE
    while not (match := re.search(pattern, log.read_text(encoding="utf-8"))):
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
