"""What a merge makes of the schema of its target, and how the tables of all states are read in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from omnigraph.api.options import OURS, Resolution
from omnigraph.api.results import Entry, SchemaRow, Snapshot, TableVersion
from omnigraph.commit.store import Store
from omnigraph.errors import MergeConflict, SchemaBoundaryError, SchemaError
from omnigraph.history.delta import EDGE_KEYS, NODE_KEYS, Touched, differing, touched_rows
from omnigraph.history.diff import identified
from omnigraph.history.three_way import MergeBase
from omnigraph.lang.catalog import Catalog
from omnigraph.lang.evolution import plan_schema, renames_of
from omnigraph.lang.schema_check import compile_schema
from omnigraph.lang.schema_facts import Facts, IdentifiedSchema, plain, schema_of
from omnigraph.lang.schema_ids import SchemaIds, encoded
from omnigraph.lang.schema_merge import (
    DIVERGENT,
    DROPPED,
    NAME_TAKEN,
    Element,
    MergedSchema,
    SchemaConflict,
    aliases,
    joined_bases,
    merge_schemas,
)
from omnigraph.lang.schema_steps import SchemaPlan, UnsupportedChange
from omnigraph.lang.schema_text import schema_text
from omnigraph.lang.source import Source
from omnigraph.manifest.rows import StateTables
from omnigraph.storage.columns import declared_of, image_schema, table_keys
from omnigraph.storage.projection import Projection
from omnigraph.write.schema_tables import TableSteps

_BOUNDARY = "export the entities at the earlier state and load them instead"


@dataclass(frozen=True, slots=True)
class SchemaChangeOfMerge:
    """The schema that a merge gives its target: the steps to it, and where each state has its tables.

    `row` is None if the schema of the target stays as it is.
    """

    catalog: Catalog
    ids: SchemaIds
    steps: TableSteps
    plan: SchemaPlan = field(default_factory=lambda: SchemaPlan(()))
    row: SchemaRow | None = None
    conflicts: tuple[MergeConflict, ...] = ()

    @property
    def keys(self) -> list[str]:
        return sorted(table_keys(self.catalog))

    def old_key(self, key: str) -> str | None:
        """Return the key that a type has in the target; None if it is new there."""
        return None if key in self.steps.added else self.steps.before(key)

    def tables(self, schema: IdentifiedSchema, tables: Mapping[str, TableVersion]) -> dict[str, TableVersion]:
        """Return the tables of a state by the keys of the merged schema."""
        keys = schema.types
        found = {key: tables.get(keys.get(self.ids[key].id, "")) for key in self.keys}
        return {key: table for key, table in found.items() if table is not None}

    def projection(self, schema: IdentifiedSchema, key: str) -> Projection:
        """Return how to read a table of a state in the columns of the merged schema."""
        wanted = image_schema(declared_of(self.catalog, key))
        before = schema.ids.get(schema.types.get(self.ids[key].id, ""))
        names = {id_: name for name, id_ in before.properties.items()} if before else {}
        ids = self.ids[key].properties
        stored = {name: names[id_] for name, id_ in ids.items() if id_ in names}
        system = {name: name for name in wanted.names if name not in ids}
        return Projection(wanted, system | stored)


class Schemas:
    """The schemas of the states that a merge is about, with one id for what was added alike."""

    def __init__(self, store: Store, target: Snapshot) -> None:
        self._store = store
        self._known: dict[SchemaRow | None, IdentifiedSchema] = {}
        self.target = self.of(target.schema)

    def of(self, row: SchemaRow | None) -> IdentifiedSchema:
        if row not in self._known:
            self._known[row] = identified(self._store, row)
        return self._known[row]

    def rename(self, names: Mapping[str, str], row: SchemaRow | None) -> IdentifiedSchema:
        self._known[row] = self.of(row).named(names)
        return self._known[row]


def needs_schema_merge(past: MergeBase, source: Snapshot, target: Snapshot) -> bool:
    """Return whether the states of a merge have several schemas. Of some merges of older releases it is unknown."""
    rows = {source.schema, target.schema, *(one.schema for one in _states(past) if one.is_known)}
    if len(rows) > 1 and not all(one.is_known for one in _states(past) if one):
        message = "the two states have different schemas, and what they have in common was recorded without one"
        raise SchemaBoundaryError(message, hint=_BOUNDARY)
    return len(rows) > 1


def _states(past: MergeBase) -> Iterator[StateTables]:
    yield from (one if isinstance(one, StateTables) else StateTables(one) for one in past.bases)
    for before in past.before:
        yield from _states(before)


def _base_facts(schemas: Schemas, past: MergeBase) -> Facts:
    """Return the facts of the merge base: several are combined, each with what it has in common with those before."""
    states = _states(MergeBase(past.bases))
    found: Facts
    found, *others = [schemas.of(one.schema).facts if one.is_known else {} for one in states]
    for facts, before in zip(others, past.before, strict=True):
        found = joined_bases(_base_facts(schemas, before), found, facts)
    return found


class SchemaMerging:
    """Merges the schema of a source into that of a target."""

    def __init__(
        self, store: Store, past: MergeBase, source: Snapshot, entries: Mapping[str, Entry], target: Snapshot
    ) -> None:
        self.store, self.past, self.source, self.entries = store, past, source, entries
        self.schemas = Schemas(store, target)
        self.base = _base_facts(self.schemas, past)
        mine = self.schemas.target
        theirs = self.schemas.of(source.schema)
        names = aliases(self.base, mine, theirs)
        self.theirs = self.schemas.rename(names, source.schema) if names else theirs
        self.ours = mine
        self.origin = target

    def merge(self, resolution: Resolution) -> SchemaChangeOfMerge:
        found, kept = self._merged(resolution, {}), dict[Element, str]()
        conflicts = [*found.conflicts]
        if not conflicts:
            for conflict, keeper in self._lost_data(found.dropped):
                side = resolution.schema.get(conflict.label)
                if side is None:
                    conflicts.append(conflict)
                elif side == keeper:
                    kept[conflict.element] = side
        if kept and not conflicts:
            found = self._merged(resolution, kept)
        catalog, ids, text = self.ours.catalog, self.ours.ids, self.ours.text
        if not conflicts:
            try:
                catalog, ids = schema_of(found.facts)
                text = self._text(catalog, ids)
                compiled = compile_schema(Source(text))
            except (SchemaError, KeyError) as error:
                message = f"the two sides do not go together: {error}"
                conflicts.append(SchemaConflict(DIVERGENT, ("", ""), "schema", message))
                catalog, ids = self.ours.catalog, self.ours.ids
            else:
                assert plain(compiled) == catalog, "a schema is its facts"
                catalog = compiled
        return self._change(catalog, ids, text, conflicts)

    def _merged(self, resolution: Resolution, kept: Mapping[Element, str]) -> MergedSchema:
        def take(conflict: SchemaConflict) -> str | None:
            # What drops data is never chosen by a default.
            return resolution.schema.get(conflict.label) or (resolution.default if conflict.kind != DROPPED else None)

        return merge_schemas(self.base, self.ours.facts, self.theirs.facts, take, kept)

    def _text(self, catalog: Catalog, ids: SchemaIds) -> str:
        """Return the text of a side that says the same, with its comments; else one that is written for it."""
        for side in (self.ours, self.theirs):
            if plain(side.catalog) == catalog and side.ids == ids:
                return side.text
        return schema_text(catalog)

    def _change(
        self, catalog: Catalog, ids: SchemaIds, text: str, conflicts: Sequence[SchemaConflict]
    ) -> SchemaChangeOfMerge:
        plan = plan_schema(self.ours.catalog, catalog, renames=renames_of(self.ours.ids, ids))
        found = [_conflict(one) for one in conflicts]
        # Of the source as well: its values must fit what the merged schema makes of them.
        other = plan_schema(self.theirs.catalog, catalog, renames=renames_of(self.theirs.ids, ids))
        problems = [] if found else [*plan.of(UnsupportedChange), *other.of(UnsupportedChange)]
        found += [MergeConflict(DIVERGENT, one.entity, None, str(one), schema=one.entity) for one in problems]
        steps = TableSteps(plan, catalog)
        found += [
            MergeConflict(NAME_TAKEN, key, None, f"{key}: it takes a name that the same merge frees", schema=key)
            for key in {*steps.freed, *(set(steps.dropped) & set(steps.added))}
        ]
        row = SchemaRow(text, catalog.fingerprint, self.store.origin_of(self.origin.schema), encoded(ids))
        if self.origin.schema and (self.origin.schema.source, self.origin.schema.ids) == (row.source, row.ids):
            row = self.origin.schema
        return SchemaChangeOfMerge(catalog, ids, steps, plan, row, tuple(found))

    # Data that a drop would lose

    def _lost_data(self, dropped: Mapping[Element, str]) -> Iterator[tuple[SchemaConflict, str]]:
        """Yield the drops of one side of what the other has changed since, with the side that has it."""
        for (type_, property_), keeper in dropped.items():
            if property_ and (type_, "") in dropped:
                continue  # the type says it
            side, tables = (
                (self.ours, {key: one.table for key, one in self.entries.items()})
                if keeper == OURS
                else (self.theirs, {key: one.table for key, one in self.source.entries.items()})
            )
            key = side.types[type_]
            if key.startswith("interface:"):
                continue
            names = {id_: name for name, id_ in side.ids[key].properties.items()}
            count = self._changed(side, key, tables.get(key), names.get(property_))
            if count:
                label = f"{key}.{names[property_]}" if property_ else key
                what = f"property {label.partition(':')[2]}" if property_ else label.replace(":", " ", 1)
                other = "source" if keeper == OURS else "target"
                many = f"{count:,} entities have" if count > 1 else "1 entity has"
                message = f"{what}: the {other} dropped it, and {many} another value on the other side since"
                yield SchemaConflict(DROPPED, (type_, property_), label, message), keeper

    def _changed(self, side: IdentifiedSchema, key: str, table: TableVersion | None, name: str | None) -> int:
        """Count the entities that a side has changed since every merge base, or changed one property of."""
        keys = EDGE_KEYS if key.startswith("edge:") else NODE_KEYS
        wanted = image_schema(declared_of(side.catalog, key))
        counts = []
        for base in _states(MergeBase(self.past.bases)):
            schema = self.schemas.of(base.schema)
            before = base.get(schema.types.get(side.ids[key].id, ""))
            if before == table:
                return 0
            old = SchemaChangeOfMerge(side.catalog, side.ids, TableSteps(SchemaPlan(()), side.catalog))
            projections = {before: old.projection(schema, key)} if before else {}
            found = touched_rows(self.store.tables, before, table, wanted, keys, projections=projections)
            counts.append(len(found.ids) if name is None else changed_values(found, name))
        return min(counts, default=0)


def changed_values(found: Touched, name: str) -> int:
    """Count the entities that have another value of a property afterwards."""
    changed: int = sum(int(differing(before[name], after[name]).sum()) for before, after in found.updates())
    inserted = found.rows_after(found.inserted)[name]
    return changed + len(inserted) - int(inserted.null_count)


def _conflict(found: SchemaConflict) -> MergeConflict:
    table_key = found.label.partition(".")[0]
    return MergeConflict(found.kind, table_key, None, found.message, schema=found.label)
