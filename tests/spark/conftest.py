"""Spark, for the tests of the session, the executor and the data source."""

import pytest

from omnigraph.ingest.executor import Executor, LocalExecutor
from omnigraph.spark.executor import SparkExecutor
from tests.support.s3 import s3_server, s3_uri
from tests.support.spark import _one_cluster, _one_session, spark, spark_cluster

__all__ = ["_one_cluster", "_one_session", "executor", "s3_server", "s3_uri", "spark", "spark_cluster"]


@pytest.fixture(params=["local", "spark"])
def executor(request: pytest.FixtureRequest) -> Executor:
    if request.param == "local":
        return LocalExecutor()
    return SparkExecutor(request.getfixturevalue("spark"))
