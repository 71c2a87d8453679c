"""Do a change again: undo a commit, pick one for another branch, or restore entities to what they were."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from omnigraph.api.results import Commit, MergeOutcome, MergeResult
from omnigraph.commit.plan import WriteTxn
from omnigraph.commit.store import Store
from omnigraph.core.executor import ChooseExecutor
from omnigraph.core.refs import MAIN
from omnigraph.errors import EntityNotFoundError, ResolutionStaleError, SchemaBoundaryError
from omnigraph.history.ancestry import Ancestry
from omnigraph.history.diff import ChangeFilter, Diff
from omnigraph.history.merge import BranchChange, MergeInput, MergeSpec, apply_merge, embed_again, impossible
from omnigraph.history.resolve import TypeRef, graph_state_at, resolve_readable, tables_of
from omnigraph.history.three_way import MergeBase
from omnigraph.lang.evolution import renames_of
from omnigraph.manifest.publisher import Lineage
from omnigraph.manifest.rows import StateTables
from omnigraph.manifest.state import GraphState, ManifestState
from omnigraph.storage.read import ID

_MOST_NAMED = 100  # restored entities that a commit names


def revert(store: Store, commit: Commit, request: MergeSpec, choose: ChooseExecutor) -> MergeResult:
    """Undo one commit by a new one. Entities that have changed since are conflicts."""
    if commit.parent_id is None:
        message = f"commit '{commit.commit_id}' is the first of the graph and cannot be reverted"
        raise impossible(message, request, "revert a later commit")
    return _applied(_Revert(store, commit, request), commit, choose)


def pick(store: Store, commit: Commit, request: MergeSpec, choose: ChooseExecutor) -> MergeResult:
    """Make the changes of one commit on another branch, by a new commit. What contradicts them is a conflict."""
    if commit.parent_id is None:
        message = f"commit '{commit.commit_id}' is the first of the graph and cannot be picked"
        raise impossible(message, request, "pick a later commit")
    return _applied(_Pick(store, commit, request), commit, choose)


def restore_entities(store: Store, wanted: RestoreSpec, request: MergeSpec, choose: ChooseExecutor) -> MergeResult:
    """Bring a type, or some of its entities, to what they were in another state, by a new commit."""
    restoring = _Restore(store, wanted, request)
    return _applied(restoring, restoring.commit, choose)


def _applied(change: BranchChange, commit: Commit, choose: ChooseExecutor) -> MergeResult:
    attempt, done = apply_merge(change, choose)
    assert attempt, "it always has an input"
    outcome = MergeOutcome.MERGED if done else MergeOutcome.ALREADY_UP_TO_DATE
    target = change.request.target or MAIN
    return MergeResult(commit.commit_id, target, outcome, attempt.counts, (), done, attempt.compared)


class _Replay(BranchChange):
    """A commit done again: a three-way merge between it and its first parent. `why` names it in the new commit."""

    why: str

    def __init__(self, store: Store, commit: Commit, request: MergeSpec) -> None:
        if request.resolution.heads:
            message = "the conflict resolution was made for a merge of two branches"
            raise ResolutionStaleError(message, hint="choose with `ours` or `theirs`, or by type, property or entity")
        self.store = store
        self.commit = commit
        self.request = request

    def lineage(self, stale: Mapping[str, int]) -> Lineage:
        asked = self.request
        details = {self.why: self.commit.commit_id, **asked.resolved, **embed_again(stale)}
        return Lineage.new(asked.actor, None, details, asked.operation_id, asked.message)

    def _between(self, base: GraphState, source: GraphState) -> MergeInput:
        if base.snapshot.schema != source.snapshot.schema:
            message = f"commit '{self.commit.commit_id}' changed the schema and cannot be applied to entities alone"
            raise SchemaBoundaryError(message, hint="apply that schema; earlier commits have what was dropped")
        # Check before anything is staged: a cleanup may have removed what has to be read.
        Diff(self.store.tables, base, source, ChangeFilter()).check_readable()
        past, asked = MergeBase([tables_of(base.snapshot)]), self.request
        return MergeInput(past, source.snapshot, asked.resolution, asked.by, takes_schema=False)


class _Revert(_Replay):
    """The commit is the base, and its parent the source."""

    why = "reverts"

    def merge_input(self, txn: WriteTxn) -> MergeInput:
        ancestry = Ancestry(self.store.manifest, [txn.base])
        assert txn.base.head
        if not ancestry.contains(txn.base.head, self.commit.commit_id):
            message = f"branch '{self.request.target or MAIN}' does not contain commit '{self.commit.commit_id}'"
            raise impossible(message, self.request, "revert it on a branch that does")
        assert self.commit.parent_id
        parent = ancestry.find(self.commit.parent_id)
        assert parent, "the parent of a commit is on its branch"
        before, after = (graph_state_at(self.store.manifest, commit) for commit in (parent, self.commit))
        return self._between(after, before)


class _Pick(_Replay):
    """The parent of the commit is the base, and the commit the source. Of a merge it is the first parent."""

    why = "picked"

    def merge_input(self, txn: WriteTxn) -> MergeInput:  # noqa: ARG002 - what is picked is the same on every state
        manifest = self.store.manifest
        assert self.commit.parent_id
        parent = manifest.load(self.commit.branch).commit(self.commit.parent_id)
        assert parent, "the parent of a commit is on its branch"
        return self._between(*(graph_state_at(manifest, commit) for commit in (parent, self.commit)))


@dataclass(frozen=True, slots=True)
class RestoreSpec:
    """What to restore: a type, all of it or some ids, to the state that a ref names."""

    type: TypeRef
    ids: frozenset[str] | None
    ref: str


class _Restore(BranchChange):
    """The branch itself is the base, and what is restored the source: so nothing contradicts, and rules are checked."""

    def __init__(self, store: Store, wanted: RestoreSpec, request: MergeSpec) -> None:
        self.store = store
        self.request = request
        self.wanted = wanted
        self.state: ManifestState = resolve_readable(store, wanted.ref)
        assert self.state.head, "a branch has commits"
        self.commit = self.state.head
        self.key = ""

    def merge_input(self, txn: WriteTxn) -> MergeInput:
        self.key = self.wanted.type.key(txn.entries)
        snapshot = self.state.snapshot
        then = self._key_then(txn)
        entries = {name: entry for name, entry in snapshot.entries.items() if name == then}
        now = tables_of(txn.base.snapshot)
        base = StateTables({self.key: now[self.key]}, now.schema, is_known=True)
        self._check_ids(txn, then)
        asked = self.request
        source = replace(snapshot, entries=entries)
        past = MergeBase([base])
        return MergeInput(past, source, asked.resolution, asked.by, only=self.wanted.ids, takes_schema=False)

    def _key_then(self, txn: WriteTxn) -> str:
        """Return the key that the type had in the state to restore."""
        rows = (self.state.schema, txn.base.schema)
        if rows[0] == rows[1]:
            return self.key
        names = renames_of(*(self.store.ids_of_row(row) for row in rows)).types
        if self.key not in names:
            message = f"'{self.wanted.ref}' has no type {self.wanted.type.name}, or another one of that name"
            raise SchemaBoundaryError(message, hint="choose a state since the type was added")
        return names[self.key]

    def _check_ids(self, txn: WriteTxn, then: str) -> None:
        """Raise if an entity is in neither state: a misspelt id would restore nothing, silently."""
        missing = set(self.wanted.ids or ())
        for key, entries in ((then, self.state.snapshot.entries), (self.key, txn.entries)):
            if missing and key in entries:
                found = self.store.tables.lookup(entries[key].table, ID, pa.array(sorted(missing), pa.string()), [ID])
                missing -= set(found[ID].to_pylist())
        if missing:
            name = min(missing)
            message = f"there is no {self.wanted.type.name} '{name}', neither now nor then"
            raise EntityNotFoundError(message, type_name=self.wanted.type.name, id=name, hint="check the id")

    def lineage(self, stale: Mapping[str, int]) -> Lineage:
        asked, ids = self.request, sorted(self.wanted.ids or ())
        restored: dict[str, Any] = {"commit": self.commit.commit_id, "table_key": self.key}
        if self.wanted.ids is not None:
            restored |= {"ids": ids[:_MOST_NAMED], "count": len(ids)}
        return Lineage.new(
            asked.actor, None, {"restored": restored, **embed_again(stale)}, asked.operation_id, asked.message
        )
