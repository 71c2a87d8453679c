"""`login`, `logout`, `profile`, `alias` and `queries`: what is set, and what is short for what."""

from __future__ import annotations

import json
import resource
import stat
import subprocess
from pathlib import Path
from typing import get_args

import pytest

import omnigraph
from omnigraph import settings
from omnigraph.cli import tables
from omnigraph.cli.settings import token_for
from tests.support.cli import PROGRAM, command, quick_program

SCHEMA = "node Person { name: String @key  age: I32? }"
QUERIES = """query by_name($n: String, $least: I32?) @description("who") {
    match { $p: Person { name: $n } }
    return { $p.age }
}

query add($n: String, $age: I32) { insert Person { name: $n, age: $age } }
"""
PROJECT = """graphs: {people: {uri: g, queries: [lib/people.gq]}}
cli: {graph: people, output_format: csv}
query: {roots: [lib]}
aliases:
  age: {command: read, query: people.gq, name: by_name, args: [n, least]}
  add: {command: change, query: people.gq, name: add, args: [n, age]}
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OMNIGRAPH_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


@pytest.fixture
def project(home: Path) -> Path:
    """A project with a graph of one person, and a file of queries below `lib`."""
    omnigraph.init("g", SCHEMA).load([{"type": "Person", "data": {"name": "ada", "age": 36}}], mode="append")
    Path("lib").mkdir()
    Path("lib/people.gq").write_text(QUERIES)
    Path("omnigraph.yaml").write_text(PROJECT)
    return home.parent


# Tokens


def test_a_token_is_kept_where_only_its_owner_can_read_it(home: Path) -> None:
    (home / "config.yaml").write_text("servers: {web: {url: http://web}}\n")
    run = quick_program("login", "web", "--json", stdin=" secret \nmore\n")
    other = command("login", "else", "--token", "x")

    path = home / "credentials"
    assert run.document == {"server": "web", "credentials_path": str(path), "declared": True}
    assert "secret" not in run.out + run.err + other.out + other.err
    assert "no server 'else'" in other.err
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text() == "[else]\ntoken = x\n\n[web]\ntoken = secret\n"
    assert command("logout", "else").code == command("logout", "else").code == 0
    assert path.read_text() == "[web]\ntoken = secret\n"
    assert command("login", "web", "--token", " ").code == 2


def test_credentials_that_others_can_read_are_refused(home: Path) -> None:
    command("login", "web", "--token", "x")
    (home / "credentials").chmod(0o644)

    run = command("login", "web", "--token", "y")

    assert run.code == 1
    assert "chmod 600" in run.err
    assert "token = x" in (home / "credentials").read_text()


def test_the_token_of_the_longest_fitting_server_counts(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    servers = {"a": "http://host", "a-b": "http://host/base/", "c": "http://host.example"}
    for name in servers:
        command("login", name, "--token", f"{name}-file")

    assert home.exists()
    assert token_for("http://host/graphs/x", servers) == "a-file"
    assert token_for("http://host/base/graphs/x", servers) == "a-b-file"
    assert token_for("http://host.example", servers) == "c-file"
    assert token_for("http://hostile", servers) is None
    monkeypatch.setenv("OMNIGRAPH_BEARER_TOKEN", " all ")
    monkeypatch.setenv("OMNIGRAPH_TOKEN_A_B", "a-b-env")
    monkeypatch.setenv("TARGET_TOKEN", "target")
    monkeypatch.setenv("OMNIGRAPH_TOKEN_C", " ")
    assert token_for("http://host/base", servers) == "a-b-env"
    assert token_for("http://hostile", servers) == "all"
    assert token_for("http://hostile", servers, "TARGET_TOKEN") == "target"
    assert token_for("http://host.example", servers) == "c-file"


# Profiles


def test_profiles_are_listed_and_shown(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "config.yaml").write_text(
        "servers: {web: {url: http://web/}}\ndefaults: {server: web, default_graph: d, output: kv}\n"
        "profiles:\n  dev: {store: /g}\n  live: {server: web, default_graph: x}\n  bad: {server: web, store: g}\n"
        "  lost: {server: none}\n"
    )
    monkeypatch.setenv("OMNIGRAPH_PROFILE", "live")

    listed = {one["name"]: one for one in command("profile", "list", "--json").document}
    shown = command("profile", "list").out.splitlines()

    assert [*listed] == ["dev", "live", "bad", "lost"]
    assert listed["live"] == {
        "name": "live",
        "binding": "server:web",
        "scope_kind": "server",
        "target": "web",
        "valid": True,
        "default_graph": "x",
        "active": True,
    }
    assert [one["valid"] for one in listed.values()] == [True, True, False, False]
    assert "exactly one" in listed["bad"]["error"]
    assert shown[:2] == ["dev: store /g", "live (active): server web"]
    live = {"name": "live", "scope_kind": "server", "target": "web", "endpoint": "http://web", "default_graph": "x"}
    assert command("profile", "show", "--json").document == {**live, "output_format": "kv"}
    assert command("profile", "show", "dev").out == "name: dev\nscope_kind: store\ntarget: /g\noutput_format: kv\n"
    monkeypatch.delenv("OMNIGRAPH_PROFILE")
    assert command("profile", "show", "--json").document == {
        **live,
        "name": "(defaults)",
        "default_graph": "d",
        "output_format": "kv",
    }
    assert command("profile", "show", "none").code == 1


# Aliases of a project


@pytest.mark.usefixtures("project")
def test_an_alias_is_short_for_a_query_of_the_project() -> None:
    assert command("query", "--alias", "age", "ada").out == "p.age\n36\n"
    assert command("query", "--alias", "age", "--params", '{"n": "ada"}').out == "p.age\n36\n"
    assert command("query", "by_name", "--query", "people.gq", "--params", '{"n": "ada"}').out == "p.age\n36\n"
    assert command("mutate", "--alias", "add", "eve", "7").out == "changed main via add: 1 nodes, 0 edges\n"
    assert command("query", "--alias", "age", '"eve"', "--format", "csv").out == "p.age\n7\n"
    assert (
        json.loads(command("read", "--alias", "age", "x", "--params", '{"n": "ada"}', "--json").out)["row_count"] == 1
    )


@pytest.mark.parametrize(
    "arguments, code, told",
    [
        (["query", "--alias", "none"], 1, "there are age, add"),
        (["query", "--alias", "add", "x"], 1, "omnigraph mutate --alias add"),
        (["query", "--alias", "age", "a", "b", "c"], 1, "it takes n, least"),
        (["query", "--alias", "age", "--query", "people.gq"], 2, "--alias"),
        (["query", "a", "b", "-e", "query q() { match { $p: Person } return { $p.age } }"], 2, "NAME"),
        (["query", "--alias", "age", "ada", "--target", "none"], 1, "no graph 'none'"),
    ],
)
@pytest.mark.usefixtures("project")
def test_an_alias_that_is_called_wrongly_is_refused(arguments: list[str], code: int, told: str) -> None:
    run = command(*arguments)

    assert (run.code, run.out) == (code, "")
    assert told in run.err


# Stored queries of a project


@pytest.mark.usefixtures("project")
def test_stored_queries_are_listed_and_checked() -> None:
    listed = command("queries", "list", "--json").document["queries"]

    assert [one["name"] for one in listed] == ["add", "by_name"]
    assert listed[1] == {
        "name": "by_name",
        "mcp_expose": True,
        "tool_name": "by_name",
        "mutation": False,
        "description": "who",
        "params": [
            {"name": "n", "type": "String", "nullable": False},
            {"name": "least", "type": "I32?", "nullable": True},
        ],
    }
    assert "by_name($n: String, $least: I32?) read\n    who\n" in command("queries", "list").out
    checked = command("queries", "validate", "--json")
    assert (checked.code, checked.document["ok"], checked.document["breakages"]) == (0, True, [])


@pytest.mark.usefixtures("project")
def test_a_stored_query_that_does_not_suit_the_schema_is_named() -> None:
    Path("lib/people.gq").write_text(QUERIES.replace("$p.age", "$p.agee"))

    run = command("queries", "validate", "--target", "people", "--json")

    assert run.code == 1
    assert [one["query"] for one in run.document["breakages"]] == ["by_name"]
    assert "agee" in run.document["breakages"][0]["message"]
    assert command("queries", "validate").out.startswith("ERROR query `by_name`: ")
    assert command("queries", "list", "--cluster", "x").code == 1


@pytest.mark.usefixtures("home")
def test_without_stored_queries_it_is_said_where_they_belong() -> None:
    run = command("queries", "list")

    assert (run.code, run.out) == (1, "")
    assert "names no stored queries" in run.err


# Aliases of the operator


def test_an_alias_that_nobody_has_defined_is_told_with_the_others(home: Path) -> None:
    (home / "config.yaml").write_text("aliases: {a: {server: s, query: q}, b: {server: s}}\n")

    unknown, broken, many = command("alias", "x"), command("alias", "b"), command("alias", "a", "1")

    assert (unknown.code, broken.code, many.code) == (1, 1, 1)
    assert "there are a, b" in unknown.err
    assert "aliases.b.query is missing" in broken.err
    assert "it takes none" in many.err


# Blobs


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph with two photos, of which one has content: five bytes."""
    place = tmp_path_factory.mktemp("photos") / "g"
    records = [{"slug": "a", "data": "base64:AAECAwQ="}, {"slug": "b"}]
    made = omnigraph.init(place, "node Photo { slug: String @key  data: Blob? }")
    made.load([{"type": "Photo", "data": data} for data in records], mode="append")
    return place


