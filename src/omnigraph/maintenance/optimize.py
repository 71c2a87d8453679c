"""`optimize` and `ensure_indices`: rewrite small fragments and build indices, all tables of a branch in one commit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from omnigraph.api.maintenance import PendingIndex, TableUpkeep, UpkeepResult
from omnigraph.api.results import MAINTENANCE, Entry, TableVersion
from omnigraph.commit import audit
from omnigraph.commit.plan import OpClass, PublishPlan, TableAction, WriterKind, WriteTxn, gates_for
from omnigraph.commit.publish import begin, publish, was_cleaned_up
from omnigraph.commit.recovery import recover_operation
from omnigraph.commit.store import Store
from omnigraph.core.executor import ChooseExecutor
from omnigraph.errors import (
    ConflictError,
    CorruptGraphError,
    DriftError,
    ExpectedVersionMismatchError,
    RecoveryRequiredError,
    StorageError,
)
from omnigraph.lang.catalog import Catalog, EdgeType, NodeType
from omnigraph.maintenance.relocate import relocate_if_moved
from omnigraph.maintenance.tasks import (
    BuildTask,
    FragmentGroup,
    RewriteTask,
    build_parts,
    compaction_groups,
    map_tables,
    no_compaction,
    plan_builds,
    rows_of,
    run_build,
    run_rewrite,
    trainable_parts,
    unwanted_segments,
    wanted_indices,
)
from omnigraph.manifest.publisher import Lineage, Published
from omnigraph.storage import maintain
from omnigraph.storage.columns import table_key
from omnigraph.storage.internal import InternalTable, fragment_count
from omnigraph.storage.layout import IndexBuild, TableLayout, layout_of
from omnigraph.storage.stage import Staged
from omnigraph.storage.unpublished import taking_back

DRIFT = "drift_needs_repair"
CONTENDED = "written_too_often"
UNSETTLED = "it must be finished or undone first"
_ATTEMPTS = 5


def ensure_indices(store: Store, branch: str | None, runner: ChooseExecutor, actor: str | None = None) -> UpkeepResult:
    """Build the indices that the schema declares, and extend existing ones to all rows."""
    return _Upkeep(store, branch, runner, WriterKind.ENSURE_INDICES, no_compaction, actor).run()


def optimize_tables(store: Store, branch: str | None, runner: ChooseExecutor, actor: str | None = None) -> UpkeepResult:
    """Rewrite small fragments into large ones, and extend every index to all rows."""
    return _Upkeep(store, branch, runner, WriterKind.OPTIMIZE, compaction_groups, actor).run()


def settle(store: Store) -> None:
    """Recover interrupted writes; raise RecoveryRequiredError if one cannot be recovered."""
    for operation in store.sidecars.pending():
        recover_operation(store, operation)
        if store.sidecars.exists(operation):
            raise _half_way(operation, UNSETTLED, "open the graph read-write; see `doctor`")


def refuse_pending(store: Store, branch: str | None, why: str, hint: str) -> None:
    """Raise RecoveryRequiredError while an interrupted write to a branch is neither finished nor undone."""
    for operation in store.sidecars.pending():
        sidecar = store.sidecars.read(operation)
        if sidecar is not None and sidecar.branch == branch:
            raise _half_way(operation, why, hint)


def _half_way(operation: str, why: str, hint: str) -> RecoveryRequiredError:
    message = f"operation {operation} stopped half-way; {why}"
    return RecoveryRequiredError(message, operation_id=operation, hint=hint)


def pin_and_head(store: Store, branch: str | None, table: TableVersion) -> tuple[int, int]:
    """Return the published and the latest version of a table while no writer of ours is moving it."""
    # Without the gates, a head that a publish has moved and is about to pin would look like drift.
    with store.gates.hold(gates_for(branch, [table.key])):
        return store.manifest.load(branch).actual_version(table.key), store.tables.head_version(table)


@dataclass
class _Work:
    """The work on one table: what it is based on, and what is staged so far."""

    base: TableVersion
    made_of: TableLayout
    groups: Sequence[FragmentGroup] = ()
    staged: Staged | None = None
    builds: Sequence[IndexBuild] = ()
    pending: Sequence[PendingIndex] = ()
    unwanted: Sequence[str] = ()
    added: int = 0

    @property
    def removed(self) -> int:
        return sum(map(len, self.groups))


@dataclass
class _Upkeep:
    """One maintenance run. Work on a table survives failed attempts to publish, until that table changes."""

    store: Store
    branch: str | None
    runner: ChooseExecutor
    kind: WriterKind
    plan: Callable[[TableLayout], list[FragmentGroup]]
    actor: str | None
    work: dict[str, _Work] = field(default_factory=dict)
    skipped: dict[str, TableUpkeep] = field(default_factory=dict)
    losses: dict[str, int] = field(default_factory=dict)
    cleanups: int = 0
    refusals: int = 0

    def run(self) -> UpkeepResult:
        relocate_if_moved(self.store)
        settle(self.store)
        with taking_back(self.store.tables):
            return self._run()

    def _run(self) -> UpkeepResult:
        while True:
            txn = begin(self.store, self.branch)
            try:
                # A table of another program may be set to remove old versions at every commit, and would remove
                # pinned ones. That is turned off in a commit of its own, before anything else is committed.
                found = map_tables(self._auto_cleanup_off, owned_tables(txn.branch, txn.entries))
                if self._publish(txn, [one for one in found if one]):
                    continue
                self._prepare(txn)
                staged = [work.staged for _, work in sorted(self.work.items()) if work.staged]
                return self._result(txn, self._publish(txn, staged))
            except ExpectedVersionMismatchError as error:
                self._lost(error)
            except DriftError as error:
                self._drifted(error.table_key, error.pin, error.head)
            except ConflictError as error:
                self._preempted(error)
            except StorageError as error:
                self.cleanups += 1  # a cleanup may remove files that are read here: begin with the current state
                if self.cleanups > _ATTEMPTS or not was_cleaned_up(self.store, txn, error):
                    raise

    def _publish(self, txn: WriteTxn, staged: Sequence[Staged]) -> Published | None:
        if not staged:
            return None
        actions = tuple(TableAction(one, OpClass.MAINTENANCE) for one in staged)
        lineage = Lineage.new(self.actor, details={MAINTENANCE: self.kind.value})
        return publish(self.store, PublishPlan(txn, self.kind, actions, lineage=lineage))

    def _auto_cleanup_off(self, table: TableVersion) -> Staged | None:
        if self.store.tables.head_version(table) != table.version:
            return None  # it has drifted, and is skipped or reported later
        return maintain.stage_auto_cleanup_off(self.store.tables, table)

    def _lost(self, error: ExpectedVersionMismatchError) -> None:
        """Discard the work on a table that another write changed; skip the table after several losses."""
        key = error.table_key
        lost = self.work.pop(key, None)
        # Counted for each table: one that is written all the time must not keep the others from being optimized.
        self.losses[key] = self.losses.get(key, 0) + 1
        if self.losses[key] >= _ATTEMPTS:
            self.skipped[key] = TableUpkeep(
                key, skipped=CONTENDED, manifest_version=lost.base.version if lost else None
            )

    def _preempted(self, error: ConflictError) -> None:
        """Start over after Lance refused a commit that seemed to fit, as it does after a schema change and back."""
        self.refusals += 1
        # The exact type: its subclasses have handlers of their own, or are not for this loop to repeat.
        if self.refusals > _ATTEMPTS or type(error) is not ConflictError:
            raise error
        self.work.clear()

    def _drifted(self, key: str, pin: int, head: int) -> None:
        """Raise for `ensure_indices`, whose caller relies on the indices; `optimize` skips the table."""
        if self.kind is WriterKind.ENSURE_INDICES:
            what = f"table '{key}' is at version {head}, past its pin {pin}"
            message = f"{what}, and no operation of omnigraph explains it"
            raise DriftError(message, table_key=key, pin=pin, head=head, hint="run `omnigraph repair`")
        self.work.pop(key, None)
        self.skipped[key] = TableUpkeep(key, skipped=DRIFT, manifest_version=pin, lance_head_version=head)

    # Preparing

    def _prepare(self, txn: WriteTxn) -> None:
        """Do the remaining work without holding a gate, so that other writers can go on."""
        tables = self._open_tables(txn)
        fresh = {work.base.key: work for work in map_tables(self._look, tables)}
        self._rewrite(fresh)
        self._build(fresh, declared_types(txn.catalog))
        self.work |= fresh

    def _open_tables(self, txn: WriteTxn) -> list[TableVersion]:
        for key in set(self.work) - set(txn.entries):
            del self.work[key]  # its type was dropped meanwhile
        known = {*self.work, *self.skipped}
        tables = [table for table in owned_tables(txn.branch, txn.entries) if table.key not in known]
        # The cheap look first, for all tables at once; only a head that is not its pin is looked into.
        seen = zip(tables, map_tables(self.store.tables.head_version, tables), strict=True)
        return [table for table, head in seen if head == table.version or not self._has_drifted(table)]

    def _has_drifted(self, table: TableVersion) -> bool:
        pin, head = pin_and_head(self.store, self.branch, table)
        if head < pin:
            message = f"the head of table '{table.key}' is version {head}, before its pin {pin}"
            raise CorruptGraphError(message, path=table.path, hint="run `omnigraph doctor`")
        if head > pin:
            self._drifted(table.key, pin, head)
        return head > pin

    def _look(self, table: TableVersion) -> _Work:
        made_of = layout_of(self.store.tables, table)
        return _Work(table, made_of, self.plan(made_of))

    def _rewrite(self, fresh: Mapping[str, _Work]) -> None:
        tasks = [(work, group) for work in fresh.values() for group in work.groups]
        if not tasks:
            return
        location = self.store.location
        orders = [RewriteTask(location, work.base, group, rows_of(work.made_of, group)) for work, group in tasks]
        # All tables in one run, so that a table with one large fragment does not leave the other workers idle.
        done = self.runner(sum(order.rows for order in orders)).run("compact", run_rewrite, orders)

        def stage(work: _Work) -> None:
            mine = [one.done for one, (owner, _) in zip(done, tasks, strict=True) if owner is work]
            work.staged = maintain.stage_rewrite(self.store.tables, work.base, work.made_of, mine)

        map_tables(stage, [work for work in fresh.values() if work.groups])

    def _build(self, fresh: Mapping[str, _Work], types: Mapping[str, NodeType | EdgeType]) -> None:
        """Build indices on the rewritten tables before these are published."""

        def preview(work: _Work) -> TableVersion:
            return maintain.preview(self.store.tables, work.staged) if work.staged else work.base

        seen = dict(zip(fresh, map_tables(preview, fresh.values()), strict=True))
        tables = self.store.tables
        planned = map_tables(lambda key: self._plan_indices(fresh[key], seen[key], types.get(key)), fresh)
        orders = [(work, task) for work, found in zip(fresh.values(), planned, strict=True) for task in found]
        tasks = [task for _, task in orders]
        done = self.runner(sum(task.rows for task in tasks)).run("index", run_build, tasks) if tasks else []
        for work in fresh.values():
            built = [one.segment for one, (owner, _) in zip(done, orders, strict=True) if owner is work]
            if built or work.unwanted:
                replaced = [uuid for build in work.builds for uuid in build.replaces]
                then = maintain.stage_indices(tables, work.base, built, [*replaced, *work.unwanted])
                # A rewrite and the indices on it become visible together, or the new fragments would be unindexed.
                work.staged = maintain.chained(work.staged, then) if work.staged else then

    def _plan_indices(self, work: _Work, seen: TableVersion, declared: NodeType | EdgeType | None) -> list[BuildTask]:
        made_of = layout_of(self.store.tables, seen)
        work.added = len(made_of.parts) - len(work.made_of.parts) + work.removed
        specs = wanted_indices(declared) if declared else []
        work.builds, work.pending = plan_builds(self.store.tables, seen, made_of, specs)
        work.unwanted = unwanted_segments(made_of, specs) if declared else ()
        return [
            BuildTask(self.store.location, seen, build.spec, part, rows_of(made_of, part))
            for build in work.builds
            for part in trainable_parts(self.store.tables, seen, build, build_parts(made_of, build))
        ]

    # Reporting

    def _result(self, txn: WriteTxn, published: Published | None) -> UpkeepResult:
        entries = published.state.snapshot.entries if published else txn.entries
        done = [self._row(key, work, entries[key].table.version) for key, work in self.work.items()]
        rows = sorted([*done, *self.skipped.values()], key=lambda row: row.table_key)
        return UpkeepResult(tuple(rows), published.commit if published else None)

    def _row(self, key: str, work: _Work, version: int) -> TableUpkeep:
        names = tuple(build.spec.name for build in work.builds)
        row = TableUpkeep(key, work.removed, work.added, manifest_version=version, indexes=names)
        return replace(row, committed=work.staged is not None, pending_indexes=tuple(work.pending))


def owned_tables(branch: str | None, entries: Mapping[str, Entry]) -> list[TableVersion]:
    """Return the tables that a branch owns. Inherited tables are maintained on their own branch."""
    return [entry.table for entry in entries.values() if entry.table.owner == branch]


def declared_types(catalog: Catalog) -> dict[str, NodeType | EdgeType]:
    """Return the types of a schema by table key."""
    types: list[NodeType | EdgeType] = [*catalog.nodes.values(), *catalog.edges.values()]
    return {table_key(declared): declared for declared in types}


def optimize(store: Store, branch: str | None, runner: ChooseExecutor, actor: str | None = None) -> UpkeepResult:
    """Compact tables and build indices, then compact the audit log. `__manifest` always has one fragment."""
    done = optimize_tables(store, branch, runner, actor)
    if not store.objects.exists(audit.PATH):
        return done
    return replace(done, tables=(*done.tables, _compacted(store, InternalTable(store.location, audit.PATH), None)))


def _compacted(store: Store, table: InternalTable, branch: str | None) -> TableUpkeep:
    """Rewrite the fragments of an internal table into one. All its versions are kept, and nothing is published."""
    before = fragment_count(table.open(branch))
    if before > 1:
        _compact(store, table, branch)
    after = table.open(branch)
    count, version = fragment_count(after), int(after.version)
    if count == before:
        return TableUpkeep(table.path, manifest_version=version)
    return TableUpkeep(table.path, before, count, committed=True, manifest_version=version)


def _compact(store: Store, table: InternalTable, branch: str | None) -> None:
    """Compact under the gate of the branch. Writers of other programs can still win, so retry."""
    for attempt in range(_ATTEMPTS):
        try:
            with store.gates.hold(gates_for(branch, ())):
                table.compact(branch)
                return
        except ConflictError:
            if attempt == _ATTEMPTS - 1:
                raise
