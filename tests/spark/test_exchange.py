"""Parcels: each arrives once, where its route leads, from the attempt that counts."""

from __future__ import annotations

import pickle
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from omnigraph.core.executor import Executor, Parcel, ParcelRoute, ParcelsLostError
from omnigraph.spark import exchange
from omnigraph.spark.exchange import SparkParcels, _Receiving
from omnigraph.spark.executor import SparkExecutor
from tests.support import steps
from tests.support.steps import SendingTask

# The same on all


def test_each_share_goes_to_its_task_in_the_order_of_the_senders(executor: Executor) -> None:
    with closing(executor.scatter("read", steps.sends, range(5))) as sent:
        found = executor.gather("check", steps.receives, ["a", "b", "c", "d"], [sent], {1: ParcelRoute(1, spread=True)})

        assert sent.results == [0, 10, 20, 30, 40]
    assert found[0] == ("a", [])
    for share, (name, parcels) in enumerate(found[1:]):
        assert name == "bcd"[share]
        assert parcels == [(1, share, f"{task} to {share}".encode(), task) for task in range(5)]


def test_a_section_that_is_not_spread_goes_to_one_task(executor: Executor) -> None:
    routes = {1: ParcelRoute(0, spread=False), 2: ParcelRoute(1, spread=False)}
    with (
        closing(executor.scatter("read", steps.sends, range(3))) as first,
        closing(executor.scatter("keys", steps.sends, range(2))) as second,
    ):
        (_, many), (_, few) = executor.gather("check", steps.receives, ["a", "b"], [first, second], routes)

    assert sorted(data for _, _, data, _ in many) == sorted(
        f"{task} to {share}".encode() for count in (3, 2) for task in range(count) for share in range(3)
    )
    assert [data for _, _, data, _ in few] == [b"", b"x", b"xx", b"", b"x"]


def test_the_parcels_of_some_senders_can_be_fetched(executor: Executor) -> None:
    with closing(executor.scatter("read", steps.sends, range(5))) as sent:
        assert sorted(sent.read(2, [1, 3])) == [Parcel(2, 0, b"x", 1), Parcel(2, 0, b"xxx", 3)]


def test_no_tasks_send_nothing(executor: Executor) -> None:
    with closing(executor.scatter("read", steps.sends, [])) as sent:
        assert sent.results == []
        assert executor.gather("check", steps.receives, ["a"], [sent], {1: ParcelRoute(0, spread=False)}) == [("a", [])]


# On Spark


def test_result_and_parcels_of_a_task_are_of_one_attempt(session: SparkSession, tmp_path: Path) -> None:
    executor = SparkExecutor(session)
    sent = executor.scatter("read", steps.sends_after_a_failure, [SendingTask(str(tmp_path), at) for at in range(6)])

    found = executor.gather("check", steps.receives, ["a", "b", "c"], [sent], {1: ParcelRoute(0, spread=True)})

    seen = {sender: data.decode() for _, parcels in found for _, _, data, sender in parcels}
    assert seen == dict(enumerate(sent.results))


def test_a_parcel_of_another_attempt_is_noticed(spark: SparkSession) -> None:
    executor = SparkExecutor(spark)
    sent = executor.scatter("read", steps.sends, range(3))
    sent.tokens[1] = "another"

    with pytest.raises(ParcelsLostError, match="another attempt"):
        executor.gather("check", steps.receives, ["a"], [sent], {1: ParcelRoute(0, spread=False)})


def test_a_parcel_that_does_not_arrive_is_noticed(spark: SparkSession) -> None:
    executor = SparkExecutor(spark)
    sent: SparkParcels[Any] = executor.scatter("read", steps.sends, range(3))
    assert sent.frame is not None
    sent.frame = sent.frame.where("share != 2")

    with pytest.raises(ParcelsLostError, match="6 of 9"):
        executor.gather("check", steps.receives, ["a"], [sent], {1: ParcelRoute(0, spread=False)})


def test_rows_that_spark_computes_again_are_not_taken_for_those_of_before(session: SparkSession) -> None:
    """An executor that dies takes its rows with it. Another attempt has written other files, so it does not count."""
    executor = SparkExecutor(session)
    sent = executor.scatter("read", steps.sends, range(3))
    assert sent.frame is not None
    sent.frame.unpersist(blocking=True)

    with pytest.raises(ParcelsLostError, match="another attempt"):
        executor.gather("check", steps.receives, ["a"], [sent], {1: ParcelRoute(0, spread=False)})


def test_rows_come_in_any_order_and_are_sorted_by_sender() -> None:
    rows = [
        {
            "task": task,
            "token": "t",
            "section": 1,
            "share": 0,
            "data": str(task).encode(),
            "origin": 0,
            "receiver": 0,
            "of": 1,
        }
        for task in (2, 0, 1)
    ]
    receiving = _Receiving(steps.receives, pickle.dumps(["a"]), {(0, task): "t" for task in range(3)})
    (batch,) = exchange._receive(receiving, iter([pa.RecordBatch.from_pylist(rows)]))

    ((_, found),) = [pickle.loads(row["result"]) for row in batch.to_pylist()]  # noqa: S301 - made above
    assert [sender for _, _, _, sender in found] == [0, 1, 2]
