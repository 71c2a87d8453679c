"""What a merge brings, what it refuses and with which conflicts, and who wins where it is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lance
import pytest

import omnigraph
from omnigraph.api.results import ChangeCounts, MergeOutcome
from omnigraph.commit import failpoints
from omnigraph.commit.publish import begin, publish
from omnigraph.commit.store import Store
from omnigraph.core.location import Location
from omnigraph.errors import BranchNotFoundError, MergeConflictError, MergeError, ResolutionError
from omnigraph.graph import Graph
from omnigraph.storage import observe
from tests.history.people import acquaintances, ages, conflicts, files, head, new_graph, records, refused, rows, run
from tests.support.faults import CrashError, at_arrival, crash
from tests.support.graphs import plan, upsert

EVE = 'insert Person { name: "Eve", age: 22 }'
OLDER = 'update Person set { age: 31 } where name = "Alice"'
OLDEST = 'update Person set { age: 32 } where name = "Alice"'
WITHOUT_ALICE = 'delete Person where name = "Alice"'


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    made = new_graph(tmp_path)
    made.create_branch("feature")
    return made


# The seven kinds of conflict


@dataclass(frozen=True, slots=True)
class Case:
    """Two sides of a merge on a schema of their own, and the conflicts: kind, table and id. None is a clean merge."""

    name: str
    schema: str
    seed: str
    feature: str
    main: str
    conflicts: tuple[tuple[str, str, str | None], ...] = ()


PERSON = "node Person { name: String @key  age: I32? }"
SOMEBODY = 'insert Person { name: "a", age: 1 }'
MAIL = "node User { name: String @key  mail: String? @unique  first: String?  last: String?  @unique(first, last) }"
OWNS = "node P { name: String @key } node C { name: String @key } edge Owns: P -> C @card(0..2)"
OWNERS = 'insert P { name: "p" } insert C { name: "1" } insert C { name: "2" } insert C { name: "3" }'
KEPT = "node P { name: String @key } node C { name: String @key } edge Has: P -> C @card(1..)"

CASES = [
    Case(
        "one id is inserted with two values",
        PERSON,
        "",
        'insert Person { name: "x", age: 1 }',
        'insert Person { name: "x", age: 2 }',
        (("divergent_insert", "node:Person", "x"),),
    ),
    Case(
        "one id is inserted, and an empty value differs from another",
        "node Note { name: String @key  text: String? }",
        "",
        'insert Note { name: "x", text: "" }',
        'insert Note { name: "x", text: " " }',
        (("divergent_insert", "node:Note", "x"),),
    ),
    Case(
        "one id is inserted, with a value and without",
        "node Note { name: String @key  text: String? }",
        "",
        'insert Note { name: "x", text: "" }',
        'insert Note { name: "x" }',
        (),
    ),
    Case(
        "one entity gets two values",
        PERSON,
        SOMEBODY,
        'update Person set { age: 2 } where name = "a"',
        'update Person set { age: 3 } where name = "a"',
        (("divergent_update", "node:Person", "a"),),
    ),
    Case(
        "one entity gets two values in two properties",
        "node Pair { name: String @key  one: I32?  two: I32? }",
        'insert Pair { name: "a" }',
        'update Pair set { one: 1 } where name = "a"',
        'update Pair set { two: 2 } where name = "a"',
        (),
    ),
    Case(
        "one entity is deleted here and changed there",
        PERSON,
        SOMEBODY,
        'delete Person where name = "a"',
        'update Person set { age: 3 } where name = "a"',
        (("delete_vs_update", "node:Person", "a"),),
    ),
    Case(
        "one entity is changed here and deleted there",
        PERSON,
        SOMEBODY,
        'update Person set { age: 3 } where name = "a"',
        'delete Person where name = "a"',
        (("delete_vs_update", "node:Person", "a"),),
    ),
    Case(
        "a value is taken twice",
        MAIL,
        "",
        'insert User { name: "a", mail: "m" }',
        'insert User { name: "b", mail: "m" }',
        (("unique_violation", "node:User", "a"),),
    ),
    Case(
        "a pair of values is taken twice",
        MAIL,
        "",
        'insert User { name: "a", first: "x", last: "y" }',
        'insert User { name: "b", first: "x", last: "y" }',
        (("unique_violation", "node:User", "a"),),
    ),
    Case(
        "pairs that share only one value are two",
        MAIL,
        "",
        'insert User { name: "a", first: "x", last: "y" }',
        'insert User { name: "b", first: "x", last: "z" }',
    ),
    Case(
        "a value is taken by a change here and an insert there",
        MAIL,
        'insert User { name: "a", mail: "m" }',
        'update User set { mail: "n" } where name = "a"',
        'insert User { name: "b", mail: "n" }',
        (("unique_violation", "node:User", "a"),),
    ),
    Case(
        "more edges than may be",
        OWNS,
        OWNERS + 'insert Owns { from: "p", to: "1" }',
        'insert Owns { from: "p", to: "2" }',
        'insert Owns { from: "p", to: "3" }',
        (("cardinality_violation", "edge:Owns", "p"),),
    ),
    Case(
        "as many edges as may be",
        OWNS,
        OWNERS,
        'insert Owns { from: "p", to: "2" }',
        'insert Owns { from: "p", to: "3" }',
    ),
    Case(
        "fewer edges than must be",
        KEPT,
        'insert P { name: "p" } insert C { name: "1" } insert C { name: "2" }'
        'insert Has { from: "p", to: "1" } insert Has { from: "p", to: "2" }',
        'delete Has where to = "1"',
        'delete Has where to = "2"',
        (("cardinality_violation", "edge:Has", "p"),),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_merge_is_clean_or_refused_as_the_case_says(case: Case, tmp_path: Path) -> None:
    graph = new_graph(tmp_path, case.schema, case.seed)
    graph.create_branch("feature")
    run(graph, case.feature, "feature")
    run(graph, case.main)

    if case.conflicts:
        assert conflicts(graph, "feature") == list(case.conflicts)
    else:
        assert graph.merge("feature").outcome is MergeOutcome.MERGED
        graph.merge("main", "feature")
        assert rows(graph) == rows(graph, "feature")


def test_an_edge_whose_node_the_other_side_deletes_is_an_orphan_on_whichever_side(graph: Graph) -> None:
    run(graph, 'insert Knows { from: "Alice", to: "Dan" }', "feature")
    run(graph, WITHOUT_ALICE)

    [(kind, table, edge)] = conflicts(graph, "feature")
    [(back_kind, back_table, back_edge)] = conflicts(graph, "main", "feature")

    assert (kind, table) == (back_kind, back_table) == ("orphan_edge", "edge:Knows")
    assert edge == back_edge


def test_a_table_that_is_taken_over_as_it_is_is_judged_too(graph: Graph) -> None:
    """Main has an edge to a node that the branch deletes; the branch has touched no edge, so it would take main's."""
    run(graph, 'insert Knows { from: "Dan", to: "Alice" }')
    run(graph, WITHOUT_ALICE, "feature")

    [(kind, table, _)] = conflicts(graph, "main", "feature")

    assert (kind, table) == ("orphan_edge", "edge:Knows")


