"""Streams into a graph: every row exactly once and one commit a batch, whatever dies."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import omnigraph
import omnigraph.spark
from omnigraph.api.results import Commit
from omnigraph.commit import failpoints
from omnigraph.errors import (
    InputColumnsError,
    InputTypeError,
    LoadRejectedError,
    OptionError,
    ParameterError,
    StreamCheckError,
)
from omnigraph.graph import Graph
from omnigraph.spark.datasource import register
from tests.spark.streaming import AFTER_SINK, BEFORE_BATCH, SCHEMA, Shop, orders_of, run, start_and_kill
from tests.support.faults import at_arrival, crash

ROWS = 3
# In `make soak` 200 batches, with a kill at every boundary.
SOAK = bool(os.environ.get("OMNIGRAPH_SOAK"))
BATCHES = 200 if SOAK else 20
KILLS = [
    (failpoints.PUBLISH_BEFORE_MANIFEST, 2),  # in batch 1, with heads that have moved
    (AFTER_SINK, 3),
]
if SOAK:
    KILLS += [
        (place, number)
        for number in (1, 5, 9)
        for place in (
            BEFORE_BATCH,
            failpoints.PUBLISH_AFTER_GATES,
            failpoints.PUBLISH_AFTER_SIDECAR,
            failpoints.PUBLISH_AFTER_TABLE_COMMIT,
            failpoints.PUBLISH_AFTER_MANIFEST,
            AFTER_SINK,
        )
    ]


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    found = Shop(tmp_path)
    found.make(3, ROWS)
    return found


def numbers(graph: Graph, branch: str = "main") -> list[int]:
    found = graph.query("query q() { match { $o: Order } return { $o.number as n } }", branch=branch)
    return sorted(row["n"] for row in found.rows)


def ends(graph: Graph) -> list[tuple[str, int]]:
    source = "query q() { match { $c: Customer  $o: Order  $c placed $o } return { $c.name as c, $o.number as n } }"
    return sorted((row["c"], row["n"]) for row in graph.query(source).rows)


def batches(graph: Graph) -> list[Commit]:
    """The commits of batches, oldest first."""
    return [one for one in reversed(graph.commits()) if "stream" in (one.details or {})]


def assert_exactly_once(uri: str, files: int) -> None:
    graph = omnigraph.open(uri)
    assert numbers(graph) == list(range(files * ROWS))
    assert ends(graph) == sorted(("ann" if n % 2 else "bob", n) for n in range(files * ROWS))
    assert [(one.details or {})["stream"]["batch"] for one in batches(graph)] == list(range(files))


def test_a_killed_driver_loses_and_doubles_nothing(tmp_path: Path, spark: SparkSession) -> None:
    """Killed inside of our commit, and between it and the checkpoint of Spark; then it ends here."""
    shop = Shop(tmp_path)
    shop.make(BATCHES, ROWS)
    for place, number in KILLS:
        start_and_kill(shop, place, number)

    run(shop, spark)

    assert_exactly_once(shop.graph, BATCHES)


@pytest.mark.parametrize(
    "place",
    [
        failpoints.PUBLISH_AFTER_GATES,
        failpoints.PUBLISH_AFTER_SIDECAR,
        failpoints.PUBLISH_AFTER_TABLE_COMMIT,
        failpoints.PUBLISH_AFTER_MANIFEST,
    ],
)
def test_a_query_that_fails_inside_a_commit_goes_on_where_it_was(shop: Shop, spark: SparkSession, place: str) -> None:
    with failpoints.armed(place, at_arrival(2, crash)), pytest.raises(PySparkException):
        run(shop, spark)

    run(shop, spark)

    assert_exactly_once(shop.graph, 3)


def test_a_query_that_fails_after_a_checkpoint_goes_on_where_it_was(shop: Shop, spark: SparkSession) -> None:
    arrive = at_arrival(3, crash)

    def around(place: str) -> None:
        if place == BEFORE_BATCH:
            arrive()

    with pytest.raises(PySparkException):
        run(shop, spark, around)

    run(shop, spark)

    assert_exactly_once(shop.graph, 3)


def test_a_batch_that_spark_repeats_is_skipped_and_said_to_be(shop: Shop, spark: SparkSession) -> None:
    graph = omnigraph.open(shop.graph)
    sink = omnigraph.spark.sink(graph, "orders", "Order", mode="append", query="q1")
    rows = spark.createDataFrame([(1, 10)], "number long, amount long")

    first = sink(rows, 0)

    assert first
    assert first.nodes == {"Order": 1}
    assert sink(rows, 0) is None
    assert sink(rows.limit(0), 1), "a batch without rows is a commit, too"
    assert (numbers(graph), len(batches(graph))) == ([1], 2)


def test_two_streams_beside_other_writers_a_merge_and_an_optimize(shop: Shop, spark: SparkSession) -> None:
    graph = omnigraph.open(shop.graph)
    other = omnigraph.spark.sink(graph, "more", "Order", mode="append", query="q2")
    graph.create_branch("aside")
    graph.load([{"type": "Order", "data": {"number": 500, "amount": 1}}], mode="append", branch="aside")
    work: Iterator[Callable[[], object]] = iter(
        [
            lambda: graph.load([{"type": "Customer", "data": {"name": "eve"}}], mode="append"),
            lambda: graph.merge("aside"),
            graph.optimize,
        ]
    )

    def beside(place: str) -> None:
        if place == BEFORE_BATCH:
            number = len(batches(graph)) // 2
            other(spark.createDataFrame([(100 + number, 1)], "number long, amount long"), number)
            next(work)()

    run(shop, spark, beside)

    assert numbers(graph) == [*range(9), 100, 101, 102, 500]
    positions = [graph.stream(name) for name in ("orders", "more")]
    assert [one and one.last.batch for one in positions] == [2, 2]


def test_batches_on_a_branch_are_merged_every_so_many_once_the_checks_hold(shop: Shop, spark: SparkSession) -> None:
    graph = omnigraph.open(shop.graph)
    checks = {"no cheap order": "query q() { match { $o: Order  $o.amount < 0 } return { $o.number } }"}
    options = {"branch": "staging", "merge_every": 2, "checks": checks, "mode": "append", "query": "q1"}
    sink = omnigraph.spark.sink(graph, "orders", "Order", **options)  # type: ignore[arg-type]

    def batch(*rows: tuple[int, int]) -> DataFrame:
        return spark.createDataFrame(list(rows), "number long, amount long")

    sink(batch((1, 10)), 0)
    assert (numbers(graph), numbers(graph, "staging")) == ([], [1])
    sink(batch((2, 20)), 1)
    assert numbers(graph) == [1, 2]
    sink(batch((3, -1)), 2)
    with pytest.raises(StreamCheckError, match="the check 'no cheap order' found 1 rows on branch 'staging'"):
        sink(batch((4, 40)), 3)
    assert (numbers(graph), numbers(graph, "staging")) == ([1, 2], [1, 2, 3, 4])

    # The batch was committed: when Spark repeats it, only the merge is made.
    graph.mutate("query q() { update Order set { amount: 30 } where number = 3 }", branch="staging")
    assert sink(batch((4, 40)), 3) is None
    assert numbers(graph) == [1, 2, 3, 4]
    # The branch may go: main knows how far the stream is.
    graph.delete_branch("staging")
    again = omnigraph.spark.sink(graph, "orders", "Order", **options)  # type: ignore[arg-type]
    assert again(batch((4, 40)), 3) is None
    again(batch((5, 50)), 4)
    assert numbers(graph, "staging") == [1, 2, 3, 4, 5]


def test_of_late_and_repeated_events_the_latest_counts(shop: Shop, spark: SparkSession) -> None:
    graph = omnigraph.open(shop.graph)
    sink = omnigraph.spark.sink(graph, "orders", {"Order": orders_of}, latest_by="amount", query="q1")
    rows = spark.createDataFrame([(1, 10), (1, 12), (1, 11), (2, 5)], "number long, amount long")

    sink(rows, 0)

    found = graph.query(
        "query q() { match { $o: Order } return { $o.number as n, $o.amount as a } order { $o.number } }"
    )
    assert found.rows == [{"n": 1, "a": 12}, {"n": 2, "a": 5}]
    counting = omnigraph.spark.sink(graph, "poison", {"Order": orders_of}, latest_by="amount", max_bad=2, query="q2")
    bad = spark.createDataFrame([(None, 1), (None, 2), (3, 7)], "number long, amount long")
    done = counting(bad, 0)
    assert done
    assert done.rejected == 2, "each row without a key is one"
    wrong = omnigraph.spark.sink(graph, "orders", "Order", latest_by="seen", query="q1")
    with pytest.raises(InputColumnsError, match="no column 'seen'"):
        wrong(rows, 1)


def test_poison_records_are_left_out_up_to_a_number_and_listed(shop: Shop, spark: SparkSession, tmp_path: Path) -> None:
    graph = omnigraph.open(shop.graph)
    (tmp_path / "bad").mkdir()
    sink = omnigraph.spark.sink(
        graph, "orders", {"Order": orders_of}, mode="append", max_bad=1, rejects=tmp_path / "bad", query="q1"
    )
    good = spark.createDataFrame([(1, 10), (2, None)], "number long, amount long")

    done = sink(good, 0)

    assert done
    assert (done.rejected, numbers(graph)) == (1, [1])
    assert "required" in (tmp_path / "bad" / "orders-000000000000.jsonl").read_text()
    poison = spark.createDataFrame([(3, None), (4, None)], "number long, amount long")
    with pytest.raises(LoadRejectedError):
        sink(poison, 1)
    only_bad = spark.createDataFrame([(3, None)], "number long, amount long")
    assert sink(only_bad, 1), "all of its records are left out, and it is done"
    assert (numbers(graph), len(batches(graph))) == ([1], 2)


def test_a_deleted_checkpoint_is_refused_until_it_is_accepted(shop: Shop, spark: SparkSession) -> None:
    run(shop, spark)

    with pytest.raises(PySparkException, match="belongs to the query"):
        run(shop, spark, checkpoint="another")

    assert_exactly_once(shop.graph, 3)


def test_a_schema_that_changed_under_a_stream_is_an_error_before_anything_is_written(
    shop: Shop, spark: SparkSession
) -> None:
    graph = omnigraph.open(shop.graph)
    sink = omnigraph.spark.sink(graph, "orders", "Order", query="q1")
    rows = spark.createDataFrame([(1, 10)], "number long, amount long")
    sink(rows, 0)
    graph.apply_schema(SCHEMA.replace("amount: I64", "price: I64 @rename_from(amount)"))

    with pytest.raises(InputColumnsError):
        sink(rows, 1)
    sink(rows.withColumnRenamed("amount", "price"), 1)

    assert len(batches(graph)) == 2


def test_options_are_checked_before_the_first_batch(shop: Shop) -> None:
    graph = omnigraph.open(shop.graph)
    for given, error in (
        ({"types": "Orders"}, InputTypeError),
        ({"stream": ""}, OptionError),
        ({"mode": "upsert"}, OptionError),
        ({"merge_every": 0, "branch": "b"}, OptionError),
        ({"merge_every": 2}, OptionError),
    ):
        options = {"stream": "orders", "types": "Order", **given}
        with pytest.raises(error):
            omnigraph.spark.sink(graph, **options)  # type: ignore[arg-type]
    assert graph.branches() == ["main"]


def test_a_dataframe_that_is_no_batch_has_no_query(shop: Shop, spark: SparkSession) -> None:
    sink = omnigraph.spark.sink(omnigraph.open(shop.graph), "orders", "Order")

    with pytest.raises(ParameterError, match="no batch of a running query"):
        sink(spark.createDataFrame([(1, 10)], "number long, amount long"), 0)


def test_the_format_writes_a_stream_too(shop: Shop, spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    rows = shop.stream(spark).select("number", "amount")

    def write(**options: str) -> None:
        writing = rows.writeStream.format("omnigraph").options(graph=shop.graph, type="Order", **options)
        checkpoint = options.get("checkpoint", "written")
        writing = writing.option("checkpointLocation", str(tmp_path / checkpoint)).trigger(availableNow=True)
        writing.start().awaitTermination()

    write(stream="orders", mode="append")
    graph = omnigraph.open(shop.graph)
    assert numbers(graph) == list(range(9))
    assert [(one.details or {})["stream"]["batch"] for one in batches(graph)] == [0, 1, 2]
    # As after a death between our commit and the checkpoint of the last batch.
    for log in (tmp_path / "written" / "commits").glob("*2*"):
        log.unlink()
    write(stream="orders", mode="append")
    assert (numbers(graph), len(batches(graph))) == (list(range(9)), 3)
    assert not list(Path(shop.graph, "__tmp").rglob("*.parquet"))
    with pytest.raises(PySparkException, match="belongs to the query"):
        write(stream="orders", mode="append", checkpoint="third")
    with pytest.raises(PySparkException, match="no stream given"):
        write(mode="append", checkpoint="fourth")
