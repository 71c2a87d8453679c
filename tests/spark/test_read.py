"""Types and changes of a graph as DataFrames, and as views for SQL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession

import omnigraph
from omnigraph.core.location import Location
from omnigraph.errors import ExportTypeError, ParameterError, UnsupportedUriError
from omnigraph.graph import Graph
from omnigraph.spark import changes, create_views, read, scans
from omnigraph.spark.datasource import register
from omnigraph.spark.scans import ScanRequest

SCHEMA = """
node Person { name: String @key  age: I32?  seen: DateTime?  photo: Blob? }
node Knows2 { name: String @key }
edge Knows: Person -> Person { since: Date? }
"""


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    """Ann and Bob, who know each other; then Bob is older, Ann is gone, and there is Eve."""
    graph = omnigraph.init(tmp_path_factory.mktemp("graphs") / "people", SCHEMA)
    people = [("ann", 30), ("bob", 40)]
    graph.load([{"type": "Person", "data": {"name": name, "age": age}} for name, age in people], mode="append")
    graph.create_tag("start")
    graph.mutate('query q() { delete Person where name = "ann" }')
    graph.load([{"type": "Person", "data": {"name": "bob", "age": 41, "photo": "base64:AAE="}}], mode="merge")
    graph.load(
        [{"type": "Person", "data": {"name": "eve"}}, {"edge": "Knows", "from": "eve", "to": "bob"}], mode="append"
    )
    return graph


def test_a_type_is_read_where_it_is_with_columns_conditions_and_a_limit(graph: Graph, session: SparkSession) -> None:
    people = read(graph, "Person", columns=["id", "photo", "age"], spark=session)

    assert people.schema.simpleString() == "struct<id:string,photo:binary,age:int>"
    assert sorted(people.collect()) == [Row(id="bob", photo=b"\0\1", age=41), Row(id="eve", photo=None, age=None)]
    chosen = read(
        graph.uri, "Person", columns=["id"], where=[["age", ">", 35]], limit=1, snapshot="start", spark=session
    )
    assert chosen.collect() == [Row(id="bob")]


def test_changes_are_a_dataframe(graph: Graph, session: SparkSession) -> None:
    found = changes(graph, "Person", since="start", columns=["age"], spark=session)

    assert sorted(found.collect()) == [
        Row(operation="delete", id="ann", before=Row(age=30), after=None),
        Row(operation="insert", id="eve", before=None, after=Row(age=None)),
        Row(operation="update", id="bob", before=Row(age=40), after=Row(age=41)),
    ]


def test_many_changes_are_several_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = omnigraph.init(tmp_path / "graph", SCHEMA)
    graph.load([{"type": "Person", "data": {"name": f"p{at}"}} for at in range(9)], mode="append")
    graph.create_tag("start")
    changed = [{"type": "Person", "data": {"name": f"p{at}", "age": at}} for at in range(3, 12)]
    graph.load(changed, mode="merge")
    graph.mutate('query q() { delete Person where name = "p0" }')
    pinned = ScanRequest(Location.parse(graph.uri), "Person", since="start").pin()
    whole = rows_of(pinned)
    monkeypatch.setattr(scans, "_ROWS_PER_TASK", 2)

    assert len(pinned.parts()) > 6
    assert rows_of(pinned) == whole
    assert [row["operation"] for row in whole] == ["insert"] * 3 + ["update"] * 6 + ["delete"]


def rows_of(scan: Any) -> list[dict[str, Any]]:
    return [row for part in scan.parts() for batch in scan.batches(part, scan.schema()) for row in batch.to_pylist()]


def test_all_types_of_one_state_are_views_for_sql(graph: Graph, session: SparkSession) -> None:
    assert sorted(create_views(graph, prefix="now_", spark=session)) == ["now_Knows", "now_Knows2", "now_Person"]

    ends = "select e.src, p.age from now_Knows e join now_Person p on p.id = e.dst"
    assert session.sql(ends).collect() == [Row(src="eve", age=41)]


def test_a_state_stays_the_same_whatever_is_committed_later(spark: SparkSession, tmp_path: Path) -> None:
    graph = omnigraph.init(tmp_path / "graph", SCHEMA)
    people = read(graph, "Person", spark=spark)
    graph.load([{"type": "Person", "data": {"name": "eve"}}], mode="append")

    assert people.collect() == []


def test_views_of_sql_work_and_tables_say_so(graph: Graph, spark: SparkSession) -> None:
    register(spark)
    given = f"USING omnigraph OPTIONS (graph '{graph.uri}', type 'Person', columns 'id,age')"

    # The session is shared, and so are its views.
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW people {given}")
    assert spark.sql("select id from people where age > 40").collect() == [Row(id="bob")]
    with pytest.raises(PySparkException) as caught:
        spark.sql(f"CREATE TABLE people_table {given}")

    text = str(caught.value)
    assert "make a view: CREATE TEMPORARY VIEW" in text
    assert "code: parameter_invalid" in text
    assert "Traceback" not in text


def test_what_cannot_be_read_is_refused_before_spark_is_asked(graph: Graph) -> None:
    with pytest.raises(ExportTypeError, match="unknown type 'Persom'"):
        read(graph, "Persom")
    with pytest.raises(ParameterError, match="negative"):
        read(graph, "Person", limit=-1)
    with pytest.raises(ParameterError, match="`where` cannot be used"):
        read(graph, "Person", where=[["age", "near", 5]])
    with pytest.raises(UnsupportedUriError):
        read("http://localhost:1/graph", "Person")
