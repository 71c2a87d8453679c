"""Routes that are found directly answer as they do when FastAPI finds them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from omnigraph.server import direct
from omnigraph.server.app import GRAPH_ROUTERS
from tests.support.serving import client, one_graph, people_graph, running

QUERY = "query q($n: String) { match { $p: Person { name: $n } } return { $p.name } }"
JSON = {"Content-Type": "application/json"}
REQUESTS: dict[str, tuple[str, bytes, dict[str, str]]] = {
    "right": ("/query", json.dumps({"query": QUERY, "params": {"n": "Ann"}}).encode(), JSON),
    "an older spelling": ("/read", json.dumps({"query_source": QUERY, "params": {"n": "Ann"}}).encode(), JSON),
    "an unknown member": ("/query", b'{"query": "x", "colour": 1}', JSON),
    "a member of another type": ("/query", b'{"query": 7}', JSON),
    "a member that is missing": ("/branches/merge", b"{}", JSON),
    "no object": ("/query", b"[]", JSON),
    "no JSON": ("/query", b"{", JSON),
    "nothing": ("/query", b"", JSON),
    "another kind": ("/query", b"{}", {"Content-Type": "text/plain"}),
    "a query that is wrong": ("/query", json.dumps({"query": "query q() {"}).encode(), JSON),
    "an unknown parameter": ("/query?colour=red", json.dumps({"query": QUERY}).encode(), JSON),
    "a condition": ("/query", json.dumps({"query": QUERY}).encode(), {**JSON, "Omnigraph-If-Graph-Commit": "x"}),
    "a branch that is not there": ("/mutate", b'{"query": "query q() { insert A { a: 1 } }", "branch": "x"}', JSON),
    "a merge of nothing": ("/branches/merge", b'{"source": "nothing"}', JSON),
    "another path": ("/queries/none", b"{}", JSON),
}


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[httpx.Client, httpx.Client]]:
    """Two servers of one graph: one finds routes directly, one does not."""
    serving = one_graph(people_graph(tmp_path_factory.mktemp("direct") / "graph"))
    with ExitStack() as stack:
        first = stack.enter_context(running(serving))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(direct, "_plain", lambda _: ())
            second = stack.enter_context(running(serving))
        yield stack.enter_context(client(first)), stack.enter_context(client(second))


def answer(http: httpx.Client, prefix: str, name: str) -> tuple[int, Any, list[str]]:
    path, body, headers = REQUESTS[name]
    found = http.post(prefix + path, content=body, headers=headers)
    varying = {"x-request-id", "date"}
    return found.status_code, found.json(), sorted(set(found.headers) - varying)


@pytest.mark.parametrize("prefix", ["", "/graphs/default", "/graphs/none", "/graphs/%2e%2e"])
@pytest.mark.parametrize("name", REQUESTS)
def test_both_ways_give_the_same_answer(both: tuple[httpx.Client, httpx.Client], name: str, prefix: str) -> None:
    first, second = (answer(http, prefix, name) for http in both)

    assert first == second


def test_what_takes_only_a_document_is_found_directly_and_nothing_else() -> None:
    found = {path for router in GRAPH_ROUTERS for (_, path, _), _ in direct._plain(router)}
    assert {"/query", "/mutate", "/branches/merge"} <= found
    assert not {path for path in found if "{" in path or path in ("/snapshot", "/load/ndjson")}


def test_a_method_that_a_route_has_not_is_left_to_fastapi(both: tuple[httpx.Client, httpx.Client]) -> None:
    assert [http.get("/query").status_code for http in both] == [405, 405]
