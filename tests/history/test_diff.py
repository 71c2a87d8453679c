"""A diff tells exactly what turns one state of a graph into another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import omnigraph
from omnigraph.api.changes import Change
from omnigraph.errors import (
    BranchNotFoundError,
    ChangeRequestError,
    CommitNotFoundError,
    HistoryReclaimedError,
    RefNameError,
)
from omnigraph.graph import Graph

SCHEMA = """
node Person { name: String @key  age: I32?  tags: [String]?  seen: DateTime?  photo: Blob? }
node City { name: String @key }
edge Knows: Person -> Person { since: Date? }
"""
SEED = """query seed() {
  insert Person { name: "Ann", age: 30 } insert Person { name: "Bob", age: 25 } insert Person { name: "Cleo" }
  insert Knows { from: "Ann", to: "Bob" }
}"""


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    made = omnigraph.init(tmp_path / "g", SCHEMA)
    made.mutate(SEED)
    return made


def run(graph: Graph, statement: str, **more: Any) -> str:
    done = graph.mutate(f"query change() {{ {statement} }}", **more)
    assert done.commit
    return done.commit.commit_id


def head(graph: Graph, branch: str = "main") -> str:
    return graph.commits(branch)[0].commit_id


def told(changes: Any) -> list[tuple[str, str, str]]:
    return [(change.operation, change.type_name, change.id) for change in changes]


def only(changes: Any) -> Change:
    (found,) = changes
    assert isinstance(found, Change)
    return found


def test_an_inserted_node_is_told_with_all_its_properties(graph: Graph) -> None:
    before = head(graph)
    run(graph, 'insert Person { name: "Dan", age: 4, tags: ["a"], seen: datetime("2024-05-01T10:00:00Z") }')

    change = only(graph.diff(before, "main"))

    assert (change.operation, change.kind, change.type_name, change.id) == ("insert", "node", "Person", "Dan")
    assert change.before is None
    assert change.endpoints is None
    assert change.after == {"age": 4, "name": "Dan", "photo": None, "seen": "2024-05-01T10:00:00.000Z", "tags": ["a"]}


def test_an_update_names_the_changed_properties_with_their_values_before_and_after(graph: Graph) -> None:
    before = head(graph)
    run(graph, 'update Person set { age: 31 } where name = "Ann"')

    change = only(graph.diff(before, "main"))

    assert (change.operation, change.id, change.changed) == ("update", "Ann", ("age",))
    assert change.before is not None
    assert change.after is not None
    assert (change.before["age"], change.after["age"]) == (30, 31)
    assert {**change.before, "age": 31} == change.after


def test_the_same_value_written_again_is_no_change(graph: Graph) -> None:
    before = head(graph)
    after = run(graph, 'update Person set { age: 30 } where name = "Ann"')

    assert graph.snapshot().entries["node:Person"].table.version > 2
    assert list(graph.diff(before, after)) == []


def test_null_and_an_empty_list_are_two_values(graph: Graph) -> None:
    before = head(graph)
    run(graph, 'update Person set { tags: [] } where name = "Ann"')

    change = only(graph.diff(before, "main"))

    assert change.before is not None
    assert change.after is not None
    assert (change.changed, change.before["tags"], change.after["tags"]) == (("tags",), None, [])


def test_edges_that_a_deleted_node_takes_along_are_told_with_their_ends(graph: Graph) -> None:
    before = head(graph)
    run(graph, 'delete Person where name = "Bob"')

    node, edge = graph.diff(before, "main")

    assert (node.operation, node.kind, node.id) == ("delete", "node", "Bob")
    assert (edge.operation, edge.kind, edge.endpoints) == ("delete", "edge", ("Ann", "Bob"))
    assert edge.before == {"since": None}
    assert edge.after is None


def test_nodes_come_before_edges_and_ids_in_order(graph: Graph) -> None:
    before = head(graph)
    graph.mutate(
        """query change() {
        insert Person { name: "Abe" } insert City { name: "Rome" } insert Knows { from: "Abe", to: "Bob" }
        update Person set { age: 1 } where name = "Bob" }"""
    )
    run(graph, 'delete Person where name = "Cleo"')

    assert told(graph.diff(before, "main"))[:-1] == [
        ("insert", "City", "Rome"),
        ("insert", "Person", "Abe"),
        ("update", "Person", "Bob"),
        ("delete", "Person", "Cleo"),
    ]
    assert [change.kind for change in graph.diff(before, "main")][-1] == "edge"


def test_a_diff_backwards_is_the_inverse(graph: Graph) -> None:
    before = head(graph)
    run(graph, 'insert Person { name: "Dan" }')
    run(graph, 'delete Person where name = "Cleo"')
    run(graph, 'update Person set { age: 1 } where name = "Bob"')

    there, back = list(graph.diff(before, "main")), list(graph.diff("main", before))

    inverse = {"insert": "delete", "delete": "insert", "update": "update"}
    assert [(inverse[change.operation], change.id, change.after, change.before) for change in there] == [
        (change.operation, change.id, change.before, change.after) for change in back
    ]


def test_a_compaction_is_no_change(graph: Graph) -> None:
    for number in range(6):
        run(graph, f'insert Person {{ name: "p{number}" }}')
    before = head(graph)
    version = graph.snapshot().entries["node:Person"].table.version

    graph.optimize()

    assert graph.snapshot().entries["node:Person"].table.version > version
    assert list(graph.diff(before, "main")) == []
    run(graph, 'update Person set { age: 1 } where name = "p3"')
    found = graph.diff(before, "main")
    assert told(found) == [("update", "Person", "p3")]
    assert found.stats().compared == ()


@pytest.mark.parametrize(
    "options, expected",
    [
        ({"kinds": ["edge"]}, ["Knows"]),
        ({"kinds": ["node"]}, ["City", "Person", "Person"]),
        ({"types": ["Person", "Knows"]}, ["Person", "Person", "Knows"]),
        ({"operations": ["delete"]}, ["Person", "Knows"]),
        ({"operations": ["insert", "update"], "kinds": ["node"]}, ["City", "Person"]),
        ({"types": []}, []),
    ],
)
def test_a_diff_tells_what_was_asked_for(graph: Graph, options: dict[str, Any], expected: list[str]) -> None:
    before = head(graph)
    run(graph, 'insert City { name: "Rome" } update Person set { age: 1 } where name = "Bob"')
    run(graph, 'delete Person where name = "Ann"')

    assert [change.type_name for change in graph.diff(before, "main", **options)] == expected


@pytest.mark.parametrize(
    "options, option", [({"kinds": ["row"]}, "kind"), ({"types": ["Persn"]}, "type"), ({"operations": ["merge"]}, "op")]
)
def test_what_does_not_exist_cannot_be_asked_for(graph: Graph, options: dict[str, Any], option: str) -> None:
    with pytest.raises(ChangeRequestError) as caught:
        graph.diff("main", "main", **options)

    assert caught.value.option == option
    assert caught.value.hint


def test_stats_count_by_type_and_operation(graph: Graph) -> None:
    before = head(graph)
    run(graph, 'insert City { name: "Rome" } update Person set { age: 1 } where name = "Bob"')
    run(graph, 'delete Person where name = "Ann"')

    stats = graph.diff(before, "main").stats()

    assert stats.counts == {
        "node:City": {"insert": 1},
        "node:Person": {"update": 1, "delete": 1},
        "edge:Knows": {"delete": 1},
    }
    assert stats.total == 4


def test_a_diff_as_a_table_has_one_row_for_each_change(graph: Graph) -> None:
    before = head(graph)
    run(graph, 'delete Person where name = "Bob"')

    table = graph.diff(before, "main").to_arrow()

    assert table.select(["op", "kind", "type", "src"]).to_pylist() == [
        {"op": "delete", "kind": "node", "type": "Person", "src": None},
        {"op": "delete", "kind": "edge", "type": "Knows", "src": "Ann"},
    ]
    assert json.loads(table["before"][0].as_py())["age"] == 25
    assert graph.diff("main", "main").to_arrow().num_rows == 0


def test_a_blob_is_compared_by_its_bytes_and_written_as_text(graph: Graph) -> None:
    before = head(graph)
    graph.mutate(
        'query photo($p: Blob) { update Person set { photo: $p } where name = "Ann" }', params={"p": "base64:AQI="}
    )

    change = only(graph.diff(before, "main"))

    assert change.after is not None
    assert change.after["photo"] == b"\x01\x02"
    assert change.to_dict()["after"]["photo"] == "base64:AQI="


def test_states_are_named_by_branch_commit_and_version(graph: Graph) -> None:
    first = head(graph)
    version = graph.snapshot().manifest_version
    run(graph, 'insert City { name: "Rome" }')

    for name in (first, f"main@{first}", f"main@{version}"):
        assert told(graph.diff(name, "main")) == [("insert", "City", "Rome")], name


@pytest.mark.parametrize("name", ["nowhere", "main@nowhere", "main@999", "main@0"])
def test_a_state_that_does_not_exist_is_named_in_the_error(graph: Graph, name: str) -> None:
    with pytest.raises(CommitNotFoundError, match=f"'{name.rpartition('@')[2]}'"):
        graph.diff(name, "main")


@pytest.mark.parametrize("name", ["", "  ", "a b"])
def test_what_cannot_be_a_name_is_refused(graph: Graph, name: str) -> None:
    with pytest.raises(RefNameError):
        graph.diff(name, "main")


def test_a_branch_that_does_not_exist_is_named_in_the_error(graph: Graph) -> None:
    with pytest.raises(BranchNotFoundError, match="side"):
        graph.diff("side@1", "main")


def test_a_state_that_was_cleaned_up_is_named_in_the_error(graph: Graph) -> None:
    before = head(graph)
    run(graph, 'update Person set { age: 1 } where name = "Bob"')
    table = graph.snapshot().entries["node:Person"].table
    graph._store.tables.head(table.path, None).cleanup_old_versions(retain_versions=1, delete_unverified=True)

    with pytest.raises(HistoryReclaimedError) as caught:
        omnigraph.open(graph.uri).diff(before, "main")

    assert caught.value.commit_id == before


# Branches


def test_a_branch_differs_by_what_was_written_on_it_and_on_its_base(graph: Graph) -> None:
    graph.create_branch("side")
    assert list(graph.diff("main", "side")) == []
    run(graph, 'insert Person { name: "Dan" } update Person set { age: 26 } where name = "Bob"', branch="side")
    run(graph, 'update Person set { age: 27 } where name = "Bob"')
    run(graph, 'delete Person where name = "Cleo"')

    found = graph.diff("main", "side")

    assert told(found) == [("update", "Person", "Bob"), ("insert", "Person", "Cleo"), ("insert", "Person", "Dan")]
    assert found.stats().compared == ()
    bob = next(iter(found))
    assert bob.before is not None
    assert bob.after is not None
    assert (bob.before["age"], bob.after["age"]) == (27, 26)


def test_the_same_change_on_two_branches_is_no_difference(graph: Graph) -> None:
    graph.create_branch("side")
    for branch in ("main", "side"):
        run(
            graph,
            'insert Person { name: "Dan", age: 1 } update Person set { age: 9 } where name = "Ann"',
            branch=branch,
        )

    assert list(graph.diff("main", "side")) == []


def test_a_merge_is_told_against_either_of_its_parents(graph: Graph) -> None:
    graph.create_branch("side")
    theirs = run(graph, 'insert Person { name: "Dan" }', branch="side")
    ours = run(graph, 'insert City { name: "Rome" }')
    graph.merge("side")

    assert told(graph.diff(ours, "main")) == [("insert", "Person", "Dan")]
    assert told(graph.diff(theirs, "main")) == [("insert", "City", "Rome")]
    assert list(graph.diff("main", "side", types=["Person"])) == []


def test_a_commit_of_another_branch_and_a_tag_are_found(graph: Graph) -> None:
    graph.create_branch("side")
    graph.create_tag("v1")
    commit = run(graph, 'insert Person { name: "Dan" }', branch="side")

    assert told(graph.diff("v1", commit)) == told(graph.diff("main", f"side@{commit}")) == [("insert", "Person", "Dan")]


def test_branches_compacted_apart_differ_by_what_was_written(graph: Graph) -> None:
    for number in range(4):
        run(graph, f'insert Person {{ name: "p{number}" }}')
    graph.create_branch("side")
    run(graph, 'update Person set { age: 1 } where name = "p1"', branch="side")
    run(graph, 'update Person set { age: 2 } where name = "p2"')
    graph.optimize()

    found = graph.diff("main", "side")

    assert told(found) == [("update", "Person", "p1"), ("update", "Person", "p2")]
    assert found.stats().compared == ()
