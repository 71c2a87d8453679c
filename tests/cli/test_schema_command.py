"""`omnigraph schema plan`, `apply`, `show` on a graph: their options, their exit codes, and what they print."""

from __future__ import annotations

from pathlib import Path

import pytest

import omnigraph
from omnigraph.cli.address import Storage
from omnigraph.graph import Graph
from tests.support.cli import Run, command, quick_program

SCHEMA = "node Person {\n    name: String @key\n    age: I32?\n}\n// the end\n"
WIDER = SCHEMA.replace("age: I32?", "age: I32?\n    city: String?")
NARROWER = SCHEMA.replace("    age: I32?\n", "")
WRONG = SCHEMA.replace("I32?", "String?")
ADDED = "add property 'Person.city' (String?) on node 'Person'"
ECHO = "omnigraph schema apply → g (direct, local)\n"


@pytest.fixture
def graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Graph:
    """A graph named `g` in the working directory, with one person; beside it schemas to go to."""
    monkeypatch.chdir(tmp_path)
    for name, text in {"same": SCHEMA, "wider": WIDER, "narrower": NARROWER, "wrong": WRONG}.items():
        (tmp_path / f"{name}.pg").write_text(text)
    made = omnigraph.init("g", SCHEMA)
    made.load([{"type": "Person", "data": {"name": "ann", "age": 3}}], mode="append")
    return made


def test_a_plan_tells_the_steps_and_changes_nothing(graph: Graph) -> None:
    human = quick_program("schema", "plan", "g", "--schema", "wider.pg")
    machine = command("schema", "plan", "--store", "g", "--schema", "wider.pg", "--json")

    lines = f"schema plan for g\nsupported: yes\n- {ADDED}\ntouches node:Person: 1 entity\n"
    assert human == Run(0, lines, "")
    step = {"kind": "add_property", "type_kind": "node", "type_name": "Person"}
    step |= {"property_name": "city", "property_type": "String?"}
    document = {"uri": "g", "supported": True, "step_count": 1, "steps": [step], "rows": {"node:Person": 1}}
    assert machine.document == {**document, "manifest_version": 2, "graph_manifest_version": 2}
    assert len(graph.commits()) == 2


@pytest.mark.parametrize("schema, line", [("same", "no schema changes"), ("wrong", "supported: no")])
@pytest.mark.usefixtures("graph")
def test_a_plan_is_an_answer_and_no_failure(schema: str, line: str) -> None:
    done = command("schema", "plan", "g", "--schema", f"{schema}.pg")
    assert done.code == 0
    assert line in done.out.splitlines()


def test_apply_makes_the_change_and_tells_where_the_graph_is(graph: Graph) -> None:
    human = quick_program("schema", "apply", "g", "--schema", "wider.pg", "--as", "eve")

    steps = f"schema plan for g\nsupported: yes\n- {ADDED}\ntouches node:Person: 1 entity\n"
    assert human == Run(0, f"{steps}applied: yes\nmanifest_version: 3\n", ECHO)
    graph.refresh()
    assert (graph.schema, graph.commits()[0].actor_id) == (WIDER, "eve")
    again = command("schema", "apply", "g", "--schema", "wider.pg", "--json", "--quiet")
    assert again == Run(0, again.out, "")
    expected = {"supported": True, "applied": False, "step_count": 0, "steps": []}
    versions = {"manifest_version": 3, "graph_manifest_version": 3}
    assert again.document == {"uri": "g", **expected, **versions, "rows": {}, "commit": None}


def test_apply_tells_the_commit_as_json(graph: Graph) -> None:
    done = command("schema", "apply", "--uri", "g", "--schema", "wider.pg", "--json")
    assert done.document["applied"]
    assert done.document["commit"]["graph_commit_id"] == graph.commits()[0].commit_id
    assert done.err == ECHO


def test_a_dry_run_only_tells(graph: Graph) -> None:
    soft = command("schema", "apply", "g", "--schema", "narrower.pg", "--dry-run")
    hard = command("schema", "apply", "g", "--schema", "narrower.pg", "--dry-run", "--allow-data-loss")

    assert soft.code == hard.code == 0
    assert "- drop property 'Person.age' of node 'Person' (soft mode)" in soft.out.splitlines()
    assert "- drop property 'Person.age' of node 'Person' (hard mode)" in hard.out.splitlines()
    assert soft.out.splitlines()[-2:] == hard.out.splitlines()[-2:] == ["applied: no", "manifest_version: 2"]
    assert "until a cleanup" in soft.err
    assert "cannot be read again" in hard.err
    assert (len(graph.commits()), graph.schema) == (2, SCHEMA)


