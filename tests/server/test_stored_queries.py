"""Stored queries: run by their names, checked against the schema, and never in the way of those who may not."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from omnigraph.errors import ServerStartError
from omnigraph.lang import Source, compile_schema
from omnigraph.server.app import create_app
from omnigraph.server.open_graphs import StoredQueries
from omnigraph.server.settings import QueryFile, ServedGraph, Serving
from tests.support.serving import SCHEMA, client, known_tokens, one_graph, people_graph, running

QUERIES = """
query adults($least: I32, $names: [String]?)
@description("People of an age")
@instruction("Ask for 18 if nobody says")
{ match { $p: Person $p.age >= $least } return { $p.name } order { $p.name asc } }

query rename($from: String, $age: I32) { update Person set { age: $age } where name = $from }

query hidden() { match { $p: Person } return { $p.name } }
"""


@pytest.fixture(scope="module")
def address_of_stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path = tmp_path_factory.mktemp("stored")
    (path / "all.gq").write_text(QUERIES)
    file = str(path / "all.gq")
    queries = (
        QueryFile(file, "adults"),
        QueryFile(file, "rename", "set_age"),
        QueryFile(file, "hidden", exposed=False),
    )
    graph = ServedGraph(people_graph(path / "graph"), queries=queries)
    with running(Serving({"people": graph}, "people", single=False, tokens=known_tokens())) as url:
        yield url


@pytest.fixture(scope="module")
def stored(address_of_stored: str) -> Iterator[httpx.Client]:
    with client(address_of_stored) as asking:
        yield asking


@pytest.mark.slow
def test_the_catalog_tells_parameters_by_kind_and_what_is_exposed(address_of_stored: str) -> None:
    with client(address_of_stored, "read") as reader:
        found = {one["name"]: one for one in reader.get("/queries").json()["queries"]}

    assert sorted(found) == ["adults", "rename"]
    assert found["adults"] == {
        "name": "adults",
        "tool_name": "adults",
        "mutation": False,
        "description": "People of an age",
        "instruction": "Ask for 18 if nobody says",
        "params": [
            {"name": "least", "kind": "int", "nullable": False},
            {"name": "names", "kind": "list", "item_kind": "string", "nullable": True},
        ],
    }
    assert (found["rename"]["tool_name"], found["rename"]["mutation"]) == ("set_age", True)


def test_every_type_of_a_parameter_has_a_kind(tmp_path: Path) -> None:
    kinds = {
        "String": "string", "Bool": "bool", "I32": "int", "U32": "int", "I64": "bigint", "U64": "bigint",
        "F32": "float", "F64": "float", "Date": "date", "DateTime": "datetime", "Blob": "blob", "Vector(3)": "vector",
    }  # fmt: skip
    names = {f"p{number}": (type_, kind) for number, (type_, kind) in enumerate(kinds.items())}
    given = ", ".join(f"${name}: {type_}?" for name, (type_, _) in names.items())
    (tmp_path / "all.gq").write_text(f"query all({given}) {{ match {{ $p: Person }} return {{ $p.name }} }}")
    stored = StoredQueries.read((QueryFile(str(tmp_path / "all.gq")),))

    (query,) = stored.catalog(compile_schema(Source(SCHEMA)))["queries"]

    assert {one["name"]: one["kind"] for one in query["params"]} == {name: kind for name, (_, kind) in names.items()}
    assert [one["vector_dim"] for one in query["params"] if "vector_dim" in one] == [3]


def test_a_stored_read_answers_like_a_query(stored: httpx.Client) -> None:
    answer = stored.post("/graphs/people/queries/adults", json={"params": {"least": 35}}).json()

    assert answer["rows"] == [{"p.name": "bob"}]
    assert answer["target"]["branch"] == "main"


@pytest.mark.parametrize("sent", [{}, {"content": b""}, {"json": {}}])
def test_a_query_without_parameters_needs_no_body(stored: httpx.Client, sent: dict[str, object]) -> None:
    assert stored.post("/queries/hidden", **sent).json()["row_count"] == 2  # type: ignore[arg-type]


def test_a_stored_mutation_answers_like_a_change(stored: httpx.Client) -> None:
    head = stored.get("/commits").json()["commits"][0]["graph_commit_id"]
    condition = {"Omnigraph-If-Graph-Commit": head}
    body = {"params": {"from": "ann", "age": 31}, "expect_mutation": True}
    done = stored.post("/queries/rename/if-graph-commit", json=body, headers=condition)

    assert (done.json()["affected_nodes"], done.json()["actor_id"]) == (1, "act-admin")
    assert stored.post("/queries/rename/if-graph-commit", json=body, headers=condition).status_code == 412
    assert stored.post("/queries/rename", json=body).json()["query_name"] == "rename"


@pytest.mark.parametrize(
    "name, body, saying",
    [
        ("adults", {}, "'least' not provided"),
        ("adults", {"params": {"least": "many"}}, "least"),
        ("adults", {"params": {"least": 1}, "expect_mutation": True}, "only reads"),
        ("rename", {"expect_mutation": False}, "changes the graph"),
        ("rename", {"params": {"from": "x", "age": 1}, "snapshot": "x"}, "takes no snapshot"),
        ("adults", {"params": {"least": 1}, "snapshot": "x", "branch": "main"}, "exclude each other"),
        ("adults", {"parms": {}}, "unknown members: parms"),
    ],
)
def test_what_a_stored_query_cannot_use_is_refused(
    stored: httpx.Client, name: str, body: dict[str, object], saying: str
) -> None:
    answer = stored.post(f"/queries/{name}", json=body)

    assert answer.status_code == 400
    assert saying in answer.json()["error"]


def test_a_stored_read_takes_no_condition(stored: httpx.Client) -> None:
    condition = {"Omnigraph-If-Graph-Commit": "x"}

    assert stored.post("/queries/adults/if-graph-commit", headers=condition).status_code == 400
    assert stored.post("/queries/hidden", headers=condition).status_code == 400


def test_who_may_not_change_a_graph_may_not_by_a_stored_query(address_of_stored: str) -> None:
    with client(address_of_stored, "read") as reader:
        assert reader.post("/queries/rename", json={"params": {"from": "ann", "age": 1}}).status_code == 403
        assert reader.post("/queries/hidden").status_code == 200
        unknown = reader.post("/queries/unknown")
    assert (unknown.status_code, unknown.json()["code"]) == (404, "not_found")
    assert unknown.json()["error"].startswith("stored query not found")


def test_a_schema_that_would_break_a_stored_query_is_refused_before_anything_changes(stored: httpx.Client) -> None:
    before = stored.get("/commits").json()
    answer = stored.post("/schema/apply", json={"schema_source": SCHEMA.replace("age: I32?", "")})

    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
    assert "adults, rename" in answer.json()["error"]
    assert stored.get("/commits").json() == before
    assert stored.get("/schema").json()["schema_source"] == SCHEMA
    fine = stored.post("/schema/apply", json={"schema_source": SCHEMA.replace("age: I32?", "age: I32?  nick: String?")})
    assert fine.json()["applied"]


@pytest.mark.slow
def test_a_graph_with_a_query_that_does_not_suit_it_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "broken.gq").write_text("query broken() { match { $p: Preson } return { $p.name } }")
    good = ServedGraph(people_graph(tmp_path / "good"))
    bad = ServedGraph(people_graph(tmp_path / "bad"), queries=(QueryFile(str(tmp_path / "broken.gq")),))
    absent = ServedGraph(str(tmp_path / "absent"))
    serving = Serving({"good": good, "bad": bad, "absent": absent}, None, single=False, tokens=known_tokens())
    with caplog.at_level(logging.CRITICAL), running(serving) as url, client(url) as asking:
        assert [one["graph_id"] for one in asking.get("/graphs").json()["graphs"]] == ["good"]
        assert asking.get("/graphs/good/branches").status_code == 200
        assert asking.get("/graphs/bad/branches").json()["error"] == "graph 'bad' not found"
        assert asking.get("/readyz").json() == {"status": "ready", "graphs": 1, "left_out": 2}
        assert asking.get("/branches").status_code == 404
    with pytest.raises(ServerStartError, match="graph 'bad' cannot be served: stored queries"):
        create_app(Serving({"good": good, "bad": bad}, None, single=False, require_all_graphs=True))
    with pytest.raises(ServerStartError, match="absent"):
        create_app(one_graph(str(tmp_path / "absent")))


def test_two_stored_queries_of_one_name_are_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.gq").write_text("query same() { match { $p: Person } return { $p.name } }")
    files = tuple(QueryFile(str(tmp_path / f"{name}.gq")) for name in ("a", "b"))
    served = ServedGraph(people_graph(tmp_path / "graph"), queries=files)

    with pytest.raises(ServerStartError, match="two stored queries are named 'same'"):
        create_app(Serving({"one": served}, "one"))


@pytest.mark.slow
def test_a_graph_that_is_not_there_is_made_with_its_schema(tmp_path: Path) -> None:
    (tmp_path / "people.pg").write_text(SCHEMA)
    served = ServedGraph(str(tmp_path / "new"), schema=str(tmp_path / "people.pg"))
    with running(Serving({"one": served}, "one", open_mode=True, single=False)) as url, client(url, None) as anybody:
        assert anybody.get("/schema").json()["schema_source"] == SCHEMA
        denied = anybody.get("/graphs")
    assert denied.status_code == 403
    assert "server-scoped actions" in denied.json()["error"]
