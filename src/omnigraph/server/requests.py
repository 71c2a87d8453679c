"""The bodies of requests. A member that is not here is refused; older spellings of some names are understood."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field

Text = Annotated[str, Field(min_length=1)]
_Source = Annotated[str, Field(description="Queries in the language of `.gq` files.")]
_Parameters = Annotated[dict[str, Any] | None, Field(description="The parameters of the query by name.")]
_Branch = Annotated[str | None, Field(description="The branch; main if none is named.")]
_Snapshot = Annotated[
    str | None,
    Field(description="The state to read: a branch, a tag, a commit, `ref~n` or `ref@version`. Not with `branch`."),
]
_NAME = AliasChoices("name", "query_name")
_OLD_NAME = AliasChoices("query_name", "name")
_QUERY = AliasChoices("query", "query_source")
_OLD_QUERY = AliasChoices("query_source", "query")
_WHICH = "Which query, if the source holds several."


class Request(BaseModel):
    """A body of JSON, taken as it is: no text becomes a number, and nothing unknown is passed over."""

    model_config = ConfigDict(extra="forbid", strict=True)


class QueryRequest(Request):
    query: _Source = Field(validation_alias=_QUERY)
    name: str | None = Field(None, validation_alias=_NAME, description=_WHICH)
    params: _Parameters = None
    branch: _Branch = None
    snapshot: _Snapshot = None


class ReadRequest(Request):
    query: _Source = Field(validation_alias=_OLD_QUERY)
    name: str | None = Field(None, validation_alias=_OLD_NAME, description=_WHICH)
    params: _Parameters = None
    branch: _Branch = None
    snapshot: _Snapshot = None


class ChangeRequest(Request):
    query: _Source = Field(validation_alias=_QUERY)
    name: str | None = Field(None, validation_alias=_NAME, description=_WHICH)
    params: _Parameters = None
    branch: _Branch = None


class InvokeStoredQueryRequest(Request):
    params: _Parameters = None
    branch: _Branch = None
    snapshot: _Snapshot = None
    expect_mutation: bool | None = Field(None, description="Refuse to run a query that is not of this kind.")


class IngestRequest(Request):
    data: str = Field(description="One JSON object per line.")
    branch: _Branch = None
    from_: str | None = Field(None, alias="from", description="What to make the branch of, if it is not there.")
    mode: Literal["append", "merge", "overwrite"] | None = Field(None, description="merge, if none is named.")


class LoadRequest(Request):
    data: list[Text] = Field(min_length=1, description="Files, directories, patterns or s3:// addresses.")
    mode: Literal["append", "merge", "overwrite"] = "merge"
    branch: _Branch = None
    from_: str | None = Field(None, alias="from", description="What to make the branch of, if it is not there.")
    format: Literal["jsonl", "csv", "parquet"] | None = Field(None, description="By the names, if none is named.")
    mapping: dict[str, Any] | None = Field(None, description="Which file holds which type.")
    dry_run: bool = Field(default=False, description="Only check.")


class ExportRequest(Request):
    branch: _Branch = None
    snapshot: _Snapshot = None
    type_names: list[str] = Field(default_factory=list, description="Names of types; none means all.")
    table_keys: list[str] = Field(default_factory=list, description="The same by `node:<Type>` or `edge:<Type>`.")


class MergeRequest(Request):
    source: str
    target: str | None = Field(None, description="main, if none is named.")
    resolve: str | dict[str, Any] | list[dict[str, Any]] | None = Field(
        None, description="Who wins conflicts: `ours`, `theirs`, one of them for each type, or for each conflict."
    )
    delete_branch: bool = Field(default=False, description="Delete the source after the merge.")


class ChangeBaselineRequest(Request):
    branch: _Branch = None
    kind: list[str] = Field(default_factory=list)
    type: list[str] = Field(default_factory=list)
    op: list[str] = Field(default_factory=list)
