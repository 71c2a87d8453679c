"""The calls of a graph that is served: the steps of each operation, and those that no operation describes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from omnigraph.api.documents import answer_result, from_document
from omnigraph.api.operation import ARROW, CONDITION_HEADER, JSON, Operation, description_of
from omnigraph.api.operations import ExplainQuery, ExportFiles, LoadData, ResolveState, RunQuery
from omnigraph.api.results import Commit, MutationResult, NamedState
from omnigraph.api.rows import Blob, Cell, Explanation, Result
from omnigraph.client.exporting import export_file
from omnigraph.client.loading import load
from omnigraph.client.requests import asking, not_served, options, plain_parameters, request_of
from omnigraph.client.steps import Request, Steps, committing, segment
from omnigraph.lang.catalog import Catalog
from omnigraph.lang.schema_check import compile_schema
from omnigraph.lang.source import Source

_T = TypeVar("_T")
FIRST_PART = 2**20  # bytes of a Blob that are fetched with its size


def steps_of(operation: Operation[_T]) -> Steps[_T]:
    """Return the steps of an operation: by hand for those that stream or negotiate, from the description for others."""
    by_hand: Callable[[Any], Steps[_T]] | None = _BY_HAND.get(type(operation))
    with asking(operation):
        if by_hand is not None:
            return (yield from by_hand(operation))
        route = description_of(operation).route(operation)
        if route is None:
            raise not_served(operation)
        answer = yield request_of(operation, route)
        result: _T = answer_result(operation, answer.document)
        return result


def _request(operation: Operation[Any]) -> Request:
    route = description_of(operation).route(operation)
    assert route is not None, "the operation is served"
    return request_of(operation, route)


def _query(operation: RunQuery) -> Steps[Result]:
    answer = yield replace(_request(operation), accept=ARROW)
    # Without a snapshot the server says which branch it read: a tag or `main~2` is of one too.
    return _rows(answer.content, None if operation.snapshot is None else operation.branch)


def _rows(content: bytes, branch: str | None = None) -> Result:
    from omnigraph.api.arrow import result_of  # noqa: PLC0415 - loads Arrow

    return result_of(content, None if branch is None else branch.strip())


def _explain(operation: ExplainQuery) -> Steps[Explanation]:
    answer = yield _request(operation)
    found: Explanation = answer_result(operation, answer.document)
    return found if operation.snapshot is None else replace(found, branch=operation.branch.strip())


_BY_HAND: dict[type[Operation[Any]], Callable[[Any], Steps[Any]]] = {
    RunQuery: _query,
    ExplainQuery: _explain,
    LoadData: load,
    ExportFiles: export_file,
}


# --- stored queries ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StoredQueryInfo:
    """A stored query of a server: its name, whether it changes the graph, and its parameters as documents."""

    name: str
    tool_name: str
    mutation: bool
    params: tuple[Mapping[str, Any], ...]
    description: str | None = None
    instruction: str | None = None


def stored_queries() -> Steps[list[StoredQueryInfo]]:
    answer = yield Request("GET", "/queries")
    return [StoredQueryInfo(**{**one, "params": tuple(one["params"])}) for one in answer.document["queries"]]


def invoke_query(name: str, params: Mapping[str, Any] | None, branch: str, snapshot: str | None) -> Steps[Result]:
    place = {"branch": branch} if snapshot is None else {"snapshot": snapshot}
    document = {"params": plain_parameters(params) or {}, "expect_mutation": False, **place}
    answer = yield Request("POST", f"/queries/{segment(name)}", document=document, accept=ARROW)
    return _rows(answer.content)


def invoke_mutation(
    name: str, params: Mapping[str, Any] | None, branch: str, if_commit: str | None
) -> Steps[MutationResult]:
    document = {"params": plain_parameters(params) or {}, "expect_mutation": True, "branch": branch}
    path, headers = f"/queries/{segment(name)}", {}
    if if_commit is not None:
        path, headers = f"{path}/if-graph-commit", {CONDITION_HEADER: if_commit}
    # The id is what `outcome` finds the commit by, should the answer be lost.
    answer = yield committing(Request("POST", path, document=document, headers=headers, accept=JSON))
    return from_document(MutationResult, answer.document)


def served_graphs() -> Steps[list[tuple[str, str]]]:
    """List the ids and addresses of the graphs of a server."""
    answer = yield Request("GET", "/graphs")
    return [(one["graph_id"], one["uri"]) for one in answer.document["graphs"]]


# --- one state of a graph ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RemoteState:
    """One state of a graph that is served: its commit, its types, and the requests about it."""

    branch: str
    commit: Commit
    schema: str
    catalog: Catalog

    @property
    def commit_id(self) -> str:
        return self.commit.commit_id

    def part(self, cell: Cell, start: int, end: int) -> Steps[BlobPart]:
        """Fetch some bytes of a Blob; fewer if it ends before."""
        names = options(
            entity=cell.kind, type=cell.type_name, id=cell.id, property=cell.property, snapshot=self.commit_id
        )
        answer = yield Request("GET", "/blob", names, headers={"Range": f"bytes={start}-{end - 1}"})
        size = answer.header("content-range").rpartition("/")[2]
        return BlobPart(answer.content, int(size or len(answer.content)), answer.header("etag").strip('"'))

    def blob(self, cell: Cell) -> Steps[Blob]:
        """Fetch all of a Blob."""
        part = yield from self.part(cell, 0, FIRST_PART)
        rest = (yield from self.part(cell, FIRST_PART, part.size)).content if part.size > FIRST_PART else b""
        content = part.content + rest
        return Blob(part.size, part.etag, lambda start, end: content[start:end])


@dataclass(frozen=True, slots=True)
class BlobPart:
    """Some bytes of a Blob, its size, and its tag."""

    content: bytes
    size: int
    etag: str


def state_at(ref: str) -> Steps[RemoteState]:
    """Find the state that a name stands for."""
    found: NamedState = yield from steps_of(ResolveState(ref))
    assert found.commit is not None, "a server serves graphs that have a first commit"
    return RemoteState(found.branch, found.commit, found.schema, compile_schema(Source(found.schema)))
