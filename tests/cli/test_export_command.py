"""`omnigraph export`: what goes to stdout, what into files, and how it ends."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import omnigraph
from omnigraph.cli import app
from omnigraph.errors import ExportTypeError
from omnigraph.graph import Graph

PROGRAM = Path(sys.executable).parent / "omnigraph"
SCHEMA = "node Person { name: String @key  age: I32? } edge Knows: Person -> Person"


@pytest.fixture
def graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Graph:
    """A graph named `g` in the working directory, with two people who know each other."""
    monkeypatch.chdir(tmp_path)
    graph = omnigraph.init(tmp_path / "g", SCHEMA)
    people = [{"type": "Person", "data": {"name": name}} for name in ("bob", "Zoë")]
    graph.load([*people, {"edge": "Knows", "from": "bob", "to": "Zoë", "data": {"id": "k"}}], mode="append")
    return graph


def export(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["export", *arguments], env={"COLUMNS": "200", "NO_COLOR": "1"})


def test_the_whole_graph_goes_to_stdout_as_lines(graph: Graph) -> None:
    run = subprocess.run([PROGRAM, "export", "g"], capture_output=True, check=False)

    assert (run.returncode, run.stderr) == (0, b"")
    assert run.stdout.decode() == "".join(graph.export())
    assert [json.loads(line)["data"]["id"] for line in run.stdout.splitlines()] == ["k", "Zoë", "bob"]


def test_some_types_at_some_commit_can_be_asked_for(graph: Graph) -> None:
    before = graph.commits()[0].commit_id
    graph.load([{"type": "Person", "data": {"name": "eve"}}], mode="append")

    assert export("--store", "g", "--type", "Knows").stdout.count("\n") == 1
    assert export("--store", "g", "--type", "Person", "--type", "Knows").stdout.count("\n") == 4
    assert export("g", "--snapshot", before).stdout.count("\n") == 3
    assert export("g", "--branch", "main").stdout.count("\n") == 4


def test_the_name_of_the_output_says_its_format(graph: Graph, tmp_path: Path) -> None:
    one = export("g", "--type", "Person", "--output", "people.csv", "--quiet")
    all_ = export("g", "-o", "out", "--format", "parquet", "--engine", "local")

    people = "2 entities across 1 node types and 0 edge types"
    assert (one.exit_code, one.stdout) == (0, f"exported g to {tmp_path / 'people.csv'}: {people}\n")
    assert (tmp_path / "people.csv").read_text(encoding="utf-8") == 'id,age,name\n"Zoë",,"Zoë"\n"bob",,"bob"\n'
    assert all_.stdout.startswith(f"exported g to {tmp_path / 'out'}: 3 entities")
    assert {file.name for file in (tmp_path / "out").iterdir()} == {"Person.parquet", "Knows.parquet", "_export.json"}
    assert graph.load("out", mode="merge").total == 3


def test_a_type_that_is_not_there_fails_before_any_output(graph: Graph) -> None:
    assert graph.catalog.nodes
    run = export("g", "--type", "Nobody")

    assert isinstance(run.exception, ExportTypeError)
    assert run.stdout == ""


@pytest.mark.parametrize(
    "arguments, complaint",
    [
        (["g", "--branch", "main", "--snapshot", "c"], "either --branch or --snapshot"),
        (["g", "--format", "xml"], "'xml' is not one of jsonl, csv, parquet"),
        (["g", "--engine", "dask"], "'dask' is not one of auto, local, spark"),
        (["g", "-o", "out", "--conf", "spark"], "'spark' is not KEY=VALUE"),
    ],
)
def test_wrong_arguments_are_told_apart_from_failures(graph: Graph, arguments: list[str], complaint: str) -> None:
    assert graph.catalog.nodes
    run = export(*arguments)

    assert run.exit_code == 2
    assert complaint in run.stderr


def test_it_ends_quietly_when_nobody_reads_any_more(graph: Graph) -> None:
    many = ({"type": "Person", "data": {"name": f"{number:0500}"}} for number in range(2000))
    graph.load(list(many), mode="append")
    with subprocess.Popen([PROGRAM, "export", "g"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()

        assert process.stderr.read() == b""
        assert process.wait(300) == 141
