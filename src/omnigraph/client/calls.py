"""The calls of a graph that is served: the steps of each operation, and those that no operation describes."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from omnigraph.api import problems
from omnigraph.api.access import Action, Caller, Principal, Role
from omnigraph.api.documents import answer_result, from_document
from omnigraph.api.operation import ARROW, CONDITION_HEADER, JSON, NDJSON, Operation, description_of
from omnigraph.api.operations import ExplainQuery, ExportFiles, ExportLines, LoadData, ResolveState, RunQuery
from omnigraph.api.options import LoadMode, option
from omnigraph.api.progress import Progress
from omnigraph.api.results import Commit, ExportResult, LoadResult, MutationResult, NamedState
from omnigraph.api.rows import Blob, Cell, Explanation, Result
from omnigraph.client.requests import (
    Lines,
    Pause,
    Request,
    Steps,
    Stream,
    T,
    asking,
    committing,
    not_served,
    options,
    plain_parameters,
    request_of,
    segment,
)
from omnigraph.core.location import Location
from omnigraph.errors import FileAccessError, LoadRejectedError, NotServedError, ServerUnavailableError, Violation
from omnigraph.lang.catalog import Catalog
from omnigraph.lang.schema_check import compile_schema
from omnigraph.lang.source import Source

FIRST_PART = 2**20  # bytes of a Blob that are fetched with its size
_POLL_SECONDS = 0.5
_FAILED = 500  # the status of a load that has no answer of its own
_ENDINGS = (".jsonl", ".ndjson")
# Only the beginning of a line: to parse each one would take longer than the export, and a text could hold the same
# words.
_HEAD = re.compile(rb'^\{"(type|edge)":"([^"]*)"', re.MULTILINE)


def steps_of(operation: Operation[T]) -> Steps[T]:
    """Return the steps of an operation: by hand for those that stream or negotiate, from the description for others."""
    # A generator, so nothing here runs before the first step: a wrong option raises when the call is run, not when it
    # is made.
    by_hand: Callable[[Any], Steps[T]] | None = _BY_HAND.get(type(operation))
    with asking(operation):
        if by_hand is not None:
            return (yield from by_hand(operation))
        route = description_of(operation).route(operation)
        if route is None:
            raise not_served(operation)
        answer = yield request_of(operation, route)
        result: T = answer_result(operation, answer.document)
        return result


def _request(operation: Operation[Any], accept: str = JSON) -> Request:
    route = description_of(operation).route(operation)
    assert route is not None, "the operation is served"
    return request_of(operation, route, accept)


def _query(operation: RunQuery) -> Steps[Result]:
    if operation.branches is not None:
        from omnigraph.api.arrow import combined, for_each_branch  # noqa: PLC0415 - loads Arrow

        found = {}
        for one in for_each_branch(operation):
            found[one.branch] = yield from _query(one)
        return combined(found)
    answer = yield _request(operation, ARROW)
    # Without a snapshot the server says which branch it read: a tag or `main~2` is of one too.
    return _rows(answer.content, None if operation.snapshot is None else operation.branch)


def _rows(content: bytes, branch: str | None = None) -> Result:
    from omnigraph.api.arrow import result_of  # noqa: PLC0415 - loads Arrow

    return result_of(content, None if branch is None else branch.strip())


def _explain(operation: ExplainQuery) -> Steps[Explanation]:
    answer = yield _request(operation)
    found: Explanation = answer_result(operation, answer.document)
    return found if operation.snapshot is None else replace(found, branch=operation.branch.strip())


# --- loads: files are sent to the server, addresses in shared storage it reads itself ----------------------------


def load(asked: LoadData) -> Steps[LoadResult]:
    """Load data in one commit, or nothing. A file of problems gets those that the server sends, the first 1,000."""
    try:
        done = yield from _load(asked)
    except LoadRejectedError as error:
        _write_rejects(asked.rejects, error.violations)
        raise
    _write_rejects(asked.rejects, done.violations)
    return done


def _write_rejects(path: str | os.PathLike[str] | None, found: Sequence[Violation]) -> None:
    if path is None or not (found or Path(path).exists()):
        return
    try:
        Path(path).write_text("".join(f"{json.dumps(one.to_dict(), ensure_ascii=False)}\n" for one in found))
    except OSError as error:
        name = os.fspath(path)
        raise FileAccessError(f"cannot write {name}: {error.strerror}", path=name) from None


def _load(asked: LoadData) -> Steps[LoadResult]:
    mode = option(LoadMode, "mode", asked.mode)
    how: dict[str, Any] = {"mode": mode, "branch": asked.branch, "from": asked.base, "dry_run": asked.dry_run or None}
    how |= {"max_bad": asked.max_bad, "dedupe": asked.dedupe, "message": asked.message}
    # Only if all of them are: a mixed list is read on this side, where both kinds can be reached.
    addresses = server_addresses(asked.data)
    if addresses is not None:
        given = {"data": addresses, "format": asked.format, "mapping": _mapping(asked.mapping, asked.csv), **how}
        document = {name: value for name, value in given.items() if value is not None}
        return (yield from _load_on_server(document, asked.progress))
    from omnigraph.client.uploads import uploaded  # noqa: PLC0415 - conversion of files loads the engine

    # Conversion needs the types. If the schema changes in between, the server checks the lines by the new one.
    schema = (yield Request("GET", "/schema")).document["schema_source"]
    with uploaded(asked.data, compile_schema(Source(schema)), asked.format, asked.mapping, asked.csv) as upload:
        try:
            request = Request("POST", "/load/ndjson", options(**how), file=upload.file)
            answer = yield request if asked.dry_run else committing(request)
        except LoadRejectedError as error:
            # The server speaks of lines of the upload, which exist nowhere: translate them to the files that the user
            # knows.
            raise upload.located(error) from None
    return from_document(LoadResult, answer.document)


def server_addresses(data: Any) -> list[str] | None:
    """Return the addresses of data that a server reads itself, if all of it is in shared storage."""
    given = [data] if isinstance(data, str) else data if isinstance(data, list | tuple) else []
    shared = [one for one in given if isinstance(one, str) and one.lower().startswith("s3://")]
    return shared if shared and len(shared) == len(given) else None


def _mapping(given: str | os.PathLike[str] | Mapping[str, Any] | None, csv: Mapping[str, Any] | None) -> Any:
    """Return the document that maps files to types, with the options of CSV files in it."""
    document = _document(given)
    if csv is None:
        return document
    found = {"files": {}} if document is None else document
    if not isinstance(found, Mapping):  # the server says what is wrong with it
        return found
    return {**found, "csv": {**(found.get("csv") or {}), **csv}}


def _document(given: str | os.PathLike[str] | Mapping[str, Any] | None) -> Any:
    """Return the document that maps files to types; a file of it is read here."""
    if given is None or isinstance(given, Mapping):
        return given
    from omnigraph.formats.sources import read_mapping  # noqa: PLC0415 - loads the engine

    return read_mapping(Path(given))


def _load_on_server(document: dict[str, Any], progress: Progress) -> Steps[LoadResult]:
    """Let the server load what it can reach itself, and wait for it."""
    begin = Request("POST", "/loads", document=document)
    request = begin if document.get("dry_run") else committing(begin)
    answer = yield request
    path = f"/loads/{segment(answer.document['load_id'])}"
    reported = _Reported(progress)
    while True:
        try:
            state = (yield Request("GET", path)).document
        except ServerUnavailableError as error:
            if request.changes:  # it has begun, and its outcome is unknown
                raise request.outcome_unknown(error.message) from error
            raise
        reported.report(state)
        if state["state"] == "done":
            return from_document(LoadResult, state["result"])
        if state["state"] == "failed":
            # The status of this answer is 200: the question was answered, and the load is what failed.
            raise problems.raised(_FAILED, state["error"])
        yield Pause(_POLL_SECONDS)


class _Reported:
    """Passes on how far a server is."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._phase, self._total, self._done, self._rows = "", 0, 0, 0

    def report(self, state: Mapping[str, Any]) -> None:
        phase = state.get("phase") or ""
        total, done, rows = (state.get(name) or 0 for name in ("total", "done", "rows"))
        # The server reports totals and a Progress takes increments, so begin to count again with each phase.
        if phase != self._phase:
            self._phase, self._total, self._done, self._rows = phase, 0, 0, 0
        if total > self._total:
            self._progress.phase(phase, total - self._total)
        if done > self._done or rows > self._rows:
            self._progress.advance(done - self._done, rows - self._rows)
        self._total, self._done, self._rows = total, done, rows


