"""`omnigraph query`: its formats, its options, its exit codes."""

from __future__ import annotations

import csv
import io
import json
from functools import partial
from pathlib import Path

import pytest

import omnigraph
from omnigraph.graph import Graph
from tests.support.cli import Run, command, error_on_stdout, real_program

SCHEMA = """
node Person { name: String @key  age: I32?  born: Date?  seen: DateTime?  tags: [String]?  days: [Date]? }
edge Knows: Person -> Person
"""
PEOPLE = [
    {"name": "ada", "age": 36, "born": "1815-12-10", "seen": "2024-01-01T00:00:00Z", "tags": ["a,b", 'q"'], "days": []},
    {"name": "Käse", "days": ["2024-01-01"]},
    {"name": "lines\nand, commas", "age": 1},
]
ALL = "query all() { match { $p: Person } return { $p.name, $p.age, $p.tags as tags } order { $p.name desc } }"
ONE = "query one($n: String) { match { $p: Person { name: $n } } return { $p.age } }"
ADA = '{"n": "ada"}'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a graph named `g`, a file of queries and one of parameters."""
    place = tmp_path_factory.mktemp("query")
    (place / "queries.gq").write_text(f"{ALL}\n{ONE}\n")
    (place / "params.json").write_text(ADA)
    omnigraph.init(place / "g", SCHEMA).load([{"type": "Person", "data": data} for data in PEOPLE], mode="append")
    return place


@pytest.fixture
def graph(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Graph:
    monkeypatch.chdir(folder)
    return omnigraph.open(folder / "g", read_only=True)


query = partial(command, "query")
program = partial(real_program, "query")


# Formats


def test_a_table_is_for_people(graph: Graph) -> None:
    run = query("--store", "g", "-e", ONE, "--params", ADA)

    assert (run.code, run.err) == (0, "")
    assert "p.age" in run.out
    assert "36" in run.out
    assert run == query("--store", "g", "-e", ONE, "--params", ADA, "--format", "table")
    assert graph.commits()[0].commit_id not in run.out


def test_a_table_of_nothing_shows_its_columns(graph: Graph) -> None:
    assert "p.age" in query("--store", graph.uri, "-e", ONE, "--params", '{"n": "nobody"}').out


def test_json_is_one_document(graph: Graph) -> None:
    run = query("--store", "g", "-e", ALL, "--format", "json")

    document = json.loads(run.out)
    assert [*document] == ["query_name", "target", "row_count", "columns", "rows", "graph_commit_id"]
    assert document == {
        "query_name": "all",
        "target": {"branch": "main", "snapshot": None},
        "row_count": 3,
        "columns": ["p.name", "p.age", "tags"],
        "rows": graph.query(ALL).rows,
        "graph_commit_id": graph.commits()[0].commit_id,
    }
    assert [*document["rows"][0]] == ["p.name", "p.age", "tags"]
    assert query("--store", "g", "-e", ALL, "--json") == run


def test_jsonl_begins_with_a_line_about_the_rest(graph: Graph) -> None:
    run = query("--store", "g", "-e", ALL, "--format", "jsonl")

    head, *rows = map(json.loads, run.out.splitlines())
    target = {"branch": "main", "snapshot": None}
    assert head == {"kind": "metadata", "query_name": "all", "target": target, "row_count": 3}
    assert rows == graph.query(ALL).rows
    assert "Käse" in run.out


def test_csv_can_be_read_back(graph: Graph) -> None:
    run = query("--store", "g", "-e", ALL, "--format", "csv")

    head, *rows = csv.reader(io.StringIO(run.out))
    assert head == graph.query(ALL).columns
    assert rows == [["lines\nand, commas", "1", "null"], ["ada", "36", '["a,b","q\\""]'], ["Käse", "null", "null"]]


def test_kv_is_a_paragraph_for_each_row(graph: Graph) -> None:
    run = query("--store", "g", "-e", ONE, "--params", ADA, "--format", "kv")

    assert graph.query(ONE, {"n": "ada"}).rows == [{"p.age": 36}]
    assert (run.code, run.out) == (0, "1 rows from branch main via one\nrow 1\np.age: 36\n")


@pytest.mark.parametrize("shape", ["table", "kv", "csv", "jsonl", "json"])
def test_every_format_writes_every_kind_of_cell(graph: Graph, shape: str) -> None:
    source = "query q() { match { $p: Person } return { $p.born, $p.seen, $p.tags, $p.days } }"

    run = query("--store", graph.uri, "-e", source, "--format", shape)

    assert run.code == 0
    assert [text for text in ("1815-12-10", "2024-01-01T00:00:00.000Z", "2024-01-01") if text not in run.out] == []


@pytest.mark.parametrize("shape", ["table", "csv"])
def test_columns_with_one_name_do_not_shift_the_others(graph: Graph, shape: str) -> None:
    source = 'query q() { match { $p: Person { name: "ada" } } return { $p.name as x, $p.age as x, $p.born as y } }'

    run = query("--store", graph.uri, "-e", source, "--format", shape)

    if shape == "csv":
        head, row = csv.reader(io.StringIO(run.out))
        assert len(head) == len(row)
        assert dict(zip(head, row, strict=True)) == {"x": "36", "y": "1815-12-10"}
    assert "1815-12-10" in run.out


# Where things come from


@pytest.mark.parametrize(
    "arguments",
    [
        ["-e", ONE, "--params", ADA],
        ["one", "--query", "queries.gq", "--params", ADA],
        ["--query", "queries.gq", "one", "--params-file", "params.json"],
        ["--query-string", ONE, "--params-file", "params.json", "--branch", "main"],
    ],
)
@pytest.mark.parametrize("option", ["--store", "--uri"])
@pytest.mark.usefixtures("graph")
def test_the_query_and_its_parameters_come_from_files_or_the_command_line(arguments: list[str], option: str) -> None:
    assert query(*arguments, option, "g", "--format", "csv") == Run(0, "p.age\n36\n", "")


def test_a_past_commit_can_be_read(graph: Graph) -> None:
    first, last = graph.commits()[-1].commit_id, graph.commits()[0].commit_id
    arguments = ["--store", "g", "-e", ALL, "--json", "--snapshot"]

    before, now = (json.loads(query(*arguments, commit).out) for commit in (first, last))

    assert (before["row_count"], now["row_count"]) == (0, 3)
    assert before["target"]["snapshot"] == before["graph_commit_id"] == first


@pytest.mark.slow
def test_the_real_program_prints_rows_and_nothing_else(graph: Graph) -> None:
    run = program("--store", graph.uri, "-e", ONE, "--params", ADA, "--format", "csv")

    assert run == Run(0, "p.age\n36\n", "")


# What it refuses


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--store", "g"], "--query"),
        (["--store", "g", "-e", ALL, "--query", "queries.gq"], "--query"),
        (["--store", "g", "-e", " "], "--query-string must not be empty"),
        (["--store", "g", "-e", ALL, "--branch", "main", "--snapshot", "x"], "--snapshot"),
        (["--store", "g", "-e", ALL, "--format", "xml"], "table, kv, csv, jsonl, json"),
        (["--store", "g", "-e", ALL, "--format", "csv", "--json"], "--format"),
        (["--store", "g", "-e", ONE, "--params", ADA, "--params-file", "params.json"], "--params"),
        (["--store", "g", "-e", ALL, "--nope"], "--nope"),
    ],
)
@pytest.mark.usefixtures("graph")
def test_wrong_arguments_exit_with_two(arguments: list[str], message: str) -> None:
    run = query(*arguments)

    assert (run.code, run.out) == (2, "")
    assert message in run.err


@pytest.mark.parametrize("flags", [[], ["--json"]])
@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--store", "none", "-e", ALL], "no graph at"),
        (["--store", "g", "--query", "none.gq"], "none.gq"),
        (["--store", "g", "-e", ONE, "--params-file", "none.json"], "none.json"),
        (["--store", "g", "-e", ONE, "--params", "{"], "the parameters are not JSON"),
        (["--store", "g", "-e", ONE, "--params", "[]"], "must be a JSON object"),
        (["--store", "g", "-e", ONE], "parameter 'n' not provided"),
        (["--store", "g", "-e", ALL, "--branch", "nowhere"], "nowhere"),
        (["--store", "g", "-e", ALL, "--snapshot", "never"], "no commit, branch or tag 'never'"),
        (["--store", "g", "--query", "queries.gq"], "multiple queries"),
        (["--store", "g", "third", "--query", "queries.gq"], "query 'third' not found"),
        (["--store", "g", "-e", 'query q() { insert Person { name: "a" } }'], "query 'q' changes the graph"),
        (
            ["--store", "g", "-e", "query q() { match { $p: Persn } return { $p } }"],
            "<query>:1:25: T1: unknown node type",
        ),
    ],
)
@pytest.mark.usefixtures("graph")
def test_what_cannot_be_answered_exits_with_one_and_says_why(
    arguments: list[str], message: str, flags: list[str]
) -> None:
    run = query(*arguments, *flags)

    assert (run.code, error_on_stdout(run)) == (1, bool(flags))
    assert message in run.err


def test_help_names_every_option() -> None:
    result = query("--help")

    options = (
        "--store",
        "--query",
        "-e",
        "--query-string",
        "--params",
        "--params-file",
        "--branch",
        "--snapshot",
        "--format",
    )
    assert [option for option in (*options, "--json", "NAME") if option not in result.out] == []