def test_a_value_that_the_schema_does_not_allow_is_refused_though_no_write_of_ours_made_it(tmp_path: Path) -> None:
    """What a branch holds is judged when it would come to another, however it came there."""
    graph = new_graph(
        tmp_path, "node P { name: String @key  age: I32?  @range(age, 0..100) }", 'insert P { name: "a" }'
    )
    graph.create_branch("feature")
    run(graph, 'insert P { name: "b", age: 1 }', "feature")
    store = Store.at(Location.parse(graph.uri))
    txn = begin(store, "feature")
    publish(store, plan(txn, upsert(store, txn, "node:P", [{"id": "b", "name": "b", "age": 1000}])))
    run(graph, 'insert P { name: "c" }')

    assert conflicts(graph, "feature") == [("value_constraint_violation", "node:P", "b")]


def test_all_conflicts_of_all_types_are_told_at_once_and_rules_only_when_rows_agree(graph: Graph) -> None:
    run(graph, 'insert Knows { from: "Alice", to: "Dan" }', "feature")
    run(graph, EVE, "feature")
    run(graph, 'update Person set { age: 1 } where name = "Bob"', "feature")
    run(graph, WITHOUT_ALICE)
    run(graph, 'insert Person { name: "Eve", age: 2 }')
    run(graph, 'update Person set { age: 2 } where name = "Bob"')

    found = conflicts(graph, "feature")
    assert sorted(found) == [
        ("divergent_insert", "node:Person", "Eve"),
        ("divergent_update", "node:Person", "Bob"),
    ]

    [(kind, _, _)] = conflicts(graph, "feature", resolve="ours")
    assert kind == "orphan_edge"


