"""Put a schema in place: create a graph with it, or change the schema of one in a single commit."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from omnigraph.api.results import SchemaResult, SchemaRow
from omnigraph.commit import failpoints
from omnigraph.commit.plan import PublishPlan, WriterKind, WriteTxn, gates_for, schema_gates
from omnigraph.commit.publish import capture, publish_held
from omnigraph.commit.recovery import heal, recover_operation
from omnigraph.commit.store import Store
from omnigraph.core.refs import FOREIGN_LOCK, MAIN
from omnigraph.errors import (
    AlreadyInitializedError,
    BranchesPresentError,
    OmnigraphError,
    RecoveryRequiredError,
    SchemaUnsupportedError,
    StorageError,
)
from omnigraph.lang.catalog import Catalog, EdgeType, NodeType
from omnigraph.lang.evolution import plan_schema
from omnigraph.lang.identity import new_id
from omnigraph.lang.schema_check import compile_schema
from omnigraph.lang.schema_ids import carried, encoded
from omnigraph.lang.schema_steps import CODES, DropMode, SchemaPlan, Tier, UnsupportedChange
from omnigraph.lang.source import Source
from omnigraph.manifest import schema_files
from omnigraph.manifest.publisher import Lineage
from omnigraph.manifest.rows import RESTORING, TableRow, VersionRow
from omnigraph.manifest.state import HEAD
from omnigraph.storage.columns import table_key, table_path, table_schema
from omnigraph.storage.lance_errors import Failure, classify
from omnigraph.storage.unpublished import taking_back
from omnigraph.write.existing import checked
from omnigraph.write.schema_tables import TableSteps
from omnigraph.write.validate import check_patterns

_ATTEMPTS = 3
_CLAIM = "__init_claim.json"
_LOG = logging.getLogger(__name__)


def preview_schema(
    store: Store, source: Source, drops: DropMode = DropMode.SOFT, branch: str | None = None
) -> SchemaResult:
    """Return the steps to a schema, and change nothing."""
    wanted = _Wanted.of(source)
    txn = _captured(store, branch)
    plan = wanted.plan(store, txn, drops)
    _warn_one_way(store, txn, plan)
    return SchemaResult(plan, False, txn.base.version, _rows(plan, wanted.catalog, txn))  # noqa: FBT003


def apply_schema(
    store: Store,
    source: Source,
    drops: DropMode = DropMode.SOFT,
    actor: str | None = None,
    *,
    operation_id: str | None = None,
    message: str | None = None,
    branch: str | None = None,
) -> SchemaResult:
    """Change the schema of a branch in one commit. It has no other writer meanwhile; readers see whole states."""
    wanted = _Wanted.of(source)
    if drops is DropMode.HARD and branch is not None:
        message = f"data can only be given up on {MAIN}, not on branch '{branch}'"
        hint = "leave `allow_data_loss` out: what is dropped on a branch is dropped by its merge"
        raise SchemaUnsupportedError(message, steps=[message], hint=hint)
    heal(store)
    # Each attempt recovers one writer that died; more than a few in a row is something else.
    for _ in range(_ATTEMPTS):
        try:
            lineage = Lineage.new(actor, operation_id=operation_id, message=message)
            return _apply_alone(store, branch, wanted, drops, lineage)
        except RecoveryRequiredError as error:
            pending = error
            recover_operation(store, error.operation_id)  # needs the gates, which are free here
    raise pending


def _apply_alone(store: Store, branch: str | None, wanted: _Wanted, drops: DropMode, lineage: Lineage) -> SchemaResult:
    # A write prepared before finds at its publish that the schema has changed. On main the exclusive schema gate gives
    # the change its turn; every other writer of a branch takes the gate of the branch, and that is enough.
    # Under it a failed change takes back its new tables: later, they could be those of another change.
    gates = schema_gates(()) if branch is None else gates_for(branch, ())
    with store.gates.hold(gates) as held, taking_back(store.tables):
        _refuse_pending(store, branch)
        txn = _captured(store, branch)
        plan = wanted.plan(store, txn, drops)
        rows = _rows(plan, wanted.catalog, txn)
        # A text of equal meaning, such as one with other comments, is stored; it is no commit.
        if not plan.steps:
            _rewrite_source(store, wanted.source, txn)
            return SchemaResult(plan, False, txn.base.version, rows)  # noqa: FBT003
        _refuse(store, plan)
        _warn_one_way(store, txn, plan)
        published = publish_held(store, wanted.publish_plan(store, txn, plan, lineage), held)
    given_up = TableSteps(plan, wanted.catalog).losing if drops is DropMode.HARD else ()
    commit = published.commit
    return SchemaResult(plan, True, commit.manifest_version, rows, commit, tuple(given_up))  # noqa: FBT003


def _captured(store: Store, branch: str | None) -> WriteTxn:
    """Capture the state to start from, by the schema files as they are now: an edited one is refused."""
    store.schema_files.forget()
    return capture(store, branch)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The desired schema, compiled."""

    source: Source
    catalog: Catalog

    @classmethod
    def of(cls, source: Source) -> _Wanted:
        catalog = compile_schema(source)
        check_patterns(catalog)
        return cls(source, catalog)

    def plan(self, store: Store, txn: WriteTxn, drops: DropMode) -> SchemaPlan:
        """Plan the change; steps that existing entities do not allow are unsupported."""
        empty = {key for key, entry in txn.entries.items() if not entry.row_count}
        plan = plan_schema(txn.catalog, self.catalog, drops, empty)
        if not plan.supported:  # an entity can only be judged by the steps of a whole plan
            return plan
        steps = TableSteps(plan, self.catalog)
        return checked(plan, self.catalog, steps.existing(store.tables, txn.entries))

    def row(self, store: Store, txn: WriteTxn, plan: SchemaPlan) -> SchemaRow:
        ids = carried(store.ids_of_row(txn.base.schema), plan, self.catalog)
        return SchemaRow(self.source.text, self.catalog.fingerprint, store.origin_of(txn.base.schema), encoded(ids))

    def publish_plan(self, store: Store, txn: WriteTxn, plan: SchemaPlan, lineage: Lineage) -> PublishPlan:
        steps = TableSteps(plan, self.catalog)
        steps.check()  # before the first file is written
        actions = tuple(steps.actions(store.tables, txn))
        return PublishPlan(
            txn,
            WriterKind.SCHEMA_APPLY,
            actions,
            tuple(steps.registrations(store.tables, txn)),
            tuple(steps.tombstones(txn, actions)),
            schema=self.row(store, txn, plan),
            lineage=lineage,
            read_set=frozenset({HEAD}),  # any commit since would have been validated by the old schema
        )


