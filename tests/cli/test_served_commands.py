"""The same commands on storage and through a server: the same answers, but for ids, times and places."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import omnigraph
from omnigraph.server.settings import QueryFile, ServedGraph, Serving
from tests.support.cli import PROGRAM, Run, command, error_on_stdout, quick_program
from tests.support.serving import ADD, ALL, SCHEMA, known_tokens, one_graph, people_graph, running

BY = "query by($name: String) { match { $p: Person { name: $name } } return { $p.name } }"
STORED = f"{ALL}\n{ADD}\n{BY}\n"
WIDER = SCHEMA.replace("age: I32?", "age: I32?  city: String?")
ID = re.compile(r"\b01[0-9A-HJKMNP-TV-Z]{24}\b")
VARYING = {"created_at", "authored_at", "uri", "table_path", "dataset_path", "cursor", "resume_cursor", "id"}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two equal graphs, `local` and `served`, and files to use on both."""
    place = tmp_path_factory.mktemp("twins")
    for name in ("local", "served"):
        people_graph(place / name)
    photos = omnigraph.init(place / "photos", "node Photo { slug: String @key  data: Blob? }")
    photos.load([{"type": "Photo", "data": {"slug": "a", "data": "base64:AAECAwQ="}}], mode="append")
    (place / "more.jsonl").write_text('{"type": "Person", "data": {"name": "eve", "age": 7}}\n')
    (place / "wrong.jsonl").write_text('{"type": "Person", "data": {"name": "max", "age": "old"}}\n')
    (place / "wider.pg").write_text(WIDER)
    (place / "stored.gq").write_text(STORED)
    return place


@pytest.fixture(scope="module")
def url(here: Path) -> Iterator[str]:
    graphs = {
        "served": ServedGraph(str(here / "served"), queries=(QueryFile(str(here / "stored.gq")),)),
        "photos": ServedGraph(str(here / "photos")),
    }
    with running(Serving(graphs, "served", single=False, tokens=known_tokens())) as address:
        yield address


