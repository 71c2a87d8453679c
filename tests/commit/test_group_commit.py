"""Writers of one process that wait for a branch: published together, each with a commit of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import omnigraph
from omnigraph.api.results import Commit
from omnigraph.commit.plan import WriterKind
from omnigraph.commit.publish import publish
from omnigraph.commit.store import Store
from omnigraph.commit.together import can_wait
from omnigraph.core.location import Location
from omnigraph.errors import (
    ExpectedVersionMismatchError,
    HistoryReclaimedError,
    OmnigraphError,
)
from omnigraph.graph import Graph
from omnigraph.manifest.publisher import Lineage
from omnigraph.manifest.rows import VersionRow
from omnigraph.manifest.segments import WINDOW
from omnigraph.manifest.state import HEAD
from tests.commit.child import Ordinals, hooked
from tests.support.faults import assert_settled
from tests.support.graphs import company, contents
from tests.support.together import inserting, together

SCHEMA = """
node Person { name: String @key  email: String? @unique  age: I32? }
node Company { name: String @key }
edge WorksAt: Person -> Company @card(0..1)
edge Knows: Person -> Person
"""
PERSON = "query q($name: String, $email: String?) { insert Person { name: $name  email: $email } }"
COMPANY = "query q($name: String) { insert Company { name: $name } }"
WORKS = "query q($from: String, $to: String) { insert WorksAt { from: $from  to: $to } }"
KNOWS = "query q($from: String, $to: String) { insert Knows { from: $from  to: $to } }"
AGE = "query q($name: String, $age: I32) { update Person set { age: $age } where name = $name }"
ALL_AGES = 'query q($age: I32) { update Person set { age: $age } where name != "" }'
LEAVES = "query q($name: String) { delete Person where name = $name }"
COMPANIES = "query q() { match { $c: Company } return { $c.name } }"
NAMES = "query q() { match { $p: Person } return { $p.name } order { $p.name } }"

Call = tuple[str, dict[str, Any]]


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    return _graph(str(tmp_path / "graph"))


def _graph(uri: str) -> Graph:
    graph = omnigraph.init(uri, SCHEMA)
    graph.mutate(PERSON, {"name": "ann", "email": "ann@x"})
    graph.mutate(PERSON, {"name": "bob", "email": None})
    graph.mutate(COMPANY, {"name": "xerc"})
    graph.mutate(COMPANY, {"name": "yard"})
    return graph


def store_of(graph: Graph) -> Store:
    return Store.at(Location.parse(graph.uri))


def mutating(graph: Graph, *calls: Call, **more: Any) -> list[Callable[[], Commit | None]]:
    def mutate(source: str, values: dict[str, Any]) -> Commit | None:
        return graph.mutate(source, values, **more).commit

    return [partial(mutate, *call) for call in calls]


def people(*names: str) -> list[Call]:
    return [(PERSON, {"name": name, "email": f"{name}@x"}) for name in names]


def group(graph: Graph, *calls: Call, branch: str = "main") -> list[Commit]:
    """Mutate together; all must succeed."""
    named = None if branch == "main" else branch
    made = [one.result() for one in together(store_of(graph), mutating(graph, *calls, branch=branch), named)]
    assert all(made)
    return [one for one in made if one]


def names(graph: Graph, **at: Any) -> list[str]:
    return [row["p.name"] for row in graph.query(NAMES, **at).rows]


# One record, one swap ------------------------------------------------------------------------------


def test_writers_that_wait_share_a_record_and_a_swap_and_keep_their_commits(graph: Graph) -> None:
    before, ordinals = graph.commits()[0], Ordinals()
    with hooked(ordinals):
        first, second, third = group(graph, *people("cat", "dan", "eve"))
    assert ordinals.written.count("publish") == ordinals.written.count("write") == ordinals.written.count("delete") == 1
    assert ordinals.written.count("commit table") == 3
    assert first.manifest_version == second.manifest_version == third.manifest_version
    assert [first.parent_id, second.parent_id] == [before.commit_id, first.commit_id]
    assert graph.commits()[:3] == [third, second, first]
    assert names(graph) == ["ann", "bob", "cat", "dan", "eve"]
    assert_settled(store_of(graph))


def test_members_are_published_in_the_order_in_which_they_came(graph: Graph) -> None:
    came = [f"p{number}" for number in range(6)]
    made = group(graph, *people(*came))
    assert [commit.commit_id for commit in graph.commits()[:6]][::-1] == [commit.commit_id for commit in made]


def test_without_grouping_each_writer_has_a_swap_of_its_own(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNIGRAPH_GROUP_COMMIT", "off")
    made = [graph.mutate(*one).commit for one in people("cat", "dan")]
    assert len({commit.manifest_version for commit in made if commit}) == 2


def test_a_setting_that_is_neither_on_nor_off_is_refused(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNIGRAPH_GROUP_COMMIT", "maybe")
    with pytest.raises(omnigraph.errors.OptionError):
        graph.mutate(COMPANY, {"name": "zoo"})


# Conflicts: what they would do one after the other -------------------------------------------------

CONFLICTS: dict[str, list[Call]] = {
    "the same key": [(PERSON, {"name": "cat", "email": "one@x"}), (PERSON, {"name": "cat", "email": "two@x"})],
    "the same unique value": [(PERSON, {"name": "cat", "email": "c@x"}), (PERSON, {"name": "dan", "email": "c@x"})],
    "no unique value": [(PERSON, {"name": "cat", "email": None}), (PERSON, {"name": "dan", "email": None})],
    "an edge to a node that goes": [(LEAVES, {"name": "ann"}), (KNOWS, {"from": "bob", "to": "ann"})],
    "a node goes that gets an edge": [(KNOWS, {"from": "bob", "to": "ann"}), (LEAVES, {"name": "ann"})],
    "more edges than allowed": [(WORKS, {"from": "ann", "to": "xerc"}), (WORKS, {"from": "ann", "to": "yard"})],
    "as many edges as allowed": [(WORKS, {"from": "ann", "to": "xerc"}), (WORKS, {"from": "bob", "to": "yard"})],
    "an insert and an update of a table": [*people("cat"), (AGE, {"name": "ann", "age": 3})],
    "an update and an insert of a table": [(AGE, {"name": "ann", "age": 3}), *people("cat")],
    "two updates": [(AGE, {"name": "ann", "age": 3}), (AGE, {"name": "ann", "age": 4})],
    "an update of all and an insert": [*people("cat"), (ALL_AGES, {"age": 5})],
    "different tables": [(AGE, {"name": "ann", "age": 3}), (COMPANY, {"name": "zoo"})],
}


def ends(graph: Graph, calls: list[Call]) -> list[str]:
    """Mutate together, and say how each of the calls ended."""
    found = []
    for one in together(store_of(graph), mutating(graph, *calls)):
        error = one.exception()
        assert error is None or isinstance(error, OmnigraphError)
        found.append("done" if error is None else f"{type(error).__name__}: {str(error).partition(';')[0]}")
    return found


def rows(graph: Graph) -> dict[str, list[str]]:
    found = contents(store_of(graph))
    return {key: sorted(str({**row, "id": None}) for row in some) for key, some in found.items()}


@pytest.mark.parametrize("name", CONFLICTS)
def test_what_conflicts_ends_as_it_does_without_grouping(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, found = CONFLICTS[name], []
    for setting in ("on", "off"):
        monkeypatch.setenv("OMNIGRAPH_GROUP_COMMIT", setting)
        graph = _graph(str(tmp_path / setting))
        found.append((ends(graph, calls), rows(graph), len(graph.commits())))
        assert_settled(store_of(graph))
    assert found[0] == found[1]


def test_only_plain_changes_of_rows_are_published_together(graph: Graph) -> None:
    plan = inserting(store_of(graph), {"node:Company": [company("one")]})
    base = plan.txn.entries["node:Company"].table
    forked = replace(plan.txn, forks={base.key: base})
    alone = [
        replace(plan, if_head="01ARZ3NDEKTSV4RRFFQ69G5FAV"),
        replace(plan, read_set=frozenset({HEAD})),
        replace(plan, kind=WriterKind.BRANCH_MERGE),
        replace(plan, txn=forked),
        replace(plan, lineage=Lineage.new(merged_parent_id="01ARZ3NDEKTSV4RRFFQ69G5FAV")),
        replace(plan, adoptions=(VersionRow(base.key, 1, None, 0),)),
        replace(plan, actions=()),
    ]
    assert can_wait(plan)
    assert [can_wait(one) for one in alone] == [False] * len(alone)


def test_a_plan_prepared_before_other_inserts_is_not_prepared_again(graph: Graph) -> None:
    store = store_of(graph)
    early = [inserting(store, {"node:Company": [company(name)]}) for name in ("one", "two", "three")]
    published = [publish(store, plan).commit.commit_id for plan in early]
    assert [commit.commit_id for commit in graph.commits()[:3]][::-1] == published
    assert_settled(store)


def test_a_plan_prepared_before_an_insert_of_the_same_key_is_refused(graph: Graph) -> None:
    store = store_of(graph)
    first, again = (inserting(store, {"node:Company": [company("one")]}) for _ in range(2))
    publish(store, first)
    with pytest.raises(ExpectedVersionMismatchError):
        publish(store, again)


# A member in the middle is a commit like any other -------------------------------------------------


@pytest.fixture
def members(graph: Graph) -> list[Commit]:
    return group(graph, *people("cat", "dan"), (COMPANY, {"name": "zoo"}), *people("eve"))


SEEN = [["ann", "bob", "cat"], ["ann", "bob", "cat", "dan"], ["ann", "bob", "cat", "dan"]]
SEEN += [["ann", "bob", "cat", "dan", "eve"]]


def test_each_member_has_a_state_of_its_own(graph: Graph, members: list[Commit]) -> None:
    assert [names(graph, snapshot=one.commit_id) for one in members] == SEEN
    companies = [len(graph.query(COMPANIES, snapshot=one.commit_id).rows) for one in members]
    assert companies == [2, 2, 3, 3]
    assert names(graph, branch=f"main@{members[0].manifest_version}") == SEEN[-1]
    assert names(graph, branch="main~3") == SEEN[0]


def test_each_member_has_changes_of_its_own(graph: Graph, members: list[Commit]) -> None:
    changed = [[one.id for one in graph.commit_changes(commit.commit_id).blocks[0].changes] for commit in members]
    assert changed == [["cat"], ["dan"], ["zoo"], ["eve"]]
    start = f"after:{members[0].commit_id}"
    assert [[one.id for one in block.changes] for block in graph.changes(start=start)] == changed[1:]
    between = graph.diff(members[0].commit_id, members[2].commit_id)
    assert sorted(one.id for one in between) == ["dan", "zoo"]


def test_a_member_is_reverted_alone(graph: Graph, members: list[Commit]) -> None:
    graph.revert(members[1].commit_id)
    assert names(graph) == ["ann", "bob", "cat", "eve"]


def test_a_branch_starts_at_a_member_and_is_merged_back(graph: Graph, members: list[Commit]) -> None:
    graph.create_branch("review", base=members[0].commit_id)
    for handle in (graph, omnigraph.open(graph.uri)):
        assert names(handle, branch="review") == SEEN[0]
        assert handle.commits(branch="review")[0] == members[0]
    graph.mutate(*people("fay")[0], branch="review")
    assert names(graph, branch="review") == [*SEEN[0], "fay"]
    graph.merge("review")
    assert names(graph) == [*SEEN[-1], "fay"]


def test_a_branch_of_a_branch_at_a_member_starts_there_too(graph: Graph, members: list[Commit]) -> None:
    graph.create_branch("review", base=members[1].commit_id)
    graph.create_branch("again", base="review")
    assert names(graph, branch="again") == SEEN[1]
    graph.delete_branch("again")
    graph.create_branch("again", base=members[-1].commit_id)
    assert names(graph, branch="again") == SEEN[-1]


def test_a_tag_names_one_member(graph: Graph, members: list[Commit]) -> None:
    for number, one in enumerate(members):
        graph.create_tag(f"t{number}", one.commit_id)
    assert [tag.commit for tag in omnigraph.open(graph.uri).tags()] == members
    assert [names(graph, branch=f"t{number}") for number in range(4)] == SEEN
    graph.create_tag("copy", "t1")
    assert names(graph, branch="copy") == SEEN[1]
    graph.delete_tag("t0")
    graph.create_tag("t0", members[-1].commit_id)
    assert names(graph, branch="t0") == SEEN[-1]


@pytest.mark.slow
def test_members_survive_when_their_rows_leave_the_manifest(graph: Graph, members: list[Commit]) -> None:
    for number in range(2 * WINDOW):
        graph.mutate(COMPANY, {"name": f"c{number}"})
    assert [names(graph, snapshot=one.commit_id) for one in members] == SEEN


def test_a_cleanup_keeps_what_refs_to_members_need(graph: Graph, members: list[Commit]) -> None:
    graph.create_tag("tagged", members[0].commit_id)
    graph.create_branch("review", base=members[1].commit_id)
    graph.mutate(COMPANY, {"name": "last"})
    graph.cleanup(keep=1, confirm=True)
    assert (names(graph, branch="tagged"), names(graph, branch="review")) == (SEEN[0], SEEN[1])
    with pytest.raises(HistoryReclaimedError):
        omnigraph.open(graph.uri).query(COMPANIES, snapshot=members[2].commit_id)
    assert graph.doctor(deep=True).is_healthy
    assert names(graph) == SEEN[-1]


def test_a_cleanup_that_keeps_a_member_keeps_its_tables(graph: Graph, members: list[Commit]) -> None:
    graph.cleanup(keep=3, confirm=True)
    assert [names(graph, snapshot=one.commit_id) for one in members[1:]] == SEEN[1:]


def test_a_backup_has_the_members_and_the_refs_to_them(graph: Graph, members: list[Commit], tmp_path: Path) -> None:
    graph.create_tag("tagged", members[0].commit_id)
    graph.create_branch("review", base=members[1].commit_id)
    graph.backup(tmp_path / "backup")
    assert graph.verify().is_intact
    restored = omnigraph.restore(tmp_path / "backup", tmp_path / "restored")
    assert restored
    again = omnigraph.open(tmp_path / "restored")
    assert [names(again, snapshot=one.commit_id) for one in members] == SEEN
    assert (names(again, branch="tagged"), names(again, branch="review")) == (SEEN[0], SEEN[1])
    assert again.verify().is_intact


def test_members_of_a_branch_are_merged(graph: Graph) -> None:
    graph.create_branch("side")
    graph.mutate(*people("zed")[0], branch="side")
    made = group(graph, *people("cat", "dan"), branch="side")
    assert len({one.manifest_version for one in made}) == 1
    assert names(graph, snapshot=made[0].commit_id) == ["ann", "bob", "cat", "zed"]
    graph.merge("side")
    assert names(graph) == ["ann", "bob", "cat", "dan", "zed"]
