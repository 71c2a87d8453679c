"""A change of the graph as data: what it was prepared on, what it does to each table, and who makes it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum

from omnigraph.api.results import Entry, SchemaRow, TableVersion
from omnigraph.commit.gates import Gate
from omnigraph.core.refs import MAIN
from omnigraph.lang.catalog import Catalog
from omnigraph.manifest.publisher import Lineage
from omnigraph.manifest.rows import TableRow, TombstoneRow, VersionRow
from omnigraph.manifest.state import ManifestState
from omnigraph.storage.stage import Staged, TableStorage


class WriterKind(StrEnum):
    """Who moves heads, as the recovery record names it."""

    MUTATION = "Mutation"
    LOAD = "Load"
    SCHEMA_APPLY = "SchemaApply"
    BRANCH_MERGE = "BranchMerge"
    ENSURE_INDICES = "EnsureIndices"
    OPTIMIZE = "Optimize"


class OpClass(Enum):
    """Logical changes need exactly the base they were prepared on; maintenance keeps content and may be rebased."""

    LOGICAL = "logical"
    MAINTENANCE = "maintenance"


@dataclass(frozen=True, slots=True)
class WriteTxn:
    """What a write was prepared on, captured once."""

    branch: str | None
    base: ManifestState
    catalog: Catalog
    forks: dict[str, TableVersion] = field(default_factory=dict, compare=False)

    @property
    def entries(self) -> Mapping[str, Entry]:
        return self.base.snapshot.entries

    def owned(self, tables: TableStorage, table_key: str) -> TableVersion:
        """The table to stage a change on: a branch that has only inherited it gets a fork of its own.

        A fork is like a staged file: it counts only once a commit names it, and if none ever does, cleanup removes it.
        """
        table = self.entries[table_key].table
        if self.branch is None or table.owner == self.branch:
            return table
        if table_key not in self.forks:
            self.forks[table_key] = tables.fork(table, self.branch)
        return self.forks[table_key]


@dataclass(frozen=True, slots=True)
class TableAction:
    """One staged transaction on one table."""

    staged: Staged
    op_class: OpClass = OpClass.LOGICAL

    @property
    def table_key(self) -> str:
        return self.staged.base.key


@dataclass(frozen=True, slots=True)
class PublishPlan:
    """All of a change: it happens whole or not at all.

    `reads` names the tables that it was validated against; none of them may have moved when it is published. `strict`
    names those in which it looked for what to change: if one has other content by then, the change is lost and must
    not be prepared again behind the caller's back. `adoptions` are versions of main that a branch takes over as they
    are. `if_head` is the commit that the branch must be at.
    """

    txn: WriteTxn
    kind: WriterKind
    actions: tuple[TableAction, ...]
    registrations: tuple[TableRow, ...] = ()
    tombstones: tuple[TombstoneRow, ...] = ()
    adoptions: tuple[VersionRow, ...] = ()
    schema: SchemaRow | None = None
    lineage: Lineage = field(default_factory=Lineage.new)
    reads: frozenset[str] = frozenset()
    strict: frozenset[str] = frozenset()
    if_head: str | None = None

    def __post_init__(self) -> None:
        changes_types = bool(self.registrations or self.tombstones or self.schema)
        assert not changes_types or self.kind is WriterKind.SCHEMA_APPLY, "only a schema apply adds or drops tables"
        named = [action.table_key for action in self.actions]
        assert len(named) == len(set(named)), "a table has one action"

    @property
    def branch(self) -> str | None:
        return self.txn.branch

    @property
    def table_keys(self) -> list[str]:
        """The tables that change or go, or both: one that gets another name goes under its old one."""
        rows: tuple[TombstoneRow | VersionRow, ...] = (*self.tombstones, *self.adoptions)
        return sorted({*(action.table_key for action in self.actions), *(row.table_key for row in rows)})

    @property
    def moves_tables(self) -> bool:
        """Whether it consists of more than one step, and so can be interrupted."""
        return bool(self.actions or self.registrations or self.tombstones or self.schema)


def gates_for(branch: str | None, table_keys: Iterable[str]) -> list[Gate]:
    """Name the gates of a write in the order in which everybody takes them: schema, branch, tables by name.

    Whoever takes `schema` alone must then take the gates of *all* branches, by name: on an object store a shared gate
    is no object, and those who hold it are waited for at the gates of their branches.
    """
    return [Gate("schema", shared=True), Gate(f"branch:{branch or MAIN}"), *table_gates(branch, table_keys)]


def schema_gates(table_keys: Iterable[str]) -> list[Gate]:
    """Name the gates of whoever changes the schema: nobody else writes, and no branch comes or goes."""
    return [Gate("schema"), Gate("refs"), Gate(f"branch:{MAIN}"), *table_gates(None, table_keys)]


def ref_gates(*branches: str) -> list[Gate]:
    """Name the gates of whoever makes or removes branches or tags: lance has no way to do either at once."""
    return [Gate("schema", shared=True), Gate("refs"), *(Gate(f"branch:{name}") for name in branches)]


def table_gates(branch: str | None, table_keys: Iterable[str]) -> list[Gate]:
    """Name the gates of some tables. Whoever takes them holds the gate of the branch."""
    return [Gate(f"table:{branch or MAIN}:{key}") for key in sorted(table_keys)]