def test_the_content_of_a_blob_is_written_whole_or_in_part(photos: Path, tmp_path: Path) -> None:
    where = ("node", "Photo", "a", "data", "--store", str(photos))
    part = tmp_path / "part"

    assert command("blob", "get", *where, "--offset", "1", "--length", "3", "--out", str(part)).code == 0
    assert part.read_bytes() == b"\x01\x02\x03"
    told = command("blob", "stat", *where, "--json").document
    commit = omnigraph.open(photos, read_only=True).commits()[0].commit_id
    assert [told[name] for name in ("entity", "type", "id", "property")] == list(where[:4])
    assert (told["kind"], told["size"], told["branch"]) == ("managed", 5, "main")
    assert told["resolved_snapshot"] == commit
    assert f"snapshot: {commit}\n" in command("blob", "stat", *where, "--snapshot", commit).out
    whole = subprocess.run([PROGRAM, "blob", "get", *where], check=True, capture_output=True)
    assert whole.stdout == b"\x00\x01\x02\x03\x04"


@pytest.mark.parametrize("before", [b"earlier", None])
def test_a_file_that_cannot_be_written_to_its_end_leaves_what_was_there(
    photos: Path, tmp_path: Path, before: bytes | None
) -> None:
    target = tmp_path / "target"
    if before:
        target.write_bytes(before)
    where = ("node", "Photo", "a", "data", "--store", str(photos))
    most, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2, hard))  # bytes of a file
    try:
        run = command("blob", "get", *where, "--out", str(target))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))

    assert run.code == 1
    assert f"cannot write {target}: File too large" in run.err
    assert [file.read_bytes() for file in tmp_path.iterdir()] == ([before] if before else [])


