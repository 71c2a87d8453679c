"""Schema apply: plan the change, then make all of it visible in one commit, or nothing."""

from __future__ import annotations

from dataclasses import dataclass

from omnigraph.api.results import SchemaResult, SchemaRow
from omnigraph.commit.plan import PublishPlan, WriterKind, WriteTxn, schema_gates
from omnigraph.commit.publish import capture, publish_held
from omnigraph.commit.recovery import heal, recover_operation
from omnigraph.commit.store import Store
from omnigraph.core.refs import MAIN
from omnigraph.errors import BranchesPresentError, RecoveryRequiredError, SchemaUnsupportedError
from omnigraph.lang.catalog import Catalog
from omnigraph.lang.evolution import DropMode, SchemaPlan, UnsupportedChange, plan_schema
from omnigraph.lang.schema_check import compile_schema
from omnigraph.lang.source import Source
from omnigraph.manifest.contract import rewrite_source
from omnigraph.manifest.publisher import Lineage
from omnigraph.manifest.state import HEAD
from omnigraph.schema_apply.tables import TableSteps
from omnigraph.write.validate import check_patterns

_ATTEMPTS = 3


def preview_schema(store: Store, source: Source, drops: DropMode = DropMode.SOFT) -> SchemaResult:
    """Tell what it takes to get to a schema, and touch nothing."""
    wanted = _Wanted.of(source)
    txn = capture(store, None)
    plan = plan_schema(txn.catalog, wanted.catalog, drops)
    return SchemaResult(plan, False, txn.base.version, _rows(plan, wanted.catalog, txn))  # noqa: FBT003


def apply_schema(
    store: Store,
    source: Source,
    drops: DropMode = DropMode.SOFT,
    actor: str | None = None,
    operation_id: str | None = None,
) -> SchemaResult:
    """Change the schema of the graph in one commit. Nobody else writes meanwhile; what they read stays whole."""
    wanted = _Wanted.of(source)
    heal(store)
    for _ in range(_ATTEMPTS):
        try:
            return _apply_alone(store, wanted, drops, Lineage.new(actor, operation_id=operation_id))
        except RecoveryRequiredError as error:
            pending = error
            recover_operation(store, error.operation_id)  # the gates are free here, for recovery needs them as well
    raise pending


def _apply_alone(store: Store, wanted: _Wanted, drops: DropMode, lineage: Lineage) -> SchemaResult:
    with store.gates.hold(schema_gates(())) as held:
        _refuse_pending(store)
        txn = capture(store, None)
        plan = plan_schema(txn.catalog, wanted.catalog, drops)
        rows = _rows(plan, wanted.catalog, txn)
        if not plan.steps:
            _rewrite_source(store, wanted.source, txn)
            return SchemaResult(plan, False, txn.base.version, rows)  # noqa: FBT003
        _refuse(store, plan)
        published = publish_held(store, wanted.publish_plan(store, txn, plan, lineage), held)
    given_up = TableSteps(plan, wanted.catalog).losing if drops is DropMode.HARD else ()
    commit = published.commit
    return SchemaResult(plan, True, commit.manifest_version, rows, commit, tuple(given_up))  # noqa: FBT003


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The schema that the graph should have."""

    source: Source
    catalog: Catalog

    @classmethod
    def of(cls, source: Source) -> _Wanted:
        catalog = compile_schema(source)
        check_patterns(catalog)
        return cls(source, catalog)

    def publish_plan(self, store: Store, txn: WriteTxn, plan: SchemaPlan, lineage: Lineage) -> PublishPlan:
        steps = TableSteps(plan, self.catalog)
        steps.check()
        return PublishPlan(
            txn,
            WriterKind.SCHEMA_APPLY,
            tuple(steps.actions(store.tables, txn)),
            tuple(steps.registrations(store.tables, txn.base)),
            tuple(steps.tombstones(txn)),
            schema=SchemaRow(self.source.text, self.catalog.fingerprint, _origin(store, txn)),
            lineage=lineage,
            reads=frozenset({HEAD}),
        )


def _origin(store: Store, txn: WriteTxn) -> str:
    if txn.base.schema:
        return txn.base.schema.origin
    contract = store.contract.read()
    assert contract, "the graph is there"
    return contract.text


def _rows(plan: SchemaPlan, desired: Catalog, txn: WriteTxn) -> dict[str, int]:
    return {key: txn.entries[key].row_count for key in TableSteps(plan, desired).changed if key in txn.entries}


def _refuse(store: Store, plan: SchemaPlan) -> None:
    problems = [step for step in plan.steps if isinstance(step, UnsupportedChange)]
    if problems:
        message = f"the schema cannot be changed like this: {problems[0]}"
        hint = "make a new type or property instead, or export, change the data and load it into a new graph"
        raise SchemaUnsupportedError(message, steps=[str(step) for step in problems], hint=hint)
    others = [name for name in store.manifest.branches() if name != MAIN]
    if others:
        message = f"the schema can only be changed when there is no branch but {MAIN}: {', '.join(others)}"
        raise BranchesPresentError(message, branches=others, hint="merge and delete the other branches first")


def _refuse_pending(store: Store) -> None:
    for operation_id in store.sidecars.pending():
        message = f"operation {operation_id} stopped half-way; it must be finished or undone first"
        raise RecoveryRequiredError(message, operation_id=operation_id, hint="reopen the graph read-write")


def _rewrite_source(store: Store, source: Source, txn: WriteTxn) -> None:
    """A text that means the same may take the place of the one that is there; it is no change of the graph."""
    contract = store.schema_of(txn.base)
    if contract and contract.text != source.text:
        rewrite_source(store.objects, source.text)
