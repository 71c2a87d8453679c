"""What to serve, as it is read: from the command line, the environment and `omnigraph.yaml`."""

from __future__ import annotations

import os
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from omnigraph import settings
from omnigraph.errors import ConfigError, ServerStartError
from omnigraph.server import config, tokens
from omnigraph.server.config import Options, ServerPlan, plan_of
from omnigraph.server.logs import LEVEL
from omnigraph.server.main import app
from omnigraph.server.settings import Limits, QueryFile, ServedGraph
from omnigraph.settings import keys_of

OPEN = Options(unauthenticated=True)
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "config.md"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder: Path, **content: Any) -> None:
    (folder / "omnigraph.yaml").write_text(yaml.safe_dump(content))


def opened(**options: Any) -> ServerPlan:
    return plan_of(Options(**{"unauthenticated": True, **options}), {})


def test_one_graph_is_served_by_its_address() -> None:
    plan = opened(uri="people")
    assert plan.serving.graphs == {"default": ServedGraph("people")}
    assert (plan.serving.default, plan.serving.single, plan.serving.open_mode) == ("default", True, True)
    assert (plan.host, plan.port, plan.workers) == ("127.0.0.1", 8080, 1)


def test_several_graphs_are_served_from_the_file_and_paths_are_relative_to_it(folder: Path) -> None:
    (folder / "queries").mkdir()
    (folder / "queries" / "b.gq").touch()
    (folder / "queries" / "a.gq").touch()
    graphs = {
        "people": {"uri": "data/people", "schema": "people.pg", "queries": "queries"},
        "books": {"uri": "s3://bucket/books", "queries": ["books.gq"]},
        "tools": {"uri": "tools", "queries": {"one": {"file": "t.gq", "mcp": {"expose": False, "tool_name": "x"}}}},
    }
    write(folder, graphs=graphs, server={"default_graph": "books"})
    plan = plan_of(Options(config=str(folder / "omnigraph.yaml"), unauthenticated=True), {})
    found = {file.name: str(file) for file in folder.glob("queries/*")}
    assert plan.serving.graphs == {
        "people": ServedGraph(
            str(folder / "data/people"), str(folder / "people.pg"), (QueryFile(found["a.gq"]), QueryFile(found["b.gq"]))
        ),
        "books": ServedGraph("s3://bucket/books", None, (QueryFile(str(folder / "books.gq")),)),
        "tools": ServedGraph(
            str(folder / "tools"), None, (QueryFile(str(folder / "t.gq"), "one", "x", exposed=False),)
        ),
    }
    assert (plan.serving.default, plan.serving.single) == ("books", False)


@pytest.mark.parametrize(
    "options, environment, server",
    [({"target": "b"}, {}, {}), ({}, {"OMNIGRAPH_TARGET": "b"}, {}), ({}, {}, {"graph": "b"})],
)
def test_one_graph_of_the_file_can_be_chosen(
    folder: Path, options: dict[str, str], environment: dict[str, str], server: dict[str, str]
) -> None:
    write(folder, graphs={"a": {"uri": "a"}, "b": {"uri": "b"}}, server=server, queries=["all.gq"])
    serving = plan_of(Options(unauthenticated=True, **options), environment).serving  # type: ignore[arg-type]
    assert serving.graphs == {"b": ServedGraph("b", None, (QueryFile("all.gq"),))}
    assert (serving.default, serving.single) == ("b", True)


def test_the_command_line_comes_before_the_environment_and_that_before_the_file(folder: Path) -> None:
    limits = {"actor_requests": 3, "body_seconds": 0.5, "load_bytes": 7}
    write(folder, graphs={"a": {"uri": "a"}}, server={"bind": "[::1]:1", "workers": 2, "limits": limits})
    environment = {"OMNIGRAPH_UNAUTHENTICATED": "1"}
    assert (plan_of(Options(), environment).host, plan_of(Options(), environment).port) == ("::1", 1)
    environment |= {"OMNIGRAPH_BIND": "h:2", "OMNIGRAPH_WORKERS": "3", "OMNIGRAPH_PER_ACTOR_INFLIGHT_MAX": "4"}
    plan = plan_of(Options(), environment)
    assert (plan.host, plan.port, plan.workers) == ("h", 2, 3)
    assert plan.serving.limits == Limits(actor_requests=4, body_seconds=0.5, load_bytes=7)
    plan = plan_of(Options(bind="i:3", workers=4), environment)
    assert (plan.host, plan.port, plan.workers) == ("i", 3, 4)


