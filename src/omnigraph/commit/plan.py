"""A change of the graph as data: what it was prepared on, what it does to each table, and who makes it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum

import pyarrow as pa

from omnigraph.api.results import Entry, SchemaRow, TableVersion
from omnigraph.api.reviews import BranchRule
from omnigraph.commit.gates import Gate
from omnigraph.core.refs import MAIN
from omnigraph.lang.catalog import Catalog
from omnigraph.manifest.publisher import Lineage
from omnigraph.manifest.rows import RuleRow, TableRow, TombstoneRow, VersionRow, stream_id
from omnigraph.manifest.state import ManifestState
from omnigraph.storage.stage import Staged, TableStorage

Inserted = Mapping[tuple[str, ...], pa.Table]
"""The values of inserted rows that no other row of the table may have, by the columns that must be unique together."""


Permit = Callable[[ManifestState, BranchRule], None]
"""Called under the gates, with the state that is published on and the rule of the branch there."""


class WriterKind(StrEnum):
    """The kind of a write, as the recovery record names it."""

    MUTATION = "Mutation"
    LOAD = "Load"
    SCHEMA_APPLY = "SchemaApply"
    BRANCH_MERGE = "BranchMerge"
    ENSURE_INDICES = "EnsureIndices"
    OPTIMIZE = "Optimize"
    RULE = "Rule"  # changes no table, so no record ever names it


class OpClass(Enum):
    """Whether an action changes content: if so, it needs exactly the base it was prepared on."""

    LOGICAL = "logical"  # changes rows
    MAINTENANCE = "maintenance"  # keeps content, and may be rebased


@dataclass(frozen=True, slots=True)
class WriteTxn:
    """The state that a write is prepared on, captured once."""

    branch: str | None
    base: ManifestState
    catalog: Catalog
    # The one mutable part, filled while a plan is prepared. A fork that no commit names is deleted with the staged
    # files.
    forks: dict[str, TableVersion] = field(default_factory=dict, compare=False)

    @property
    def entries(self) -> Mapping[str, Entry]:
        return self.base.snapshot.entries

    def moved_past(self, after: ManifestState, every: int) -> list[TableVersion]:
        """Return the tables of the branch that went past a multiple of so many versions up to a later state.

        This needs no look at the tables, and of several writers only one finds a table here.
        """
        owned = (entry.table for entry in after.snapshot.entries.values() if entry.table.owner == self.branch)
        known = self.entries
        return [
            one for one in owned if one.key in known and one.version // every > known[one.key].table.version // every
        ]

    def writable_table(self, tables: TableStorage, table_key: str) -> TableVersion:
        """Return the table to stage a change on; fork it first if the branch has only inherited it.

        A fork is like a staged file: it counts only once a commit names it. Cleanup removes one that no commit names.
        """
        table = self.entries[table_key].table
        if self.branch is None or table.owner == self.branch:
            return table
        # One fork for each table and write: writers ask several times.
        if table_key not in self.forks:
            self.forks[table_key] = tables.fork(table, self.branch)
        return self.forks[table_key]


@dataclass(frozen=True, slots=True)
class TableAction:
    """One staged transaction on one table.

    `fold`: merges small files of the same base. It comes first if the table is still at that base, and is left out if
    not.
    """

    staged: Staged
    op_class: OpClass = OpClass.LOGICAL
    fold: Staged | None = None

    @property
    def table_key(self) -> str:
        return self.staged.base.key


@dataclass(frozen=True, slots=True)
class PublishPlan:
    """A whole change: it happens completely or not at all.

    `read_set`: tables that validation relied on. If one has moved before the publish, the plan is prepared again.
    `must_be_unchanged`: tables that were searched for rows to change. If one has other content before the publish, the
    write fails, because only the caller can decide whether it still applies.
    `adoptions`: versions of main that a branch takes over as they are.
    `if_head`: the commit that the branch must be at.
    `rule`: what the branch demands of writes from now on.
    `permit`: raises unless what was decided about the change satisfies the rule of its branch.
    `inserted`: of a plan that only inserts rows, what it inserts into each table; None for any other.
    """

    txn: WriteTxn
    kind: WriterKind
    actions: tuple[TableAction, ...]
    registrations: tuple[TableRow, ...] = ()
    tombstones: tuple[TombstoneRow, ...] = ()
    adoptions: tuple[VersionRow, ...] = ()
    schema: SchemaRow | None = None
    lineage: Lineage = field(default_factory=Lineage.new)
    read_set: frozenset[str] = frozenset()
    must_be_unchanged: frozenset[str] = frozenset()
    if_head: str | None = None
    rule: RuleRow | None = None
    permit: Permit | None = field(default=None, compare=False, repr=False)
    inserted: Mapping[str, Inserted] | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        changes_types = bool(self.registrations or self.tombstones or self.schema)
        assert not changes_types or self.kind is WriterKind.SCHEMA_APPLY, "only a schema apply adds or drops tables"
        named = [action.table_key for action in self.actions]
        # Two transactions on one base: the second would land on the result of the first, which nothing has validated.
        assert len(named) == len(set(named)), "a table has one action"
        assert self.inserted is None or all(action.staged.adds_rows for action in self.actions), "it only inserts"

    @property
    def branch(self) -> str | None:
        return self.txn.branch

    @property
    def table_keys(self) -> list[str]:
        """The tables that change or are dropped. A renamed one is listed under its old key."""
        rows: tuple[TombstoneRow | VersionRow, ...] = (*self.tombstones, *self.adoptions)
        return sorted({*(action.table_key for action in self.actions), *(row.table_key for row in rows)})

    @property
    def relied_on(self) -> set[str]:
        """The tables whose pins must be the same at the publish as when the plan was prepared."""
        # All three: a table that was only read can make the change wrong as well, such as a node that an edge points
        # to.
        batch = self.lineage.batch
        stream = [stream_id(batch.stream)] if batch else []  # how far it is, which only its next batch may change
        return {*self.table_keys, *self.read_set, *self.must_be_unchanged, *stream}

    @property
    def changes_content(self) -> bool:
        """Whether a reader can see anything of the change but its commit."""
        logical = any(action.op_class is OpClass.LOGICAL for action in self.actions)
        rows = (logical, self.registrations, self.tombstones, self.adoptions, self.schema)
        return any(map(bool, rows)) or self.lineage.merged_parent_id is not None

    @property
    def moves_tables(self) -> bool:
        """Whether the plan takes more than one step, and so can be interrupted."""
        return bool(self.actions) or self.kind is WriterKind.SCHEMA_APPLY


def gates_for(branch: str | None, table_keys: Iterable[str]) -> list[Gate]:
    """Return the gates of a write, in the order in which every writer takes them: schema, branch, tables by key.

    The one order is what excludes deadlocks. On an object store a shared gate is no object, so an exclusive holder of
    `schema` must take the gates of *all* branches after it: that is where it waits for the shared holders.
    """
    return [Gate("schema", shared=True), Gate(f"branch:{branch or MAIN}"), *table_gates(branch, table_keys)]


def schema_gates(table_keys: Iterable[str]) -> list[Gate]:
    """Return the gates of a schema change: no other writer is active, and no branch is created or deleted."""
    return [Gate("schema"), Gate("refs"), Gate(f"branch:{MAIN}"), *table_gates(None, table_keys)]


def ref_gates(*branches: str) -> list[Gate]:
    """Return the gates for creating and deleting branches and tags, which Lance cannot do atomically."""
    return [Gate("schema", shared=True), Gate("refs"), *(Gate(f"branch:{name}") for name in branches)]


def table_gates(branch: str | None, table_keys: Iterable[str]) -> list[Gate]:
    """Return the gates of some tables. The caller holds the gate of the branch."""
    return [Gate(f"table:{branch or MAIN}:{key}") for key in sorted(table_keys)]
