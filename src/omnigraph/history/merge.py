"""Merge a state into a branch: in one commit, or not at all with all conflicts reported."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from omnigraph.api.options import MergeBy, Resolution
from omnigraph.api.results import (
    STREAMS,
    UNCERTAIN,
    ChangeCounts,
    Commit,
    Entry,
    MergeOutcome,
    MergeResult,
    Snapshot,
    StreamPosition,
    TableVersion,
)
from omnigraph.commit.plan import Permit, PublishPlan, TableAction, WriterKind, WriteTxn
from omnigraph.commit.publish import write
from omnigraph.commit.store import Store
from omnigraph.core.executor import ChooseExecutor
from omnigraph.core.refs import MAIN
from omnigraph.errors import (
    BranchNotFoundError,
    MergeConflict,
    MergeConflictError,
    MergeError,
    ResolutionStaleError,
    SchemaBoundaryError,
    StorageError,
    Violation,
)
from omnigraph.history import checks, large_merge
from omnigraph.history.ancestry import Ancestry
from omnigraph.history.common_past import MergeBases
from omnigraph.history.large_merge import LargeMerge, LargeMergedTable
from omnigraph.history.resolve import resolve_readable
from omnigraph.history.schema_tables import schema_change
from omnigraph.history.three_way import MergeBase, MergedTable, TableMerge
from omnigraph.manifest.publisher import Lineage
from omnigraph.manifest.rows import MergedPast, VersionRow
from omnigraph.manifest.state import HEAD, GraphState, ManifestState
from omnigraph.storage.columns import declared_of
from omnigraph.storage.lance_errors import Failure, classify
from omnigraph.storage.stage import Staged
from omnigraph.storage.unpublished import taking_back
from omnigraph.write.validate import CommittedRows, TableChange, relation_violations, value_violations

_UNCERTAIN = "the common past of '%s' is uncertain: older releases merged these commits without recording them: %s"
_LOG = logging.getLogger(__name__)
_KINDS = {
    "endpoint": "orphan_edge",
    "unique": "unique_violation",
    "key": "unique_violation",
    "cardinality": "cardinality_violation",
}


@dataclass(frozen=True, slots=True)
class MergeSpec:
    """Which state to merge, by its ref, into which branch. What is no merge has no source."""

    source: str
    target: str | None
    actor: str | None = None
    resolution: Resolution = field(default_factory=Resolution)
    operation_id: str | None = None
    by: MergeBy = MergeBy.PROPERTY
    message: str | None = None

    @property
    def resolved(self) -> dict[str, Any]:
        """What the commit records about the resolution of its conflicts."""
        return {"resolution": found} if (found := self.resolution.to_dict()) else {}


Judge = Callable[["MergeAttempt", Commit, Commit], tuple[Mapping[str, Any], Permit | None]]
"""Judges a merge without conflicts before it is published, by its attempt and the heads of source and target.

