"""Publish plans: the only code that moves the head of a table."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from omnigraph.api.results import SchemaRow, TableVersion
from omnigraph.commit import failpoints
from omnigraph.commit.checks import Looked, check, check_head, check_identity, refuse_if_lost, refuse_pending
from omnigraph.commit.gates import Held
from omnigraph.commit.plan import OpClass, PublishPlan, TableAction, WriteTxn, gates_for, table_gates
from omnigraph.commit.queue import Queue, Waiting, is_grouping, queue_of
from omnigraph.commit.recovery import (
    head_row,
    heal,
    nothing_moved,
    recover,
    recover_operation,
    set_aside_torn,
)
from omnigraph.commit.sidecar import Sidecar, arm
from omnigraph.commit.store import Store
from omnigraph.commit.together import can_follow, can_wait, carried, moved_by, with_folds
from omnigraph.errors import (
    DriftError,
    ExpectedVersionMismatchError,
    GateTimeoutError,
    GraphNotFoundError,
    OmnigraphError,
    OutcomeUnknownError,
    RecoveryRequiredError,
    StorageError,
)
from omnigraph.manifest.publisher import Changes, Lineage, Member, Published, Ready
from omnigraph.manifest.rows import VersionRow
from omnigraph.manifest.schema_files import FILES, promote
from omnigraph.manifest.state import HEAD, ManifestState
from omnigraph.storage.lance_errors import Failure, classify
from omnigraph.storage.maintain import next_step
from omnigraph.storage.stage import CommittedVersion, Staged, staged_on
from omnigraph.storage.unpublished import leave_to_recovery, note_again, taking_back

_LOG = logging.getLogger(__name__)
_GATED_ATTEMPTS = 3

T = TypeVar("T")
Prepare = Callable[[WriteTxn], tuple[PublishPlan | None, T]]
"""Makes a plan on one state of the graph (None if there is nothing to change), and what the caller wants back."""


def begin(store: Store, branch: str | None = None) -> WriteTxn:
    """Start a write: recover what dead writers left behind, then capture the state to prepare it on."""
    heal(store)
    try:
        return capture(store, branch)
    except StorageError:
        if not set_aside_torn(store, branch):
            raise
        return capture(store, branch)


def capture(store: Store, branch: str | None) -> WriteTxn:
    """Capture the state that a write is prepared on. It is read once; everything below works on it."""
    state = store.manifest.load_to_write(branch)
    accepted = store.schema_of(state)
    if accepted is None:
        uri = store.location.uri
        raise GraphNotFoundError(f"no graph at {uri}", uri=uri, hint="create one with `omnigraph init`")
    return WriteTxn(branch, state, accepted.catalog)


def write(store: Store, branch: str | None, prepare: Prepare[T]) -> tuple[Published | None, T]:
    """Prepare a plan and publish it; prepare it again if another write came first.

    Return the published commit (None if there was nothing to change) and what the last `prepare` made beside its plan.
    What was staged and not published is deleted, whatever stopped it.
    """
    with taking_back(store.tables):
        plan, made = _prepared(store, branch, prepare)
        if plan is None:
            return None, made
        # Among others that wait it would come too late: the table moves before it is this plan's turn.
        if not is_grouping() or _queue(store, branch).is_idle:
            for fold in store.on_prepared:
                plan = fold(plan)
        published, made = _written(store, plan, made, prepare)
    # Outside of the block: what comes now must never take back what is published.
    if published:
        txn = replace(plan.txn, base=published.before or plan.txn.base)
        for call in store.on_written:
            call(txn, published.state)
    return published, made


def _written(store: Store, plan: PublishPlan, made: T, prepare: Prepare[T]) -> tuple[Published | None, T]:
    try:
        return publish(store, plan), made
    except ExpectedVersionMismatchError:
        # The first attempt was prepared outside the gates. The next is prepared inside and cannot lose again: a writer
        # loses at most once, however many there are, and no number of retries has to be chosen.
        first = plan
    for _ in range(_GATED_ATTEMPTS):
        try:
            return _write_gated(store, first, prepare)
        except RecoveryRequiredError as error:
            pending = error
            recover_operation(store, error.operation_id)  # needs the gates, which are free here
    raise pending


def _prepared(store: Store, branch: str | None, prepare: Prepare[T]) -> tuple[PublishPlan | None, T]:
    """Prepare a write, and once more if a cleanup removed what it reads since it began."""
    txn = begin(store, branch)
    try:
        return prepare(txn)
    except StorageError as error:
        if not was_cleaned_up(store, txn, error):
            raise
        return prepare(begin(store, branch))


def was_cleaned_up(store: Store, txn: WriteTxn, error: StorageError) -> bool:
    """Return whether a file is missing because a later publish allowed a cleanup to remove it."""
    return classify(error) is Failure.NOT_FOUND and store.manifest.load(txn.branch).version != txn.base.version


def _write_gated(store: Store, first: PublishPlan, prepare: Prepare[T]) -> tuple[Published | None, T]:
    # Only the gate of the branch: the plan, made inside, decides which tables it needs. No one else can publish here.
    with store.gates.hold(gates_for(first.branch, ())) as held:
        refuse_pending(store, first, store.sidecars.pending())
        refuse_if_lost(store, first)
        plan, made = prepare(capture(store, first.branch))
        if plan is None:
            return None, made
        with store.gates.hold(table_gates(plan.branch, plan.table_keys)):
            return publish_held(store, plan, held), made


def publish(store: Store, plan: PublishPlan) -> Published:
    """Carry out a plan: all of it becomes visible in one step, or none of it ever does."""
    try:
        return _publish(store, plan)
    except RecoveryRequiredError as error:
        # A dead writer left one of the tables half-way, and was not known to be dead when this write began.
        recover_operation(store, error.operation_id)
        if error.operation_id in store.sidecars.pending():
            raise
        return _publish(store, plan)


def _publish(store: Store, plan: PublishPlan) -> Published:
    if is_grouping() and can_wait(plan):
        queue = _queue(store, plan.branch)
        return queue.publish(plan, store.gates.timeout, partial(lead, store, queue, plan.branch))
    with store.gates.hold(gates_for(plan.branch, plan.table_keys)) as held:
        return publish_held(store, plan, held)


def _queue(store: Store, branch: str | None) -> Queue:
    return queue_of(store.location.uri, store.medium.durability, branch)


def lead(store: Store, queue: Queue, branch: str | None, left: float | None) -> None:
    """Publish the plans that wait for a branch in this process, behind one gate, with one record and one swap."""
    # A short timeout would mean something else to a lease: whether its holder is dead.
    longest = None if left is None else max(left, store.gates.patience + 1)
    with store.gates.hold(gates_for(branch, ()), longest) as held:
        waiting = queue.take()
        try:
            keys = {key for one in waiting for key in one.plan.table_keys}
            with store.gates.hold(table_gates(branch, keys)):
                _publish_waiting(store, queue, waiting, held)
        except BaseException as error:
            if isinstance(error, OmnigraphError):
                queue.put_back(one for one in waiting[1:] if not one.done.done())
            for one in waiting[1:]:
                if one.is_taken and not one.done.done():
                    one.done.set_exception(_unknown(one.plan.lineage.commit_id, repr(error)))
            raise


def _publish_waiting(store: Store, queue: Queue, waiting: Sequence[Waiting], held: Held) -> None:
    """Publish together those plans of a queue that can be; put back those that must wait for the others."""
    failpoints.reach(failpoints.PUBLISH_AFTER_GATES)
    state = store.manifest.load(waiting[0].plan.branch)
    group: list[Waiting] = []
    plans: list[PublishPlan] = []
    later: list[Waiting] = []
    looked = Looked()
    # In the order of their commits: the head of a branch is the greatest.
    for one in sorted(waiting, key=lambda one: (one.plan.lineage.created_at, one.plan.lineage.commit_id)):
        try:
            check_identity(store, one.plan.txn.base, state)
            plan = carried(one.plan, state, queue.recent)
            check(store, plan, state, held, looked)
        except OmnigraphError as error:
            one.done.set_exception(error)
            continue
        if can_follow(plan, map(moved_by, plans)) and plan.lineage.operation_id not in _operations(plans):
            group.append(one)
            plans.append(with_folds(plan, plans))
        else:
            later.append(one)
    queue.put_back(later)
    if plans:
        _publish_group(store, group, plans, state, held)


def _operations(plans: Iterable[PublishPlan]) -> set[str]:
    return {one for plan in plans if (one := plan.lineage.operation_id)}


def _publish_group(
    store: Store, group: Sequence[Waiting], plans: Sequence[PublishPlan], state: ManifestState, held: Held
) -> None:
    """Publish plans that can follow each other; each gets its own outcome."""
    checked = [_Checked(plan, one.context) for one, plan in zip(group, plans, strict=True)]
    try:
        published = _move(store, checked, state, held)
    except OmnigraphError as error:
        for one in group:
            one.done.set_exception(error if len(group) == 1 else _as_member(one.plan, error))
        return
    for one, done in zip(group, published, strict=True):
        one.done.set_result(done)


def _as_member(plan: PublishPlan, why: OmnigraphError) -> OmnigraphError:
    """Return what the failure of a group means to one of its plans. If it was undone, each plan is prepared again."""
    if isinstance(why, OutcomeUnknownError):
        return _unknown(plan.lineage.commit_id, why.message)
    base = plan.txn.base
    failed = ExpectedVersionMismatchError(
        f"the write was published together with others, which failed: {why.message}",
        table_key=HEAD,
        expected=base.version,
        actual=base.version,
        hint="try again",
    )
    failed.__cause__ = why
    return failed


def publish_held(store: Store, plan: PublishPlan, held: Held) -> Published:
    """Carry out a plan whose gates, or stronger ones, the caller holds."""
    failpoints.reach(failpoints.PUBLISH_AFTER_GATES)
    # Read inside the gates. What was read before them may be out of date, and everything below is checked against this.
    state = store.manifest.load(plan.branch)
    check_identity(store, plan.txn.base, state)
    check(store, plan, state, held, Looked())
    if plan.moves_tables:
        return _move(store, [_Checked(with_folds(plan), copy_context())], state, held)[0]
    # A single step, the publish: there is nothing to recover, so no record is needed.
    changes, pins = _changes(store, plan, ()), _pins(plan, state)
    published = store.manifest.publish(plan.branch, changes, pins, plan.lineage, state, ready=_ready(store, held, ()))
    _make_durable(store, (), published)
    return published


def adopt_heads(
    store: Store, state: ManifestState, tables: Sequence[TableVersion], held: Held, lineage: Lineage
) -> Published:
    """Pin tables at their current heads, in one commit. The caller holds the gates of all of them."""
    # The caller has decided that these heads are right, and holds the gates: they cannot move before the publish.
    rows = tuple(head_row(store, table.key, table.path, table.branch) for table in tables)
    expected = {table.key: state.actual_version(table.key) for table in tables}
    ready = _ready(store, held, tables)
    published = store.manifest.publish(state.branch, Changes(rows), expected, lineage, ready=ready)
    store.sync(tables)
    return published


def _ready(store: Store, held: Held, tables: Iterable[TableVersion]) -> Ready:
    """Return what must happen between the last file of a publish and the step that makes it visible."""
    written = list(tables)

    def ready() -> None:
        # What the manifest is about to name must survive a power cut before the manifest does.
        store.sync(written)
        # A lease may have expired meanwhile. No step that others can see is taken without checking.
        held.check()

    return ready


def fill_new_table(store: Store, staged: Staged) -> None:
    """Commit rows to a table that was just made: nothing refers to it before a plan that registers it is published."""
    store.tables.commit_staged(staged, staged.base.version + 1)


def undo_unrecorded(store: Store, branch: str | None = None) -> None:
    """Undo movements of a branch's tables whose record did not survive a power cut.

    A record is on the medium before a commit is published. So without one, what moved a head was never visible.
    """
    for entry in store.manifest.load(branch).snapshot.entries.values():
        if entry.table.owner == branch and store.tables.newest_number(entry.table) > entry.table.version:
            _settle_head(store, branch, entry.table.key)


def undo_unrecorded_everywhere(store: Store) -> None:
    """Undo them on all branches. An open leaves those beside main to the next writer, or to the next upkeep."""
    if store.location.is_local:
        for _, state in store.manifest.states():
            set_aside_torn(store, state.branch)
            undo_unrecorded(store, state.branch)


def _settle_head(store: Store, branch: str | None, table_key: str) -> None:
    try:
        with store.gates.hold(gates_for(branch, [table_key]), store.gates.patience) as held:
            state = store.manifest.load_to_write(branch)
            entry = state.snapshot.entries.get(table_key)
            if entry is not None:
                check_head(store, held, entry.table, state)
    except RecoveryRequiredError as error:
        recover_operation(store, error.operation_id)
    except (DriftError, GateTimeoutError) as error:  # of another program, or of a living writer: not ours to undo
        _LOG.info("table '%s' is left as it is: %s", table_key, error.message)


@dataclass(frozen=True, slots=True)
class _Checked:
    """A plan that everything still holds for, and the context of the thread that staged it."""

    plan: PublishPlan
    context: Context

    @property
    def staged(self) -> list[Staged]:
        return [action.staged for action in self.plan.actions]


def _move(store: Store, checked: Sequence[_Checked], state: ManifestState, held: Held) -> list[Published]:
    """Carry out checked plans in four phases: record (A), heads (B), manifest (C), cleanup (D).

    Several plans are carried out together, one after the other; only appends may share a table.
    """
    plans = [one.plan for one in checked]
    sidecar = arm(plans, state)
    # A lease may have expired while the checks ran. No step that others can see is taken without checking.
    held.check()
    store.sidecars.write(sidecar)  # A: from here on recovery can finish or undo it
    for one in checked:
        one.context.run(leave_to_recovery, one.staged, [(row.path, row.branch) for row in one.plan.registrations])
    failpoints.reach(failpoints.PUBLISH_AFTER_SIDECAR)
    try:
        moved = _move_heads(store, held, plans, state)  # B
    except OmnigraphError as error:
        return _undo(store, checked, sidecar, held, error)
    failpoints.reach(failpoints.PUBLISH_BEFORE_MANIFEST)
    bases = [action.staged.base for plan in plans for action in plan.actions]
    try:
        members = [Member(_changes(store, plan, rows), plan.lineage) for plan, rows in zip(plans, moved, strict=True)]
        expected = {key: version for plan in plans for key, version in _pins(plan, state).items()}
        ready = _ready(store, held, bases)
        published = store.manifest.publish_group(plans[0].branch, members, expected, state, ready=ready)  # C
    except OmnigraphError as error:
        # The heads have moved and the record says so: the next write or open finishes or undoes it.
        raise _unknown(sidecar.operation_id, error.message) from error
    failpoints.reach(failpoints.PUBLISH_AFTER_MANIFEST)
    _make_durable(store, bases, published[-1])
    schema = plans[-1].schema
    # Only now, because the files of a schema must never be ahead of the manifest.
    if schema is None or plans[-1].branch is not None or _is_promoted(store, schema):
        _clean_up(store, sidecar)  # D
    if is_grouping():
        for plan, done in zip(plans, published, strict=True):
            _queue(store, plan.branch).recent.add(plan, done)
    return published


def _make_durable(store: Store, tables: Iterable[TableVersion], published: Published) -> None:
    """Bring a published change onto the medium. Only then is it acknowledged, and its record removed."""
    try:
        store.sync(tables)
    except StorageError as error:
        message = f"operation {published.commit.commit_id} is visible, but may be lost in a power cut: {error.message}"
        hint = "check the disk, then check the outcome of the operation"
        raise OutcomeUnknownError(message, operation_id=published.commit.commit_id, hint=hint) from error


def _move_heads(
    store: Store, held: Held, plans: Sequence[PublishPlan], state: ManifestState
) -> list[tuple[VersionRow, ...]]:
    """Commit what the plans staged, one after the other; return the versions that each of them made."""
    heads: dict[str, CommittedVersion] = {}
    moved = []
    for plan in plans:
        for action in plan.actions:
            before = heads.get(action.table_key)
            pin = before.version if before else state.actual_version(action.table_key)
            heads[action.table_key] = _move_head(store, held, action, pin, before)
        moved.append(tuple(_version_row(action, heads[action.table_key]) for action in plan.actions))
    return moved


def _version_row(action: TableAction, made: CommittedVersion) -> VersionRow:
    return VersionRow(action.table_key, made.version, action.staged.base.branch, made.row_count)


def _move_head(
    store: Store, held: Held, action: TableAction, pin: int, before: CommittedVersion | None
) -> CommittedVersion:
    """Commit the staged transactions of one table. They must land right behind the pin, or the plan stops.

    `before` is what an earlier plan of the same group made of the table.
    """
    staged = action.staged
    # Maintenance keeps the version that it was staged on: Lance rebases it.
    if action.op_class is OpClass.LOGICAL:
        staged = staged_on(staged, pin)
    held.check()
    done = store.tables.commit_staged(staged, pin + 1, before.handle if before else None)
    failpoints.reach(failpoints.PUBLISH_AFTER_TABLE_COMMIT)
    for at, step in enumerate(staged.then, start=2):
        # The lease is checked again between two steps: another process may have taken over meanwhile.
        held.check()
        done = store.tables.commit_staged(next_step(staged, step, done.version), pin + at, done.handle)
        failpoints.reach(failpoints.PUBLISH_AFTER_TABLE_COMMIT)
    return done


def _changes(store: Store, plan: PublishPlan, versions: tuple[VersionRow, ...]) -> Changes:
    added = tuple(head_row(store, row.table_key, row.path, row.branch) for row in plan.registrations)
    return Changes((*versions, *added, *plan.adoptions), plan.registrations, plan.tombstones, plan.schema, plan.rule)


def _pins(plan: PublishPlan, state: ManifestState) -> dict[str, int]:
    return {key: state.actual_version(key) for key in plan.relied_on}


def _undo(
    store: Store, checked: Sequence[_Checked], sidecar: Sidecar, held: Held, failure: OmnigraphError
) -> list[Published]:
    """Undo failed plans while the gates are held; raise the failure, or that the outcome is left to recovery.

    A commit that failed may have taken effect all the same. If it was the last one, the change is complete: recovery
    makes it visible, and it is returned.
    """
    try:
        held.check()
        # Where a request can outlive its sender, a failed one may still arrive: only recovery's restores fence it off.
        if not store.gates.can_be_lost and nothing_moved(store, sidecar):
            store.sidecars.delete(sidecar.operation_id)
            for one in checked:
                one.context.run(note_again, one.staged, one.plan.txn.forks.values())
        else:
            recover(store, sidecar, held)
    except OmnigraphError as error:
        _LOG.warning("operation %s is left to recovery: %s", sidecar.operation_id, error)
    try:
        state = store.manifest.load(sidecar.branch)
        commits = [found for one in checked if (found := state.commit(one.plan.lineage.commit_id))]
        if commits:
            return [Published(commit, state) for commit in commits]
        left = sidecar.operation_id in store.sidecars.pending()
    except OmnigraphError as error:
        raise _unknown(sidecar.operation_id, failure.message) from error
    if left:
        raise _unknown(sidecar.operation_id, failure.message) from failure
    raise failure


def _unknown(operation_id: str, why: str) -> OutcomeUnknownError:
    message = f"operation {operation_id} was interrupted: {why}"
    hint = "the next write or open finishes or undoes it; check its outcome before you try again"
    return OutcomeUnknownError(message, operation_id=operation_id, hint=hint)


def _is_promoted(store: Store, schema: SchemaRow) -> bool:
    """Put the files of a published schema in place; if that fails, the record stays, and recovery does it.

    The files come before the record goes: only while it exists may they be behind the manifest.
    """
    try:
        promote(store.objects, schema.source)
        store.medium.sync(*FILES)
    except OmnigraphError as error:
        _LOG.warning("the schema is published, but its files are not in place yet: %s", error)
        return False
    return True


def _clean_up(store: Store, sidecar: Sidecar) -> None:
    """Remove the record. The change is visible already, so a failure here must not become an error."""
    try:
        store.sidecars.delete(sidecar.operation_id)
    except OmnigraphError as error:
        _LOG.warning("after the publish of operation %s: %s", sidecar.operation_id, error)
