"""The models of answers in the OpenAPI document. The documents themselves are made in `api`."""

from __future__ import annotations

import functools
import operator
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, Field, create_model

from omnigraph.api import operations as op
from omnigraph.api.changes import Baseline, ChangePage
from omnigraph.api.operation import Description, Route
from omnigraph.api.results import Commit, LogEntry, MutationResult, NamedState, Snapshot, Tag
from omnigraph.api.rows import Explanation

Entities = dict[str, Any]


class VersionConflict(BaseModel):
    table_key: str
    expected: int
    actual: int


class MergeConflictItem(BaseModel):
    table_key: str
    row_id: str | None = None
    kind: str
    message: str


class ErrorOutput(BaseModel):
    """An error: a text for people, one of a few codes, and at most one detail."""

    error: str
    code: (
        Literal[
            "unauthorized",
            "forbidden",
            "bad_request",
            "not_found",
            "method_not_allowed",
            "conflict",
            "too_many_requests",
            "internal",
        ]
        | None
    ) = None
    manifest_conflict: VersionConflict | None = None
    merge_conflicts: list[MergeConflictItem] | None = None
    key_conflict: Entities | None = None
    read_set_conflict: Entities | None = None
    change_diff_refusal: Entities | None = None
    change_feed_gap: Entities | None = None
    precondition_failure: Entities | None = None
    resource_limit: Entities | None = None
    blob_range: Entities | None = None
    recovery_required: Entities | None = None
    problem: Entities | None = Field(None, description="The class of the error and its fields, for our own client.")


class HealthOutput(BaseModel):
    status: Literal["ok"]
    version: str
    internal_schema_version: int
    source_version: str | None = None


class ReadyOutput(BaseModel):
    status: Literal["ready", "not_ready"]
    graphs: int
    left_out: int


class GraphItem(BaseModel):
    graph_id: str
    uri: str


class GraphListResponse(BaseModel):
    graphs: list[GraphItem]


class CommitOutput(BaseModel):
    graph_commit_id: str
    manifest_branch: str | None = None
    manifest_version: int
    parent_commit_id: str | None = None
    merged_parent_commit_id: str | None = None
    actor_id: str | None = None
    created_at: int = Field(description="Microseconds since 1970.")
    graph_branch: str | None = None
    graph_manifest_version: int
    details: Entities | None = None
    merged_branch: str | None = None


class LogItem(CommitOutput):
    branches: list[str]
    tags: list[str]


class TableItem(BaseModel):
    table_key: str
    table_path: str
    table_version: int
    table_branch: str | None = None
    row_count: int


class DatasetItem(BaseModel):
    entity_kind: Literal["node", "edge"]
    type_name: str
    dataset_path: str
    published_dataset_version: int
    native_dataset_branch: str | None = None
    entity_count: int


class SnapshotOutput(BaseModel):
    branch: str
    manifest_version: int
    internal_schema_version: int
    tables: list[TableItem]
    graph_branch: str
    graph_manifest_version: int
    datasets: list[DatasetItem]


class StateOutput(BaseModel):
    branch: str
    commit: CommitOutput | None
    schema_source: str


class SchemaPlanOutput(BaseModel):
    uri: str
    supported: bool
    step_count: int
    steps: list[Entities]
    rows: dict[str, int]
    manifest_version: int
    graph_manifest_version: int


class SchemaApplyOutput(SchemaPlanOutput):
    applied: bool
    commit: CommitOutput | None
    given_up: list[str] | None = None


class ReadTarget(BaseModel):
    branch: str | None = None
    snapshot: str | None = None


class ReadOutput(BaseModel):
    query_name: str
    target: ReadTarget
    row_count: int
    columns: list[str] | None = None
    rows: list[Entities]
    graph_commit_id: str | None = None


class ExplainOutput(BaseModel):
    query_name: str
    target: Entities
    row_count: int
    requests: int
    seconds: float
    steps: list[Entities]


class ChangeOutput(BaseModel):
    branch: str
    query_name: str
    affected_nodes: int
    affected_edges: int
    actor_id: str | None = None
    commit: CommitOutput | None = None


class LoadedTable(BaseModel):
    table_key: str
    rows_loaded: int


class LoadedType(BaseModel):
    name: str
    entities_loaded: int
    rows_loaded: int


