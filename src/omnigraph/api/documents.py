"""What reads and writes answer, as documents, and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from omnigraph.api.codec import decode
from omnigraph.api.options import LoadMode, Resolution
from omnigraph.api.results import (
    ChangeCounts,
    Commit,
    Entry,
    LoadResult,
    LogEntry,
    MergeOutcome,
    MergeResult,
    MutationResult,
    NamedState,
    SchemaResult,
    SchemaRow,
    Snapshot,
    TableVersion,
    Tag,
)
from omnigraph.api.rows import Explanation, PlanStep, Result
from omnigraph.core.refs import MAIN
from omnigraph.errors import MergeConflict
from omnigraph.lang import evolution
from omnigraph.lang.evolution import SchemaPlan, Step
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
    return {"commits": [log_entry_output(entry) for entry in entries]}


def log_entry_output(entry: LogEntry) -> Document:
    return {**commit_output(entry.commit), "branches": list(entry.branches), "tags": list(entry.tags)}


def log_entry_of(document: Mapping[str, Any]) -> LogEntry:
    return LogEntry(commit_of(document), tuple(document["branches"]), tuple(document["tags"]))


def tag_output(tag: Tag) -> Document:
    return {"name": tag.name, "commit": commit_output(tag.commit)}


def tag_of(document: Mapping[str, Any]) -> Tag:
    return Tag(document["name"], commit_of(document["commit"]))


def tags_output(tags: Iterable[Tag]) -> Document:
    return {"tags": [tag_output(tag) for tag in tags]}


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


def read_head(result: Result, snapshot: str | None) -> Document:
    """Write what is known about rows: a read of a snapshot names the snapshot, any other its branch."""
    target = {"branch": result.branch if snapshot is None else None, "snapshot": snapshot}
    return {"query_name": result.query_name, "target": target, "row_count": len(result)}


def read_output(result: Result, snapshot: str | None) -> Document:
    columns = {"columns": result.columns} if result.columns else {}
    commit = {"graph_commit_id": result.commit.commit_id} if result.commit else {}
    return {**read_head(result, snapshot), **columns, "rows": result.rows, **commit}


def explain_output(found: Explanation) -> Document:
    return {**found.to_dict(), "commit": optional_commit(found.commit)}


def explanation_of(document: Mapping[str, Any]) -> Explanation:
    return Explanation(
        document["query_name"],
        document["target"]["branch"],
        optional_commit_of(document["commit"]),
        [decode(PlanStep, step) for step in document["steps"]],
        document["row_count"],
        document["requests"],
        document["seconds"],
    )


def change_output(done: MutationResult) -> Document:
    return {
        "branch": done.branch,
        "query_name": done.query_name,
        "affected_nodes": done.affected_nodes,
        "affected_edges": done.affected_edges,
        "actor_id": done.actor_id,
        "commit": optional_commit(done.commit),
    }


def change_of(document: Mapping[str, Any]) -> MutationResult:
    return MutationResult(
        document["query_name"],
        document["branch"],
        document["affected_nodes"],
        document["affected_edges"],
        document["actor_id"],
        optional_commit_of(document["commit"]),
    )


def ingest_output(uri: str, done: LoadResult) -> Document:
    return {"uri": uri, **batch_output(done)}


def batch_output(done: LoadResult) -> Document:
    """Write a load, in both vocabularies: of tables and of entities."""
    counts = {**_keyed("node", done.nodes), **_keyed("edge", done.edges)}
    return {
        "branch": done.branch,
        "base_branch": done.base_branch,
        "branch_created": done.branch_created,
        "mode": done.mode,
        "tables": [{"table_key": key, "rows_loaded": count} for key, count in sorted(counts.items())],
        "nodes": _loaded(done.nodes),
        "edges": _loaded(done.edges),
        "total_entities": done.total,
        "total_rows": done.total,
        "actor_id": done.actor_id,
        "commit": optional_commit(done.commit),
    }


def _keyed(kind: str, counts: Mapping[str, int]) -> dict[str, int]:
    return {f"{kind}:{name}": count for name, count in counts.items()}


def _loaded(counts: Mapping[str, int]) -> list[Document]:
    return [{"name": name, "entities_loaded": count, "rows_loaded": count} for name, count in sorted(counts.items())]


def load_of(document: Mapping[str, Any]) -> LoadResult:
    nodes, edges = ({one["name"]: one["entities_loaded"] for one in document[part]} for part in ("nodes", "edges"))
    return LoadResult(
        document["branch"],
        LoadMode(document["mode"]),
        nodes,
        edges,
        document["actor_id"],
        optional_commit_of(document["commit"]),
        document["base_branch"],
        document["branch_created"],
    )


def merge_output(done: MergeResult, actor: str | None) -> Document:
    return {"source": done.source, "target": done.target, **_brought(done, actor)}


def revert_output(done: MergeResult, actor: str | None) -> Document:
    return {"reverted": done.source, "branch": done.target, **_brought(done, actor)}


def _brought(done: MergeResult, actor: str | None) -> Document:
    return {
        "outcome": done.outcome,
        "actor_id": actor,
        "changes": {key: asdict(counts) for key, counts in done.changes.items()},
        "conflicts": [conflict.to_dict() for conflict in done.conflicts],
        "compared": list(done.compared),
        "commit": optional_commit(done.commit),
    }


def merge_of(document: Mapping[str, Any]) -> MergeResult:
    """A merge or a revert, whichever it was."""
    return MergeResult(
        document["source"] if "source" in document else document["reverted"],
        document["target"] if "target" in document else document["branch"],
        MergeOutcome(document["outcome"]),
        {key: ChangeCounts(**counts) for key, counts in document["changes"].items()},
        tuple(map(conflict_of, document["conflicts"])),
        optional_commit_of(document["commit"]),
        tuple(document["compared"]),
    )


def resolution_of(given: Any) -> Resolution:
    """Who wins, in any of the forms that a caller may say it in, or in the one that a commit keeps."""
    match given:
        case {"types": dict()} | {"entities": list()} | {"default": str()}:
            default = Resolution.of(given.get("default")).default
            types = Resolution.of(given.get("types", {})).types
            return Resolution(default, types, Resolution.of(given.get("entities", [])).entities)
    return Resolution.of(given)


def conflict_of(document: Mapping[str, Any]) -> MergeConflict:
    return MergeConflict(document["kind"], document["table_key"], document["row_id"], document["message"])


def state_output(state: NamedState) -> Document:
    """Write the state that a name stands for."""
    return {"branch": state.branch, "commit": optional_commit(state.commit), "schema_source": state.schema}


def state_of(document: Mapping[str, Any]) -> NamedState:
    return NamedState(document["branch"], optional_commit_of(document["commit"]), document["schema_source"])


def schema_plan_output(uri: str, done: SchemaResult) -> Document:
    return {
        "uri": uri,
        **done.plan.to_dict(),
        "rows": dict(done.rows),
        "manifest_version": done.manifest_version,
        "graph_manifest_version": done.manifest_version,
    }


def schema_apply_output(uri: str, done: SchemaResult) -> Document:
    document = {**schema_plan_output(uri, done), "applied": done.applied, "commit": optional_commit(done.commit)}
    return {**document, **({"given_up": list(done.given_up)} if done.given_up else {})}


def schema_result_of(document: Mapping[str, Any]) -> SchemaResult:
    """A change of the schema that was made, or only planned."""
    return SchemaResult(
        SchemaPlan(tuple(map(_step_of, document["steps"]))),
        document.get("applied", False),
        document["manifest_version"],
        document["rows"],
        optional_commit_of(document.get("commit")),
        tuple(document.get("given_up", ())),
    )


_STEPS = {
    kind.kind: kind
    for kind in vars(evolution).values()
    if isinstance(kind, type) and issubclass(kind, Step) and kind is not Step
}


def _step_of(document: Mapping[str, Any]) -> Step:
    step: Step = decode(
        _STEPS[document["kind"]], {"from_" if name == "from" else name: value for name, value in document.items()}
    )
    return step
