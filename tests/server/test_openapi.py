"""The OpenAPI document, what is served, and the page that tells of it are one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from omnigraph.api.access import READS, Action, Role
from omnigraph.server.app import GRAPH_ROUTERS
from omnigraph.server.config import Options, plan_of
from omnigraph.server.guard import GuardedRoute, Need
from omnigraph.server.routes import service
from omnigraph.server.settings import ServedGraph, Serving
from tests.support.serving import client, people_graph, running

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "http.md"
NAMED = "/graphs/{graph_id}"
OPEN = {("GET", "/healthz"), ("GET", "/readyz")}


@pytest.fixture(scope="module")
def document(address: str) -> Any:
    with client(address, None) as nobody:
        return nobody.get("/openapi.json").json()


def operations(document: Any) -> Iterator[tuple[str, str, Any]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if method != "parameters":
                yield method.upper(), path, operation


def test_the_document_is_open_to_everybody_and_of_the_right_version(document: Any) -> None:
    assert document["openapi"].startswith("3.1")
    assert document["info"]["title"] == "Omnigraph"


def test_every_operation_has_an_id_of_its_own(document: Any) -> None:
    ids = [operation["operationId"] for _, _, operation in operations(document)]

    assert len(ids) == len(set(ids))
    for _, path, operation in operations(document):
        assert operation["operationId"].startswith("cluster_") is path.startswith(NAMED)


def test_every_route_of_a_graph_is_there_with_its_name_and_without(document: Any) -> None:
    found = {(method, path) for method, path, _ in operations(document)}
    named = {(method, path.removeprefix(NAMED)) for method, path in found if path.startswith(NAMED)}

    assert named == {(method, path) for method, path in found if not path.startswith(NAMED)} - _of_the_server()


def _of_the_server() -> set[tuple[str, str]]:
    return OPEN | {("GET", "/graphs"), ("GET", "/metrics")}


def test_tokens_are_asked_for_on_every_route_but_those_that_are_open(document: Any) -> None:
    assert document["components"]["securitySchemes"] == {"bearer": {"type": "http", "scheme": "bearer"}}
    without = {(method, path) for method, path, one in operations(document) if "security" not in one}

    assert without == OPEN


def test_an_open_server_tells_nothing_of_tokens(tmp_path: Path) -> None:
    graph = ServedGraph(people_graph(tmp_path / "graph"))
    with running(Serving({"g": graph}, "g", open_mode=True)) as url, client(url, None) as anybody:
        found = anybody.get("/openapi.json").json()
        assert anybody.get("/branches").json() == {"branches": ["main"]}
        done = anybody.post("/branches", json={"name": "x"}).json()

    assert done["actor_id"] is None
    assert "securitySchemes" not in found["components"]
    assert not any("security" in one or "401" in one["responses"] for _, _, one in operations(found))


@pytest.mark.slow
def test_a_server_tells_the_versions_that_it_is_told(tmp_path: Path) -> None:
    environment = {
        "OMNIGRAPH_REPORTED_VERSION": "0.3.9",
        "OMNIGRAPH_SOURCE_VERSION": "4f2a",
        "OMNIGRAPH_UNAUTHENTICATED": "1",
    }
    plan = plan_of(Options(people_graph(tmp_path / "graph")), environment)
    with running(plan.serving) as url, client(url, None) as anybody:
        told = anybody.get("/healthz").json()
        document = anybody.get("/openapi.json").json()

    assert told == {"status": "ok", "version": "0.3.9", "source_version": "4f2a", "internal_schema_version": 5}
    assert document["info"]["version"] == "0.3.9"


def test_every_refusal_is_told_with_its_form(document: Any) -> None:
    form = {"$ref": "#/components/schemas/ErrorOutput"}
    for method, path, operation in operations(document):
        for status, response in operation["responses"].items():
            if int(status) >= 400:
                assert response["content"]["application/json"]["schema"] == form, (method, path, status)


def test_what_the_document_tells_is_served(document: Any, http: httpx.Client) -> None:
    for method, path, _ in operations(document):
        answer = http.request(method, re.sub(r"\{\w+\}", "-x-", path))
        assert answer.status_code != 405 or path == "/graphs", (method, path)
        assert "no route for" not in answer.text, (method, path)


def _documented() -> dict[tuple[str, str], tuple[str, str]]:
    rows = re.findall(r"^\| `(\w+) (/\S+)` \| (.*?) \| (.*?) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return {(method, path): (role, what) for method, path, role, what in rows}


def test_the_page_lists_what_the_document_lists(document: Any) -> None:
    told = {
        (method, path): one["description"].partition("\n")[0]
        for method, path, one in operations(document)
        if not path.startswith(NAMED)
    }

    assert {key: what for key, (_, what) in _documented().items()} == told


def test_the_page_tells_the_role_that_each_route_needs() -> None:
    declared = [route for routes in (service.routes, *GRAPH_ROUTERS) for route in routes.routes]
    found = {
        (method, route.path_format): _role(route.endpoint)
        for route in declared
        if isinstance(route, GuardedRoute)
        for method in route.methods or ()
    }

    assert {key: role for key, (role, _) in _documented().items()} == found


def test_every_route_refuses_whoever_has_no_token_or_a_lesser_role(address: str, document: Any) -> None:
    lesser = {
        "": (),
        "read": (None,),
        "read, or write": (None,),
        "write": (None, "read"),
        "admin": (None, "read", "write"),
    }
    roles = {key: role for key, (role, _) in _documented().items()}
    with ExitStack() as stack:
        asking = {who: stack.enter_context(client(address, who)) for who in (None, "read", "write")}
        for method, path, _ in operations(document):
            place = re.sub(r"\{\w+\}", "-x-", path.replace(NAMED, "/graphs/default"))
            for who in lesser[roles[method, path.removeprefix(NAMED)]]:
                answer = asking[who].request(method, place)
                assert answer.status_code == (403 if who else 401), (method, path, who)


def _role(endpoint: Any) -> str:
    need = getattr(endpoint, "needs", None)
    if need is None:
        return ""
    if not isinstance(need, Need):
        return "read, or write"
    if need.action is None or need.action in READS:
        return "read"
    return Role.ADMIN if need.action in (Action.SCHEMA_APPLY, Action.ADMIN) else Role.WRITE
