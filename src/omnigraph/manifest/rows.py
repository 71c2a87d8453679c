"""The rows of `__manifest`: six kinds in one table, told apart by `object_type`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from omnigraph.core.refs import MAIN
from omnigraph.errors import CorruptGraphError

OBJECT_ID = "object_id"
SCHEMA_ID = "graph_schema"
STAMP_KEY = "omnigraph:internal_schema_version"
MANIFEST_PATH = "__manifest"
OPERATION = "operation_id"  # among the details of a commit: the id that whoever asked for it gave it
_MAX_U64 = 2**64 - 1

SCHEMA = pa.schema(
    [
        # The primary-key mark is what makes two commits of one object_id conflict instead of leaving duplicates.
        pa.field(OBJECT_ID, pa.string(), nullable=False, metadata={"lance-schema:unenforced-primary-key": "true"}),
        pa.field("object_type", pa.string(), nullable=False),
        pa.field("location", pa.string()),
        pa.field("metadata", pa.string()),
        pa.field("base_objects", pa.list_(pa.string())),
        pa.field("table_key", pa.string(), nullable=False),
        pa.field("table_version", pa.uint64()),
        pa.field("table_branch", pa.string()),
        pa.field("row_count", pa.uint64()),
    ]
)


@dataclass(frozen=True, slots=True)
class TableRow:
    """A table is known, and where it is."""

    table_key: str
    path: str

    def record(self) -> dict[str, Any]:
        return {OBJECT_ID: self.table_key, "object_type": "table", "table_key": self.table_key, "location": self.path}


@dataclass(frozen=True, slots=True)
class VersionRow:
    """A version of a table belongs to the graph."""

    table_key: str
    version: int
    branch: str | None
    row_count: int

    @property
    def object_id(self) -> str:
        return version_id(self.table_key, self.version)

    def record(self) -> dict[str, Any]:
        # Where lance keeps the manifest of this version, by its second naming scheme.
        path = f"_versions/{_MAX_U64 - self.version:020d}.manifest"
        return {
            OBJECT_ID: self.object_id,
            "object_type": "table_version",
            "table_key": self.table_key,
            "table_version": self.version,
            "table_branch": self.branch,
            "row_count": self.row_count,
            "metadata": _json({"manifest_path": path, "naming_scheme": "V2"}),
        }


@dataclass(frozen=True, slots=True)
class TombstoneRow:
    """A table is gone, up to and including a version."""

    table_key: str
    version: int

    @property
    def object_id(self) -> str:
        return f"{self.table_key}$tombstone${self.version:020d}"

    def record(self) -> dict[str, Any]:
        return {
            OBJECT_ID: self.object_id,
            "object_type": "table_tombstone",
            "table_key": self.table_key,
            "table_version": self.version,
        }


@dataclass(frozen=True, slots=True)
class SchemaRow:
    """The schema of the graph from a version of the manifest on, so that no state is read by the schema of another.

    A graph whose schema was never changed has no such row; its schema is in the files that it was made with. `origin`
    is what was in them then.
    """

    source: str
    fingerprint: str
    origin: str

    def record(self) -> dict[str, Any]:
        metadata = _json({"source": self.source, "fingerprint": self.fingerprint, "origin": self.origin})
        return {OBJECT_ID: SCHEMA_ID, "object_type": SCHEMA_ID, "table_key": "", "metadata": metadata}


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit of the graph. `branch` is None on main; `created_at` is in microseconds since 1970.

    `details` tells more about some commits: how conflicts of a merge were resolved, which commit was reverted,
    by which id it was asked for.
    `merged_branch` is where the second parent of a merge was made; older merges do not tell.
    """

    commit_id: str
    branch: str | None
    manifest_version: int
    parent_id: str | None
    merged_parent_id: str | None
    actor_id: str | None
    created_at: int
    details: Mapping[str, Any] | None = field(default=None, hash=False)
    merged_branch: str | None = None

    @property
    def order(self) -> tuple[int, int, str]:
        """The head of a branch is its greatest commit."""
        return self.manifest_version, self.created_at, self.commit_id

    @property
    def operation_id(self) -> str | None:
        """The id that whoever asked for the change gave it; None if it was given none."""
        return (self.details or {}).get(OPERATION)

    def record(self) -> dict[str, Any]:
        metadata = {
            "parent_commit_id": self.parent_id,
            "merged_parent_commit_id": self.merged_parent_id,
            "actor_id": self.actor_id,
            "created_at": self.created_at,
            "details": self.details,
            "merged_branch": self.merged_branch,
        }
        return {
            OBJECT_ID: self.commit_id,
            "object_type": "graph_commit",
            "table_key": "",
            "table_version": self.manifest_version,
            "table_branch": self.branch,
            "metadata": _json(metadata),
        }

    def head_record(self) -> dict[str, Any]:
        """The row that every commit of a branch updates: two commits at once meet here."""
        return {
            OBJECT_ID: head_id(self.branch),
            "object_type": "graph_head",
            "table_key": "",
            "metadata": _json({"head_commit_id": self.commit_id, "parent_commit_id": self.parent_id}),
        }


def version_id(table_key: str, version: int) -> str:
    return f"{table_key}${version:020d}"


def head_id(branch: str | None) -> str:
    return f"graph_head:{branch or MAIN}"


def encode(records: Iterable[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(list(records), schema=SCHEMA)


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
        message = f"the row of commit '{record[OBJECT_ID]}' in `{MANIFEST_PATH}` cannot be read"
        raise CorruptGraphError(message, path=MANIFEST_PATH, hint="restore the graph from a backup") from error


def decode_schema(record: dict[str, Any]) -> SchemaRow:
    try:
        metadata = json.loads(record["metadata"])
        return SchemaRow(metadata["source"], metadata["fingerprint"], metadata["origin"])
    except (ValueError, TypeError, KeyError) as error:
        message = f"the row of the schema in `{MANIFEST_PATH}` cannot be read"
        raise CorruptGraphError(message, path=MANIFEST_PATH, hint="restore the graph from a backup") from error


def _json(values: dict[str, Any]) -> str:
    return json.dumps({name: value for name, value in values.items() if value is not None}, separators=(",", ":"))
