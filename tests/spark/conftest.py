"""Spark, for the tests of the session, the executor and the data source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import cast

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.connect.session import SparkSession as ConnectSession

import omnigraph
from omnigraph.core.executor import Executor
from omnigraph.ingest.executor import LocalExecutor
from omnigraph.spark.executor import SparkExecutor
from tests.support.outcomes import HISTORY, SCHEMA, Outcome, outcome_of, write_history
from tests.support.spark import ConnectServer


@pytest.fixture(scope="session")
def connect(connect_server: ConnectServer) -> Iterator[SparkSession]:
    # Made directly, it does not become the default session of this process, which has a classic one too.
    session = ConnectSession(connection=connect_server.address)
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


@pytest.fixture(scope="session")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("history")
    write_history(folder)
    return folder


@pytest.fixture(scope="session")
def expected(history: Path, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Outcome]:
    """What the small way does, which goes through no pipeline at all."""
    graph = omnigraph.init(tmp_path_factory.mktemp("small") / "graph", SCHEMA)
    return {name: outcome_of(graph, sorted((history / name).rglob("*.*")), load.mode) for name, load in HISTORY.items()}