class GraphBatchLoadOutput(BaseModel):
    branch: str
    base_branch: str | None = None
    branch_created: bool
    mode: Literal["append", "merge", "overwrite"]
    tables: list[LoadedTable]
    nodes: list[LoadedType]
    edges: list[LoadedType]
    total_entities: int
    total_rows: int
    actor_id: str | None = None
    commit: CommitOutput | None = None


class IngestOutput(GraphBatchLoadOutput):
    uri: str


class BroughtOutput(BaseModel):
    outcome: Literal["already_up_to_date", "fast_forward", "merged"]
    actor_id: str | None = None
    changes: Entities
    conflicts: list[Entities]
    compared: list[str]
    commit: CommitOutput | None = None


class BranchMergeOutput(BroughtOutput):
    source: str
    target: str
    branch_deleted: bool | None = None
    branch_delete_error: str | None = None


class RevertOutput(BroughtOutput):
    reverted: str
    branch: str


class TagOutput(BaseModel):
    name: str
    commit: CommitOutput


class QueryParameter(BaseModel):
    name: str
    kind: Literal["string", "bool", "int", "bigint", "float", "date", "datetime", "blob", "vector", "list"]
    item_kind: str | None = None
    vector_dim: int | None = None
    nullable: bool


class QueryItem(BaseModel):
    name: str
    tool_name: str
    mutation: bool
    description: str | None = None
    instruction: str | None = None
    params: list[QueryParameter]


class QueriesCatalogOutput(BaseModel):
    queries: list[QueryItem]


class Cause(CommitOutput):
    authored_branch: str
    authored_at: int


class ChangedType(BaseModel):
    id: str
    name: str


class EntityImage(BaseModel):
    properties: Entities
    endpoints: dict[str, str] | None = None


class EntityChangeOutput(BaseModel):
    kind: Literal["node", "edge"]
    type: ChangedType
    id: str
    op: Literal["insert", "update", "delete"]
    before: EntityImage | None = None
    after: EntityImage | None = None
    changed: list[str] | None = None
    blobs: list[str] | None = None


class ChangeBlockOutput(BaseModel):
    cause: Cause
    changes: list[EntityChangeOutput]


class CommitChangesOutput(ChangeBlockOutput):
    next_page_token: str | None = None


class ChangeFeedOutput(BaseModel):
    blocks: list[ChangeBlockOutput]
    cursor: str | None = None
    next_page_token: str | None = None
    caught_up: bool


class ChangeBeginningOutput(BaseModel):
    snapshot_commit_id: str
    resume_cursor: str
    tables: list[str]


_MODELS: dict[Any, type[BaseModel]] = {
    Baseline: ChangeBeginningOutput,
    ChangePage: ChangeFeedOutput,
    Commit: CommitOutput,
    Explanation: ExplainOutput,
    LogEntry: LogItem,
    MutationResult: ChangeOutput,
    NamedState: StateOutput,
    Snapshot: SnapshotOutput,
    Tag: TagOutput,
    op.MergeBranch: BranchMergeOutput,
    op.RevertCommit: RevertOutput,
    op.PlanSchema: SchemaPlanOutput,
    op.ApplySchema: SchemaApplyOutput,
    op.ReadCommitChanges: CommitChangesOutput,
}
"""The forms of results, by their type; of some operations, by the operation."""


def model_of(known: Description, route: Route) -> type[BaseModel]:
    """Return the form of the answers of a route."""
    if route.answer is None:
        return _MODELS.get(known.kind) or _MODELS[known.result]
    name, members = route.answer
    kinds = {"@uri": str, "@actor": str | None, ".": _modelled(known.result)}
    fields: dict[str, Any] = {member: _field(kinds.get(place, str)) for member, place in members.items()}
    return create_model(name, **fields)


def _modelled(kind: Any) -> Any:
    """Replace results in a type by their forms."""
    if kind in _MODELS:
        return _MODELS[kind]
    parts = get_args(kind)
    if not parts:
        return kind
    inner = tuple(map(_modelled, parts))
    return list[inner[0]] if get_origin(kind) is list else functools.reduce(operator.or_, inner)  # type: ignore[valid-type]


def _field(kind: Any) -> tuple[Any, Any]:
    return kind, None if NoneType in get_args(kind) else ...
