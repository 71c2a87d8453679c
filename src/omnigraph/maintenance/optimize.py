"""`optimize` and `ensure_indices`: rewrite small fragments and build indices, all tables of a branch in one commit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from omnigraph.api.maintenance import PendingIndex, TableUpkeep, UpkeepResult
from omnigraph.api.results import TableVersion
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
from omnigraph.maintenance.tasks import (
    BuildTask,
    FragmentGroup,
    RewriteTask,
    build_parts,
    compaction_groups,
    map_tables,
    no_compaction,
    plan_builds,
    run_build,
    run_rewrite,
    unwanted_segments,
    wanted_indices,
)
from omnigraph.manifest.publisher import Lineage, Published
from omnigraph.storage import maintain
from omnigraph.storage.columns import table_key
from omnigraph.storage.internal import InternalTable, fragment_count
from omnigraph.storage.layout import IndexBuild, TableLayout, layout_of
from omnigraph.storage.maintain import Rewrite
from omnigraph.storage.stage import Staged

DRIFT = "drift_needs_repair"
CONTENDED = "written_too_often"
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
            message = f"operation {operation} stopped half-way; it must be finished or undone first"
            raise RecoveryRequiredError(message, operation_id=operation, hint="open the graph read-write; see `doctor`")


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
        settle(self.store)
        while True:
            txn = begin(self.store, self.branch)
            try:
                if not self._turn_auto_cleanup_off(txn):
                    self._prepare(txn)
                    return self._result(txn, self._publish(txn))
            except ExpectedVersionMismatchError as error:
                self._lost(error)
            except DriftError as error:
                self._drifted(error.table_key, error.pin, error.head)
            except ConflictError as error:
                self._preempted(error)
            except StorageError as error:
                self.cleanups += 1
                if self.cleanups > _ATTEMPTS or not was_cleaned_up(self.store, txn, error):
                    raise

    def _publish(self, txn: WriteTxn) -> Published | None:
        staged = [(key, work.staged) for key, work in sorted(self.work.items()) if work.staged]
        if not staged:
            return None
        actions = tuple(TableAction(one, OpClass.MAINTENANCE) for _, one in staged)
        return publish(self.store, PublishPlan(txn, self.kind, actions, lineage=Lineage.new(self.actor)))

    def _turn_auto_cleanup_off(self, txn: WriteTxn) -> bool:
        """Publish first that Lance must not clean up by itself; return whether any table needed it."""
        # A table of another program may be set to remove old versions at every commit, and would remove pinned ones.
        staged = [one for one in map_tables(self._auto_cleanup_off, _owned(txn)) if one]
        if staged:
            actions = tuple(TableAction(one, OpClass.MAINTENANCE) for one in staged)
            publish(self.store, PublishPlan(txn, self.kind, actions, lineage=Lineage.new(self.actor)))
        return bool(staged)

    def _auto_cleanup_off(self, table: TableVersion) -> Staged | None:
        if self.store.tables.head_version(table) != table.version:
            return None
        return maintain.stage_auto_cleanup_off(self.store.tables, table)

    def _lost(self, error: ExpectedVersionMismatchError) -> None:
        """Discard the work on a table that another write changed; skip the table after several losses."""
        key = error.table_key
        lost = self.work.pop(key, None)
        self.losses[key] = self.losses.get(key, 0) + 1
        if self.losses[key] >= _ATTEMPTS:
            self.skipped[key] = TableUpkeep(
                key, skipped=CONTENDED, manifest_version=lost.base.version if lost else None
            )

    def _preempted(self, error: ConflictError) -> None:
        """Start over after Lance refused a commit that seemed to fit, as it does after a schema change and back."""
        self.refusals += 1
        if self.refusals > _ATTEMPTS or type(error) is not ConflictError:
            raise error
        self.work.clear()

    def _drifted(self, key: str, pin: int, head: int) -> None:
        """Raise for `ensure_indices`, whose caller relies on the indices; `optimize` skips the table."""
        if self.kind is WriterKind.ENSURE_INDICES:
            message = (
                f"table '{key}' is at version {head}, past its pin {pin}, and no operation of omnigraph explains it"
            )
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
            del self.work[key]
        tables = [table for table in _owned(txn) if table.key not in self.work and table.key not in self.skipped]
        heads = map_tables(self.store.tables.head_version, tables)
        seen = zip(tables, heads, strict=True)
        return [table for table, head in seen if head == table.version or not self._has_drifted(table)]

    def _has_drifted(self, table: TableVersion) -> bool:
        with self.store.gates.hold(gates_for(self.branch, [table.key])):  # so no writer of ours is moving it
            pin = self.store.manifest.load(self.branch).actual_version(table.key)
            head = self.store.tables.head_version(table)
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
        orders = [self._rewrite_task(work, group) for work, group in tasks]
        done = self.runner(sum(order.rows for order in orders)).run("compact", run_rewrite, orders)
        pairs = list(zip(done, tasks, strict=True))
        mine = {key: [one.done for one, (owner, _) in pairs if owner is work] for key, work in fresh.items()}
        map_tables(
            lambda key: self._stage_rewrite(fresh[key], mine[key]), [key for key, found in mine.items() if found]
        )

    def _stage_rewrite(self, work: _Work, done: Sequence[Rewrite]) -> None:
        work.staged = maintain.stage_rewrite(self.store.tables, work.base, work.made_of, done)

    def _rewrite_task(self, work: _Work, group: FragmentGroup) -> RewriteTask:
        rows = _rows(work.made_of, group)
        return RewriteTask(self.store.location, work.base, group, rows)

    def _build(self, fresh: Mapping[str, _Work], types: Mapping[str, NodeType | EdgeType]) -> None:
        """Build indices on the rewritten tables before these are published."""
        seen = dict(zip(fresh, map_tables(self._preview, fresh.values()), strict=True))
        try:
            self._build_on(fresh, types, seen)
        finally:
            for key, work in fresh.items():
                if work.staged and seen[key] != work.base:
                    maintain.forget(self.store.tables, seen[key])

    def _preview(self, work: _Work) -> TableVersion:
        return maintain.preview(self.store.tables, work.staged) if work.staged else work.base

    def _build_on(
        self, fresh: Mapping[str, _Work], types: Mapping[str, NodeType | EdgeType], seen: Mapping[str, TableVersion]
    ) -> None:
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
                work.staged = maintain.chained(work.staged, then) if work.staged else then

    def _plan_indices(self, work: _Work, seen: TableVersion, declared: NodeType | EdgeType | None) -> list[BuildTask]:
        made_of = layout_of(self.store.tables, seen)
        work.added = len(made_of.parts) - len(work.made_of.parts) + work.removed
        specs = wanted_indices(declared) if declared else []
        work.builds, work.pending = plan_builds(self.store.tables, seen, made_of, specs)
        work.unwanted = unwanted_segments(made_of, specs) if declared else ()
        return [task for build in work.builds for task in self._build_tasks(seen, made_of, build)]

    def _build_tasks(self, table: TableVersion, made_of: TableLayout, build: IndexBuild) -> list[BuildTask]:
        parts = build_parts(made_of, build)
        return [BuildTask(self.store.location, table, build.spec, one, _rows(made_of, one)) for one in parts]

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


def _owned(txn: WriteTxn) -> list[TableVersion]:
    """Return the tables that the branch owns. Inherited tables are maintained on their own branch."""
    return [entry.table for entry in txn.entries.values() if entry.table.owner == txn.branch]


def declared_types(catalog: Catalog) -> dict[str, NodeType | EdgeType]:
    """Return the types of a schema by table key."""
    types: list[NodeType | EdgeType] = [*catalog.nodes.values(), *catalog.edges.values()]
    return {table_key(declared): declared for declared in types}


def _rows(made_of: TableLayout, numbers: Sequence[int]) -> int:
    chosen = set(numbers)
    return sum(part.rows for part in made_of.parts if part.number in chosen)


_ATTEMPTS = 5


def optimize(store: Store, branch: str | None, runner: ChooseExecutor, actor: str | None = None) -> UpkeepResult:
    """Compact tables and build indices, then compact the internal tables."""
    done = optimize_tables(store, branch, runner, actor)
    internal = [_compacted(store, store.manifest.table, branch)]
    if store.objects.exists(audit.PATH):
        internal.append(_compacted(store, InternalTable(store.location, audit.PATH), None))
    return replace(done, tables=(*done.tables, *internal))


def _compacted(store: Store, table: InternalTable, branch: str | None) -> TableUpkeep:
    """Rewrite the fragments of an internal table into one. All its versions are kept, and nothing is published."""
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
    """Compact under the gate of the branch. Writers of other programs can still win, so retry."""
    for attempt in range(_ATTEMPTS):
        try:
            with store.gates.hold(gates_for(branch, ())):
                table.compact(branch)
                return
        except ConflictError:
            if attempt == _ATTEMPTS - 1:
                raise
