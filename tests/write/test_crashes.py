"""Mutations that do not come to their end: death, interruption and failing storage at every durable write."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import omnigraph
from omnigraph.api.results import Commit
from omnigraph.commit.store import Store
from omnigraph.errors import ConflictError, ConstraintError, OutcomeUnknownError, RecoveryRequiredError, StorageError
from tests.support.faults import assert_settled, doing, refuse
from tests.support.graphs import contents, heads_and_pins
from tests.support.mutations import Death, Query, at_write, broken_rules, die, once_prepared, small_graph, store_of

CHANGES = {
    "insert of several types": Query(
        """() {
            insert Person { name: "eve", age: 4 }
            insert Person { name: "ann", age: 31 }
            insert Note { text: "new" }
            insert Knows { from: "eve", to: "ann" }
            insert Wrote { from: "eve", to: "n1" }
        }"""
    ),
    "update": Query("() { update Person set { score: 7.5 } where age >= 3 }"),
    "delete with cascades": Query('() { delete Person where name = "bob" }'),
}
STAGES = {
    "insert of several types": ("stage append", "stage append", "stage append", "stage upsert"),
    "update": ("stage upsert",),
    "delete with cascades": ("stage delete", "stage delete", "stage delete"),
}
NEXT = Query('() { insert Person { name: "next" } }')

Rows = Mapping[str, list[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Scene:
    """A graph and a change of it: what the graph holds before and after, and the durable writes between."""

    uri: str
    change: str
    before: Rows
    after: Rows
    writes: tuple[str, ...]

    @property
    def query(self) -> Query:
        return CHANGES[self.change]

    @property
    def ordinals(self) -> range:
        return range(1, len(self.writes) + 1)

    def shown(self, store: Store) -> str:
        found = contents(store)
        assert broken_rules(found) == []
        plain = _plain(found)
        return "before" if plain == self.before else "after" if plain == self.after else "neither"


@dataclass(frozen=True, slots=True)
class End:
    """What a death led to. What has a default must be so wherever it happened."""

    shows: str
    at_once: str = "before"
    audit: tuple[str, ...] = ()
    commits: int = 0
    known_before_recovery: str = "no record"
    known_after_recovery: str = "no record"
    changed_by_opening_again: bool = False


UNTOUCHED = End("before")
ROLLED_BACK = End("before", "before", ("RolledBack",), 1, "not settled", "no commit")
ROLLED_FORWARD = End("after", "before", ("RolledForward",), 1, "not settled", "commit")
VISIBLE = replace(ROLLED_FORWARD, at_once="after", known_before_recovery="commit")


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Scene]:
    uri = str(tmp_path_factory.mktemp("graphs") / "small")
    store = small_graph(uri)

    @cache
    def scene(change: str) -> Scene:
        changed = _copied(uri)
        writes = _writes(CHANGES[change], changed)
        return Scene(uri, change, _plain(contents(store)), _plain(contents(store_of(changed))), writes)

    return scene


@pytest.fixture(params=CHANGES)
def scene(request: pytest.FixtureRequest, scenes: Callable[[str], Scene]) -> Scene:
    return scenes(request.param)


def test_a_mutation_that_dies_at_any_durable_write_happened_whole_or_not_at_all(scene: Scene) -> None:
    stages = STAGES[scene.change]
    moves = ["commit table"] * len(stages)
    assert scene.writes == (*stages, "write", *moves, "stage", "publish", "delete")
    deaths = [Death(_copied(scene.uri), scene.query, ordinal) for ordinal in scene.ordinals]
    die(deaths)
    expected = (*[UNTOUCHED] * (len(stages) + 1), *[ROLLED_BACK] * len(moves), *[ROLLED_FORWARD] * 2, VISIBLE)
    assert [_end(scene, death.uri) for death in deaths] == list(expected)


def test_a_mutation_that_is_interrupted_at_any_durable_write_leaves_nothing_in_the_way(scene: Scene) -> None:
    shown = {ordinal: _interrupted(scene, ordinal) for ordinal in scene.ordinals}
    moved = scene.writes.index("stage") + 1
    # Once all tables have moved, the record that is left behind says so, and the next write finishes the change.
    expected = {ordinal: ("before", "before" if ordinal < moved else "after") for ordinal in scene.ordinals}
    assert shown == {**expected, scene.writes.index("delete") + 1: ("after", "after")}


def test_a_mutation_whose_storage_fails_at_any_durable_write_tells_what_became_of_it(scene: Scene) -> None:
    told = {ordinal: _refused(scene, ordinal) for ordinal in scene.ordinals}
    stage = scene.writes.index("stage") + 1
    expected = dict.fromkeys(scene.ordinals, "not committed")
    unknown = dict.fromkeys((stage, stage + 1), "unknown, then committed")
    assert told == {**expected, **unknown, stage + 2: "committed"}


MEETINGS = {
    "a dead delete of the source": (
        Query('() { delete Person where name = "dan" }'),
        Query('() { insert Wrote { from: "dan", to: "n5" } }'),
    ),
    "a dead insert of the edge": (
        Query('() { insert Wrote { from: "dan", to: "n5" } }'),
        Query('() { delete Person where name = "dan" }'),
    ),
    "a dead delete of the target": (
        Query('() { delete Note where text = "five" }'),
        Query('() { insert Wrote { from: "dan", to: "n5" } }'),
    ),
}


@pytest.mark.parametrize("dead, living", MEETINGS.values(), ids=MEETINGS)
def test_what_recovery_finishes_does_not_contradict_what_was_written_meanwhile(
    scenes: Callable[[str], Scene], dead: Query, living: Query
) -> None:
    """A write is prepared, another moves its tables and dies before they are published, and the first goes on."""
    uri = _copied(scenes("update").uri)
    graph, store = omnigraph.open(uri), store_of(uri)
    publish = _writes(dead, _copied(uri)).index("publish") + 1
    with suppress(ConflictError, ConstraintError), once_prepared(doing(die, [Death(uri, dead, publish)])):
        living.run(graph)
    graph.refresh()
    assert broken_rules(contents(store)) == []
    assert_settled(store)


# Looking -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Facts:
    """What a graph is; of what has a version the version is enough."""

    version: int
    heads_and_pins: dict[str, tuple[int, int]]
    commits: list[Commit]
    audit: tuple[str, ...]


def _end(scene: Scene, uri: str) -> End:
    """Look at a graph after a death, open it, and look again."""
    before = _facts(store_of(scene.uri))
    store = store_of(uri)
    at_once, pending = scene.shown(store), store.sidecars.pending()
    asked_before = _asked(uri, pending, read_only=True)
    first = _opened(uri)
    second = _opened(uri)
    shown = scene.shown(store)
    asked_after = _asked(uri, pending, read_only=True)
    assert asked_after == _asked(uri, pending, read_only=False)
    operations = [row.operation_id for row in store.audit.rows()]
    assert operations == pending
    _take_the_next_write(uri)
    return End(
        shown,
        at_once,
        second.audit,
        len(second.commits) - len(before.commits),
        asked_before,
        asked_after,
        changed_by_opening_again=first != second,
    )


def _interrupted(scene: Scene, ordinal: int) -> tuple[str, str]:
    """Interrupt the change; return what can be seen at once, and what is there after the next write, beside that."""
    uri = _copied(scene.uri)
    graph, store = omnigraph.open(uri), store_of(uri)
    with pytest.raises(KeyboardInterrupt), at_write(ordinal, _interrupt):
        scene.query.run(graph)
    at_once = scene.shown(store)
    NEXT.run(graph)
    assert_settled(store)
    assert len(store.audit.rows()) <= 1
    Query('() { delete Person where name = "next" }').run(graph)
    return at_once, scene.shown(store)


def _refused(scene: Scene, ordinal: int) -> str:
    """Fail once; return what the caller is told, which must be so."""
    uri = _copied(scene.uri)
    graph, store = omnigraph.open(uri), store_of(uri)
    commits = len(graph.commits())
    told, shown = "committed", "after"
    with at_write(ordinal, refuse):
        try:
            scene.query.run(graph)
        except OutcomeUnknownError as error:
            found = graph.outcome(error.operation_id or "")
            told = f"unknown, then {'committed' if found else 'not committed'}"
            shown = "after" if found else "before"
        except StorageError:
            told, shown = "not committed", "before"
            assert store.sidecars.pending() == []
    assert scene.shown(store) == shown
    assert told != "committed" or len(graph.commits()) == commits + 1
    _take_the_next_write(uri)
    return told


def _interrupt() -> None:
    raise KeyboardInterrupt


def _asked(uri: str, operations: list[str], *, read_only: bool) -> str:
    """What a handle tells of the one operation that was left behind, if there is one."""
    if not operations:
        return "no record"
    (operation,) = operations
    try:
        found = omnigraph.open(uri, read_only=read_only).outcome(operation)
    except RecoveryRequiredError:
        return "not settled"
    assert found is None or found.commit_id == operation
    return "commit" if found else "no commit"


def _opened(uri: str) -> Facts:
    omnigraph.open(uri)
    store = store_of(uri)
    assert_settled(store)
    return _facts(store)


def _facts(store: Store) -> Facts:
    state = store.manifest.load()
    audit = tuple(row.kind.value for row in store.audit.rows())
    return Facts(state.version, heads_and_pins(store), state.commits(), audit)


def _take_the_next_write(uri: str) -> None:
    graph = omnigraph.open(uri)
    head = graph.commits()[0]
    done = NEXT.run(graph)
    assert done.commit
    assert done.commit.parent_id == head.commit_id
    assert_settled(store_of(uri))


def _writes(query: Query, uri: str) -> tuple[str, ...]:
    """Run a mutation and name its durable writes."""
    with at_write(0, refuse) as writes:
        query.run(omnigraph.open(uri))
    return tuple(writes)


def _copied(uri: str) -> str:
    return str(shutil.copytree(uri, Path(uri).with_name(uuid.uuid4().hex)))


def _plain(rows: Rows) -> Rows:
    """Rows in order, without the ids that are generated: those longer than what a test would choose."""
    shortened = {key: [{**row, "id": row["id"][:5]} for row in found] for key, found in rows.items()}
    return {
        key: sorted(({**row, "id": "new" if len(row["id"]) == 5 else row["id"]} for row in found), key=str)
        for key, found in shortened.items()
    }
