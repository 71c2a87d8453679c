"""Changes of entities: one by one, by commit, and counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol, TypedDict

from omnigraph.api.results import Commit
from omnigraph.core.values import blob_text
from omnigraph.lang.schema_steps import SchemaPlan

if TYPE_CHECKING:
    import pyarrow as pa


class EntityKind(StrEnum):
    """What an entity is; nodes come before edges."""

    NODE = "node"
    EDGE = "edge"


class ChangeOperation(StrEnum):
    """What happened to an entity, in the order of changes with one id."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class Change:
    """One entity that was inserted, updated or deleted, with its properties before and after.

    `endpoints` are the two nodes of an edge, as they are, or were when it was deleted; `changed` names the properties
    that an update changed, `src` and `dst` among them if the edge was moved.
    """

    operation: ChangeOperation
    kind: EntityKind
    type_name: str
    id: str
    # None for a node. Of an edge that moved they are the new ones: the old ones are not stored with the change.
    endpoints: tuple[str, str] | None
    before: Mapping[str, Any] | None
    after: Mapping[str, Any] | None
    changed: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The change as JSON has it: a Blob is `base64:...`."""
        document: dict[str, Any] = {"op": self.operation, "kind": self.kind, "type": self.type_name, "id": self.id}
        if self.endpoints is not None:
            document["endpoints"] = dict(zip(("src", "dst"), self.endpoints, strict=True))
        if self.changed:
            document["changed"] = list(self.changed)
        for side, properties in (("before", self.before), ("after", self.after)):
            if properties is not None:
                document[side] = {name: _json(value) for name, value in properties.items()}
        return document


def _json(value: Any) -> Any:
    return blob_text(value) if isinstance(value, bytes) else value


# A page ends at the first of three limits, so that one poll costs about the same whether commits are many or large.
DEFAULT_LIMIT, MAX_LIMIT = 1000, 8192


DEFAULT_BYTES, MAX_BYTES = 4 * 2**20, 32 * 2**20


DEFAULT_COMMITS, MAX_COMMITS = 128, 512


class ChangeOptions(TypedDict, total=False):
    """What a caller may say about the changes that are wanted."""

    start: str | None
    cursor: str | None
    page_token: str | None
    kinds: Collection[str] | None
    types: Collection[str] | None
    operations: Collection[str] | None
    limit: int
    max_bytes: int
    max_commits: int


@dataclass(frozen=True, slots=True)
class EntityVersion:
    """What a commit did to an entity. `merge` brought it onto the branch, if it was made on another one."""

    commit: Commit
    change: Change
    merge: Commit | None = None


@dataclass(frozen=True, slots=True)
class ChangeBlock:
    """What one commit changed with respect to its first parent, or a part of that.

    `schema` has the steps of a change of the schema; the changes are in terms of the later schema.
    """

    cause: Commit
    changes: tuple[Change, ...]
    schema: SchemaPlan | None = None


@dataclass(frozen=True, slots=True)
class ChangePage:
    """Changes in the order of their commits. The last page of a poll has the cursor from which to go on next time.

    A commit that did not fit comes again in the next page, with the changes that are left. `caught_up` says that there
    was nothing more.
    """

    blocks: tuple[ChangeBlock, ...]
    cursor: str | None
    # Either this or a cursor: a token continues inside of a poll, a cursor begins the next one.
    next_page_token: str | None
    caught_up: bool

    def __iter__(self) -> Iterator[ChangeBlock]:
        return iter(self.blocks)


@dataclass(frozen=True, slots=True)
class Baseline:
    """Where to begin to follow a branch: an export of these tables at this commit, and the cursor right behind it."""

    commit_id: str
    cursor: str
    tables: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SchemaDifference:
    """Types that one of two states has, and properties that a type has in one of them; by name, in order."""

    types_added: tuple[str, ...] = ()
    types_removed: tuple[str, ...] = ()
    properties_added: tuple[str, ...] = ()
    properties_removed: tuple[str, ...] = ()
    # `node:Author -> node:Writer`, `node:Person.age -> node:Person.years`
    renamed: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        added, removed = (*self.types_added, *self.properties_added), (*self.types_removed, *self.properties_removed)
        return bool(added or removed or self.renamed)


@dataclass(frozen=True, slots=True)
class DiffStats:
    """How many entities of each type were inserted, updated and deleted; types without changes are not listed.

    `compared` names the types whose versions share no known history, so that all rows were compared.
    """

    counts: dict[str, dict[ChangeOperation, int]]
    compared: tuple[str, ...]

    @property
    def total(self) -> int:
        return sum(sum(counts.values()) for counts in self.counts.values())


class TableChanges(Protocol):
    """Some changes of one type. `compared` says that all of its rows were compared."""

    @property
    def key(self) -> str: ...
    @property
    def counts(self) -> Mapping[ChangeOperation, int]: ...
    @property
    def compared(self) -> bool: ...
    def changes(self) -> list[Change]: ...


class AtCommit(Protocol):
    """One side of a difference."""

    @property
    def commit(self) -> Commit: ...


class Difference(Protocol):
    """What turns one state of a graph into another: read when it is iterated, and only in parts."""

    @property
    def before(self) -> AtCommit: ...
    @property
    def after(self) -> AtCommit: ...
    @property
    def schema(self) -> SchemaDifference: ...
    def rows(self) -> Iterator[TableChanges]: ...
    def stats(self) -> DiffStats: ...
    def to_arrow(self) -> pa.Table: ...
    def __iter__(self) -> Iterator[Change]: ...


class DiffTally:
    """Counts changes while they are read."""

    def __init__(self) -> None:
        self._counts: dict[str, Counter[ChangeOperation]] = {}
        self._compared: set[str] = set()

    def add(self, rows: TableChanges) -> None:
        self._counts.setdefault(rows.key, Counter()).update(rows.counts)
        # One part that was compared marks the whole type, also if later parts were not.
        self._compared |= {rows.key} if rows.compared else set()

    @property
    def stats(self) -> DiffStats:
        return DiffStats({key: dict(found) for key, found in self._counts.items()}, tuple(sorted(self._compared)))
