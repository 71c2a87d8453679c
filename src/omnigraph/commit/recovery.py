"""Recovery: finish or undo the operations of dead writers, from the facts that their records name.

A record is acted on only under all the gates of its operation, so its writer is finished or dead. Transaction uuids
show what moved a table, never version numbers. Every id that recovery needs was made with the record, so dying anywhere
in here and starting over leads to the same end.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

from omnigraph.api.results import Commit, TableVersion
from omnigraph.commit import failpoints
from omnigraph.commit.audit import AuditRow, RecoveryKind, TableOutcome
from omnigraph.commit.gates import Gate, Held
from omnigraph.commit.plan import WriterKind, gates_for
from omnigraph.commit.sidecar import Pin, Sidecar
from omnigraph.commit.staged_schema import put_in_place
from omnigraph.commit.store import Store
from omnigraph.core.refs import MAIN
from omnigraph.errors import CorruptGraphError, ExpectedVersionMismatchError, GateTimeoutError
from omnigraph.lang.identity import new_id
from omnigraph.manifest.publisher import Changes, Lineage, Member
from omnigraph.manifest.rows import MANIFEST_PATH, TableRow, TombstoneRow, VersionRow
from omnigraph.manifest.schema_files import leftovers, promote
from omnigraph.manifest.state import ManifestState
from omnigraph.storage.torn import set_aside_refs

RECOVERY_ACTOR = "omnigraph:recovery"
_LOG = logging.getLogger(__name__)


class Movement(Enum):
    """What happened to one pinned table."""

    NONE = auto()  # its head is its pin
    COMPLETE = auto()  # exactly the planned transaction moved it
    RESTORED = auto()  # a rollback restored it and is not published yet
    UNEXPECTED = auto()  # moved by something else, or by more than was planned


@dataclass(frozen=True, slots=True)
class Observed:
    """A pin, and the head of its table."""

    pin: Pin
    table: TableVersion
    manifest_version: int
    movement: Movement


def sweep(store: Store) -> int:
    """Recover every pending operation when a graph is opened; raise if one cannot be recovered."""
    return sum(_recover_alone(store, operation, store.gates.patience) for operation in store.sidecars.pending())


def heal(store: Store, patience: float = 0) -> int:
    """Recover pending operations before a write, oldest first. In steady state this is one listing."""
    return sum(recover_operation(store, operation, patience) for operation in store.sidecars.pending())


def recover_operation(store: Store, operation_id: str, patience: float | None = None) -> bool:
    """Recover one operation. Without `patience`, wait for its gates as long as any writer would.

    If its tables contradict the manifest it is left alone: it blocks writers of those tables, and no others.
    """
    try:
        return _recover_alone(store, operation_id, patience)
    except CorruptGraphError as error:
        _LOG.warning("operation %s cannot be recovered: %s", operation_id, error.message)
        return False


def _recover_alone(store: Store, operation_id: str, patience: float | None) -> bool:
    """Recover one operation under its gates. If they cannot be taken within `patience` seconds, its writer is alive."""
    failpoints.reach(failpoints.RECOVERY_AFTER_LIST)
    sidecar = store.sidecars.read(operation_id)
    if sidecar is None:
        _set_aside_record(store, operation_id)
        return False
    gates = gates_for(sidecar.branch, sidecar.table_keys)
    try:
        with store.gates.hold(gates, patience, lambda: store.sidecars.exists(operation_id)) as held:
            # The writer may have finished while we waited.
            sidecar = store.sidecars.read(operation_id)
            return sidecar is not None and recover(store, sidecar, held)
    except GateTimeoutError as error:
        _LOG.info("operation %s is under way: %s", operation_id, error.message)
        return False


def nothing_moved(store: Store, sidecar: Sidecar) -> bool:
    """Return whether an operation has moved no table, so that there is nothing to undo."""
    return all(seen.movement is Movement.NONE for seen in _observe(store, sidecar, store.manifest.load(sidecar.branch)))


def recover(store: Store, sidecar: Sidecar, held: Held) -> bool:
    """Finish or undo one operation; return False if it was left for later. The caller holds its gates."""
    set_aside_manifest(store, sidecar.branch)
    # Records of version 1 and 2 lack the ids that make recovery repeatable; they are added and stored first.
    if sidecar.rollback_commit_id is None:
        held.check()
        completed = store.sidecars.with_ids(sidecar.operation_id)
        if completed is None:
            return False
        sidecar = completed
    try:
        _Recovery(store, sidecar, held).run()
    except ExpectedVersionMismatchError as error:
        # A program that takes no gates published one of the tables meanwhile. The next recovery looks again.
        _LOG.warning("operation %s is left for later: %s", sidecar.operation_id, error.message)
        return False
    return True


# After a power cut ----------------------------------------------------------------------------------


def set_aside_torn(store: Store, branch: str | None) -> bool:
    """Set aside the newest versions of a branch's manifest if a power cut tore them; return whether it did."""
    if not store.manifest.table.is_torn(branch):
        return False
    with store.gates.hold(gates_for(branch, ())):
        return set_aside_manifest(store, branch)


