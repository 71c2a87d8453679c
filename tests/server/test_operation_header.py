"""The id that a client gives a change: the commit carries it, and it is used once, where it means something."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from omnigraph.lang.identity import new_id
from tests.support.serving import ADD, SCHEMA, client

HEADER = "Omnigraph-Operation-Id"
CY = '{"type": "Person", "data": {"name": "cy"}}\n'
LINES = {"Content-Type": "application/x-ndjson"}
Send = Callable[[httpx.Client, dict[str, str]], httpx.Response]


def posting(path: str, document: Any) -> Send:
    return lambda http, headers: http.post(path, json=document, headers=headers)


COMMITTING: dict[str, Send] = {
    "mutate": posting("/mutate", {"query": ADD, "params": {"name": "a"}}),
    "nested": posting("/graphs/default/mutate", {"query": ADD, "params": {"name": "b"}}),
    "change": posting("/change", {"query": ADD, "params": {"name": "c"}}),
    "load": posting("/load", {"data": CY}),
    "ingest": posting("/ingest", {"data": CY}),
    "lines": lambda http, headers: http.post("/load/ndjson", content=CY, headers={**headers, **LINES}),
    "merge": posting("/branches/merge", {"source": "side"}),
    "schema": posting("/schema/apply", {"schema_source": SCHEMA.replace("I32?", "I32? @index")}),
}
NO_COMMIT: dict[str, Send] = {
    "create branch": posting("/branches", {"name": "other"}),
    "delete branch": lambda http, headers: http.delete("/branches/side", headers=headers),
    "create tag": posting("/tags", {"name": "one"}),
    "delete tag": lambda http, headers: http.delete("/tags/one", headers=headers),
}


def head(http: httpx.Client) -> dict[str, Any]:
    commit: dict[str, Any] = http.get("/commits").json()["commits"][0]
    return commit


@pytest.fixture(scope="module", autouse=True)
def side(http: httpx.Client) -> None:
    http.post("/load", json={"data": CY, "branch": "side", "from": "main"}).raise_for_status()


@pytest.mark.parametrize("name", COMMITTING)
def test_a_change_is_found_by_the_id_that_came_with_it(http: httpx.Client, name: str) -> None:
    if name == "schema":
        http.delete("/branches/side").raise_for_status()
    operation = new_id()

    COMMITTING[name](http, {HEADER: operation}).raise_for_status()

    found = head(http)
    assert http.get(f"/outcomes/{operation}").json() == {"commit": found}
    assert http.get(f"/graphs/default/outcomes/{operation}").json() == {"commit": found}
    assert found["details"]["operation_id"] == operation


def test_the_document_tells_who_takes_an_id(http: httpx.Client) -> None:
    paths = http.get("/openapi.json").json()["paths"]
    takes = {
        path
        for path, methods in paths.items()
        if HEADER in {one["name"] for one in methods.get("post", {}).get("parameters", ())}
    }
    flat = {
        "/mutate", "/change", "/mutate/if-graph-commit", "/load", "/ingest", "/load/ndjson", "/loads", "/schema/apply",
        "/branches/merge", "/revert", "/resolve", "/queries/{name}", "/queries/{name}/if-graph-commit", "/cherry-pick",
        "/restore-entities", "/merge-requests/{request_id}/merge",
    }  # fmt: skip

    assert takes == flat | {f"/graphs/{{graph_id}}{path}" for path in flat}


def test_a_revert_is_found_by_the_id_that_came_with_it(http: httpx.Client) -> None:
    made = http.post("/mutate", json={"query": ADD, "params": {"name": "gone"}}).json()["commit"]["graph_commit_id"]
    operation = new_id()

    http.post("/revert", json={"commit_id": made}, headers={HEADER: operation}).raise_for_status()

    assert http.get(f"/outcomes/{operation}").json()["commit"]["details"] == {
        "reverts": made,
        "operation_id": operation,
    }


def test_what_is_sent_again_with_the_same_id_is_refused(http: httpx.Client) -> None:
    operation = new_id()
    body = {"query": ADD, "params": {"name": "once"}}
    done = http.post("/mutate", json=body, headers={HEADER: operation}).json()

    again = http.post("/mutate", json=body, headers={HEADER: operation})

    assert (again.status_code, again.json()["code"]) == (409, "conflict")
    assert done["commit"]["graph_commit_id"] in again.json()["error"]
    assert head(http) == done["commit"]


@pytest.mark.parametrize(
    "values",
    [[""], ["x"], [new_id().lower()], [f"8{new_id()[1:]}"], [f"{new_id()[:-1]}U"], [new_id()] * 2, [f"{new_id()}, x"]],
    ids=["empty", "short", "small letters", "too large", "a letter that none has", "twice", "several"],
)
def test_an_id_of_another_form_is_refused_and_changes_nothing(http: httpx.Client, values: list[str]) -> None:
    before = head(http)
    body = {"query": ADD, "params": {"name": "never"}}

    answer = http.post("/mutate", json=body, headers=[(HEADER, value) for value in values])

    assert (answer.status_code, answer.json()["code"]) == (400, "bad_request")
    assert HEADER in answer.json()["error"]
    assert head(http) == before


@pytest.mark.parametrize("name", NO_COMMIT)
def test_what_makes_no_commit_takes_no_id(http: httpx.Client, name: str) -> None:
    before = http.get("/log").json(), http.get("/tags").json()

    answer = NO_COMMIT[name](http, {HEADER: new_id()})

    assert answer.status_code == 400
    assert "no commit is made" in answer.json()["error"]
    assert (http.get("/log").json(), http.get("/tags").json()) == before


def test_whoever_may_read_may_see_what_a_merge_would_bring(http: httpx.Client, address: str) -> None:
    http.post("/load", json={"data": CY.replace("cy", "fay"), "branch": "seen", "from": "main"}).raise_for_status()
    before = http.get("/log").json()
    with client(address, "read") as reader:
        seen = reader.post("/branches/merge/preview", json={"source": "seen"})
        nested = reader.post("/graphs/default/branches/merge/preview", json={"source": "seen"})
        refused = reader.post("/branches/merge", json={"source": "seen"})

    assert seen.json() == nested.json()
    assert (seen.json()["outcome"], seen.json()["commit"]) == ("fast_forward", None)
    assert seen.json()["changes"] == {"node:Person": {"inserted": 1, "updated": 0, "deleted": 0}}
    assert refused.status_code == 403
    assert http.get("/log").json() == before
    http.delete("/branches/seen").raise_for_status()
