"""The steps of a schema change as changes of tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from omnigraph.api.results import Entry, TableVersion
from omnigraph.commit.plan import TableAction, WriteTxn
from omnigraph.errors import SchemaUnsupportedError
from omnigraph.lang.catalog import Catalog
from omnigraph.lang.identity import new_id
from omnigraph.lang.schema_steps import (
    AddProperty,
    AddType,
    DropProperty,
    DropType,
    RelaxProperty,
    RenameProperty,
    RenameType,
    SchemaPlan,
    WidenProperty,
)
from omnigraph.manifest.rows import TableRow, TombstoneRow
from omnigraph.storage.columns import declared_of, image_schema, moved_path, table_keys, table_path, table_schema
from omnigraph.storage.projection import Projection
from omnigraph.storage.stage import SchemaChange, TableStorage
from omnigraph.write.existing import ExistingRows


@dataclass(slots=True)
class _ColumnChanges:
    """The column changes of one type, by its new name."""

    drop: list[str] = field(default_factory=list)
    rename: list[tuple[str, str]] = field(default_factory=list)
    add: list[str] = field(default_factory=list)
    widen: list[str] = field(default_factory=list)
    relax: list[str] = field(default_factory=list)

    def before(self, name: str) -> str:
        """Return the name of a column before the change."""
        return next((old for old, new in self.rename if new == name), name)


class TableSteps:
    """The steps of a schema plan as changes of tables."""

    def __init__(self, plan: SchemaPlan, desired: Catalog) -> None:
        self.desired = desired
        self.added: list[str] = []
        self.dropped: list[str] = []
        self.renamed: dict[str, str] = {}  # new key -> old key
        self.columns: Mapping[str, _ColumnChanges] = defaultdict(_ColumnChanges)
        for step in plan.steps:
            match step:
                case AddType(kind, name) if kind != "interface":
                    self.added.append(f"{kind}:{name}")
                case DropType(kind, name):
                    self.dropped.append(f"{kind}:{name}")
                case RenameType(kind, old, new) if kind != "interface":
                    self.renamed[f"{kind}:{new}"] = f"{kind}:{old}"
                case AddProperty(kind, name, property_) if kind != "interface":
                    self.columns[f"{kind}:{name}"].add.append(property_)
                case RenameProperty(kind, name, old, new) if kind != "interface":
                    self.columns[f"{kind}:{name}"].rename.append((old, new))
                case WidenProperty(kind, name, property_) if kind != "interface":
                    self.columns[f"{kind}:{name}"].widen.append(property_)
                case RelaxProperty(kind, name, property_) if kind != "interface":
                    self.columns[f"{kind}:{name}"].relax.append(property_)
                case DropProperty(kind, name, property_) if kind != "interface":
                    self.columns[f"{kind}:{name}"].drop.append(property_)

    def before(self, key: str) -> str:
        """Return the key of a table before the change."""
        return self.renamed.get(key, key)

    @property
    def losing(self) -> list[str]:
        """The tables that are dropped or lose a column, by their new keys."""
        return sorted({*self.dropped, *(key for key, columns in self.columns.items() if columns.drop)})

    @property
    def changed(self) -> list[str]:
        """The tables that are dropped or changed, by their current keys."""
        return sorted({*map(self.before, self.columns), *self.dropped, *self.renamed.values()})

    @property
    def freed(self) -> list[str]:
        """The columns that take a name which another gives up in the same change: Lance refuses it in one commit."""
        found = []
        for key, columns in self.columns.items():
            freed = {*columns.drop, *(old for old, _ in columns.rename)}
            found += [f"{key}.{name}" for name in freed & {*columns.add, *(new for _, new in columns.rename)}]
        return sorted(found)

    def check(self) -> None:
        if self.freed:
            message = f"property '{self.freed[0].partition(':')[2]}' cannot take a name that the same change frees"
            raise SchemaUnsupportedError(message, steps=[message], hint="apply the change in two steps")

    def actions(self, tables: TableStorage, txn: WriteTxn) -> Iterator[TableAction]:
        """Stage the column changes. Only columns that get values are written."""
        for key in self.columns:
            base = txn.writable_table(tables, self.before(key))
            yield TableAction(tables.stage_schema_change(base, self.change_of(key)))

    def change_of(self, key: str) -> SchemaChange:
        columns, schema = self.columns[key], table_schema(declared_of(self.desired, key))
        return SchemaChange(
            tuple(columns.drop),
            tuple(columns.rename),
            # Columns are nullable in storage: the rows of a table that was empty are checked like all others.
            tuple(schema.field(name).with_nullable(True) for name in columns.add),  # noqa: FBT003
            tuple((columns.before(name), schema.field(name).with_nullable(True)) for name in columns.widen),  # noqa: FBT003
            tuple(columns.relax),
        )

    def projection(self, key: str) -> Projection:
        """Return how to read a table of before the change in its columns of after it."""
        declared, columns = declared_of(self.desired, key), self.columns.get(key, _ColumnChanges())
        schema = image_schema(declared)
        stored = {name: columns.before(name) for name in schema.names if name not in columns.add}
        return Projection(schema, stored)

    def existing(self, tables: TableStorage, entries: Mapping[str, Entry]) -> dict[str, ExistingRows]:
        """Return the entities of the types that stay, by their new keys."""
        keys = sorted(table_keys(self.desired) - set(self.added))
        return {key: ExistingRows(tables, entries[self.before(key)].table, self.projection(key)) for key in keys}

    def tombstones(self, txn: WriteTxn, actions: Iterable[TableAction]) -> Iterator[TombstoneRow]:
        """Yield tombstones behind the versions that the change makes. A renamed table is dropped under its old key."""
        made = {action.table_key: len(action.staged.steps) for action in actions}
        for key in (*self.dropped, *self.renamed.values()):
            yield TombstoneRow(key, txn.entries[key].table.version + made.get(key, 1))

    def registrations(self, tables: TableStorage, txn: WriteTxn) -> Iterator[TableRow]:
        """Create the new tables; yield the directories of new and renamed ones. A renamed table stays in place."""
        yield from self.moved(tables, txn)
        for key in self.added:
            yield new_table(tables, txn, key, self.desired)

    def moved(self, tables: TableStorage, txn: WriteTxn) -> Iterator[TableRow]:
        """Yield the directories of renamed tables by their new keys."""
        for key, old in self.renamed.items():
            # The new key is published at the head of the table: on a branch, that must be a fork of its own.
            table = txn.writable_table(tables, old)
            yield TableRow(key, table.path, table.branch)


def new_table(tables: TableStorage, txn: WriteTxn, key: str, desired: Catalog) -> TableRow:
    """Create the empty table of a type."""
    declared, state = declared_of(desired, key), txn.base
    known = state.paths.get(key, table_path(declared))
    taken = known in {entry.table.path for entry in state.snapshot.entries.values()}
    # The table of a renamed type still lives there, or another branch may add a type of that name at any time.
    path = moved_path(declared, new_id()) if taken or txn.branch else known
    # The versions of a type that is added again must be past its tombstone, or the fold would hide them.
    tables.create_behind(path, table_schema(declared), state.actual_version(key), known)
    if txn.branch is None:
        return TableRow(key, path)
    version = tables.head(path, None).version
    return TableRow(key, path, tables.fork(TableVersion(key, path, version, None), txn.branch).branch)
