"""The tools of a session, as a client of the official SDK meets them: what they answer, and what they refuse."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import anyio
import pytest
from mcp.client.client import Client
from mcp.shared.exceptions import MCPError

import omnigraph
from omnigraph.api.access import Action, Caller, Principal, Role
from omnigraph.api.protocol import GraphAPI
from omnigraph.api.rows import Result
from omnigraph.graph import Graph
from omnigraph.mcp.protocol import create_server
from omnigraph.mcp.session import Session, StoredTool
from omnigraph.mcp.tools import MANY_STORED, TOOLS

SCHEMA = """
node Person @description("Someone we know") { slug: String @key  name: String @index  age: I32?  face: Vector(2)? }
node Thing { text: String }
edge Knows: Person -> Person { since: Date? }
"""
PEOPLE = "query all() { match { $p: Person } return { $p.slug, $p.name } order { $p.slug asc } }"
ADD = "query add($slug: String, $name: String) { insert Person { slug: $slug, name: $name } }"
WRITERS = {name for name, one in TOOLS.items() if not one.reads}

_T = TypeVar("_T")
Use = Callable[[Client], Awaitable[_T]]


@pytest.fixture
def graph(tmp_path: Path) -> Iterator[Graph]:
    with omnigraph.init(tmp_path / "graph", SCHEMA) as made:
        made.mutate(
            """query start() {
                insert Person { slug: "ann", name: "Ann Arbor", age: 40 }
                insert Person { slug: "bob", name: "Bob Builder" }
                insert Knows { from: "ann", to: "bob" }
                insert Thing { text: "a" }
            }"""
        )
        yield made


def session_of(graph: Graph, role: Role = Role.WRITE, **more: Any) -> Session:
    principal = Principal("eve", role)
    return Session(graph.acting_as(principal), Caller.of(principal), "eve", **more)


def using(session: Session, use: Use[_T]) -> _T:
    async def run() -> _T:
        async with Client(create_server(lambda _: session)) as client:
            await client.list_tools()  # the client checks answers against what is listed
            return await use(client)

    return anyio.run(run)


def call(session: Session, name: str, /, **arguments: Any) -> tuple[bool, Any, str]:
    """Call a tool; return whether it failed, its members and its text."""

    async def use(client: Client) -> tuple[bool, Any, str]:
        answer = await client.call_tool(name, arguments)
        return bool(answer.is_error), answer.structured_content, answer.content[0].text  # type: ignore[union-attr]

    return using(session, use)


def answer(session: Session, name: str, /, **arguments: Any) -> Any:
    failed, members, text = call(session, name, **arguments)
    assert not failed, text
    # Clients of older versions of the protocol see the text alone.
    assert json.loads(text) == members
    return members


def listed(session: Session) -> set[str]:
    async def use(client: Client) -> set[str]:
        return {one.name for one in (await client.list_tools()).tools}

    return using(session, use)


# What is listed ------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", Role)
def test_a_caller_sees_the_tools_that_its_role_allows_and_can_call_no_other(graph: Graph, role: Role) -> None:
    session = session_of(graph, role)
    found, before = listed(session), graph.commits()

    assert (found & WRITERS == set()) is (role is Role.READ)
    assert ("schema_apply" in found) is (role is Role.ADMIN)
    for name in WRITERS - found:
        failed, members, _ = call(session, name)
        assert failed
        assert members["code"] == "option_invalid"
    assert graph.commits() == before


def test_a_read_only_session_of_an_admin_offers_and_runs_nothing_that_changes_the_graph(graph: Graph) -> None:
    session = session_of(graph, Role.ADMIN, read_only=True)

    async def hints(client: Client) -> set[bool | None]:
        return {one.annotations.read_only_hint for one in (await client.list_tools()).tools if one.annotations}

    assert using(session, hints) == {True}
    assert call(session, "change", query=ADD, params={"slug": "x", "name": "x"})[0]
    failed, _, text = call(session, "graph_query", query=ADD, params={"slug": "x", "name": "x"})
    assert failed
    assert "mutate" in text
    assert len(answer(session, "graph_query", query=PEOPLE)["rows"]) == 2


def test_merging_is_offered_only_where_it_is_switched_on(graph: Graph) -> None:
    assert "branch_merge" not in listed(session_of(graph, Role.ADMIN))
    assert "branch_merge" in listed(session_of(graph, Role.ADMIN, allow_merge=True))


def test_names_of_older_servers_are_accepted_and_not_listed(graph: Graph) -> None:
    session = session_of(graph, allow_merge=True)
    older = {name for one in TOOLS.values() for name in one.also}

    assert not older & listed(session)
    assert older >= {"read", "change", "ingest", "branches_list", "commits_list", "commits_get", "health", "snapshot"}
    assert answer(session, "read", query=PEOPLE)["row_count"] == 2
    assert answer(session, "branches_list") == {"branches": ["main"]}
    assert answer(session, "change", query=ADD, params={"slug": "cy", "name": "Cy"})["affected_nodes"] == 1


# Reading -------------------------------------------------------------------------------------------


def test_a_long_answer_is_cut_and_continues_at_the_same_state(graph: Graph) -> None:
    session = session_of(graph)
    first = answer(session, "graph_query", query=PEOPLE, limit=1)
    assert (first["rows"], first["row_count"], first["truncated"]) == ([["ann", "Ann Arbor"]], 2, True)

    graph.mutate(ADD, {"slug": "aaa", "name": "First"})
    more = {"start": first["next_start"], "snapshot": first["graph_commit_id"]}
    rest = answer(session, "graph_query", query=PEOPLE, **more)
    assert rest["rows"] == [["bob", "Bob Builder"]]
    assert not rest["truncated"]
    assert "next_start" not in rest


def test_long_texts_and_many_characters_are_cut_but_never_to_nothing(graph: Graph) -> None:
    graph.load(
        [{"type": "Person", "data": {"slug": f"p{at:03}", "name": "n" * 5_000}} for at in range(100)], mode="merge"
    )
    found = answer(session_of(graph), "graph_query", query=PEOPLE, limit=1_000)

    assert 10 < len(found["rows"]) < 102
    assert len(json.dumps(found["rows"])) < 25_000
    assert found["rows"][-1][1].endswith("(4,500 more characters)")
    assert found["next_start"] == len(found["rows"])


def test_words_find_nodes_of_all_types_best_first(graph: Graph) -> None:
    [found] = answer(session_of(graph), "graph_search", text="arbor")["found"]
    assert (found["type"], found["id"], found["property"]) == ("Person", "ann", "name")
    failed, members, _ = call(session_of(graph), "graph_search", text="arbor", types=["Persn"])
    assert failed
    assert members["hint"] == "did you mean `Person`?"


def test_an_entity_comes_with_its_neighbours(graph: Graph) -> None:
    found = answer(session_of(graph), "entity_get", type="Person", id="ann")
    assert found["properties"] == {"slug": "ann", "name": "Ann Arbor", "age": 40}
    assert found["edges"] == [{"edge": "Knows", "direction": "out", "type": "Person", "count": 1, "first": ["bob"]}]
    failed, members, _ = call(session_of(graph), "entity_get", type="Person", id="zed")
    assert failed
    assert "zed" in members["error"]
    assert call(session_of(graph), "entity_get", type="Thing", id="zed")[0]


def test_the_schema_fits_the_tokens_that_are_given(tmp_path: Path) -> None:
    def properties(name: str, count: int) -> str:
        return "\n".join(f"    {name}_property_{at}: String?" for at in range(count))

    nodes = [f"node Kind{at} {{\n    slug: String @key\n{properties('a', 12)}\n}}" for at in range(17)]
    edges = [f"edge Links{at}: Kind{at % 17} -> Kind{(at + 1) % 17} {{\n{properties('b', 2)}\n}}" for at in range(67)]
    with omnigraph.init(tmp_path / "large", "\n".join([*nodes, *edges])) as large:
        session = session_of(large)
        found = answer(session, "schema_describe")
        assert found["detail"] == "names"
        assert len(found["schema"]) <= 2_000 * 3.3
        assert answer(session, "schema_describe", max_tokens=20_000)["detail"] == "full"
        some = answer(session, "schema_describe", types=["Kind1", "Links3"])
        assert some["detail"] == "typed"
        assert some["schema"].startswith("node Kind1 key(slug): a_property_0 String?")
        cut = answer(session, "schema_describe", max_tokens=100)
        assert cut["truncated"]
        assert cut["left_out"] > 70


def test_the_description_of_a_type_reaches_the_model(graph: Graph) -> None:
    assert "# Someone we know" in answer(session_of(graph), "schema_describe", detail="typed")["schema"]


# Errors --------------------------------------------------------------------------------------------


def test_an_error_says_where_it_is_and_what_to_do(graph: Graph) -> None:
    failed, members, text = call(
        session_of(graph), "graph_query", query="query q() { match { $p: Persn } return { $p.name } }"
    )
    assert failed
    assert "^^^^^" in text
    assert members["hint"] == "did you mean `Person`?"
    assert members["diagnostics"][0]["column"] == 25
    assert members["retryable"] is False


@pytest.mark.parametrize(
    "name, arguments, says",
    [
        ("graph_query", {"quer": "x"}, "the arguments of graph_query are: branch, snapshot, query"),
        ("graph_query", {"query": PEOPLE, "limit": 5_000}, "limit"),
        ("graph_query", {"query": PEOPLE, "branch": "main", "snapshot": "main"}, "exclude each other"),
        ("graph_query", {"query": PEOPLE, "branch": "mian"}, "main"),
        ("graph_load", {"ndjson": '{"type": "Person"}\nnonsense'}, "line 2 of ndjson"),
        ("propose", {"title": "x"}, "either `query` or `ndjson`"),
        ("propose", {"title": "!!", "query": ADD}, "title in words"),
        ("schema_describe", {"detail": "all"}, "names"),
        ("grph_query", {}, "did you mean `graph_query`"),
    ],
)
def test_bad_arguments_are_refused_in_words_and_change_nothing(
    graph: Graph, name: str, arguments: dict[str, Any], says: str
) -> None:
    failed, _, text = call(session_of(graph), name, **arguments)
    assert failed
    assert says in text
    assert graph.branches() == ["main"]
    assert len(graph.commits()) == 2


def test_a_failure_that_is_no_error_of_ours_is_reported_without_its_inside(
    graph: Graph, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_: GraphAPI, __: Mapping[str, Any], ___: str, ____: str | None) -> Result:
        raise RuntimeError("secret")

    session = session_of(graph, stored=[StoredTool("broken", "broken", is_mutation=False, params=(), run=broken)])
    failed, members, text = call(session, "broken")
    assert failed
    assert members["code"] == "server_failed"
    assert "secret" not in text
    assert "the tool broken failed" in caplog.text


# Changing ------------------------------------------------------------------------------------------


def test_a_proposal_goes_to_a_branch_of_its_own_and_is_continued_by_its_title(graph: Graph) -> None:
    session, head = session_of(graph), graph.commits()[0]
    made = answer(session, "propose", title="Add Cy!", query=ADD, params={"slug": "cy", "name": "Cy"})
    assert (made["branch"], made["into"]) == ("agent/eve/add-cy", "main")
    assert made["counts"] == {"node:Person": {"insert": 1}}

    lines = '{"type": "Person", "data": {"slug": "dee", "name": "Dee"}}'
    again = answer(session, "propose", title="add cy", ndjson=lines)
    assert again["counts"] == {"node:Person": {"insert": 2}}
    assert graph.commits()[0] == head
    assert graph.commits("agent/eve/add-cy")[0].actor_id == "eve"

    preview = answer(session, "merge_preview", source=made["branch"])
    assert preview["changes"]["node:Person"]["inserted"] == 2
    difference = answer(session, "branch_diff", **{"from": "main", "to": made["branch"]}, limit=1)
    assert (len(difference["changes"]), difference["truncated"]) == (1, True)


def test_a_session_with_a_branch_of_its_own_reads_its_changes_back(graph: Graph) -> None:
    session = session_of(graph, own="agent/eve/1")
    assert len(answer(session, "graph_query", query=PEOPLE)["rows"]) == 2
    assert graph.branches() == ["main"]  # reading creates nothing

    done = answer(session, "graph_mutate", query=ADD, params={"slug": "cy", "name": "Cy"})
    assert done["branch"] == "agent/eve/1"
    assert len(answer(session, "graph_query", query=PEOPLE)["rows"]) == 3
    assert len(graph.query(PEOPLE).rows) == 2


def test_two_agents_work_on_two_branches_and_a_person_merges_one(graph: Graph) -> None:
    def agent(name: str, **more: Any) -> Session:
        principal = Principal(name, Role.WRITE)
        return Session(graph.acting_as(principal), Caller.of(principal), name, **more)

    for name in ("ann", "ben"):
        answer(
            agent(name), "propose", title="more", query=ADD, params={"slug": f"{name}s", "name": f"Friend of {name}"}
        )
    assert call(agent("ann"), "branch_merge", source="agent/ann/more")[0]
    opened = answer(agent("ann"), "merge_request_open", source="agent/ann/more", title="A friend of Ann")
    [listed_there] = answer(agent("zoe"), "merge_request_list", state="open")["requests"]
    assert listed_there["request_id"] == opened["request_id"]
    assert graph.commits("agent/ann/more")[0].message == "more"

    merged = answer(agent("zoe", allow_merge=True), "branch_merge", source="agent/ann/more")
    assert merged["outcome"] in ("merged", "fast_forward")
    assert [row["p.slug"] for row in graph.query(PEOPLE)] == ["ann", "anns", "bob"]


# Stored queries ------------------------------------------------------------------------------------


def stored(count: int, *, is_mutation: bool = False) -> list[StoredTool]:
    def run(graph: GraphAPI, params: Mapping[str, Any], branch: str, _: str | None) -> Any:
        if is_mutation:
            return graph.mutate(ADD, params, branch=branch)
        return graph.query(PEOPLE, branch=branch)

    params = [{"name": "slug", "kind": "string", "nullable": False}]
    about = "All people."
    return [StoredTool(f"people{at}", f"tool{at}", is_mutation, params, run, about) for at in range(count)]


def test_few_stored_queries_are_tools_and_many_are_run_by_name(graph: Graph) -> None:
    few, many = session_of(graph, stored=stored(2)), session_of(graph, stored=stored(MANY_STORED))
    assert {"tool0", "tool1"} <= listed(few)
    assert answer(few, "tool0")["row_count"] == 2
    assert not any(name.startswith("tool") for name in listed(many))
    assert len(answer(many, "stored_query_list")["queries"]) == MANY_STORED
    assert answer(many, "stored_query_run", name="people3")["row_count"] == 2
    failed, members, _ = call(many, "stored_query_run", name="peopel3")
    assert failed
    assert members["code"] == "stored_query_not_found"


def test_a_stored_mutation_needs_the_permission_to_change_and_looks_unknown_without_it(graph: Graph) -> None:
    writer = session_of(graph, stored=stored(1, is_mutation=True))
    reader = session_of(graph, Role.READ, stored=stored(1, is_mutation=True))
    assert answer(writer, "tool0", params={"slug": "cy", "name": "Cy"})["affected_nodes"] == 1
    unknown, refused = call(reader, "tool1")[2], call(reader, "tool0")[2]
    assert refused.replace("tool0", "tool1") == unknown


# Resources and prompts -----------------------------------------------------------------------------


def test_schema_and_branches_are_resources_and_prompts_take_their_argument(graph: Graph) -> None:
    async def use(client: Client) -> None:
        assert {one.uri for one in (await client.list_resources()).resources} == {
            "omnigraph://schema",
            "omnigraph://branches",
        }
        [schema] = (await client.read_resource("omnigraph://schema")).contents
        assert schema.text == SCHEMA  # type: ignore[union-attr]
        [branches] = (await client.read_resource("omnigraph://branches")).contents
        assert json.loads(branches.text) == ["main"]  # type: ignore[union-attr]
        with pytest.raises(MCPError, match="no resource"):
            await client.read_resource("omnigraph://other")
        assert [one.name for one in (await client.list_prompts()).prompts] == [
            "explore",
            "write_query",
            "review_branch",
        ]
        prompt = await client.get_prompt("review_branch", {"branch": "{x}"})
        assert "branch {x}:" in prompt.messages[0].content.text  # type: ignore[union-attr]
        with pytest.raises(MCPError, match="branch is missing"):
            await client.get_prompt("review_branch", {})

    using(session_of(graph), use)


def test_every_tool_has_a_description_and_says_truly_whether_it_reads() -> None:
    for name, one in TOOLS.items():
        assert len(one.description) > 10, name
        assert one.reads is (one.action in {Action.READ, Action.EXPORT}), name