@pytest.fixture(autouse=True)
def home(here: Path, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration that knows the server as `web` and its token."""
    monkeypatch.chdir(here)
    monkeypatch.setenv("OMNIGRAPH_HOME", str(tmp_path))
    monkeypatch.setenv("OMNIGRAPH_TOKEN_WEB", "admin-token")
    (tmp_path / "config.yaml").write_text(
        f"servers: {{web: {{url: {url}}}}}\nprofiles: {{p: {{server: web, default_graph: served}}}}\n"
        "aliases: {who: {server: web, graph: served, query: all, format: csv},"
        " one: {server: web, graph: served, query: by, args: [name], params: {name: bob}, format: csv},"
        " wrong: {server: web, graph: served, query: add, args: [name]}}\n"
    )
    return tmp_path


def scrubbed(run: Run) -> tuple[int, Any]:
    """What must be equal: the exit code and the document, with ids numbered as they appear."""
    seen: dict[str, str] = {}

    def plain(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            same = {name: one for name, one in value.items() if name != "details" or set(one) != {"operation_id"}}
            return {name: plain(one, name) for name, one in same.items()}  # a client gives a change an id, a store none
        if isinstance(value, list):
            return [plain(one, key) for one in value]
        if key in VARYING or key == "actor_id":
            return "*"
        if isinstance(value, str):
            return ID.sub(lambda found: seen.setdefault(found[0], f"#{len(seen)}"), value)
        return value

    try:
        return run.code, plain(json.loads(run.out))
    except ValueError:
        return run.code, [plain(line) for line in sorted(run.out.splitlines())]


BY_HEAD = "<head>"
STEPS = [
    ["query", "-e", ALL, "--json"],
    ["query", "-e", ALL],
    ["query", "-e", ALL, "--format", "csv"],
    ["query", "-e", "query q() { match { $p: Persn } return { $p } }", "--json"],
    ["schema", "show", "--json"],
    ["snapshot", "--json"],
    ["branch", "list", "--json"],
    ["branch", "create", "side/x", "--json"],
    ["branch", "create", "side/x", "--json"],
    ["mutate", "-e", ADD, "--params", '{"name": "max", "age": 3}', "--branch", "side/x", "--json"],
    ["mutate", "-e", ADD, "--params", '{"name": "max"}', "--if-commit", "01M7GKP7Q2W3ZB5D1S8T6VXA0K", "--json"],
    ["load", "--data", "more.jsonl", "--mode", "merge", "--json"],
    ["load", "--data", "wrong.jsonl", "--mode", "merge", "--json"],
    ["commit", "list", "--json"],
    ["commit", "list", "--branch", "side/x", "--json"],
    ["commit", "show", BY_HEAD, "--json"],
    ["commit", "changes", BY_HEAD, "--json"],
    ["branch", "merge", "side/x", "--json", "--delete-branch"],
    ["changes", "poll", "--start", "beginning", "--json"],
    ["export"],
    ["export", "--type", "Nobody"],
    ["log", "--json"],
    ["tag", "create", "v1", "--json"],
    ["tag", "list", "--json"],
    ["diff", "v1", "main", "--json"],
    ["schema", "apply", "--schema", "wider.pg", "--json"],
    ["branch", "delete", "none", "--yes", "--json"],
]


@pytest.mark.slow
def test_commands_give_the_same_documents_on_storage_and_through_a_server(here: Path) -> None:
    ways = {"local": ["--store", "local"], "served": ["--server", "web", "--graph", "served"]}
    for step in STEPS:
        runs = {name: command(*_filled(step, here / name), *way) for name, way in ways.items()}

        assert scrubbed(runs["served"]) == scrubbed(runs["local"]), (step, runs)


def _filled(step: list[str], place: Path) -> list[str]:
    head = omnigraph.open(place, read_only=True).commits()[0].commit_id if BY_HEAD in step else ""
    return [head if word == BY_HEAD else word for word in step]


def test_a_served_change_says_so_and_its_token_says_who(here: Path) -> None:
    run = quick_program("branch", "create", "mine", "--profile", "p", "--json")
    mutated = command("mutate", "-e", ADD, "--params", '{"name": "zoe"}', "--profile", "p", "--json")

    assert (run.code, run.document["name"]) == (0, "mine")
    assert re.fullmatch(r"omnigraph branch create → http://[\d.:]+/graphs/served \(served\)\n", run.err)
    assert mutated.document["actor_id"] == "act-admin"
    assert omnigraph.open(here / "served", read_only=True).commits()[0].actor_id == "act-admin"
    refused = command("mutate", "-e", ADD, "--params", '{"name": "zed"}', "--profile", "p", "--as", "me")
    assert (refused.code, refused.out) == (1, "")
    assert "token" in refused.err


@pytest.mark.slow
def test_a_server_of_several_graphs_is_asked_which_it_has(url: str) -> None:
    unsaid = command("snapshot", "--server", "web")

    assert (unsaid.code, unsaid.out) == (1, "")
    assert "pick one with --graph: photos, served" in unsaid.err
    assert command("snapshot", "--server", f"{url}/graphs/served").code == 0
    listed = command("graphs", "list", "--server", "web", "--json").document
    assert [one["graph_id"] for one in listed["graphs"]] == ["photos", "served"]
    lines = [f"{one['graph_id']}\t{one['uri']}\n" for one in listed["graphs"]]
    assert command("graphs", "list", "--profile", "p").out == "".join(lines)


def test_a_server_of_one_graph_needs_no_name_of_it(tmp_path: Path) -> None:
    with running(one_graph(people_graph(tmp_path / "only"), open_mode=True)) as address:
        assert command("snapshot", "--server", address).code == 0
        refused = command("graphs", "list", "--server", address)

    assert (refused.code, refused.out) == (1, "")
    assert "no list" in refused.err


BLOB = ["node", "Photo", "a", "data"]
BEGINNING = [
    ["blob", "stat", *BLOB, "--json"],
    ["blob", "stat", "node", "Photo", "z", "data", "--json"],
    ["blob", "get", *BLOB, "--out", "<out>"],
    ["blob", "get", *BLOB, "--out", "<out>", "--offset", "1", "--length", "3"],
    ["blob", "get", *BLOB, "--out", "<out>", "--offset", "9"],
    ["changes", "baseline", "--out", "<out>"],
    ["changes", "baseline", "--out", "<out>", "--type", "Nobody"],
]


@pytest.mark.parametrize("step", BEGINNING, ids=" ".join)
def test_what_commands_write_to_files_is_the_same_through_a_server(tmp_path: Path, step: list[str]) -> None:
    """Whatever the file is called: what it holds is said by the command."""
    told = {}
    for way in (["--store", "photos"], ["--server", "web", "--graph", "photos"]):
        out = tmp_path / way[0]
        run = command(*[str(out) if word == "<out>" else word for word in step], *way)
        told[way[0]] = scrubbed(run), out.read_bytes() if out.exists() else None

    assert told["--server"] == told["--store"]
    (code, _), written = told["--store"]
    assert code == ("z" in step or "9" in step or "Nobody" in step)
    assert (written is None) is (code == 1 or step[1] == "stat")


def test_stored_queries_are_run_by_name_and_by_alias() -> None:
    by_name = command("query", "all", "--profile", "p", "--format", "csv")

    assert by_name.out.startswith("p.name,p.age\nann,30\n")
    assert command("alias", "who").out == by_name.out
    changed = command("mutate", "add", "--params", '{"name": "kim"}', "--profile", "p")
    assert changed.out == "changed main via add: 1 nodes, 0 edges\nactor_id: act-admin\n"
    head = omnigraph.open(Path("served"), read_only=True).commits()[0]
    assert head.operation_id is not None, "a lost answer could not be asked about"
    lost = command(
        "mutate", "add", "--params", '{"name": "kit"}', "--profile", "p", "--if-commit", "01M7GKP7Q2W3ZB5D1S8T6VXA0K"
    )
    assert lost.code == 4
    for wrong in (["alias", "wrong", "x"], ["query", "add", "--profile", "p"], ["query", "none", "--profile", "p"]):
        run = command(*wrong)
        assert (run.code, run.out) == (1, ""), wrong


def test_of_the_parameters_of_an_alias_what_is_named_counts_first() -> None:
    named = ("--params", '{"name": "ann"}')

    assert command("alias", "one").out == "p.name\nbob\n"
    assert command("alias", "one", "ann").out == command("alias", "one", "bob", *named).out == "p.name\nann\n"


def test_the_default_server_and_its_default_graph_count_last(home: Path, url: str) -> None:
    defaults = f"{{server: {url}, default_graph: photos}}"
    (home / "config.yaml").write_text(f"servers: {{web: {{url: {url}}}}}\ndefaults: {defaults}\n")

    assert "Photo" in command("schema", "show").out
    assert "Photo" not in command("schema", "show", "--graph", "served").out
    assert "Photo" not in command("schema", "show", "--store", "local").out


def test_a_wrong_token_and_a_missing_one_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNIGRAPH_TOKEN_WEB", "nonsense")
    wrong = command("snapshot", "--profile", "p")
    monkeypatch.delenv("OMNIGRAPH_TOKEN_WEB")
    missing = command("snapshot", "--profile", "p")

    assert (wrong.code, missing.code) == (1, 1)
    assert "bearer token" in wrong.err
    assert "bearer token" in missing.err
    assert "nonsense" not in wrong.err


def test_a_target_of_a_project_may_be_served_with_a_token_of_its_own(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The variable comes from the file of the project; one of the environment would count before it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OMNIGRAPH_TOKEN_WEB")
    monkeypatch.setenv("OMNIGRAPH_BEARER_TOKEN", "nonsense")
    (tmp_path / ".env").write_text("# secret\nexport PEOPLE_TOKEN='admin-token'\nnothing\n")
    (tmp_path / "omnigraph.yaml").write_text(
        f"graphs: {{people: {{uri: {url}/graphs/served, bearer_token_env: PEOPLE_TOKEN}}}}\nauth: {{env_file: .env}}\n"
    )

    assert quick_program("snapshot", "--target", "people").code == 0
    monkeypatch.setenv("PEOPLE_TOKEN", "nonsense")
    assert quick_program("snapshot", "--target", "people").code == 1


@pytest.mark.parametrize("answer, deleted", [("n", False), ("yes", True)])
def test_whoever_sits_at_a_terminal_is_asked_before_something_is_deleted(answer: str, deleted: bool) -> None:  # noqa: FBT001
    name = f"asked-{answer}"
    command("branch", "create", name, "--profile", "p")
    leader, follower = pty.openpty()
    os.write(leader, f"{answer}\n".encode())
    words = ["branch", "delete", name, "--profile", "p"]
    run = subprocess.run([PROGRAM, *words], stdin=follower, capture_output=True, check=False)
    os.close(leader)
    os.close(follower)

    assert (run.returncode, run.stdout) == ((0, f"deleted branch {name}\n".encode()) if deleted else (1, b""))
    assert f"Delete branch {name}".encode() in run.stderr
    assert (name in command("branch", "list", "--profile", "p").out) is not deleted


def test_overwriting_through_a_server_needs_a_word_more() -> None:
    words = ("load", "--data", "served.jsonl", "--mode", "overwrite", "--profile", "p", "--json")
    refused = command(*words)

    assert (refused.code, error_on_stdout(refused)) == (1, True)
    assert "--yes" in refused.err
    assert command(*words, "--yes").document["mode"] == "overwrite"


def test_deleting_through_a_server_needs_a_word_more() -> None:
    refused = command("branch", "delete", "mine", "--profile", "p")
    command("branch", "create", "gone", "--profile", "p")

    assert (refused.code, refused.out) == (1, "")
    assert "--yes" in refused.err
    assert command("branch", "delete", "gone", "--profile", "p", "--yes").out == "deleted branch gone\n"
