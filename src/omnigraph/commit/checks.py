"""What must still hold when a plan is published, now that its gates are held: heads are pins, and its base is there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import NoReturn

from omnigraph.api.results import StreamBatch, StreamPosition, TableVersion
from omnigraph.commit.gates import Held
from omnigraph.commit.plan import OpClass, PublishPlan, TableAction
from omnigraph.commit.recovery import RECOVERY_ACTOR, set_aside_table
from omnigraph.commit.sidecar import Sidecar, arm_undo
from omnigraph.commit.store import Store
from omnigraph.core.refs import MAIN
from omnigraph.errors import (
    BranchProtectedError,
    ConflictError,
    CorruptGraphError,
    DriftError,
    ExpectedVersionMismatchError,
    GraphReplacedError,
    OperationDoneError,
    PreconditionFailedError,
    RecoveryRequiredError,
    StorageError,
    StreamBatchDoneError,
    StreamGapError,
    StreamTakenError,
)
from omnigraph.manifest.rows import SCHEMA_ID, TombstoneRow
from omnigraph.manifest.state import HEAD, ManifestState
from omnigraph.storage.maintain import can_rebase

# An operation id is recognized among at least so many newest commits. The ids of all commits would have to be read.
OPERATION_WINDOW = 1024
_OTHER_CHECKPOINT = (
    "the checkpoint is one of another graph, branch or state: use the one that belongs to this graph, or accept that "
    "batches may be missing with restart=True"
)
_OTHER_QUERY = (
    "give each stream its own name; if the checkpoint was deleted, the query starts over with batch 0: "
    "accept that with restart=True"
)
_REOPEN = "reopen the graph read-write; that finishes or undoes it"


@dataclass(slots=True)
class Looked:
    """What was looked at under the gates, for several plans: the heads of tables, and the pending records."""

    heads: set[str] = field(default_factory=set)
    pending: list[str] | None = None


def check(store: Store, plan: PublishPlan, state: ManifestState, held: Held, looked: Looked) -> None:
    """Raise unless everything that the plan was prepared on still holds, now that the gates are held."""
    _check_not_done(plan, state)
    if plan.lineage.batch:
        batch = plan.lineage.batch
        check_batch(batch, state.stream(batch.stream), state.branch or MAIN)
    _check_head_commit(plan, state)
    _check_rule(store, plan, state)
    _check_schema(plan, state)
    adopted = {row.table_key for row in plan.adoptions}
    for key in sorted({*plan.read_set, *plan.must_be_unchanged, *plan.txn.forks, *adopted}):
        _check_place(key, plan.txn.base, state)
    for action in plan.actions:
        _check_base(action, plan, state)
        base = action.staged.base
        pinned = replace(base, version=state.actual_version(base.key))
        if base.key not in looked.heads:
            check_head(store, held, pinned, state)
            looked.heads.add(base.key)
        # Maintenance may have been staged on an earlier version. It is committed only if it means the same on this one.
        if pinned != base and not can_rebase(store.tables, action.staged, pinned):
            _mismatch(base.key, base.version, state)
    for tombstone in plan.tombstones:
        _check_tombstone(store, held, tombstone, plan.txn.base, state)
    if looked.pending is None:
        looked.pending = store.sidecars.pending()
    refuse_pending(store, plan, looked.pending)


def check_identity(store: Store, base: ManifestState, state: ManifestState) -> None:
    """Raise if another graph lies at the address than the plan was prepared on: its staged files are not there."""
    if state is base or not store.manifest.is_replaced(base, state):
        return
    if base.graph_id != state.graph_id:
        uri = store.location.uri
        message = f"another graph lies at {uri} since the write was prepared"
        raise GraphReplacedError(message, uri=uri, hint="check that it is the right one, then try again")
    raise ExpectedVersionMismatchError(
        "the graph was replaced by another copy of it after the write was prepared",
        table_key=HEAD,
        expected=base.version,
        actual=state.version,
        hint="read again and retry",
    )


def refuse_pending(store: Store, plan: PublishPlan, pending: Iterable[str]) -> None:
    """Raise if a dead writer left a record on what the plan concerns.

    Under the gate of the branch no writer is alive. If recovery finished that record later, it could contradict a
    change that was validated without it.
    """
    for operation_id in pending:
        sidecar = store.sidecars.read(operation_id)
        if sidecar is None or sidecar.branch != plan.branch:
            continue
        concerned = {*sidecar.table_keys, *sidecar.streams}
        if plan.if_head or HEAD in plan.read_set or sidecar.if_head or plan.relied_on & concerned:
            message = f"operation {operation_id} was interrupted and must be recovered first"
            raise RecoveryRequiredError(message, operation_id=operation_id, hint=_REOPEN)


def refuse_if_lost(store: Store, plan: PublishPlan) -> None:
    """Raise if a table that was searched for rows has other content now. Maintenance does not change content."""
    state = store.manifest.load(plan.branch)
    for key in sorted(plan.must_be_unchanged):
        before = plan.txn.entries[key].table
        if state.actual_version(key) != before.version and not store.tables.has_same_content(
            before, state.actual_version(key)
        ):
            _check_pin(key, before.version, state)


def _check_not_done(plan: PublishPlan, state: ManifestState) -> None:
    """Raise if the operation id was committed before: a request that is sent again must not be applied twice."""
    operation_id = plan.lineage.operation_id
    done = state.commit_of_operation(operation_id, OPERATION_WINDOW) if operation_id else None
    if operation_id and done:
        message = f"operation {operation_id} is already committed, as {done.commit_id}"
        hint = "there is nothing to do; use a new operation id for a new change"
        raise OperationDoneError(message, operation_id=operation_id, commit_id=done.commit_id, hint=hint)


def check_batch(batch: StreamBatch, known: StreamPosition | None, branch: str) -> None:
    """Raise unless a batch is the next one of its stream: each is committed once, and none is missing."""
    where = f"stream '{batch.stream}' on branch '{branch}'"
    if known is None:
        if batch.batch and batch.replaces is None:
            message = f"{where} is new, and its query {batch.query} continues with batch {batch.batch}"
            raise StreamGapError(message, stream=batch.stream, batch=batch.batch, expected=0, hint=_OTHER_CHECKPOINT)
        return
    last = known.last
    if last.query != batch.query:
        if batch.replaces != last.query:
            message = f"{where} belongs to the query {last.query}, and batch {batch.batch} is of {batch.query}"
            raise StreamTakenError(message, stream=batch.stream, query=last.query, hint=_OTHER_QUERY)
        return
    if batch.batch <= last.batch:
        message = f"batch {batch.batch} of {where} is already committed; the last one is {last.batch}"
        commit_id = known.commit_id if batch.batch == last.batch else None
        hint = "there is nothing to do"
        raise StreamBatchDoneError(message, stream=batch.stream, batch=batch.batch, commit_id=commit_id, hint=hint)
    if batch.batch > last.batch + 1 and batch.replaces != last.query:
        message = f"{where} is at batch {last.batch}, and its query continues with batch {batch.batch}"
        expected = last.batch + 1
        raise StreamGapError(message, stream=batch.stream, batch=batch.batch, expected=expected, hint=_OTHER_CHECKPOINT)


def _check_head_commit(plan: PublishPlan, state: ManifestState) -> None:
    if plan.if_head is not None:
        check_head_commit(plan.if_head, state)


def check_head_commit(expected: str, state: ManifestState) -> None:
    """Raise unless the branch is at the expected commit, or at one that differs from it only by maintenance."""
    commit, actual = state.head, state.head.commit_id if state.head else None
    # A writer folds tables after its own commit: a caller that relied on that commit must not have to read again.
    while commit and commit.commit_id != expected and commit.is_maintenance and commit.parent_id:
        commit = state.commit(commit.parent_id)
    if commit is None or commit.commit_id != expected:
        message = f"branch '{state.branch or MAIN}' is at commit {actual}, not at {expected}"
        raise PreconditionFailedError(
            message,
            expected=expected,
            actual=actual,
            hint="review the changes since then, and try again on the new head",
        )


def _check_rule(store: Store, plan: PublishPlan, state: ManifestState) -> None:
    """Raise if the branch is protected, and nothing permits the change.

    Here and not where writes begin: under the gates the rule is the one that holds, whatever a process knew before.
    """
    rule = store.manifest.rule_of(state) if plan.changes_content else None
    if rule is None:
        return
    if plan.permit is not None:
        plan.permit(state, rule)
    elif plan.lineage.actor_id not in rule.bypass:
        refuse_protected(state.branch)


def refuse_protected(branch: str | None) -> NoReturn:
    name = branch or MAIN
    message = f"branch '{name}' is protected: it takes merge requests only; nothing was changed"
    hint = f"write to another branch, and open a request: `omnigraph request open BRANCH --into {name}`"
    raise BranchProtectedError(message, branch=name, hint=hint)


def _check_schema(plan: PublishPlan, state: ManifestState) -> None:
    """Raise if the schema changed since the plan was prepared: it may have types that the plan does not know."""
    before = plan.txn.base
    if before.schema != state.schema:
        raise ExpectedVersionMismatchError(
            "the schema changed after the write was prepared",
            table_key=SCHEMA_ID,
            expected=before.version,
            actual=state.version,
            hint="read again and retry",
        )


def _check_pin(table_key: str, prepared_on: int, state: ManifestState) -> None:
    if state.actual_version(table_key) != prepared_on:
        _mismatch(table_key, prepared_on, state)


def _mismatch(table_key: str, prepared_on: int, state: ManifestState) -> NoReturn:
    pin = state.actual_version(table_key)
    message = f"table '{table_key}' is at version {pin}; the write was prepared on {prepared_on}"
    raise ExpectedVersionMismatchError(
        message, table_key=table_key, expected=prepared_on, actual=pin, hint="read again and retry"
    )


def _check_place(table_key: str, before: ManifestState, state: ManifestState) -> None:
    """Raise unless a table is at the same version of the same fork as when the plan was prepared."""
    if not state.is_placed_alike(table_key, before):
        _mismatch(table_key, before.actual_version(table_key), state)


def _check_base(action: TableAction, plan: PublishPlan, state: ManifestState) -> None:
    """Raise unless the base still holds: logical actions need it exactly, maintenance may be rebased."""
    base, branch = action.staged.base, plan.branch
    if base.owner != branch:
        message = (
            f"table '{base.key}' belongs to branch '{base.owner or MAIN}'; a write to '{branch or MAIN}' must fork it"
        )
        raise ConflictError(message, hint="fork the table first")
    entry = state.snapshot.entries.get(base.key)
    # The branch has another fork of the table now than the one that the plan was staged on.
    if entry and base.key not in plan.txn.forks and entry.table.branch != base.branch:
        _mismatch(base.key, base.version, state)
    if action.op_class is OpClass.LOGICAL or entry is None:
        _check_pin(base.key, base.version, state)


def _check_tombstone(
    store: Store, held: Held, tombstone: TombstoneRow, before: ManifestState, state: ManifestState
) -> None:
    """Raise unless the table is still at the version that the plan saw; the tombstone is behind it."""
    entry = state.snapshot.entries.get(tombstone.table_key)
    if entry is None:
        raise ConflictError(f"table '{tombstone.table_key}' does not exist any more", hint="read again and retry")
    _check_pin(tombstone.table_key, before.actual_version(tombstone.table_key), state)
    if entry.table.branch == state.branch:  # otherwise another branch owns it, and may have moved it
        check_head(store, held, entry.table, state)


def check_head(store: Store, held: Held, pinned: TableVersion, state: ManifestState) -> None:
    """Raise if the head of a table is not its pin.

    Under its gate no live writer of ours can be moving it: a head past the pin is foreign, or of a dead write.
    """
    key, pin, head = pinned.key, pinned.version, store.tables.head_version(pinned)
    if head > pin and set_aside_table(store, state, pinned):
        head = store.tables.head_version(pinned)
    if head == pin:
        return
    if head < pin:
        message = f"the head of table '{key}' is version {head}, before its pin {pin}"
        raise CorruptGraphError(message, path=pinned.path, hint="run `omnigraph doctor`")
    drift = f"table '{key}' is at version {head}, past its pin {pin}"
    sidecar = _explained(store, pinned, head, drift, state)
    if sidecar is None:
        if not all(_is_ours(store, replace(pinned, version=version)) for version in range(head, pin, -1)):
            message = f"{drift}, and no operation of omnigraph explains it"
            raise DriftError(message, table_key=key, pin=pin, head=head, hint="run `omnigraph repair`")
        # On an object store a request can arrive after its sender lost its lease and was recovered: undo it.
        sidecar = arm_undo(pinned, state, RECOVERY_ACTOR)
        held.check()
        store.sidecars.write(sidecar)
    message = f"operation {sidecar.operation_id} was interrupted on table '{key}'; a rollback is pending"
    raise RecoveryRequiredError(message, operation_id=sidecar.operation_id, hint=_REOPEN)


def _explained(store: Store, pinned: TableVersion, head: int, drift: str, state: ManifestState) -> Sidecar | None:
    """Return the record of the operation that moved a table, if there is one."""
    try:
        pending = [sidecar for name in store.sidecars.pending() if (sidecar := store.sidecars.read(name))]
    except StorageError as error:
        message = f"{drift}, and the records that could explain it cannot be read: {error.message}"
        hint = f"if a rollback is pending, {_REOPEN}; if not, run `omnigraph repair`"
        raise DriftError(message, table_key=pinned.key, pin=pinned.version, head=head, hint=hint) from error
    named = (one for one in pending if one.branch == state.branch and pinned.key in one.table_keys)
    return next(named, None)


def _is_ours(store: Store, table: TableVersion) -> bool:
    made_by = store.tables.made_by(table)
    return made_by is not None and made_by.is_ours
