"""Spark and places to load from, for loads and exports."""

from tests.support.inbox import inbox
from tests.support.s3 import s3_server, s3_uri
from tests.support.spark import _one_cluster, _one_session, spark, spark_cluster

__all__ = ["_one_cluster", "_one_session", "inbox", "s3_server", "s3_uri", "spark", "spark_cluster"]
