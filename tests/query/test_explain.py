"""What is told of how a query was done, and views that stay at one state."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

import omnigraph
from omnigraph.cli import app
from omnigraph.errors import BranchNotFoundError, QueryKindError
from omnigraph.graph import Graph

QUERY = """query q($least: I32) {
    match { $p: Person  $p knows $f  $f.age >= $least  not { $f worksAt $c  $c.name = "Acme" } }
    return { $f.name, count($p) as n }
    order { n desc }
    limit 5
}"""
PEOPLE = "query people() { match { $p: Person } return { $p.name } order { $p.name } }"
EVE = 'query q() { insert Person { name: "Eve" } }'


def test_every_step_is_told_with_its_rows(people: Graph) -> None:
    told = people.explain(QUERY, {"least": 26})

    kinds = [step.kind for step in told.steps]
    # From the end that the filter leaves few of, against the direction of the edges.
    assert kinds == ["Scan", "AntiJoin", "Expand", "Aggregate", "Order", "Limit"]
    assert [step.rows for step in told.steps] == [3, 2, 2, 2, 2, 2]
    assert all(step.estimated_rows >= 0 for step in told.steps)
    inner = told.steps[1].inner
    assert [(step.kind, step.rows) for step in inner] == [("Expand", 1), ("Filter", 1)]
    assert inner[0].expansion == told.steps[2].expansion == "adjacency"
    assert told.rows == len(people.query(QUERY, {"least": 26})) == 2
    assert told.commit == people.commits()[0]


def test_requests_are_told_step_by_step(people: Graph) -> None:
    cold, warm = (omnigraph.open(people.uri, read_only=True) for _ in range(2))
    warm.query(QUERY, {"least": 26})

    told, again = cold.explain(QUERY, {"least": 26}), warm.explain(QUERY, {"least": 26})

    assert told.requests == sum(step.requests for step in told.steps) > 0
    assert again.requests == 0


def test_it_prints_as_a_tree(people: Graph) -> None:
    lines = str(people.explain(QUERY, {"least": 26})).splitlines()

    assert lines[0].startswith("q: 2 rows")
    assert lines[2].startswith("Scan $f: Person where $f.age >= $least")
    assert [line for line in lines if line.startswith("  Expand $f -WorksAt-> $c")]
    assert [line for line in lines if line.startswith("Expand $f <-Knows- $p")]
    # Why it begins there: what it would cost elsewhere.
    assert re.fullmatch(r"  from here about [\d.]+ ms; at \$p [\d.]+ ms", lines[3])
    assert [line for line in lines if line == "  by adjacency: there are only 3 edges"]


def test_counted_rows_are_told_as_the_rows_they_stand_for(people: Graph) -> None:
    told = people.explain("query q() { match { $a: Person  $a knows $b  $b knows $c } return { count($c) as n } }")
    assert [step.rows for step in told.steps] == [4, 3, 1, 1]


def test_a_mutation_is_not_explained(people: Graph) -> None:
    with pytest.raises(QueryKindError):
        people.explain(EVE)
    assert len(people.query(PEOPLE)) == 4


def test_the_command_tells_it_as_text_and_as_json(people: Graph) -> None:
    runner = CliRunner()
    command = ["query", "--store", people.uri, "-e", PEOPLE, "--explain"]

    text = runner.invoke(app, command)
    document = json.loads(runner.invoke(app, [*command, "--json"]).stdout)

    assert (text.exit_code, text.stdout.splitlines()[0][:14]) == (0, "people: 4 rows")
    assert document["row_count"] == 4
    assert [step["kind"] for step in document["steps"]] == ["Scan", "Order", "Project"]
    assert document["target"]["commit"] == people.commits()[0].commit_id


# Views of one state


def test_a_view_stays_at_its_state(people: Graph) -> None:
    view = people.at("main")
    head = people.commits()[0]
    exported = [*view.export()]

    people.mutate(EVE)

    assert (len(view.query(PEOPLE)), len(people.query(PEOPLE))) == (4, 5)
    assert view.query(PEOPLE).commit == view.commit == head
    assert [*view.export()] == exported
    assert len([*people.export()]) == len(exported) + 1
    assert view.explain(PEOPLE).rows == 4


def test_a_commit_can_be_viewed_and_exported(people: Graph, tmp_path: Path) -> None:
    before = people.commits()[0].commit_id
    people.mutate('query q() { delete Person where name = "Alice" }')

    view = people.at(before)
    view.export(tmp_path / "out.jsonl", types=["Person"])

    assert [row["p.name"] for row in view.query(PEOPLE)] == ["Alice", "Bob", "Charlie", "Diana"]
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 4


def test_a_view_of_nothing_is_an_error(people: Graph) -> None:
    with pytest.raises(BranchNotFoundError, match="no branch, tag or commit 'nowhere'"):
        people.at("nowhere")