def set_aside_torn_refs(store: Store) -> None:
    """Set aside the files of branches and tags that a power cut tore: Lance cannot list any branch beside them."""
    for path in store.torn_refs():
        with store.gates.hold([Gate("refs")]):
            for name in set_aside_refs(path):
                _record_torn(store, store.manifest.load(), name)


def set_aside_manifest(store: Store, branch: str | None) -> bool:
    """Do what `set_aside_torn` does. The caller holds the gate of the branch."""
    torn = store.manifest.table.set_aside_torn(branch)
    if torn:
        state = store.manifest.load(branch)
        _record_torn(store, state, MANIFEST_PATH, TableOutcome(MANIFEST_PATH, max(torn), state.version))
    return bool(torn)


def set_aside_table(store: Store, state: ManifestState, pinned: TableVersion) -> bool:
    """Set aside the versions of a table past its pin that a power cut tore. The caller holds the gate of the table."""
    torn = store.tables.set_aside_torn(pinned)
    if torn:
        _record_torn(store, state, pinned.path, TableOutcome(pinned.key, max(torn), pinned.version))
    return bool(torn)


def _set_aside_record(store: Store, operation_id: str) -> None:
    """Set aside a recovery record that a power cut tore: its operation had not moved a head."""
    if store.sidecars.set_aside_torn(operation_id):
        _record_torn(store, store.manifest.load(), operation_id)


def _record_torn(store: Store, state: ManifestState, path: str, *outcomes: TableOutcome) -> None:
    commit_id = state.head.commit_id if state.head else ""
    _LOG.warning("%s: files torn by a power cut were set aside", path)
    store.audit.record(AuditRow(commit_id, RecoveryKind.TORN_SET_ASIDE, None, new_id(), path, outcomes))


# Looking -------------------------------------------------------------------------------------------


def _observe(store: Store, sidecar: Sidecar, state: ManifestState) -> list[Observed]:
    """Look at every table of a record that can still be finished or undone.

    Tables that were dropped since are left out, and so are forks that the branch has replaced by others.
    """
    dropped = state.tombstones.keys() - state.snapshot.entries.keys()
    return [
        _seen(store, sidecar, pin, state)
        for pin in sidecar.tables
        if pin.table_key not in dropped and not _is_abandoned(pin, state) and not _is_torn_fork(store, pin, state)
    ]


def _is_torn_fork(store: Store, pin: Pin, state: ManifestState) -> bool:
    """Return whether a power cut tore a fork that was made for this operation. Nothing names it, so it can stay."""
    entry = state.snapshot.entries.get(pin.table_key)
    is_new = pin.table_branch is not None and entry is not None and entry.table.branch != pin.table_branch
    path = state.paths.get(pin.table_key, pin.table_path)
    return is_new and store.tables.is_torn(path, pin.table_branch)


def _is_abandoned(pin: Pin, state: ManifestState) -> bool:
    entry = state.snapshot.entries.get(pin.table_key)
    elsewhere = entry is not None and entry.table.branch != pin.table_branch
    return elsewhere and state.actual_version(pin.table_key) != pin.expected_version


def _seen(store: Store, sidecar: Sidecar, pin: Pin, state: ManifestState) -> Observed:
    manifest_version = state.actual_version(pin.table_key)
    # The manifest knows where a table is now; the record is for one that was never published.
    path = state.paths.get(pin.table_key, pin.table_path)
    set_aside_table(store, state, TableVersion(pin.table_key, path, manifest_version, pin.table_branch))
    head = store.tables.head(path, pin.table_branch).version
    table = TableVersion(pin.table_key, path, head, pin.table_branch)
    if head < manifest_version:
        message = f"the head of table '{pin.table_key}' is version {head}, before its pin {manifest_version}"
        raise CorruptGraphError(message, path=path, hint="the recovery record is kept; run `omnigraph doctor`")
    return Observed(pin, table, manifest_version, _movement(store, sidecar, pin, table, manifest_version))


