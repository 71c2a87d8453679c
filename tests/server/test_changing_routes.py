from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.support.serving import ADD, AGE, ALL, SCHEMA

LINES = {"Content-Type": "application/x-ndjson"}


def names(http: httpx.Client, branch: str = "main") -> list[str]:
    return [row["p.name"] for row in http.post("/query", json={"query": ALL, "branch": branch}).json()["rows"]]


def person(name: str) -> str:
    return json.dumps({"type": "Person", "data": {"name": name}}) + "\n"


@pytest.fixture
def branch(http: httpx.Client, request: pytest.FixtureRequest) -> str:
    """A branch of one's own."""
    name = f"own/{abs(hash(request.node.name)) % 10**9}"
    http.post("/branches", json={"name": name}).raise_for_status()
    return name


@pytest.mark.parametrize("route", ["/mutate", "/change", "/graphs/default/mutate"])
def test_a_mutation_tells_what_it_changed_and_in_whose_name(http: httpx.Client, route: str, branch: str) -> None:
    body = {"query": ADD, "name": "add", "params": {"name": "zoe", "age": 7}, "branch": branch}
    answer = http.post(route, json=body)

    done = answer.json()
    assert (done["branch"], done["query_name"]) == (branch, "add")
    assert (done["affected_nodes"], done["affected_edges"]) == (1, 0)
    assert done["actor_id"] == done["commit"]["actor_id"] == "act-admin"
    assert answer.headers.get("link") == ('<mutate>; rel="successor-version"' if route == "/change" else None)
    assert "zoe" in names(http, branch)


def test_the_older_names_of_members_are_understood(http: httpx.Client, branch: str) -> None:
    body = {"query_source": ADD, "query_name": "add", "params": {"name": "old"}, "branch": branch}

    assert http.post("/change", json=body).json()["affected_nodes"] == 1


def test_nobody_sets_the_actor_of_a_commit(http: httpx.Client, branch: str) -> None:
    body = {"query": ADD, "params": {"name": "spoofed"}, "branch": branch}
    done = http.post("/mutate", json=body, headers={"X-Actor-Id": "somebody", "X-Omnigraph-Actor": "x"}).json()

    assert done["actor_id"] == "act-admin"
    assert http.post("/mutate", json={**body, "actor": "somebody"}).status_code == 400


def test_a_mutation_that_finds_nothing_makes_no_commit(http: httpx.Client) -> None:
    before = http.get("/commits").json()
    done = http.post("/mutate", json={"query": AGE, "params": {"name": "nobody", "age": 1}}).json()

    assert done["commit"] is None
    assert http.get("/commits").json() == before


@pytest.mark.parametrize("route", ["/load", "/ingest"])
def test_a_load_makes_the_branch_it_is_told_to(http: httpx.Client, route: str) -> None:
    branch = f"loaded{route.replace('/', '-')}"
    body = {"data": person("lea") + "\n" + person("leo"), "branch": branch, "from": "main", "mode": "append"}
    done = http.post(route, json=body)

    told = done.json()
    assert (told["branch"], told["base_branch"], told["branch_created"]) == (branch, "main", True)
    assert told["tables"] == [{"table_key": "node:Person", "rows_loaded": 2}]
    assert told["nodes"][0]["entities_loaded"] == told["total_entities"] == 2
    assert ("deprecation" in done.headers) is (route == "/ingest")
    assert {"lea", "leo"} <= set(names(http, branch))
    assert "lea" not in names(http)


def test_a_load_onto_a_branch_that_is_not_there_makes_nothing(http: httpx.Client) -> None:
    assert http.post("/load", json={"data": person("x"), "branch": "absent"}).status_code == 404
    assert "absent" not in http.get("/branches").json()["branches"]