def test_a_refusal_says_what_clashes_and_what_to_do(graph: Graph) -> None:
    run(graph, OLDER, "feature")
    run(graph, OLDEST)

    with pytest.raises(MergeConflictError) as caught:
        graph.merge("feature")

    error = caught.value
    assert (error.code, error.http_status) == ("merge_conflict", 409)
    assert str(error).splitlines()[1] == (
        "  divergent_update: Person 'Alice' was changed differently on both sides: age"
    )
    assert error.details()["merge_conflicts"] == [
        {
            "kind": "divergent_update",
            "table_key": "node:Person",
            "row_id": "Alice",
            "entity_kind": "node",
            "type_name": "Person",
            "entity_id": "Alice",
            "message": "Person 'Alice' was changed differently on both sides: age",
            "properties": {"age": {"base": 30, "ours": 32, "theirs": 31}},
        }
    ]


# Values

THINGS = """
node Thing {
    name: String @key
    text: String?
    flag: Bool?
    size: F64?
    day: Date?
    at: DateTime?
    tags: [String]?
    counts: [I64]?
    face: Vector(2)?
    photo: Blob?
    kind: enum(a, b)?
}
"""
CHANGES: list[tuple[str, Any, Any]] = [
    ("text", None, ""),
    ("text", "", None),
    ("text", "a", "a "),
    ("text", "é", "e\u0301"),
    ("flag", None, False),
    ("size", 0.0, -0.0),
    ("size", 1.0, 1.0000000000000002),
    ("size", None, 0.0),
    ("day", "2024-01-01", "2024-01-02"),
    ("at", "2024-01-01T00:00:00Z", "2024-01-01T00:00:00.001Z"),
    ("tags", None, []),
    ("tags", [], [""]),
    ("tags", ["a", "b"], ["b", "a"]),
    ("tags", ["a", "b"], ["ab"]),
    ("counts", [1, 2], [1, 2, 3]),
    ("face", [0.0, 1.0], [-0.0, 1.0]),
    ("face", None, [0.0, 0.0]),
    ("photo", None, "base64:"),
    ("photo", "base64:AAAA", "base64:AAAB"),
    ("kind", "a", "b"),
]


def _things(folder: Path) -> Graph:
    """A thing for each change, as it is before."""
    graph = new_graph(folder, THINGS, "")
    _put(graph, "main", {f"{at}-{name}": {name: before} for at, (name, before, _) in enumerate(CHANGES)})
    graph.create_branch("feature")
    graph.create_branch("same")
    return graph


def _put(graph: Graph, branch: str, things: dict[str, dict[str, Any]]) -> None:
    data = [{"type": "Thing", "data": {"name": name, **values}} for name, values in things.items()]
    graph.load(data, mode="merge", branch=branch)


def _after() -> dict[str, dict[str, Any]]:
    return {f"{at}-{name}": {name: after} for at, (name, _, after) in enumerate(CHANGES)}


def test_every_change_of_a_value_is_a_change_and_is_brought(tmp_path: Path) -> None:
    graph = _things(tmp_path)
    _put(graph, "feature", _after())
    _put(graph, "main", {"another": {}})
    expected = {row["data"]["name"]: row for row in rows(graph, "feature")}

    done = graph.merge("feature")

    assert done.changes == {"node:Thing": ChangeCounts(0, len(CHANGES), 0)}
    found = {row["data"]["name"]: row for row in rows(graph)}
    assert found.pop("another")
    assert list(map(repr, found.values())) == list(map(repr, expected.values()))  # repr tells -0.0 from 0.0


