"""`omnigraph load`: its options, its exit codes, and what it prints for people and for programs."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from functools import partial
from pathlib import Path

import pytest

import omnigraph
from omnigraph.graph import Graph
from tests.support.cli import PROGRAM, Run, command, error_on_stdout, quick_program, real_program

SCHEMA = "node Person { name: String @key  age: I32? } edge Knows: Person -> Person"
GOOD = """{"type": "Person", "data": {"name": "ada", "age": 36}}
{"type": "Person", "data": {"name": "bob"}}
{"edge": "Knows", "from": "ada", "to": "bob"}
"""
BAD = """{"type": "Person", "data": {"name": "ada", "age": "x"}}
{"type": "Person", "data": {"name": "bob"}}
{"edge": "Knows", "from": "ada", "to": "bob"}
"""
TOLD = "omnigraph load → g (direct, local)\n"
LOADED = "loaded g on branch main with append: 3 entities across 1 node types and 1 edge types\n"


@pytest.fixture
def graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Graph:
    """A graph named `g` in the working directory, beside files to load."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.jsonl").write_text(GOOD)
    (tmp_path / "bad.jsonl").write_text(BAD)
    return omnigraph.init(tmp_path / "g", SCHEMA)


load = partial(command, "load")
program = partial(quick_program, "load")


def counts(graph: Graph) -> tuple[int, int, int]:
    """How many people, friendships and commits there are."""
    entries = graph.snapshot().entries
    return entries["node:Person"].row_count, entries["edge:Knows"].row_count, len(graph.commits())


# What it prints


def test_people_are_told_in_a_line_what_was_loaded(graph: Graph) -> None:
    assert program("g", "--data", "good.jsonl", "--mode", "append") == Run(0, LOADED, TOLD)
    assert counts(graph) == (2, 1, 2)


def test_programs_get_one_document(graph: Graph) -> None:
    run = load("g", "--data", "good.jsonl", "--mode", "merge", "--as", "eve", "--json")

    head = graph.commits()[0]
    assert (run.code, run.err) == (0, TOLD)
    assert run.document == {
        "uri": "g",
        "branch": "main",
        "base_branch": None,
        "branch_created": False,
        "mode": "merge",
        "tables": [{"table_key": "edge:Knows", "rows_loaded": 1}, {"table_key": "node:Person", "rows_loaded": 2}],
        "nodes": [{"name": "Person", "entities_loaded": 2, "rows_loaded": 2}],
        "edges": [{"name": "Knows", "entities_loaded": 1, "rows_loaded": 1}],
        "total_entities": 3,
        "total_rows": 3,
        "nodes_loaded": 2,
        "edges_loaded": 1,
        "node_types_loaded": 1,
        "edge_types_loaded": 1,
        "actor_id": "eve",
        "commit": {
            "graph_commit_id": head.commit_id,
            "manifest_branch": None,
            "manifest_version": head.manifest_version,
            "parent_commit_id": head.parent_id,
            "merged_parent_commit_id": None,
            "actor_id": "eve",
            "created_at": head.created_at,
            "graph_branch": None,
            "graph_manifest_version": head.manifest_version,
        },
    }
    assert run.out == json.dumps(run.document, indent=2) + "\n"


def test_a_dry_run_says_that_it_only_checked(graph: Graph) -> None:
    told = load("g", "--data", "good.jsonl", "--mode", "append", "--dry-run")
    document = load("g", "--data", "good.jsonl", "--mode", "append", "--dry-run", "--json").document

    assert (told.code, told.out) == (0, LOADED.replace("loaded", "checked"))
    assert (document["total_entities"], document["commit"]) == (3, None)
    assert load("g", "--data", "bad.jsonl", "--mode", "append", "--dry-run").code == 1
    assert counts(graph) == (0, 0, 1)


def test_progress_is_shown_on_a_terminal_only_and_not_in_the_data(graph: Graph) -> None:
    arguments = [str(PROGRAM), "load", "g", "--data", "good.jsonl", "--mode", "append"]
    shown, plain = _on_terminal(arguments), _on_terminal([*arguments[:-1], "merge", "--quiet"])

    assert shown[0] == LOADED
    assert "read" in shown[1]
    assert plain == (LOADED.replace("append", "merge"), "")
    assert counts(graph) == (2, 2, 3)


