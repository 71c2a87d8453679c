"""`publish`: the only code that moves a table's head, and the only one that compares heads with pins."""

from __future__ import annotations

import logging
from collections.abc import Callable

from omnigraph.commit import failpoints
from omnigraph.commit.gates import Held
from omnigraph.commit.plan import OpClass, PublishPlan, TableAction, WriteTxn, gates_for
from omnigraph.commit.recovery import head_row, heal, nothing_moved, recover
from omnigraph.commit.sidecar import Sidecar, arm
from omnigraph.commit.store import Store
from omnigraph.errors import (
    ConflictError,
    CorruptGraphError,
    DriftError,
    ExpectedVersionMismatchError,
    OmnigraphError,
    RecoveryRequiredError,
    StorageError,
)
from omnigraph.manifest.publisher import Changes, Published
from omnigraph.manifest.rows import MAIN, VersionRow
from omnigraph.manifest.state import ManifestState

_LOG = logging.getLogger(__name__)
_PREPARE_ATTEMPTS = 32


def begin(store: Store, branch: str | None = None) -> WriteTxn:
    """Start a write: finish what others left behind, then capture what the write is prepared on, once."""
    store.contract.read()
    heal(store)
    return WriteTxn(branch, store.manifest.load_to_write(branch))


def write(store: Store, branch: str | None, prepare: Callable[[WriteTxn], PublishPlan | None]) -> Published | None:
    """Prepare and publish; prepare anew when another write came first. None when there is nothing to change.

    Only for writes whose meaning does not depend on what they read, such as inserts: the others must fail instead.
    """
    for attempt in range(_PREPARE_ATTEMPTS):
        plan = prepare(begin(store, branch))
        if plan is None:
            return None
        try:
            return publish(store, plan)
        except (ExpectedVersionMismatchError, RecoveryRequiredError):
            if attempt == _PREPARE_ATTEMPTS - 1:
                raise
    raise AssertionError("unreachable")


def publish(store: Store, plan: PublishPlan) -> Published:
    """Carry out a plan: all of it becomes visible in one step, or none of it ever does."""
    try:
        return _publish(store, plan)
    except RecoveryRequiredError as error:
        # A dead writer left one of the tables half-way, and was not known to be dead when this write began.
        heal(store, store.gates.patience)
        if error.operation_id in store.sidecars.pending():
            raise
        return _publish(store, plan)


def _publish(store: Store, plan: PublishPlan) -> Published:
    keys = [action.table_key for action in plan.actions]
    with store.gates.hold(gates_for(plan.branch, keys)) as held:
        failpoints.reach(failpoints.PUBLISH_AFTER_GATES)
        state = store.manifest.refreshed(plan.txn.base)
        for action in plan.actions:
            _check_base(action, plan.branch, state)
            _check_head(store, action, state)
        sidecar = arm(plan)
        held.check()
        store.sidecars.write(sidecar)  # phase A: from here on, whatever happens can be finished or undone
        failpoints.reach(failpoints.PUBLISH_AFTER_SIDECAR)
        try:
            versions = tuple(_move_head(store, held, action, state) for action in plan.actions)  # phase B
        except OmnigraphError:
            published = _undo(store, plan, sidecar, held)
            if published:
                return published
            raise
        failpoints.reach(failpoints.PUBLISH_BEFORE_MANIFEST)
        changes = _changes(store, plan, versions)
        try:
            held.check()
            published = store.manifest.publish(plan.branch, changes, _pins(plan, state), plan.lineage, first=state)  # C
        except OmnigraphError as error:
            # The heads have moved and the record says so: the next write or open makes it visible, or undoes it.
            look = f"look for commit {plan.lineage.commit_id} before you try again"
            error.hint = f"operation {sidecar.operation_id} will be finished or undone by the next write; {look}"
            raise
        failpoints.reach(failpoints.PUBLISH_AFTER_MANIFEST)
        _clean_up(store, published, sidecar)  # phase D
        return published


