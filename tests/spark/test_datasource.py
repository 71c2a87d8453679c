"""The data source of Spark: types as DataFrames, DataFrames into types."""

from __future__ import annotations

import datetime as dt
import json
import shutil
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameReader, Row, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.datasource import DataSource, DataSourceReader, EqualTo, Filter, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

import omnigraph
from omnigraph.api.options import LoadMode
from omnigraph.commit import failpoints
from omnigraph.core.location import Location
from omnigraph.errors import (
    BranchNotFoundError,
    CommitNotFoundError,
    ConflictError,
    ExportTypeError,
    InputColumnsError,
    InputTypeError,
    LoadRejectedError,
    OmnigraphError,
    ParameterError,
    StorageError,
    UnsupportedUriError,
)
from omnigraph.graph import Graph
from omnigraph.ingest.distributed import DistributedLoad
from omnigraph.spark.columns import where_predicate
from omnigraph.spark.datasource import OmnigraphSource, register
from omnigraph.spark.writer import TypeWriter, WriteTarget, type_writer
from tests.support.faults import CrashError, crash

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


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two people, each in a fragment of their own, who know each other."""
    uri = tmp_path_factory.mktemp("graphs") / "people"
    graph = omnigraph.init(uri, SCHEMA)
    graph.load([{"type": "Person", "data": ANN}], mode="append")
    bob = {"type": "Person", "data": {"name": "bob", "age": 40, "seen": 1000}}
    graph.load([bob, {"edge": "Knows", "from": "ann", "to": "bob", "data": {"id": "k"}}], mode="append")
    return uri


@pytest.fixture
def graph(template: Path, tmp_path: Path) -> Graph:
    return omnigraph.open(shutil.copytree(template, tmp_path / "graph"))


def reading(session: SparkSession, graph: Graph, type_: str = "Person", **options: str) -> DataFrameReader:
    return session.read.format("omnigraph").options(graph=graph.uri, type=type_, **options)


def options(graph: Graph, type_: str = "Person", **more: str) -> dict[str, str]:
    return {"graph": graph.uri, "type": type_, **more}


def rows_of(source: OmnigraphSource) -> pa.Table:
    """Read a source in this process, as the tasks of Spark would."""
    schema = source.schema()
    reader = source.reader(schema)
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    return pa.Table.from_batches(batches, to_arrow_schema(schema, timezone="UTC"))


@pytest.fixture(autouse=True)
def _shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that shows an error plainly sets this for itself, and ends."""
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")


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


def test_an_empty_type_has_no_rows(tmp_path: Path) -> None:
    graph = omnigraph.init(tmp_path / "empty", SCHEMA)

    assert rows_of(OmnigraphSource(options(graph))).num_rows == 0
    assert rows_of(OmnigraphSource(options(graph, limit="3"))).num_rows == 0


def test_rows_can_be_chosen_where_they_are_read(graph: Graph) -> None:
    assert rows_of(OmnigraphSource(options(graph, where='[["age", ">", 35]]', columns="id")))["id"].to_pylist() == [
        "bob"
    ]


@pytest.mark.parametrize("limit, count", [(0, 0), (1, 1), (2, 2), (3, 2)])
def test_a_limit_is_exact_and_one_task_reads(graph: Graph, limit: int, count: int) -> None:
    source = OmnigraphSource(options(graph, limit=str(limit)))

    assert rows_of(source).num_rows == count
    assert len(source.reader(source.schema()).partitions()) == 1


def test_a_limit_counts_the_rows_that_the_conditions_leave(graph: Graph) -> None:
    graph.load([{"type": "Person", "data": {"name": f"p{at}", "age": 50 + at}} for at in range(9)], mode="append")

    found = rows_of(OmnigraphSource(options(graph, where='[["age", ">", 52]]', limit="4")))

    assert found["age"].to_pylist() == [53, 54, 55, 56]


def test_a_source_is_pinned_when_its_columns_are_asked_for(graph: Graph) -> None:
    source = OmnigraphSource(options(graph, columns="id"))
    source.schema()
    graph.load([{"type": "Person", "data": {"name": "eve"}}], mode="append")

    assert sorted(rows_of(source)["id"].to_pylist()) == ["ann", "bob"]


# Changes


def test_changes_between_two_states_have_the_row_before_and_after(graph: Graph) -> None:
    since = graph.commits()[0].commit_id
    graph.mutate('query q() { delete Person where name = "bob" }')
    graph.load([{"type": "Person", "data": {**ANN, "age": 31}}], mode="merge")
    graph.load([{"type": "Person", "data": {"name": "eve", "photo": "base64:AAE="}}], mode="append")
    until = graph.commits()[0].commit_id
    graph.load([{"type": "Person", "data": {"name": "later"}}], mode="append")

    found = rows_of(OmnigraphSource(options(graph, since=since, until=until, columns="id,age,photo"))).to_pylist()

    assert sorted(found, key=lambda row: row["id"]) == [
        {
            "operation": "update",
            "id": "ann",
            "before": {"age": 30, "photo": b"\0\1"},
            "after": {"age": 31, "photo": b"\0\1"},
        },
        {"operation": "delete", "id": "bob", "before": {"age": 40, "photo": None}, "after": None},
        {"operation": "insert", "id": "eve", "before": None, "after": {"age": None, "photo": b"\0\1"}},
    ]


