"""Pipelines on Spark: the same file makes the same graph as in the process; SQL, and versions of graphs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import omnigraph
from omnigraph import pipeline
from omnigraph.errors import LoadRejectedError, PipelineSourceError
from omnigraph.pipeline.records import PipelineRun
from tests.pipeline.nightly import FIRST, make, people

pytestmark = pytest.mark.usefixtures("spark")


def ran(file: Path, engine: str = "spark") -> PipelineRun:
    done = pipeline.run(file, engine=engine).last
    assert done
    return done


def test_spark_and_this_process_make_the_same_graph_of_the_same_file(tmp_path: Path) -> None:
    bad = FIRST + 'cem,x,"Bad ""Ems""",,1\ndan,,"two\nlines",2024-02-01,\nfew,values\n'
    runs, graphs = [], []
    for engine in ("local", "spark"):
        folder = tmp_path / engine
        folder.mkdir()
        file = make(folder)
        file.write_text(file.read_text().replace("max_bad: 2", "max_bad: 3"))
        (folder / "staff-1.csv").write_text(bad)
        runs.append(ran(file, engine))
        graphs.append(omnigraph.open(folder / "people"))

    local, spark = runs
    assert sorted(graphs[0].export()) == sorted(graphs[1].export())
    assert people(graphs[1]) == {"ann": 31, "bob": 40, "dan": None}
    assert (spark.read, spark.loaded, spark.rejected) == (local.read, local.loaded, local.rejected)
    assert local.rejected == 3
    rules = [[json.loads(line)["rule"] for line in Path(str(one.rejects)).read_text().splitlines()] for one in runs]
    assert sorted(rules[0]) == sorted(rules[1]) == ["endpoint", "shape", "type"]


def test_sql_conditions_and_expressions(tmp_path: Path) -> None:
    text = """\
pipeline: sql
target: {graph: people}
sources:
  raw: {path: raw.parquet}
  adults: {sql: "select *, age + 1 as next from raw where age >= 18"}
load:
  - {type: Person, from: adults, columns: {name: {sql: upper(name)}, age: next}, where: "name != 'bob'"}
  - {type: City, from: raw, columns: {name: {text: "of {name}"}}, latest_by: age}
"""
    file = make(tmp_path, text)
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    pq.write_table(pa.table({"name": ["ann", "bob", "cem"], "age": [30, 40, 5]}), tmp_path / "raw.parquet")

    assert pipeline.plan(file).engine == "spark"
    ran(file, "auto")

    graph = omnigraph.open(tmp_path / "people")
    assert people(graph) == {"ANN": 31}
    names = [json.loads(line)["data"]["name"] for line in graph.export(types=["City"])]
    assert sorted(names) == ["of ann", "of bob", "of cem"]


COPY = """\
pipeline: copy
target: {graph: copy}
sources:
  people: {format: omnigraph, options: {graph: people, type: Person}, incremental: version}
load:
  - {type: Person, from: people, columns: {name: name, age: age}}
"""


def test_a_graph_is_copied_into_another_change_by_change(tmp_path: Path, spark: SparkSession) -> None:
    source = omnigraph.open(make(tmp_path, COPY).parent / "people")
    omnigraph.init(tmp_path / "copy", source.schema)
    file = tmp_path / "people.yaml"
    source.load([{"type": "Person", "data": {"name": name, "age": 1}} for name in ("ann", "bob")], mode="append")
    assert ran(file).read == {"Person": 2}
    assert pipeline.run(file, engine="spark").runs == ()
    source.load([{"type": "Person", "data": {"name": "bob", "age": 2}}], mode="merge")

    assert ran(file).read == {"Person": 1}

    copy = omnigraph.open(tmp_path / "copy")
    assert people(copy) == {"ann": 1, "bob": 2}
    source.mutate('query q() { delete Person where name = "ann" }')
    with pytest.raises(PipelineSourceError, match="has lost 1 rows"):
        ran(file)
    file.write_text(COPY.replace("type: Person}", "type: Person, deletes: ignore}"))
    assert pipeline.run(file, engine="spark").last
    assert people(copy) == {"ann": 1, "bob": 2}
    assert not spark.catalog.tableExists("gone")


def test_a_watermark_on_spark_and_poison_rows(tmp_path: Path) -> None:
    text = """\
pipeline: events
target: {graph: people, mode: append}
sources:
  events: {path: events.jsonl, incremental: {watermark: seq}}
load:
  - {type: Person, from: events, columns: {name: who, age: age}}
"""
    file = make(tmp_path, text)
    events = tmp_path / "events.jsonl"
    events.write_text('{"who": "ann", "age": "7", "seq": 9}\n{"who": "bob", "age": "8", "seq": 10}\n')
    assert ran(file).sources["events"]["watermark"] == 10
    events.write_text(events.read_text() + '{"who": "cem", "age": "x", "seq": 11}\n')

    with pytest.raises(LoadRejectedError, match="1 records of the sources cannot be loaded"):
        ran(file)

    events.write_text(events.read_text().replace('"x"', '"9"'))
    assert ran(file).read == {"Person": 1}
    assert people(omnigraph.open(tmp_path / "people")) == {"ann": 7, "bob": 8, "cem": 9}