def test_lines_are_loaded_as_they_are_sent(http: httpx.Client, branch: str) -> None:
    lines = (person(f"many{number:05}") for number in range(3000))
    content = (line.encode() for line in lines)  # in parts, so nobody knows how many come
    where = {"branch": branch, "mode": "merge"}
    done = http.post(
        "/load/ndjson",
        params=where,
        content=content,
        headers={"Content-Type": LINES["Content-Type"] + "; charset=utf-8"},
    )

    assert done.json()["total_entities"] == 3000
    assert "uri" not in done.json()


def test_an_empty_load_is_no_commit(http: httpx.Client) -> None:
    done = http.post("/load/ndjson", content=b"", headers=LINES).json()

    assert (done["total_entities"], done["commit"]) == (0, None)


def test_what_is_wrong_with_records_is_told_by_line_and_nothing_is_loaded(http: httpx.Client, branch: str) -> None:
    bad = person("good") + '{"type": "Preson", "data": {}}\n'
    answer = http.post("/load/ndjson", params={"branch": branch}, content=bad, headers=LINES)

    assert answer.status_code == 400
    assert "<records>:2" in answer.json()["error"]
    assert "good" not in names(http, branch)


@pytest.mark.parametrize("route", ["/load", "/ingest"])
def test_a_property_that_the_schema_does_not_have_is_refused(http: httpx.Client, route: str, branch: str) -> None:
    data = person("good") + '{"type": "Person", "data": {"name": "x", "shoe": 43}}\n'
    answer = http.post(route, json={"data": data, "branch": branch})

    assert answer.status_code == 400
    assert "shoe" in answer.json()["error"]
    assert "good" not in names(http, branch)


def test_a_branch_with_a_slash_is_one_segment_of_a_path(http: httpx.Client) -> None:
    made = http.post("/branches", json={"name": "review/x", "from": "main"})
    assert made.json()["from"] == "main"
    assert "review/x" in http.get("/branches").json()["branches"]

    assert http.delete("/branches/review/x").status_code == 404
    assert http.delete("/graphs/default/branches/review%2Fx").json()["name"] == "review/x"
    assert "review/x" not in http.get("/branches").json()["branches"]


def test_branches_are_listed_sorted(http: httpx.Client) -> None:
    http.post("/branches", json={"name": "aaa"}).raise_for_status()
    found = http.get("/branches").json()["branches"]

    assert found == sorted(found)
    assert found[0] == "aaa"


def test_a_branch_is_merged_and_deleted_on_request(http: httpx.Client) -> None:
    http.post("/load", json={"data": person("mia"), "branch": "feature", "from": "main"}).raise_for_status()
    assert http.post("/branches/merge/preview", json={"source": "feature"}).json()["commit"] is None
    done = http.post("/branches/merge", json={"source": "feature", "delete_branch": True}).json()

    assert (done["source"], done["target"], done["actor_id"]) == ("feature", "main", "act-admin")
    assert done["outcome"] == "fast_forward"
    assert done["branch_deleted"] is True
    assert "mia" in names(http)
    assert "feature" not in http.get("/branches").json()["branches"]


def test_a_merge_stays_done_when_its_branch_cannot_be_deleted(http: httpx.Client) -> None:
    http.post("/load", json={"data": person("ned"), "branch": "parent", "from": "main"}).raise_for_status()
    http.post("/branches", json={"name": "child", "from": "parent"}).raise_for_status()
    answer = http.post("/branches/merge", json={"source": "parent", "delete_branch": True})

    assert answer.status_code == 200
    assert answer.json()["branch_deleted"] is False
    assert "child" in answer.json()["branch_delete_error"]
    assert "ned" in names(http)


def test_conflicts_are_resolved_as_the_request_says(http: httpx.Client, branch: str) -> None:
    for where, age in ((branch, 1), ("main", 2)):
        body = {"query": AGE, "params": {"name": "ann", "age": age}, "branch": where}
        http.post("/mutate", json=body).raise_for_status()
    done = http.post("/branches/merge", json={"source": branch, "resolve": {"Person": "theirs"}}).json()

    assert done["outcome"] == "merged"
    rows = http.post("/query", json={"query": ALL}).json()["rows"]
    assert next(row["p.age"] for row in rows if row["p.name"] == "ann") == 1


