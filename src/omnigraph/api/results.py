"""What operations return: commits, names, counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from omnigraph.api.options import RESOLUTION_FORMAT, EmbedMode, LoadMode
from omnigraph.errors import MergeConflict, ProblemCount, Violation
from omnigraph.lang.identity import is_new_id
from omnigraph.lang.schema_steps import SchemaPlan

MAINTENANCE = "maintenance"  # among the details of a commit that keeps all rows: which kind of upkeep made it
MESSAGE = "message"  # among the details of a commit: what its author says about it
OPERATION = "operation_id"  # among the details of a commit: the id that the caller gave it
STREAM = "stream"  # among the details of a commit: the batch of a stream that it is
STREAMS = "streams"  # of a merge: how far the streams are that wrote to the other branch
UNCERTAIN = "unknown_merges"  # of a merge: older ones that recorded nothing, and whose branch is gone


@dataclass(frozen=True, slots=True)
class TableVersion:
    """One version of one table: where it is, on which native branch (None is main), and its number."""

    key: str
    path: str
    version: int
    branch: str | None = None

    @property
    def owner(self) -> str | None:
        """The branch of the graph that may change it; None is main."""
        if self.branch is None:
            return None
        # `<ULID>/<branch>`, see `storage.read.fork_name`. Forks of older graphs have the name of the branch alone.
        made, _, name = self.branch.partition("/")
        return name if name and is_new_id(made) else self.branch


@dataclass(frozen=True, slots=True)
class SchemaRow:
    """The schema of the graph from a version of the manifest on, so that no state is read by the schema of another.

    A graph whose schema was never changed has no such row; its schema is in the files that it was made with. `origin`
    is what was in them then.
    """

    source: str
    fingerprint: str
    # Kept with every later schema: states from before the first change have no row of their own.
    origin: str
    # The identity of types and properties, as JSON. Without it, they are identified by their names.
    ids: str | None = None


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit of the graph. `branch` is None on main; `created_at` is in microseconds since 1970.

    `details` says more about some commits: how conflicts of a merge were resolved, which commit was reverted,
    by which id it was asked for.
    `merged_branch` is where the second parent of a merge was made; older merges do not say.
    """

    commit_id: str
    branch: str | None
    manifest_version: int
    parent_id: str | None
    merged_parent_id: str | None
    actor_id: str | None
    created_at: int
    # A mapping cannot be hashed; the id decides anyway.
    details: Mapping[str, Any] | None = field(default=None, hash=False)
    merged_branch: str | None = None

    @property
    def order(self) -> tuple[int, int, str]:
        """The head of a branch is its greatest commit."""
        # By version first. Clocks of two machines differ, so `created_at` alone could put a child before its parent.
        return self.manifest_version, self.created_at, self.commit_id

    @property
    def operation_id(self) -> str | None:
        """The id that the caller gave the change; None without one."""
        return (self.details or {}).get(OPERATION)

    @property
    def message(self) -> str | None:
        """What the author of the change says about it; None if nothing."""
        return (self.details or {}).get(MESSAGE)

    @property
    def is_maintenance(self) -> bool:
        """Whether the commit only rewrote files: all rows are as in its parent."""
        return MAINTENANCE in (self.details or {})


@dataclass(frozen=True, slots=True)
class StreamBatch:
    """A micro-batch: the name of the stream, the id of the query that reads it, and the number of the batch."""

    stream: str
    query: str
    batch: int
    replaces: str | None = None  # the query that it takes the stream over from; empty if there is none

    def to_document(self) -> dict[str, Any]:
        taken = {} if self.replaces is None else {"replaces": self.replaces}
        return {"name": self.stream, "query": self.query, "batch": self.batch, **taken}

    @classmethod
    def of_document(cls, document: Mapping[str, Any]) -> StreamBatch:
        return cls(document["name"], document["query"], document["batch"], document.get("replaces"))


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """How far a stream is on a branch: its last committed batch, and the commit of that."""

    last: StreamBatch
    commit_id: str

    def to_document(self) -> dict[str, Any]:
        return {**self.last.to_document(), "commit": self.commit_id}

    @classmethod
    def of_document(cls, document: Mapping[str, Any]) -> StreamPosition:
        return cls(StreamBatch.of_document(document), document["commit"])