@pytest.mark.parametrize("text, on", [("1", True), ("true", True), ("no", True), ("0", False), ("False", False)])
def test_a_variable_is_on_unless_it_says_that_it_is_not(text: str, on: bool) -> None:  # noqa: FBT001
    plan = plan_of(Options("people", unauthenticated=True), {"OMNIGRAPH_REQUIRE_ALL_GRAPHS": text})
    assert plan.serving.require_all_graphs is on


def test_tokens_close_a_server_that_was_to_be_open() -> None:
    plan = plan_of(Options("people", unauthenticated=True), {"OMNIGRAPH_SERVER_BEARER_TOKEN": "t"})
    assert not plan.serving.open_mode


def test_the_variables_of_a_file_can_hold_tokens(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERS", "")
    monkeypatch.delenv("HERS")
    (folder / ".env").write_text("export HERS='abc'\n")
    tokens = [{"actor": "ann", "role": "write", "token_env": "HERS"}]
    write(folder, graphs={"a": {"uri": "a"}}, server={"tokens": tokens}, auth={"env_file": ".env"})
    assert plan_of(Options(), os.environ).serving.tokens.authenticate("Bearer abc").actor == "ann"


@pytest.mark.parametrize(
    "content, place",
    [
        ({"grahps": {}}, "grahps is not a setting"),
        ({"graphs": []}, "graphs must be a mapping"),
        ({"graphs": {"a": {}}}, "graphs.a.uri is missing"),
        ({"graphs": {"a": {"uri": "a", "sheme": "x"}}}, "graphs.a.sheme is not a setting"),
        ({"graphs": {"a_b": {"uri": "a"}}}, "graphs.a_b cannot be served under this name"),
        ({"graphs": {"policies": {"uri": "a"}}}, "graphs.policies cannot be served"),
        ({"graphs": {"a": {"uri": "http://host"}}}, "graphs.a.uri is the address of a server"),
        ({"graphs": {"a": {"uri": "a", "queries": "nowhere"}}}, "graphs.a.queries names nowhere"),
        ({"graphs": {"a": {"uri": "a", "queries": {"q": {}}}}}, "graphs.a.queries.q.file is missing"),
        ({"graphs": {"a": {"uri": "a", "queries": {"q": {"fille": 1}}}}}, "graphs.a.queries.q.fille is not a setting"),
        ({"graphs": {"a": {"uri": "a", "policy": {"file": "p"}}}}, "graphs.a.policy cannot be enforced"),
        ({"policy": {"file": "p"}}, "policy cannot be enforced"),
        ({"server": {"policy": {"file": "p"}}}, "server.policy cannot be enforced"),
        ({"server": {"port": 1}}, "server.port is not a setting"),
        ({"server": {"graph": "x"}, "graphs": {"a": {"uri": "a"}}}, "no graph 'x'"),
        ({"server": {"default_graph": "x"}, "graphs": {"a": {"uri": "a"}}}, "server.default_graph is 'x'"),
        ({"server": {"limits": {"bodies": 1}}, "graphs": {"a": {"uri": "a"}}}, "server.limits.bodies is not a setting"),
        ({"server": {"limits": {"threads": 0}}, "graphs": {"a": {"uri": "a"}}}, "server.limits.threads must be"),
        ({"server": {"limits": {"threads": 1.5}}, "graphs": {"a": {"uri": "a"}}}, "server.limits.threads must be"),
        ({"server": {"limits": {"threads": True}}, "graphs": {"a": {"uri": "a"}}}, "server.limits.threads must be"),
        ({"server": {"workers": 0}, "graphs": {"a": {"uri": "a"}}}, "server.workers must be"),
        ({"server": {"tokens": {}}, "graphs": {"a": {"uri": "a"}}}, "server.tokens must be a list"),
        ({"server": {"tokens": ["x"]}, "graphs": {"a": {"uri": "a"}}}, "server.tokens.0 must be a mapping"),
        ({"queries": ["a.gq"], "graphs": {"a": {"uri": "a"}}}, "queries belongs to one graph"),
        ({"server": {"bind": "8080"}, "graphs": {"a": {"uri": "a"}}}, "'8080' is not an address"),
    ],
)
def test_what_cannot_be_used_is_named_with_its_place(folder: Path, content: dict[str, Any], place: str) -> None:
    content.setdefault("server", {})
    write(folder, **content)
    with pytest.raises(ConfigError, match=re.escape(place)):
        plan_of(OPEN, {})


def test_a_misspelt_key_is_told_with_the_one_that_was_meant(folder: Path) -> None:
    write(folder, server={"limits": {"actor_byte": 1}}, graphs={"a": {"uri": "a"}})
    with pytest.raises(ConfigError, match=r"omnigraph.yaml: server.limits.actor_byte .*\n.*`actor_bytes`"):
        plan_of(OPEN, {})


def test_a_file_that_is_named_must_be_there() -> None:
    with pytest.raises(ConfigError, match=r"other\.yaml does not exist"):
        opened(config="other.yaml")


def test_nobody_is_served_without_tokens_unless_that_is_said() -> None:
    with pytest.raises(ServerStartError, match="no tokens"):
        plan_of(Options("people"), {})


# The page ------------------------------------------------------------------------------------------


def documented(heading: str) -> list[str]:
    """What the first column of the table below a heading names."""
    parts = re.split(r"^## (.+)$", PAGE.read_text(), flags=re.MULTILINE)
    section = parts[parts.index(heading) + 1]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("|")]
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


