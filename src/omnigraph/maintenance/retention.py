"""Which versions of which tables must be kept: those of kept commits, tags, and merge bases."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import chain

from omnigraph.api.results import Commit
from omnigraph.commit.store import Store
from omnigraph.errors import HistoryReclaimedError
from omnigraph.history.ancestry import common_past
from omnigraph.manifest.publisher import Manifest
from omnigraph.manifest.rows import MANIFEST_PATH, VERSION
from omnigraph.manifest.state import ManifestState
from omnigraph.manifest.time_travel import state_at
from omnigraph.storage import reclaim
from omnigraph.storage.columns import is_moved

Place = tuple[str, str | None]
"""A table, or a fork of it: its path, and the name of the fork. A branch of the manifest is one as well."""


@dataclass(frozen=True, slots=True)
class Policy:
    """Which commits to keep: so many of each branch, and those that are younger. The head is always kept."""

    keep: int | None
    older_than: dt.timedelta | None

    def __post_init__(self) -> None:
        assert self.keep is not None or self.older_than is not None, "something must be kept"

    def oldest_kept(self, commits: Sequence[Commit], now: dt.datetime) -> Commit:
        """Return the oldest kept commit of a branch."""
        # Commits that only rewrote files are not counted: how many changes are kept must not depend on upkeep.
        changes = [commit for commit in commits[:-1] if not commit.is_maintenance]
        newest = [*changes, commits[-1]][-max(self.keep or 1, 1) :]
        if self.older_than is None:
            return newest[0]
        since = before(now, self.older_than).timestamp() * 1e6
        # The state before the first young commit was still current at the start of the period.
        young = next((at for at, commit in enumerate(commits) if commit.created_at > since), len(commits))
        return min(newest[0], commits[max(young - 1, 0)], key=lambda commit: commit.order)


def before(now: dt.datetime, age: dt.timedelta) -> dt.datetime:
    """Return the time so long ago; an age beyond the calendar is as long ago as can be."""
    return now - min(age, now - dt.datetime.min.replace(tzinfo=dt.UTC))


@dataclass(frozen=True, slots=True)
class Needed:
    """The versions that some kept commit consists of, by table and fork; and every fork that a branch knows.

    The manifest is among the tables: a past state is read from the version that its commit has made. `heads` are the
    versions that branches are at; what came later was not looked at.
    """

    refs: tuple[str, ...]
    branches: tuple[str, ...]
    versions: Mapping[Place, frozenset[int]]
    heads: Mapping[Place, int]
    forks: frozenset[Place]
    paths: frozenset[tuple[str, str]]  # of each type; two branches may have added one in directories of their own


def needed(store: Store, policy: Policy, now: dt.datetime) -> Needed:
    """Collect the versions that branches and tags need."""
    tags = store.manifest.table.tags()
    collected = Collected(store, policy, now)
    forks: set[Place] = set()
    paths: set[tuple[str, str]] = set()
    named = dict(store.manifest.states())
    states = [*named.values()]
    for state in states:
        paths |= set(state.paths.items())
        forks |= {(state.paths[key], fork) for key, _, fork in _rows(state)}
        collected.need_branch(state)
    for name, tag in tags.items():  # tagged states are kept whatever their age
        collected.need(store.manifest.load_tag(name, tag))
    forks |= collected.need_for_merges(states)
    kept = {place: frozenset(found) for place, found in collected.versions.items()}
    heads: dict[Place, int] = defaultdict(int)
    for place, version in chain.from_iterable(map(places, states)):
        heads[place] = max(version, heads[place])  # a branch may inherit a table that its owner has changed since
    # Only the branches that were read: one that comes back under its old name must be read as well.
    return Needed(_refs(named, tags), tuple(named), kept, dict(heads), frozenset(forks), frozenset(paths))


def refs_of(store: Store) -> tuple[str, ...]:
    """Return the names of all branches and tags. While they are the same, no older state became needed."""
    return _refs(store.manifest.branches(), store.manifest.table.tags())


def _refs(branches: Iterable[str], tags: Iterable[str]) -> tuple[str, ...]:
    return (*branches, *(f"tag {name}" for name in sorted(tags)))


class Collected:
    """Collects needed versions. Those that an earlier cleanup removed are left out; `absent` names their commits."""

    def __init__(
        self,
        store: Store,
        policy: Policy,
        now: dt.datetime,
        read: Callable[[Manifest, Commit], ManifestState] = state_at,
    ) -> None:
        self.store = store
        self.policy = policy
        self.read = read
        self.now = now
        self.versions: dict[Place, set[int]] = defaultdict(set)
        self.absent: list[Commit] = []
        self._present = cache(self._look)

    def need(self, state: ManifestState) -> None:
        for place, version in places(state):
            self.versions[place].add(version)

    def need_branch(self, state: ManifestState) -> None:
        """Need everything published since the oldest kept commit, and that commit itself.

        A version may have changed hands between forks since, so it is kept wherever the branch has known the table.
        """
        commits = state.commits()
        oldest = self.policy.oldest_kept(commits, self.now)
        # By order and not by time: the clocks of several writers may disagree.
        kept = [commit for commit in commits if commit.order >= oldest.order and self._is_present(commit)]
        for commit in kept:
            self.versions[MANIFEST_PATH, commit.branch].add(commit.manifest_version)
        first = next((found for commit in kept if (found := self._state(commit))), state)
        self.need(first)
        self.need(state)
        self._need_between(first, state)
        if any(map(is_moved, state.paths.values())):
            # A type took the name of another one. Rows alone do not say which of the two tables they mean; states do.
            for commit in kept[1:]:
                self._need_commit(commit)

    def _need_between(self, first: ManifestState, state: ManifestState) -> None:
        known: dict[str, set[str | None]] = defaultdict(set)
        for key, entry in first.snapshot.entries.items():
            known[key].add(entry.table.branch)
        rows = _rows(state)
        for key, _, fork in rows:
            known[key].add(fork)
        for key, version, _ in rows:
            if version >= first.actual_version(key):
                for fork in known[key]:
                    self.versions[state.paths[key], fork].add(version)

    def need_for_merges(self, states: Sequence[ManifestState]) -> set[Place]:
        """Need the merge bases of any two branches: without them they could not be merged. Return their tables."""
        pasts = [past for state in states for past in state.merged_pasts()]
        known = {commit.commit_id: commit for past in pasts for commit in past.commits}
        known |= {commit.commit_id: commit for state in states for commit in state.commits()}
        recorded = {name: tables for past in pasts for name, tables in past.states.items()}
        found: set[Place] = set()
        for name in sorted(common_past(known.values(), [state.head.commit_id for state in states if state.head])):
            for table in recorded.get(name, {}).values():  # the branch that it was made on may be gone
                self.versions[table.path, table.branch].add(table.version)
                found.add((table.path, table.branch))
            if name not in recorded:
                self._need_commit(known[name])
        return found

    def _need_commit(self, commit: Commit) -> None:
        if (state := self._state(commit)) is not None:
            self.need(state)

    def _state(self, commit: Commit) -> ManifestState | None:
        """Return the state of a commit; None if an earlier cleanup removed it, or began to."""
        with suppress(HistoryReclaimedError):
            if self._is_present(commit):
                return self.read(self.store.manifest, commit)
        self.absent.append(commit)
        return None

    def _is_present(self, commit: Commit) -> bool:
        return commit.manifest_version in self._present(commit.branch)

    def _look(self, branch: str | None) -> frozenset[int]:
        if branch is not None and not self.store.manifest.table.has_branch(branch):
            return frozenset()
        return frozenset(reclaim.versions(self.store.tables, MANIFEST_PATH, branch))


def places(state: ManifestState) -> Iterator[tuple[Place, int]]:
    """Yield the versions that make up a state, that of the manifest first."""
    yield (MANIFEST_PATH, state.branch), state.version
    for entry in state.snapshot.entries.values():
        yield (entry.table.path, entry.table.branch), entry.table.version


def _rows(state: ManifestState) -> list[tuple[str, int, str | None]]:
    """Return the published versions: table, version, fork."""
    rows = state.history(VERSION)
    columns = (rows[name].to_pylist() for name in ("table_key", "table_version", "table_branch"))
    return list(zip(*columns, strict=True))
