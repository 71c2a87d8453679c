"""The data source of Spark: types as DataFrames, DataFrames into types."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameReader, Row, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.datasource import DataSource, DataSourceReader, EqualTo, Filter, InputPartition
from pyspark.sql.types import StructType

import omnigraph
from omnigraph.api.options import LoadMode
from omnigraph.core.location import Location
from omnigraph.errors import (
    BranchNotFoundError,
    CommitNotFoundError,
    ExportTypeError,
    InputColumnsError,
    OmnigraphError,
    ParameterError,
    StorageError,
    UnsupportedUriError,
)
from omnigraph.graph import Graph
from omnigraph.spark.datasource import LoadTarget, OmnigraphSource, TypeWriter, register, where_predicate

SCHEMA = """
node Person {
    name: String @key
    age: I32?  big: U64?  born: Date?  seen: DateTime?  score: F32?  face: Vector(2)?  photo: Blob?  tags: [String]?
    small: U32?  bigs: [U64]?  moments: [DateTime]?
    @range(age, 0..120)
}
edge Knows: Person -> Person { since: Date? }
"""
ANN = {
    "name": "ann",
    "age": 30,
    "big": 2**64 - 1,
    "born": "1969-07-20",
    "seen": "1969-12-31T23:59:59.999Z",
    "score": 0.5,
    "face": [1.0, 2.0],
    "photo": "base64:AAE=",
    "tags": ["a", ""],
    "small": 2**32 - 1,
    "bigs": [2**63],
    "moments": ["2024-01-01T00:00:00.001Z"],
}


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    register(spark)
    return spark


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    """Two people, each in a fragment of their own, who know each other."""
    graph = omnigraph.init(tmp_path / "graph", SCHEMA)
    graph.load([{"type": "Person", "data": ANN}], mode="append")
    bob = {"type": "Person", "data": {"name": "bob", "age": 40, "seen": 1000}}
    graph.load([bob, {"edge": "Knows", "from": "ann", "to": "bob", "data": {"id": "k"}}], mode="append")
    return graph


def reading(session: SparkSession, graph: Graph, type_: str = "Person", **options: str) -> DataFrameReader:
    return session.read.format("omnigraph").options(graph=graph.uri, type=type_, **options)


def names(rows: DataFrame) -> list[str]:
    return sorted(row["id"] for row in rows.select("id").collect())


# Reading


def test_a_type_is_a_dataframe_with_the_types_of_spark(session: SparkSession, graph: Graph) -> None:
    rows = reading(session, graph).load()

    assert rows.schema.simpleString() == (
        "struct<id:string,age:int,big:decimal(20,0),bigs:array<decimal(20,0)>,born:date,face:array<float>,"
        "moments:array<timestamp>,name:string,photo:binary,score:float,seen:timestamp,small:bigint,tags:array<string>>"
    )
    [ann, bob] = rows.withColumn("seen", fn.unix_millis("seen")).orderBy("id").drop("moments").collect()
    assert ann.asDict() == {
        "id": "ann",
        "age": 30,
        "big": Decimal(2**64 - 1),
        "bigs": [Decimal(2**63)],
        "born": dt.date(1969, 7, 20),
        "face": [1.0, 2.0],
        "name": "ann",
        "photo": bytearray([0, 1]),
        "score": 0.5,
        "seen": -1,
        "small": 2**32 - 1,
        "tags": ["a", ""],
    }
    assert (bob.seen, bob.face, bob.photo, bob.bigs) == (1000, None, None, None)


def test_an_edge_has_its_ends_and_some_columns_can_be_left_out(session: SparkSession, graph: Graph) -> None:
    assert reading(session, graph, "Knows", columns="dst, src").load().collect() == [Row(dst="bob", src="ann")]
    assert reading(session, graph, "edge:Knows").schema("id string").load().collect() == [Row(id="k")]


def test_a_dataframe_shows_one_state_for_ever(session: SparkSession, graph: Graph) -> None:
    rows = reading(session, graph, columns="id").load()
    before = graph.commits()[0].commit_id
    graph.mutate('query q() { delete Person where name = "bob" }')
    graph.load([{"type": "Person", "data": {"name": "eve"}}], mode="append")

    assert names(rows) == ["ann", "bob"]
    assert names(reading(session, graph, snapshot=before).load()) == ["ann", "bob"]
    assert names(reading(session, graph, branch="main").load()) == ["ann", "eve"]


def test_an_empty_type_is_a_dataframe_without_rows(session: SparkSession, tmp_path: Path) -> None:
    graph = omnigraph.init(tmp_path / "empty", SCHEMA)

    assert reading(session, graph).load().collect() == []


def test_rows_can_be_chosen_where_they_are_read(session: SparkSession, graph: Graph) -> None:
    old = reading(session, graph, where='[["age", ">", 35]]').load()

    assert names(old.where("age < 50")) == ["bob"]
    assert names(old.where("age < 35")) == []


@pytest.mark.parametrize(
    "condition, found",
    [
        ('["big", "=", 18446744073709551615]', ["ann"]),
        ('["seen", ">=", "1970-01-01T00:00:01Z"]', ["bob"]),
        ('["born", "<", "1970-01-01"]', ["ann"]),
        ('["score", "!=", 0.25]', ["ann"]),
        ('["id", "==", "bob"], ["age", "<=", 40]', ["bob"]),
        ('["age", "<", 1.5e10]', ["ann", "bob"]),
        ("", ["ann", "bob"]),
    ],
)
def test_conditions_compare_values_of_every_type(graph: Graph, condition: str, found: list[str]) -> None:
    tables, table = graph._store.tables, graph.snapshot().entries["node:Person"].table

    predicate = where_predicate(f"[{condition}]", tables.open(table).schema)

    assert sorted(tables.scan(table, ["id"], predicate)["id"].to_pylist()) == found


@pytest.mark.parametrize(
    "text, reason",
    [
        ("age > 5", "not JSON"),
        ("{}", "expected a list"),
        ('[["age", ">"]]', "is not a column, an operator and a value"),
        ('[["agee", ">", 5]]', "is not a column, an operator and a value"),
        ('[["age", [">"], 5]]', "'age' cannot be compared"),
        ('[["age", "contains", 5]]', "'age' cannot be compared with 'contains'"),
        ('[["face", "=", [1, 2]]]', "'face' cannot be compared"),
        ('[["age", ">", "5"]]', "expected a number, got a string"),
        ('[["age", ">", true]]', "expected a number, got a boolean"),
        ('[["born", ">", "soon"]]', "soon"),
        ('[["born", ">", 5]]', "5 is not a Date"),
    ],
)
def test_conditions_that_cannot_be_used_say_why(graph: Graph, text: str, reason: str) -> None:
    stored = graph._store.tables.open(graph.snapshot().entries["node:Person"].table).schema

    with pytest.raises(ParameterError, match=reason):
        where_predicate(text, stored)


def test_spark_still_mixes_up_filters_so_none_are_passed_on(session: SparkSession) -> None:
    """When this fails, Spark has been fixed, and the source may define `pushFilters`."""
    session.dataSource.register(_pushing_source())
    rows = session.read.format("pushing").load()

    assert rows.where("n = 1").count() == 1
    assert rows.count() == 1  # of two


def _pushing_source() -> type[DataSource]:
    class Pushing(DataSourceReader):
        wanted: tuple[int, ...] = (1, 2)

        def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802 - so Spark calls it
            for one in filters:
                if isinstance(one, EqualTo):
                    self.wanted = (one.value,)
                yield one

        def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
            assert partition
            return iter([(number,) for number in self.wanted])

    class Source(DataSource):
        @classmethod
        def name(cls) -> str:
            return "pushing"

        def schema(self) -> str:
            return "n int"

        def reader(self, schema: StructType) -> DataSourceReader:
            assert schema
            return Pushing()

    return Source


@pytest.mark.parametrize(
    "options, error, reason",
    [
        ({"type": "Persom"}, ExportTypeError, "unknown type 'Persom'"),
        ({"type": ""}, ExportTypeError, "no type given"),
        ({"columns": "id,agee"}, InputColumnsError, "Person has no column 'agee'"),
        ({"graph": ""}, UnsupportedUriError, "no graph given"),
        ({"graph": "nowhere"}, StorageError, "nowhere"),
        ({"snapshot": "01J00000000000000000000000"}, CommitNotFoundError, "commit '01J0+' not found"),
        ({"branch": "none"}, BranchNotFoundError, "none"),
    ],
)
def test_what_is_not_there_is_told_at_once(
    graph: Graph, options: dict[str, str], error: type[OmnigraphError], reason: str
) -> None:
    with pytest.raises(error, match=reason):
        OmnigraphSource({"graph": graph.uri, "type": "Person", **options}).schema()


def test_spark_says_what_the_source_says(session: SparkSession, graph: Graph) -> None:
    with pytest.raises(PySparkException, match="unknown type 'Persom'"):
        reading(session, graph, "Persom").load()


# Writing


def write(rows: DataFrame, graph: Graph, mode: str, type_: str = "Person", **options: str) -> None:
    rows.write.format("omnigraph").options(graph=graph.uri, type=type_, **options).mode(mode).save()


def leftovers(graph: Graph) -> list[Path]:
    return [file for file in Path(graph.uri, "__tmp").rglob("*") if file.is_file()]


def test_what_was_read_can_be_written_into_another_graph(session: SparkSession, graph: Graph, tmp_path: Path) -> None:
    copy = omnigraph.init(tmp_path / "copy", SCHEMA)

    write(reading(session, graph).load(), copy, "append", actor="eve")
    write(reading(session, graph, "Knows").load(), copy, "append", "Knows")

    assert list(copy.export()) == list(graph.export())
    assert [commit.actor_id for commit in copy.commits()] == [None, "eve", None]
    assert leftovers(copy) == []


def test_a_dataframe_replaces_a_type_in_one_commit_also_by_nothing(session: SparkSession, graph: Graph) -> None:
    people = session.createDataFrame([("ann", 31), ("bob", None), ("eve", 5)], "name string, age int").repartition(3)

    write(people, graph, "overwrite")
    assert [json.loads(line)["data"]["age"] for line in graph.export(types=["Person"])] == [31, None, 5]
    before = len(graph.commits())
    write(reading(session, graph, "Knows").load().where("id = 'x'"), graph, "overwrite", "Knows")

    assert graph.snapshot().entries["edge:Knows"].row_count == 0
    assert len(graph.commits()) == before + 1


def test_rows_that_break_a_rule_change_nothing_and_leave_nothing(session: SparkSession, graph: Graph) -> None:
    before = graph.snapshot()
    people = session.createDataFrame([("eve", 5), ("old", 500), ("ann", 1)], "name string, age int")

    with pytest.raises(PySparkException, match=r"(?s)the load was refused, nothing was changed: 2 problems.*<Person>"):
        write(people, graph, "append")

    assert graph.snapshot() == before
    assert leftovers(graph) == []


def test_a_task_that_fails_changes_nothing_and_leaves_nothing(session: SparkSession, graph: Graph) -> None:
    before = graph.snapshot()
    people = session.range(4).selectExpr("if(id = 3, raise_error('broken'), cast(id as string)) as name")

    with pytest.raises(PySparkException, match="broken"):
        write(people, graph, "append")

    assert graph.snapshot() == before
    assert leftovers(graph) == []


def test_only_the_files_of_the_tasks_that_count_are_loaded(session: SparkSession, graph: Graph) -> None:
    schema = session.createDataFrame([], "name string").schema
    writer = TypeWriter(LoadTarget(Location.parse(graph.uri), "Person", LoadMode.APPEND, None, None), schema)
    batch = pa.record_batch({"name": ["eve"]})
    writer.write(iter([batch]))  # by a task that was lost, and ran again
    part = writer.write(iter([batch]))

    writer.commit([part, None])

    assert graph.snapshot().entries["node:Person"].row_count == 3
    assert leftovers(graph) == []