def _movement(store: Store, sidecar: Sidecar, pin: Pin, table: TableVersion, manifest_version: int) -> Movement:
    if table.version == manifest_version:
        return Movement.NONE
    made_by = store.tables.made_by(table)
    if made_by and made_by.uuid == pin.rollback_uuid:
        # A restore that came late may have restored an older pin, and hide what was published since.
        return Movement.RESTORED if made_by.restored == manifest_version else Movement.UNEXPECTED
    if pin.transaction_uuid is None:
        return _movement_by_number(sidecar, pin, table, manifest_version)
    planned = made_by and made_by.uuid == pin.transaction_uuid and table.version == pin.post_commit_pin
    return Movement.COMPLETE if planned and manifest_version == pin.expected_version else Movement.UNEXPECTED


def _movement_by_number(sidecar: Sidecar, pin: Pin, table: TableVersion, manifest_version: int) -> Movement:
    """Judge a table of a record of version 1 or 2. Those name no transactions, so the rules of their writers apply."""
    if pin.expected_version != manifest_version:
        return Movement.UNEXPECTED
    if sidecar.writer_kind == "BranchMerge" and sidecar.schema_version > 1:
        done = pin.confirmed_version == table.version
    elif sidecar.writer_kind in ("Mutation", "Load"):
        done = table.version == pin.post_commit_pin == manifest_version + 1
    else:
        done = True
    return Movement.COMPLETE if done else Movement.UNEXPECTED


