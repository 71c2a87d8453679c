"""Spark, for the tests of the session, the executor and the data source."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pyspark
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.connect.session import SparkSession as ConnectSession

from omnigraph.core.executor import Executor
from omnigraph.ingest.executor import LocalExecutor
from omnigraph.spark.executor import SparkExecutor
from tests.support.spark import PATIENCE, _environment, _found

_SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
_OPTIONS = {
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": "0",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.ui.enabled": "false",
}


@pytest.fixture(scope="session")
def _connect_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of Spark Connect, as somebody else would run it: it does not know our package."""
    home = Path(pyspark.__file__).parent
    directory = tmp_path_factory.mktemp("connect")
    settings = [word for name, value in _OPTIONS.items() for word in ("--conf", f"{name}={value}")]
    submit = [str(home / "bin" / "spark-submit"), "--class", _SERVER, "--master", "local[2,4]", *settings]
    log = directory / "server.log"
    with log.open("wb") as opened:
        server = subprocess.Popen(
            [*submit, "spark-internal"],
            env=os.environ | _environment(home) | {"PYSPARK_PYTHON": sys.executable, "SPARK_DAEMON_MEMORY": "1g"},
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=opened,
            stderr=opened,
        )
    yield "sc://127.0.0.1:" + _found(log, r"Connect server started at: \S*:\d+").rpartition(":")[2]
    server.terminate()
    server.wait(timeout=PATIENCE)


@pytest.fixture(scope="session")
def connect(_connect_address: str) -> Iterator[SparkSession]:
    # Made directly, it does not become the default session of this process, which has a classic one too.
    session = ConnectSession(connection=_connect_address)
    yield cast("SparkSession", session)
    session.stop()


def _session(request: pytest.FixtureRequest) -> SparkSession:
    fixture = "connect" if request.param.startswith("connect") else "spark"
    session: SparkSession = request.getfixturevalue(fixture)
    return session


@pytest.fixture(params=["spark", "connect-spark"])
def session(request: pytest.FixtureRequest) -> SparkSession:
    """A session of each kind."""
    return _session(request)


@pytest.fixture(params=["local", "spark", "connect-spark"])
def executor(request: pytest.FixtureRequest) -> Executor:
    return LocalExecutor() if request.param == "local" else SparkExecutor(_session(request))
