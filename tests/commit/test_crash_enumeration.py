"""Death at every durable write of a publish, and at every durable write of the recovery from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path
from typing import Any, TypeVar

import pytest

from omnigraph.api.results import Commit
from omnigraph.commit import failpoints
from omnigraph.commit.audit import AuditRow, TableOutcome
from omnigraph.commit.publish import begin, publish
from omnigraph.commit.store import Store
from omnigraph.core.location import Location
from omnigraph.errors import StorageError
from omnigraph.graph import Graph
from omnigraph.manifest.segments import WINDOW
from tests.commit.child import (
    AT_ONCE,
    Child,
    Death,
    Ordinals,
    after_a_lifetime,
    die,
    hooked,
    is_renewal,
    peopled,
    store_at,
    three_tables,
)
from tests.commit.places import copied, mostly_local, once
from tests.support.graphs import COMPANY, PERSON, append, company, contents, heads_and_pins, person, plan

Name = TypeVar("Name")
STAGES = ("stage upsert", "stage delete", "stage append")
PHASES = ("write", "commit table", "commit table", "commit table", "stage", "publish", "delete")
ARCHIVING = ("write", "sync file")  # of a log segment, before the manifest that names it is staged


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
ENDS = (*[UNTOUCHED] * 4, *[ROLLED_BACK] * 3, *[ROLLED_FORWARD] * 3)


@dataclass(frozen=True, slots=True)
class Scene:
    """A graph to crash on: how it is before the change of the crash tests and after, and the steps between."""

    uri: str
    before: Mapping[str, Any]
    after: Mapping[str, Any]
    commits: int
    audits: int
    writes: tuple[str, ...]

    @property
    def lease(self) -> tuple[str, ...]:
        """On an object store a lease is durable: taken before the record is written, given back when that is gone."""
        return () if Location.parse(self.uri).is_local else ("replace",)

    @property
    def ends(self) -> tuple[End, ...]:
        """What death at each of the writes leads to."""
        return (*[UNTOUCHED for _ in self.lease], *ENDS, *[DONE for _ in self.lease])


@dataclass(frozen=True, slots=True)
class Recovery:
    """An open after a crash: where it ended, and what its audit row says of the tables."""

    end: End
    outcomes: tuple[TableOutcome, ...]


@pytest.fixture(scope="module")
def scenes() -> Callable[[str], Scene]:
    return once(lambda uri: _scene(_make(uri)))


@pytest.fixture
def small(root_uri: str, scenes: Callable[[str], Scene]) -> Scene:
    return scenes(root_uri)


@pytest.fixture(scope="module")
def crashes(scenes: Callable[[str], Scene]) -> Callable[[str], dict[str, Death]]:
    def crash(uri: str) -> dict[str, Death]:
        deaths = _deaths(scenes(uri).uri, "publish", scenes(uri).writes)
        die(deaths.values())
        return deaths

    return once(crash)


@pytest.fixture
def dead(root_uri: str, crashes: Callable[[str], dict[str, Death]]) -> dict[str, Death]:
    """A process that died at each of the writes."""
    return crashes(root_uri)


def test_a_publish_that_dies_at_any_durable_write_happened_whole_or_not_at_all(
    small: Scene, dead: dict[str, Death]
) -> None:
    assert small.writes == (*STAGES, *small.lease, *PHASES, *small.lease)
    found = {name: recovery.end for name, recovery in _recover_each(_copies(dead), small).items()}
    _print_states(len(found))
    assert found == dict(zip(dead, small.ends, strict=True))


def test_a_recovery_that_dies_at_any_durable_write_ends_as_if_it_had_not(small: Scene, dead: dict[str, Death]) -> None:
    first = dict(compress(dead.items(), [end.audit for end in small.ends]))
    if small.lease:  # requests take their time: one that is rolled back is enough, and one that is rolled forward
        ends = zip(dead.items(), small.ends, strict=True)
        first = dict({end: death for death, end in ends if end.audit}.values())
    undisturbed = _copies(first)
    writes = _writes_of_opening(undisturbed)
    second = {
        (name, again): death
        for name in first
        for again, death in _deaths(first[name].uri, "open", writes[name]).items()
    }
    die(second.values())
    once, twice = _recover_each(undisturbed, small), _recover_each(second, small)
    _print_states(len(twice))
    assert len(twice) >= (8 if small.lease else 17)
    assert twice == {(name, again): once[name] for name, again in second}


def test_a_publish_that_dies_when_old_commits_leave_the_manifest_happened_whole_or_not_at_all(tmp_path: Path) -> None:
    scene = _scene(_make(str(tmp_path / "long"), commits=2 * WINDOW - 1))
    assert scene.writes == (*STAGES, *PHASES[:4], *ARCHIVING, *PHASES[4:])
    deaths = _deaths(scene.uri, "publish", scene.writes)
    die(deaths.values())
    found = {name: recovery.end for name, recovery in _recover_each(deaths, scene).items()}
    _print_states(len(found))
    assert found == dict(zip(deaths, (*ENDS[:7], *[ROLLED_FORWARD] * 5), strict=True))


@pytest.mark.usefixtures("without_groups")
def test_a_publish_without_group_commit_that_dies_at_any_durable_write_happened_whole_or_not_at_all(
    tmp_path: Path,
) -> None:
    scene = _scene(_make(str(tmp_path / "alone")))
    deaths = _deaths(scene.uri, "publish", scene.writes)
    die(deaths.values())
    found = {name: recovery.end for name, recovery in _recover_each(deaths, scene).items()}
    assert found == dict(zip(deaths, ENDS, strict=True))


def test_a_publish_that_moves_no_table_is_one_step_and_needs_no_record(small: Scene) -> None:
    store = store_at(copied(small.uri))
    with failpoints.armed(failpoints.RECOVERY_SIDECAR_WRITE, pytest.fail):
        published = publish(store, plan(begin(store)))
    assert store.manifest.load().head == published.commit


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


@mostly_local("failpoint, number", [*STOPS], on_s3=[(failpoints.PUBLISH_AFTER_TABLE_COMMIT, 1)])
def test_a_publish_that_is_killed_from_outside_happened_whole_or_not_at_all(
    small: Scene, failpoint: str, number: int
) -> None:
    uri = copied(small.uri)
    with Child("publish", uri, "--stop-at", failpoint, "--pass", str(number)) as child:
        child.wait_until_stopped()
        seen = contents(store_at(uri))
        child.kill()
    assert seen == (small.after if failpoint in VISIBLE else small.before)
    assert _recover(uri, small).end == STOPS[failpoint, number]


@pytest.mark.usefixtures("without_groups")
@mostly_local("failpoint, number", [*STOPS][2:6], on_s3=[(failpoints.PUBLISH_AFTER_TABLE_COMMIT, 1)])
def test_a_publish_without_group_commit_that_is_killed_from_outside_happened_whole_or_not_at_all(
    small: Scene, failpoint: str, number: int
) -> None:
    uri = copied(small.uri)
    with Child("publish", uri, "--stop-at", failpoint, "--pass", str(number)) as child:
        child.wait_until_stopped()
        child.kill()
    assert _recover(uri, small).end == STOPS[failpoint, number]


# Graphs --------------------------------------------------------------------------------------------


def _make(uri: str, *, commits: int = 0) -> str:
    """Make a graph with some rows; if it needs a history, one with a recovery in it."""
    store = peopled(uri)
    if commits:
        _leave_behind(store, COMPANY)
    while len(store.manifest.load().commits()) < commits:
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
    store, changed = store_at(uri), store_at(copied(uri))
    ordinals = Ordinals()
    with hooked(ordinals):
        publish(changed, three_tables(changed))
    commits, audits = len(store.manifest.load().commits()), len(store.audit.rows())
    return Scene(uri, contents(store), contents(changed), commits, audits, tuple(ordinals.written))


# Deaths --------------------------------------------------------------------------------------------


def _deaths(uri: str, command: str, writes: Iterable[str]) -> dict[str, Death]:
    """Order a death at every one of some durable writes, each on a copy of its own."""
    return {f"{ordinal} {write}": Death(command, copied(uri), ordinal) for ordinal, write in enumerate(writes, 1)}


def _copies(dead: Mapping[str, Death]) -> dict[str, Death]:
    return {name: replace(death, uri=copied(death.uri)) for name, death in dead.items()}


def _writes_of_opening(dead: Mapping[str, Death]) -> dict[str, list[str]]:
    """Open graphs after a crash, read-write, and list what each made durable."""
    written: list[tuple[str, str]] = []

    def hook(operation: str, path: str) -> None:
        if not is_renewal(path):
            written.append((operation, path))

    with hooked(hook), ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(lambda death: _opened(death.uri), dead.values()))
    return {
        name: [operation for operation, path in written if path.startswith(f"{death.uri}/")]
        for name, death in dead.items()
    }


def _recover_each(dead: Mapping[Name, Death], scene: Scene) -> dict[Name, Recovery]:
    """Recover some graphs, several at once."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip(dead, pool.map(lambda death: _recover(death.uri, scene), dead.values()), strict=True))


