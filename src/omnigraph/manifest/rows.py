"""The rows of `__manifest`: ten kinds in one table, distinguished by `object_type`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.api.results import Commit, SchemaRow, StreamPosition, TableVersion
from omnigraph.api.reviews import BranchRule
from omnigraph.core.refs import MAIN
from omnigraph.errors import CorruptGraphError

OBJECT_ID = "object_id"
SCHEMA_ID = "graph_schema"
PAST = "graph_merged_past"
STAMP_KEY = "omnigraph:internal_schema_version"
MANIFEST_PATH = "__manifest"
RESTORING = "__restore.json"  # a file that is there while a backup is restored: until its end there is no graph
COMMIT, TABLE, VERSION, TOMBSTONE = "graph_commit", "table", "table_version", "table_tombstone"
SEGMENT, GRAPH_HEAD, STREAM_HEAD = "log_segment", "graph_head", "stream_head"
RULE_ROW = "graph_rule"
PINS = "pins"

_PACKED = {"lance-encoding:compression": "zstd"}
SCHEMA = pa.schema(
    [
        # Ids share long prefixes and metadata is JSON: both compress well.
        pa.field(OBJECT_ID, pa.string(), nullable=False, metadata=_PACKED),
        pa.field("object_type", pa.string(), nullable=False),
        pa.field("location", pa.string()),
        pa.field("metadata", pa.string(), metadata=_PACKED),
        pa.field("table_key", pa.string(), nullable=False),
        pa.field("table_version", pa.uint64()),
        pa.field("table_branch", pa.string()),
        pa.field("row_count", pa.uint64()),
    ]
)


@dataclass(frozen=True, slots=True)
class TableRow:
    """A known table and its directory. `branch` is its fork, of which the first version is published with it."""

    table_key: str
    path: str
    branch: str | None = None

    def record(self) -> dict[str, Any]:
        return {OBJECT_ID: self.table_key, "object_type": TABLE, "table_key": self.table_key, "location": self.path}


@dataclass(frozen=True, slots=True)
class VersionRow:
    """A table version that belongs to the graph."""

    table_key: str
    version: int
    branch: str | None
    row_count: int

    @property
    def object_id(self) -> str:
        return version_id(self.table_key, self.version)

    def record(self) -> dict[str, Any]:
        return {
            OBJECT_ID: self.object_id,
            "object_type": VERSION,
            "table_key": self.table_key,
            "table_version": self.version,
            "table_branch": self.branch,
            "row_count": self.row_count,
        }


@dataclass(frozen=True, slots=True)
class TombstoneRow:
    """A table is dropped, up to and including a version."""

    table_key: str
    version: int

    @property
    def object_id(self) -> str:
        # Another form than that of versions, so that a version and its tombstone never share an id.
        return f"{self.table_key}$tombstone${self.version:020d}"

    def record(self) -> dict[str, Any]:
        return {
            OBJECT_ID: self.object_id,
            "object_type": TOMBSTONE,
            "table_key": self.table_key,
            "table_version": self.version,
        }


class StateTables(dict[str, TableVersion]):
    """The tables of a state, with the row of its schema. Merges of older releases did not record that one."""

    def __init__(
        self, tables: Mapping[str, TableVersion], schema: SchemaRow | None = None, *, is_known: bool = False
    ) -> None:
        super().__init__(tables)
        self.schema = schema
        self.is_known = is_known


@dataclass(frozen=True, slots=True)
class MergedPast:
    """The commits that a merge brought in, and the tables of those at which a later merge can start.

    The merge keeps them, because the branch that they were made on may be deleted: what two branches have in common
    must stay findable, or a row that one of them deleted comes back.
    """

    commits: tuple[Commit, ...] = ()
    states: Mapping[str, Mapping[str, TableVersion]] = field(default_factory=dict)

    def to_document(self) -> dict[str, Any]:
        states = {
            name: {key: [table.path, table.version, table.branch] for key, table in tables.items()}
            for name, tables in self.states.items()
        }
        # Without details: an ancestor is only walked through, and the record is written with every commit of the
        # window.
        schemas = {
            name: asdict(tables.schema) if tables.schema else None
            for name, tables in self.states.items()
            if isinstance(tables, StateTables) and tables.is_known
        }
        commits = [commit_record(replace(one, details=None)) for one in self.commits]
        # Left out as long as the schema never changed: then all states have the same.
        shown = {"schemas": schemas} if any(schemas.values()) else {}
        return {"commits": commits, "states": states, **shown}

    @classmethod
    def of_document(cls, document: Mapping[str, Any]) -> MergedPast:
        schemas = document.get("schemas", {})
        states = {}
        for name, pins in document["states"].items():
            tables = {key: TableVersion(key, path, version, branch) for key, (path, version, branch) in pins.items()}
            row = SchemaRow(**schemas[name]) if schemas.get(name) else None
            states[name] = StateTables(tables, row, is_known=name in schemas)
        return cls(tuple(map(decode_commit, document["commits"])), states)


@dataclass(frozen=True, slots=True)
class SchemaSeen:
    """The schema files as a writer compared them with the manifest: their versions in the storage, and the text.

    `source` is the text of the schema if no row of the manifest has it.
    """

    files: Mapping[str, str]
    source: str | None = None


def past_record(merge_id: str, document: Mapping[str, Any]) -> dict[str, Any]:
    return {OBJECT_ID: past_id(merge_id), "object_type": PAST, "table_key": "", "metadata": _json(dict(document))}


def past_id(merge_id: str) -> str:
    return f"{PAST}:{merge_id}"


def stream_record(position: StreamPosition) -> dict[str, Any]:
    """Return the row that says how far a stream is. One for each stream, replaced by each of its batches."""
    document = position.to_document()
    return {
        OBJECT_ID: stream_id(position.last.stream),
        "object_type": STREAM_HEAD,
        "table_key": "",
        "metadata": _json(document),
    }


def stream_id(stream: str) -> str:
    return f"{STREAM_HEAD}:{stream}"


@dataclass(frozen=True, slots=True)
class RuleRow:
    """The rule of a branch. `incarnation` says which branch of its name it is for: a later one inherits no rule."""

    branch: str | None
    incarnation: str
    rule: BranchRule | None

    def record(self) -> dict[str, Any]:
        document = self.rule.to_document() if self.rule else None
        metadata = _json({"incarnation": self.incarnation, "rule": document})
        return {OBJECT_ID: rule_id(self.branch), "object_type": RULE_ROW, "table_key": "", "metadata": metadata}

    @classmethod
    def of_record(cls, record: Mapping[str, Any], branch: str | None) -> RuleRow:
        try:
            metadata = json.loads(record["metadata"])
            found = metadata.get("rule")
            return cls(branch, metadata["incarnation"], BranchRule.of_document(found) if found else None)
        except (ValueError, TypeError, KeyError) as error:
            message = f"the row {record[OBJECT_ID]} in `{MANIFEST_PATH}` is invalid"
            raise CorruptGraphError(message, path=MANIFEST_PATH, hint="restore the graph from a backup") from error


def rule_id(branch: str | None) -> str:
    return f"{RULE_ROW}:{branch or MAIN}"


def commit_record(commit: Commit, pins: Mapping[str, VersionRow] | None = None) -> dict[str, Any]:
    """Return the row of a commit. `pins`: the tables in which its state differs from that of its manifest version.

    Only commits that were published together with later ones have such tables.
    """
    metadata = {
        "parent_commit_id": commit.parent_id,
        "merged_parent_commit_id": commit.merged_parent_id,
        "actor_id": commit.actor_id,
        "created_at": commit.created_at,
        "details": commit.details,
        "merged_branch": commit.merged_branch,
        PINS: {key: [row.version, row.branch, row.row_count] for key, row in pins.items()} if pins else None,
    }
    return {
        OBJECT_ID: commit.commit_id,
        "object_type": COMMIT,
        "table_key": "",
        "table_version": commit.manifest_version,
        "table_branch": commit.branch,
        "metadata": _json(metadata),
    }


def pins_of(record: Mapping[str, Any]) -> dict[str, VersionRow] | None:
    """Return the tables in which the state of a commit differs from that of its manifest version; None if in none."""
    pins = json.loads(record["metadata"]).get(PINS)
    return {key: VersionRow(key, *pin) for key, pin in pins.items()} if pins else None


def head_record(commit: Commit, graph_id: str | None = None, seen: SchemaSeen | None = None) -> dict[str, Any]:
    """Return the row that names the head of a branch, and the graph: the first commit may have left the window."""
    # The id of the graph is that of its first commit. It is how a replaced graph is noticed.
    metadata = {
        "head_commit_id": commit.commit_id,
        "parent_commit_id": commit.parent_id,
        "graph_id": graph_id,
        "schema_files": dict(seen.files) if seen else None,
        "schema_source": seen.source if seen else None,
    }
    return {
        OBJECT_ID: head_id(commit.branch),
        "object_type": GRAPH_HEAD,
        "table_key": "",
        "metadata": _json(metadata),
    }


def schema_record(schema: SchemaRow) -> dict[str, Any]:
    metadata = _json(asdict(schema))
    # One row, replaced by each change: earlier schemas are in earlier versions of the manifest.
    return {OBJECT_ID: SCHEMA_ID, "object_type": SCHEMA_ID, "table_key": "", "metadata": metadata}


def version_id(table_key: str, version: int) -> str:
    # Padded, so that ids sort like versions; 20 digits hold every number of 64 bits.
    return f"{table_key}${version:020d}"


def head_id(branch: str | None) -> str:
    return f"graph_head:{branch or MAIN}"


def encode(records: Iterable[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(list(records), schema=SCHEMA)


def of_kind(rows: pa.Table, *kinds: str) -> pa.Table:
    return rows.filter(pc.is_in(rows["object_type"], pa.array(kinds)))


def decode_commit(record: dict[str, Any]) -> Commit:
    try:
        metadata = json.loads(record["metadata"])
        return Commit(
            record[OBJECT_ID],
            record["table_branch"],
            int(record["table_version"]),
            metadata.get("parent_commit_id"),
            metadata.get("merged_parent_commit_id"),
            metadata.get("actor_id"),
            int(metadata["created_at"]),
            metadata.get("details"),
            metadata.get("merged_branch"),
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        message = f"the row of commit '{record[OBJECT_ID]}' in `{MANIFEST_PATH}` is invalid"
        raise CorruptGraphError(message, path=MANIFEST_PATH, hint="restore the graph from a backup") from error


def decode_stream(record: dict[str, Any]) -> StreamPosition:
    try:
        return StreamPosition.of_document(json.loads(record["metadata"]))
    except (ValueError, TypeError, KeyError) as error:
        message = f"the row {record[OBJECT_ID]} in `{MANIFEST_PATH}` is invalid"
        raise CorruptGraphError(message, path=MANIFEST_PATH, hint="restore the graph from a backup") from error


def decode_schema(record: dict[str, Any]) -> SchemaRow:
    try:
        metadata = json.loads(record["metadata"])
        return SchemaRow(metadata["source"], metadata["fingerprint"], metadata["origin"], metadata.get("ids"))
    except (ValueError, TypeError, KeyError) as error:
        message = f"the row of the schema in `{MANIFEST_PATH}` is invalid"
        raise CorruptGraphError(message, path=MANIFEST_PATH, hint="restore the graph from a backup") from error


def _json(values: dict[str, Any]) -> str:
    # Rows are written whole with every commit, so absent values take no room.
    return json.dumps({name: value for name, value in values.items() if value is not None}, separators=(",", ":"))
