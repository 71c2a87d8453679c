"""How a server starts, or does not: what it is told, what it finds, and how it says so. Real processes."""

from __future__ import annotations

import json
import socket
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

import omnigraph
from omnigraph.server.main import main
from tests.support.server_process import ServerProcess, refused, served
from tests.support.serving import ADD, ALL, SCHEMA, people_graph

PEOPLE = {
    "ann": {"token": "ann-token", "role": "write"},
    "sue": {"token": "sue-token", "role": "admin", "graphs": ["new"]},
    "bob": "bob-token",
}
TOKENS = {"OMNIGRAPH_SERVER_BEARER_TOKENS_JSON": json.dumps(PEOPLE)}
QUERIES = f"{ALL}\n{ADD}\n"
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> str:
    return people_graph(tmp_path_factory.mktemp("boot") / "people")


def write(folder: Path, **content: Any) -> None:
    (folder / "omnigraph.yaml").write_text(yaml.safe_dump(content))


def test_the_command_is_installed_by_its_name() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    module, _, function = scripts["omnigraph-server"].partition(":")
    assert getattr(import_module(module), function) is main


def test_a_server_that_nobody_told_what_to_serve_ends_with_64(tmp_path: Path) -> None:
    run = refused(cwd=tmp_path)
    assert (run.code, run.out) == (64, "")
    assert run.err.startswith("Error: no graph configured\nhint: pass the address of a graph")


def test_wrong_arguments_end_with_2(tmp_path: Path) -> None:
    assert refused("--bin", "x", cwd=tmp_path).code == 2
    assert refused("--workers", "0", "people", cwd=tmp_path).code == 2


@pytest.mark.parametrize(
    "arguments, environment, said",
    [
        ([], {}, "no tokens configured"),
        ([], {"OMNIGRAPH_UNAUTHENTICATED": "0"}, "no tokens configured"),
        ([], {"OMNIGRAPH_SERVER_BEARER_TOKEN": " "}, "the token of 'default' is blank"),
        ([], {"OMNIGRAPH_SERVER_BEARER_TOKENS_JSON": '{"a": "x", "b": "x"}'}, "have the same token"),
        (["--unauthenticated", "--config", "none.yaml"], {}, "none.yaml does not exist"),
        (["--unauthenticated", "--bind", "nowhere"], {}, "'nowhere' is not an address"),
        (["--unauthenticated", "--bind", "192.0.2.1:80"], {}, "cannot listen at 192.0.2.1:80"),
    ],
)
def test_a_server_that_cannot_start_says_why(
    people: str, tmp_path: Path, arguments: list[str], environment: dict[str, str], said: str
) -> None:
    run = refused(people, *arguments, cwd=tmp_path, environment=environment)
    assert (run.code, run.out) == (1, "")
    assert run.err.startswith("Error: ")
    assert said in run.err
    assert "\nhint: " in run.err


