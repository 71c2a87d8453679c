"""Drops for good: the past of what is dropped goes as well, and nothing else does."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import omnigraph
from omnigraph.errors import HistoryReclaimedError
from omnigraph.graph import Graph
from tests.schema.town import CHANGES, PERSON, SCHEMA, look, node
from tests.support.faults import assert_settled, failing
from tests.support.mutations import store_of

WITHOUT_AGE = CHANGES["drop a property"].schema
WITHOUT_TOWN = CHANGES["drop a node type and its edges"].schema


@pytest.mark.parametrize("schema", [WITHOUT_AGE, WITHOUT_TOWN], ids=["property", "types"])
def test_what_was_dropped_for_good_cannot_be_read_at_any_commit(graph: Graph, schema: str) -> None:
    old, twin = graph.commits()[0].commit_id, omnigraph.open(shutil.copytree(graph.uri, f"{graph.uri}-soft"))
    done = graph.apply_schema(schema, allow_data_loss=True)
    twin.apply_schema(schema)

    assert {step["mode"] for step in done.plan.to_dict()["steps"]} == {"hard"}
    fresh = omnigraph.open(graph.uri)  # the other one may know from before what is gone
    assert look(fresh) == look(twin)
    assert len(look(twin, old)) == 6
    with pytest.raises(HistoryReclaimedError):
        look(fresh, old)
    assert_settled(store_of(graph.uri))
    graph.load([node("Person", name="eve")], mode="append")
    assert len(look(fresh)) == len(look(twin)) + 1


def test_what_was_not_dropped_stays_readable_at_earlier_commits(graph: Graph) -> None:
    graph.mutate('query q() { update Person set { age: 9 } where name = "bob" }')
    old = graph.commits()[1].commit_id
    graph.apply_schema(WITHOUT_TOWN, allow_data_loss=True)
    fresh = omnigraph.open(graph.uri)
    ages = "query q() { match { $p: Person } return { $p.age } order { $p.age } }"
    assert fresh.query(ages, snapshot=old).rows == [{"p.age": 0}, {"p.age": 1}, {"p.age": 2}]
    with pytest.raises(HistoryReclaimedError):
        fresh.query("query q() { match { $t: Town } return { $t.name } }", snapshot=old)


def test_the_rows_of_a_type_that_was_dropped_for_good_are_not_on_the_disk(graph: Graph) -> None:
    entries = graph.snapshot().entries
    town = Path(graph.uri, entries["node:Town"].table.path)
    assert list(town.rglob("data/*.lance"))
    graph.apply_schema(WITHOUT_TOWN, allow_data_loss=True)
    assert not list(town.rglob("data/*.lance"))
    graph.apply_schema(SCHEMA)
    graph.load([node("Town", name="Rom")], mode="append")
    assert graph.query("query q() { match { $t: Town } return { $t.name } }").rows == [{"t.name": "Rom"}]


def test_what_a_tag_names_stays_until_the_tag_goes(graph: Graph) -> None:
    before = look(graph)
    graph.create_tag("release")
    graph.apply_schema(WITHOUT_AGE, allow_data_loss=True)
    old = graph.tags()[0].commit.commit_id
    assert look(omnigraph.open(graph.uri), old) == before
    graph.delete_tag("release")
    graph.cleanup(keep=1, confirm=True)
    with pytest.raises(HistoryReclaimedError):
        look(omnigraph.open(graph.uri), old)


def test_a_change_without_drops_keeps_the_past_also_if_data_may_be_lost(graph: Graph) -> None:
    old = graph.commits()[0].commit_id
    graph.apply_schema(CHANGES["rename a property"].schema, allow_data_loss=True)
    assert len(look(omnigraph.open(graph.uri), old)) == 6


def test_a_past_that_cannot_be_removed_is_left_to_a_cleanup(graph: Graph, caplog: pytest.LogCaptureFixture) -> None:
    old = graph.commits()[0].commit_id
    with failing("remove versions", "") as failed:
        assert graph.apply_schema(WITHOUT_AGE, allow_data_loss=True).applied
    assert len(failed) == 1
    assert PERSON in caplog.text
    assert len(look(omnigraph.open(graph.uri), old)) == 6
    graph.cleanup(keep=1, confirm=True)
    with pytest.raises(HistoryReclaimedError):
        look(omnigraph.open(graph.uri), old)
