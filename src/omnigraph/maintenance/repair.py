"""`repair`: classify tables that another program moved, and pin them where they are if that is safe."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from omnigraph.api.maintenance import Classification, RepairAction, RepairMode, RepairResult, TableRepair
from omnigraph.api.results import Commit, TableVersion
from omnigraph.commit.gates import Held
from omnigraph.commit.plan import gates_for, ref_gates
from omnigraph.commit.publish import adopt_heads
from omnigraph.commit.store import Store
from omnigraph.core.refs import FOREIGN_LOCK, MAIN, branch_of
from omnigraph.errors import (
    BranchNotFoundError,
    CorruptGraphError,
    OmnigraphError,
    RecoveryRequiredError,
    RepairError,
)
from omnigraph.manifest.publisher import Lineage
from omnigraph.manifest.state import ManifestState

ACTOR, FORCE_ACTOR = "omnigraph:repair", "omnigraph:repair:force"
_UPKEEP = ("Rewrite", "ReserveFragments")


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
    pending = filter(None, map(store.sidecars.read, store.sidecars.pending()))
    for branch in {sidecar.branch for sidecar in pending}:
        with store.gates.hold(gates_for(branch, ())):
            _refuse_dead(store, branch)
    if mode is RepairMode.FORCE:
        _lift_foreign_lock(store)
    names = [name for name in store.manifest.branches() if name != FOREIGN_LOCK]
    done = []
    for name in names:
        with suppress(BranchNotFoundError):  # deleted since it was listed
            done.append(_repaired(store, branch_of(name), mode))
    rows = (row for found, _ in done for row in found)
    return RepairResult(mode, tuple(rows), tuple(commit for _, commit in done if commit))


def _refuse_dead(store: Store, branch: str | None) -> None:
    """Raise if a dead write explains the moved tables. The caller holds the gate, so any record left is a dead one."""
    for operation_id in store.sidecars.pending():
        sidecar = store.sidecars.read(operation_id)
        if sidecar is not None and sidecar.branch == branch:
            message = f"operation {operation_id} stopped half-way; recovery, not `repair`, takes care of its tables"
            hint = "reopen the graph read-write, which recovers it"
            raise RecoveryRequiredError(message, operation_id=operation_id, hint=hint)


def _lift_foreign_lock(store: Store) -> None:
    """Delete the lock of another program, which is a branch. With `force` the caller says that the program is dead."""
    if FOREIGN_LOCK not in store.manifest.branches():
        return
    with store.gates.hold(ref_gates(FOREIGN_LOCK)) as held:
        held.check()
        store.manifest.delete_branch(FOREIGN_LOCK)


def _repaired(store: Store, branch: str | None, mode: RepairMode) -> tuple[list[TableRepair], Commit | None]:
    """Classify the tables that a branch owns. Inherited tables are classified on their own branch."""
    keys = _owned(store.manifest.load(branch))
    with store.gates.hold(gates_for(branch, keys)) as held:
        _refuse_dead(store, branch)
        state = store.manifest.load(branch)
        tables = {key: table for key, table in _owned(state).items() if key in keys}
        found = [_judged(store, table, mode) for table in tables.values()]
        kept = [row.table_key for row in found if row.action in (RepairAction.HEALED, RepairAction.FORCED)]
        commit = _published(store, state, [tables[key] for key in kept], held, mode) if kept else None
    return [replace(row, branch=branch or MAIN) for row in found], commit


def _owned(state: ManifestState) -> dict[str, TableVersion]:
    tables = (entry.table for entry in state.snapshot.entries.values())
    return {table.key: table for table in tables if table.owner == state.branch}


def _published(store: Store, state: ManifestState, tables: list[TableVersion], held: Held, mode: RepairMode) -> Commit:
    actor = FORCE_ACTOR if mode is RepairMode.FORCE else ACTOR
    return adopt_heads(store, state, tables, held, Lineage.new(actor)).commit


def _judged(store: Store, table: TableVersion, mode: RepairMode) -> TableRepair:
    head = store.tables.head(table.path, table.branch).version
    if head < table.version:
        message = f"the head of table '{table.key}' is version {head}, before its pin {table.version}"
        raise CorruptGraphError(message, path=table.path, hint="restore the table from a backup")
    if head == table.version:
        return TableRepair(table.key, head, head, Classification.NO_DRIFT, RepairAction.NONE)
    classification, operations, error = _classified(store, table, head)
    action = _ACTIONS[mode](classification)
    return TableRepair(table.key, table.version, head, classification, action, operations, error)


def _classified(store: Store, table: TableVersion, head: int) -> tuple[Classification, tuple[str, ...], str | None]:
    """Return the transactions of all versions since the pinned one."""
    operations: list[str] = []
    for version in range(table.version + 1, head + 1):
        try:
            operation = store.tables.operation_of(replace(table, version=version))
        except OmnigraphError as error:
            return Classification.UNVERIFIABLE, tuple(operations), error.message
        if operation is None:
            return Classification.UNVERIFIABLE, tuple(operations), f"no transaction explains version {version}"
        operations.append(operation)
    if all(operation in _UPKEEP for operation in operations):
        return Classification.VERIFIED, tuple(operations), None
    return Classification.SUSPICIOUS, tuple(operations), None


def _when_confirmed(classification: Classification) -> RepairAction:
    return RepairAction.HEALED if classification is Classification.VERIFIED else RepairAction.REFUSED


def _when_forced(classification: Classification) -> RepairAction:
    return RepairAction.HEALED if classification is Classification.VERIFIED else RepairAction.FORCED


_ACTIONS: dict[RepairMode, Callable[[Classification], RepairAction]] = {
    RepairMode.PREVIEW: lambda _: RepairAction.PREVIEW,
    RepairMode.CONFIRM: _when_confirmed,
    RepairMode.FORCE: _when_forced,
}
