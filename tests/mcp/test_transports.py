"""The tools over HTTP, with tokens, and over stdin and stdout of a process."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import httpx2
import pytest
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

import omnigraph
from omnigraph.server.settings import QueryFile, ServedGraph, Serving
from omnigraph.server.tokens import Tokens
from tests.support.serving import ADD, ALL, ROLES, bearer, client, known_tokens, one_graph, people_graph, running

STORED = """query friends($who: String) @description("The friends of one person") {
    match { $p: Person { name: $who } $p knows $f }
    return { $f.name }
}
query rename($who: String, $age: I32) { update Person set { age: $age } where name = $who }
"""
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
}
BOTH = {"Accept": "application/json, text/event-stream"}


def begin(url: str, path: str, headers: dict[str, str]) -> httpx.Response:
    # The first request loads the SDK, which takes a while on a busy machine.
    return httpx.post(f"{url}{path}", json=INITIALIZE, headers=headers, timeout=300)


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    return people_graph(tmp_path_factory.mktemp("agents") / "graph")


@pytest.fixture(scope="module")
def address(uri: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    queries = tmp_path_factory.mktemp("queries") / "people.gq"
    queries.write_text(STORED)
    graphs = {"default": ServedGraph(uri, queries=(QueryFile(str(queries)),))}
    with running(Serving(graphs, "default", tokens=known_tokens())) as url:
        yield url


@asynccontextmanager
async def connected(url: str, role: str) -> AsyncIterator[Client]:
    async with (
        httpx2.AsyncClient(headers=bearer(role), timeout=300) as http,
        Client(streamable_http_client(f"{url}/mcp", http_client=http)) as found,
    ):
        yield found


async def text_of(found: Client, name: str, /, **arguments: Any) -> tuple[bool, str]:
    done = await found.call_tool(name, arguments)
    return bool(done.is_error), done.content[0].text  # type: ignore[union-attr]


def test_each_token_has_the_tools_of_its_role_and_commits_carry_its_actor(address: str, uri: str) -> None:
    async def use() -> None:
        for role in ROLES:
            async with connected(address, role) as found:
                names = {one.name for one in (await found.list_tools()).tools}
                assert "friends" in names
                assert ("rename" in names) is (role != "read")
                assert (await text_of(found, "friends", params={"who": "ann"}))[1].count("bob") == 1
                failed, text = await text_of(found, "propose", title="new", query=ADD, params={"name": f"z-{role}"})
                assert failed is (role == "read"), text

    anyio.run(use)
    with omnigraph.open(uri, read_only=True) as graph:
        assert graph.branches() == ["main", "agent/act-admin/new", "agent/act-write/new"]
        assert graph.commits("agent/act-write/new")[0].actor_id == "act-write"


def test_agents_at_the_same_time_do_not_see_the_permissions_of_each_other(address: str) -> None:
    async def use(role: str) -> None:
        async with connected(address, role) as found:
            for _ in range(5):
                names = {one.name for one in (await found.list_tools()).tools}
                assert ("graph_mutate" in names) is (role != "read")
                failed, _text = await text_of(found, "graph_mutate", query=ADD, params={"name": "ann"}, branch="none")
                assert failed

    async def all_of_them() -> None:
        async with anyio.create_task_group() as tasks:
            for role in ROLES:
                tasks.start_soon(use, role)

    anyio.run(all_of_them)


def test_without_a_token_or_with_one_for_another_graph_nothing_is_answered(address: str) -> None:
    assert begin(address, "/mcp", BOTH).status_code == 401
    other = begin(address, "/mcp", {**BOTH, **bearer("other")})
    assert other.status_code == 403
    named = begin(address, "/graphs/none/mcp", {**BOTH, **bearer("read")})
    assert named.status_code == 404


def test_a_client_of_an_older_protocol_needs_no_session_and_get_is_refused(address: str) -> None:
    with client(address, "read", BOTH) as http:
        began = http.post("/mcp", json=INITIALIZE)
        assert began.status_code == 200
        assert began.json()["result"]["serverInfo"]["name"] == "omnigraph"
        tools = http.post("/graphs/default/mcp", json={"jsonrpc": "2.0", "id": 2, "method": "tools/list"})
        assert "graph_query" in tools.text
        assert http.get("/mcp").status_code == 405
        assert http.post("/mcp", content=b"{nonsense").status_code == 400


def test_an_open_server_answers_no_page_under_another_name(uri: str) -> None:
    with running(one_graph(uri, tokens=Tokens(), open_mode=True)) as url:
        assert begin(url, "/mcp", BOTH).status_code == 200
        foreign = {**BOTH, "Origin": "http://evil.example"}
        assert begin(url, "/mcp", foreign).status_code == 403
        assert begin(url, "/mcp", {**BOTH, "Host": "evil.example"}).status_code == 421


def test_the_endpoint_can_be_switched_off(uri: str) -> None:
    with running(one_graph(uri, mcp=False)) as url, client(url, "admin", BOTH) as http:
        refused = http.post("/mcp", json=INITIALIZE)
        assert refused.status_code == 404
        assert "off in its settings" in refused.text


def test_a_caller_learns_who_it_is(address: str) -> None:
    with client(address, "write") as http:
        about = http.get("/whoami").json()
    assert (about["actor"], about["role"], about["open_mode"]) == ("act-write", "write", False)
    assert "change" in about["actions"]
    assert "schema_apply" not in about["actions"]
    with omnigraph.connect(address, token="read-token") as graph:  # noqa: S106 - of a test
        caller = graph.whoami()
    assert caller.principal is not None
    assert (caller.principal.actor, caller.principal.graphs) == ("act-read", None)


# A process -----------------------------------------------------------------------------------------


def program(*arguments: str) -> StdioServerParameters:
    return StdioServerParameters(
        command=sys.executable, args=["-m", "omnigraph", "mcp", "--quiet", *arguments], env=dict(os.environ)
    )


def test_four_processes_on_one_graph_each_write_to_a_branch_of_their_own(tmp_path: Path) -> None:
    uri = people_graph(tmp_path / "graph")

    async def work(name: str) -> None:
        async with Client(program("--store", uri, "--as", name)) as found:
            failed, text = await text_of(found, "graph_mutate", query=ADD, params={"name": f"new-{name}"})
            assert not failed, text
            _, rows = await text_of(found, "graph_query", query=ALL)
            assert f"new-{name}" in rows
            assert rows.count("new-") == 1

    async def all_of_them() -> None:
        async with anyio.create_task_group() as tasks:
            for at in range(4):
                tasks.start_soon(work, f"a{at}")

    anyio.run(all_of_them)
    with omnigraph.open(uri, read_only=True) as graph:
        own = [name for name in graph.branches() if name != "main"]
        assert sorted(name.split("/")[1] for name in own) == ["a0", "a1", "a2", "a3"]
        assert [graph.commits(name)[0].actor_id for name in own] == [name.split("/")[1] for name in own]
        assert len(graph.query(ALL)) == 2


def test_a_process_serves_a_graph_of_a_server_with_the_permissions_of_its_token(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMNIGRAPH_BEARER_TOKEN", "read-token")

    async def use() -> None:
        async with Client(program("--server", address)) as found:
            names = {one.name for one in (await found.list_tools()).tools}
            assert "friends" in names
            assert "graph_mutate" not in names
            assert "bob" in (await text_of(found, "friends", params={"who": "ann"}))[1]

    anyio.run(use)
