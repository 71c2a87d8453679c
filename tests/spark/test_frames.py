"""DataFrames as the input of a load: staged where they are, checked like files, never collected."""

from __future__ import annotations

import pkgutil
import shutil
from inspect import isfunction
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.connect.session import SparkSession as ConnectSession

import omnigraph
import omnigraph.spark
from omnigraph.errors import (
    InputColumnsError,
    InputError,
    InputTypeError,
    LoadRejectedError,
    ParameterError,
    SparkError,
)
from omnigraph.graph import Graph
from omnigraph.spark import rejects, write
from tests.support.loads import difference, look, make_graph, nothing_changes
from tests.support.spark import ConnectServer

KNOWS = "src string, dst string"
PERSON = "name string, age int"


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    uri = tmp_path_factory.mktemp("graphs") / "people"
    make_graph("people", uri)
    return uri


@pytest.fixture
def people(template: Path, tmp_path: Path) -> Graph:
    return omnigraph.open(shutil.copytree(template, tmp_path / "people"))


@pytest.fixture
def uncollected(session: SparkSession, monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    """A session whose DataFrames refuse to bring their rows to the driver by the ways that payload would take."""

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("the rows of a DataFrame came to the driver")

    kind = type(session.range(1))
    for name in ("toArrow", "toPandas", "toLocalIterator", "take", "head"):
        monkeypatch.setattr(kind, name, refuse)
    collect = kind.collect

    def collect_no_rows(frame: DataFrame) -> list[Row]:
        assert not {"name", "age", "src", "dst"}.intersection(frame.columns), "rows came to the driver"
        return collect(frame)

    monkeypatch.setattr(kind, "collect", collect_no_rows)
    return session


def test_the_functions_of_the_package_are_not_hidden_by_its_modules() -> None:
    """Importing a module sets its name in its package."""
    modules = {one.name for one in pkgutil.iter_modules(omnigraph.spark.__path__)}
    functions = {name for name, value in vars(omnigraph.spark).items() if isfunction(value)}

    assert {"read", "write", "changes", "create_views", "rejects"} <= functions
    assert modules.isdisjoint(functions)


def test_nodes_and_edges_are_one_commit_and_stay_on_spark(people: Graph, uncollected: SparkSession) -> None:
    before = look(people)

    done = write(
        people,
        {
            "Person": uncollected.createDataFrame([("Eve", 22), ("Finn", 23)], PERSON).repartition(2),
            "Knows": uncollected.createDataFrame([("Eve", "Alice"), ("Eve", "Finn")], KNOWS),
        },
        mode="append",
    )

    after = look(people)
    assert (done.nodes, done.edges) == ({"Person": 2}, {"Knows": 2})
    assert len(after.commits) == len(before.commits) + 1
    assert difference(before, after) == [
        "+ Knows Eve -> Alice",
        "+ Knows Eve -> Finn",
        "+ Person#Eve age=22 name=Eve",
        "+ Person#Finn age=23 name=Finn",
    ]


def test_problems_name_the_frame_and_the_row(people: Graph, spark: SparkSession) -> None:
    frames: dict[str, Any] = {
        "Person": spark.createDataFrame([("Eve", 22), ("Eve", 23)], PERSON).coalesce(1),
        "Knows": spark.createDataFrame([("Eve", "Alice"), ("Eve", "nobody")], KNOWS).coalesce(1),
    }

    with nothing_changes(people), pytest.raises(LoadRejectedError) as caught:
        people.load(frames, mode="append")

    found = [(one.file, one.line, one.rule) for one in caught.value.violations]
    assert found == [("<Person>", 2, "unique"), ("<Knows>", 2, "endpoint")]


def test_a_merge_replaces_rows(people: Graph, spark: SparkSession) -> None:
    before = look(people)

    people.load({"Person": spark.createDataFrame([("Alice", 77)], PERSON)}, mode="merge")

    changed = difference(before, look(people))
    assert [line for line in changed if line.startswith("+")] == ["+ Person#Alice age=77 name=Alice"]


def test_frames_and_records_are_one_commit(people: Graph, spark: SparkSession) -> None:
    done = people.load(
        {"Person": spark.createDataFrame([("Eve", 22)], PERSON), "Knows": [{"from": "Eve", "to": "Alice"}]},
        mode="append",
    )

    assert (done.nodes, done.edges) == ({"Person": 1}, {"Knows": 1})


def test_a_frame_without_rows_changes_nothing(people: Graph, spark: SparkSession) -> None:
    before = look(people)

    people.load({"Person": spark.createDataFrame([], PERSON)}, mode="append")

    assert difference(before, look(people)) == []


def test_a_frame_without_rows_empties_the_type_that_it_overwrites(people: Graph, spark: SparkSession) -> None:
    people.load({"Knows": spark.createDataFrame([], KNOWS)}, mode="overwrite")

    assert people.snapshot().entries["edge:Knows"].row_count == 0


def test_problems_are_a_dataframe(people: Graph, session: SparkSession, tmp_path: Path) -> None:
    frame = session.createDataFrame([("Eve", 22), ("Eve", 23), (None, 24)], PERSON).coalesce(1)
    file = tmp_path / "rejects.jsonl"
    with pytest.raises(LoadRejectedError) as caught:
        write(people, {"Person": frame}, mode="append", rejects=file)

    found = rejects(file, spark=session)

    expected = [(one.line, one.rule, one.type_name) for one in caught.value.violations]
    assert [tuple(row) for row in found.select("line", "rule", "type").orderBy("line").collect()] == expected
    assert found.where("array_contains(properties, 'name') and file = '<Person>'").count() == 2


def test_a_mapping_renames_columns_as_for_files(people: Graph, spark: SparkSession) -> None:
    frame = spark.createDataFrame([("Eve", 22, "x")], "full string, age int, remark string")
    mapping = {"files": {"staff": {"type": "Person", "columns": {"full": "name", "remark": None}}}}
    before = look(people)

    write(people, {"staff": frame}, mode="append", mapping=mapping)

    assert difference(before, look(people)) == ["+ Person#Eve age=22 name=Eve"]


@pytest.mark.parametrize(
    "schema, expected",
    [
        ("name string, colour string", "column 'colour' is not a property of Person"),
        ("age int", "Person needs 'name'"),
        ("name string, age struct<a: int>", "Person.age is I32?, but its column is"),
        ("name string, age timestamp_ntz", "column 'age' is a timestamp_ntz"),
        ("name string, age int, AGE int", "column 'AGE' is not a property of Person"),
    ],
)
def test_wrong_columns_are_refused_before_any_row_is_read(
    people: Graph, session: SparkSession, schema: str, expected: str
) -> None:
    frame = session.createDataFrame([], schema)

    with nothing_changes(people), pytest.raises(InputColumnsError) as caught:
        people.load({"Person": frame}, mode="append")

    assert expected in str(caught.value)
    assert "<Person>" in str(caught.value)
    assert caught.value.hint


def test_what_cannot_be_a_load_is_refused(people: Graph, spark: SparkSession) -> None:
    frame = spark.createDataFrame([("Eve", 22)], PERSON)
    stream = spark.readStream.format("rate").load()
    other = spark.newSession().createDataFrame([("Eve", "Alice")], KNOWS)

    with nothing_changes(people):
        with pytest.raises(InputError, match="is a stream"):
            people.load({"Person": stream}, mode="append")
        with pytest.raises(InputError, match="different Spark sessions"):
            people.load({"Person": frame, "Knows": other}, mode="append")
        with pytest.raises(InputTypeError, match="unknown type 'Persn'"):
            people.load({"Persn": frame}, mode="append")
        with pytest.raises(ParameterError, match="engine 'local'"):
            people.load({"Person": frame}, mode="append", engine="local")


def test_bad_values_are_problems_of_their_rows(people: Graph, session: SparkSession) -> None:
    rows = session.createDataFrame([(None, "1"), ("Eve", "22.5"), ("Finn", "7.0")], "name string, age string")
    frame = rows.selectExpr("name", "cast(age as decimal(5,1)) as age").coalesce(1)

    with nothing_changes(people), pytest.raises(LoadRejectedError) as caught:
        people.load({"Person": frame}, mode="merge")

    found = [(one.line, one.rule, one.properties) for one in caught.value.violations]
    assert found == [(1, "required", ("name",)), (2, "type", ("age",))]


def test_a_session_that_has_ended_is_an_error_of_ours(people: Graph, connect_server: ConnectServer) -> None:
    session = ConnectSession(connection=connect_server.address)
    frame: Any = session.createDataFrame([("Eve", 22)], PERSON)
    session.stop()

    with nothing_changes(people), pytest.raises(SparkError):
        people.load({"Person": frame}, mode="append")