def test_the_same_change_on_both_sides_is_no_conflict_and_brings_nothing(tmp_path: Path) -> None:
    graph = _things(tmp_path)
    for branch in ("feature", "main"):
        _put(graph, branch, _after())

    done = graph.merge("feature")

    assert (done.outcome, done.changes) == (MergeOutcome.MERGED, {})
    assert done.commit
    assert done.commit.merged_parent_id == head(graph, "feature")


def test_a_value_that_is_written_again_is_no_change(tmp_path: Path) -> None:
    graph = _things(tmp_path)
    _put(graph, "feature", {f"{at}-{name}": {name: before} for at, (name, before, _) in enumerate(CHANGES)})
    _put(graph, "main", _after())
    expected = rows(graph)

    done = graph.merge("feature")

    assert (done.outcome, done.changes) == (MergeOutcome.MERGED, {})
    assert rows(graph) == expected


def test_a_change_that_differs_however_little_from_the_other_sides_is_a_conflict(tmp_path: Path) -> None:
    graph = _things(tmp_path)
    _put(graph, "feature", _after())
    _put(graph, "main", {f"{at}-{name}": {name: None, "flag": True} for at, (name, _, _) in enumerate(CHANGES)})

    found = conflicts(graph, "feature", by="entity")

    assert len(found) == len(CHANGES)
    assert {kind for kind, _, _ in found} == {"divergent_update"}


# Who wins


@pytest.fixture
def clashing(graph: Graph) -> Graph:
    """A conflict of each kind that a side can win: of Alice, Bob, Carol and Eve. Dan is changed on the branch only."""
    run(graph, 'update Person set { age: 1 } where name = "Alice"', "feature")
    run(graph, 'delete Person where name = "Dan"', "feature")
    run(graph, 'update Person set { age: 1 } where name = "Carol"', "feature")
    run(graph, EVE, "feature")
    run(graph, 'update Person set { age: 2 } where name = "Alice"')
    run(graph, 'update Person set { age: 2 } where name = "Dan"')
    run(graph, 'insert Person { name: "Eve", age: 2 }')
    run(graph, 'insert Person { name: "Fay", age: 2 }')
    return graph


