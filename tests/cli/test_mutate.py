"""`omnigraph mutate`: its options, its exit codes, and what it prints for people and for programs."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

import omnigraph
from omnigraph.graph import Graph
from tests.support.cli import Run, command, error_on_stdout, quick_program, real_program

SCHEMA = "node Person { name: String @key  age: I32? } edge Knows: Person -> Person"
ADD = "query add($n: String, $a: I32?) { insert Person { name: $n, age: $a } insert Knows { from: $n, to: $n } }"
REMOVE = "query remove($n: String) { delete Person where name = $n }"
ADA = '{"n": "ada"}'


@pytest.fixture
def graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Graph:
    """A graph named `g` in the working directory, beside a file of queries and one of parameters."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "queries.gq").write_text(f"{ADD}\n{REMOVE}\n")
    (tmp_path / "params.json").write_text(ADA)
    return omnigraph.init(tmp_path / "g", SCHEMA)


mutate = partial(command, "mutate")
program = partial(quick_program, "mutate")


def people(graph: Graph) -> int:
    return graph.snapshot().entries["node:Person"].row_count


# What it prints


def test_people_are_told_in_a_line_what_changed(graph: Graph) -> None:
    assert program("--store", "g", "-e", ADD, "--params", ADA) == Run(0, "changed main via add: 1 nodes, 1 edges\n", "")
    assert people(graph) == 1


def test_people_are_told_who_did_it_if_that_is_known(graph: Graph) -> None:
    run = mutate("--store", "g", "-e", ADD, "--params", ADA, "--as", "eve")

    assert run == Run(0, "changed main via add: 1 nodes, 1 edges\nactor_id: eve\n", "")
    assert graph.commits()[0].actor_id == "eve"


def test_programs_get_one_document(graph: Graph) -> None:
    run = mutate("--store", "g", "-e", ADD, "--params", ADA, "--as", "eve", "--json")

    head = graph.commits()[0]
    assert (run.code, run.err) == (0, "")
    assert run.document == {
        "branch": "main",
        "query_name": "add",
        "affected_nodes": 1,
        "affected_edges": 1,
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


def test_a_mutation_that_finds_nothing_succeeds_without_a_commit(graph: Graph) -> None:
    run = mutate("--store", "g", "-e", REMOVE, "--params", ADA, "--json")

    assert run.code == 0
    assert run.document["commit"] is None
    assert (run.document["affected_nodes"], run.document["affected_edges"]) == (0, 0)
    assert mutate("--store", "g", "-e", REMOVE, "--params", ADA).out == "changed main via remove: 0 nodes, 0 edges\n"
    assert len(graph.commits()) == 1


# Where things come from


@pytest.mark.parametrize(
    "arguments",
    [
        ["-e", ADD, "--params", ADA],
        ["--query-string", ADD, "--params", ADA],
        ["add", "--query", "queries.gq", "--params", ADA],
        ["--query", "queries.gq", "add", "--params-file", "params.json"],
        ["add", "-e", f"{ADD} {REMOVE}", "--params-file", "params.json", "--branch", "main"],
    ],
)
@pytest.mark.parametrize("option", ["--store", "--uri"])
def test_the_query_and_its_parameters_come_from_files_or_the_command_line(
    graph: Graph, arguments: list[str], option: str
) -> None:
    assert mutate(*arguments, option, "g") == Run(0, "changed main via add: 1 nodes, 1 edges\n", "")
    assert people(graph) == 1


def test_a_parameter_file_may_begin_with_a_mark_and_hold_any_letter(graph: Graph) -> None:
    Path("params.json").write_text('{"n": "Käse"}', encoding="utf-8-sig")

    assert mutate("--store", "g", "-e", ADD, "--params-file", "params.json").code == 0
    assert mutate("--store", "g", "-e", REMOVE, "--params", '{"n": "Käse"}').out.endswith("1 nodes, 1 edges\n")
    assert people(graph) == 0


# On a condition


def test_a_lost_condition_has_an_exit_code_of_its_own(graph: Graph) -> None:
    first = graph.commits()[0].commit_id
    arguments = ["--store", "g", "-e", ADD, "--params", ADA, "--if-commit", first]
    assert mutate(*arguments).code == 0
    head = graph.commits()[0].commit_id

    told, document = program(*arguments), mutate(*arguments, "--json")

    assert (told.code, told.out) == (4, "")
    assert told.err.startswith(f"Error: branch 'main' is at commit {head}, not at {first}\n")
    assert (document.code, document.err) == (4, "")
    assert document.document["precondition_failure"] == {"expected": first, "actual": head}
    assert document.document["error"].startswith(f"branch 'main' is at commit {head}, not at {first}\nhint: ")
    assert graph.commits()[0].commit_id == head


# What it refuses


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--store", "g"], "--query"),
        (["--store", "g", "-e", ADD, "--query", "queries.gq"], "--query"),
        (["--store", "g", "-e", " \n"], "--query-string must not be empty"),
        (["--store", "g", "-e", ADD, "--params", ADA, "--params-file", "params.json"], "--params"),
        (["--store", "g", "-e", ADD, "--nope"], "--nope"),
        (["--store", "g", "-e"], "-e"),
        (["--store", "g", "add", "more", "-e", ADD], "more"),
    ],
)
def test_wrong_arguments_exit_with_two(graph: Graph, arguments: list[str], message: str) -> None:
    run = mutate(*arguments)

    assert (run.code, run.out) == (2, "")
    assert message in run.err
    assert len(graph.commits()) == 1