def test_changes_of_an_edge_have_its_ends_and_none_are_no_rows(graph: Graph) -> None:
    [change] = rows_of(OmnigraphSource(options(graph, "Knows", since="main~1"))).to_pylist()

    assert change["after"] == {"src": "ann", "dst": "bob", "since": None}
    assert rows_of(OmnigraphSource(options(graph, since="main", until="main"))).num_rows == 0


def test_all_columns_can_be_changes(graph: Graph) -> None:
    [ann, bob] = sorted(rows_of(OmnigraphSource(options(graph, since="main~2"))).to_pylist(), key=lambda row: row["id"])

    assert ann["after"]["tags"] == ["a", ""]
    assert ann["after"]["big"] == Decimal(2**64 - 1)
    assert bob["after"]["face"] is None


# Options


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
    "given, error, reason",
    [
        ({"type": "Persom"}, ExportTypeError, "unknown type 'Persom'"),
        ({"type": ""}, ExportTypeError, "no type given"),
        ({"columns": "id,agee"}, InputColumnsError, "Person has no column 'agee'"),
        ({"graph": ""}, UnsupportedUriError, "no graph given"),
        ({"graph": "nowhere"}, StorageError, "nowhere"),
        ({"snapshot": "01J00000000000000000000000"}, CommitNotFoundError, "commit '01J0+' not found"),
        ({"branch": "none"}, BranchNotFoundError, "none"),
        ({"since": "none"}, CommitNotFoundError, "none"),
        ({"until": "main"}, ParameterError, "there is no `since`"),
        ({"since": "main", "limit": "1"}, ParameterError, "changes are read as a whole"),
        ({"since": "main", "where": '[["age", ">", 3]]'}, ParameterError, "changes are read as a whole"),
        ({"limit": "-1"}, ParameterError, "the limit '-1' is no number"),
        ({"option.graph": "x"}, ParameterError, "a graph cannot be a table of the catalog"),
    ],
)
def test_what_is_not_there_is_told_at_once(
    graph: Graph, given: dict[str, str], error: type[OmnigraphError], reason: str
) -> None:
    with pytest.raises(error, match=reason):
        OmnigraphSource({"graph": graph.uri, "type": "Person", **given}).schema()


def test_spark_says_what_the_source_says(session: SparkSession, graph: Graph) -> None:
    with pytest.raises(PySparkException, match="unknown type 'Persom'"):
        reading(session, graph, "Persom").load()


# Writing


def write(rows: DataFrame, graph: Graph, mode: str, type_: str = "Person", **options: str) -> None:
    rows.write.format("omnigraph").options(graph=graph.uri, type=type_, **options).mode(mode).save()


def data_files(graph: Graph) -> list[Path]:
    return list(Path(graph.uri, "nodes").rglob("*.lance"))


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


# The steps of a write, in this process

NAMES = StructType([StructField("name", StringType()), StructField("age", IntegerType())])


def writer_of(graph: Graph, mode: LoadMode = LoadMode.APPEND, branch: str | None = None, **columns: str) -> TypeWriter:
    return type_writer(WriteTarget(Location.parse(graph.uri), "Person", mode, branch, "eve", columns), NAMES)


def people(*rows: tuple[str | None, int | None]) -> Iterator[pa.RecordBatch]:
    ages = pa.array([age for _, age in rows], pa.int32())
    return iter([pa.record_batch({"name": [name for name, _ in rows], "age": ages})])


def test_only_the_files_of_the_tasks_that_count_are_loaded(graph: Graph) -> None:
    before = data_files(graph)
    writer = writer_of(graph)
    writer.stage(0, people(("eve", 5)))  # by a task that was lost, and ran again
    parts = [writer.stage(1, people(("ida", 7))), writer.stage(0, people(("eve", 5)))]

    writer.commit([*parts, None])

    assert graph.snapshot().entries["node:Person"].row_count == 4
    assert len(data_files(graph)) == len(before) + 2
    assert graph.commits()[0].actor_id == "eve"
    assert leftovers(graph) == []


def test_a_merge_replaces_rows_and_rows_of_two_tasks_may_not_have_one_key(graph: Graph) -> None:
    writer = writer_of(graph, LoadMode.MERGE)
    writer.commit([writer.stage(0, people(("ann", 77))), writer.stage(1, people(("eve", 5)))])
    assert ages(graph) == {"ann": 77, "bob": 40, "eve": 5}

    writer = writer_of(graph, LoadMode.MERGE)
    parts = [writer.stage(0, people(("ida", 1))), writer.stage(1, people(("bob", 2), ("ida", 2)))]
    before = graph.snapshot()
    with pytest.raises(LoadRejectedError) as caught:
        writer.commit([*parts])
    assert graph.snapshot() == before
    assert [(one.file, one.line, one.rule) for one in caught.value.violations] == [("<Person>", 3, "unique")]
    assert leftovers(graph) == []


