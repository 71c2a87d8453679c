"""How a command finds its graph: options, settings, profiles, projects; and which option goes with which command."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import omnigraph
from omnigraph.cli import flags
from omnigraph.graph import Graph
from tests.support.cli import Run, command, error_on_stdout, quick_program

SCHEMA = "node Person { name: String @key }"
ALL = "query all() { match { $p: Person } return { $p.name } }"
ADD = "query add($n: String) { insert Person { name: $n } }"
NOWHERE = "http://127.0.0.1:9"


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the graphs `one`, `two` and `three`, each with the person it is named after."""
    place = tmp_path_factory.mktemp("graphs")
    for name in ("one", "two", "three"):
        omnigraph.init(place / name, SCHEMA).load([{"type": "Person", "data": {"name": name}}], mode="append")
    return place


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home of the settings, and an empty working directory."""
    made, here = tmp_path / "home", tmp_path / "here"
    made.mkdir()
    here.mkdir()
    monkeypatch.setenv("OMNIGRAPH_HOME", str(made))
    monkeypatch.chdir(here)
    return made


def operator(home: Path, text: str) -> None:
    (home / "config.yaml").write_text(text)


def read(*arguments: str) -> Run:
    return command("query", "-e", ALL, "--format", "csv", *arguments)


def who(*arguments: str) -> str:
    """The graph that a query was about."""
    run = read(*arguments)
    assert (run.code, run.err) == (0, ""), run
    return run.out.splitlines()[1]


# In which order


def test_what_is_named_counts_before_the_profile_and_that_before_the_defaults(
    home: Path, graphs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator(home, f"defaults: {{store: {graphs}/one}}\nprofiles: {{b: {{store: {graphs}/two}}}}\n")

    assert who() == "one"
    assert who("--profile", "b") == "two"
    assert who("--store", f"{graphs}/three") == who("--uri", f"file://{graphs}/three") == "three"
    assert command("snapshot", f"{graphs}/three").code == 0
    monkeypatch.setenv("OMNIGRAPH_PROFILE", "b")
    assert who() == "two"
    assert who("--store", f"{graphs}/one", "--profile", "b") == "one"


def test_the_project_counts_before_the_defaults_and_after_a_profile(home: Path, graphs: Path) -> None:
    operator(home, f"defaults: {{store: {graphs}/one}}\nprofiles: {{c: {{store: {graphs}/three}}}}\n")
    Path("omnigraph.yaml").write_text(
        f"graphs:\n  b: {{uri: {graphs}/two}}\n  c: {{uri: {graphs}/three}}\ncli: {{graph: b}}\n"
    )

    assert who() == "two"
    assert who("--target", "c") == who("--profile", "c") == "three"


def test_paths_of_a_project_begin_where_its_file_lies(home: Path, graphs: Path) -> None:
    (graphs / "omnigraph.yaml").write_text("graphs: {a: {uri: ./one}}\ncli: {graph: a}\n")

    assert who("--config", str(graphs / "omnigraph.yaml")) == "one"
    assert who("--target", "a", "--config", str(graphs / "omnigraph.yaml")) == "one"
    assert home.exists()


@pytest.mark.parametrize("at", [0, 1, 2, 4])
def test_common_options_may_stand_anywhere(home: Path, graphs: Path, at: int) -> None:
    words = ["commit", "list", "--branch", "main"]
    words[at:at] = ["--store", f"{graphs}/one"]

    run = command(*words)

    assert home.exists()
    assert (run.code, run.err, len(run.out.splitlines())) == (0, "", 2)


def test_of_an_option_given_twice_the_one_nearer_to_the_command_counts(home: Path, graphs: Path) -> None:
    run = command("--store", "nowhere", "snapshot", "--store", f"{graphs}/one")

    assert home.exists()
    assert run.code == 0


# What is refused


@pytest.mark.usefixtures("home")
def test_without_any_address_the_ways_to_give_one_are_named() -> None:
    run = read()

    assert (run.code, run.out) == (1, "")
    assert "no graph given" in run.err
    assert [way for way in ("--store", "--server", "--profile") if way not in run.err] == []
    assert quick_program("snapshot").code == 1


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("verb", ["query", "mutate"])
def test_an_argument_that_was_meant_as_the_graph_gets_the_option_for_it(verb: str) -> None:
    run = command(verb, "library", "-e", "query q() { match { $b: Book } return { $b } }")

    assert (run.code, run.out) == (1, "")
    assert "'library' is read as the name of a query" in run.err
    assert "--store library" in run.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["snapshot", "g", "--store", "g"],
        ["snapshot", "g", "--uri", "g"],
        ["snapshot", "--store", "g", "--server", NOWHERE],
        ["snapshot", "g", "--target", "x"],
        ["query", "-e", ALL, "--store", "g", "--uri", "g"],
    ],
)
@pytest.mark.usefixtures("home")
def test_two_ways_to_address_a_graph_are_one_too_many(arguments: list[str]) -> None:
    run = command(*arguments)

    assert (run.code, run.out) == (2, "")
    assert "are mutually exclusive — pick one way to address the graph" in " ".join(run.err.replace("│", "").split())


@pytest.mark.parametrize(
    "arguments, told",
    [
        (["snapshot", "http://host:1"], "--server http://host:1"),
        (["snapshot", "--store", "https://host"], "--server https://host"),
        (["snapshot", "g", "--graph", "x"], "is one graph"),
        (["snapshot", "--store", "g", "--graph", "x"], "is one graph"),
        (["snapshot", "--profile", "none"], "no profile 'none'"),
        (["snapshot", "--server", "none"], "no server 'none'"),
        (["snapshot", "--target", "none"], "no graph 'none'"),
        (["snapshot", "--config", "none.yaml"], "none.yaml does not exist"),
        (["optimize", "--cluster", "c"], "--cluster is not supported by this version"),
        (["snapshot", "--profile", "cluster"], "does not support"),
        (["snapshot", "--profile", "both"], "exactly one of"),
        (["optimize", "--profile", "web"], "give the storage with --store"),
        (["lint", "--query", "x.gq", "--profile", "web"], "give the storage with --store"),
        (["graphs", "list"], "no server given"),
        (["graphs", "list", "--server", NOWHERE], "does not answer"),
        (["query", "stored", "--store", "g"], "--server"),
        (["mutate", "stored", "--store", "g"], "--server"),
        (["load", "--server", NOWHERE, "--data", "x", "--mode", "append", "--as", "me"], "remove --as"),
        (["branch", "delete", "b", "--server", NOWHERE], "--yes"),
        (["load", "--server", NOWHERE, "--data", "x", "--mode", "overwrite", "--json"], "--yes"),
    ],
)
def test_an_address_that_does_not_do_is_refused_with_the_way_out(home: Path, arguments: list[str], told: str) -> None:
    operator(
        home,
        f"servers: {{web: {{url: {NOWHERE}}}}}\nprofiles:\n  web: {{server: web, default_graph: g}}\n"
        "  cluster: {cluster: dir}\n  both: {server: web, store: g}\n",
    )

    run = command(*arguments)

    assert (run.code, error_on_stdout(run)) == (1, "--json" in arguments)
    assert told in run.err


@pytest.mark.parametrize(
    "text, told",
    [
        ("a: [", "is not YAML"),
        ("a: 2026-02-30", "is not YAML"),
        ("- 1", "must hold a mapping"),
        ("defaults: 3", "defaults must be a mapping"),
        ("defaults: {store: g, server: s}", "a store is one graph"),
        ("defaults: {store: g, default_graph: x}", "a store is one graph"),
        ("defaults: {table_max_column_width: wide}", "must be a whole number"),
    ],
)
def test_settings_that_cannot_be_used_are_told_with_their_place(home: Path, graphs: Path, text: str, told: str) -> None:
    operator(home, text)

    run = read("--store", f"{graphs}/one")

    assert (run.code, run.out) == (1, "")
    assert told in run.err
    assert "config.yaml" in run.err


def test_keys_that_nobody_knows_are_told_and_passed_over(home: Path, graphs: Path) -> None:
    operator(home, "colour: red\ndefaults: {outputs: csv}\nservers: {a: {url: http://a, tokn: x}}\n")

    run = read("--store", f"{graphs}/one")

    assert run.code == 0
    warned = [line.rpartition(" ")[2] for line in run.err.splitlines()]
    assert warned == ["colour", "defaults.outputs", "servers.a.tokn"]


# The guard


def _cases() -> list[tuple[str, str]]:
    """Every command with every common option that does not go with it."""
    guarded = flags.COMMON - {"--yes", "--quiet", "--uri", "--target", "--config"}
    return [(name, flag) for name in flags.RULES for flag in sorted(guarded - flags.rule_of(name).takes)]


# As surfaces have it: which of server, cluster, graph, store, as and profile a command takes.
_TABLE = {
    "mutate load ingest branch snapshot export": "--server --graph --store --as --profile",
    "query blob commit changes": "--server --graph --store --profile",
    "graphs": "--server --profile",
    "optimize repair cleanup lint": "--cluster --graph --store --profile",
    "init alias login logout profile version": "",
    "queries": "--cluster --graph --profile",
}
_NEEDED = {
    "load": ["--data", "x", "--mode", "merge"],
    "ingest": ["--data", "x"],
    "init": ["x", "--schema", "x"],
    "lint": ["--query", "x"],
    "alias": ["x"],
    "login": ["x"],
    "logout": ["x"],
    "fmt": ["x"],
    "schema infer": ["x"],
    "pipeline run": ["x"],
    "pipeline plan": ["x"],
    "pipeline validate": ["x"],
    "pipeline status": ["x"],
    "resolve": ["x"],
    "diff": ["a", "b"],
    "revert": ["x"],
    "history": ["T", "x"],
    "request": ["list"],
    "cherry-pick": ["x"],
    "restore-entities": ["T", "--from", "x"],
    "cleanup": ["--keep", "1"],
    "backup": ["list", "x"],
    "restore": ["x", "y"],
    "branch": ["list"],
    "commit": ["list"],
    "changes": ["poll"],
    "blob": ["get", "node", "T", "id", "p"],
    "tag": ["list"],
    "graphs": ["list"],
    "queries": ["list"],
    "profile": ["list"],
}


def test_the_table_of_options_is_the_documented_one() -> None:
    known = {"--server", "--cluster", "--graph", "--store", "--as", "--profile"}
    for names, taken in _TABLE.items():
        for name in names.split():
            assert flags.rule_of(name).takes & known == set(taken.split()), name
    assert flags.rule_of("schema show").takes & known == flags.rule_of("schema apply").takes & known
    assert flags.rule_of("schema plan").takes & known == {"--store", "--profile"}


@pytest.mark.parametrize("name, flag", _cases())
@pytest.mark.usefixtures("home")
def test_an_option_that_does_not_go_with_a_command_is_refused_first(name: str, flag: str) -> None:
    run = command(*name.split(), *_NEEDED.get(name, []), flag, "x")

    label = f"{name} {_NEEDED[name][0]}" if name in _GROUPS else name
    kind = flags.rule_of(name).kind
    assert (run.code, run.out) == (1, "")
    assert run.err.startswith(f"`{label}` is a {kind} command; {flag} ")
    assert "does not apply." in run.err
    assert run.err == run.err.rstrip()


_GROUPS = ("backup", "blob", "branch", "commit", "changes", "tag", "graphs", "queries", "profile", "request")


@pytest.mark.usefixtures("home")
def test_a_direct_command_says_what_a_server_is_for() -> None:
    run = command("optimize", "--server", NOWHERE)

    sentence = "`optimize` is a direct (storage-native) command; --server addresses a served graph and does not apply."
    assert run.err.startswith(sentence)


@pytest.mark.usefixtures("home")
def test_all_options_that_do_not_go_with_an_alias_are_named() -> None:
    run = command("alias", "x", "--server", "a", "--graph", "b", "--as", "c")

    assert run.code == 1
    assert run.err.endswith("--server, --graph and --as do not apply.")


# Who


def test_the_actor_is_the_one_named_else_that_of_the_project_else_of_the_operator(home: Path, tmp_path: Path) -> None:
    graph = omnigraph.init(tmp_path / "g", SCHEMA)
    add: Callable[..., Run] = lambda name, *more: command(  # noqa: E731 - one line says it
        "mutate", "--store", graph.uri, "-e", ADD, "--params", json.dumps({"n": name}), *more
    )

    add("a")
    operator(home, "operator: {actor: op}\n")
    add("b")
    Path("omnigraph.yaml").write_text("cli: {actor: pro}\n")
    add("c")
    add("d", "--as", "me")

    assert [commit.actor_id for commit in graph.commits()] == ["me", "pro", "op", None, None]


def test_a_project_names_the_branch_that_commands_are_about(home: Path, tmp_path: Path) -> None:
    graph = omnigraph.init(tmp_path / "g", SCHEMA)
    graph.create_branch("side")
    Path("omnigraph.yaml").write_text(f"graphs: {{g: {{uri: {graph.uri}}}}}\ncli: {{graph: g, branch: side}}\n")

    assert home.exists()
    assert "changed side via add" in command("mutate", "-e", ADD, "--params", '{"n": "x"}').out
    assert who() == "x"
    assert command("snapshot").out.startswith("branch: side\n")
    assert read("--branch", "main").out == "p.name\n"


def test_the_echo_says_which_graph_is_changed_and_how(home: Path, tmp_path: Path) -> None:
    graph: Graph = omnigraph.init(tmp_path / "g", SCHEMA)

    told = command("branch", "create", "x", "--uri", graph.uri)
    quiet = command("branch", "create", "y", "--uri", graph.uri, "--quiet")
    served = command("branch", "create", "z", "--server", NOWHERE, "--graph", "g")

    assert home.exists()
    assert (told.err, quiet.err) == (f"omnigraph branch create → {graph.uri} (direct, local)\n", "")
    assert served.err.startswith(f"omnigraph branch create → {NOWHERE}/graphs/g (served)\n")
