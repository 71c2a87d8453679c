"""Death at every durable write of what makes, changes, merges and removes branches, and of the recovery from it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest

import omnigraph
from omnigraph.api.results import Commit
from omnigraph.commit.store import Store
from omnigraph.errors import BranchNotFoundError, RefExistsError
from omnigraph.manifest.rows import MANIFEST_PATH
from tests.commit.child import Ordinals, hooked, is_renewal, store_at
from tests.commit.places import copied
from tests.history.crashing import (
    OPERATIONS,
    Death,
    State,
    arranged,
    branch_of,
    bring,
    die,
    drifted,
    look,
    opened,
    person,
    writes_of,
)
from tests.support.faults import CrashError, crash
from tests.support.mutations import broken_rules

WRITES = {
    "first write": ("fork table", "stage upsert", "fork table", "stage append", *["commit table"] * 2),
    "fast-forward": (
        *("write rows", "stage replacement", "stage delete", "write rows", "write rows", "stage replacement"),
        *["commit table"] * 4,
    ),
    "three-way merge": (
        *("write rows", "stage replacement", "stage delete", "write rows", "write rows", "stage replacement"),
        *["commit table"] * 4,
    ),
    "merge that takes tables over": ("write rows", "stage replacement", "commit table"),
    "merge that forks": ("fork table", "write rows", "fork table", "write rows", *["commit table"] * 2),
    "revert": ("stage delete", "write rows", "stage replacement", *["commit table"] * 2),
}
# What the commit of a merge tells: whence it came, and how conflicts were settled.
TOLD: dict[str, tuple[str, object]] = {
    "fast-forward": ("feature", None),
    "three-way merge": ("feature", {"resolution": {"default": "theirs"}}),
    "merge that takes tables over": ("main", None),
    "merge that forks": ("feature", None),
}


@dataclass(frozen=True, slots=True)
class Scene:
    """An operation and the graph for it: what every branch holds before and after, and the durable writes between."""

    name: str
    uri: str
    before: State
    after: State
    commits: int
    writes: tuple[str, ...]

    @property
    def branch(self) -> str:
        return OPERATIONS[self.name].branch

    def shown(self, uri: str) -> str:
        found = look(uri)
        assert [rule for rows in found.values() for rule in broken_rules(rows)] == []
        return "before" if found == self.before else "after" if found == self.after else "neither"

    def deaths(self, chosen: slice = slice(None)) -> list[Death]:
        """Order a death before each of some writes, each on a copy of its own."""
        ordinals = range(1, len(self.writes) + 1)[chosen]
        return [Death(self.name, copied(self.uri), ordinal) for ordinal in ordinals]


@dataclass(frozen=True, slots=True)
class End:
    """What a death led to. What has a default must be so wherever it happened."""

    shows: str
    at_once: str = "before"
    audit: tuple[str, ...] = ()
    commits: int = 0
    drifted: int = 0
    records_left: int = 0
    changed_by_opening_again: bool = False
    done_again_shows: str = "after"


UNTOUCHED = End("before")
ROLLED_BACK = End("before", audit=("RolledBack",), commits=1)
ROLLED_FORWARD = End("after", audit=("RolledForward",), commits=1)
VISIBLE = replace(ROLLED_FORWARD, at_once="after")
DONE = End("after", "after", commits=1)


def _expected(writes: tuple[str, ...]) -> list[End]:
    """Nothing has happened until the record is written, and it can only be finished once all tables have moved."""
    armed, moved, published = (writes.index(name) for name in ("write record", "stage", "publish"))
    done = writes.index("delete record")
    return [
        *[UNTOUCHED] * (armed + 1),
        *[ROLLED_BACK] * (moved - armed - 1),
        *[ROLLED_FORWARD] * (published - moved + 1),
        *[VISIBLE] * (done - published),
        *[DONE] * (len(writes) - done - 1),
    ]


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Scene]:
    @cache
    def scene(name: str) -> Scene:
        return _scene(name, str(tmp_path_factory.mktemp("graphs") / "one"))

    return scene


def _scene(name: str, uri: str) -> Scene:
    arranged(uri, name)
    changed = copied(uri)
    writes = writes_of(name, changed)
    return Scene(name, uri, look(uri), look(changed), len(_commits(store_at(uri), OPERATIONS[name].branch)), writes)


@pytest.mark.parametrize("name", WRITES)
def test_what_dies_at_any_durable_write_happened_whole_or_not_at_all(scenes: Callable[[str], Scene], name: str) -> None:
    scene = scenes(name)
    moves = WRITES[name].index("commit table")
    staged, moved = WRITES[name][:moves], WRITES[name][moves:]
    assert scene.writes == (*staged, "write record", *moved, "stage", "publish", "delete record")
    deaths = scene.deaths()
    die(deaths)
    assert [_end(scene, death.uri) for death in deaths] == _expected(scene.writes)


@pytest.mark.parametrize("name", ["three-way merge", "merge that takes tables over", "merge that forks"])
def test_a_recovery_that_dies_at_any_durable_write_ends_as_if_it_had_not(
    scenes: Callable[[str], Scene], name: str
) -> None:
    scene = scenes(name)
    published = scene.writes.index("publish")
    deaths = scene.deaths(slice(published - 1, published + 2))
    die(deaths)
    for death in deaths:
        kept = copied(death.uri)
        ordinals = Ordinals()
        with hooked(ordinals):
            opened(death.uri)
        expected = _end(scene, death.uri, at_once="")
        assert len(ordinals.written) > 1
        for ordinal in range(1, len(ordinals.written) + 1):
            _put_back(kept, death.uri)
            with pytest.raises(CrashError), hooked(_crash_at(ordinal)):
                opened(death.uri)
            assert _end(scene, death.uri, at_once="") == expected, scene.writes[death.ordinal - 1]


@pytest.mark.parametrize("name", ["first write", "merge that takes tables over"])
def test_what_dies_on_an_object_store_happened_whole_or_not_at_all(name: str, s3_uri: str) -> None:
    """There recovery fences off what can still come, so that even an untouched table is restored."""
    scene = _scene(name, s3_uri)
    published = scene.writes.index("publish")
    chosen = slice(published - 1, published + 2)  # the manifest in two steps, the record
    deaths = scene.deaths(chosen)
    die(deaths)
    assert [_end(scene, death.uri) for death in deaths] == _expected(scene.writes)[chosen]


# Branches ------------------------------------------------------------------------------------------


def test_a_branch_that_was_not_made_is_not_there_and_can_be_made(scenes: Callable[[str], Scene]) -> None:
    scene = scenes("branch create")
    assert scene.writes == ("create branch",)
    (death,) = scene.deaths()
    die([death])
    assert _end(scene, death.uri) == UNTOUCHED


def test_a_branch_is_gone_with_its_name_and_can_be_made_anew_whatever_was_left_of_it(
    scenes: Callable[[str], Scene],
) -> None:
    scene = scenes("branch delete")
    assert scene.writes == ("write", "delete branch"), "first the mark that older merges are recorded"
    deaths = scene.deaths()
    die(deaths)
    assert [scene.shown(death.uri) for death in deaths] == ["before"] * 2
    for death in deaths:
        graph = opened(death.uri)
        graph.delete_branch("feature")
        graph.create_branch("feature")
        bring(graph, "feature", person("zoe", 1))
        graph.merge("feature")
        names = [row["name"] for row in look(death.uri)["main"]["node:Person"]]
        assert names == ["ann", "bob", "cat", "dan", "zoe"]
        assert drifted(store_at(death.uri)) == []


@pytest.mark.parametrize("writes", [0, 3])
@pytest.mark.parametrize("commits", [0, 2, 5])
def test_a_branch_that_lance_made_or_removed_half_way_is_not_in_the_way(
    tmp_path: Path, writes: int, commits: int
) -> None:
    """Lance makes a branch by its files first and its name last, and removes it the other way around."""
    uri = arranged(str(tmp_path / "graph"), "branch create")
    graph = omnigraph.open(uri)
    graph.create_branch("feature")
    for number in range(writes):
        bring(graph, "feature", person(f"old{number}", 1))
    (tmp_path / "graph" / MANIFEST_PATH / "_refs" / "branches" / "feature.json").unlink()
    for number in range(commits):
        bring(graph, "main", person(f"new{number}", 1))
    assert graph.branches() == ["main"]

    graph.create_branch("feature")

    found = look(uri)
    assert found["feature"] == found["main"]
    assert graph.commits("feature") == graph.commits()
    bring(graph, "feature", person("last", 1))
    assert graph.merge("feature").outcome == "fast_forward"
    assert look(uri)["main"] == look(uri)["feature"]


# Looking -------------------------------------------------------------------------------------------


def _end(scene: Scene, uri: str, at_once: str | None = None) -> End:
    """Look at a graph after a death, open it, look again, and do what was to be done once more."""
    seen = scene.shown(uri) if at_once is None else at_once
    opened(uri)
    first = _facts(uri)
    graph = opened(uri)
    store = store_at(uri)
    shown, audit = scene.shown(uri), tuple(row.kind.value for row in store.audit.rows())
    if scene.branch in store.manifest.branches():
        commits = _commits(store, scene.branch)
        assert [commit.parent_id for commit in commits] == [None, *(commit.commit_id for commit in commits[:-1])]
        added = len(commits) - scene.commits
        assert shown == "before" or scene.name not in TOLD or _told(commits[-1]) == TOLD[scene.name]
        # What was brought in is recorded also if recovery publishes the merge: later merges start there.
        past = store.manifest.load(branch_of(scene.branch)).merged_past(commits[-1].commit_id)
        newest = {one.commit_id for one in past.commits} if past else set()
        assert shown == "before" or scene.name not in TOLD or commits[-1].merged_parent_id in newest
    else:
        added = 0
    end = End(
        shown,
        seen,
        audit,
        added,
        len(drifted(store)),
        len(store.sidecars.pending()),
        changed_by_opening_again=first != _facts(uri),
        done_again_shows="",
    )
    with suppress(RefExistsError, BranchNotFoundError):
        again = OPERATIONS[scene.name].act(graph)
        assert shown == "before" or scene.name not in TOLD or again.outcome == "already_up_to_date"
    end = replace(end, done_again_shows=scene.shown(uri))
    bring(graph, "main", person("next", 1))
    assert drifted(store_at(uri)) == []
    return end


def _told(commit: Commit) -> tuple[str | None, object]:
    assert commit.merged_parent_id
    return commit.merged_branch, commit.details


def _facts(uri: str) -> tuple[object, ...]:
    store = store_at(uri)
    states = {name: store.manifest.load(branch_of(name)) for name in store.manifest.branches()}
    versions = {name: (state.version, state.snapshot, state.commits()) for name, state in states.items()}
    return versions, store.audit.rows()


def _commits(store: Store, branch: str) -> list[Commit]:
    return store.manifest.load(branch_of(branch)).commits() if branch in store.manifest.branches() else []


def _put_back(kept: str, uri: str) -> None:
    """Let a graph be again as it was, at the place where it was: elsewhere, opening would first have to move in."""
    shutil.rmtree(uri)
    shutil.copytree(kept, uri)


def _crash_at(ordinal: int) -> Callable[[str, str], None]:
    seen: list[str] = []

    def hook(operation: str, path: str) -> None:
        if not is_renewal(path):
            seen.append(operation)
        if len(seen) == ordinal:
            crash()

    return hook