def test_a_write_on_a_branch_forks_the_table_for_its_tasks(graph: Graph) -> None:
    graph.create_branch("draft")
    writer = writer_of(graph, branch="draft")

    writer.commit([writer.stage(0, people(("eve", 5)))])

    assert ages(graph, "draft") == {"ann": 30, "bob": 40, "eve": 5}
    assert ages(graph) == {"ann": 30, "bob": 40}


@pytest.mark.parametrize("branch", [None, "draft"])
def test_an_aborted_write_leaves_nothing(graph: Graph, branch: str | None) -> None:
    graph.create_branch("draft")
    files = everything(graph)
    writer = writer_of(graph, branch=branch)
    part = writer.stage(0, people(("eve", 5)))

    writer.abort([part, None])

    assert everything(graph) == files


def test_an_abort_after_a_commit_touches_nothing(graph: Graph) -> None:
    writer = writer_of(graph)
    part = writer.stage(0, people(("eve", 5)))
    writer.commit([part])
    files = everything(graph)

    writer.abort([part])

    assert everything(graph) == files


def test_an_abort_after_a_commit_that_died_leaves_the_files_to_a_recovery(
    graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = writer_of(graph)
    part = writer.stage(0, people(("eve", 5)))
    monkeypatch.setattr(DistributedLoad, "delete_exchange", DistributedLoad._free_keys)  # the dead delete no files
    with failpoints.armed(failpoints.PUBLISH_BEFORE_MANIFEST, crash), pytest.raises(CrashError):
        writer.commit([part])

    writer.abort([part])

    graph = omnigraph.open(graph.uri)
    graph.refresh()
    assert ages(graph) == {"ann": 30, "bob": 40, "eve": 5}


def test_a_change_of_the_schema_meanwhile_refuses_the_write(graph: Graph) -> None:
    writer = writer_of(graph)
    part = writer.stage(0, people(("eve", 5)))
    graph.apply_schema(SCHEMA.replace("age: I32?", "age: I32? height: I32?"))
    before = graph.snapshot()

    with pytest.raises(ConflictError, match="write again"):
        writer.commit([part])

    assert graph.snapshot() == before
    assert leftovers(graph) == []


def test_another_write_to_the_type_meanwhile_does_not_matter(graph: Graph) -> None:
    writer = writer_of(graph)
    part = writer.stage(0, people(("eve", 5)))
    graph.load([{"type": "Person", "data": {"name": "ida", "age": 1}}], mode="append")

    writer.commit([part])

    assert ages(graph) == {"ann": 30, "bob": 40, "eve": 5, "ida": 1}


def test_columns_are_renamed_or_left_out_by_a_mapping(graph: Graph) -> None:
    source = OmnigraphSource(options(graph, columns='{"full": "name", "remark": null}'))
    writer = source.writer(StructType().add("full", "string").add("remark", "string"), overwrite=True)
    assert isinstance(writer, TypeWriter)

    writer.commit([writer.stage(0, iter([pa.record_batch({"full": ["ann", "bob"], "remark": ["x", "y"]})]))])

    assert ages(graph) == {"ann": None, "bob": None}


@pytest.mark.parametrize(
    "schema, given, error, reason",
    [
        ("nam string", {}, InputColumnsError, "column 'nam' is not a property of Person"),
        ("name string, age timestamp_ntz", {}, InputColumnsError, "a local time without a time zone"),
        ("name string", {"type": "Persom"}, InputTypeError, "unknown type 'Persom'"),
        ("name string", {"mode": "merge"}, ParameterError, "do not go together"),
        ("name string", {"mode": "upsert"}, ParameterError, "do not go together"),
        ("name string", {"columns": "name"}, ParameterError, "is no mapping of columns"),
        ("name string", {"columns": '{"nam": "name"}'}, InputColumnsError, "there is no column 'nam' to map"),
        ("name string", {"branch": "none"}, BranchNotFoundError, "none"),
    ],
)
def test_a_write_that_cannot_be_is_refused_before_any_row_is_read(
    graph: Graph, schema: str, given: dict[str, str], error: type[OmnigraphError], reason: str
) -> None:
    columns = StructType()
    for column in schema.split(", "):
        name, kind = column.split()
        columns = columns.add(name, kind)
    files = everything(graph)

    with pytest.raises(error, match=reason):
        OmnigraphSource({**options(graph), **given}).writer(columns, "mode" in given)

    assert everything(graph) == files


def ages(graph: Graph, branch: str = "main") -> dict[str, int | None]:
    rows = graph.query(
        "query q() { match { $p: Person } return { $p.name as name, $p.age as age } }", branch=branch
    ).rows
    return {row["name"]: row["age"] for row in sorted(rows, key=lambda row: row["name"])}


def everything(graph: Graph) -> set[Path]:
    return {file for file in Path(graph.uri).rglob("*") if file.is_file() and "lock" not in file.name}
