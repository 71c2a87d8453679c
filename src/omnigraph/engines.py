"""Who does large work: this process, or Spark, which is started when it is needed."""

from __future__ import annotations

from collections.abc import Mapping

from omnigraph.api.options import Engine, option
from omnigraph.api.progress import Progress
from omnigraph.core.executor import ChooseExecutor, Executor
from omnigraph.ingest.executor import LocalExecutor

_MOST_ROWS_OF_UPKEEP = 5_000_000  # that this process looks after by itself, if nobody says who should


def spark_executor(master: str | None, conf: Mapping[str, str] | None, progress: Progress) -> Executor:
    from omnigraph.spark.executor import SparkExecutor  # noqa: PLC0415
    from omnigraph.spark.session import spark_context  # noqa: PLC0415 - Spark is started when it is needed

    return SparkExecutor(spark_context(master, conf), progress)


def choose_runner(
    engine: str, master: str | None, conf: Mapping[str, str] | None, progress: Progress, at_once: int = 1
) -> ChooseExecutor:
    """Say who does the upkeep of so many rows; this process does some tasks at once."""
    chosen = option(Engine, "engine", engine)

    def choose(rows: int) -> Executor:
        if chosen is Engine.SPARK or (chosen is Engine.AUTO and rows > _MOST_ROWS_OF_UPKEEP):
            return spark_executor(master, conf, progress)
        return LocalExecutor(progress, at_once)

    return choose
