"""Spark, for the tests of the session, the executor and the data source."""

import pytest

from omnigraph.core.executor import Executor
from omnigraph.ingest.executor import LocalExecutor
from omnigraph.spark.executor import SparkExecutor


@pytest.fixture(params=["local", "spark"])
def executor(request: pytest.FixtureRequest) -> Executor:
    if request.param == "local":
        return LocalExecutor()
    return SparkExecutor(request.getfixturevalue("spark"))
