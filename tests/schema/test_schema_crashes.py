"""Changes of the schema that do not come to their end: before the publish they are undone, after it finished."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import omnigraph
from omnigraph.errors import HistoryReclaimedError, OmnigraphError
from omnigraph.manifest import schema_files
from tests.commit import child
from tests.commit.places import copied
from tests.history.crashing import opened
from tests.schema import town
from tests.schema.town import CHANGES, SCHEMA, Apply, Record, edited, look
from tests.support.deaths import die_each
from tests.support.faults import CrashError, assert_settled, crash, refuse
from tests.support.mutations import Death, at_write, die, store_of

PROMOTED = ("write",) * len(schema_files.FILES)
PUBLISH = ("stage", "publish", *PROMOTED, "delete")
WRITES = {
    "extend an enum": ("write", *PUBLISH),
    "add a node type": ("create table", "write", *PUBLISH),
    "rename a node type": ("write", *PUBLISH),
    "rename a type and change its properties": ("stage schema change", "write", "commit table", *PUBLISH),
    "many things at once": (
        "stage schema change",
        *["create table"] * 2,
        "write",
        "commit table",
        *PUBLISH,
    ),
}


@dataclass(frozen=True, slots=True)
class Scene:
    """A graph and a change of its schema: what is there before and after, and the durable writes between."""

    uri: str
    name: str
    before: tuple[str, list[Record]]
    after: tuple[str, list[Record]]
    writes: tuple[str, ...]

    @property
    def published(self) -> int:
        """The ordinal of the write before which nothing is visible and after which all is."""
        return self.writes.index("publish") + 1

    def shown(self, graph: omnigraph.Graph) -> str:
        found = _seen(graph)
        return "before" if found == self.before else "after" if found == self.after else "neither"


def _seen(graph: omnigraph.Graph) -> tuple[str, list[Record]]:
    rows = look(graph)
    return graph.schema, rows


@pytest.fixture(scope="module")
def scenes(pattern: Path) -> Callable[[str], Scene]:
    @cache
    def scene(name: str) -> Scene:
        return _scene(str(pattern), name)

    return scene


def _scene(uri: str, name: str) -> Scene:
    changed = copied(uri)
    graph = omnigraph.open(changed)
    ordinals = child.Ordinals()
    with child.hooked(ordinals):
        Apply(name).run(graph)
    return Scene(uri, name, _seen(omnigraph.open(uri)), _seen(graph), tuple(ordinals.written))


@pytest.mark.parametrize("name", WRITES)
def test_a_change_that_dies_at_any_durable_write_happened_whole_or_not_at_all(
    scenes: Callable[[str], Scene], name: str
) -> None:
    scene = scenes(name)
    assert scene.writes == WRITES[name]
    deaths = [_death(_copied(scene.uri), name, at) for at in range(1, len(scene.writes) + 1)]
    die(deaths)
    for death in deaths:
        expected = "after" if death.ordinal > scene.published else "before"
        assert scene.shown(omnigraph.open(death.uri, read_only=True)) == expected, "what can be read at once"
        assert _recovered(scene, death.uri) == expected, scene.writes[death.ordinal - 1]


@pytest.mark.parametrize("name", [name for name in CHANGES if name not in WRITES])
def test_a_change_of_any_kind_that_stops_at_any_durable_write_happened_whole_or_not_at_all(
    scenes: Callable[[str], Scene], name: str
) -> None:
    """Nobody cleans up after what stops it, as if its process had died."""
    scene = scenes(name)
    for ordinal in range(1, len(scene.writes) + 1):
        uri = _copied(scene.uri)
        with pytest.raises(CrashError), at_write(ordinal, crash):
            Apply(name).run(omnigraph.open(uri))
        expected = "after" if ordinal > scene.published else "before"
        assert scene.shown(omnigraph.open(uri, read_only=True)) == expected
        assert scene.shown(omnigraph.open(uri)) == expected, scene.writes[ordinal - 1]
        assert_settled(store_of(uri))


@dataclass(frozen=True, slots=True)
class OnBranch:
    """An order about the branch `side` of the graph: to change its schema, or to merge it into main."""

    merge: bool

    def run(self, graph: omnigraph.Graph) -> object:
        if self.merge:
            return graph.merge("side", resolve=[{"schema": "node:Person.bio", "take": "theirs"}])
        return graph.apply_schema(CHANGES["many things at once"].schema, branch="side")


@pytest.mark.parametrize("merge", [False, True])
def test_a_change_on_a_branch_and_its_merge_happen_whole_or_not_at_all(pattern: Path, *, merge: bool) -> None:
    """A process stops at every durable write; then rows of both sides are there in one schema, or all is as it was."""
    uri = _copied(str(pattern))
    graph = omnigraph.open(uri)
    graph.create_branch("side")
    if merge:
        OnBranch(merge=False).run(graph)
        graph.load([town.node("Human", name="far", years=5), town.node("Club", name="x")], mode="append", branch="side")
        graph.load([town.node("Person", name="near", age=6)], mode="append")
    before, order = _sides(graph), OnBranch(merge)
    done = _copied(uri)
    with at_write(0, refuse) as writes:
        order.run(omnigraph.open(done))
    after = _sides(omnigraph.open(done))
    assert after != before
    published = len(writes) - writes[::-1].index("publish")
    for ordinal in range(1, len(writes) + 1):
        copy = _copied(uri)
        with pytest.raises(CrashError), at_write(ordinal, crash):
            order.run(omnigraph.open(copy))
        expected = after if ordinal > published else before
        assert _sides(omnigraph.open(copy, read_only=True)) == expected, writes[ordinal - 1]
        again = omnigraph.open(copy)
        if expected == before:  # what it left must not be in the way
            order.run(again)
            assert _sides(again) == after, writes[ordinal - 1]
        else:
            again.mutate('query q() { insert Club { name: "later" } }', branch="side")
        assert_settled(store_of(copy))


def _sides(graph: omnigraph.Graph) -> dict[str, tuple[str, list[Record]]]:
    return {name: (graph.at(name).schema, look(graph, branch=name)) for name in graph.branches()}


def test_a_drop_for_good_that_stops_at_any_durable_write_can_be_made_again(graph: omnigraph.Graph) -> None:
    text = CHANGES["drop a node type and its edges"].schema
    old, whole = graph.commits()[0].commit_id, omnigraph.open(_copied(graph.uri))
    with at_write(0, refuse) as writes:
        whole.apply_schema(text, allow_data_loss=True)
    emptied = ("create table", "create table", "remove versions")  # the first finds that there is one
    assert writes == ["write", *PUBLISH, *emptied * 2]
    for ordinal in range(1, len(writes) + 1):
        uri = _copied(graph.uri)
        with pytest.raises(CrashError), at_write(ordinal, crash):
            omnigraph.open(uri).apply_schema(text, allow_data_loss=True)
        again = omnigraph.open(uri)
        assert again.apply_schema(text, allow_data_loss=True).applied == (ordinal <= writes.index("publish") + 1)
        assert look(again) == look(whole)
        again.cleanup(keep=1, confirm=True)
        assert_settled(store_of(uri))
        with pytest.raises(HistoryReclaimedError):
            look(omnigraph.open(uri), old)


@pytest.mark.parametrize("name", ["many things at once", "add a node type"])
def test_a_change_whose_storage_fails_at_any_durable_write_happened_whole_or_not_at_all(
    scenes: Callable[[str], Scene], name: str
) -> None:
    scene = scenes(name)
    for ordinal in range(1, len(scene.writes) + 1):
        uri = _copied(scene.uri)
        graph = omnigraph.open(uri)
        expected = "after" if ordinal > scene.published else "before"
        with at_write(ordinal, refuse):
            _try(scene, graph, expected)
        assert scene.shown(graph) == expected, "through the handle that failed"
        assert _recovered(scene, uri) == expected


def _try(scene: Scene, graph: omnigraph.Graph, expected: str) -> None:
    """What is visible is acknowledged; what is not is an error."""
    try:
        Apply(scene.name).run(graph)
    except OmnigraphError:
        assert expected == "before"
    else:
        assert expected == "after"


def test_a_recovery_that_dies_at_any_durable_write_ends_as_if_it_had_not(scenes: Callable[[str], Scene]) -> None:
    scene = scenes("many things at once")
    for ordinal in (scene.published - 1, scene.published, *range(scene.published + 1, len(scene.writes) + 1)):
        uri = _copied(scene.uri)
        die([_death(uri, scene.name, ordinal)])
        with at_write(0, refuse) as writes:
            omnigraph.open(_copied(uri))
        again = [child.Death("open", _copied(uri), at) for at in range(1, len(writes) + 1)]
        assert again
        child.die(again)
        expected = "after" if ordinal > scene.published else "before"
        assert [_recovered(scene, death.uri) for death in again] == [expected] * len(again)


@pytest.mark.parametrize("ordinal", range(3))
def test_a_live_handle_and_the_next_write_finish_what_another_left(
    scenes: Callable[[str], Scene], ordinal: int
) -> None:
    """With the new catalog: nobody has to open the graph again."""
    scene = scenes("many things at once")
    uri = _copied(scene.uri)
    live = omnigraph.open(uri)
    assert scene.shown(live) == "before"
    die([_death(uri, scene.name, scene.published + 1 + ordinal)])

    assert scene.shown(live) == "after"
    live.mutate('query q() { insert Human { name: "eve", city: "Rom" } }')

    store = store_of(uri)
    assert_settled(store)
    found = store.schema_files.read()
    assert found
    assert found.text == live.schema == CHANGES[scene.name].schema
    assert omnigraph.open(uri).schema == CHANGES[scene.name].schema


def test_a_table_that_moves_twice_in_a_change_moves_whole_or_not_at_all(graph: omnigraph.Graph) -> None:
    """A property takes the name of another one: the indices that are called after it go in a step of their own."""
    graph.apply_schema(edited(("bio: String? @index", 'story: String? @index @rename_from("bio")')))
    text = edited(("bio: String? @index", "story: String? @index bio: String?"))
    before, whole = look(graph), omnigraph.open(_copied(graph.uri))
    with at_write(0, refuse) as writes:
        whole.apply_schema(text)
    assert writes == ["stage schema change", "write", *["commit table"] * 2, *PUBLISH]
    for ordinal in range(1, len(writes) + 1):
        uri = _copied(graph.uri)
        with pytest.raises(CrashError), at_write(ordinal, crash):
            omnigraph.open(uri).apply_schema(text)
        found = look(omnigraph.open(uri))
        assert found == (look(whole) if ordinal > writes.index("publish") + 1 else before)
        assert_settled(store_of(uri))
        assert omnigraph.open(uri).apply_schema(text).applied == (found == before)
        omnigraph.open(uri).optimize()
        assert look(omnigraph.open(uri)) == look(whole)


def test_a_change_that_dies_on_an_object_store_happened_whole_or_not_at_all(s3_uri: str) -> None:
    town.make(s3_uri)
    scene = _scene(s3_uri, "many things at once")
    at = scene.published
    for ordinal in (at - 1, at, at + 1, at + 3):
        uri, expected = copied(s3_uri), "after" if ordinal > at else "before"
        die_each(_die_elsewhere, [(uri, scene.name, ordinal)])
        assert scene.shown(omnigraph.open(uri, read_only=True)) == expected
        assert _recovered(scene, uri) == expected, scene.writes[ordinal - 1]


def _die_elsewhere(order: tuple[str, str, int]) -> None:
    uri, name, ordinal = order
    graph = opened(uri)
    with child.hooked(child.Ordinals(ordinal)):
        Apply(name).run(graph)


def _recovered(scene: Scene, uri: str) -> str:
    """Open a graph after a death, look what it shows, and go on: with a write, and with the change."""
    graph = opened(uri)
    store = store_of(uri)
    assert_settled(store)
    shown = scene.shown(graph)
    files = store.schema_files.read()
    assert files
    assert files.text == (SCHEMA if shown == "before" else CHANGES[scene.name].schema)
    assert (len(store.audit.rows()) > 0) <= (len(store.manifest.load().commits()) > 3)
    again: Any = Apply(scene.name).run(graph)
    assert again.applied == (shown == "before")
    assert scene.shown(graph) == "after"
    takes = CHANGES[scene.name].takes
    graph.load([{**takes, "data": {"name": "next", **takes["data"]}}], mode="append")
    assert len(look(graph)) == len(scene.after[1]) + 1
    assert_settled(store)
    return shown


def _death(uri: str, name: str, ordinal: int) -> Death:
    order: Any = Apply(name)  # whatever can be run
    return Death(uri, order, ordinal)


def _copied(uri: str) -> str:
    return str(shutil.copytree(uri, Path(uri).with_name(uuid.uuid4().hex)))