def _rows(plan: SchemaPlan, desired: Catalog, txn: WriteTxn) -> dict[str, int]:
    return {key: txn.entries[key].row_count for key in TableSteps(plan, desired).changed if key in txn.entries}


def _warn_one_way(store: Store, txn: WriteTxn, plan: SchemaPlan) -> None:
    """Warn before a change that another implementation, which compiled the schema, cannot follow."""
    accepted = store.schema_of(txn.base)
    if plan.steps and accepted and accepted.foreign:
        message = "another implementation made %s, and cannot open it any more after this schema change"
        _LOG.warning(message, store.location.uri)


def _refuse(store: Store, plan: SchemaPlan) -> None:
    problems = [step for step in plan.steps if isinstance(step, UnsupportedChange)]
    if problems:
        message = f"unsupported schema change: {problems[0]}"
        hint = "add a new type or property instead, or export the data, change it and load it into a new graph"
        if problems[0].code and CODES[problems[0].code][0] is Tier.VALIDATED:
            hint = "change the entities that do not allow it, or the schema, and apply it again"
        raise SchemaUnsupportedError(message, steps=[str(step) for step in problems], hint=hint)
    if FOREIGN_LOCK in store.manifest.branches():
        message = f"another program is changing the schema, or died while it did: there is a branch {FOREIGN_LOCK}"
        hint = "wait for it, or remove the branch with a forced `repair`"
        raise BranchesPresentError(message, branches=[FOREIGN_LOCK], hint=hint)


def _refuse_pending(store: Store, branch: str | None) -> None:
    """Raise if a record of the branch is pending: finished later, it would publish tables of the old schema."""
    for operation_id in store.sidecars.pending():
        sidecar = store.sidecars.read(operation_id)
        if sidecar is not None and sidecar.branch != branch:
            continue
        message = f"operation {operation_id} was interrupted and must be recovered first"
        raise RecoveryRequiredError(message, operation_id=operation_id, hint="reopen the graph read-write")