class _Recovery:
    """Finishes or undoes one operation, under its gates."""

    def __init__(self, store: Store, sidecar: Sidecar, held: Held) -> None:
        self.store = store
        self.sidecar = sidecar
        self.held = held

    def run(self) -> None:
        if self._is_orphan():
            self._discard_orphan()
            return
        self.state = self.store.manifest.load(self.sidecar.branch)
        if published := self._published():
            self._finish(*published)
            return
        # After `_published`: tables of a published operation may have been moved on by later writers.
        self.observed = _observe(self.store, self.sidecar, self.state)
        if self._was_finished_by_number():
            self._publish(Changes(), {}, RecoveryKind.ROLLED_FORWARD)
        elif self._is_complete():
            self._roll_forward()
        else:
            self._roll_back()

    # Deciding

    def _is_orphan(self) -> bool:
        """Return whether the branch is gone. The listing decides: opening the branch may fail for other reasons."""
        return self.sidecar.branch is not None and self.sidecar.branch not in self.store.manifest.branches()

    def _published(self) -> tuple[RecoveryKind, Commit] | None:
        """Return the commit by which this operation was published or undone, by its writer or an earlier recovery."""
        known = (
            (RecoveryKind.ROLLED_FORWARD, self.sidecar.commit_id),
            (RecoveryKind.ROLLED_BACK, self.sidecar.rollback_commit_id),
        )
        found = ((kind, self.state.commit(commit_id)) for kind, commit_id in known if commit_id)
        return next(((kind, commit) for kind, commit in found if commit), None)

    def _was_finished_by_number(self) -> bool:
        """Return whether a record without transaction ids belongs to a finished write.

        It does if no table has moved from its pin, and a pin is past the record or a table that it creates exists.
        """
        still = all(seen.movement is Movement.NONE for seen in self.observed)
        passed = any(seen.manifest_version > seen.pin.expected_version for seen in self.observed)
        made = any(one.table_key in self.state.paths for one in self.sidecar.additional_registrations)
        return not self.sidecar.names_transactions and still and (passed or made)

    def _is_complete(self) -> bool:
        """Return whether everything planned has happened.

        A schema change of ours is never rolled forward here: before its publish it is undone, after it `_published` is
        true. Other implementations stage schema files last, which shows that their change was complete.
        """
        if self.sidecar.writer_kind == WriterKind.SCHEMA_APPLY and not self._is_schema_staged():
            return False
        moved = all(seen.movement is Movement.COMPLETE for seen in self.observed)
        return moved and len(self.observed) == len(self.sidecar.tables)

    def _is_schema_staged(self) -> bool:
        """Return whether another implementation staged schema files. They know no schema row in the manifest."""
        return not self.sidecar.names_transactions and not self.state.schema and bool(leftovers(self.store.objects))

    # Acting

    def _roll_forward(self) -> None:
        """Publish the heads as they are. Nothing is committed again: a transaction committed twice doubles its rows."""
        failpoints.reach(failpoints.RECOVERY_BEFORE_ROLL_FORWARD)
        if self.sidecar.members:
            self._roll_members_forward()
            return
        rows = tuple(_version_row(self.store, seen.table) for seen in self.observed)
        if self.sidecar.writer_kind == WriterKind.SCHEMA_APPLY:
            self._publish(self._schema_changes(rows), self._expected(self.observed), RecoveryKind.ROLLED_FORWARD)
            return
        adopted = self.sidecar.adoptions
        taken = tuple(VersionRow(one.table_key, one.version, None, one.row_count) for one in adopted)
        expected = self._expected(self.observed) | {one.table_key: one.expected_version for one in adopted}
        self._publish(Changes((*rows, *taken)), expected, RecoveryKind.ROLLED_FORWARD)

    def _roll_members_forward(self) -> None:
        """Publish several commits whose tables have all moved, each with the versions that its record names."""
        tables = {seen.pin.table_key: seen.table for seen in self.observed}
        at = time.time_ns() // 1000
        members = []
        for number, one in enumerate(self.sidecar.members):
            moved = (replace(tables[key], version=version) for key, version in one.versions.items())
            rows = tuple(_version_row(self.store, table) for table in moved)
            lineage = Lineage(one.commit_id, RECOVERY_ACTOR, created_at=at + number, details=one.details)
            members.append(Member(Changes(rows), lineage))
        self._publish_members(members, self._expected(self.observed), RecoveryKind.ROLLED_FORWARD)

    def _schema_changes(self, rows: tuple[VersionRow, ...]) -> Changes:
        """Return the tables that come and go with a schema that another implementation staged."""
        made = [one for one in self.sidecar.additional_registrations if one.table_key not in self.state.paths]
        heads = (head_row(self.store, one.table_key, one.table_path, one.table_branch) for one in made)
        gone = [one for one in self.sidecar.tombstones if one.table_key in self.state.snapshot.entries]
        return Changes(
            (*rows, *heads),
            tuple(TableRow(one.table_key, one.table_path) for one in made),
            tuple(TombstoneRow(one.table_key, one.tombstone_version) for one in gone),
        )

    def _roll_back(self) -> None:
        """Restore every table that moved to its pin, and publish the restored heads: then heads are pins again.

        Where a gate can be lost unnoticed, a writer may wake up and continue. There the tables that it has not moved
        are restored as well: a transaction staged before a restore can no longer be committed.
        """
        fence = self.store.gates.can_be_lost
        moved = [seen for seen in self.observed if fence or seen.movement is not Movement.NONE]
        rows = tuple(_version_row(self.store, self._restore(seen)) for seen in moved)
        self._publish(Changes(rows), self._expected(moved), RecoveryKind.ROLLED_BACK)

    def _restore(self, seen: Observed) -> TableVersion:
        # An earlier recovery restored it and died before publishing: restoring again would add a version for nothing.
        if seen.movement is Movement.RESTORED:
            return seen.table
        assert seen.pin.rollback_uuid
        self.held.check()
        staged = self.store.tables.stage_restore(seen.table, seen.manifest_version, seen.pin.rollback_uuid)
        done = self.store.tables.commit_staged(staged, seen.table.version + 1)
        failpoints.reach(failpoints.RECOVERY_AFTER_TABLE_RESTORE)
        return replace(seen.table, version=done.version)

    def _discard_orphan(self) -> None:
        """Record the end of an operation whose branch is gone, in a commit on main."""
        with self.store.gates.hold([Gate(f"branch:{MAIN}")], self.store.gates.patience) as self.held:
            self.state = self.store.manifest.load(None)
            commit_id = self.sidecar.rollback_commit_id
            assert commit_id
            # The audit row shows that an earlier recovery got this far and died before it deleted the record.
            if self.store.audit.has(self.sidecar.operation_id):
                self.store.sidecars.delete(self.sidecar.operation_id)
            elif commit := self.state.commit(commit_id):
                self._finish(RecoveryKind.ORPHANED_BRANCH_DISCARDED, commit)
            else:
                self._publish(Changes(), {}, RecoveryKind.ORPHANED_BRANCH_DISCARDED)

    def _expected(self, observed: Sequence[Observed]) -> dict[str, int]:
        return {seen.pin.table_key: seen.manifest_version for seen in observed}

    def _publish(self, changes: Changes, expected: dict[str, int], kind: RecoveryKind) -> None:
        forward = kind is RecoveryKind.ROLLED_FORWARD
        # The writer's own id: if it wakes up and publishes after all, it finds its change done.
        commit_id = self.sidecar.commit_id if forward else self.sidecar.rollback_commit_id
        assert commit_id
        merged = self.sidecar.merge_source_commit_id if forward else None
        details = self.sidecar.details if forward else None
        branch = self.sidecar.merge_source_branch if forward else None
        past = self.sidecar.merge_past if forward else None
        lineage = Lineage(commit_id, RECOVERY_ACTOR, merged, time.time_ns() // 1000, details, branch, past)
        self._publish_members([Member(changes, lineage)], expected, kind)

    def _publish_members(self, members: Sequence[Member], expected: dict[str, int], kind: RecoveryKind) -> None:
        tables = [TableVersion(pin.table_key, pin.table_path, 0, pin.table_branch) for pin in self.sidecar.tables]

        def ready() -> None:
            self.store.sync(tables)
            self.held.check()

        published = self.store.manifest.publish_group(self.state.branch, members, expected, ready=ready)[-1]
        self.state = published.state
        self._finish(kind, published.commit)

    def _finish(self, kind: RecoveryKind, commit: Commit) -> None:
        """Write the audit row, then delete the record; in this order, so that no recovery goes unrecorded.

        Outcomes are read from the state that the commit made, so every attempt records the same.
        """
        sidecar, then = self.sidecar, self.state
        if then.version != commit.manifest_version:
            then = self.store.manifest.load(then.branch, commit.manifest_version)
        outcomes = tuple(outcome for pin in sidecar.tables for outcome in _outcomes(self.store, kind, pin, then))
        self.held.check()
        if kind is RecoveryKind.ROLLED_FORWARD and sidecar.writer_kind == WriterKind.SCHEMA_APPLY:
            self._promote()
        for row in _audit_rows(sidecar, kind, commit, outcomes):
            self.store.audit.record(row)
        self.store.sync()
        self.store.sidecars.delete(sidecar.operation_id)

    def _promote(self) -> None:
        """Put the files of a published schema in place."""
        if self.sidecar.schema_source is not None:
            promote(self.store.objects, self.sidecar.schema_source)
        elif self._is_schema_staged():
            put_in_place(self.store.objects)


def _audit_rows(
    sidecar: Sidecar, kind: RecoveryKind, commit: Commit, outcomes: tuple[TableOutcome, ...]
) -> Iterator[AuditRow]:
    """Yield a row for each commit of an operation."""
    before = {pin.table_key: pin.expected_version for pin in sidecar.tables}
    for one in sidecar.members:
        own, moved = commit.commit_id, tuple(outcome for outcome in outcomes if outcome.table_key in one.versions)
        if kind is RecoveryKind.ROLLED_FORWARD:
            own = one.commit_id
            moved = tuple(TableOutcome(key, before[key], version) for key, version in one.versions.items())
            before |= one.versions
        yield AuditRow(own, kind, one.actor_id, one.commit_id, one.writer_kind, moved)
    if not sidecar.members:
        yield AuditRow(commit.commit_id, kind, sidecar.actor_id, sidecar.operation_id, sidecar.writer_kind, outcomes)


def _outcomes(store: Store, kind: RecoveryKind, pin: Pin, then: ManifestState) -> Iterator[TableOutcome]:
    """Yield what a recovery did to a table, read from the version that it published."""
    entry = then.snapshot.entries.get(pin.table_key)
    if kind is RecoveryKind.ORPHANED_BRANCH_DISCARDED or entry is None:
        return
    if kind is RecoveryKind.ROLLED_FORWARD:
        after = pin.post_commit_pin if pin.transaction_uuid else entry.table.version
        yield TableOutcome(pin.table_key, pin.expected_version, after)
        return
    made_by = store.tables.made_by(entry.table)
    if made_by and made_by.uuid == pin.rollback_uuid and made_by.restored is not None:
        before = entry.table.version - 1
        if before > made_by.restored:  # otherwise it was only restored to fence off a late commit
            yield TableOutcome(pin.table_key, before, made_by.restored)


def head_row(store: Store, key: str, path: str, branch: str | None) -> VersionRow:
    """Return the manifest row that publishes a table at its head."""
    return _version_row(store, TableVersion(key, path, store.tables.head(path, branch).version, branch))


def _version_row(store: Store, table: TableVersion) -> VersionRow:
    return VersionRow(table.key, table.version, table.branch, store.tables.open(table).count_rows())
