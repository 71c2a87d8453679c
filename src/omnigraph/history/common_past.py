"""The common past of two states: their merge bases, as far as these can still be read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from omnigraph.api.results import Commit, Entry, Snapshot, TableVersion
from omnigraph.core.refs import MAIN
from omnigraph.errors import AmbiguousRefError, BranchNotFoundError, HistoryReclaimedError, MergeError
from omnigraph.history.ancestry import Ancestry
from omnigraph.history.resolve import tables_of
from omnigraph.history.three_way import MergeBase
from omnigraph.manifest.publisher import Manifest
from omnigraph.manifest.rows import MergedPast, StateTables
from omnigraph.manifest.state import GraphState, ManifestState
from omnigraph.manifest.time_travel import state_at

_Tables = Mapping[str, TableVersion]
_Known = tuple[Commit, _Tables]


class MergeBases:
    """Finds the merge bases of two commits whose states can still be read.

    `passed_over` are common commits that older releases deleted with their branch: an earlier base was taken.
    """

    def __init__(self, manifest: Manifest, ancestry: Ancestry) -> None:
        self.manifest = manifest
        self.ancestry = ancestry
        self.passed_over: set[str] = set()

    def joined(self, found: Sequence[_Known]) -> MergeBase:
        """Return the merge base made of several commits, and the bases of each with those before it."""
        commits = [commit for commit, _ in found]
        before = [self.joined(self.of(commits[:at], commits[at])) for at in range(1, len(commits))]
        return MergeBase([tables for _, tables in found] or [{}], before)

    def brought_in(self, source: ManifestState, target: Commit) -> MergedPast:
        """Return what a merge must record, so that later merges find it even if its branch is deleted.

        Two branches can only have entered a third one at a commit that one of them merged or branched from: so the
        tables of these are kept, and of no others.
        """
        assert source.head
        commits = {commit.commit_id: commit for commit in self.ancestry.brought_in(source.head, target)}
        return self.recorded(commits, commits, {source.head.commit_id: tables_of(source.snapshot)})

    def recorded(
        self, commits: Mapping[str, Commit], others: Mapping[str, Commit], states: dict[str, _Tables]
    ) -> MergedPast:
        """Return commits to record, with the tables of those that others were merged or branched from."""
        merged = {one.merged_parent_id for one in others.values()}
        left = {
            one.parent_id
            for one in others.values()
            if one.parent_id and one.parent_id in commits and commits[one.parent_id].branch != one.branch
        }
        for name in sorted(name for name in commits if name in merged | left and name not in states):
            with suppress(HistoryReclaimedError):  # cleaned up: no merge of living branches can start there
                found = self._read(commits[name])
                if found is not None:
                    states[name] = found
        return MergedPast(tuple(commits.values()), states)

    def of(self, ones: Sequence[Commit], other: Commit) -> list[_Known]:
        """Return the merge bases and their tables.

        Merges of older releases recorded no past: of those, commits that were deleted with their branch are skipped.
        """
        gone: set[str] = set()
        while True:
            commits = self.ancestry.bases(ones, other, gone)
            states = [(commit, self._read(commit)) for commit in commits]
            missing = {commit.commit_id for commit, tables in states if tables is None}
            if not missing:
                return [(commit, tables) for commit, tables in states if tables is not None]
            gone |= missing
            self.passed_over |= missing

    def _read(self, commit: Commit) -> _Tables | None:
        try:
            state = state_at(self.manifest, commit)
        except BranchNotFoundError:
            return self.ancestry.recorded(commit.commit_id)
        except HistoryReclaimedError:
            recorded = self.ancestry.recorded(commit.commit_id)
            if recorded is None and self._is_there(commit):
                raise  # an older base would bring back what one side has deleted since
            return recorded
        # A branch that was deleted and made again reuses version numbers: then another commit made that version.
        same = state.head is not None and state.head.commit_id == commit.commit_id
        return tables_of(state.snapshot) if same else self.ancestry.recorded(commit.commit_id)

    def _is_there(self, commit: Commit) -> bool:
        """Whether the branch of a commit is still the one that it was made on."""
        try:
            return self.manifest.load(commit.branch).commit(commit.commit_id) is not None
        except BranchNotFoundError:
            return False


def fork_point(manifest: Manifest, one: ManifestState, other: ManifestState) -> GraphState:
    """Return the state where two states parted; raise AmbiguousRefError if they have several, merged crosswise."""
    assert one.head, "a branch has commits"
    assert other.head, "a branch has commits"
    found = MergeBases(manifest, Ancestry(manifest, (one, other))).of([one.head], other.head)
    names = f"{one.branch or MAIN}...{other.branch or MAIN}"
    if not found:
        message = f"'{one.branch or MAIN}' and '{other.branch or MAIN}' have no common ancestor"
        hint = "compare the two states themselves"
        raise MergeError(message, source=other.branch or MAIN, target=one.branch or MAIN, hint=hint)
    if len(found) > 1:
        bases = [commit.commit_id for commit, _ in found]
        message = f"{names} is ambiguous: the two were merged crosswise, and last agreed in {len(bases)} commits"
        hint = f"compare with one of them: {', '.join(bases)}"
        raise AmbiguousRefError(message, name=names, candidates=bases, hint=hint)
    [(commit, tables)] = found
    # What a merge recorded of a deleted branch has no counts of rows, and comparing states needs none.
    entries = {key: Entry(table, 0) for key, table in tables.items()}
    schema = tables.schema if isinstance(tables, StateTables) else None
    return GraphState(Snapshot(commit.branch, commit.manifest_version, entries, schema), commit)