# --- exports: lines as they come, or a file of them on this side -------------------------------------------------


def export_lines(asked: ExportLines) -> Stream[str]:
    """Stream the entities as lines of JSON."""
    _check_export(asked, _ENDINGS[0])
    if asked.types is not None and not asked.types:  # a server takes no types for all of them
        return Stream(Request("GET", "/snapshot", options(branch=asked.branch)), lambda _: ())
    return Stream(_export_request(asked, asked.snapshot), lambda line: (f"{line}\n",))


def export_file(asked: ExportFiles) -> Steps[ExportResult]:
    """Write the entities of one state into a file."""
    from omnigraph.formats.files import written  # noqa: PLC0415 - loads the engine

    _check_export(asked, os.fspath(asked.path))
    # One request finds the head and its schema; the export is then of that commit, whatever is written meanwhile.
    ref = asked.branch if asked.snapshot is None else asked.snapshot
    state = yield from state_at(ref)
    # Types without entities are reported with 0, as a graph in storage does.
    counted = _EntityCounter(_no_entities(state.catalog, asked.types))
    location = Location.parse(asked.path)
    with written(location) as stream:

        def sink(chunk: bytes) -> None:
            stream.write(chunk)
            counted.add(chunk)

        if asked.types is None or asked.types:  # a server takes no types for all of them
            yield _export_request(asked, state.commit_id, sink)
    nodes, edges = counted.of("type"), counted.of("edge")
    return ExportResult(location.uri, asked.format, asked.branch.strip(), state.commit, nodes, edges, (location.uri,))