def _rewrite_source(store: Store, source: Source, txn: WriteTxn) -> None:
    """Store a source text of equal meaning, such as one with other comments. This is no change of the graph."""
    accepted = store.schema_of(txn.base)
    if txn.branch is None and accepted and accepted.text != source.text:
        schema_files.rewrite_source(store.objects, source.text)
        store.schema_files.forget()


# Creating a graph: its schema files, its empty tables and, last, its manifest, which makes it a graph


def init_graph(store: Store, source: Source, *, force: bool) -> Store:
    """Create a graph. With `force`, take over from an attempt that died before its graph existed."""
    catalog = _Wanted.of(source).catalog
    address = store.location.uri
    started = schema_files.is_started(store.objects)
    if graph_exists(store):
        raise AlreadyInitializedError(f"a graph already exists at {address}", uri=address, hint="open it instead")
    if store.objects.exists(RESTORING):
        message = f"a backup is being restored to {address}"
        raise AlreadyInitializedError(message, uri=address, hint="run the same `omnigraph restore` again to finish it")
    if started and not force:
        message = f"another process began to create a graph at {address}"
        hint = "if it is no longer running, take over with --force"
        raise AlreadyInitializedError(message, uri=address, hint=hint)
    if force:
        _abandon(store)
    # Create-if-absent decides between two processes. Everything before it is only for a better message.
    schema_files.claim(store.objects, source, address)
    claim = new_id().encode()
    try:
        # The claim identifies our attempt: one that takes over with `force` has its own, and its tables are not ours.
        store.objects.write(_CLAIM, claim)
        failpoints.reach(failpoints.INIT_AFTER_SCHEMA_PG_WRITTEN)
        schema_files.write_compiled(store.objects, catalog)
        failpoints.reach(failpoints.INIT_AFTER_SCHEMA_CONTRACT_WRITTEN)
        _create_tables(store, catalog, claim)
    # Also on KeyboardInterrupt: a claim that stays would make everyone believe that the graph is being created.
    except BaseException:
        _abandon_unless_made(store, claim)
        raise
    failpoints.reach(failpoints.INIT_AFTER_MANIFEST_CREATED)
    _delete(store, _CLAIM)
    store.medium.sync("")
    return store


def _create_tables(store: Store, catalog: Catalog, claim: bytes) -> None:
    tables, versions = [], []
    types: list[NodeType | EdgeType] = [*catalog.nodes.values(), *catalog.edges.values()]
    for declared in types:
        # Checked before every table: until the manifest exists, another process may take over with `force`.
        _check_claim(store, claim)
        key, path = table_key(declared), table_path(declared)
        created = store.tables.create(path, table_schema(declared))
        tables.append(TableRow(key, path))
        versions.append(VersionRow(key, created.version, None, 0))
    _check_claim(store, claim)
    # The manifest comes last: until it exists there is no graph, and an attempt can be abandoned.
    store.medium.sync("")
    store.manifest.create(tables, versions)


def _check_claim(store: Store, claim: bytes) -> None:
    """Raise if another process took over with `force`: its tables must not be touched."""
    if store.objects.read_if_exists(_CLAIM) != claim:
        uri = store.location.uri
        message = f"another process took over creating a graph at {uri}"
        raise AlreadyInitializedError(message, uri=uri, hint="open it once it is created")


def graph_exists(store: Store) -> bool:
    """Return whether the graph exists: its manifest can be opened. Remains of an attempt do not count."""
    try:
        store.manifest.table.open()
    except StorageError as error:
        if classify(error) is Failure.NOT_FOUND:
            return False
        raise
    return True


def _abandon_unless_made(store: Store, claim: bytes) -> None:
    """Remove the claim of a failed attempt, unless the graph exists after all, or that is unknown."""
    try:
        made = graph_exists(store) or store.objects.read_if_exists(_CLAIM) not in (None, claim)
    except OmnigraphError as error:
        _LOG.warning("could not find out whether the graph was created: %s", error)
        return
    if not made:
        _abandon(store)


def _abandon(store: Store) -> None:
    """Remove the claim of a failed attempt. A failure here is logged, so that the original one is raised."""
    for name in (*reversed(schema_files.FILES), _CLAIM):
        _delete(store, name)


def _delete(store: Store, name: str) -> None:
    try:
        store.objects.delete(name)
    except OmnigraphError as error:
        _LOG.warning("could not remove %s: %s", name, error)