def test_an_address_that_is_taken_is_refused(people: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        run = refused(people, "--unauthenticated", "--bind", f"127.0.0.1:{taken.getsockname()[1]}", cwd=tmp_path)
    assert run.code == 1
    assert "cannot listen" in run.err


def test_a_server_none_of_whose_graphs_can_be_opened_does_not_start(tmp_path: Path) -> None:
    write(tmp_path, graphs={"a": {"uri": "a"}, "b": {"uri": "b"}})
    run = refused("--unauthenticated", "--workers", "2", "--bind", "127.0.0.1:0", cwd=tmp_path)
    assert (run.code, run.out) == (1, "")
    assert "graph 'a' cannot be served: no graph at" in run.err


# Several graphs ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, people: str) -> Path:
    """A configuration of three graphs: one is there, one is to be made, and one cannot be served."""
    folder = tmp_path_factory.mktemp("several")
    (folder / "people.pg").write_text(SCHEMA)
    (folder / "all.gq").write_text(QUERIES)
    (folder / "wrong.gq").write_text("query wrong() { match { $c: Cat } return { $c.name } }\n")
    graphs = {
        "people": {"uri": people, "queries": ["all.gq"]},
        "new": {"uri": "new", "schema": "people.pg", "queries": {"add": {"file": "all.gq"}}},
        "broken": {"uri": people, "queries": ["wrong.gq"]},
    }
    write(folder, graphs=graphs, server={"default_graph": "people"})
    return folder


@pytest.fixture(scope="module")
def several(folder: Path) -> Iterator[ServerProcess]:
    with served(folder=folder, environment=TOKENS) as server:
        yield server


@pytest.fixture(scope="module")
def http(several: ServerProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=several.url, headers={"Authorization": "Bearer ann-token"}, timeout=300) as asking:
        yield asking


def test_graphs_that_can_be_served_are_and_the_log_tells_about_the_others(
    several: ServerProcess, http: httpx.Client
) -> None:
    assert [graph["graph_id"] for graph in http.get("/graphs").json()["graphs"]] == ["new", "people"]
    assert http.get("/readyz").json() == {"status": "ready", "graphs": 2, "left_out": 1}
    assert http.get("/graphs/broken/snapshot").status_code == 404
    assert http.get("/graphs/nowhere/snapshot").status_code == 404
    told = [line for line in several.log_lines() if line["level"] == "error"]
    assert len(told) == 1
    assert "graph 'broken' is not served" in told[0]["event"]
    assert "T1" in told[0]["event"]
    numbers = http.get("/metrics").text
    assert 'omnigraph_graphs{state="served"} 2.0' in numbers
    assert 'omnigraph_graphs{state="left out"} 1.0' in numbers


def test_a_graph_that_is_not_there_is_made_with_its_schema(folder: Path, http: httpx.Client) -> None:
    assert http.post("/graphs/new/queries/add", json={"params": {"name": "eve"}}).status_code == 200
    assert [commit.actor_id for commit in omnigraph.open(folder / "new", read_only=True).commits()] == ["ann", None]


def test_routes_without_a_graph_mean_the_default_one(http: httpx.Client) -> None:
    found = http.post("/query", json={"query": ALL}).json()
    assert found["rows"] == http.post("/graphs/people/query", json={"query": ALL}).json()["rows"]
    assert found["row_count"] == 2


def test_a_server_that_must_serve_all_does_not_start_without_one(folder: Path) -> None:
    run = refused("--require-all-graphs", "--bind", "127.0.0.1:0", cwd=folder, environment=TOKENS)
    assert run.code == 1
    assert "graph 'broken' cannot be served" in run.err


# Who asks ------------------------------------------------------------------------------------------


def test_a_token_for_some_graphs_learns_nothing_about_the_others(several: ServerProcess) -> None:
    with httpx.Client(base_url=several.url, headers={"Authorization": "Bearer sue-token"}) as sue:
        there, absent, broken = (sue.get(f"/graphs/{name}/snapshot") for name in ("people", "absent", "broken"))
        assert there.status_code == absent.status_code == broken.status_code == 403
        assert there.text == absent.text == broken.text
        assert sue.get("/snapshot").text == there.text  # the default graph is another one
        assert sue.get("/graphs/new/snapshot").status_code == 200
        assert [graph["graph_id"] for graph in sue.get("/graphs").json()["graphs"]] == ["new"]


def test_a_role_that_does_not_allow_it_is_told_so_before_anything_else(several: ServerProcess) -> None:
    with httpx.Client(base_url=several.url, headers={"Authorization": "Bearer bob-token"}) as bob:
        for name in ("people", "new"):
            refusal = bob.post(f"/graphs/{name}/mutate", content=b"not even JSON")
            assert refusal.status_code == 403
            assert "default-deny" in refusal.json()["error"]
    for headers in ({}, {"Authorization": "Bearer other"}):
        assert httpx.post(f"{several.url}/graphs/absent/mutate", headers=headers).status_code == 401


def test_nobody_can_say_himself_who_he_is(http: httpx.Client) -> None:
    spoofed = {"X-Actor-Id": "eve", "X-Actor": "eve", "X-Forwarded-User": "eve", "Omnigraph-Actor": "eve"}
    body = {"query": ADD, "params": {"name": "gil"}}
    done = http.post("/graphs/new/mutate", json=body, headers=spoofed)
    assert done.json()["actor_id"] == "ann"
    assert done.json()["commit"]["actor_id"] == "ann"
    for member in ("actor", "actor_id", "as"):
        assert http.post("/graphs/new/mutate", json={**body, member: "eve"}).status_code == 400
    assert http.get("/graphs/new/commits", params={"actor": "eve"}).json()["commits"] == []
