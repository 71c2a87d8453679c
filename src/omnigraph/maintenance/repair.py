"""`repair`: pin tables that another program moved where they are, if that is safe; drop indices that lost files."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial

from omnigraph.api.maintenance import Classification, RepairAction, RepairMode, RepairResult, TableRepair
from omnigraph.api.results import Commit, TableVersion
from omnigraph.commit.checks import refuse_protected
from omnigraph.commit.plan import OpClass, PublishPlan, TableAction, WriterKind, gates_for, ref_gates
from omnigraph.commit.publish import adopt_heads, begin, capture, publish
from omnigraph.commit.store import Store
from omnigraph.core.refs import FOREIGN_LOCK, MAIN, branch_of
from omnigraph.errors import (
    BranchNotFoundError,
    CorruptGraphError,
    OmnigraphError,
    RepairError,
)
from omnigraph.maintenance.damage import Damage, damaged_files
from omnigraph.maintenance.optimize import owned_tables, refuse_pending
from omnigraph.maintenance.relocate import relocate_if_moved
from omnigraph.maintenance.tasks import map_tables
from omnigraph.manifest.publisher import Lineage
from omnigraph.storage import maintain
from omnigraph.storage.files import Listing

ACTOR, FORCE_ACTOR = "omnigraph:repair", "omnigraph:repair:force"
_UPKEEP = ("Rewrite", "ReserveFragments")  # transactions of a compaction: they change no row


def mode_of(*, confirm: bool, force: bool) -> RepairMode:
    if force and not confirm:
        raise RepairError(
            "`force` needs `confirm`", hint="give both, or run `repair` without either to see what it would do"
        )
    if not confirm:
        return RepairMode.PREVIEW
    return RepairMode.FORCE if force else RepairMode.CONFIRM


def repair(store: Store, mode: RepairMode) -> RepairResult:
    """Classify the tables of all branches that moved, by their transactions, and pin what may be kept.

    That is one commit for each branch. Nothing is looked at while a write that stopped half-way explains a head.
    """
    relocate_if_moved(store)
    pending = filter(None, map(store.sidecars.read, store.sidecars.pending()))
    for branch in {sidecar.branch for sidecar in pending}:
        with store.gates.hold(gates_for(branch, ())):
            _refuse_dead(store, branch)
    if mode is RepairMode.FORCE:
        _lift_foreign_lock(store)  # before the branches are listed: it is one of them
    names = [name for name in store.manifest.branches() if name != FOREIGN_LOCK]
    rows, commits, lost = list[TableRepair](), list[Commit](), dict[str, None]()
    for name in names:
        with suppress(BranchNotFoundError):  # deleted since it was listed
            found, commit = _repaired(store, branch_of(name), mode)
            mended, dropped, unmended = _mended(store, branch_of(name), found, mode)
            rows += mended
            commits += [one for one in (commit, dropped) if one]
            lost |= dict.fromkeys(unmended)
    return RepairResult(mode, tuple(rows), tuple(commits), tuple(lost))


def _refuse_dead(store: Store, branch: str | None) -> None:
    """Raise if a dead write explains the moved tables. The caller holds the gate, so any record left is a dead one."""
    why = "recovery, not `repair`, takes care of its tables"
    refuse_pending(store, branch, why, "reopen the graph read-write, which recovers it")


def _lift_foreign_lock(store: Store) -> None:
    """Delete the lock of another program, which is a branch. With `force` the caller says that the program is dead."""
    if FOREIGN_LOCK not in store.manifest.branches():
        return
    with store.gates.hold(ref_gates(FOREIGN_LOCK)) as held:
        held.check()
        store.manifest.delete_branch(FOREIGN_LOCK)


def _repaired(store: Store, branch: str | None, mode: RepairMode) -> tuple[list[TableRepair], Commit | None]:
    """Classify the tables that a branch owns. Inherited tables are classified on their own branch."""
    keys = {table.key for table in owned_tables(branch, store.manifest.load(branch).snapshot.entries)}
    with store.gates.hold(gates_for(branch, keys)) as held:
        _refuse_dead(store, branch)
        # Read again under the gates. A table that was added since is not gated, so the next repair looks at it.
        state = store.manifest.load(branch)
        tables = [table for table in owned_tables(branch, state.snapshot.entries) if table.key in keys]
        found = [_judged(store, table, mode) for table in tables]
        kept = {row.table_key for row in found if row.action in (RepairAction.HEALED, RepairAction.FORCED)}
        actor = FORCE_ACTOR if mode is RepairMode.FORCE else ACTOR
        moved = [table for table in tables if table.key in kept]
        # Moves that changed no rows are kept on a protected branch too.
        if any(row.action is RepairAction.FORCED for row in found) and store.manifest.rule_of(state):
            refuse_protected(branch)
        commit = adopt_heads(store, state, moved, held, Lineage.new(actor)).commit if moved else None
    return [replace(row, branch=branch or MAIN) for row in found], commit


def _mended(
    store: Store, branch: str | None, rows: list[TableRepair], mode: RepairMode
) -> tuple[list[TableRepair], Commit | None, list[str]]:
    """Drop the index segments of a branch that lost files, in one commit; return what nothing can mend as well."""
    # The same shape as any maintenance: prepared on a captured state, and rebased or refused by the publish.
    txn = begin(store, branch) if mode is not RepairMode.PREVIEW else capture(store, branch)
    # A table that is not at its pin is refused already, and cannot be written to.
    moved = {row.table_key for row in rows if row.action in (RepairAction.REFUSED, RepairAction.PREVIEW)}
    tables = owned_tables(branch, txn.entries)
    damage = dict(zip((table.key for table in tables), map_tables(partial(_damage, store), tables), strict=True))
    broken = {key: [one for one in found if one.index] for key, found in damage.items() if key not in moved}
    staged = [
        maintain.stage_indices(store.tables, table, [], [one.path.rpartition("/")[2] for one in broken[table.key]])
        for table in tables
        if broken.get(table.key)
    ]
    commit = None
    if staged and mode is not RepairMode.PREVIEW:
        actions = tuple(TableAction(one, OpClass.MAINTENANCE) for one in staged)
        lineage = Lineage.new(ACTOR)
        commit = publish(store, PublishPlan(txn, WriterKind.ENSURE_INDICES, actions, lineage=lineage)).commit
    names = {key: tuple(sorted({one.index or "" for one in found})) for key, found in broken.items()}
    lost = [one.path for found in damage.values() for one in found if not one.index]
    return [replace(row, lost_indexes=names.get(row.table_key, ())) for row in rows], commit, lost


def _damage(store: Store, table: TableVersion) -> list[Damage]:
    return damaged_files(store, Listing.below(store.location, store.objects, table.path), {table: ()})


def _judged(store: Store, table: TableVersion, mode: RepairMode) -> TableRepair:
    head = store.tables.head(table.path, table.branch).version
    if head < table.version:  # versions were lost: nothing that is there can be pinned instead
        message = f"the head of table '{table.key}' is version {head}, before its pin {table.version}"
        raise CorruptGraphError(message, path=table.path, hint="restore the table from a backup")
    if head == table.version:
        return TableRepair(table.key, head, head, Classification.NO_DRIFT, RepairAction.NONE)
    classification, operations, error = _classified(store, table, head)
    action = _action(mode, classification)
    return TableRepair(table.key, table.version, head, classification, action, operations, error)


def _classified(store: Store, table: TableVersion, head: int) -> tuple[Classification, tuple[str, ...], str | None]:
    """Classify a moved table by the transactions of all versions since the pinned one."""
    operations: list[str] = []
    for version in range(table.version + 1, head + 1):
        try:
            operation = store.tables.operation_of(replace(table, version=version))
        except OmnigraphError as error:
            return Classification.UNVERIFIABLE, tuple(operations), error.message
        if operation is None:
            return Classification.UNVERIFIABLE, tuple(operations), f"no transaction explains version {version}"
        operations.append(operation)
    # All of them: one transaction that changes rows makes the whole movement suspicious.
    upkeep = all(operation in _UPKEEP for operation in operations)
    return Classification.VERIFIED if upkeep else Classification.SUSPICIOUS, tuple(operations), None


def _action(mode: RepairMode, classification: Classification) -> RepairAction:
    if mode is RepairMode.PREVIEW:
        return RepairAction.PREVIEW
    if classification is Classification.VERIFIED:
        return RepairAction.HEALED
    return RepairAction.FORCED if mode is RepairMode.FORCE else RepairAction.REFUSED
