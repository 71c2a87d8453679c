"""Spark, for the tests of the pipeline."""

import pytest

from omnigraph.pipeline.executor import Executor, LocalExecutor
from omnigraph.pipeline.spark_executor import SparkExecutor
from tests.support.inbox import inbox
from tests.support.s3 import s3_server, s3_uri
from tests.support.spark import _one_cluster, _one_session, spark, spark_cluster

__all__ = ["_one_cluster", "_one_session", "executor", "inbox", "s3_server", "s3_uri", "spark", "spark_cluster"]


@pytest.fixture(params=["local", "spark"])
def executor(request: pytest.FixtureRequest) -> Executor:
    if request.param == "local":
        return LocalExecutor()
    return SparkExecutor(request.getfixturevalue("spark"))
