"""`optimize`: everything that keeps a graph quick, for its tables in one commit and for its own books in place."""

from __future__ import annotations

from dataclasses import replace

from omnigraph.api.maintenance import TableUpkeep, UpkeepResult
from omnigraph.commit import audit
from omnigraph.commit.plan import gates_for
from omnigraph.commit.store import Store
from omnigraph.core.executor import ChooseExecutor
from omnigraph.errors import ConflictError
from omnigraph.maintenance.upkeep import optimize_tables
from omnigraph.storage.internal import InternalTable, fragment_count

_ATTEMPTS = 5


def optimize(store: Store, branch: str | None, runner: ChooseExecutor, actor: str | None = None) -> UpkeepResult:
    """Rewrite small fragments, extend and build indices, and do the same for the tables that describe the graph."""
    done = optimize_tables(store, branch, runner, actor)
    internal = [_compacted(store, store.manifest.table, branch)]
    if store.objects.exists(audit.PATH):
        internal.append(_compacted(store, InternalTable(store.location, audit.PATH), None))
    return replace(done, tables=(*done.tables, *internal))


def _compacted(store: Store, table: InternalTable, branch: str | None) -> TableUpkeep:
    """Rewrite the fragments of an internal table into one. Its versions all stay, and nothing is published."""
    before = fragment_count(table.open(branch))
    if before > 1:
        _compact(store, table, branch)
    after = table.open(branch)
    count = fragment_count(after)
    changed = count != before
    return TableUpkeep(
        table.path,
        fragments_removed=before if changed else 0,
        fragments_added=count if changed else 0,
        committed=changed,
        manifest_version=int(after.version),
    )


def _compact(store: Store, table: InternalTable, branch: str | None) -> None:
    """Lance lets a compaction lose to those who write; behind the gate of the branch few can."""
    for attempt in range(_ATTEMPTS):
        try:
            with store.gates.hold(gates_for(branch, ())):
                table.compact(branch)
                return
        except ConflictError:
            if attempt == _ATTEMPTS - 1:
                raise
