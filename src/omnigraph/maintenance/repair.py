"""`repair`: classify tables that another program moved, and pin them where they are if that is safe."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from omnigraph.api.maintenance import Classification, RepairAction, RepairMode, RepairResult, TableRepair
from omnigraph.api.results import Commit, TableVersion
from omnigraph.commit.plan import gates_for, ref_gates
from omnigraph.commit.publish import adopt_heads
from omnigraph.commit.store import Store
from omnigraph.core.refs import FOREIGN_LOCK, MAIN, branch_of
from omnigraph.errors import (
    BranchNotFoundError,
    CorruptGraphError,
    OmnigraphError,
    RepairError,
)
from omnigraph.maintenance.optimize import owned_tables, refuse_pending
from omnigraph.maintenance.relocate import relocate_if_moved
from omnigraph.manifest.publisher import Lineage

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
    done = []
    for name in names:
        with suppress(BranchNotFoundError):  # deleted since it was listed
            done.append(_repaired(store, branch_of(name), mode))
    rows = (row for found, _ in done for row in found)
    return RepairResult(mode, tuple(rows), tuple(commit for _, commit in done if commit))


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
        commit = adopt_heads(store, state, moved, held, Lineage.new(actor)).commit if moved else None
    return [replace(row, branch=branch or MAIN) for row in found], commit


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
    upkeep = all(operation in _UPKEEP for operation in operations)
    return Classification.VERIFIED if upkeep else Classification.SUSPICIOUS, tuple(operations), None


def _action(mode: RepairMode, classification: Classification) -> RepairAction:
    if mode is RepairMode.PREVIEW:
        return RepairAction.PREVIEW
    if classification is Classification.VERIFIED:
        return RepairAction.HEALED
    return RepairAction.FORCED if mode is RepairMode.FORCE else RepairAction.REFUSED
