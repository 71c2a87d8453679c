"""The file of a pipeline: every mistake is found, at its line and column."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from omnigraph import pipeline
from omnigraph.api.pipelines import json_schema, read_pipeline
from omnigraph.errors import PipelineFileError
from tests.pipeline.nightly import PIPELINE, make
from tests.support.cli import command
from tests.support.spark import ROOT


def problems(file: Path) -> list[tuple[int, int, str]]:
    with pytest.raises(PipelineFileError) as caught:
        pipeline.validate(file)
    return [(one.place.line, one.place.column, one.message) for one in caught.value.diagnostics]


def position(text: str, mark: str) -> tuple[int, int]:
    at = text.index(mark)
    return text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)


# What is replaced in the good file, by what, where the problem is, and what it says.
MISTAKES = [
    ("pipeline: people", "pipeline: pe/ople", "pe/ople", "cannot be the name of a pipeline"),
    ("pipeline: people\n", "", "target:", "`pipeline` is missing"),
    ("graph: people", "graph: nowhere", "nowhere", "no graph at"),
    ("branch: nightly", "brunch: nightly", "brunch", "`brunch` is unknown"),
    ("path: staff*.csv\n    incremental: files", "path: gone.csv", "gone.csv", "nothing to load from"),
    ("path: staff*.csv", "path: [1]", "1]", "valid string"),
    ("path: staff*.csv", "path: people.yaml", "people.yaml", "cannot tell the format"),
    ("path: staff*.csv", "sql: select 1", "files", "files are counted of csv, jsonl and parquet"),
    ("incremental: files", "incremental: file", "file\n", "is not one of 'files' or 'version'"),
    ("incremental: files", "incremental: version", "version", "only the format omnigraph has versions"),
    ("incremental: files", "incremental: {watermark: seq}", "{watermark", "has no column 'seq'"),
    ("incremental: files", "csv: {delimiter: ab}", "ab}", "must be one ASCII character"),
    ("type: City", "type: Citty", "Citty", "the graph has no type 'Citty'"),
    ("from: staff\n    columns: {name: town}", "from: stuff\n    columns: {name: town}", "stuff", "no source 'stuff'"),
    ("{name: town}", "{name: town, nam: town}", "nam:", "City has no property 'nam'"),
    ("{name: town}", "{}", "columns: {}", "City needs 'name'"),
    ("{name: town}", "{name: twon}", "twon", "has no column 'twon'"),
    ("{name: town}", "{name: {column: town, value: 1}}", "{column", "`name` has no value, or several"),
    ("{full_name}-lives", "{full_name-lives", '{text: "{full', "a brace that is not closed"),
    ("{full_name}-lives", "{fullname}-lives", '{text: "{full', "has no column 'fullname'"),
    ("latest_by: updated\n  - type", "latest_by: update\n  - type", "update\n", "has no column 'update'"),
    ("max_bad: 2", "max_bad: -1", "-1", "greater than or equal to 0"),
    ("max_bad: 2", "max_bad: many", "many", "valid integer"),
    ("$p.age > 100", "$p.agee > 100", '"query q()', "the check 'too old'"),
    ("  merge: main\n", "", "checks:", "checks decide whether a branch is merged"),
    ("merge: main", "merge: nightly", "nightly\n  optimize", "the data is loaded into 'nightly' already"),
    ("format: jsonl}", "format: xml}", "xml", "is not one of"),
    ("format: jsonl}", "types: [Persn]}", "Persn", "the graph has no type 'Persn'"),
    ("optimize: true", "embed: [City]", "City]", "no node type with an `@embed` property"),
    ("optimize: true", "optimize: true\n  optimize: false", "optimize: false", "this key is given twice"),
    ("optimize: true", "optimize: [", "[\n", "not YAML"),
]


@pytest.mark.parametrize("old, new, mark, message", MISTAKES, ids=[one[1].strip()[:30] for one in MISTAKES])
def test_every_planted_mistake_is_found_at_its_place(
    tmp_path: Path, old: str, new: str, mark: str, message: str
) -> None:
    assert old in PIPELINE
    text = PIPELINE.replace(old, new, 1)
    start = text.index(new) if new else 0

    found = problems(make(tmp_path, text))

    at = text.index(mark, start if mark in text[start:] else 0)
    line, column = text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)
    assert [(one[0], one[1]) for one in found] == [(line, column)], found
    assert message in found[0][2]


def test_all_mistakes_are_reported_at_once(tmp_path: Path) -> None:
    text = PIPELINE.replace("type: City", "type: Citty").replace("{name: full_name,", "{nam: full_name,")

    assert [one[2] for one in problems(make(tmp_path, text))] == [
        "the graph has no type 'Citty'",
        "Person needs 'name'",
        "Person has no property 'nam'",
    ]


def test_the_published_schema_is_that_of_the_models_and_takes_the_example(tmp_path: Path) -> None:
    published = json.loads((ROOT / "docs/reference/pipeline.schema.json").read_text())

    assert published == json_schema(), (
        "write it again: omnigraph pipeline schema -o docs/reference/pipeline.schema.json"
    )
    assert set(read_pipeline(make(tmp_path)).document.model_fields_set) <= set(published["properties"])


def test_the_command_line_shows_plans_runs_and_their_records(tmp_path: Path) -> None:
    file = str(make(tmp_path))

    assert command("pipeline", "validate", file).out == f"{file} is valid\n"
    planned = command("pipeline", "run", file, "--dry-run").out
    assert "write Person: 2 rows" in planned
    assert "steps: load, check, merge, optimize, export" in planned
    ran = command("pipeline", "run", file, "--json")
    assert json.loads(ran.out)["runs"][0]["status"] == "done"
    assert "LivesIn: 2 rows, 2 loaded" in command("pipeline", "status", file).out
    assert command("pipeline", "run", file).out == "nothing is new\n"
    Path(file).write_text(PIPELINE.replace("type: City", "type: Citty"))
    wrong = command("pipeline", "validate", file, "--json")
    assert (wrong.code, json.loads(wrong.out)["problems"][0]["line"]) == (1, 10)
    assert f"{file}:10:11: F1: the graph has no type 'Citty'" in command("pipeline", "validate", file).err
