"""What can go wrong on Spark: a load happens once or not at all, and what it leaves goes with the next cleanup."""

from __future__ import annotations

import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import omnigraph
from omnigraph.core.executor import ParcelRoute, ParcelsLostError
from omnigraph.errors import SparkError
from omnigraph.graph import Graph
from omnigraph.spark import jobs
from omnigraph.spark.executor import SparkExecutor
from omnigraph.spark.session import parallelism
from tests.support import steps
from tests.support.loads import (
    SPARK,
    copied,
    edge,
    lines,
    load_by,
    make_graph,
    node,
    nothing_changes,
)

MERGE = lines(
    node("Person", name="Alice", age=31),
    node("Person", name="Eve"),
    edge("Knows", "Eve", "Alice", id="k1"),
    edge("Knows", "Eve", "Bob", id="k9"),
    edge("Knows", "Eve", "Diana", id="k9"),
)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_graph("people", tmp_path_factory.mktemp("graphs") / "people").uri


@pytest.fixture
def people(template: str) -> Graph:
    return omnigraph.open(copied(template))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "meeting").mkdir()
    path = tmp_path / "input.jsonl"
    path.write_text(MERGE, encoding="utf-8")
    return path


def files(uri: str) -> set[str]:
    return {str(path) for path in Path(uri).rglob("*") if path.is_file() and "__gates" not in path.parts}


# Rows that Spark computes again

_CHECKSUM = "spark.sql.shuffle.orderIndependentChecksum"


@pytest.mark.parametrize("checked", ["true", "false"])
def test_rows_and_shuffle_files_that_are_lost_half_way_never_mix_two_attempts(
    spark: SparkSession, tmp_path: Path, checked: str
) -> None:
    """With its checks off, Spark gives some readers the rows of one attempt and others those of the next."""
    session = spark.newSession()
    for name in ("enabled", "enableFullRetryOnMismatch"):
        session.conf.set(f"{_CHECKSUM}.{name}", checked)
    shares = 3 * parallelism(session)  # so that some begin after the loss
    executor = SparkExecutor(session)
    sent = executor.scatter("read", steps.sends_to_all, [steps.SpreadTask(str(tmp_path), shares)] * 4)

    try:
        marks = [str(tmp_path / "mark")] * shares
        found = executor.gather("check", steps.receives_and_loses, marks, [sent], {1: ParcelRoute(0, spread=True)})
    except ParcelsLostError:  # the load starts over
        found = []

    assert len(list(tmp_path.glob("*.sent"))) > 4, "nothing was computed again"
    for parcels in found:
        assert parcels == list(enumerate(sent.results))


# A disk that is full


def test_a_load_for_which_spark_has_no_room_is_an_error_and_changes_nothing(
    people: Graph, file: Path, spark: SparkSession
) -> None:
    gateway = spark.sparkContext._gateway
    assert gateway is not None

    with nothing_changes(people), no_room(gateway.proc.pid), pytest.raises(SparkError, match="'read'") as caught:
        load_by(SPARK, people, file, "merge")

    assert "File too large" in caught.value.detail
    load_by(SPARK, people, file, "merge")


@contextmanager
def no_room(process: int) -> Iterator[None]:
    """Let a process write no byte to any file."""
    soft, hard = resource.prlimit(process, resource.RLIMIT_FSIZE)
    resource.prlimit(process, resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.prlimit(process, resource.RLIMIT_FSIZE, (soft, hard))


# A server that is not there


def test_a_server_that_was_never_there_counts_as_behind_a_proxy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = ("127.0.0.1", listener.getsockname()[1])
        seen = jobs.Presence(address, patience=0)
        assert not seen.is_over()

    assert seen.is_over()
    assert not jobs.Presence(address, patience=0).is_over()