def test_a_link_is_written_through(photos: Path, tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(b"earlier")
    link.symlink_to(target)

    assert command("blob", "get", "node", "Photo", "a", "data", "--store", str(photos), "--out", str(link)).code == 0
    assert (link.is_symlink(), target.read_bytes()) == (True, b"\x00\x01\x02\x03\x04")


@pytest.mark.parametrize(
    "arguments, code, told",
    [
        (["node", "Photo", "b", "data"], 1, "has no content"),
        (["node", "Photo", "z", "data"], 1, "is not there"),
        (["node", "Photo", "a", "slug"], 1, "is no Blob"),
        (["node", "Photo", "a", "data", "--offset", "9"], 1, "offset 9 is beyond the end"),
        (["row", "Photo", "a", "data"], 2, "node, edge"),
        (["node", "Photo", "a", "data", "--length", "0"], 2, "--length"),
        (["node", "Photo", "a", "data", "--out", "no/where"], 1, "cannot write no/where"),
    ],
)
def test_content_that_is_not_there_is_told(photos: Path, arguments: list[str], code: int, told: str) -> None:
    run = command("blob", "get", *arguments, "--store", str(photos))

    assert (run.code, run.out) == (code, "")
    assert told in run.err


def test_the_formats_and_layouts_of_the_settings_are_those_of_the_commands() -> None:
    assert get_args(settings.OutputFormat) == tables.FORMATS
    assert get_args(settings.CellLayout) == tables.LAYOUTS
