"""Merges combine the properties of an entity; contradictions are named and resolved by property."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

import omnigraph
from omnigraph.api.options import Resolution
from omnigraph.errors import MergeConflictError, ResolutionError, ResolutionStaleError
from omnigraph.graph import Graph
from tests.history.people import conflicts, head, new_graph, rows, run
from tests.support.cli import command

SCHEMA = """
node Thing { name: String @key  one: I32?  two: I32?  tags: [String]?  text: String? }
edge Link: Thing -> Thing { weight: I32? }
"""


def _put(graph: Graph, branch: str, things: dict[str, dict[str, Any]]) -> None:
    records = [{"type": "Thing", "data": {"name": name, **data}} for name, data in things.items()]
    graph.load(records, mode="merge", branch=branch)


def _things(graph: Graph, branch: str = "main") -> dict[str, dict[str, Any]]:
    found = [row["data"] for row in rows(graph, branch) if row.get("type") == "Thing"]
    return {
        row.pop("name"): {key: value for key, value in row.items() if key != "id" and value is not None}
        for row in found
    }


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    return new_graph(
        tmp_path, SCHEMA, 'insert Thing { name: "a", one: 1, two: 2, tags: ["x"] } insert Thing { name: "b" }'
    )


@pytest.fixture
def contested(graph: Graph) -> Graph:
    """Thing a: `one` and `tags` contradict, `two` is changed on the branch, `text` on main."""
    graph.create_branch("review")
    _put(graph, "review", {"a": {"one": 10, "two": 20, "tags": ["x", "r"]}})
    _put(graph, "main", {"a": {"one": 11, "two": 2, "tags": ["x", "m"], "text": "t"}})
    return graph


# The truth table: one property in every state before, here and there, beside another one that only the branch changes

GONE = "gone"
VALUES = (GONE, None, 0, 1)
CELLS = list(itertools.product((GONE, None, 0), VALUES, VALUES))


def _verdict(was: Any, ours: Any, theirs: Any) -> str:
    """What the table of the design says of one property, or of the entity if a side does not have it."""
    if GONE in (ours, theirs):
        # The branch also changes `two` of every entity that it has, so it has changed each of them.
        theirs_changed = theirs != GONE or was != GONE
        ours_changed = ours != was
        if ours == theirs:
            return "ours"
        return "conflict" if theirs_changed and ours_changed else "theirs" if theirs_changed else "ours"
    base = None if was == GONE else was
    if theirs in (ours, base):
        return "ours"
    return "theirs" if ours == base else "conflict"


def _name(cell: tuple[Any, Any, Any]) -> str:
    return "-".join(str(part) for part in cell)


def _state(value: Any, **more: int) -> dict[str, Any]:
    return {**({} if value is None else {"one": value}), **more}


def _fill(graph: Graph, branch: str, states: dict[str, dict[str, Any] | None]) -> None:
    there = _things(graph, branch)
    _put(
        graph, branch, {name: state for name, state in states.items() if state is not None and state != there.get(name)}
    )
    for name in (name for name, state in states.items() if state is None and name in there):
        run(graph, f'delete Thing where name = "{name}"', branch)


def test_every_state_of_a_property_is_merged_as_the_table_says(tmp_path: Path) -> None:
    graph = new_graph(tmp_path, SCHEMA, 'insert Thing { name: "z" }')
    _fill(graph, "main", {_name(cell): None if cell[0] == GONE else _state(cell[0]) for cell in CELLS})
    graph.create_branch("review")
    _fill(graph, "review", {_name(cell): None if cell[2] == GONE else _state(cell[2], two=7) for cell in CELLS})
    _fill(graph, "main", {_name(cell): None if cell[1] == GONE else _state(cell[1]) for cell in CELLS})
    verdicts = {_name(cell): _verdict(*cell) for cell in CELLS}
    assert set(verdicts.values()) == {"ours", "theirs", "conflict"}

    found = {name for _, _, name in conflicts(graph, "review")}
    assert found == {name for name, verdict in verdicts.items() if verdict == "conflict"}

    before, theirs = _things(graph), _things(graph, "review")
    graph.merge("review", resolve="theirs")
    after = _things(graph)
    for cell in CELLS:
        name = _name(cell)
        side = (before if verdicts[name] == "ours" else theirs).get(name)
        both = name in before and name in theirs
        expected = {**side, "two": 7} if side is not None and both else side
        assert after.get(name) == expected, name


# Conflicts


def test_a_conflict_names_each_property_with_its_three_values(contested: Graph) -> None:
    [found] = contested.merge("review", dry_run=True).conflicts

    assert str(found) == "divergent_update: Thing 'a' was changed differently on both sides: one, tags"
    assert {one.name: (one.base, one.ours, one.theirs) for one in found.properties} == {
        "one": (1, 11, 10),
        "tags": (["x"], ["x", "m"], ["x", "r"]),
    }
    assert found.combined == ("two",)


def test_an_entity_is_merged_as_a_whole_on_request(graph: Graph) -> None:
    graph.create_branch("review")
    run(graph, 'update Thing set { one: 5 } where name = "b"', "review")
    run(graph, 'update Thing set { two: 6 } where name = "b"')

    assert conflicts(graph, "review", by="entity") == [("divergent_update", "node:Thing", "b")]
    graph.merge("review")
    assert _things(graph)["b"] == {"one": 5, "two": 6}


def test_rules_are_judged_on_the_combined_entity(tmp_path: Path) -> None:
    schema = "node P { name: String @key  first: String?  last: String?  @unique(first, last) }"
    seed = 'insert P { name: "p", first: "A", last: "B" } insert P { name: "q", first: "C", last: "D" }'
    graph = new_graph(tmp_path, schema, seed)
    graph.create_branch("review")
    run(graph, 'update P set { first: "C" } where name = "p"', "review")
    run(graph, 'update P set { last: "D" } where name = "p"')

    assert conflicts(graph, "review") == [("unique_violation", "node:P", "p")]


def test_the_ends_of_an_edge_are_one_value(graph: Graph) -> None:
    def put(branch: str, src: str, dst: str) -> None:
        record = {"edge": "Link", "from": src, "to": dst, "data": {"id": "e", "weight": 1}}
        graph.load([record], mode="merge", branch=branch)

    put("main", "a", "a")
    graph.create_branch("review")
    put("review", "b", "a")
    put("main", "a", "b")

    [found] = graph.merge("review", dry_run=True).conflicts
    assert [one.name for one in found.properties] == ["src", "dst"]
    graph.merge("review", resolve="theirs")
    [edge] = [row for row in rows(graph) if "edge" in row]
    assert (edge["from"], edge["to"]) == ("b", "a")


ONE_LINK = SCHEMA.replace("weight: I32? }", "weight: I32?  note: String?  @unique(src, dst) }")


def _link(graph: Graph, branch: str, **data: Any) -> None:
    graph.load([{"edge": "Link", "from": "a", "to": "b", "data": data}], mode="append", branch=branch)


def _links(graph: Graph, branch: str = "main") -> list[dict[str, Any]]:
    found = [row["data"] for row in rows(graph, branch) if "edge" in row]
    return [{name: value for name, value in row.items() if name != "id" and value is not None} for row in found]


def test_an_edge_that_both_sides_inserted_where_one_may_be_is_one_edge(tmp_path: Path) -> None:
    graph = new_graph(tmp_path, ONE_LINK, 'insert Thing { name: "a" } insert Thing { name: "b" }')
    graph.create_branch("review")
    _link(graph, "review", weight=1, note="r")
    _link(graph, "main", weight=2)

    [found] = graph.merge("review", dry_run=True).conflicts
    assert (found.kind, [one.name for one in found.properties], found.combined) == (
        "divergent_insert",
        ["weight"],
        ("note",),
    )
    graph.merge("review", resolve={"Link.weight": "theirs"})

    assert _links(graph) == [{"weight": 1, "note": "r"}]
    graph.merge("main", "review")
    assert rows(graph, "review") == rows(graph)
    assert graph.merge("review").changes == {}


def test_the_same_edge_of_both_sides_is_no_conflict(tmp_path: Path) -> None:
    graph = new_graph(tmp_path, ONE_LINK, 'insert Thing { name: "a" } insert Thing { name: "b" }')
    graph.create_branch("review")
    _link(graph, "review", weight=1)
    _link(graph, "main", weight=1)
    before = rows(graph)

    graph.merge("review")

    assert rows(graph) == before


# Resolutions


@pytest.mark.parametrize(
    "resolve, expected",
    [
        ("ours", {"one": 11, "tags": ["x", "m"]}),
        ("theirs", {"one": 10, "tags": ["x", "r"]}),
        ({"Thing.one": "theirs", "Thing": "ours"}, {"one": 10, "tags": ["x", "m"]}),
        ({"node:Thing.tags": "union", "*": "ours"}, {"one": 11, "tags": ["x", "m", "r"]}),
        ({"Thing.one": {"value": 99}, "Thing.tags": {"value": None}}, {"one": 99}),
        (
            [{"table_key": "node:Thing", "row_id": "a", "take": "ours", "properties": {"one": {"take": {"value": 5}}}}],
            {"one": 5, "tags": ["x", "m"]},
        ),
    ],
)
def test_the_most_precise_resolution_counts(contested: Graph, resolve: Any, expected: dict[str, Any]) -> None:
    done = contested.merge("review", resolve=resolve)

    assert _things(contested)["a"] == {"two": 20, "text": "t", **expected}
    assert done.commit
    assert done.commit.details
    recorded = done.commit.details["resolution"]
    assert recorded == Resolution.of(resolve).to_dict()


def test_a_property_without_a_decision_stays_a_conflict(contested: Graph) -> None:
    with pytest.raises(MergeConflictError) as caught:
        contested.merge("review", resolve={"Thing.one": "theirs"})

    assert [one.name for one in caught.value.conflicts[0].properties] == ["tags"]


def test_a_deletion_needs_a_side(graph: Graph) -> None:
    graph.create_branch("review")
    run(graph, 'delete Thing where name = "a"', "review")
    run(graph, 'update Thing set { one: 3 } where name = "a"')

    assert conflicts(graph, "review", resolve={"Thing.one": {"value": 4}}) == [("delete_vs_update", "node:Thing", "a")]
    graph.merge("review", resolve={"Thing": "theirs", "Thing.one": {"value": 4}})
    assert "a" not in _things(graph)


@pytest.mark.parametrize(
    "resolve, message",
    [
        ({"Thing.on": "ours"}, "Thing has no property 'on'"),
        ({"Thing.one": "union"}, "`union` is for lists, and Thing.one is I32?"),
        ({"Thing.one": {"value": "x"}}, "the value for Thing.one does not fit"),
        ({"Thing": "union"}, "'union' is not a side"),
        ({"Link.src": {"value": "a"}}, "the ends of an edge need `ours` or `theirs`"),
        ({"format": "omnigraph-resolution-9"}, "unknown format 'omnigraph-resolution-9'"),
        ({"format": "omnigraph-resolution-1", "conflicts": []}, "names no commits that it was made for"),
        ({"format": "omnigraph-resolution-1"}, "has no list `conflicts`"),
        ([{"table_key": "node:Thing", "row_id": "a", "properties": {"one": 3}}], "invalid conflict in the resolution"),
        ([{"table_key": "node:Thing", "row_id": "a", "properties": {"one": {"take": 3}}}], "3 is not a side"),
    ],
)
def test_a_resolution_that_means_nothing_is_refused(contested: Graph, resolve: Any, message: str) -> None:
    before = head(contested)

    with pytest.raises(ResolutionError) as caught:
        contested.merge("review", resolve=resolve)

    assert message in str(caught.value)
    assert caught.value.hint
    assert head(contested) == before


def test_a_file_of_conflicts_is_decided_and_applied(contested: Graph) -> None:
    document = json.loads(json.dumps(contested.merge("review", dry_run=True).to_resolution()))
    [conflict] = document["conflicts"]
    with pytest.raises(MergeConflictError):
        contested.merge("review", resolve=document)  # not decided yet
    conflict["properties"]["one"]["take"] = {"value": 12}
    conflict["properties"]["tags"]["take"] = "union"

    done = contested.merge("review", resolve=document)

    assert _things(contested)["a"] == {"one": 12, "two": 20, "tags": ["x", "m", "r"], "text": "t"}
    assert done.commit
    assert done.commit.details
    assert done.commit.details["resolution"]["entities"][0]["properties"] == {
        "one": {"take": {"value": 12}},
        "tags": {"take": "union"},
    }


@pytest.mark.parametrize("moved", ["main", "review"])
def test_a_file_of_conflicts_is_refused_when_a_branch_has_moved(contested: Graph, moved: str) -> None:
    document = contested.merge("review", dry_run=True).to_resolution()
    document["conflicts"][0]["take"] = "ours"
    run(contested, 'insert Thing { name: "c" }', moved)
    before = head(contested)

    with pytest.raises(ResolutionStaleError) as caught:
        contested.merge("review", resolve=document)

    assert (caught.value.code, caught.value.http_status) == ("resolution_stale", 409)
    assert head(contested) == before


def test_the_command_line_writes_and_applies_a_file_of_conflicts(contested: Graph, tmp_path: Path) -> None:
    file, uri = tmp_path / "conflicts.json", contested.uri

    assert command("branch", "merge", "review", uri, "--dry-run", "--conflicts", str(file)).code == 1
    document = json.loads(file.read_text(encoding="utf-8"))
    document["conflicts"][0]["take"] = "theirs"
    file.write_text(json.dumps(document), encoding="utf-8")
    done = command("branch", "merge", "review", uri, "--resolve", str(file), "--resolve", "Thing.one=ours")

    assert done.code == 0, done
    assert _things(omnigraph.open(uri))["a"]["one"] == 10  # an entity is more precise than a property of its type


# Vectors


DOCS = 'node Doc { name: String @key  text: String?  v: Vector(2)? @embed("text") }'


def _docs(graph: Graph, branch: str, **docs: dict[str, Any]) -> None:
    records = [{"type": "Doc", "data": {"name": name, **data}} for name, data in docs.items()]
    graph.load(records, mode="merge", branch=branch)


def test_a_vector_follows_the_text_that_it_was_made_of(tmp_path: Path) -> None:
    graph = new_graph(tmp_path, DOCS, 'insert Doc { name: "z" }')
    old = {"text": "old", "v": [1.0, 1.0]}
    _docs(graph, "main", both=old, text=old, same=old, stale=old)
    graph.create_branch("review")
    new = {"text": "new", "v": [2.0, 2.0]}
    _docs(graph, "review", both=new, text=new, same={**old, "v": [3.0, 3.0]}, stale={**old, "text": "new"})
    _docs(graph, "main", both={**old, "v": [4.0, 4.0]}, same={**old, "v": [5.0, 5.0]}, stale={**old, "v": [6.0, 6.0]})

    done = graph.merge("review")

    found = {row["data"]["name"]: row["data"] for row in rows(graph)}
    assert {name: (row.get("text"), row.get("v")) for name, row in found.items()} == {
        "both": ("new", [2.0, 2.0]),  # the branch made the vector for its text
        "text": ("new", [2.0, 2.0]),
        "same": ("old", [5.0, 5.0]),  # two vectors of one text
        "stale": ("new", None),  # neither side has a vector of this text
        "z": (None, None),
    }
    assert done.commit
    assert done.commit.details == {"reembed": {"node:Doc.v": 1}}


@pytest.mark.parametrize("side, expected", [("theirs", ("new", [1.0, 1.0])), ("ours", ("old", [6.0, 6.0]))])
def test_a_vector_that_must_be_there_is_a_conflict_that_a_side_settles(
    tmp_path: Path, side: str, expected: tuple[str, list[float]]
) -> None:
    graph = new_graph(tmp_path, 'node Doc { name: String @key  text: String  v: Vector(2) @embed("text") }', "")
    _docs(graph, "main", d={"text": "old", "v": [1.0, 1.0]})
    graph.create_branch("review")
    _docs(graph, "review", d={"text": "new", "v": [1.0, 1.0]})
    _docs(graph, "main", d={"text": "old", "v": [6.0, 6.0]})

    [found] = graph.merge("review", dry_run=True).conflicts
    assert [one.name for one in found.properties] == ["text"]
    with pytest.raises(MergeConflictError):
        graph.merge("review", resolve={"Doc.text": {"value": "third"}})
    graph.merge("review", resolve=side)
    [row] = rows(graph)
    assert (row["data"]["text"], row["data"]["v"]) == expected


def test_a_resolution_for_a_merge_is_refused_by_a_revert(contested: Graph) -> None:
    document = contested.merge("review", dry_run=True).to_resolution()
    before = head(contested)

    for act in (contested.revert, contested.cherry_pick):
        with pytest.raises(ResolutionStaleError):
            act(before, resolve=document)
    assert head(contested) == before


def test_files_of_two_merges_are_refused(contested: Graph, tmp_path: Path) -> None:
    document = contested.merge("review", dry_run=True).to_resolution()
    one, other = tmp_path / "one.json", tmp_path / "other.json"
    one.write_text(json.dumps(document))
    other.write_text(json.dumps({**document, "target": {**document["target"], "commit_id": head(contested, "review")}}))

    done = command("branch", "merge", "review", contested.uri, "--resolve", str(one), "--resolve", str(other))
    assert (done.code, "different merges" in done.err) == (1, True)