def test_the_page_names_every_key_of_the_file_and_no_other() -> None:
    of_graph = [f"graphs.<name>.{key}" for key in keys_of(settings.GraphEntry)]
    of_server = [f"server.{key}" for key in keys_of(settings.ServerSection) if key not in ("tokens", "limits")]
    of_query = [f"queries.<name>.{key}" for key in ("file", *(f"mcp.{key}" for key in keys_of(settings.McpEntry)))]
    of_tokens = [f"server.tokens[].{key}" for key in keys_of(settings.TokenEntry)]
    expected = [*of_graph, *of_server, *of_tokens, *of_query, "policy", "auth.env_file"]
    of_commands = {"project", "cli", "query", "aliases"}
    assert sorted(documented("File")) == sorted(expected)
    assert {key.split(".")[0] for key in documented("Command line keys")} == of_commands
    assert {key.split(".")[0] for key in expected} | of_commands == set(keys_of(settings.ProjectKeys))


def test_the_page_names_every_limit_with_its_default() -> None:
    limits = {f"server.limits.{field.name}": field.default for field in fields(Limits)}
    rows = re.findall(r"^\| `(server\.limits\.\w+)` \| ([\d,.]+) \|", PAGE.read_text(), flags=re.MULTILINE)
    assert {name: float(value.replace(",", "")) for name, value in rows} == limits
    assert sorted(documented("Limits")) == sorted(limits)


def test_the_page_names_every_variable() -> None:
    of_tokens = (
        tokens.ONE,
        tokens.MANY,
        tokens.TOKENS_FILE,
        tokens.SECRET,
        tokens.ROLE,
    )
    of_plan = (config.CONFIG, config.TARGET, config.URI, config.BIND, config.WORKERS, config.REPORTED, config.SOURCE)
    flags = (config.UNAUTHENTICATED, config.REQUIRE_ALL, LEVEL)
    assert sorted(documented("Variables")) == sorted([*of_tokens, *of_plan, *flags, *config.LIMIT_VARIABLES])


def test_the_page_names_every_option_of_the_command() -> None:
    options = {name for param in get_command(app).params for name in param.opts if name.startswith("--")}
    assert set(documented("Command")) - {"URI"} == options - {"--help"}


# The files for a deployment ------------------------------------------------------------------------

DEPLOY = Path(__file__).parents[2] / "deploy"


def test_the_configuration_of_the_deployment_can_be_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "queries").mkdir()
    (folder / "omnigraph.yaml").write_text((DEPLOY / "omnigraph.yaml").read_text())
    monkeypatch.setenv("TOKEN_OF_APP", "a")
    monkeypatch.setenv("TOKEN_OF_PROMETHEUS", "p")
    plan = plan_of(Options(), os.environ)
    assert [token.principal.actor for token in plan.serving.tokens.known] == ["app", "prometheus"]
    unit = (DEPLOY / "omnigraph-server.service").read_text()
    [patience] = re.findall(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)
    assert int(patience) > plan.serving.limits.shutdown_seconds
    proxy = (DEPLOY / "nginx.conf").read_text()
    assert f"client_max_body_size {plan.serving.limits.load_bytes // 2**20}m;" in proxy
    assert f"proxy_pass http://{plan.host}:{plan.port};" in proxy


def test_the_commands_of_the_deployment_are_ours() -> None:
    unit, image = ((DEPLOY / name).read_text() for name in ("omnigraph-server.service", "Containerfile"))
    [started] = re.findall(r"^ExecStart=(.+)$", unit, re.MULTILINE)
    program, *words = started.split()
    options = {name for param in get_command(app).params for name in param.opts}
    assert program.endswith("/bin/omnigraph-server")
    assert {word for word in words if word.startswith("--")} <= options
    assert 'ENTRYPOINT ["omnigraph-server"]' in image
    assert set(re.findall(r"OMNIGRAPH_\w+", image)) <= {config.BIND, config.URI}
