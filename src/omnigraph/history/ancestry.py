"""The commit graph: which past two commits have in common."""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Mapping, Sequence
from functools import cached_property

from omnigraph.manifest.publisher import Manifest
from omnigraph.manifest.rows import MAIN, Commit
from omnigraph.manifest.state import ManifestState


class Ancestry:
    """The commits of some states. Others are looked for on all branches, but only when one is missing."""

    def __init__(self, manifest: Manifest, states: Iterable[ManifestState]) -> None:
        self._manifest = manifest
        self._known = {commit.commit_id: commit for state in states for commit in state.commits()}

    def find(self, commit_id: str) -> Commit | None:
        """Find a commit; None when the branch that had it is gone."""
        return self._known.get(commit_id) or self._elsewhere.get(commit_id)

    @cached_property
    def _elsewhere(self) -> Mapping[str, Commit]:
        states = [self._manifest.load(None if name == MAIN else name) for name in self._manifest.branches()]
        return {commit.commit_id: commit for state in states for commit in state.commits()}

    def distances(self, *commits: Commit) -> dict[str, int]:
        """How many steps each ancestor of some commits is away, by the shortest way; they themselves are at 0."""
        found, waiting = {commit.commit_id: 0 for commit in commits}, deque(commits)
        while waiting:
            one = waiting.popleft()
            for parent_id in (one.parent_id, one.merged_parent_id):
                parent = self.find(parent_id) if parent_id and parent_id not in found else None
                if parent:
                    found[parent.commit_id] = found[one.commit_id] + 1
                    waiting.append(parent)
        return found

    def bases(self, ones: Sequence[Commit], other: Commit, without: Container[str] = ()) -> list[Commit]:
        """The latest commits that both one of some and another descend from, the nearest first.

        One that another descends from tells nothing more. Where branches were merged crosswise several are left.
        """
        here, there = self.distances(*ones), self.distances(other)
        common = {name: here[name] + there[name] for name in here.keys() & there.keys() if name not in without}
        found = [commit for name in common if (commit := self.find(name))]
        older = {ancestor for commit in found for ancestor in self._parents_among(commit, common)}
        latest = self._unrelated([commit for commit in found if commit.commit_id not in older])
        return sorted(latest, key=lambda one: (common[one.commit_id], -one.manifest_version, one.commit_id))

    def _unrelated(self, commits: list[Commit]) -> list[Commit]:
        """Leave out those that others descend from by way of a commit that does not count."""
        if len(commits) < 2:  # noqa: PLR2004 - one is related to none
            return commits
        older = {name for commit in commits for name, steps in self.distances(commit).items() if steps}
        return [commit for commit in commits if commit.commit_id not in older]

    def _parents_among(self, commit: Commit, common: Mapping[str, int]) -> Iterable[str]:
        """Every ancestor of a common commit is common, so those right before it are enough to know."""
        return (name for name in (commit.parent_id, commit.merged_parent_id) if name and name in common)