@pytest.mark.parametrize("flags", [[], ["--json"]])
@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--store", "none", "-e", ADD, "--params", ADA], "no graph at"),
        (["--store", "g", "--query", "none.gq"], "none.gq"),
        (["--store", "g", "-e", ADD, "--params-file", "none.json"], "none.json"),
        (["--store", "g", "-e", ADD, "--params", "{"], "the parameters are not JSON"),
        (["--store", "g", "-e", ADD, "--params", "[" * 100_000], "the parameters are not JSON"),
        (["--store", "g", "-e", ADD, "--params", "[]"], "must be a JSON object"),
        (["--store", "g", "-e", ADD, "--params", "{}"], "parameter 'n' not provided"),
        (["--store", "g", "-e", ADD, "--params", '{"n": NaN}'], "expected a string"),
        (["--store", "g", "-e", ADD, "--params", '{"n": "x", "a": 1e400}'], "expected an integer"),
        (["--store", "g", "-e", ADD, "--params", ADA, "--branch", "nowhere"], "nowhere"),
        (["--store", "g", "--query", "queries.gq", "--params", ADA], "multiple queries"),
        (["--store", "g", "third", "--query", "queries.gq"], "query 'third' not found"),
        (["--store", "g", "-e", "query q() { match { $p: Person } return { $p } }"], "query 'q' reads"),
        (["--store", "g", "-e", 'query q() { insert Persn { name: "a" } }'], "<query>:1:20: T10: unknown type `Persn`"),
        (
            ["--store", "g", "-e", 'query q() { insert Knows { from: "a", to: "b" } }'],
            "<query>:1:20: src 'a' not found",
        ),
    ],
)
def test_what_cannot_be_done_exits_with_one_and_says_why(
    graph: Graph, arguments: list[str], message: str, flags: list[str]
) -> None:
    run = mutate(*arguments, *flags)

    assert (run.code, error_on_stdout(run)) == (1, bool(flags))
    assert message in run.err
    assert len(graph.commits()) == 1


def test_the_real_program_underlines_the_place_of_an_error(graph: Graph) -> None:
    Path("bad.gq").write_text(
        'query bad() {\n  insert Person { name: "a" }\n  insert Knows { from: "a", to: "b" }\n}\n'
    )

    run = real_program("mutate", "--store", "g", "--query", "bad.gq")

    assert (run.code, run.out) == (1, "")
    assert run.err.startswith("Error: bad.gq:3:10: dst 'b' not found in Person\n3 |   insert Knows {")
    assert "\n  |          ^^^^^\nhint: " in run.err
    assert people(graph) == 0


def test_help_names_every_option() -> None:
    result = mutate("--help")

    options = (
        "--store",
        "--query",
        "-e",
        "--query-string",
        "--params",
        "--params-file",
        "--branch",
        "--as",
        "--if-commit",
    )
    assert [option for option in (*options, "--json", "NAME") if option not in result.out] == []
