"""Which versions of which tables somebody may still read: those of the commits that are kept."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow.compute as pc

from omnigraph.commit.store import Store
from omnigraph.manifest.rows import MAIN, Commit
from omnigraph.manifest.state import ManifestState, Snapshot
from omnigraph.storage import reclaim
from omnigraph.storage.columns import is_moved
from omnigraph.storage.tables import TableStorage

Place = tuple[str, str | None]
"""A table, or a fork of it: its path, and the name of the fork."""


@dataclass(frozen=True, slots=True)
class Policy:
    """Which commits to keep: so many of each branch, and those that are younger. The head is always kept."""

    keep: int | None
    older_than: dt.timedelta | None

    def __post_init__(self) -> None:
        assert self.keep is not None or self.older_than is not None, "something must be kept"

    def oldest_kept(self, commits: Sequence[Commit], now: dt.datetime) -> Commit:
        """Of the commits of a branch, oldest first, the first that is kept."""
        count = max(self.keep or 1, 1)
        newest = commits[-count:]
        if self.older_than is None:
            return newest[0]
        since = (now - self.older_than).timestamp() * 1e6
        # The state before the first young commit was current when the time began.
        young = next((at for at, commit in enumerate(commits) if commit.created_at > since), len(commits))
        return min(newest[0], commits[max(young - 1, 0)], key=lambda commit: commit.order)


@dataclass(frozen=True, slots=True)
class Needed:
    """The versions that some kept commit consists of, by table and fork; and every fork that a branch knows."""

    refs: tuple[str, ...]
    branches: tuple[str, ...]
    versions: Mapping[Place, frozenset[int]]
    forks: frozenset[Place]
    paths: Mapping[str, str]


def needed(store: Store, policy: Policy, now: dt.datetime) -> Needed:
    """Collect what all branches need, and what is protected by name."""
    refs = refs_of(store)
    branches = store.manifest.branches()
    versions: dict[Place, set[int]] = defaultdict(set)
    forks: set[Place] = set()
    paths: dict[str, str] = {}
    for name in branches:
        state = store.manifest.load(None if name == MAIN else name)
        paths |= state.paths
        forks |= {(state.paths[key], fork) for key, _, fork in _rows(state)}
        _need_since(store, state, policy.oldest_kept(state.commits(), now), versions)
    for tag in store.manifest.table.tags().values():  # what has a name is kept whatever its age
        _need(store.manifest.load(tag["branch"], tag["version"]), versions)
    kept = {place: frozenset(found) for place, found in versions.items()}
    return Needed(refs, tuple(branches), kept, frozenset(forks), paths)


def refs_of(store: Store) -> tuple[str, ...]:
    """The names of all branches and tags: while they are the same, nobody has begun to need something older."""
    return (*store.manifest.branches(), *(f"tag {name}" for name in sorted(store.manifest.table.tags())))


def _need(state: ManifestState, versions: dict[Place, set[int]]) -> None:
    for entry in state.snapshot.entries.values():
        versions[entry.table.path, entry.table.branch].add(entry.table.version)


def _need_since(store: Store, state: ManifestState, oldest: Commit, versions: dict[Place, set[int]]) -> None:
    """Everything that was published from a commit on, and what the commit consists of.

    A version may have changed hands between forks since, so it is kept wherever the branch has known the table.
    """
    first = store.manifest.load(oldest.branch, oldest.manifest_version)
    _need(first, versions)
    _need(state, versions)
    known: dict[str, set[str | None]] = defaultdict(set)
    for key, entry in first.snapshot.entries.items():
        known[key].add(entry.table.branch)
    rows = _rows(state)
    for key, _, fork in rows:
        known[key].add(fork)
    for key, version, _ in rows:
        if version >= first.actual_version(key):
            for fork in known[key]:
                versions[state.paths[key], fork].add(version)
    if any(map(is_moved, state.paths.values())):
        # A type took the name of another one: its rows do not tell which of two tables they are of, but states do.
        for commit in state.commits():
            if commit.order > oldest.order:
                _need(store.manifest.load(commit.branch, commit.manifest_version), versions)


def _rows(state: ManifestState) -> list[tuple[str, int, str | None]]:
    """The published versions: table, version, fork."""
    rows = state.rows.filter(pc.equal(state.rows["object_type"], "table_version"))
    columns = (rows[name].to_pylist() for name in ("table_key", "table_version", "table_branch"))
    return list(zip(*columns, strict=True))


def is_reclaimed(tables: TableStorage, snapshot: Snapshot) -> bool:
    """Tell whether a version that a state consists of is there no more."""
    return any(
        entry.table.version not in reclaim.versions(tables, entry.table.path, entry.table.branch)
        for entry in snapshot.entries.values()
    )