def _opened(uri: str) -> Store:
    store = after_a_lifetime(store_at(uri))
    Graph(store, read_only=False)
    return store


def _recover(uri: str, scene: Scene) -> Recovery:
    """Open a graph after a crash, read-write, and look what became of it."""
    first = _facts(_opened(uri))
    store = _opened(uri)
    found = _facts(store)
    audits, commits = found.audits[scene.audits :], found.commits
    shown = contents(store)
    end = End(
        "before" if shown == scene.before else "after" if shown == scene.after else "neither",
        tuple(row.kind.value for row in audits),
        len(commits) - scene.commits,
        one_chain=[commit.parent_id for commit in commits] == [None, *(commit.commit_id for commit in commits[:-1])],
        heads_are_pins=all(head == pin for head, pin in found.heads_and_pins.values()),
        records_left=len(store.sidecars.pending()),
        changed_by_opening_again=first != found,
        takes_the_next_write=_takes_a_write(store, commits[-1]),
    )
    return Recovery(end, tuple(outcome for row in audits for outcome in row.outcomes))


@dataclass(frozen=True, slots=True)
class Facts:
    """What a graph is; of what has a version the version is enough."""

    version: int
    heads_and_pins: dict[str, tuple[int, int]]
    commits: list[Commit]
    audits: list[AuditRow]


def _facts(store: Store) -> Facts:
    state = store.manifest.load()
    return Facts(state.version, heads_and_pins(store), state.commits(), store.audit.rows())


def _takes_a_write(store: Store, head: Commit) -> bool:
    txn = begin(store)
    done = publish(store, plan(txn, append(store, txn, PERSON, [person("eve")])))
    return done.commit.parent_id == head.commit_id


def _print_states(number: int) -> None:
    print(f"\n{number} states")  # noqa: T201 - shown by pytest -s
