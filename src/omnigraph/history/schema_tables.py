"""The tables of a merge whose states have several schemas: compared, judged and written in the merged one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pyarrow as pa

from omnigraph.api.options import MergeBy, Resolution
from omnigraph.api.results import Snapshot, TableVersion
from omnigraph.commit.plan import PublishPlan, TableAction, WriterKind, WriteTxn
from omnigraph.commit.publish import fill_new_table
from omnigraph.commit.store import Store
from omnigraph.errors import MergeConflict, SchemaBoundaryError
from omnigraph.history.delta import EDGE_KEYS, NODE_KEYS, touched_rows
from omnigraph.history.large_merge import LargeMergedTable
from omnigraph.history.schema_merge import (
    SchemaChangeOfMerge,
    SchemaMerging,
    Schemas,
    changed_values,
    needs_schema_merge,
)
from omnigraph.history.three_way import MergeBase, MergedTable, TableMerge
from omnigraph.lang.schema_steps import SchemaPlan, UnsupportedChange
from omnigraph.manifest.publisher import Lineage
from omnigraph.manifest.rows import StateTables, TableRow
from omnigraph.storage.columns import declared_of, image_schema
from omnigraph.storage.projection import Projection
from omnigraph.storage.stage import Staged
from omnigraph.write.existing import ExistingRows, checked
from omnigraph.write.pending import to_store
from omnigraph.write.schema_tables import TableSteps, new_table
from omnigraph.write.validate import ExistingTable, TableChange


@dataclass(frozen=True, slots=True)
class SchemaTables:
    """The schema that a merge makes, and the tables of all its states by the keys that their types have in it."""

    store: Store
    txn: WriteTxn
    change: SchemaChangeOfMerge
    past: MergeBase
    source: Mapping[str, TableVersion]
    target: Mapping[str, TableVersion]
    projections: Mapping[TableVersion, Projection]

    @property
    def changes(self) -> bool:
        """Whether the schema of the target changes."""
        return self.change.row is not None and self.change.row != self.txn.base.schema

    def old_key(self, key: str) -> str:
        old = self.change.old_key(key)
        assert old is not None, "only tables of the target are staged"
        return old

    def merged(
        self, key: str, by: MergeBy, resolution: Resolution, only: frozenset[str] | None = None
    ) -> MergedTable | None:
        """Merge one table; None if the source changed nothing that the target lacks."""
        if key not in self.source:  # the source has dropped the type, and it was decided to keep it
            return None
        # A type that is new in the target gets all its rows, also one that the target has dropped.
        past = self.past if key in self.target else MergeBase([{}])
        declared = declared_of(self.change.catalog, key)
        one = TableMerge(declared, past, self.source[key], self.target.get(key), by, only, self.projections)
        return one.run(self.store.tables, resolution)

    def existing(self) -> dict[str, ExistingTable | None]:
        """Return the tables of the target as the merged schema reads them."""
        found = {key: self.target.get(key) for key in self.change.keys}
        return {key: ExistingTable(table, self.projections[table]) if table else None for key, table in found.items()}

    def broken_rules(self, changes: Mapping[str, TableChange]) -> list[MergeConflict]:
        """Judge all entities, as they will be, by the rules that the schema of the target gets."""
        empty = pa.array([], pa.string())
        rows = {}
        for key, table in self.target.items():
            change = changes.get(key)
            ignored, brought = (change.touched, change.rows) if change else (empty, None)
            rows[key] = ExistingRows(self.store.tables, table, self.projections[table], ignored, brought)
        found = checked(self.change.plan, self.change.catalog, rows).of(UnsupportedChange)
        return [MergeConflict("value_constraint_violation", _key_of(one.entity), None, one.reason) for one in found]

    def publish_plan(
        self, tables: Mapping[str, MergedTable | LargeMergedTable], lineage: Lineage, read_set: frozenset[str]
    ) -> PublishPlan:
        """Stage the tables and the schema as one change."""
        steps, created, actions = self.change.steps, [], []
        for key in self.change.keys:
            one = tables.get(key)
            rows = one if isinstance(one, MergedTable) and not one.is_empty else None
            if self.change.old_key(key) is None:
                created.append(self._created(key, rows))
            elif (staged := self._staged(key, rows)) is not None:
                actions.append(TableAction(staged))
        details = {**(lineage.details or {}), "schema_steps": [str(step) for step in self.change.plan.steps]}
        return PublishPlan(
            self.txn,
            # Recovery never finishes a change of the schema before its publish: its record does not have all of it.
            WriterKind.SCHEMA_APPLY,
            tuple(actions),
            (*steps.moved(self.store.tables, self.txn), *created),
            tuple(steps.tombstones(self.txn, actions)),
            schema=self.change.row,
            lineage=replace(lineage, details=details),
            read_set=read_set,
        )

    def _staged(self, key: str, rows: MergedTable | None) -> Staged | None:
        steps, stored = self.change.steps, self.store.tables
        if key not in steps.columns and rows is None:
            return None
        base = self.txn.writable_table(stored, self.old_key(key))
        first = stored.stage_schema_change(base, steps.change_of(key)) if key in steps.columns else None
        return rows.stage(stored, base, first) if rows else first

    def _created(self, key: str, rows: MergedTable | None) -> TableRow:
        """Create the table of a type that is new in the target. Nothing refers to it before the publish."""
        stored = self.store.tables
        made = new_table(stored, self.txn, key, self.change.catalog)
        if rows is not None:
            base = TableVersion(key, made.path, stored.head(made.path, made.branch).version, made.branch)
            fill_new_table(self.store, stored.stage_append(base, to_store(rows.declared, rows.rows)))
        return made


def _key_of(entity: str) -> str:
    kind, _, name = entity.partition(" ")
    return f"{kind}:{name.strip(chr(39))}"


def schema_change(
    store: Store, txn: WriteTxn, past: MergeBase, source: Snapshot, resolution: Resolution | None
) -> SchemaTables | None:
    """Return what a merge makes of the schema, and the tables in it; None if all states have the same schema.

    Without a resolution the schema of the target stays as it is.
    """
    target = txn.base.snapshot
    if not needs_schema_merge(past, source, target):
        return None
    if resolution is None:
        schemas = Schemas(store, target)
        mine = schemas.target
        change = SchemaChangeOfMerge(mine.catalog, mine.ids, TableSteps(SchemaPlan(()), mine.catalog))
        _refuse_lost(store, schemas, past, source)
    else:
        merging = SchemaMerging(store, past, source, txn.entries, target)
        schemas, change = merging.schemas, merging.merge(resolution)
    projections: dict[TableVersion, Projection] = {}

    def placed(state: Mapping[str, TableVersion]) -> StateTables:
        """Return the tables of a state by their new keys, and remember how each is read."""
        row, known = (state.schema, state.is_known) if isinstance(state, StateTables) else (None, False)
        schema = schemas.of(row)
        found = change.tables(schema, state)
        projections.update({table: change.projection(schema, key) for key, table in found.items()})
        return StateTables(found, row, is_known=known)

    def moved(base: MergeBase) -> MergeBase:
        return MergeBase([placed(one) for one in base.bases], [moved(one) for one in base.before])

    base = moved(past)
    theirs, ours = (placed(_tables(snapshot)) for snapshot in (source, target))
    return SchemaTables(store, txn, change, base, theirs, ours, projections)


def _tables(snapshot: Snapshot) -> StateTables:
    return StateTables({key: entry.table for key, entry in snapshot.entries.items()}, snapshot.schema, is_known=True)


def _refuse_lost(store: Store, schemas: Schemas, past: MergeBase, source: Snapshot) -> None:
    """Refuse to take values of types and properties that the schema of the target does not have any more."""
    mine, theirs = schemas.target, schemas.of(source.schema)
    there = {one.id for one in mine.ids.values()}
    properties = {id_ for one in mine.ids.values() for id_ in one.properties.values()}
    for key, entry in source.entries.items():
        ids, base = theirs.ids[key], past.bases[0]
        schema = schemas.of(base.schema if isinstance(base, StateTables) else None)
        before = base.get(schema.types.get(ids.id, ""))
        if before == entry.table:
            continue
        lost = [name for name, id_ in ids.properties.items() if id_ not in properties]
        wanted = image_schema(declared_of(theirs.catalog, key))
        keys = EDGE_KEYS if key.startswith("edge:") else NODE_KEYS
        change = SchemaChangeOfMerge(theirs.catalog, theirs.ids, TableSteps(SchemaPlan(()), theirs.catalog))
        known = {before: change.projection(schema, key)} if before else {}
        found = touched_rows(store.tables, before, entry.table, wanted, keys, projections=known)
        gone = [key] if ids.id not in there and len(found.ids) else []
        gone += [f"{key}.{name}" for name in lost if changed_values(found, name)]
        if gone:
            message = f"the schema does not have {gone[0]} any more, which the commit changed"
            raise SchemaBoundaryError(message, hint="export the entities at the earlier state and load them instead")