def _on_terminal(command: list[str]) -> tuple[str, str]:
    """Run the program with a terminal as its stderr; return what it printed on stdout and there."""
    mine, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, env=environment)
    os.close(theirs)
    shown = b""
    while True:
        try:
            data = os.read(mine, 65536)
        except OSError:  # so a terminal tells that nobody writes any more
            break
        if not data:
            break
        shown += data
    os.close(mine)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0, shown
    return out.decode(), shown.decode()


# Where data comes from


@pytest.mark.parametrize(
    "arguments",
    [
        ["g", "--data", "good.jsonl"],
        ["--store", "g", "--data", "good.jsonl"],
        ["--uri", "g", "--data", "good.jsonl", "--branch", "main"],
        ["g", "--data", "goo*.jsonl", "--engine", "local"],
        ["g", "--data", "parts", "--engine", "auto"],
        ["g", "--data", "parts/1.jsonl", "--data", "parts/2.jsonl", "--data", "parts/1.jsonl"],
        ["g", "--data", "records.txt", "--format", "jsonl"],
        ["g", "--data", "tables", "--map", "map.json"],
    ],
)
def test_data_comes_from_files_directories_and_patterns(graph: Graph, arguments: list[str]) -> None:
    first, *others = GOOD.splitlines(keepends=True)
    Path("parts").mkdir()
    Path("parts/1.jsonl").write_text(first)
    Path("parts/2.jsonl").write_text("".join(others))
    Path("records.txt").write_text(GOOD)
    Path("tables").mkdir()
    Path("tables/Person.csv").write_text("name,age\nada,36\nbob,\n")
    Path("tables/friends.csv").write_text("a,b\nada,bob\n")
    mapping = {"files": {"friends.csv": {"type": "Knows", "columns": {"a": "from", "b": "to"}}}}
    Path("map.json").write_text(json.dumps(mapping))

    assert load(*arguments, "--mode", "append") == Run(0, LOADED, TOLD)
    assert counts(graph) == (2, 1, 2)


def test_csv_files_in_another_dialect_are_loaded_by_options(graph: Graph) -> None:
    Path("Person.csv").write_text("ada;36\n bob;NA\n")
    options = ("--delimiter", ";", "--null", "NA", "--trim", "--names", "name,age")

    assert load("g", "--data", "Person.csv", "--mode", "append", *options).code == 0
    assert counts(graph)[0] == 2
    refused = load("g", "--data", "Person.csv", "--mode", "append", "--delimiter", ",,")
    assert refused.code == 1
    assert "'delimiter' must be one ASCII character, not ',,'" in refused.err


def test_an_overwrite_replaces_what_is_there(graph: Graph) -> None:
    assert load("g", "--data", "good.jsonl", "--mode", "append").code == 0
    run = load("g", "--data", "good.jsonl", "--mode", "overwrite")

    assert run == Run(0, LOADED.replace("append", "overwrite"), TOLD)
    assert counts(graph) == (2, 1, 3)


def test_the_graph_that_is_changed_is_named_unless_that_is_unwanted(graph: Graph) -> None:
    arguments = ("g", "--mode", "merge", "--data", "good.jsonl")

    assert load(*arguments).err == TOLD
    assert load(*arguments, "--json").err == TOLD
    assert load(*arguments, "--quiet").err == ""
    assert load(*arguments, "--dry-run").err == "", "nothing is changed"
    assert counts(graph)[2] == 4


@pytest.mark.usefixtures("graph")
def test_a_graph_that_others_share_is_overwritten_only_if_that_is_confirmed() -> None:
    refused = load("s3://nowhere/g", "--mode", "overwrite", "--data", "good.jsonl")

    assert refused.code == 1
    assert "--yes" in refused.err
    assert load("g", "--mode", "overwrite", "--data", "good.jsonl").code == 0


def test_the_real_program_loads_on_spark_and_says_nothing_else(graph: Graph) -> None:
    data = ("g", "--data", "good.jsonl", "--mode", "append")
    run = real_program("load", *data, "--engine", "spark", "--master", "local[1,2]")

    assert run == Run(0, LOADED, TOLD)
    assert counts(graph) == (2, 1, 2)


# What it refuses


def test_a_refused_load_names_its_problems(graph: Graph) -> None:
    run = program("g", "--data", "bad.jsonl", "--mode", "append")

    place = f"{Path.cwd()}/bad.jsonl"
    assert (run.code, run.out) == (1, "")
    assert run.err.splitlines() == [
        TOLD.strip(),
        "Error: the load was refused, nothing was changed: 2 problems",
        f"  {place}:1: strict property Person.age expects Int32, not 'x'",
        f"  {place}:3: src 'ada' not found in Person",
        "hint: fix the records and load again",
    ]
    assert counts(graph) == (0, 0, 1)