OURS = {"Alice": 2, "Bob": 25, "Carol": 1, "Dan": 2, "Eve": 2, "Fay": 2}
THEIRS = {"Alice": 1, "Bob": 25, "Carol": 1, "Eve": 22, "Fay": 2}
RESOLUTIONS: list[tuple[Any, dict[str, int], dict[str, Any]]] = [
    ("ours", OURS, {"default": "ours"}),
    ("theirs", THEIRS, {"default": "theirs"}),
    ({"Person": "theirs"}, THEIRS, {"types": {"Person": "theirs"}}),
    ({"node:Person": "ours"}, OURS, {"types": {"node:Person": "ours"}}),
    ({"*": "theirs", "Person": "ours"}, OURS, {"default": "theirs", "types": {"Person": "ours"}}),
    (
        [{"table_key": "node:Person", "row_id": name, "take": "theirs"} for name in ("Alice", "Dan", "Eve")],
        THEIRS,
        {
            "entities": [
                {"table_key": "node:Person", "row_id": name, "take": "theirs"} for name in ("Alice", "Dan", "Eve")
            ]
        },
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize("resolve, expected, recorded", RESOLUTIONS)
def test_the_side_that_is_chosen_wins_and_the_commit_says_so(
    clashing: Graph, resolve: Any, expected: dict[str, int], recorded: dict[str, Any]
) -> None:
    previewed = clashing.merge("feature", dry_run=True, resolve=resolve)

    done = clashing.merge("feature", resolve=resolve)

    assert ages(clashing) == expected
    assert done.commit
    assert done.commit.details == {"resolution": recorded}
    assert omnigraph.open(clashing.uri).commit(done.commit.commit_id).details == done.commit.details
    assert (previewed.changes, previewed.conflicts) == (done.changes, ())
    assert clashing.merge("feature").outcome is MergeOutcome.ALREADY_UP_TO_DATE


def test_the_conflicts_that_are_told_can_be_given_back_with_a_side_each(clashing: Graph) -> None:
    told = [conflict.to_dict() for conflict in clashing.merge("feature", dry_run=True).conflicts]
    sides = {"Alice": "theirs", "Dan": "ours", "Eve": "theirs"}

    clashing.merge("feature", resolve=[{**one, "take": sides[one["row_id"]]} for one in told])

    assert ages(clashing) == {**OURS, "Alice": 1, "Eve": 22}


def test_what_no_side_is_chosen_for_stays_a_conflict(clashing: Graph) -> None:
    chosen = [{"table_key": "node:Person", "row_id": "Alice", "take": "ours"}]

    assert [entity for _, _, entity in conflicts(clashing, "feature", resolve=chosen)] == ["Dan", "Eve"]
    assert len(conflicts(clashing, "feature", resolve={"Knows": "ours"})) == 3


def test_a_merge_without_conflicts_records_what_was_asked_for_and_changes_nothing_else(graph: Graph) -> None:
    run(graph, OLDER, "feature")

    done = graph.merge("feature", resolve="ours")

    assert ages(graph)["Alice"] == 31
    assert done.commit
    assert done.commit.details == {"resolution": {"default": "ours"}}


def test_a_merge_that_is_told_nothing_records_nothing(graph: Graph) -> None:
    run(graph, OLDER, "feature")

    done = graph.merge("feature")

    assert done.commit
    assert done.commit.details is None


@pytest.mark.slow
@pytest.mark.parametrize(
    "resolve, problem",
    [
        ("mine", "'mine' is not a side"),
        ({"Person": "mine"}, "'mine' is not a side"),
        ({"Persn": "ours"}, "unknown type"),
        ([{"table_key": "node:Persn", "row_id": "a", "take": "ours"}], "unknown type"),
        ([{"table_key": "node:Person", "take": "ours"}], "invalid conflict"),
        ([{"table_key": "node:Person", "row_id": "a"}], "invalid conflict"),
        (["Alice"], "invalid conflict"),
    ],
)
def test_a_resolution_that_says_nothing_that_can_be_done_is_refused(
    clashing: Graph, resolve: Any, problem: str
) -> None:
    error = refused(clashing, lambda: clashing.merge("feature", resolve=resolve))

    assert isinstance(error, ResolutionError)
    assert problem in error.message
    assert error.hint


# What a merge touches


def test_a_preview_tells_what_would_be_and_touches_nothing(clashing: Graph) -> None:
    run(clashing, 'insert Knows { from: "Carol", to: "Eve" }', "feature")
    before = files(clashing)

    for graph in (clashing, omnigraph.open(clashing.uri, read_only=True)):
        found = graph.merge("feature", dry_run=True)
        assert (found.source, found.target) == ("feature", "main")
        assert (found.outcome, found.commit) == (MergeOutcome.MERGED, None)
        assert len(found.conflicts) == 3
        assert found.changes == {"edge:Knows": ChangeCounts(1, 0, 0), "node:Person": ChangeCounts(0, 1, 0)}

    assert files(clashing) == before


def test_a_preview_leaves_what_a_dead_writer_left_behind(graph: Graph) -> None:
    run(graph, OLDER, "feature")
    with failpoints.armed(failpoints.PUBLISH_BEFORE_MANIFEST, crash), pytest.raises(CrashError):
        run(graph, EVE)
    before = files(graph)
    assert records(graph)

    omnigraph.open(graph.uri, read_only=True).merge("feature", dry_run=True)

    assert files(graph) == before


def test_only_the_row_that_changed_is_written(tmp_path: Path) -> None:
    graph = new_graph(tmp_path)
    many = [{"type": "Person", "data": {"name": f"p{number}", "age": number}} for number in range(500)]
    graph.load(many, mode="append")
    graph.create_branch("feature")
    run(graph, 'update Person set { age: 1000 } where name = "p77"', "feature")
    run(graph, OLDER)
    before = _written(graph)

    done = graph.merge("feature")

    assert done.changes == {"node:Person": ChangeCounts(0, 1, 0)}
    assert {name for name, version in _written(graph).items() if version != before[name]} == {"p77"}
    assert done.compared == ()


def _written(graph: Graph) -> dict[str, int]:
    """The version that wrote each person last."""
    table = graph.snapshot().entries["node:Person"].table
    found = lance.dataset(f"{graph.uri}/{table.path}", version=table.version)
    columns = found.to_table(columns=["id", "_row_last_updated_at_version"]).to_pydict()
    return dict(zip(columns["id"], columns["_row_last_updated_at_version"], strict=True))


def test_tables_that_the_source_has_not_changed_stay_as_they_are(graph: Graph) -> None:
    run(graph, 'insert Knows { from: "Alice", to: "Dan" }', "feature")
    run(graph, EVE)
    people = graph.snapshot().entries["node:Person"]

    graph.merge("feature")

    assert graph.snapshot().entries["node:Person"] == people
    assert len(acquaintances(graph)) == 2


def test_changes_that_come_to_nothing_make_a_commit_that_only_joins(graph: Graph) -> None:
    run(graph, EVE, "feature")
    run(graph, 'delete Person where name = "Eve"', "feature")
    run(graph, OLDER)
    before = graph.snapshot().entries

    done = graph.merge("feature")

    assert (done.outcome, done.changes) == (MergeOutcome.MERGED, {})
    assert graph.snapshot().entries == before
    assert graph.commits()[0].merged_parent_id == head(graph, "feature")


def test_every_merge_is_one_commit_with_two_parents_and_its_actor(graph: Graph) -> None:
    run(graph, EVE + 'insert Knows { from: "Eve", to: "Dan" }', "feature")
    parents = head(graph), head(graph, "feature")

    done = graph.merge("feature", actor="eve")

    assert done.outcome is MergeOutcome.FAST_FORWARD
    assert done.commit
    assert done.commit == graph.commits()[0]
    assert (done.commit.parent_id, done.commit.merged_parent_id) == parents
    assert (done.commit.actor_id, done.commit.branch) == ("eve", None)


def test_what_was_merged_is_found_by_search_at_once(tmp_path: Path) -> None:
    schema = "node Doc { slug: String @key  text: String @index  face: Vector(2)? @index }"
    graph = new_graph(tmp_path, schema, 'insert Doc { slug: "a", text: "apple" }')
    graph.ensure_indices()
    search = 'query q() { match { $d: Doc  search($d.text, "orchard") } return { $d.slug } }'
    for branch, three_way in (("ff", False), ("merged", True)):
        graph.create_branch(branch)
        run(graph, f'insert Doc {{ slug: "{branch}", text: "an orchard" }}', branch)
        if three_way:
            run(graph, 'update Doc set { text: "pear" } where slug = "a"')
        graph.merge(branch)

    assert sorted(row["d.slug"] for row in graph.query(search).rows) == ["ff", "merged"]
    graph.ensure_indices()
    assert sorted(row["d.slug"] for row in graph.query(search).rows) == ["ff", "merged"]


# Between which branches


def test_main_is_merged_into_a_branch_which_takes_its_untouched_tables_over_as_they_are(graph: Graph) -> None:
    run(graph, 'insert Knows { from: "Alice", to: "Dan" }', "feature")
    run(graph, EVE)
    run(graph, 'delete Knows where from = "Bob"')

    done = graph.merge("main", "feature")

    assert (done.source, done.target, done.outcome) == ("main", "feature", MergeOutcome.MERGED)
    assert "Eve" in ages(graph, "feature")
    assert acquaintances(graph, "feature") == [("Alice", "Dan")]
    there = graph.snapshot("feature").entries
    assert there["node:Person"] == graph.snapshot().entries["node:Person"]
    assert there["edge:Knows"].table.owner == "feature"
    assert acquaintances(graph) == []
    back = graph.merge("feature")
    assert back.outcome is MergeOutcome.FAST_FORWARD
    assert rows(graph) == rows(graph, "feature")


def test_a_branch_goes_on_after_it_took_a_table_over(graph: Graph) -> None:
    run(graph, EVE)
    graph.merge("main", "feature")
    run(graph, OLDER, "feature")
    run(graph, OLDEST)

    assert ages(graph, "feature")["Alice"] == 31
    assert ages(graph)["Alice"] == 32
    assert conflicts(graph, "feature") == [("divergent_update", "node:Person", "Alice")]
    graph.merge("main", "feature", resolve="theirs")
    assert rows(graph, "feature") == rows(graph)


def test_a_branch_is_merged_into_another_and_main_is_as_before(graph: Graph) -> None:
    graph.create_branch("review")
    run(graph, EVE, "feature")
    run(graph, OLDER, "review")
    main = rows(graph)

    done = graph.merge("feature", "review")

    assert done.outcome is MergeOutcome.MERGED
    assert ages(graph, "review") == {"Alice": 31, "Bob": 25, "Carol": 40, "Dan": 50, "Eve": 22}
    assert graph.snapshot("review").entries["node:Person"].table.owner == "review"
    assert rows(graph) == main
    assert "Eve" in ages(graph, "feature")
    graph.delete_branch("feature")
    assert "Eve" in ages(graph, "review")


def test_a_branch_of_a_branch_comes_home_in_two_steps_or_one(graph: Graph) -> None:
    run(graph, EVE, "feature")
    graph.create_branch("leaf", "feature")
    run(graph, OLDER, "leaf")

    assert graph.merge("leaf", "feature").outcome is MergeOutcome.FAST_FORWARD
    graph.delete_branch("leaf")
    assert graph.merge("feature").outcome is MergeOutcome.FAST_FORWARD

    assert rows(graph) == rows(graph, "feature")
    graph.create_branch("leaf", "feature")
    run(graph, 'delete Person where name = "Eve"', "leaf")
    assert graph.merge("leaf").outcome is MergeOutcome.MERGED
    assert "Eve" not in ages(graph)


def test_what_both_sides_got_by_the_same_merge_is_no_conflict(graph: Graph) -> None:
    """A shared past is not only where a branch began."""
    graph.create_branch("other")
    run(graph, OLDER, "feature")
    graph.merge("feature")
    graph.merge("feature", "other")
    run(graph, 'update Person set { age: 33 } where name = "Alice"')
    run(graph, EVE, "other")

    graph.merge("other")

    assert (ages(graph)["Alice"], ages(graph)["Eve"]) == (33, 22)


def test_what_is_deleted_stays_deleted_however_often_branches_are_merged(graph: Graph) -> None:
    run(graph, 'insert Knows { from: "Alice", to: "Dan" }', "feature")
    graph.merge("feature")
    run(graph, 'delete Knows where from = "Alice"')
    run(graph, EVE, "feature")

    graph.merge("feature")
    graph.merge("main", "feature")
    run(graph, OLDER, "feature")
    graph.merge("feature")

    assert acquaintances(graph) == acquaintances(graph, "feature") == [("Bob", "Carol")]


def test_branches_that_were_merged_crosswise_have_what_both_had_in_common(graph: Graph) -> None:
    """Each merged the other as it was before the other merged it, so two commits are the latest that both have."""
    run(graph, EVE, "feature")
    run(graph, OLDER)
    graph.create_branch("before", head(graph))
    graph.merge("feature")
    graph.merge("before", "feature")
    run(graph, 'update Person set { age: 23 } where name = "Eve"')
    run(graph, 'delete Person where name = "Dan"', "feature")

    graph.merge("feature")

    assert ages(graph) == {"Alice": 31, "Bob": 25, "Carol": 40, "Eve": 23}


# Refusals


def test_a_branch_cannot_be_merged_into_itself_or_with_what_is_not_there(graph: Graph) -> None:
    for source, target in (("feature", " feature "), ("main", "main")):
        error = refused(graph, lambda source=source, target=target: graph.merge(source, target))  # type: ignore[misc]
        assert isinstance(error, MergeError)
        assert (error.http_status, error.source, error.target) == (400, source, target.strip())
    for source, target in (("nowhere", "main"), ("main", "nowhere")):
        error = refused(graph, lambda source=source, target=target: graph.merge(source, target))  # type: ignore[misc]
        assert isinstance(error, BranchNotFoundError)


@contextmanager
def while_staging(action: Callable[[], None]) -> Iterator[None]:
    """Do something once, when the first rows of a merge are about to be written."""
    actions = iter([action])

    def hook(operation: str, _: str) -> None:
        for act in actions if operation == "write rows" else ():
            act()

    previous = observe.set_write_hook(hook)
    try:
        yield
    finally:
        observe.set_write_hook(previous)
    assert next(actions, None) is None, "it was done"


def test_a_target_that_moves_while_it_is_merged_into_gets_both_changes(graph: Graph) -> None:
    run(graph, OLDER, "feature")

    with while_staging(lambda: run(omnigraph.open(graph.uri), EVE)):
        done = graph.merge("feature")

    assert (ages(graph)["Alice"], ages(graph)["Eve"]) == (31, 22)
    merged, eve, *_ = graph.commits()
    assert done.commit == merged
    assert (merged.parent_id, merged.merged_parent_id) == (eve.commit_id, head(graph, "feature"))
    assert done.outcome is MergeOutcome.MERGED


@pytest.mark.parametrize("change, kind", [(OLDEST, "divergent_update"), (WITHOUT_ALICE, "delete_vs_update")])
def test_a_contradiction_that_comes_while_a_merge_is_prepared_is_seen(graph: Graph, change: str, kind: str) -> None:
    run(graph, OLDER, "feature")

    with while_staging(lambda: run(omnigraph.open(graph.uri), change)), pytest.raises(MergeConflictError) as caught:
        graph.merge("feature")

    assert [conflict.kind for conflict in caught.value.conflicts] == [kind]
    assert records(graph) == []
    run(graph, EVE)


def test_a_source_that_moves_while_it_is_merged_is_merged_as_it_was(graph: Graph) -> None:
    run(graph, OLDER, "feature")
    before = head(graph, "feature")

    with while_staging(lambda: run(omnigraph.open(graph.uri), EVE, "feature")):
        done = graph.merge("feature")

    assert done.commit
    assert done.commit.merged_parent_id == before
    assert "Eve" not in ages(graph)
    assert graph.merge("feature").outcome is MergeOutcome.MERGED
    assert "Eve" in ages(graph)


# Crashes


@pytest.mark.parametrize("arrival", [1, 2])
def test_a_merge_that_dies_between_its_tables_is_undone(graph: Graph, arrival: int) -> None:
    run(graph, EVE + 'insert Knows { from: "Eve", to: "Dan" }', "feature")
    run(graph, OLDER)
    before = rows(graph)

    with failpoints.armed(failpoints.PUBLISH_AFTER_TABLE_COMMIT, at_arrival(arrival, crash)), pytest.raises(CrashError):
        graph.merge("feature")

    again = omnigraph.open(graph.uri)
    done = [commit for commit in again.commits() if commit.merged_parent_id]
    if arrival == 1:
        assert (rows(again), done) == (before, [])
        assert again.merge("feature").outcome is MergeOutcome.MERGED
    assert "Eve" in ages(again)
    assert again.merge("feature").outcome is MergeOutcome.ALREADY_UP_TO_DATE
    assert records(again) == []


def test_a_merge_that_dies_before_it_is_visible_is_finished_with_both_parents_and_its_resolution(graph: Graph) -> None:
    run(graph, OLDER, "feature")
    run(graph, OLDEST)
    parents = head(graph), head(graph, "feature")

    with failpoints.armed(failpoints.PUBLISH_BEFORE_MANIFEST, crash), pytest.raises(CrashError):
        graph.merge("feature", resolve="theirs")

    again = omnigraph.open(graph.uri)
    made = again.commits()[0]
    assert (made.parent_id, made.merged_parent_id) == parents
    assert made.details == {"resolution": {"default": "theirs"}}
    assert ages(again)["Alice"] == 31
    assert again.merge("feature").outcome is MergeOutcome.ALREADY_UP_TO_DATE


def test_a_merge_onto_a_branch_that_dies_is_finished_with_the_tables_that_it_took_over(graph: Graph) -> None:
    run(graph, 'insert Knows { from: "Alice", to: "Dan" }', "feature")
    run(graph, EVE)
    run(graph, 'delete Knows where from = "Bob"')

    with failpoints.armed(failpoints.PUBLISH_BEFORE_MANIFEST, crash), pytest.raises(CrashError):
        graph.merge("main", "feature")

    again = omnigraph.open(graph.uri)
    assert "Eve" in ages(again, "feature")
    assert acquaintances(again, "feature") == [("Alice", "Dan")]
    assert again.commits("feature")[0].merged_parent_id == head(again)