def test_a_change_that_is_not_supported_fails_and_changes_nothing(graph: Graph) -> None:
    done = quick_program("schema", "apply", "g", "--schema", "wrong.pg")
    assert (done.code, done.out) == (1, "")
    assert "[OG-MF-106, destructive]" in done.err
    assert "hint: " in done.err
    told = command("schema", "apply", "g", "--schema", "wrong.pg", "--dry-run", "--json")
    assert (told.code, told.document["supported"], told.document["applied"]) == (1, False, False)
    assert len(graph.commits()) == 2


def test_the_schema_of_a_branch_is_changed_and_comes_with_its_merge(graph: Graph) -> None:
    graph.create_branch("feature")
    arguments = ("g", "--schema", "wider.pg", "--branch", "feature")
    assert ADDED in command("schema", "plan", *arguments).out
    assert command("schema", "apply", *arguments).code == 0
    assert (graph.schema, graph.at("feature").schema) == (SCHEMA, WIDER)
    assert command("branch", "merge", "feature", "--uri", "g").code == 0
    graph.refresh()
    assert graph.schema == WIDER


def test_data_loss_on_a_shared_graph_must_be_confirmed(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Storage, "is_local", False)
    arguments = ("schema", "apply", "g", "--schema", "narrower.pg")
    refused = command(*arguments, "--allow-data-loss")
    assert refused.code == 1
    assert "--yes" in refused.err
    assert len(graph.commits()) == 2
    assert command(*arguments, "--allow-data-loss", "--yes").code == 0
    assert len(graph.commits()) == 3


@pytest.mark.parametrize("word", ["show", "get"])
def test_show_prints_the_schema_byte_for_byte(graph: Graph, word: str) -> None:
    assert command("schema", word, "g") == Run(0, SCHEMA, "")
    graph.apply_schema(WIDER)
    assert command("schema", word, "--store", "g") == Run(0, WIDER, "")
    assert command("schema", word, "g", "--json").document == {"schema_source": WIDER}


@pytest.mark.parametrize(
    "arguments",
    [
        ["plan", "g"],
        ["plan", "g", "--from", "same.pg", "--to", "wider.pg"],
        ["plan", "--from", "same.pg", "--schema", "wider.pg"],
        ["apply", "g"],
        ["apply", "g", "--store", "g", "--schema", "wider.pg"],
    ],
)
@pytest.mark.usefixtures("graph")
def test_a_command_line_that_does_not_say_enough_is_wrong(arguments: list[str]) -> None:
    assert command("schema", *arguments).code == 2


@pytest.mark.parametrize("arguments", [["g", "--schema", "none.pg"], ["none", "--schema", "wider.pg"]])
@pytest.mark.usefixtures("graph")
def test_what_is_not_there_is_told(arguments: list[str]) -> None:
    for word in ("plan", "apply"):
        done = command("schema", word, *arguments)
        assert done.code == 1
        assert "none" in done.err


def test_a_change_that_locks_another_implementation_out_is_announced_on_stderr(graph: Graph, tmp_path: Path) -> None:
    (tmp_path / "g" / "_schema.ir.json").write_text('{"ir_version": 1}')
    planned = quick_program("schema", "plan", "g", "--schema", "wider.pg")
    assert planned.code == 0
    assert (
        planned.err
        == f"another implementation made {graph.uri}, and cannot open it any more after this schema change\n"
    )
    assert quick_program("schema", "plan", "g", "--schema", "same.pg").err == ""


def test_a_schema_is_inferred_from_data_that_then_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "people.csv").write_text("name,age\nann,3\nbob,\n")
    (tmp_path / "knows.csv").write_text("from,to\nann,bob\n")

    printed = command("schema", "infer", "people.csv", "knows.csv")
    written = command("schema", "infer", "people.csv", "knows.csv", "--out", "p.pg", "--map", "p.json", "--json")

    text = (tmp_path / "p.pg").read_text()
    assert printed == Run(0, text, "")
    assert written.document["schema_source"] == text
    assert "Person: node type" in written.document["report"]
    graph = omnigraph.init("inferred", Path("p.pg"))
    done = graph.load(["people.csv", "knows.csv"], mode="append", mapping="p.json")
    assert (done.nodes, done.edges) == ({"Person": 2}, {"Know": 1})


def test_a_file_that_cannot_be_written_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "people.csv").write_text("name,age\nann,3\n")

    run = command("schema", "infer", "people.csv", "--out", "no/p.pg")

    assert run.code == 1
    assert "cannot write no/p.pg" in run.err
