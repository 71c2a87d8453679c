"""`omnigraph diff`, `changes`, `commit changes` and `log`: what they print, and their exit codes."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path

import pytest

import omnigraph
from omnigraph.graph import Graph
from tests.support.cli import command

SCHEMA = """
node Person { name: String @key  age: I32?  bio: String?  photo: Blob? }
edge Knows: Person -> Person
"""

diff = partial(command, "diff")
poll = partial(command, "changes", "poll", "--uri", "g")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a graph `g`: people are added on a branch, others changed on main, and the two are merged."""
    place = tmp_path_factory.mktemp("changes")
    graph = omnigraph.init(place / "g", SCHEMA)
    graph.mutate('query a() { insert Person { name: "Ann", age: 30 } insert Person { name: "Bob" } }', actor="ada")
    graph.create_tag("v1")
    graph.create_branch("side")
    names = " ".join(f'insert Person {{ name: "p{number:02d}" }}' for number in range(15))
    graph.mutate(f"query b() {{ {names} }}", branch="side")
    graph.mutate(
        'query c($p: Blob, $b: String) { update Person set { age: 31, photo: $p, bio: $b } where name = "Ann" }',
        params={"p": "base64:AQID", "b": "x" * 500},
    )
    graph.mutate('query d() { insert Knows { from: "Ann", to: "Bob" } }')
    graph.merge("side")
    return place


