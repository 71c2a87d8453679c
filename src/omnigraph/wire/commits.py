"""Commits, snapshots and names of states as documents, and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from omnigraph.core.refs import MAIN
from omnigraph.history.branches import Tag
from omnigraph.history.log import LogEntry
from omnigraph.manifest.rows import Commit, SchemaRow
from omnigraph.manifest.state import Entry, Snapshot
from omnigraph.storage.tables import TableVersion
from omnigraph.version import INTERNAL_SCHEMA_VERSION

Document = dict[str, Any]


def commit_output(commit: Commit) -> Document:
    document: Document = {
        "graph_commit_id": commit.commit_id,
        "manifest_branch": commit.branch,
        "manifest_version": commit.manifest_version,
        "parent_commit_id": commit.parent_id,
        "merged_parent_commit_id": commit.merged_parent_id,
        "actor_id": commit.actor_id,
        "created_at": commit.created_at,
        "graph_branch": commit.branch,
        "graph_manifest_version": commit.manifest_version,
    }
    more = {"details": commit.details, "merged_branch": commit.merged_branch}
    return {**document, **{name: value for name, value in more.items() if value is not None}}


def commit_of(document: Mapping[str, Any]) -> Commit:
    return Commit(
        document["graph_commit_id"],
        document["manifest_branch"],
        document["manifest_version"],
        document["parent_commit_id"],
        document["merged_parent_commit_id"],
        document["actor_id"],
        document["created_at"],
        document.get("details"),
        document.get("merged_branch"),
    )


def optional_commit(commit: Commit | None) -> Document | None:
    return None if commit is None else commit_output(commit)


def optional_commit_of(document: Mapping[str, Any] | None) -> Commit | None:
    return None if document is None else commit_of(document)


def commits_output(commits: Iterable[Commit]) -> Document:
    return {"commits": [commit_output(commit) for commit in commits]}


def commits_of(document: Mapping[str, Any]) -> list[Commit]:
    return [commit_of(one) for one in document["commits"]]


def snapshot_output(snapshot: Snapshot) -> Document:
    branch, version = snapshot.branch or MAIN, snapshot.manifest_version
    entries = snapshot.entries.values()
    return {
        "branch": branch,
        "manifest_version": version,
        "internal_schema_version": INTERNAL_SCHEMA_VERSION,
        "tables": [_table_output(entry) for entry in entries],
        "graph_branch": branch,
        "graph_manifest_version": version,
        "datasets": [_dataset_output(entry) for entry in entries],
        **({"schema": asdict(snapshot.schema)} if snapshot.schema else {}),
    }


def _table_output(entry: Entry) -> Document:
    return {
        "table_key": entry.key,
        "table_path": entry.table.path,
        "table_version": entry.table.version,
        "table_branch": entry.table.branch,
        "row_count": entry.row_count,
    }


def _dataset_output(entry: Entry) -> Document:
    kind, _, name = entry.key.partition(":")
    return {
        "entity_kind": kind,
        "type_name": name,
        "dataset_path": entry.table.path,
        "published_dataset_version": entry.table.version,
        "native_dataset_branch": entry.table.branch,
        "entity_count": entry.row_count,
    }


def snapshot_of(document: Mapping[str, Any]) -> Snapshot:
    branch = document["branch"]
    schema = document.get("schema")
    return Snapshot(
        None if branch == MAIN else branch,
        document["manifest_version"],
        {table["table_key"]: _entry_of(table) for table in document["tables"]},
        SchemaRow(**schema) if schema else None,
    )


def _entry_of(table: Mapping[str, Any]) -> Entry:
    version = TableVersion(table["table_key"], table["table_path"], table["table_version"], table["table_branch"])
    return Entry(version, table["row_count"])


def log_output(entries: Iterable[LogEntry]) -> Document:
    return {"commits": [_entry_output(entry) for entry in entries]}


def _entry_output(entry: LogEntry) -> Document:
    return {**commit_output(entry.commit), "branches": list(entry.branches), "tags": list(entry.tags)}


def log_of(document: Mapping[str, Any]) -> list[LogEntry]:
    return [LogEntry(commit_of(one), tuple(one["branches"]), tuple(one["tags"])) for one in document["commits"]]


def tag_output(tag: Tag) -> Document:
    return {"name": tag.name, "commit": commit_output(tag.commit)}


def tag_of(document: Mapping[str, Any]) -> Tag:
    return Tag(document["name"], commit_of(document["commit"]))


def tags_output(tags: Iterable[Tag]) -> Document:
    return {"tags": [tag_output(tag) for tag in tags]}


def tags_of(document: Mapping[str, Any]) -> list[Tag]:
    return [tag_of(one) for one in document["tags"]]


def tag_deleted_output(uri: str, name: str) -> Document:
    return {"uri": uri, "name": name.strip()}


def branches_output(names: Sequence[str]) -> Document:
    return {"branches": sorted(names)}


def branches_of(document: Mapping[str, Any]) -> list[str]:
    """The branches as a graph lists them: main first."""
    return sorted(document["branches"], key=lambda name: (name != MAIN, name))


def branch_created_output(uri: str, name: str, base: str, actor: str | None) -> Document:
    return {"uri": uri, "from": base.strip(), "name": name.strip(), "actor_id": actor}


def branch_deleted_output(uri: str, name: str, actor: str | None) -> Document:
    return {"uri": uri, "name": name.strip(), "actor_id": actor}