Returns what the commit records about the decision, and what permits the merge on a protected branch.
"""


def merge(store: Store, request: MergeSpec, choose: ChooseExecutor, judge: Judge | None = None) -> MergeResult:
    """Merge the source into the target in one commit with two parents, or raise with all conflicts."""
    merging = _Merge(store, request, judge)
    with merging.both_there():
        attempt, commit = apply_merge(merging, choose)
    return merging.result(attempt, commit)


def preview(store: Store, request: MergeSpec, choose: ChooseExecutor | None, judge: Judge | None = None) -> MergeResult:
    """Return the result that a merge would have, conflicts included, without changing anything.

    Without a choice of executors nothing is written for it, and all of it is in memory.
    """
    merging = _Merge(store, request, judge)
    target = store.manifest.load(request.target)
    contract = store.schema_of(target)
    assert contract, "the graph was opened"
    txn = WriteTxn(request.target, target, contract.catalog)
    # A large merge is checked on what it would write, which is deleted again.
    with merging.both_there(), taking_back(store.tables):
        merge_input = merging.merge_input(txn)
        attempt = MergeAttempt(store, txn, merge_input, choose) if merge_input else None
        if attempt and not attempt.conflicts:
            merging.judged(attempt)
        return merging.result(attempt, None)


class BranchChange(Protocol):
    """A change to apply to a branch by a three-way merge."""

    store: Store
    request: MergeSpec

    def merge_input(self, txn: WriteTxn) -> MergeInput | None:
        """Return what to merge into one state of the branch; None if there is nothing."""
        ...

    def judged(self, attempt: MergeAttempt) -> tuple[Mapping[str, Any], Permit | None]:  # noqa: ARG002 - others judge
        """Return what was decided about the result, and what permits it on a protected branch; raise to refuse it."""
        return {}, None

    def lineage(self, stale: Mapping[str, int]) -> Lineage: ...


def apply_merge(change: BranchChange, choose: ChooseExecutor) -> tuple[MergeAttempt | None, Commit | None]:
    """Apply a three-way merge to a branch in one commit, or raise with all conflicts. No input, no change."""

    def prepare(txn: WriteTxn) -> tuple[PublishPlan | None, MergeAttempt | None]:
        merge_input = change.merge_input(txn)
        if merge_input is None:
            return None, None
        attempt = MergeAttempt(change.store, txn, merge_input, choose)
        _refuse(attempt.conflicts, attempt.unreported)
        decided, permit = change.judged(attempt)
        made = change.lineage(attempt.stale)
        made = replace(made, details={**(made.details or {}), **decided}) if decided else made
        # A merge without changes still gets its commit: its second parent makes the next merge find a later base.
        if made.merged_parent_id is None and not attempt.counts:  # a revert of a commit that is undone already
            return None, attempt
        return replace(attempt.plan(made), permit=permit), attempt

    published, attempt = write(change.store, change.request.target, prepare)
    return attempt, published.commit if published else None


def _refuse(conflicts: Sequence[MergeConflict], unreported: int) -> None:
    if conflicts:
        count = f"{len(conflicts) + unreported:,} conflicts" if len(conflicts) > 1 else "1 conflict"
        count += f", of which the first {len(conflicts):,} are reported" if unreported else ""
        hint = "look at both sides, then choose with `ours` or `theirs`, or change one of the branches"
        message = f"the two sides contradict each other, nothing was changed: {count}"
        raise MergeConflictError(message, conflicts=tuple(conflicts), hint=hint)


class _Merge:
    """A merge of one state into a branch."""

    def __init__(self, store: Store, request: MergeSpec, judge: Judge | None = None) -> None:
        if request.source == (request.target or MAIN):
            message = f"branch '{request.source}' cannot be merged into itself"
            raise impossible(message, request, "name two branches")
        self.store = store
        self.request = request
        self.judge = judge
        # Now and not in each attempt: a source that moves while the merge retries would change what it merges.
        self.source = resolve_readable(store, request.source)
        self.outcome = MergeOutcome.ALREADY_UP_TO_DATE
        self.past = MergedPast()
        self.uncertain: list[str] = []
        self.further: list[dict[str, Any]] = []
        self.target: Commit | None = None

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
        _check_heads(self.request, source, target)
        self.target = target
        finding = MergeBases(self.store.manifest, ancestry)
        self.past = finding.brought_in(self.source, target)
        self.further = [one.to_document() for one in self.source.streams if is_further(one, txn.base)]
        past = finding.of([source], target)
        if not past:
            message = f"'{self.request.source}' and '{self.request.target or MAIN}' have no common ancestor"
            raise impossible(message, self.request, "export the entities and load them instead")
        bases = [commit.commit_id for commit, _ in past]
        self.uncertain = sorted(ancestry.unknown(source, target, bases) | finding.passed_over)
        if source.commit_id in bases:
            self.outcome = MergeOutcome.ALREADY_UP_TO_DATE
            return None
        self.outcome = MergeOutcome.FAST_FORWARD if bases == [target.commit_id] else MergeOutcome.MERGED
        # The result of a fast-forward is the source itself, which was validated when it was written.
        forward = self.outcome is MergeOutcome.FAST_FORWARD
        asked = self.request
        return MergeInput(finding.joined(past), self.source.snapshot, asked.resolution, asked.by, is_checked=forward)

    def judged(self, attempt: MergeAttempt) -> tuple[Mapping[str, Any], Permit | None]:
        assert self.source.head
        assert self.target
        return self.judge(attempt, self.source.head, self.target) if self.judge else ({}, None)

    def lineage(self, stale: Mapping[str, int]) -> Lineage:
        assert self.source.head
        details: dict[str, Any] = {**self.request.resolved, **embed_again(stale)}
        if self.uncertain:
            details[UNCERTAIN] = self.uncertain
        # A stream may go on in the target once its branch is gone: what was merged must not be made again there.
        if self.further:
            details[STREAMS] = self.further
        if self.uncertain:
            _LOG.warning(_UNCERTAIN, self.request.source, ", ".join(self.uncertain))
        asked = self.request
        lineage = Lineage.new(
            asked.actor, self.source.head.commit_id, details or None, asked.operation_id, asked.message
        )
        return replace(lineage, merged_branch=self.source.head.branch or MAIN, past=self.past.to_document())

    def result(self, attempt: MergeAttempt | None, commit: Commit | None) -> MergeResult:
        source, target = self.request.source, self.request.target or MAIN
        if attempt is None:
            return MergeResult(source, target, MergeOutcome.ALREADY_UP_TO_DATE)
        assert self.source.head
        assert self.target, "an attempt has a target"
        heads = (self.source.head.commit_id, self.target.commit_id)
        return MergeResult(
            source, target, self.outcome, attempt.counts, attempt.conflicts, commit, attempt.compared, *heads
        )


def _check_heads(request: MergeSpec, source: Commit, target: Commit) -> None:
    """Refuse a resolution that was made for other commits: its conflicts may be others than those that people saw."""
    heads = request.resolution.heads
    if heads and heads != (source.commit_id, target.commit_id):
        names = f"'{request.source}' at {heads[0]} and '{request.target or MAIN}' at {heads[1]}"
        hint = "write the conflicts again with `--dry-run --conflicts FILE`, and decide those that are new"
        raise ResolutionStaleError(f"the conflict resolution was made for {names}, not for these states", hint=hint)


def is_further(position: StreamPosition, target: ManifestState) -> bool:
    """Return whether a stream has come further than the target of a merge knows."""
    known = target.stream(position.last.stream)
    # Of two queries the later one counts, and commit ids are in the order of time.
    if known is None or known.last.query != position.last.query:
        return known is None or position.commit_id > known.commit_id
    return position.last.batch > known.last.batch


def _forks(state: ManifestState) -> set[str | None]:
    """Return the forks of a branch. Each has a unique name, so they identify the branch even if it is recreated."""
    return {entry.table.branch for entry in state.snapshot.entries.values()}


def embed_again(stale: Mapping[str, int]) -> dict[str, Any]:
    """What the commit records about vectors that were made of a text that the merge has replaced."""
    return {"reembed": dict(stale)} if stale else {}


def impossible(message: str, request: MergeSpec, hint: str) -> MergeError:
    return MergeError(message, source=request.source, target=request.target or MAIN, hint=hint)


# One attempt ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MergeInput:
    """What to merge into a branch: the changes from the merge base to the source, and how conflicts are resolved.

    `is_checked` says that the result is the source itself, which was checked when it was written. `only` are ids to
    which the merge is restricted.
    """

    past: MergeBase
    source: Snapshot
    resolution: Resolution
    by: MergeBy = MergeBy.PROPERTY
    is_checked: bool = False
    only: frozenset[str] | None = None
    takes_schema: bool = True  # of the source; a revert leaves the schema of the target as it is


class MergeAttempt:
    """A merge tried on one state of the target branch; a branch that moves needs another attempt."""

    def __init__(self, store: Store, txn: WriteTxn, merge_input: MergeInput, choose: ChooseExecutor | None) -> None:
        self.choose = choose
        self.store = store
        self.txn = txn
        self.input = merge_input
        takes = merge_input.resolution if merge_input.takes_schema else None
        self.schema = schema_change(store, txn, merge_input.past, merge_input.source, takes)
        self.catalog = self.schema.change.catalog if self.schema else txn.catalog
        merge_input.resolution.check(self.catalog)
        self.tables: dict[str, MergedTable | LargeMergedTable] = {}
        self.staged: dict[str, Staged] = {}
        self.committed = CommittedRows(store.tables, txn)
        if self.schema:
            self.committed.changing = self.schema.existing()
        self.unreported = 0  # conflicts of large tables
        found = [*self.schema.change.conflicts] if self.schema else []
        if not found:  # rows of a schema that is not known cannot be compared
            self.tables = {key: combined for key in self._keys if (combined := self._combine(key))}
            found = [*self._conflicts()]
        self.conflicts = tuple(sorted(found, key=lambda one: (one.table_key, one.id or "", one.kind, one.message)))

    @property
    def _keys(self) -> list[str]:
        if self.schema:
            return self.schema.change.keys
        past = (key for base in self.input.past.bases for key in base)
        return sorted(key for key in {*self.input.source.entries, *past} if key in self.txn.entries)

    def _combine(self, key: str) -> MergedTable | LargeMergedTable | None:
        if self.schema:
            # In memory, however large: the tasks know one set of columns.
            return self.schema.merged(key, self.input.by, self.input.resolution, self.input.only)
        source, target = self.input.source.entries.get(key), self.txn.entries[key]
        tables = self.store.tables
        declared, theirs = declared_of(self.txn.catalog, key), source.table if source else None
        one = TableMerge(declared, self.input.past, theirs, target.table, self.input.by, self.input.only)
        # Row counts first: they are known, while the number of changed rows takes a look at the files of both tables.
        rows, most = target.row_count + (source.row_count if source else 0), large_merge.MOST_ROWS
        # By the rows that changed and not by the size of the table: a small change of a huge table is merged in memory.
        if (
            self.choose is None
            or self.input.only is not None
            or rows <= most
            or (rows := one.most_rows(tables)) <= most
        ):
            return one.run(tables, self.input.resolution)
        base = None if one.adopts and self._is_adoptable(key) else self.txn.writable_table(tables, key)
        return LargeMerge(tables, one, self.input.resolution, base).run(self.choose(rows))

    @property
    def _large(self) -> dict[str, LargeMergedTable]:
        return {key: one for key, one in self.tables.items() if isinstance(one, LargeMergedTable)}

    def _conflicts(self) -> tuple[MergeConflict, ...]:
        """Find rows that conflict; if there are none, the rules of the schema that the result would break."""
        # Rows first: if two sides contradict each other, violations of the schema by a half-merged result mean nothing.
        clashes = tuple(conflict for combined in self.tables.values() for conflict in combined.conflicts)
        self.unreported = sum(one.unreported for one in self._large.values())
        if clashes or self.input.is_checked:
            return clashes
        changes = {
            key: one.change for key, one in self.tables.items() if isinstance(one, MergedTable) and not one.is_empty
        }
        if self.schema and (broken := self.schema.broken_rules(changes)):
            return tuple(broken)
        found = [problem for one in self._large.values() for problem in one.problems]
        for change in changes.values():
            found += value_violations(change.declared, change.rows)
        if not any(one.problems for one in self._large.values()):  # a large table with problems is not written
            found += self._relation_violations(changes)
        return tuple(_broken(violation, self.tables) for violation in found)

    def _relation_violations(self, changes: Mapping[str, TableChange]) -> list[Violation]:
        large = {key: one for key, one in self._large.items() if not one.is_empty}
        if not large or self.choose is None:
            return list(relation_violations(self.catalog, self.committed, changes))
        # What is large is compared by tasks, which read every table as it will be.
        state = {key: self._after(key) for key in self.txn.entries}
        checked = {
            key: checks.CheckedTable(self.txn.entries[key].table, state[key], one.counts.deleted > 0)
            for key, one in large.items()
        }
        found, read = checks.relation_violations(self.store.tables, self.txn.catalog, state, checked, self.choose)
        self.committed.read_set |= read
        self.unreported += found.unreported
        self.committed.ahead = {key: state[key] for key in large}
        return [*found, *relation_violations(self.txn.catalog, self.committed, changes)]

    def _after(self, key: str) -> TableVersion:
        """Return a table as the merge will leave it. It is staged, and read before anything refers to it."""
        one = self.tables.get(key)
        if one is None or one.is_empty:
            return self.txn.entries[key].table
        if one.adopts and self._is_adoptable(key):
            return self.input.source.entries[key].table
        return replace(self._stage(key).base, version=int(self.store.tables.read_staged(self._stage(key)).version))

    def merged_state(self) -> GraphState:
        """Return the state that the merge would make. It is staged, and nothing refers to it."""
        if self.schema and self.schema.changes:
            message = "the merge changes the schema, and its result cannot be queried before it is there"
            hint = "merge a branch with the change of the schema alone first, without checks"
            raise SchemaBoundaryError(message, hint=hint)
        entries = dict(self.txn.entries)
        for key, done in self.counts.items():
            rows = entries[key].row_count + done.inserted - done.deleted
            entries[key] = Entry(self._after(key), rows)
        base = self.txn.base
        return GraphState(replace(base.snapshot, entries=entries), base.head)

    @property
    def counts(self) -> dict[str, ChangeCounts]:
        return {key: one.counts for key, one in self.tables.items() if not one.is_empty}

    @property
    def stale(self) -> dict[str, int]:
        """How many vectors of each property are null now, because the merge has replaced their text."""
        return {f"{key}.{name}": rows for key, one in self.tables.items() for name, rows in one.stale.items()}

    @property
    def compared(self) -> tuple[str, ...]:
        return tuple(key for key, combined in self.tables.items() if combined.compared)

    def plan(self, lineage: Lineage) -> PublishPlan:
        """Stage the changed tables and plan their publication."""
        if self.schema and self.schema.changes:
            return self.schema.publish_plan(self.tables, lineage, frozenset({HEAD, *self.committed.read_set}))
        adoptions = {key: row for key in self.tables if (row := self._adoption(key))}
        changing = [key for key, one in self.tables.items() if not one.is_empty and key not in adoptions]
        return PublishPlan(
            self.txn,
            WriterKind.BRANCH_MERGE,
            tuple(TableAction(self._stage(key)) for key in changing),
            adoptions=tuple(adoptions.values()),
            lineage=lineage,
            # The merge base depends on the head, so a head that moves makes the plan stale even if no table moved.
            read_set=frozenset({HEAD, *self.tables, *self.committed.read_set}),
        )

    def _adoption(self, key: str) -> VersionRow | None:
        """Return the version of main that a branch can refer to instead of copying rows, if there is one."""
        if not self.tables[key].adopts or not self._is_adoptable(key):
            return None
        entry = self.input.source.entries[key]
        return VersionRow(key, entry.table.version, None, entry.row_count)

    def _is_adoptable(self, key: str) -> bool:
        """Whether a branch can refer to the table of the source: only to one of main.

        Any other branch may be deleted together with its files.
        """
        if self.schema:
            return False
        entry, target = self.input.source.entries.get(key), self.txn.entries[key].table
        on_main = self.txn.branch is not None and entry is not None and entry.table.branch is None
        is_whole = self.input.only is None
        return is_whole and on_main and entry is not None and entry.table.version > target.version

    def _stage(self, key: str) -> Staged:
        if key not in self.staged:
            base = self.txn.writable_table(self.store.tables, self.schema.old_key(key) if self.schema else key)
            self.staged[key] = self.tables[key].stage(self.store.tables, base)
        return self.staged[key]


def _broken(violation: Violation, changes: Mapping[str, object]) -> MergeConflict:
    # A violation has the name of a type, and a node and an edge type may share one: the rule or the change decides.
    kind = _KINDS.get(violation.rule, "value_constraint_violation")
    of_node = violation.rule not in ("endpoint", "cardinality") and f"node:{violation.type_name}" in changes
    key = f"{'node' if of_node else 'edge'}:{violation.type_name}"
    return MergeConflict(kind, key, violation.entity_id, violation.message)
