"""Every refusal: its status, its code, its detail. Those of the two conflicts are compared byte for byte."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import httpx
import pytest

import omnigraph
from omnigraph.commit import failpoints
from omnigraph.errors import StorageError
from omnigraph.manifest.rows import MANIFEST_PATH
from omnigraph.storage import observe
from tests.support.mutations import once_prepared
from tests.support.serving import ADD, AGE, ALL, PEOPLE, SCHEMA, bearer, client, one_graph, people_graph, running

JSON = {"Content-Type": "application/json"}
LINES = {"Content-Type": "application/x-ndjson"}
MIXED = 'query mixed() { insert Person { name: "x" } delete Person where name = "ann" }'


@dataclass(frozen=True)
class Refused:
    """A request, and how it is refused; `saying` is a part of the text."""

    method: str
    path: str
    status: int
    code: str
    saying: str
    body: Any = None
    content: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)
    role: str | None = "admin"

    def __str__(self) -> str:
        return f"{self.status} {self.method} {self.path} {self.saying}"


def post(path: str, status: int, saying: str, body: Any, **more: Any) -> Refused:
    codes = {401: "unauthorized", 403: "forbidden", 404: "not_found", 409: "conflict"}
    return Refused("POST", path, status, codes.get(status, "bad_request"), saying, body, **more)


def get(path: str, status: int, saying: str, **more: Any) -> Refused:
    codes = {401: "unauthorized", 403: "forbidden", 404: "not_found", 405: "method_not_allowed"}
    return Refused("GET", path, status, codes.get(status, "bad_request"), saying, **more)


def raw(status: int, saying: str, content: bytes, headers: dict[str, str], path: str = "/query") -> Refused:
    return Refused("POST", path, status, "bad_request", saying, content=content, headers=headers)


REFUSED = [
    # 400: what is asked cannot be understood, or does not suit the schema
    post("/query", 400, "<query>:1:1: Q000", {"query": "qury"}),
    post("/query", 400, "<query>:1:", {"query": "query q() { match { $p: Preson } return { $p.name } }"}),
    post(
        "/query",
        400,
        "'name' not provided",
        {"query": "query q($name: String) { match { $p: Person } return { $name } }"},
    ),
    post("/query", 400, "multiple queries", {"query": f"{ALL} {ALL.replace('all', 'two')}"}),
    post("/query", 400, "branch and snapshot", {"query": ALL, "branch": "main", "snapshot": "x"}),
    post("/query", 400, "add", {"query": ADD, "params": {"name": "x"}}),
    post("/mutate", 400, "all", {"query": ALL}),
    post("/mutate", 400, "D2", {"query": MIXED}),
    post("/mutate", 400, "age", {"query": ADD, "params": {"name": "x", "age": "old"}}),
    post("/branches", 400, "branch 'main' already exists", {"name": "main"}),
    Refused("DELETE", "/branches/main", 400, "bad_request", "cannot be deleted"),
    post("/branches", 400, "cannot name a branch", {"name": "a..b"}),
    post("/branches", 400, "cannot name a branch", {"name": ""}),
    post("/branches", 400, "cannot name a branch", {"name": "x", "from": ""}),
    post("/query", 400, "cannot name a branch", {"query": ALL, "branch": ""}),
    post("/mutate", 400, "cannot name a branch", {"query": ADD, "params": {"name": "x"}, "branch": ""}),
    post("/load", 400, "cannot name a branch", {"data": "", "branch": ""}),
    post("/branches/merge", 400, "cannot name a branch", {"source": "x", "target": ""}),
    post("/branches/merge", 400, "into itself", {"source": "main"}),
    post("/branches/merge", 400, "not a side", {"source": "main", "target": "x", "resolve": "mine"}),
    post("/schema/apply", 400, "<schema>:1:", {"schema_source": "node {"}),
    post("/schema/apply", 400, "cannot be changed", {"schema_source": SCHEMA.replace("age: I32?", "age: String?")}),
    post("/load", 400, "<records>:1", {"data": '{"type": "Preson", "data": {}}'}),
    post("/load", 400, "<records>:1", {"data": "{"}),
    post("/export", 400, "unknown export type 'X'", {"type_names": ["X"]}),
    get("/changes?cursor=x", 400, "change cursor rejected: "),
    get("/changes?cursor=x&start=now", 400, "cannot be combined"),
    get("/changes?kind=nodes", 400, "unknown kind 'nodes'"),
    get("/changes?type=Nobody", 400, "'Nobody'"),
    get("/changes?op=upsert", 400, "unknown op 'upsert'"),
    get("/changes?start=never", 400, "invalid start 'never'"),
    get("/snapshot?brnach=x", 400, "unknown query parameter 'brnach'"),
    get("/graphs/a_b/snapshot", 400, "is not a valid graph id"),
    get("/graphs/policies/snapshot", 400, "is not a valid graph id"),
    get(f"/graphs/{'x' * 65}/snapshot", 400, "is not a valid graph id"),
    post("/query", 400, "unknown members: quory", {"query": ALL, "quory": 1}),
    raw(400, "at line 1, column 2", b"{", JSON),
    raw(400, "not UTF-8: see byte 11", b'{"query": "\xff"}', JSON),
    raw(400, "NaN", b'{"query": "x", "params": {"a": NaN}}', JSON),
    raw(400, "digits", b'{"query": "x", "params": {"a": ' + b"9" * 5000 + b"}}", JSON),
    raw(400, "surrogate", rb'{"query": "\ud800"}', JSON),
    raw(400, "at line 1, column 1", b"", JSON),
    # 401 and 403: who asks
    get("/snapshot", 401, "missing bearer token", role=None),
    get("/snapshot", 401, "missing bearer token", role=None, headers={"Authorization": "Basic eA=="}),
    get("/graphs/unknown/snapshot", 401, "invalid bearer token", role=None, headers={"Authorization": "Bearer x"}),
    post("/mutate", 403, "default-deny", {"query": ADD}, role="read"),
    post("/mutate", 403, "default-deny", {"not even": "right"}, role="read"),
    post("/schema/apply", 403, "default-deny", {"schema_source": SCHEMA}, role="write"),
    post("/branches", 403, "default-deny", {"name": "x"}, role="read"),
    get("/snapshot", 403, "not for this graph", role="other"),
    get("/graphs/unknown/snapshot", 403, "not for this graph", role="other"),
    # 404: what is asked for is not there
    get("/graphs/unknown/snapshot", 404, "graph 'unknown' not found"),
    get("/snapshot?branch=absent", 404, "no branch, tag or commit 'absent'"),
    get("/commits/01ARZ3NDEKTSV4RRFFQ69G5FAV", 404, "01ARZ3NDEKTSV4RRFFQ69G5FAV"),
    post("/query", 404, "absent", {"query": ALL, "branch": "absent"}),
    post("/query", 404, "01ARZ3NDEKTSV4RRFFQ69G5FAV", {"query": ALL, "snapshot": "01ARZ3NDEKTSV4RRFFQ69G5FAV"}),
    post("/mutate", 404, "branch 'absent' not found", {"query": ADD, "params": {"name": "x"}, "branch": "absent"}),
    post("/queries/unknown", 404, "stored query not found", {}),
    Refused("DELETE", "/branches/absent", 404, "not_found", "branch 'absent' not found"),
    Refused("DELETE", "/tags/absent", 404, "not_found", "tag 'absent' not found"),
    get("/runs", 404, "no route for GET /runs"),
    get("/graphs/default/runs/1", 404, "no route for GET /graphs/default/runs/1"),
    get("/snapshot/", 404, "no route for GET /snapshot/"),
    get("/docs", 404, "no route for GET /docs"),
    # 405: what is there does not do that
    get("/graphs", 405, "single graph, and no list"),
    get("/query", 405, "GET /query"),
    Refused("PUT", "/snapshot", 405, "method_not_allowed", "PUT /snapshot"),
    # 415 and 422: bodies of another kind or form
    raw(415, "expected Content-Type application/json", b"{}", {}),
    raw(415, "expected Content-Type application/json", b"{}", {"Content-Type": "text/plain"}),
    raw(415, "expected Content-Type application/json", b"{}", {"Content-Type": "text/plain"}, "/export"),
    raw(415, "expected Content-Type application/x-ndjson", b"{}", JSON, "/load/ndjson"),
    raw(415, "expected Content-Type application/x-ndjson", b"{}", {}, "/load/ndjson"),
    post("/query", 422, "query: ", {}),
    post("/query", 422, "query: ", {"query": 1}),
    post("/query", 422, "the body: ", [1]),
    post("/mutate", 422, "params: ", {"query": ADD, "params": [1]}),
    post("/load", 422, "mode: ", {"data": "", "mode": "replace"}),
    get("/changes?limit=many", 422, "limit: "),
    get("/diff?from=main", 422, "to: "),
]


@pytest.mark.parametrize("case", REFUSED, ids=str)
def test_a_request_is_refused_with_its_status_code_and_reason(address: str, case: Refused) -> None:
    with client(address, case.role, case.headers) as asking:
        sent = (
            {"content": case.content} if case.content is not None else {} if case.body is None else {"json": case.body}
        )
        answer = asking.request(case.method, case.path, **sent)

    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert (answer.status_code, body["code"]) == (case.status, case.code), body
    assert case.saying in body["error"]
    assert list(body) == ["error", "code", *(["load_problems"] if "load was refused" in body["error"] else [])]


def test_a_missing_token_says_which_kind_is_wanted(address: str) -> None:
    with client(address, None) as nobody:
        assert nobody.get("/snapshot").headers["www-authenticate"] == "Bearer"


def test_a_method_that_is_not_there_says_which_are(http: httpx.Client) -> None:
    assert http.get("/query").headers["allow"] == "POST"


def test_who_may_not_is_refused_before_anything_is_sent(address: str) -> None:
    """Only the head of the request is sent: whoever waited for the rest would wait for ever."""
    asking = HTTPConnection(httpx.URL(address).netloc.decode(), timeout=120)
    asking.putrequest("POST", "/load/ndjson")
    for name, value in {**bearer("read"), **LINES, "Content-Length": "1000000"}.items():
        asking.putheader(name, value)
    asking.endheaders()
    try:
        assert asking.getresponse().status == 403
    finally:
        asking.close()


def test_the_text_of_an_error_is_the_one_that_the_command_line_prints(http: httpx.Client, tmp_path: Path) -> None:
    graph = omnigraph.init(tmp_path / "same", SCHEMA)
    wrong = "query q() { match { $p: Preson } return { $p.name } }"
    with pytest.raises(omnigraph.errors.QueryError) as embedded:
        graph.query(wrong)

    assert http.post("/query", json={"query": wrong}).json()["error"] == str(embedded.value)


def test_a_client_of_ours_is_told_the_class_of_an_error(http: httpx.Client) -> None:
    body = http.get("/snapshot?branch=absent", headers={"Omnigraph-Client": "omnigraph/1"}).json()

    assert body["problem"]["type"] == "BranchNotFoundError"
    assert body["problem"]["fields"] == {"branch": "absent"}


# Conflicts and their details ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, httpx.Client]]:
    """A graph that only these tests change, and where it is."""
    path = tmp_path_factory.mktemp("conflicts") / "graph"
    with running(one_graph(people_graph(path))) as url, client(url) as http:
        yield path, http


def compact(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


@pytest.mark.slow
def test_a_lost_race_for_a_table_has_the_documented_body_byte_for_byte(own: tuple[Path, httpx.Client]) -> None:
    path, http = own
    version = omnigraph.open(path).snapshot().entries["node:Person"].table.version

    def somebody_else() -> None:
        omnigraph.open(path).mutate(AGE, {"name": "bob", "age": 41})

    with once_prepared(somebody_else):
        answer = http.post("/mutate", json={"query": AGE, "params": {"name": "bob", "age": 42}})

    text = f"table 'node:Person' is at version {version + 1}; the write was prepared on {version}"
    conflict = {"table_key": "node:Person", "expected": version, "actual": version + 1}
    assert answer.status_code == 409
    assert answer.content == compact(
        {"error": f"{text}\nhint: read again and retry", "code": "conflict", "manifest_conflict": conflict}
    )
    rows = http.post("/query", json={"query": ALL}).json()["rows"]
    assert next(row["p.age"] for row in rows if row["p.name"] == "bob") == 41


def test_conflicts_of_a_merge_have_the_documented_body_byte_for_byte(own: tuple[Path, httpx.Client]) -> None:
    _, http = own
    http.post("/branches", json={"name": "theirs"}).raise_for_status()
    for branch, age in (("theirs", 1), ("main", 2)):
        body = {"query": AGE, "params": {"name": "ann", "age": age}, "branch": branch}
        http.post("/mutate", json=body).raise_for_status()
    answer = http.post("/branches/merge", json={"source": "theirs", "target": "main"})

    assert answer.status_code == 409
    body = answer.json()
    items = [
        {
            "table_key": "node:Person",
            "row_id": "ann",
            "kind": "divergent_update",
            "message": "Person 'ann' was changed differently on both sides: age",
        }
    ]
    assert answer.content == compact({"error": body["error"], "code": "conflict", "merge_conflicts": items})
    assert "divergent_update" in body["error"]


def test_keys_that_are_there_already_are_a_conflict(own: tuple[Path, httpx.Client]) -> None:
    answer = own[1].post("/load", json={"data": PEOPLE.splitlines()[0], "mode": "append"})

    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
    told = {"table_key": "node:Person", "key": "ann", "entity_kind": "node", "type_name": "Person", "entity_id": "ann"}
    assert answer.json()["key_conflict"] == told


def test_a_name_that_is_taken_and_a_branch_that_is_needed_are_conflicts(own: tuple[Path, httpx.Client]) -> None:
    _, http = own
    for name, base in (("mother", "main"), ("daughter", "mother")):
        http.post("/branches", json={"name": name, "from": base}).raise_for_status()
    refused = [
        http.post("/branches", json={"name": "mother"}),
        http.post("/branches", json={"name": "mother/below"}),
        http.delete("/branches/mother"),
    ]

    assert [(answer.status_code, list(answer.json())) for answer in refused] == [(409, ["error", "code"])] * 3
    assert {answer.json()["code"] for answer in refused} == {"conflict"}
    for name in ("daughter", "mother"):
        assert http.delete(f"/branches/{name}").status_code == 200


def test_schema_files_that_were_edited_are_a_conflict_where_the_schema_matters(own: tuple[Path, httpx.Client]) -> None:
    path, http = own
    file = path / "_schema.pg"
    file.write_text(SCHEMA.replace("age: I32?", "age: I64?"))
    refused = [
        http.get("/schema"),
        http.post("/schema/plan", json={"schema_source": SCHEMA}),
        http.post("/schema/apply", json={"schema_source": SCHEMA}),
    ]
    file.write_text(SCHEMA)

    assert [(answer.status_code, answer.json()["code"]) for answer in refused] == [(409, "conflict")] * 3
    assert http.get("/schema").json()["schema_source"] == SCHEMA


def test_the_first_commit_has_nothing_to_be_compared_with(own: tuple[Path, httpx.Client]) -> None:
    first = own[1].get("/commits").json()["commits"][-1]["graph_commit_id"]
    answer = own[1].get(f"/commits/{first}/changes")

    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
    assert answer.json()["change_diff_refusal"] == {"graph_commit_id": first, "reason": "parentless_commit"}


@pytest.mark.parametrize("limit", [8193, 10**6])
def test_a_page_beyond_the_limit_is_too_much(own: tuple[Path, httpx.Client], limit: int) -> None:
    answer = own[1].get("/changes", params={"limit": limit})

    assert (answer.status_code, answer.json()["code"]) == (413, "bad_request")
    assert answer.json()["resource_limit"] == {"resource": "changes", "limit": 8192, "actual": limit}


def test_a_body_beyond_the_limit_is_too_much(own: tuple[Path, httpx.Client]) -> None:
    answer = own[1].post("/query", json={"query": " " * 2**20})

    assert (answer.status_code, answer.json()["code"]) == (413, "bad_request")
    assert answer.json()["resource_limit"]["limit"] == 2**20


@pytest.mark.slow
def test_a_part_of_the_past_that_was_cleaned_up_is_gone(own: tuple[Path, httpx.Client]) -> None:
    path, http = own
    for age in (1, 2):
        http.post("/mutate", json={"query": AGE, "params": {"name": "ann", "age": age}}).raise_for_status()
    first = http.get("/commits").json()["commits"][-2]["graph_commit_id"]
    for name in http.get("/branches").json()["branches"]:
        if name != "main":
            http.delete(f"/branches/{name}").raise_for_status()
    omnigraph.open(path).cleanup(keep=1, confirm=True)
    with running(one_graph(str(path))) as url, client(url) as later:
        answer = later.get("/changes", params={"start": f"after:{first}"})
        read = later.post("/query", json={"query": ALL, "snapshot": first})

    assert (answer.status_code, read.status_code) == (410, 410)
    assert list(answer.json()) == ["error", "change_feed_gap"]
    assert "first_unreadable_commit_id" in answer.json()["change_feed_gap"]


def test_an_operation_that_stopped_half_way_is_named_and_settled_later(own: tuple[Path, httpx.Client]) -> None:
    _, http = own

    def fail(operation: str, path: str) -> None:
        if operation == "publish" and path.endswith(MANIFEST_PATH):
            raise StorageError("the disk is away", path=path, operation=operation)

    previous = observe.set_write_hook(fail)
    try:
        answer = http.post("/mutate", json={"query": ADD, "params": {"name": "half"}})
    finally:
        observe.set_write_hook(previous)

    assert (answer.status_code, list(answer.json())) == (503, ["error", "recovery_required"])
    operation_id = answer.json()["recovery_required"]["operation_id"]
    assert http.get(f"/outcomes/{operation_id}").json()["commit"]["graph_commit_id"] == operation_id
    rows = http.post("/query", json={"query": ALL}).json()["rows"]
    assert "half" in [row["p.name"] for row in rows]


def test_a_failure_of_the_storage_is_the_server_s_fault(own: tuple[Path, httpx.Client]) -> None:
    _, http = own

    def fail() -> None:
        raise StorageError("the disk is away", path="x", operation="write")

    with failpoints.armed(failpoints.PUBLISH_AFTER_GATES, fail):
        answer = http.post("/mutate", json={"query": ADD, "params": {"name": "never"}})

    assert (answer.status_code, answer.json()) == (500, {"error": "the disk is away", "code": "internal"})


def test_what_nobody_foresaw_is_told_to_the_log_and_not_to_the_client(own: tuple[Path, httpx.Client]) -> None:
    _, http = own

    def fail() -> None:
        raise RuntimeError("a secret")

    with failpoints.armed(failpoints.PUBLISH_AFTER_GATES, fail):
        answer = http.post("/mutate", json={"query": ADD, "params": {"name": "never"}})

    assert (answer.status_code, answer.json()["code"]) == (500, "internal")
    assert "secret" not in answer.text
    assert answer.headers["x-request-id"] in answer.json()["error"]