def test_all_problems_are_written_to_a_file_line_by_line(graph: Graph) -> None:
    lines = [json.dumps({"edge": "Knows", "from": "ada", "to": f"Käse{at}"}, ensure_ascii=False) for at in range(25)]
    Path("many.jsonl").write_text("\n".join(lines), encoding="utf-8")

    run = load("g", "--data", "many.jsonl", "--mode", "append", "--errors", "errors.jsonl")

    written = [json.loads(line) for line in Path("errors.jsonl").read_text(encoding="utf-8").splitlines()]
    assert run.code == 1
    assert "50 problems are in errors.jsonl" in run.err
    assert "and 30 more" in run.err
    assert [(one["line"], one["properties"]) for one in written[:3]] == [(1, ["dst"]), (1, ["src"]), (2, ["dst"])]
    assert written[0] == {
        "file": f"{Path.cwd()}/many.jsonl",
        "line": 1,
        "rule": "endpoint",
        "type": "Knows",
        "id": written[0]["id"],
        "properties": ["dst"],
        "message": "dst 'Käse0' not found in Person",
    }
    assert len(written) == 50
    assert counts(graph) == (0, 0, 1)


def test_no_file_of_problems_is_written_if_there_are_none(graph: Graph) -> None:
    assert load("g", "--data", "good.jsonl", "--mode", "append", "--errors", "errors.jsonl").code == 0
    assert not Path("errors.jsonl").exists()
    assert counts(graph) == (2, 1, 2)


def test_a_file_of_problems_that_cannot_be_written_does_not_hide_that_the_load_was_refused(graph: Graph) -> None:
    run = program("g", "--data", "bad.jsonl", "--mode", "append", "--errors", "none/errors.jsonl")

    assert (run.code, run.out) == (1, "")
    assert "none/errors.jsonl" in run.err
    assert counts(graph) == (0, 0, 1)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["g", "--data", "good.jsonl"], "--mode"),
        (["g", "--mode", "append"], "--data"),
        (["g", "--data", "good.jsonl", "--mode", "upsert"], "'upsert' is not one of append, merge, overwrite"),
        (["g", "--data", "good.jsonl", "--mode", "append", "--engine", "flink"], "'flink' is not one of"),
        (["g", "--data", "good.jsonl", "--mode", "append", "--conf", "nothing"], "'nothing' is not KEY=VALUE"),
        (["g", "--data", "good.jsonl", "--mode", "append", "--conf", "=1"], "'=1' is not KEY=VALUE"),
        (["g", "--data", "good.jsonl", "--mode", "append", "--nope"], "--nope"),
        (["g", "h", "--data", "good.jsonl", "--mode", "append"], "h"),
        (["g", "--store", "h", "--data", "good.jsonl", "--mode", "append"], "--store"),
    ],
)
def test_wrong_arguments_exit_with_two(graph: Graph, arguments: list[str], message: str) -> None:
    run = load(*arguments)

    assert (run.code, run.out) == (2, "")
    assert message in run.err
    assert counts(graph) == (0, 0, 1)


@pytest.mark.parametrize("flags", [[], ["--json"]])
@pytest.mark.parametrize(
    "arguments, message",
    [
        (["none", "--data", "good.jsonl"], "no graph at"),
        (["g", "--data", "none.jsonl"], "none.jsonl"),
        (["g", "--data", "good.jsonl", "--data", "none.jsonl"], "none.jsonl"),
        (["g", "--data", "*.xml"], "*.xml"),
        (["g", "--data", "good.jsonl", "--format", "xml"], "xml"),
        (["g", "--data", "good.jsonl", "--map", "none.json"], "none.json"),
        (["g", "--data", "good.jsonl", "--branch", "nowhere"], "nowhere"),
        (["g", "--data", "bad.jsonl"], "bad.jsonl:1: "),
    ],
)
def test_what_cannot_be_done_exits_with_one_and_says_why(
    graph: Graph, arguments: list[str], message: str, flags: list[str]
) -> None:
    run = load(*arguments, "--mode", "append", *flags)

    assert (run.code, error_on_stdout(run)) == (1, bool(flags))
    assert message in run.err
    assert counts(graph) == (0, 0, 1)


def test_help_names_every_option() -> None:
    result = load("--help")

    options = "--data --mode --branch --as --engine --master --conf --format --map --errors --dry-run --quiet --json"
    assert [option for option in (*options.split(), "--store", "URI") if option not in result.out] == []
