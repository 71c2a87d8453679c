"""Queries that take too long, and those whose client has gone."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from omnigraph.core.running import running
from omnigraph.server.limits import RequestLimits
from omnigraph.server.settings import Limits
from tests.support.server_process import ServerProcess, served
from tests.support.serving import ALL, people_graph

_NAMES = [f"$p{at}" for at in range(40)]
# A product of 2**40 rows, of which a filter on the last two leaves none.
ENDLESS = (
    f"query q() {{ match {{ {' '.join(f'{name}: Person' for name in _NAMES)} "
    f"{_NAMES[-2]}.name < {_NAMES[-1]}.name  {_NAMES[-2]}.name > {_NAMES[-1]}.name }} return {{ $p0.name }} }}"
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("queries")
    with served(people_graph(folder / "people"), "--unauthenticated", folder=folder) as started:
        yield started


@pytest.mark.parametrize("path", ["/query", "/explain"])
def test_a_query_has_the_time_that_its_client_gives_it(server: ServerProcess, path: str) -> None:
    answer = httpx.post(f"{server.url}{path}", json={"query": ENDLESS, "timeout": 0.5}, timeout=60)

    assert answer.status_code == 408
    assert "the query takes longer than 0.5 s" in answer.json()["error"]
    refused = httpx.post(f"{server.url}{path}", json={"query": ALL, "timeout": 0}, timeout=60)
    assert (refused.status_code, "timeout is 0" in refused.json()["error"]) == (400, True)


def test_a_query_whose_client_has_gone_stops(server: ServerProcess) -> None:
    body = json.dumps({"query": ENDLESS}).encode()
    head = b"POST /query HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(
        body
    )
    with server.connection() as connection:
        connection.sendall(head + body)
        until_under_way(server)

    lines = until_logged(server, 499)

    assert [line["route"] for line in lines] == ["/query"]
    assert httpx.post(f"{server.url}/query", json={"query": ALL}).status_code == 200


def until_under_way(server: ServerProcess) -> None:
    """Wait until the server has a request in progress beside the one that asks for its metrics."""
    for _ in range(600):
        metrics = httpx.get(f"{server.url}/metrics", timeout=60).text
        if "omnigraph_http_requests_in_flight 2.0" in metrics:
            return
        time.sleep(0.05)
    raise AssertionError(metrics)


def until_logged(server: ServerProcess, status: int) -> list[dict[str, object]]:
    for _ in range(600):
        found = [line for line in server.log_lines() if line.get("status") == status]
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(server.log())


@pytest.mark.parametrize("allowed, seconds", [(7.0, 7.0), (0.0, None)])
def test_the_settings_of_a_server_bound_its_queries(allowed: float, seconds: float | None) -> None:
    found = []

    async def app(_: Scope, __: Receive, send: Send) -> None:
        with running(None) as query:
            found.append(query.seconds)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def ask() -> None:
        transport = httpx.ASGITransport(RequestLimits(app, Limits(query_seconds=allowed)))
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            await client.get("/")

    asyncio.run(ask())

    assert found == [seconds]
