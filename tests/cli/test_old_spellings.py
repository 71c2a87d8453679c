"""Spellings of earlier versions: each works, and says on stderr what to type now."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import omnigraph
from omnigraph.graph import Graph
from tests.support.cli import command, quick_program

SCHEMA = "node Person { name: String @key }"
ALL = "query all() { match { $p: Person } return { $p.name } }"
ADD = 'query add() { insert Person { name: "ada" } }'


@pytest.fixture
def graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Graph:
    monkeypatch.chdir(tmp_path)
    Path("schema.pg").write_text(SCHEMA)
    Path("all.gq").write_text(ALL)
    Path("people.jsonl").write_text('{"type": "Person", "data": {"name": "eve"}}\n')
    return omnigraph.init("g", SCHEMA)


@pytest.mark.parametrize(
    "old, new",
    [
        (["read", "--store", "g", "-e", ALL], ["query", "--store", "g", "-e", ALL]),
        (
            ["check", "--query", "all.gq", "--schema", "schema.pg"],
            ["lint", "--query", "all.gq", "--schema", "schema.pg"],
        ),
        (["query", "lint", "--query", "all.gq", "g", "--json"], ["lint", "--query", "all.gq", "g", "--json"]),
        (["query", "check", "--query", "all.gq", "g"], ["lint", "--query", "all.gq", "g"]),
        (["--store", "g", "query", "lint", "--query", "all.gq"], ["lint", "--query", "all.gq", "g"]),
        (["export", "g", "--jsonl"], ["export", "g"]),
    ],
)
def test_an_old_spelling_prints_the_same_and_one_warning(graph: Graph, old: list[str], new: list[str]) -> None:
    graph.mutate(ADD)

    before, now = command(*old), command(*new)

    assert (before.code, before.out) == (now.code, now.out)
    assert now.err == ""
    assert before.err.startswith("warning: `")
    assert before.err.count("\n") == 1
    assert f"use `{new[0]}`" in before.err


def test_change_is_mutate(graph: Graph) -> None:
    run = quick_program("change", "--store", "g", "-e", ADD)

    assert (run.code, run.out) == (0, "changed main via add: 1 nodes, 0 edges\n")
    assert run.err == "warning: `change` is deprecated; use `mutate`\n"
    assert len(graph.commits()) == 2


def test_ingest_is_as_strict_as_load(graph: Graph) -> None:
    Path("shoes.jsonl").write_text('{"type": "Person", "data": {"name": "x", "shoe": 43}}\n')
    before = graph.commits()
    told = command("ingest", "g", "--data", "shoes.jsonl")

    assert told.code == 1
    assert "shoes.jsonl:1" in told.err
    assert "shoe" in told.err
    assert graph.commits() == before


def test_ingest_makes_its_branch_and_merges(graph: Graph) -> None:
    told = command("ingest", "g", "--data", "people.jsonl", "--branch", "new", "--as", "eve")
    again = command("ingest", "g", "--data", "people.jsonl", "--branch", "new", "--json", "--quiet")

    assert told.out.splitlines() == [
        "ingested 1 entities from people.jsonl into branch new",
        "node Person: 1",
        "actor_id: eve",
    ]
    assert told.err.splitlines()[0] == "warning: `ingest` is deprecated; use `load`"
    assert (again.code, again.err.count("\n")) == (0, 1)
    document = json.loads(again.out)
    assert (document["mode"], document["branch_created"], document["base_branch"]) == ("merge", False, "main")
    assert document["tables"] == [{"table_key": "node:Person", "rows_loaded": 1}]
    assert graph.branches() == ["main", "new"]


def test_the_query_of_a_file_may_be_named_by_an_option_and_the_graph_by_the_argument(graph: Graph) -> None:
    Path("two.gq").write_text(f"{ALL}\n{ADD}\n")
    graph.mutate(ADD)

    assert command("read", "g", "--query", "two.gq", "--name", "all", "--format", "csv").out == "p.name\nada\n"


def test_an_export_of_tables_is_one_of_types(graph: Graph) -> None:
    graph.mutate(ADD)

    assert command("export", "g", "--table", "node:Person").out == command("export", "g", "--type", "Person").out != ""


@pytest.mark.parametrize("word", ["cluster", "policy"])
def test_what_this_version_does_not_have_is_said_in_a_sentence(word: str) -> None:
    run = command(word, "plan", "--config", "x")

    assert (run.code, run.out) == (1, "")
    assert run.err == f"Error: `{word}` is not supported by this version\n"


def test_help_tells_which_command_needs_what() -> None:
    told = command("--help").out

    assert "COMMANDS BY CAPABILITY" in told
    assert [word for word in ("any:", "served:", "direct:", "control:", "local:") if word not in told] == []
    assert "ingest" not in told