@dataclass(frozen=True, slots=True)
class Entry:
    """A table of a snapshot: the version that the graph consists of."""

    table: TableVersion
    row_count: int

    @property
    def key(self) -> str:
        return self.table.key


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The tables of one branch at one manifest version, by key, in order."""

    branch: str | None
    manifest_version: int
    entries: Mapping[str, Entry]
    schema: SchemaRow | None = None


@dataclass(frozen=True, slots=True)
class NamedState:
    """The state that a name stands for: its branch, the commit that made it, and its schema as it was written."""

    branch: str
    commit: Commit | None
    schema: str


@dataclass(frozen=True, slots=True)
class Tag:
    """A name for a commit."""

    name: str
    commit: Commit


@dataclass(frozen=True, slots=True)
class LogEntry:
    """A commit, and the branches and tags that are at it."""

    commit: Commit
    branches: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MutationResult:
    """What a mutation changed. `commit` is None when it found nothing to change."""

    query_name: str
    branch: str
    affected_nodes: int
    affected_edges: int
    actor_id: str | None
    commit: Commit | None


@dataclass(frozen=True, slots=True)
class Candidate:
    """Two nodes that may be the same entity, and how alike they are: 1 is the same."""

    left: str
    right: str
    score: float


@dataclass(frozen=True, slots=True)
class ResolvedGroup:
    """Nodes that are one entity: the one that is kept, and those that become it."""

    kept: str
    merged: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ResolveResult:
    """Which nodes were merged. `candidates` has the best 1,000 of `pairs`. `commit` is None if nothing was changed."""

    type_name: str
    branch: str
    candidates: tuple[Candidate, ...]
    pairs: int
    groups: tuple[ResolvedGroup, ...]
    edges_moved: int
    edges_dropped: int
    commit: Commit | None

    @property
    def merged(self) -> int:
        """How many nodes became another one."""
        return sum(len(group.merged) for group in self.groups)


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What a load brought: records by type. `commit` is None if there were none, or nothing was to be changed."""

    branch: str
    mode: LoadMode
    nodes: dict[str, int]
    edges: dict[str, int]
    actor_id: str | None
    commit: Commit | None
    # Reported as asked for, also if the branch existed and the base had no effect.
    base_branch: str | None = None
    branch_created: bool = False
    # With `max_bad`: how many records were left out, their problems by rule, and the first of these.
    rejected: int = 0
    counts: tuple[ProblemCount, ...] = ()
    violations: tuple[Violation, ...] = ()
    # Edges by type that a merge brought without ids: each of them may be there already.
    may_double: dict[str, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return sum(self.nodes.values()) + sum(self.edges.values())


@dataclass(frozen=True, slots=True)
class ExportResult:
    """What was exported: entities by type, the commit, and the files."""

    path: str
    format: str
    branch: str
    commit: Commit | None
    nodes: dict[str, int]
    edges: dict[str, int]
    files: tuple[str, ...]

    @property
    def total(self) -> int:
        return sum(self.nodes.values()) + sum(self.edges.values())


@dataclass(frozen=True, slots=True)
class EmbedResult:
    """How many vectors were made for each property, by its full name, and the commits that brought them."""

    branch: str
    mode: EmbedMode
    model: str | None
    embedded: dict[str, int]
    commits: tuple[Commit, ...]

    @property
    def total(self) -> int:
        return sum(self.embedded.values())


@dataclass(frozen=True, slots=True)
class ChangeCounts:
    """How many entities of one type change."""

    inserted: int
    updated: int
    deleted: int


class MergeOutcome(StrEnum):
    """What a merge came to."""

    ALREADY_UP_TO_DATE = "already_up_to_date"
    FAST_FORWARD = "fast_forward"
    MERGED = "merged"


@dataclass(frozen=True, slots=True)
class MergeResult:
    """What a merge or revert did, or would do. `compared` names the tables that had to be compared in full."""

    source: str
    target: str
    outcome: MergeOutcome
    changes: Mapping[str, ChangeCounts] = field(default_factory=dict)
    conflicts: tuple[MergeConflict, ...] = ()
    commit: Commit | None = None
    compared: tuple[str, ...] = ()
    source_commit: str | None = None
    target_commit: str | None = None

    def to_resolution(self) -> dict[str, Any]:
        """The conflicts as a document to decide and pass as `resolve`: set `take` of a property or of an entity.

        `take` is `ours`, `theirs`, `union` for lists, or `{"value": ...}`. What stays null stays a conflict.
        """
        sides = ((self.source, self.source_commit), (self.target, self.target_commit))
        source, target = ({"branch": name, "commit_id": commit} for name, commit in sides)
        conflicts = [_undecided(conflict.to_dict()) for conflict in self.conflicts]
        return {"format": RESOLUTION_FORMAT, "source": source, "target": target, "conflicts": conflicts}


def _undecided(conflict: dict[str, Any]) -> dict[str, Any]:
    names = ("kind", "table_key", "row_id", "message", "combined", "schema")
    kept = {name: conflict[name] for name in names if name in conflict}
    properties = {name: {**values, "take": None} for name, values in conflict.get("properties", {}).items()}
    return {**kept, "take": None, **({"properties": properties} if properties else {})}


@dataclass(frozen=True, slots=True)
class SchemaResult:
    """What a change of the schema takes, and whether it was made. `rows` are the entities of the types it touches.

    `given_up` names the tables whose past may be removed.
    """

    plan: SchemaPlan
    applied: bool
    manifest_version: int
    rows: Mapping[str, int] = field(default_factory=dict)
    commit: Commit | None = None
    given_up: tuple[str, ...] = ()