def _check_base(action: TableAction, branch: str | None, state: ManifestState) -> None:
    """A logical action needs exactly the version it was prepared on; maintenance may be rebased by lance."""
    base = action.staged.base
    if base.branch != branch:
        message = (
            f"table '{base.key}' belongs to branch '{base.branch or MAIN}'; a write to '{branch or MAIN}' must fork it"
        )
        raise ConflictError(message, hint="fork the table first")
    pin = state.actual_version(base.key)
    if action.op_class is OpClass.LOGICAL and pin != base.version:
        message = f"table '{base.key}' is at version {pin}; the write was prepared on {base.version}"
        raise ExpectedVersionMismatchError(
            message, table_key=base.key, expected=base.version, actual=pin, hint="read again and retry"
        )


def _check_head(store: Store, action: TableAction, state: ManifestState) -> None:
    """Under its gate nobody of ours can be moving the table: a head past the pin is foreign, or a dead write's."""
    base = action.staged.base
    pin = state.actual_version(base.key)
    head = store.tables.head_version(base)
    if head == pin:
        return
    if head < pin:
        message = f"the head of table '{base.key}' is version {head}, before its pin {pin}"
        raise CorruptGraphError(message, path=base.path, hint="run `omnigraph doctor`")
    drift = f"table '{base.key}' is at version {head}, past its pin {pin}"
    reopen = "reopen the graph read-write; that finishes or undoes it"
    try:
        pending = [sidecar for name in store.sidecars.pending() if (sidecar := store.sidecars.read(name))]
    except StorageError as error:
        message = f"{drift}, and the records that could explain it cannot be read: {error.message}"
        hint = f"if a rollback is pending, {reopen}; if not, run `omnigraph repair`"
        raise DriftError(message, table_key=base.key, pin=pin, head=head, hint=hint) from error
    for sidecar in pending:
        if sidecar.branch == state.branch and base.key in sidecar.table_keys:
            message = f"operation {sidecar.operation_id} stopped half-way on table '{base.key}'; a rollback is pending"
            raise RecoveryRequiredError(message, operation_id=sidecar.operation_id, hint=reopen)
    message = f"{drift}, and no operation of omnigraph explains it"
    raise DriftError(message, table_key=base.key, pin=pin, head=head, hint="run `omnigraph repair`")


def _move_head(store: Store, held: Held, action: TableAction, state: ManifestState) -> VersionRow:
    """Commit one staged transaction; it must land right behind the pin, or the plan stops."""
    held.check()
    base = action.staged.base
    done = store.tables.commit_staged(action.staged, state.actual_version(base.key) + 1)
    failpoints.reach(failpoints.PUBLISH_AFTER_TABLE_COMMIT)
    return VersionRow(base.key, done.version, base.branch, done.row_count)


def _changes(store: Store, plan: PublishPlan, versions: tuple[VersionRow, ...]) -> Changes:
    added = tuple(head_row(store, row.table_key, row.path, None) for row in plan.registrations)
    return Changes((*versions, *added), plan.registrations, plan.tombstones)


def _pins(plan: PublishPlan, state: ManifestState) -> dict[str, int]:
    return {action.table_key: state.actual_version(action.table_key) for action in plan.actions}


def _undo(store: Store, plan: PublishPlan, sidecar: Sidecar, held: Held) -> Published | None:
    """Undo at once, while the gates are held; if that fails too, the record is left for the next one.

    A commit that failed may have taken effect all the same. If it was the last one, there is nothing to undo: the
    change is whole, recovery makes it visible, and it is returned.
    """
    try:
        held.check()
        if nothing_moved(store, sidecar):
            store.sidecars.delete(sidecar.operation_id)
            return None
        recover(store, sidecar, held)
        state = store.manifest.load(plan.branch)
    except OmnigraphError as error:
        _LOG.warning("operation %s is left to recovery: %s", sidecar.operation_id, error)
        return None
    commit = state.commit(plan.lineage.commit_id)
    return Published(commit, state) if commit else None


def _clean_up(store: Store, published: Published, sidecar: Sidecar) -> None:
    """The change is visible and acknowledged: what fails here must not turn it into an error."""
    try:
        store.sidecars.delete(sidecar.operation_id)
        store.manifest.compact_if_due(published.state)
    except OmnigraphError as error:
        _LOG.warning("after the publish of operation %s: %s", sidecar.operation_id, error)
