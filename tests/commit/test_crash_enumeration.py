"""Death at every durable write of a publish, and at every durable write of the recovery from it."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import obstore
import pytest

from omnigraph.commit import failpoints
from omnigraph.commit.audit import Outcome
from omnigraph.commit.publish import begin, publish
from omnigraph.commit.store import Store
from omnigraph.errors import StorageError
from omnigraph.graph import Graph, init
from omnigraph.manifest.publisher import MAX_FRAGMENTS
from omnigraph.storage.internal import fragment_count
from tests.commit.child import Child, Ordinals, hooked, store_at, three_tables
from tests.support import graphs
from tests.support.graphs import COMPANY, KNOWS, PERSON, append, company, contents, edge, heads_and_pins, person, plan

_AT_ONCE = 2
_LIFETIME = 2.0  # of a lease: to be waited for when its holder is dead, to be kept on a busy machine

STAGES = ("stage upsert", "stage delete", "stage append")
PHASES = ("write", "commit table", "commit table", "commit table", "publish", "delete")


@dataclass(frozen=True, slots=True)
class End:
    """What a crash led to. What has a default must be so wherever it happened."""

    shows: str
    audit: tuple[str, ...] = ()
    commits: int = 0
    one_chain: bool = True
    heads_are_pins: bool = True
    records_left: int = 0
    changed_by_opening_again: bool = False
    takes_the_next_write: bool = True


UNTOUCHED = End("before")
ROLLED_BACK = End("before", ("RolledBack",), commits=1)
ROLLED_FORWARD = End("after", ("RolledForward",), commits=1)
DONE = End("after", commits=1)
ENDS = (*[UNTOUCHED] * 4, *[ROLLED_BACK] * 3, *[ROLLED_FORWARD] * 2)


@dataclass(frozen=True, slots=True)
class Scene:
    """A graph to crash on: how it is before the change of the crash tests and after, and the steps between."""

    uri: str
    before: Mapping[str, Any]
    after: Mapping[str, Any]
    commits: int
    audits: int
    writes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Recovery:
    """An open after a crash: where it ended, and what its audit row says of the tables."""

    end: End
    outcomes: tuple[Outcome, ...]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return _scene(_make(str(tmp_path_factory.mktemp("crash") / "small")))


def test_a_publish_that_dies_at_any_durable_write_happened_whole_or_not_at_all(small: Scene, tmp_path: Path) -> None:
    assert small.writes == STAGES + PHASES
    crashed = _die_at_each(small.writes, "publish", small.uri, str(tmp_path))
    found = {name: _recover(uri, small).end for name, uri in crashed.items()}
    assert found == dict(zip(_names(small.writes), ENDS, strict=True))
    _print_states(len(found))


def test_a_recovery_that_dies_at_any_durable_write_ends_as_if_it_had_not(small: Scene, tmp_path: Path) -> None:
    ordinals = [ordinal for ordinal, end in enumerate(ENDS, 1) if end.audit]
    crashed = _die_at("publish", small.uri, {str(tmp_path / str(ordinal)): ordinal for ordinal in ordinals})
    once: dict[str, Recovery] = {}
    twice: dict[str, Recovery] = {}
    for uri in crashed:
        undisturbed, writes = _copy(uri, f"{uri}-once"), Ordinals()
        with hooked(writes):
            Graph(store_at(undisturbed), read_only=False)
        deaths = _die_at_each(writes.written, "open", uri, f"{uri}-twice")
        recovery = _recover(undisturbed, small)
        for name, again in deaths.items():
            death = f"{Path(uri).name}, then {name}"
            once[death], twice[death] = recovery, _recover(again, small)
    assert len(twice) >= 17
    assert twice == once
    _print_states(len(twice))


def test_a_publish_that_dies_when_a_compaction_is_due_happened_whole_or_not_at_all(tmp_path: Path) -> None:
    scene = _scene(_make(str(tmp_path / "long"), fragments=MAX_FRAGMENTS - 1))
    assert scene.writes == (*STAGES, *PHASES, "compact")
    crashed = _die_at_each(scene.writes, "publish", scene.uri, str(tmp_path))
    found = {name: _recover(uri, scene).end for name, uri in crashed.items()}
    assert found == dict(zip(_names(scene.writes), (*ENDS, DONE), strict=True))
    _print_states(len(found))


def test_a_publish_that_moves_no_table_is_finished_too(small: Scene, tmp_path: Path) -> None:
    uri = _copy(small.uri, str(tmp_path / "tableless"))
    _leave_behind(store_at(uri))
    assert _recover(uri, small).end == replace(ROLLED_FORWARD, shows="before")


STOPS = {
    (failpoints.PUBLISH_AFTER_GATES, 1): UNTOUCHED,
    (failpoints.RECOVERY_SIDECAR_WRITE, 1): UNTOUCHED,
    (failpoints.PUBLISH_AFTER_SIDECAR, 1): ROLLED_BACK,
    (failpoints.PUBLISH_AFTER_TABLE_COMMIT, 1): ROLLED_BACK,
    (failpoints.PUBLISH_AFTER_TABLE_COMMIT, 3): ROLLED_FORWARD,
    (failpoints.PUBLISH_BEFORE_MANIFEST, 1): ROLLED_FORWARD,
    (failpoints.PUBLISH_AFTER_MANIFEST, 1): ROLLED_FORWARD,
    (failpoints.RECOVERY_SIDECAR_DELETE, 1): ROLLED_FORWARD,
}
VISIBLE = (failpoints.PUBLISH_AFTER_MANIFEST, failpoints.RECOVERY_SIDECAR_DELETE)


def test_every_failpoint_of_a_publish_is_one_to_be_killed_at() -> None:
    named = {value for name, value in vars(failpoints).items() if name.startswith("PUBLISH_")}
    assert named <= {failpoint for failpoint, _ in STOPS}


@pytest.mark.parametrize("failpoint, number", STOPS)
def test_a_publish_that_is_killed_from_outside_happened_whole_or_not_at_all(
    small: Scene, tmp_path: Path, failpoint: str, number: int
) -> None:
    uri = _copy(small.uri, str(tmp_path / "killed"))
    with Child("publish", uri, "--stop-at", failpoint, "--pass", str(number)) as child:
        child.wait_until_stopped()
        seen = contents(store_at(uri))
        child.kill()
    assert seen == (small.after if failpoint in VISIBLE else small.before)
    assert _recover(uri, small).end == STOPS[failpoint, number]


def test_a_publish_to_an_object_store_that_dies_happened_whole_or_not_at_all(s3_uri: str) -> None:
    """A lease is durable too: it is taken before the record is written and given back after that is deleted."""
    scene = _scene(_make(s3_uri))
    assert scene.writes == (*STAGES, "replace", *PHASES, "replace")
    ends = {
        5: UNTOUCHED,  # a lease is left, and no record
        6: ROLLED_BACK,  # nothing moved
        8: ROLLED_BACK,  # something moved
        9: ROLLED_FORWARD,  # everything moved
        10: ROLLED_FORWARD,  # published
        11: DONE,  # a lease is left
    }
    crashed = _die_at("publish", s3_uri, {f"{s3_uri}-{ordinal}": ordinal for ordinal in ends})
    with ThreadPoolExecutor(len(ends)) as pool:  # what takes time is waiting for the leases of the dead
        found = list(pool.map(lambda uri: _recover(uri, scene).end, crashed))
    assert dict(zip(ends, found, strict=True)) == ends
    _print_states(len(found))


# Graphs --------------------------------------------------------------------------------------------


def _make(uri: str, *, fragments: int = 0) -> str:
    """Make a graph with some rows; if it needs a history, one with a recovery in it."""
    init(uri, graphs.SCHEMA)
    store = store_at(uri)
    txn = begin(store)
    rows = (
        append(store, txn, PERSON, [person("ann", 30), person("bob", 2), person("cat", 3)]),
        append(store, txn, KNOWS, [edge("e1", "ann", "bob"), edge("e2", "bob", "cat")]),
        append(store, txn, COMPANY, [company("xerc")]),
    )
    publish(store, plan(txn, *rows))
    if fragments:
        _leave_behind(store, COMPANY)
    while fragment_count(store.manifest.table.open()) < fragments:
        publish(store, plan(begin(store)))
    return uri


def _leave_behind(store: Store, *keys: str) -> None:
    """Stop a publish half-way."""

    def fail() -> None:
        raise StorageError("the disk is gone", path="", operation="test")

    txn = begin(store)
    rows = [append(store, txn, key, [company("late")]) for key in keys]
    with failpoints.armed(failpoints.PUBLISH_BEFORE_MANIFEST, fail), pytest.raises(StorageError):
        publish(store, plan(txn, *rows))


def _scene(uri: str) -> Scene:
    """Look at a graph, make the change on a copy of it, and look at that."""
    store, changed = store_at(uri), store_at(_copy(uri, f"{uri}-changed"))
    ordinals = Ordinals()
    with hooked(ordinals):
        publish(changed, three_tables(changed))
    commits, audits = len(store.manifest.load().commits()), len(store.audit.rows())
    return Scene(uri, contents(store), contents(changed), commits, audits, tuple(ordinals.written))


def _copy(uri: str, to: str) -> str:
    store, target = store_at(uri), store_at(to)
    if store.location.is_local:
        shutil.copytree(uri, to)
        return to
    bucket, key = store.objects._store, f"{store.location.key}/"
    for found in (item for batch in obstore.list(bucket, key) for item in batch):
        obstore.copy(bucket, str(found["path"]), f"{target.location.key}/{str(found['path']).removeprefix(key)}")
    return to


# Deaths --------------------------------------------------------------------------------------------


def _names(writes: Iterable[str]) -> list[str]:
    return [f"{ordinal} {write}" for ordinal, write in enumerate(writes, 1)]


def _die_at_each(writes: Iterable[str], command: str, uri: str, beside: str) -> dict[str, str]:
    """Die at every one of some durable writes, each on a copy of its own, by the name of the write."""
    crashed = {name: f"{beside}/{name}" for name in _names(writes)}
    _die_at(command, uri, {to: ordinal for ordinal, to in enumerate(crashed.values(), 1)})
    return crashed


def _die_at(command: str, uri: str, ordinals: Mapping[str, int]) -> list[str]:
    """Have a process die at a durable write, on copies of a graph, a few at a time."""

    def run(to: str) -> str:
        with Child(command, _copy(uri, to), "--die-at", str(ordinals[to])) as child:
            child.die()
        return to

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(run, ordinals))


def _recover(uri: str, scene: Scene) -> Recovery:
    """Open a graph after a crash, read-write, and look what became of it."""
    store = store_at(uri, lifetime=_LIFETIME)
    Graph(store, read_only=False)
    first = _facts(store)
    Graph(store_at(uri, lifetime=_LIFETIME), read_only=False)
    second = _facts(store)
    commits, audits = store.manifest.load().commits(), store.audit.rows()[scene.audits :]
    shown = contents(store)
    end = End(
        "before" if shown == scene.before else "after" if shown == scene.after else "neither",
        tuple(row.kind.value for row in audits),
        len(commits) - scene.commits,
        one_chain=[commit.parent_id for commit in commits] == [None, *(commit.commit_id for commit in commits[:-1])],
        heads_are_pins=all(head == pin for head, pin in heads_and_pins(store).values()),
        records_left=len(store.sidecars.pending()),
        changed_by_opening_again=first != second,
        takes_the_next_write=_takes_a_write(store),
    )
    return Recovery(end, tuple(outcome for row in audits for outcome in row.outcomes))


def _facts(store: Store) -> tuple[object, ...]:
    return contents(store), heads_and_pins(store), store.audit.rows(), store.manifest.load().version


def _takes_a_write(store: Store) -> bool:
    txn = begin(store)
    publish(store, plan(txn, append(store, txn, PERSON, [person("eve")])))
    return person("eve") in contents(store)[PERSON]


def _print_states(number: int) -> None:
    print(f"\n{number} states")  # noqa: T201 - shown by pytest -s