def test_a_commit_is_reverted(http: httpx.Client) -> None:
    done = http.post("/mutate", json={"query": ADD, "params": {"name": "oops"}}).json()
    commit = done["commit"]["graph_commit_id"]
    undone = http.post("/revert", json={"commit_id": commit}).json()

    assert undone["reverted"] == commit
    assert "oops" not in names(http)


def test_what_became_of_an_operation_can_be_asked(http: httpx.Client) -> None:
    head = http.get("/commits").json()["commits"][0]

    assert http.get(f"/outcomes/{head['graph_commit_id']}").json() == {"commit": head}
    assert http.get("/outcomes/01ARZ3NDEKTSV4RRFFQ69G5FAV").json() == {"commit": None}


def conditional(http: httpx.Client, headers: Any, name: str = "cond") -> httpx.Response:
    return http.post("/mutate/if-graph-commit", json={"query": ADD, "params": {"name": name}}, headers=headers)


def test_a_change_under_a_condition_happens_only_at_that_commit(http: httpx.Client) -> None:
    head = http.get("/commits").json()["commits"][0]["graph_commit_id"]
    header = {"Omnigraph-If-Graph-Commit": head}

    assert conditional(http, header).status_code == 200
    late = conditional(http, header, "late")
    assert late.status_code == 412
    now = http.get("/commits").json()["commits"][0]["graph_commit_id"]
    assert late.json()["precondition_failure"] == {"expected": head, "actual": now}
    assert "code" not in late.json()
    assert "late" not in names(http)


@pytest.mark.parametrize("value", ["", "*", 'W/"x"', '"x"', "a,b", "a b"])
def test_a_condition_that_is_no_plain_commit_is_refused(http: httpx.Client, value: str) -> None:
    answer = conditional(http, {"Omnigraph-If-Graph-Commit": value})

    assert (answer.status_code, answer.json()["code"]) == (400, "bad_request")


def test_a_condition_is_needed_once_and_only_where_it_means_something(http: httpx.Client) -> None:
    header = ("Omnigraph-If-Graph-Commit", "x")

    assert conditional(http, {}).status_code == 400
    assert conditional(http, [header, header]).status_code == 400
    assert http.post("/mutate", json={"query": ADD}, headers=[header]).status_code == 400
    assert http.get("/branches", headers=[header]).status_code == 400
    head = {"Omnigraph-If-Graph-Commit": http.get("/commits").json()["commits"][0]["graph_commit_id"]}
    assert http.post("/mutate/if-graph-commit", json={"query": ALL}, headers=head).status_code == 400


def test_a_schema_is_planned_and_changed(http: httpx.Client) -> None:
    wanted = SCHEMA.replace("age: I32?", "age: I32?  city: String?")
    plan = http.post("/schema/plan", json={"schema_source": wanted}).json()
    assert (plan["supported"], plan["step_count"]) == (True, 1)
    http.post("/branches", json={"name": "schemas"}).raise_for_status()
    on_branch = {"schema_source": wanted.replace("city", "town"), "branch": "schemas"}
    assert http.post("/schema/plan", json=on_branch).json()["step_count"] == 1
    assert http.post("/schema/apply", json=on_branch).json()["applied"]
    assert http.get("/schema").json()["schema_source"] == SCHEMA

    done = http.post("/schema/apply", json={"schema_source": wanted}).json()

    assert (done["applied"], done["manifest_version"]) == (True, done["graph_manifest_version"])
    assert http.get("/schema").json()["schema_source"] == wanted
    told = http.get(f"/commits/{done['commit']['graph_commit_id']}/changes").json()
    assert (told["schema"]["steps"], told["changes"]) == (plan["steps"], [])
    bad = http.post("/schema/apply", json={"schema_source": wanted.replace("city: String?", "city: I32?")})
    assert bad.status_code == 400
