"""The models of request bodies, and of answers in the OpenAPI document.

A member of a body that is not here is refused; older spellings of some names are understood. Answers are written in
`api`, by the forms from which most of their models are made here.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping
from dataclasses import is_dataclass
from enum import Enum
from functools import cache
from types import GenericAlias, NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, create_model

from omnigraph.api.codec import FORMS, Form
from omnigraph.api.documents import INGEST, MERGE
from omnigraph.api.results import LoadResult, MutationResult

Text = Annotated[str, Field(min_length=1)]
_Source = Annotated[str, Field(description="Queries in the language of `.gq` files.")]
_Parameters = Annotated[dict[str, Any] | None, Field(description="The parameters of the query by name.")]
_Branch = Annotated[str | None, Field(description="The branch; main if none is named.")]
_Snapshot = Annotated[
    str | None,
    Field(description="The state to read: a branch, a tag, a commit, `ref~n` or `ref@version`. Not with `branch`."),
]
_WHICH = "Which query, if the source holds several."


class Request(BaseModel):
    """A body of JSON, taken as it is: no text becomes a number, and nothing unknown is passed over."""

    # Strict: a client that sends "12" for 12 has a bug, and would otherwise learn it from a wrong answer.
    model_config = ConfigDict(extra="forbid", strict=True)


class ChangeRequest(Request):
    query: _Source = Field(validation_alias=AliasChoices("query", "query_source"))
    name: str | None = Field(None, validation_alias=AliasChoices("name", "query_name"), description=_WHICH)
    params: _Parameters = None
    branch: _Branch = None


class QueryRequest(ChangeRequest):
    snapshot: _Snapshot = None
    timeout: float | None = Field(None, description="How many seconds the query may take.")


class ReadRequest(QueryRequest):
    # The older spellings first: they are the ones that the OpenAPI document shows.
    query: _Source = Field(validation_alias=AliasChoices("query_source", "query"))
    name: str | None = Field(None, validation_alias=AliasChoices("query_name", "name"), description=_WHICH)


class InvokeStoredQueryRequest(Request):
    params: _Parameters = None
    branch: _Branch = None
    snapshot: _Snapshot = None
    expect_mutation: bool | None = Field(
        None, description="Fail if the query is not a mutation (true), or is one (false)."
    )
    message: str | None = Field(None, description="What the commit of a mutation says about the change.")


class IngestRequest(Request):
    data: str = Field(description="One JSON object per line.")
    branch: _Branch = None
    from_: str | None = Field(None, alias="from", description="The branch to create it from, if it does not exist.")
    mode: Literal["append", "merge", "overwrite"] | None = Field(None, description="Default: merge.")


class LoadRequest(Request):
    data: list[Text] = Field(min_length=1, description="Files, directories, patterns or s3:// addresses.")
    mode: Literal["append", "merge", "overwrite"] = "merge"
    branch: _Branch = None
    from_: str | None = Field(None, alias="from", description="The branch to create it from, if it does not exist.")
    format: Literal["jsonl", "csv", "parquet"] | None = Field(None, description="Default: by the names of the files.")
    mapping: dict[str, Any] | None = Field(None, description="Maps files to types.")
    dry_run: bool = Field(default=False, description="Check the data and change nothing.")
    max_bad: int | None = Field(None, ge=0, description="Leave out up to so many bad records.")
    dedupe: Literal["ends"] | None = Field(None, description="Merge edges without ids by their ends.")
    message: str | None = Field(None, description="What the commit says about the load.")


class ExportRequest(Request):
    branch: _Branch = None
    snapshot: _Snapshot = None
    type_names: list[str] = Field(default_factory=list, description="Names of types; none means all.")
    table_keys: list[str] = Field(default_factory=list, description="The same by `node:<Type>` or `edge:<Type>`.")


class MergeRequest(Request):
    source: str
    target: str | None = Field(None, description="Default: main.")
    resolve: str | dict[str, Any] | list[dict[str, Any]] | None = Field(
        None, description="Who wins conflicts: `ours`, `theirs`, one of them for each type, or for each conflict."
    )
    by: Literal["property", "entity"] = Field("property", description="What both sides may change without a conflict.")
    message: str | None = Field(None, description="What the commit says about the merge.")
    delete_branch: bool = Field(default=False, description="Delete the source after the merge.")


class ChangeBaselineRequest(Request):
    branch: _Branch = None
    kind: list[str] = Field(default_factory=list)
    type: list[str] = Field(default_factory=list)
    op: list[str] = Field(default_factory=list)


# --- answers -----------------------------------------------------------------------------------------------------

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
    problem: Entities | None = Field(None, description="The class and the fields of the error, for Omnigraph clients.")


class HealthOutput(BaseModel):
    status: Literal["ok"]
    version: str
    internal_schema_version: int
    source_version: str | None = None


class ReadyOutput(BaseModel):
    status: Literal["ready", "not_ready"]
    graphs: int
    left_out: int


class WhoamiOutput(BaseModel):
    actor: str | None
    role: str | None
    graphs: list[str] | None
    actions: list[str]
    open_mode: bool


class GraphItem(BaseModel):
    graph_id: str
    uri: str


class GraphListResponse(BaseModel):
    graphs: list[GraphItem]


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


@cache
def model_of(form: Form) -> type[BaseModel]:
    """Make the model of a document from its form."""
    return create_model(form.name, **_fields(form))


def _fields(form: Form) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for member in form.members:
        if member.name == "*":
            found |= _fields(member.kind if isinstance(member.kind, Form) else FORMS[member.kind])
        elif member.name not in form.unlisted:
            kind = _modelled(member.kind)
            # A member that can be null need not be in the document for OpenAPI, unless the form promises it.
            can_lack = member.is_optional or (NoneType in get_args(kind) and not member.is_promised)
            default = None if can_lack else ...
            # A model has attributes of its own, such as `schema`: a member of that name needs another one in Python.
            taken = hasattr(BaseModel, member.name)
            found[f"{member.name}_" if taken else member.name] = (
                kind | None if can_lack else kind,
                Field(default, description=form.docs.get(member.name), alias=member.name if taken else None),
            )
    return found | {name: (kind, None if NoneType in get_args(kind) else ...) for name, kind in form.added.items()}


def _modelled(kind: Any) -> Any:
    """Replace results in a type by their models, and collections by those of JSON."""
    if isinstance(kind, list):  # `[form]`
        return GenericAlias(list, _modelled(kind[0]))
    if isinstance(kind, Form) or kind in FORMS:
        return model_of(kind if isinstance(kind, Form) else FORMS[kind])
    if isinstance(kind, type) and issubclass(kind, Enum):
        return Literal[tuple(one.value for one in kind)]
    if is_dataclass(kind):
        return model_of(Form(kind, getattr(kind, "__name__", "")))
    origin, parts = get_origin(kind), tuple(map(_modelled, get_args(kind)))
    if origin is None:
        return kind
    if origin in (Union, UnionType):
        return functools.reduce(operator.or_, parts)
    return GenericAlias(dict, parts) if issubclass(origin, Mapping) else GenericAlias(list, parts[0])


ChangeOutput = model_of(FORMS[MutationResult])
GraphBatchLoadOutput = model_of(FORMS[LoadResult])
IngestOutput = model_of(INGEST)
BranchMergeOutput = model_of(MERGE)


class LoadBegunOutput(BaseModel):
    load_id: str


class LoadStateOutput(LoadBegunOutput):
    """How far a load is: `done` of `total` tasks of its phase."""

    state: Literal["running", "done", "failed"]
    phase: str | None = None
    done: int
    total: int
    rows: int
    result: IngestOutput | None = None  # type: ignore[valid-type]
    error: ErrorOutput | None = None
