"""Upkeep: optimize the branches that need it, and clean up by a policy. With nothing to do, it changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from omnigraph.api.maintenance import UpkeepReport
from omnigraph.api.results import TableVersion
from omnigraph.commit.store import Store
from omnigraph.core.executor import ChooseExecutor
from omnigraph.core.refs import FOREIGN_LOCK, MAIN, branch_of
from omnigraph.lang.catalog import EdgeType, NodeType
from omnigraph.maintenance.cleanup import CleanupRequest, cleanup
from omnigraph.maintenance.fold import tail
from omnigraph.maintenance.optimize import declared_types, optimize, owned_tables
from omnigraph.maintenance.tasks import compaction_groups, plan_builds, rows_of, wanted_indices
from omnigraph.manifest.rows import MANIFEST_PATH
from omnigraph.manifest.state import ManifestState
from omnigraph.storage import reclaim
from omnigraph.storage.layout import layout_of

ACTOR = "omnigraph:upkeep"
MANY_FRAGMENTS = 32  # that could be merged: twice what a fold leaves
MANY_ROWS = 65_536  # without an index that the schema declares
MANY_VERSIONS = 1000  # of the history


def upkeep(store: Store, runner: ChooseExecutor, keep: int | None, older_than: timedelta | None) -> UpkeepReport:
    """Optimize every branch that is due; then, if it is said what to keep, clean up."""
    due = [name for name, state in store.manifest.states() if name != FOREIGN_LOCK and is_due(store, state)]
    # All branches first, and then one cleanup: what optimizing leaves behind can go at once.
    for name in due:
        optimize(store, branch_of(name), runner, ACTOR)
    if keep is None and older_than is None:
        return UpkeepReport(tuple(due))
    return UpkeepReport(tuple(due), cleanup(store, CleanupRequest(keep, older_than, confirm=True)))


def is_due(store: Store, state: ManifestState) -> bool:
    """Return whether a branch has tables in many small fragments, or with many rows that an index lacks."""
    accepted = store.schema_of(state)
    types = declared_types(accepted.catalog) if accepted else {}
    tables = owned_tables(state.branch, state.snapshot.entries)
    return any(_is_due(store, table, types.get(table.key)) for table in tables)


def _is_due(store: Store, table: TableVersion, declared: NodeType | EdgeType | None) -> bool:
    made_of = layout_of(store.tables, table)
    if sum(map(len, compaction_groups(made_of))) >= MANY_FRAGMENTS:
        return True
    builds, _ = plan_builds(store.tables, table, made_of, wanted_indices(declared) if declared else ())
    missing = (set(build.fragments) - made_of.covered(build.spec.name) for build in builds)
    return any(rows_of(made_of, numbers) >= MANY_ROWS for numbers in missing)


def advice(store: Store, state: ManifestState, table_keys: Sequence[str]) -> str | None:
    """Return what upkeep a branch and some of its tables need, in a sentence; None if that is nothing."""
    for key in table_keys:
        count = len(tail(layout_of(store.tables, state.snapshot.entries[key].table)))
        if count >= MANY_FRAGMENTS:
            return f"table '{key}' has {count} small files without an index: run `omnigraph optimize`"
    kept = len(reclaim.versions(store.tables, MANIFEST_PATH, state.branch))
    if kept >= MANY_VERSIONS:
        return f"{kept} versions of branch '{state.branch or MAIN}' are kept: remove old ones with `omnigraph cleanup`"
    return None