def _check_export(asked: ExportLines | ExportFiles, path: str) -> None:
    if asked.format != "jsonl" or not path.lower().endswith(_ENDINGS):
        message = f"a server exports lines of JSON, not {asked.format} to {path}"
        hint = f"name a file that ends in {_ENDINGS[0]}; `omnigraph export --store URI` writes other formats"
        raise NotServedError(message, operation="export", hint=hint)


def _export_request(
    asked: ExportLines | ExportFiles, snapshot: str | None, sink: Callable[[bytes], None] | None = None
) -> Request:
    place = {"branch": asked.branch} if snapshot is None else {"snapshot": snapshot}
    # `node:Person` is a key of a table, `Person` a type; the server takes them under two names.
    keys = [name for name in asked.types or () if ":" in name]
    names = [name for name in asked.types or () if ":" not in name]
    chosen = {"type_names": names, "table_keys": keys}
    document = {**place, **{name: value for name, value in chosen.items() if value}}
    return Request("POST", "/export", document=document, accept=NDJSON, sink=sink)


def _no_entities(catalog: Catalog, types: Sequence[str] | None) -> Counter[tuple[str, str]]:
    """The types that an export is of, each with no entities yet."""
    declared = [("type", f"node:{name}") for name in catalog.nodes] + [
        ("edge", f"edge:{name}") for name in catalog.edges
    ]
    named = [(word, key.partition(":")[2], key) for word, key in declared]
    return Counter({(word, name): 0 for word, name, key in named if types is None or name in types or key in types})


class _EntityCounter:
    """Counts the entities of each type in lines of JSON, which come in chunks."""

    def __init__(self, counts: Counter[tuple[str, str]]) -> None:
        self._counts = counts
        self._lines = Lines()

    def add(self, chunk: bytes) -> None:
        found = _HEAD.findall(self._lines.whole(chunk))
        self._counts.update((word.decode(), name.decode()) for word, name in found)

    def of(self, wanted: str) -> dict[str, int]:
        return {name: count for (word, name), count in sorted(self._counts.items()) if word == wanted}


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


def whoami() -> Steps[Caller]:
    """Ask who the token is, and what it may do."""
    answer = yield Request("GET", "/whoami")
    about = answer.document
    graphs = None if about["graphs"] is None else frozenset(about["graphs"])
    principal = None if about["open_mode"] else Principal(about["actor"], Role(about["role"]), graphs)
    return Caller(principal, frozenset(map(Action, about["actions"])))


def invoke_query(name: str, params: Mapping[str, Any] | None, branch: str, snapshot: str | None) -> Steps[Result]:
    place = {"branch": branch} if snapshot is None else {"snapshot": snapshot}
    document = {"params": plain_parameters(params) or {}, "expect_mutation": False, **place}
    answer = yield Request("POST", f"/queries/{segment(name)}", document=document, accept=ARROW)
    return _rows(answer.content)


def invoke_mutation(
    name: str, params: Mapping[str, Any] | None, branch: str, if_commit: str | None, message: str | None
) -> Steps[MutationResult]:
    said = {} if message is None else {"message": message}
    document = {"params": plain_parameters(params) or {}, "expect_mutation": True, "branch": branch, **said}
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
        # Both parts are of one commit, so the Blob cannot change between the two requests.
        rest = (yield from self.part(cell, FIRST_PART, part.size)).content if part.size > FIRST_PART else b""
        content = part.content + rest
        return Blob(part.size, part.etag, lambda start, end: content[start:end])


@dataclass(frozen=True, slots=True)
class BlobPart:
    """Some bytes of a Blob, its size, and its tag."""

    content: bytes
    size: int
    etag: str


GraphT = TypeVar("GraphT")
TransportT = TypeVar("TransportT")


class StateProperties(Generic[GraphT, TransportT]):
    """What the views of the two clients share: one state of a graph, to read."""

    def __init__(self, graph: GraphT, transport: TransportT, state: RemoteState) -> None:
        self._graph = graph
        self._transport = transport
        self._state = state
        # The arguments that name this state to the graph. The commit decides; the branch is only reported.
        self._where: Mapping[str, Any] = {"branch": state.branch, "snapshot": state.commit_id}

    @property
    def branch(self) -> str:
        """The branch that this was a state of."""
        return self._state.branch

    @property
    def commit(self) -> Commit:
        """The commit that made this state."""
        return self._state.commit

    @property
    def schema(self) -> str:
        return self._state.schema

    @property
    def catalog(self) -> Catalog:
        return self._state.catalog

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._state.commit_id}>"


def state_at(ref: str) -> Steps[RemoteState]:
    """Find the state that a name stands for."""
    found: NamedState = yield from steps_of(ResolveState(ref))
    # `init` makes the first commit before a graph can be opened.
    assert found.commit is not None, "a server serves graphs that have a first commit"
    return RemoteState(found.branch, found.commit, found.schema, compile_schema(Source(found.schema)))


_BY_HAND: dict[type[Operation[Any]], Callable[[Any], Steps[Any]]] = {
    RunQuery: _query,
    ExplainQuery: _explain,
    LoadData: load,
    ExportFiles: export_file,
}
