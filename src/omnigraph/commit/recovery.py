"""Recovery: finish or undo the operations whose writers could not, from the facts their records name.

A record is acted on only under all the gates of its operation, so its writer is finished or dead. What moved a
table is told by transaction uuid, never by comparing numbers, and every id recovery needs was made with the record:
dying anywhere in here and starting over leads to the same end.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from omnigraph.commit import failpoints
from omnigraph.commit.audit import AuditRow, Outcome, RecoveryKind
from omnigraph.commit.gates import Gate
from omnigraph.commit.plan import gates_for
from omnigraph.commit.sidecar import Pin, Sidecar
from omnigraph.commit.store import Store
from omnigraph.errors import CorruptGraphError, GateTimeoutError
from omnigraph.lang.identity import new_id
from omnigraph.manifest.publisher import Changes, Lineage
from omnigraph.manifest.rows import TableRow, TombstoneRow, VersionRow
from omnigraph.manifest.state import ManifestState
from omnigraph.storage.tables import TableVersion

RECOVERY_ACTOR = "omnigraph:recovery"
_LOG = logging.getLogger(__name__)


class Movement(Enum):
    """What became of one pinned table."""

    NONE = auto()  # its head is its pin
    COMPLETE = auto()  # exactly the planned transaction moved it
    RESTORED = auto()  # a rollback has restored it, and is not published yet
    UNEXPECTED = auto()  # moved by something else, or by more than was planned


@dataclass(frozen=True, slots=True)
class Observed:
    """A pin and where its table stands."""

    pin: Pin
    table: TableVersion
    manifest_version: int
    movement: Movement


def heal(store: Store, patience: float = 0) -> int:
    """Recover every operation that was left behind, oldest first; in steady state this is one listing.

    An operation whose gates cannot be had within `patience` seconds is under way: it is left alone.
    """
    recovered = 0
    for operation_id in store.sidecars.pending():
        failpoints.reach(failpoints.RECOVERY_AFTER_LIST)
        sidecar = store.sidecars.read(operation_id)
        if sidecar is None:
            continue
        try:
            with store.gates.hold(_gates(store, sidecar), patience):
                # Its writer may have finished while we waited.
                sidecar = store.sidecars.read(operation_id)
                if sidecar is not None:
                    recover(store, sidecar)
                    recovered += 1
        except GateTimeoutError as error:
            _LOG.info("operation %s is under way: %s", operation_id, error.message)
    return recovered


def _gates(store: Store, sidecar: Sidecar) -> list[Gate]:
    """The gates of an operation; if its branch is gone, nobody can hold them, and it is main that gets the commit."""
    if _is_orphan(store, sidecar):
        return gates_for(None, [])
    return gates_for(sidecar.branch, sidecar.table_keys)


def _is_orphan(store: Store, sidecar: Sidecar) -> bool:
    """Decide by the list of branches: failing to open one may have other reasons."""
    return sidecar.branch is not None and sidecar.branch not in store.manifest.branches()


def recover(store: Store, sidecar: Sidecar) -> None:
    """Finish or undo one operation. The caller holds its gates."""
    if _is_orphan(store, sidecar):
        _discard_orphan(store, sidecar)
        return
    state = store.manifest.load(sidecar.branch)
    observed = [_observe(store, sidecar, pin, state) for pin in sidecar.tables]
    if _is_published(state, sidecar):
        _finish(store, sidecar, _published_kind(observed), _recorded_commit(state, sidecar), observed)
    elif all(seen.movement is Movement.COMPLETE for seen in observed):
        _roll_forward(store, sidecar, state, observed)
    else:
        _roll_back(store, sidecar, state, observed)


# Looking -------------------------------------------------------------------------------------------


def _observe(store: Store, sidecar: Sidecar, pin: Pin, state: ManifestState) -> Observed:
    manifest_version = state.actual_version(pin.table_key)
    path = state.paths.get(pin.table_key, pin.table_path)
    head = store.tables.head(path, pin.table_branch).version
    table = TableVersion(pin.table_key, path, head, pin.table_branch)
    if head < manifest_version:
        message = f"the head of table '{pin.table_key}' is version {head}, before its pin {manifest_version}"
        raise CorruptGraphError(message, path=path, hint="the recovery record is kept; run `omnigraph doctor`")
    return Observed(pin, table, manifest_version, _movement(store, sidecar, pin, table, manifest_version))


def _movement(store: Store, sidecar: Sidecar, pin: Pin, table: TableVersion, manifest_version: int) -> Movement:
    if table.version == manifest_version:
        return Movement.NONE
    if pin.transaction_uuid is None:
        return _movement_by_number(sidecar, pin, table, manifest_version)
    made_by = store.tables.transaction_uuid(table)
    if made_by == pin.rollback_uuid:
        return Movement.RESTORED
    planned = made_by == pin.transaction_uuid and table.version == pin.post_commit_pin
    return Movement.COMPLETE if planned and manifest_version == pin.expected_version else Movement.UNEXPECTED


def _movement_by_number(sidecar: Sidecar, pin: Pin, table: TableVersion, manifest_version: int) -> Movement:
    """Records of version 1 and 2 name no transactions; they keep the rules they were written under."""
    if pin.expected_version != manifest_version:
        return Movement.UNEXPECTED
    if sidecar.writer_kind == "BranchMerge" and sidecar.schema_version > 1:
        done = pin.confirmed_version == table.version
    elif sidecar.writer_kind in ("Mutation", "Load"):
        done = table.version == pin.post_commit_pin == manifest_version + 1
    else:
        done = True
    return Movement.COMPLETE if done else Movement.UNEXPECTED


def _is_published(state: ManifestState, sidecar: Sidecar) -> bool:
    known = any(commit_id and state.has(commit_id) for commit_id in (sidecar.commit_id, sidecar.recovery_commit_id))
    passed = sidecar.commit_id is None and any(
        state.actual_version(pin.table_key) > pin.expected_version for pin in sidecar.tables
    )
    return known or passed


def _recorded_commit(state: ManifestState, sidecar: Sidecar) -> str:
    for commit_id in (sidecar.recovery_commit_id, sidecar.commit_id):
        if commit_id and state.has(commit_id):
            return commit_id
    assert state.head
    return state.head.commit_id


def _published_kind(observed: Sequence[Observed]) -> RecoveryKind:
    """A rollback leaves the planned version behind it; a publish, by the writer or by us, ends at it."""
    undone = any(seen.manifest_version > seen.pin.post_commit_pin for seen in observed)
    return RecoveryKind.ROLLED_BACK if undone else RecoveryKind.ROLLED_FORWARD


# Acting --------------------------------------------------------------------------------------------


def _lineage(sidecar: Sidecar, merged_parent_id: str | None = None) -> Lineage:
    commit_id = sidecar.recovery_commit_id or new_id()
    return Lineage(commit_id, RECOVERY_ACTOR, merged_parent_id, time.time_ns() // 1000)


def _roll_forward(store: Store, sidecar: Sidecar, state: ManifestState, observed: Sequence[Observed]) -> None:
    """Publish what the heads already are."""
    failpoints.reach(failpoints.RECOVERY_BEFORE_ROLL_FORWARD)
    versions = [_version_row(store, seen.table) for seen in observed]
    added = [item for item in sidecar.additional_registrations if item.table_key not in state.paths]
    versions += [head_row(store, item.table_key, item.table_path, item.table_branch) for item in added]
    changes = Changes(
        tuple(versions),
        tuple(TableRow(item.table_key, item.table_path) for item in added),
        tuple(TombstoneRow(item.table_key, item.tombstone_version) for item in sidecar.tombstones),
    )
    expected = {seen.pin.table_key: seen.manifest_version for seen in observed}
    lineage = _lineage(sidecar, sidecar.merge_source_commit_id)
    published = store.manifest.publish(sidecar.branch, changes, expected, lineage)
    _finish(store, sidecar, RecoveryKind.ROLLED_FORWARD, published.commit.commit_id, observed)


def _roll_back(store: Store, sidecar: Sidecar, state: ManifestState, observed: Sequence[Observed]) -> None:
    """Restore every table that moved to its pin, and publish the restored heads, so that heads are pins again."""
    restored = [_restore(store, seen) for seen in observed if seen.movement is not Movement.NONE]
    versions = tuple(_version_row(store, table) for table in restored)
    expected = {table.key: state.actual_version(table.key) for table in restored}
    published = store.manifest.publish(sidecar.branch, Changes(versions), expected, _lineage(sidecar))
    _finish(store, sidecar, RecoveryKind.ROLLED_BACK, published.commit.commit_id, observed)


def _restore(store: Store, seen: Observed) -> TableVersion:
    if seen.movement is Movement.RESTORED:
        return seen.table
    rollback = seen.pin.rollback_uuid or new_id()
    staged = store.tables.stage_restore(seen.table, seen.manifest_version, rollback)
    done = store.tables.commit_staged(staged)
    failpoints.reach(failpoints.RECOVERY_AFTER_TABLE_RESTORE)
    return TableVersion(seen.table.key, seen.table.path, done.version, seen.table.branch)


def head_row(store: Store, key: str, path: str, branch: str | None) -> VersionRow:
    """The manifest row that publishes a table as its head is."""
    return _version_row(store, TableVersion(key, path, store.tables.head(path, branch).version, branch))


def _version_row(store: Store, table: TableVersion) -> VersionRow:
    return VersionRow(table.key, table.version, table.branch, store.tables.open(table).count_rows())


def _discard_orphan(store: Store, sidecar: Sidecar) -> None:
    """The branch is gone, and with it everything the operation could have done."""
    commit_id = sidecar.recovery_commit_id or new_id()
    if not store.manifest.load(None).has(commit_id):
        lineage = Lineage(commit_id, RECOVERY_ACTOR, None, time.time_ns() // 1000)
        store.manifest.publish(None, Changes(), {}, lineage)
    _finish(store, sidecar, RecoveryKind.ORPHANED_BRANCH_DISCARDED, commit_id, ())


def _finish(store: Store, sidecar: Sidecar, kind: RecoveryKind, commit_id: str, observed: Sequence[Observed]) -> None:
    """Leave the audit row, then remove the record: in this order, so that no recovery goes unrecorded."""
    outcomes = tuple(_outcome(kind, seen) for seen in observed if seen.movement is not Movement.NONE)
    outcomes += tuple(Outcome(item.table_key, 0, 1) for item in sidecar.additional_registrations)
    row = AuditRow(commit_id, kind, sidecar.actor_id, sidecar.operation_id, sidecar.writer_kind, outcomes)
    store.audit.record(row)
    store.sidecars.delete(sidecar.operation_id)


def _outcome(kind: RecoveryKind, seen: Observed) -> Outcome:
    if kind is RecoveryKind.ROLLED_BACK:
        return Outcome(seen.pin.table_key, seen.table.version, seen.manifest_version)
    return Outcome(seen.pin.table_key, seen.pin.expected_version, seen.table.version)
