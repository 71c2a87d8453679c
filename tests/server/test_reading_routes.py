from __future__ import annotations

import json
from typing import Any

import httpx
import pyarrow as pa
import pytest

import omnigraph
from omnigraph.api import arrow
from omnigraph.api.operation import ARROW
from tests.support.serving import ADD, ALL, SCHEMA, client

PREFIXES = ("", "/graphs/default")
ANN = {"p.name": "ann", "p.age": 30}


def lines(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/x-ndjson; charset=utf-8"
    return [json.loads(line) for line in response.text.splitlines()]


@pytest.fixture(scope="module")
def past(http: httpx.Client) -> tuple[str, str]:
    """The commit that has two people, and the one behind it, which has three."""
    first = http.get("/commits").json()["commits"][0]["graph_commit_id"]
    done = http.post("/mutate", json={"query": ADD, "params": {"name": "cy"}}).json()
    return first, done["commit"]["graph_commit_id"]


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_query_answers_with_its_rows_and_what_was_read(http: httpx.Client, prefix: str) -> None:
    answer = http.post(f"{prefix}/query", json={"query": ALL}).json()

    assert answer["rows"][0] == ANN
    assert answer["columns"] == ["p.name", "p.age"]
    assert answer["row_count"] == len(answer["rows"])
    assert answer["target"] == {"branch": "main", "snapshot": None}
    assert answer["graph_commit_id"] == http.get(f"{prefix}/commits").json()["commits"][0]["graph_commit_id"]


def test_a_query_of_a_commit_sees_the_graph_as_it_was(http: httpx.Client, past: tuple[str, str]) -> None:
    then = http.post("/query", json={"query": ALL, "snapshot": past[0]}).json()
    now = http.post("/query", json={"query": ALL, "branch": "main"}).json()

    assert (then["row_count"], now["row_count"]) == (2, 3)
    assert then["target"] == {"branch": None, "snapshot": past[0]}


def test_rows_come_as_an_arrow_stream_if_that_is_asked_for(http: httpx.Client) -> None:
    answer = http.post("/query", json={"query": ALL}, headers={"Accept": ARROW})

    assert answer.headers["content-type"] == ARROW
    found = arrow.result_of(answer.content)
    assert found.rows[0] == ANN
    assert found.table.schema.types == [pa.string(), pa.int32()]


@pytest.mark.parametrize("body", [{"query_source": ALL, "query_name": "all"}, {"query": ALL, "name": "all"}])
def test_the_older_route_of_queries_works_and_names_its_successor(http: httpx.Client, body: dict[str, str]) -> None:
    answer = http.post("/read", json=body)

    assert answer.json()["rows"][0] == ANN
    assert answer.headers["deprecation"] == "true"
    assert answer.headers["link"] == '<query>; rel="successor-version"'
    assert "deprecation" not in http.post("/query", json=body).headers


def test_explain_tells_the_steps(http: httpx.Client) -> None:
    answer = http.post("/explain", json={"query": ALL}).json()

    assert answer["query_name"] == "all"
    assert answer["steps"]


def test_a_snapshot_tells_the_tables_in_both_vocabularies(http: httpx.Client) -> None:
    answer = http.get("/snapshot", params={"branch": "main"}).json()

    person = next(table for table in answer["tables"] if table["table_key"] == "node:Person")
    same = next(one for one in answer["datasets"] if (one["entity_kind"], one["type_name"]) == ("node", "Person"))
    assert person["row_count"] == same["entity_count"]
    assert answer["manifest_version"] == answer["graph_manifest_version"]


def test_the_schema_is_told_as_it_was_written(http: httpx.Client) -> None:
    assert http.get("/schema").json() == {"schema_source": SCHEMA}


def test_an_export_is_lines_with_edges_before_nodes(http: httpx.Client) -> None:
    found = lines(http.post("/export", json={}))

    kinds = ["edge" if "edge" in line else "node" for line in found]
    assert kinds == sorted(kinds)
    assert found[0]["from"] == "ann"
    assert {"type": "Person", "data": {"id": "ann", "name": "ann", "age": 30}} in found


@pytest.mark.parametrize("body", [{"type_names": ["Person"]}, {"table_keys": ["node:Person"]}])
def test_an_export_of_a_type_has_only_that(http: httpx.Client, past: tuple[str, str], body: dict[str, Any]) -> None:
    found = lines(http.post("/export", json={**body, "snapshot": past[0]}))

    assert [line["data"]["name"] for line in found] == ["ann", "bob"]


def test_an_unknown_type_is_refused_before_anything_is_sent(http: httpx.Client) -> None:
    answer = http.post("/export", json={"type_names": ["Preson"]})

    assert answer.status_code == 400
    assert answer.json()["error"].startswith("unknown export type 'Preson'")


def test_commits_are_listed_newest_first_and_by_actor(http: httpx.Client, past: tuple[str, str]) -> None:
    found = http.get("/commits").json()["commits"]

    assert [one["graph_commit_id"] for one in found[-3:-1]][-1] == past[0]
    assert found[0]["parent_commit_id"] == found[1]["graph_commit_id"]
    assert http.get(f"/commits/{past[1]}").json()["actor_id"] == "act-admin"
    assert all(one["actor_id"] == "act-admin" for one in http.get("/commits?actor=act-admin").json()["commits"])


def test_what_a_commit_changed_is_told(http: httpx.Client, past: tuple[str, str]) -> None:
    answer = http.get(f"/commits/{past[1]}/changes").json()

    assert answer["cause"]["graph_commit_id"] == past[1]
    (change,) = answer["changes"]
    assert (change["kind"], change["type"]["name"], change["id"], change["op"]) == ("node", "Person", "cy", "insert")
    assert change["after"]["properties"]["name"] == "cy"


@pytest.mark.usefixtures("past")
def test_a_feed_is_followed_page_by_page(http: httpx.Client) -> None:
    page = http.get("/changes", params={"start": "beginning", "limit": 2, "kind": ["node"]}).json()
    told = [change["id"] for block in page["blocks"] for change in block["changes"]]
    while "next_page_token" in page:
        more = {"page_token": page["next_page_token"], "limit": 2, "kind": "node"}
        page = http.get("/changes", params=more).json()
        told += [change["id"] for block in page["blocks"] for change in block["changes"]]

    assert told[:3] == ["ann", "bob", "cy"]
    assert page["caught_up"]
    again = http.get("/changes", params={"cursor": page["cursor"], "kind": "node"}).json()
    assert again["blocks"] == []


def test_a_baseline_ends_with_the_cursor_to_go_on_with(http: httpx.Client) -> None:
    *entities, last = lines(http.post("/changes/baseline", json={"type": ["Person"]}))
    begins = http.get("/changes/baseline", params={"type": "Person"}).json()

    assert {one["type"] for one in entities} == {"Person"}
    assert last["baseline"]["snapshot_commit_id"] == begins["snapshot_commit_id"]
    cursor = last["baseline"]["resume_cursor"]
    assert http.get("/changes", params={"cursor": cursor, "type": "Person"}).json()["caught_up"]


def test_a_cursor_behind_a_commit_leads_to_what_came_later(http: httpx.Client, past: tuple[str, str]) -> None:
    cursor = http.get("/changes/cursor", params={"after": past[0]}).json()["cursor"]

    blocks = http.get("/changes", params={"cursor": cursor}).json()["blocks"]
    assert blocks[0]["changes"][0]["id"] == "cy"


def test_a_difference_is_lines_of_changes_and_last_their_number(http: httpx.Client, past: tuple[str, str]) -> None:
    head, *changes, last = lines(http.get("/diff", params={"from": past[0], "to": past[1]}))

    assert head["to"]["graph_commit_id"] == past[1]
    assert [one["id"] for one in changes if "op" in one] == ["cy"]
    assert last["stats"] == {"node:Person": {"insert": 1}}


def test_the_log_tells_which_names_are_at_a_commit(http: httpx.Client, past: tuple[str, str]) -> None:
    http.post("/tags", json={"name": "before", "ref": past[0]}).raise_for_status()

    found = {one["graph_commit_id"]: one for one in http.get("/log").json()["commits"]}
    assert found[past[0]]["tags"] == ["before"]
    assert http.get("/states/before").json()["commit"]["graph_commit_id"] == past[0]
    assert http.delete("/tags/before").json()["name"] == "before"
    assert http.get("/tags").json() == {"tags": []}


def test_a_text_that_looks_like_the_name_of_a_file_is_not_read(http: httpx.Client, tmp_path: Any) -> None:
    """Nobody may read the files of a server by naming them."""
    secret = tmp_path / "secret.gq"
    secret.write_text(ALL)
    for route, member in (("/query", "query"), ("/mutate", "query")):
        answer = http.post(route, json={member: str(secret)})
        assert answer.status_code == 400
        assert answer.json()["error"].startswith("<query>:1:1: Q000")
    schema = tmp_path / "secret.pg"
    schema.write_text(SCHEMA)
    for route in ("/schema/plan", "/schema/apply"):
        assert http.post(route, json={"schema_source": str(schema)}).status_code == 400


def test_a_request_id_is_echoed_if_it_is_one_and_made_otherwise(http: httpx.Client) -> None:
    assert http.get("/healthz", headers={"X-Request-Id": "abc-1.2_3"}).headers["x-request-id"] == "abc-1.2_3"
    for given in ("a b", "x" * 1000, "é"):
        made = http.get("/healthz", headers={b"X-Request-Id": given.encode()}).headers["x-request-id"]
        assert made != given
        assert len(made) == 26


def test_health_is_told_to_everybody_and_tells_no_names(address: str) -> None:
    with client(address, None) as nobody:
        assert nobody.get("/healthz").json() == {
            "status": "ok",
            "version": omnigraph.__version__,
            "internal_schema_version": 5,
        }
        assert nobody.get("/readyz").json() == {"status": "ready", "graphs": 1, "left_out": 0}
        assert nobody.get("/metrics").status_code == 401
