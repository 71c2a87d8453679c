"""Merge a state into a branch, or revert a commit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from omnigraph.api.options import Resolution
from omnigraph.api.results import Commit, MergeOutcome, MergeResult
from omnigraph.commit.plan import WriteTxn
from omnigraph.commit.store import Store
from omnigraph.core.executor import ChooseExecutor
from omnigraph.core.refs import MAIN
from omnigraph.errors import BranchNotFoundError, HistoryReclaimedError, MergeError, StorageError
from omnigraph.history.ancestry import Ancestry
from omnigraph.history.apply_merge import MergeAttempt, MergeInput, apply_merge, tables_of
from omnigraph.history.diff import ChangeFilter, Diff
from omnigraph.history.resolve import graph_state_at, resolve_readable
from omnigraph.history.three_way import MergeBase
from omnigraph.manifest.publisher import Lineage, Manifest
from omnigraph.manifest.state import ManifestState
from omnigraph.manifest.time_travel import state_at
from omnigraph.storage.lance_errors import Failure, classify


@dataclass(frozen=True, slots=True)
class MergeSpec:
    """Which state to merge, by its ref, into which branch. A revert has no source."""

    source: str
    target: str | None
    actor: str | None = None
    resolution: Resolution = field(default_factory=Resolution)
    operation_id: str | None = None


def merge(store: Store, request: MergeSpec, choose: ChooseExecutor) -> MergeResult:
    """Merge the source into the target in one commit with two parents, or raise with all conflicts."""
    merging = _Merge(store, request)
    with merging.both_there():
        attempt, commit = apply_merge(store, request.target, merging.merge_input, merging.lineage, choose)
    return merging.result(attempt, commit)


def preview(store: Store, request: MergeSpec, choose: ChooseExecutor) -> MergeResult:
    """Return the result that a merge would have, conflicts included, without changing anything."""
    merging = _Merge(store, request)
    target = store.manifest.load(request.target)
    contract = store.schema_of(target)
    assert contract, "the graph was opened"
    txn = WriteTxn(request.target, target, contract.catalog)
    with merging.both_there():
        merge_input = merging.merge_input(txn)
        return merging.result(MergeAttempt(store, txn, merge_input, choose) if merge_input else None, None)


def revert(store: Store, commit: Commit, request: MergeSpec, choose: ChooseExecutor) -> MergeResult:
    """Undo one commit by a new one. Entities that have changed since are conflicts."""
    if commit.parent_id is None:
        message = f"commit '{commit.commit_id}' is the first of the graph and cannot be reverted"
        raise _impossible(message, request, "revert a later commit")
    reverting = _Revert(store, commit, request)
    attempt, done = apply_merge(store, request.target, reverting.merge_input, reverting.lineage, choose)
    assert attempt
    outcome = MergeOutcome.MERGED if done else MergeOutcome.ALREADY_UP_TO_DATE
    target = request.target or MAIN
    return MergeResult(commit.commit_id, target, outcome, attempt.counts, (), done, attempt.compared)


def _forks(state: ManifestState) -> set[str | None]:
    """Return the forks of a branch. Each has a unique name, so they identify the branch even if it is recreated."""
    return {entry.table.branch for entry in state.snapshot.entries.values()}


class _Merge:
    """A merge. The source is resolved once, so retries merge the same state."""

    def __init__(self, store: Store, request: MergeSpec) -> None:
        if request.source == (request.target or MAIN):
            message = f"branch '{request.source}' cannot be merged into itself"
            raise _impossible(message, request, "name two branches")
        self.store = store
        self.request = request
        self.source = resolve_readable(store, request.source)
        self.outcome = MergeOutcome.ALREADY_UP_TO_DATE

    @contextmanager
    def both_there(self) -> Iterator[None]:
        """Turn a missing file into BranchNotFoundError if one of the branches was deleted, and perhaps recreated."""
        try:
            yield
        except StorageError as error:
            if classify(error) is not Failure.NOT_FOUND:
                raise
            gone = [name for name in (self.source.branch, self.request.target) if name and not self._lives(name)]
            if not gone:
                raise
            raise BranchNotFoundError(f"branch '{gone[0]}' was deleted during the merge", branch=gone[0]) from error

    def _lives(self, name: str) -> bool:
        """Whether a branch exists and, for the source, is still the same one: it has the same forks."""
        if not self.store.manifest.table.has_branch(name):
            return False
        return name != self.source.branch or _forks(self.source) <= _forks(self.store.manifest.load(name))

    def merge_input(self, txn: WriteTxn) -> MergeInput | None:
        """Return what to merge into one state of the target; None if it has everything."""
        source, target = self.source.head, txn.base.head
        assert source, "a branch has commits"
        assert target, "a branch has commits"
        ancestry = Ancestry(self.store.manifest, (self.source, txn.base))
        finding = _MergeBases(self.store.manifest, ancestry)
        past = finding.of([source], target)
        if not past:
            message = f"'{self.request.source}' and '{self.request.target or MAIN}' have no common ancestor"
            raise _impossible(message, self.request, "export the entities and load them instead")
        bases = [commit.commit_id for commit, _ in past]
        if source.commit_id in bases:
            self.outcome = MergeOutcome.ALREADY_UP_TO_DATE
            return None
        self.outcome = MergeOutcome.FAST_FORWARD if bases == [target.commit_id] else MergeOutcome.MERGED
        # The result of a fast-forward is the source itself, which was validated when it was written.
        forward = self.outcome is MergeOutcome.FAST_FORWARD
        return MergeInput(finding.joined(past), self.source.snapshot, self.request.resolution, is_checked=forward)

    def lineage(self, merge_input: MergeInput) -> Lineage:
        assert self.source.head
        resolved = merge_input.resolution.to_dict()
        details = {"resolution": resolved} if resolved else None
        lineage = Lineage.new(self.request.actor, self.source.head.commit_id, details, self.request.operation_id)
        return replace(lineage, merged_branch=self.source.branch or MAIN)

    def result(self, attempt: MergeAttempt | None, commit: Commit | None) -> MergeResult:
        source, target = self.request.source, self.request.target or MAIN
        if attempt is None:
            return MergeResult(source, target, MergeOutcome.ALREADY_UP_TO_DATE)
        return MergeResult(source, target, self.outcome, attempt.counts, attempt.conflicts, commit, attempt.compared)


class _Revert:
    """A revert: a three-way merge with the commit as its base and the parent as its source."""

    def __init__(self, store: Store, commit: Commit, request: MergeSpec) -> None:
        self.store = store
        self.commit = commit
        self.request = request

    def merge_input(self, txn: WriteTxn) -> MergeInput:
        ancestry = Ancestry(self.store.manifest, [txn.base])
        assert txn.base.head
        if not ancestry.contains(txn.base.head, self.commit.commit_id):
            message = f"branch '{self.request.target or MAIN}' does not contain commit '{self.commit.commit_id}'"
            raise _impossible(message, self.request, "revert it on a branch that does")
        assert self.commit.parent_id
        parent = ancestry.find(self.commit.parent_id)
        assert parent, "the parent of a commit is on its branch"
        before, after = (graph_state_at(self.store.manifest, commit) for commit in (parent, self.commit))
        # Check before anything is staged: a cleanup may have removed what the revert has to read.
        Diff(self.store.tables, before, after, ChangeFilter()).check_readable()
        return MergeInput(MergeBase([tables_of(after.snapshot.entries)]), before.snapshot, self.request.resolution)

    def lineage(self, merge_input: MergeInput) -> Lineage:
        resolved = {"resolution": found} if (found := merge_input.resolution.to_dict()) else {}
        details = {"reverts": self.commit.commit_id, **resolved}
        return Lineage.new(self.request.actor, None, details, self.request.operation_id)


_Known = tuple[Commit, ManifestState]


class _MergeBases:
    """Finds the merge bases of two commits whose states can still be read."""

    def __init__(self, manifest: Manifest, ancestry: Ancestry) -> None:
        self.manifest = manifest
        self.ancestry = ancestry

    def joined(self, found: Sequence[_Known]) -> MergeBase:
        """Return the merge base made of several commits, and the bases of each with those before it."""
        commits = [commit for commit, _ in found]
        before = [self.joined(self.of(commits[:at], commits[at])) for at in range(1, len(commits))]
        return MergeBase([tables_of(state.snapshot.entries) for _, state in found] or [{}], before)

    def of(self, ones: Sequence[Commit], other: Commit) -> list[_Known]:
        """Return the merge bases and their states. Commits that were deleted with their branch are skipped."""
        gone: set[str] = set()
        while True:
            commits = self.ancestry.bases(ones, other, gone)
            states = [(commit, self._read(commit)) for commit in commits]
            missing = {commit.commit_id for commit, state in states if state is None}
            if not missing:
                return [(commit, state) for commit, state in states if state]
            gone |= missing

    def _read(self, commit: Commit) -> ManifestState | None:
        try:
            state = state_at(self.manifest, commit)
        except BranchNotFoundError:
            return None
        except HistoryReclaimedError:
            if self._is_there(commit):  # an older base would bring back what one side has deleted since
                raise
            return None
        return state if state.head == commit else None

    def _is_there(self, commit: Commit) -> bool:
        """Whether the branch of a commit is still the one that it was made on."""
        try:
            return self.manifest.load(commit.branch).commit(commit.commit_id) is not None
        except BranchNotFoundError:
            return False


def _impossible(message: str, request: MergeSpec, hint: str) -> MergeError:
    return MergeError(message, source=request.source, target=request.target or MAIN, hint=hint)