@pytest.fixture(autouse=True)
def graph(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Graph:
    monkeypatch.chdir(folder)
    return omnigraph.open(folder / "g", read_only=True)


# diff


def test_a_diff_for_people_is_short_and_by_type() -> None:
    run = diff("v1", "main", "--uri", "g")

    lines = run.out.splitlines()
    assert (run.code, run.err) == (0, "")
    assert lines[0] == "node Person  +15  ~1"
    assert lines[1].startswith('  ~ Ann  age: 30 -> 31, bio: null -> "xxx')
    assert lines[1].endswith("photo: null -> 3 bytes")
    assert len(lines[1]) < 200
    assert lines[2] == '  + p00  name: "p00"'
    assert lines[11] == "  … 6 more; --all prints them"
    assert lines[12] == "edge Knows  +1"
    assert lines[13].endswith("  Ann -> Bob")
    assert len(diff("v1", "main", "--uri", "g", "--all").out.splitlines()) == 19
    assert diff("v1", "main", "--uri", "g", "--stat").out == "node Person  +15  ~1\nedge Knows  +1\n"


def test_a_diff_in_json_is_one_document() -> None:
    found = diff("v1", "main", "--uri", "g", "--json").document

    assert [one["op"] for one in found["changes"]] == ["update", *["insert"] * 16]
    assert found["changes"][0]["changed"] == ["age", "bio", "photo"]
    assert found["changes"][0]["after"]["properties"]["photo"] == "base64:AQID"
    assert set(found["changes"][-1]["after"]["endpoints"]) == {"from", "to"}
    assert found["stats"] == {"node:Person": {"insert": 15, "update": 1}, "edge:Knows": {"insert": 1}}
    assert found["from"]["actor_id"] == "ada"
    assert diff("main", "main", "--uri", "g", "--json").document["changes"] == []
    counted = diff("v1", "main", "--uri", "g", "--json", "--stat").document
    assert counted == {key: value for key, value in found.items() if key != "changes"}


def test_a_diff_takes_filters() -> None:
    assert diff("v1", "main", "--uri", "g", "--kind", "edge", "--stat").out == "edge Knows  +1\n"
    assert diff("v1", "main", "--uri", "g", "--op", "update", "--op", "delete", "--stat").out == "node Person  ~1\n"
    assert diff("v1", "main", "--uri", "g", "--type", "Knows", "--stat").out == "edge Knows  +1\n"


def test_equal_states_print_nothing_but_a_note() -> None:
    run = diff("main", "main", "--uri", "g")

    assert (run.code, run.out, run.err) == (0, "", "no differences\n")


@pytest.mark.parametrize(
    "arguments, told",
    [
        (("v1", "nowhere", "--uri", "g"), "nowhere"),
        (("v1", "main", "--uri", "g", "--kind", "row"), "row"),
        (("v1", "main", "--uri", "nothing"), "nothing"),
    ],
)
def test_a_diff_that_cannot_be_made_ends_in_an_error(arguments: tuple[str, ...], told: str) -> None:
    run = diff(*arguments)

    assert (run.code, run.out) == (1, "")
    assert told in run.err


# changes


def test_a_poll_follows_pages_and_prints_one_document(graph: Graph) -> None:
    found = poll("--start", "beginning", "--limit", "4", "--json").document

    assert [len(block["changes"]) for block in found["blocks"]] == [2, 1, 1, 15]
    assert [block["cause"]["graph_commit_id"] for block in found["blocks"]] == [
        commit.commit_id for commit in graph.commits()[-2::-1]
    ]
    assert found["caught_up"] is True
    again = poll("--cursor", found["cursor"], "--json").document
    assert again == {"blocks": [], "cursor": found["cursor"], "caught_up": True}


def test_a_poll_for_people_ends_with_the_cursor() -> None:
    run = poll("--start", "beginning", "--kind", "edge")

    lines = run.out.splitlines()
    assert [line.split()[0] for line in lines] == ["commit", "commit", "commit", "insert", "Ann", "commit", "cursor:"]
    cursor = lines[-1].removeprefix("cursor: ")
    assert poll("--cursor", cursor, "--kind", "edge").out == f"cursor: {cursor}\n"
    assert "another filter" in poll("--cursor", cursor).err


def test_a_baseline_is_an_export_with_the_cursor_behind_it(graph: Graph, tmp_path: Path) -> None:
    out = tmp_path / "base.jsonl"

    found = command("changes", "baseline", "--uri", "g", "--out", str(out)).document

    assert found["snapshot_commit_id"] == graph.commits()[0].commit_id
    assert len(out.read_text().splitlines()) == 18
    assert poll("--cursor", found["resume_cursor"], "--json").document["caught_up"] is True


def test_a_baseline_of_some_types_has_the_cursor_of_their_changes(tmp_path: Path) -> None:
    uri, out = str(shutil.copytree("g", tmp_path / "g")), tmp_path / "base.jsonl"
    wanted = ("--kind", "node", "--type", "Person", "--op", "delete")
    baseline = partial(command, "changes", "baseline", "--uri", uri, "--out", str(out))
    follow = partial(command, "changes", "poll", "--uri", uri, "--cursor")

    found = baseline(*wanted).document

    assert {json.loads(line)["type"] for line in out.read_text().splitlines()} == {"Person"}
    written = omnigraph.open(uri)
    written.mutate('query q() { insert Person { name: "new" } }')
    written.mutate('query q() { delete Person where name = "new" }')
    told = follow(found["resume_cursor"], *wanted, "--json").document
    assert [one["op"] for block in told["blocks"] for one in block["changes"]] == ["delete"]
    assert "rejected" in follow(found["resume_cursor"]).err, "it is the cursor of other changes"
    assert baseline("--type", "Nobody").code == 1


def test_the_changes_of_a_commit_go_on_behind_a_page(graph: Graph) -> None:
    commit = graph.commits()[0].commit_id
    changes = partial(command, "commit", "changes", commit, "--uri", "g")

    first = changes("--limit", "10", "--json").document
    rest = changes("--page-token", first["next_page_token"], "--json").document

    assert first["cause"]["graph_commit_id"] == commit
    assert [len(one["changes"]) for one in (first, rest)] == [10, 5]
    assert "next_page_token" not in rest
    shown = changes("--limit", "10")
    assert shown.out.splitlines()[:3] == [f"commit {commit}", "insert node Person p00", '    name: "p00"']
    assert "--page-token" in shown.err


# log


def test_the_log_is_drawn_with_names_and_actors() -> None:
    run = command("log", "g", "--draw")

    lines = run.out.splitlines()
    assert [line.partition(" 0")[0].rstrip() for line in lines] == ["*", "|\\", "* |", "* |", "| *", "|/", "*", "*"]
    assert "(main)" in lines[0]
    assert "merges" in lines[0]
    assert "(side)" in lines[4]
    assert "(tag: v1)" in lines[6]
    assert lines[6].endswith(" ada")


def test_the_log_of_one_branch_is_a_list(graph: Graph) -> None:
    lines = command("log", "g", "--branch", "side").out.splitlines()

    assert [line.split()[0] for line in lines] == [commit.commit_id for commit in graph.commits("side")]
    limited = command("log", "--uri", "g", "--branch", "side", "--limit", "1")
    assert limited.out.splitlines() == lines[:1]
    assert "2 more" in limited.err
    found = command("log", "g", "--json").document["commits"]
    assert (found[0]["branches"], found[0]["tags"]) == (["main"], [])
    assert len(found) == 6
