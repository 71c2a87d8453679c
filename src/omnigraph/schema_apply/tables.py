"""What the steps of a schema plan do to tables: which come, which go, which get other columns or another name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from omnigraph.commit.plan import TableAction, WriteTxn
from omnigraph.errors import SchemaUnsupportedError
from omnigraph.lang.catalog import Catalog
from omnigraph.lang.evolution import (
    AddProperty,
    AddType,
    DropProperty,
    DropType,
    RenameProperty,
    RenameType,
    SchemaPlan,
)
from omnigraph.lang.identity import new_id
from omnigraph.manifest.rows import TableRow, TombstoneRow
from omnigraph.manifest.state import ManifestState
from omnigraph.storage.columns import declared_of, moved_path, table_path, table_schema
from omnigraph.storage.tables import SchemaChange, TableStorage


@dataclass(slots=True)
class _Columns:
    """What becomes of the columns of one type, by the name that it will have."""

    drop: list[str] = field(default_factory=list)
    rename: list[tuple[str, str]] = field(default_factory=list)
    add: list[str] = field(default_factory=list)


class TableSteps:
    """The steps of a plan as changes of tables, on one state of the graph."""

    def __init__(self, plan: SchemaPlan, desired: Catalog) -> None:
        self.desired = desired
        self.added: list[str] = []
        self.dropped: list[str] = []
        self.renamed: dict[str, str] = {}  # new key -> old key
        self.columns: Mapping[str, _Columns] = defaultdict(_Columns)
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
                case DropProperty(kind, name, property_) if kind != "interface":
                    self.columns[f"{kind}:{name}"].drop.append(property_)

    def before(self, key: str) -> str:
        """What a table is called before the change."""
        return self.renamed.get(key, key)

    @property
    def losing(self) -> list[str]:
        """The tables that go, and those that lose a column, by the keys that they will have."""
        return sorted({*self.dropped, *(key for key, columns in self.columns.items() if columns.drop)})

    @property
    def changed(self) -> list[str]:
        """The tables, by the keys that they have now, whose columns change or that go."""
        return sorted({*map(self.before, self.columns), *self.dropped, *self.renamed.values()})

    def check(self) -> None:
        """See that no column takes a name that another one only gives up in the same change."""
        for key, columns in self.columns.items():
            freed = {*columns.drop, *(old for old, _ in columns.rename)}
            taken = freed & {*columns.add, *(new for _, new in columns.rename)}
            if taken:
                name = f"{key.partition(':')[2]}.{min(taken)}"
                message = f"property '{name}' cannot take a name that is only given up in the same change"
                raise SchemaUnsupportedError(message, steps=[message], hint="apply the change in two steps")

    def actions(self, tables: TableStorage, txn: WriteTxn) -> Iterator[TableAction]:
        """Stage the changes of columns. No data is rewritten."""
        for key, columns in self.columns.items():
            schema = table_schema(declared_of(self.desired, key))
            change = SchemaChange(
                tuple(columns.drop), tuple(columns.rename), tuple(schema.field(name) for name in columns.add)
            )
            yield TableAction(tables.stage_schema_change(txn.entries[self.before(key)].table, change))

    def tombstones(self, txn: WriteTxn) -> Iterator[TombstoneRow]:
        """One right behind the version that each table is at; a table that gets another name goes under its old one."""
        for key in (*self.dropped, *self.renamed.values()):
            yield TombstoneRow(key, txn.entries[key].table.version + 1)

    def registrations(self, tables: TableStorage, state: ManifestState) -> Iterator[TableRow]:
        """Make the tables that come, and tell where they are; one that has another name stays where it is."""
        for key, old in self.renamed.items():
            yield TableRow(key, state.snapshot.entries[old].table.path)
        for key in self.added:
            declared = declared_of(self.desired, key)
            known = state.paths.get(key, table_path(declared))
            taken = known in {entry.table.path for entry in state.snapshot.entries.values()}
            path = moved_path(declared, new_id()) if taken else known  # a type that was called so lives there
            # A type that was there before goes on behind the version at which it went.
            tables.create_behind(path, table_schema(declared), state.actual_version(key), known)
            yield TableRow(key, path)
