"""The commit graph: which commits two others both descend from."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Container, Iterable, KeysView, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from graphlib import TopologicalSorter
from operator import or_, xor

from omnigraph.api.results import UNCERTAIN, Commit, TableVersion
from omnigraph.core.refs import MAIN
from omnigraph.errors import BranchNotFoundError
from omnigraph.manifest.publisher import Manifest
from omnigraph.manifest.state import ManifestState


class Ancestry:
    """The commits of some states. Merged commits come from other branches and are loaded only when needed."""

    def __init__(self, manifest: Manifest, states: Sequence[ManifestState]) -> None:
        self._manifest = manifest
        self._states = [*states]
        self._known = {commit.commit_id: commit for state in states for commit in state.commits()}
        self._recorded: dict[str, Mapping[str, TableVersion]] = {}
        self._looked: set[str] = set()

    def recorded(self, commit_id: str) -> Mapping[str, TableVersion] | None:
        """Return the tables of a commit that a merge has recorded: its branch, or its state there, may be gone."""
        if commit_id not in self._recorded:
            self._read_recorded()
        return self._recorded.get(commit_id)

    def unknown(self, one: Commit, other: Commit, bases: Container[str]) -> set[str]:
        """Return the merges of one side whose second parent is lost: what they brought in may be common to both.

        Those that the last merge of the two sides has named already are left out.
        """
        # Only merges on one side matter: what both sides have, both have merged in the same way.
        apart = [self._known[name] for name in self.distances(one).keys() ^ self.distances(other).keys()]
        named = {
            name
            for commit in apart
            if commit.merged_parent_id in bases and commit.details
            for name in commit.details.get(UNCERTAIN, ())
        }
        merges = [commit for commit in apart if commit.merged_parent_id]
        return {commit.commit_id for commit in merges if commit.merged_parent_id not in self._known} - named

    def brought_in(self, source: Commit, target: Commit) -> list[Commit]:
        """Return the commits that a merge of the source brings into the target."""
        here, there = self.distances(source), self.distances(target)
        # Each round may load commits with merges of their own, whose second parents are not loaded yet.
        while self._look_for(here.keys() - there.keys()):
            here, there = self.distances(source), self.distances(target)
        return [self._known[name] for name in sorted(here.keys() - there.keys())]

    def find(self, commit_id: str) -> Commit | None:
        """Return a commit if it is loaded."""
        return self._known.get(commit_id)

    def contains(self, head: Commit, commit_id: str) -> bool:
        """Whether a commit descends from another."""
        found = self.distances(head)
        while commit_id not in found and self._look_for(found):
            found = self.distances(head)
        return commit_id in found

    def distances(self, *commits: Commit) -> dict[str, int]:
        """Return the length of the shortest path to each loaded ancestor of some commits; their own is 0."""
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
        """Return the merge bases: the latest common ancestors of `other` and any of `ones`, the nearest first.

        After a criss-cross merge there are several.
        """
        # What was merged before the sides parted is loaded only to decide between several bases: otherwise the cost
        # of a merge would grow with the length of the history.
        latest = self._latest(ones, other, without, xor)
        return latest if len(latest) == 1 else self._latest(ones, other, without, or_)

    def _latest(
        self,
        ones: Sequence[Commit],
        other: Commit,
        without: Container[str],
        chosen: Callable[[KeysView[str], KeysView[str]], Iterable[str]],
    ) -> list[Commit]:
        here, there = self.distances(*ones), self.distances(other)
        while self._look_for(chosen(here.keys(), there.keys())):
            here, there = self.distances(*ones), self.distances(other)
        common = {name: here[name] + there[name] for name in here.keys() & there.keys() if name not in without}
        found = [self._known[name] for name in common]
        # Every ancestor of a common ancestor is one as well, so direct parents are enough.
        older = {parent for commit in found for parent in (commit.parent_id, commit.merged_parent_id)}
        latest = self._unrelated([commit for commit in found if commit.commit_id not in older])
        return sorted(latest, key=lambda one: (common[one.commit_id], -one.manifest_version, one.commit_id))

    def _look_for(self, names: Iterable[str]) -> bool:
        """Load the merged parents that some commits have and that are not loaded; return whether any was found."""
        merges = [self._known[name] for name in names if self._known[name].merged_parent_id]
        missing = [commit for commit in merges if commit.merged_parent_id not in self._known]
        before = len(self._known)
        for past in (state.merged_past(commit.commit_id) for commit in missing for state in self._states):
            if past is not None:
                self._add(past.commits)
                self._recorded.update(past.states)
        if len(self._known) > before or (missing and self._read_recorded()):
            return True
        # Merges of older releases record no past, and some not even the branch of their second parent.
        # The branches that the merges name come first: usually one of them has the commit, and the others need no
        # request.
        named = {commit.merged_branch for commit in missing}
        living = {*self._living} - self._looked if missing else set()
        return self._search(living & named) or (bool(living) and self._search(living - named))

    def _read_recorded(self) -> bool:
        """Load all that the merges of the states have recorded; return whether there were new commits."""
        before = len(self._known)
        for past in (past for state in self._states for past in state.merged_pasts()):
            self._add(past.commits)
            self._recorded.update(past.states)
        return len(self._known) > before

    def _search(self, branches: Iterable[str]) -> bool:
        """Load the commits of some branches; return whether there were new ones."""
        before = len(self._known)
        self._looked.update(branches)
        for name in sorted(branches):
            with suppress(BranchNotFoundError):  # deleted since it was listed
                state = self._manifest.load(None if name == MAIN else name)
                self._states.append(state)
                self._add(state.commits())
        return len(self._known) > before

    def _add(self, commits: Iterable[Commit]) -> None:
        for commit in commits:
            self._known.setdefault(commit.commit_id, commit)  # what a branch says itself has all the details

    @cached_property
    def _living(self) -> Sequence[str]:
        return self._manifest.branches()

    def _unrelated(self, commits: list[Commit]) -> list[Commit]:
        """Leave out ancestors of other commits in the list, also those reached through excluded commits."""
        if len(commits) < 2:  # noqa: PLR2004 - one is related to none
            return commits
        older = {name for commit in commits for name, steps in self.distances(commit).items() if steps}
        return [commit for commit in commits if commit.commit_id not in older]


def common_past(commits: Iterable[Commit], heads: Iterable[str]) -> set[str]:
    """Return all commits that a merge of any two heads may use as a base, and the bases of those in turn.

    Where branches were merged crosswise, two of them have several such commits, and these have some in turn.
    """
    known = {commit.commit_id: commit for commit in commits}
    # Children before parents, so that a commit has the marks of all heads below it when it is visited.
    ordered = [*TopologicalSorter({name: _parents(known, one) for name, one in known.items()}).static_order()][::-1]
    found: set[str] = set()
    asked = known.keys() & set(heads)
    while asked:
        latest = _latest(known, ordered, asked)
        asked = latest - found
        found |= latest
    return found


def _parents(known: Mapping[str, Commit], commit: Commit) -> list[str]:
    return [name for name in {commit.parent_id, commit.merged_parent_id} if name is not None and name in known]


def _latest(known: Mapping[str, Commit], ordered: Sequence[str], asked: set[str]) -> set[str]:
    """Return the commits that are latest common ancestors of at least two of the heads asked for.

    Each commit gets a bit mask of the heads that descend from it.
    """
    # A bit for each head: Python's integers have no limit, and `|` of two of them costs less than joining two sets.
    bits = {name: 1 << at for at, name in enumerate(sorted(asked))}
    below: dict[str, set[int]] = defaultdict(set)
    found = set()
    for name in ordered:
        children = below.pop(name, set())
        mine = bits.get(name, 0)
        for mask in children:
            mine |= mask
        if mine not in children and _is_latest_of_two(mine, children):
            found.add(name)
        if mine:
            for parent in _parents(known, known[name]):
                below[parent].add(mine)
    return found


def _is_latest_of_two(mine: int, children: set[int]) -> bool:
    """Whether two heads descend from a commit, and from none of its children do both."""
    left = mine
    while left:
        head = left & -left
        left ^= head
        together = head
        for mask in children:
            together |= mask if mask & head else 0
        if together != mine:
            return True
    return False
