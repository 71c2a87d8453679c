"""Graph: the handle people hold. It delegates; the rooms below do the work."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self, overload

from omnigraph.commit import failpoints
from omnigraph.commit.recovery import heal, sweep
from omnigraph.commit.store import Store
from omnigraph.errors import (
    AlreadyInitializedError,
    CommitNotFoundError,
    CorruptGraphError,
    GraphNotFoundError,
    NotAGraphError,
    OmnigraphError,
    ReadOnlyError,
    RecoveryRequiredError,
    StorageError,
)
from omnigraph.lang.catalog import Catalog, EdgeType, NodeType
from omnigraph.lang.identity import new_id
from omnigraph.lang.schema_check import compile_schema
from omnigraph.lang.source import Source
from omnigraph.manifest import contract
from omnigraph.manifest.rows import MAIN, MANIFEST_PATH, Commit, TableRow, VersionRow
from omnigraph.manifest.state import Snapshot
from omnigraph.pipeline.executor import Executor
from omnigraph.pipeline.export import ExportRequest, ExportResult, export_files, export_lines
from omnigraph.pipeline.inputs import as_files
from omnigraph.pipeline.load import Engine, LoadRequest, LoadResult, load
from omnigraph.pipeline.progress import SILENT, Progress
from omnigraph.pipeline.sources import discover
from omnigraph.query.cache import Cache
from omnigraph.query.query import Query, run, state_of
from omnigraph.query.result import Result
from omnigraph.storage.columns import table_key, table_path, table_schema
from omnigraph.storage.lance_errors import Kind, classify
from omnigraph.storage.location import Location
from omnigraph.write.load import LoadMode
from omnigraph.write.mutation import Mutation, MutationResult, mutate
from omnigraph.write.validate import check_patterns

_CLAIM = "__init_claim.json"
_CACHE_BYTES = 1024 * 1024 * 1024
_LOG = logging.getLogger(__name__)


def init(uri: str | os.PathLike[str], schema: str | os.PathLike[str], *, force: bool = False) -> Graph:
    """Create a graph. `schema` is the text of a `.pg` schema or the path of a file that holds one.

    `force` takes over from an attempt that died before its graph was made; a graph itself is never replaced.
    """
    source = _source(schema, ".pg", "<schema>")
    catalog = compile_schema(source)
    check_patterns(catalog)
    store = Store.at(Location.parse(uri))
    address = store.location.uri
    started = contract.is_started(store.objects)
    if _is_made(store):
        raise AlreadyInitializedError(f"there is a graph at {address} already", uri=address, hint="open it instead")
    if started and not force:
        message = f"somebody began to make a graph at {address}"
        hint = "if nobody is at it any more, take over with --force"
        raise AlreadyInitializedError(message, uri=address, hint=hint)
    if force:
        _abandon(store)
    contract.claim(store.objects, source, address)
    claim = new_id().encode()
    try:
        store.objects.write(_CLAIM, claim)
        failpoints.reach(failpoints.INIT_AFTER_SCHEMA_PG_WRITTEN)
        contract.write_compiled(store.objects, catalog)
        failpoints.reach(failpoints.INIT_AFTER_SCHEMA_CONTRACT_WRITTEN)
        _create_tables(store, catalog, claim)
    except BaseException:
        _abandon_unless_made(store, claim)
        raise
    failpoints.reach(failpoints.INIT_AFTER_MANIFEST_CREATED)
    _delete(store, _CLAIM)
    return Graph(store, read_only=False)


def open(uri: str | os.PathLike[str], *, read_only: bool = False) -> Graph:  # noqa: A001 - the name the API fixes
    """Open a graph. Read-write finishes or undoes what a crash left behind; read-only never writes anything."""
    return Graph(Store.at(Location.parse(uri)), read_only=read_only)


class Graph:
    """A graph. Safe to share between threads; a context manager."""

    def __init__(self, store: Store, *, read_only: bool) -> None:
        self._store = store
        self.read_only = read_only
        self._cache = Cache(_CACHE_BYTES)
        self._contract = self._read_contract()
        if read_only:
            store.manifest.load()
        else:
            store.manifest.load_to_write(None)
            if self._contract.foreign:
                contract.write_compiled(store.objects, self._contract.catalog)
                _LOG.warning("the compiled schema of %s was rebuilt from %s", self.uri, contract.SOURCE)
                self._contract = self._read_contract()
            sweep(store)

    @property
    def uri(self) -> str:
        return self._store.location.uri

    @property
    def catalog(self) -> Catalog:
        return self._contract.catalog

    @property
    def schema(self) -> str:
        """The accepted schema, as it was written."""
        return self._contract.text

    def snapshot(self, branch: str = MAIN) -> Snapshot:
        """Capture which version of each table the graph consists of now."""
        self._contract = self._read_contract()
        return self._store.manifest.load(_branch(branch)).snapshot

    def commits(self, branch: str = MAIN, actor: str | None = None) -> list[Commit]:
        """List the commits of a branch, newest first, optionally those of one actor."""
        self._contract = self._read_contract()
        found = self._store.manifest.load(_branch(branch)).commits()
        return [commit for commit in reversed(found) if actor is None or commit.actor_id == actor]

    def commit(self, commit_id: str) -> Commit:
        """Find a commit on whichever branch has it."""
        self._contract = self._read_contract()
        for branch in self._store.manifest.branches():
            found = self._store.manifest.load(_branch(branch)).commit(commit_id)
            if found:
                return found
        raise CommitNotFoundError(f"commit '{commit_id}' not found", commit_id=commit_id)

    def mutate(
        self,
        source: str | os.PathLike[str],
        params: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
        branch: str = MAIN,
        actor: str | None = None,
        if_commit: str | None = None,
    ) -> MutationResult:
        """Run a query that inserts, updates or deletes: all of it in one commit, or nothing.

        `source` is the text of `.gq` queries or the path of a file; `name` chooses one of several. With `if_commit` the
        mutation happens only if the branch is at that commit. When it returns, the change is durable and visible;
        when it raises, nothing was changed, except for OutcomeUnknownError: then ask `outcome`.
        """
        self._refuse_read_only()
        text = _source(source, ".gq", "<query>")
        return mutate(self._store, Mutation(text, name, params, _branch(branch), actor, if_commit))

    def query(
        self,
        source: str | os.PathLike[str],
        params: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
        branch: str = MAIN,
        snapshot: str | None = None,
    ) -> Result:
        """Run a query that reads. It sees one state of the graph: the branch as it is, or as it was at a commit."""
        self._contract = self._read_contract()
        text = _source(source, ".gq", "<query>")
        query = Query(text, name, params, _branch(branch), snapshot)
        state = state_of(self._store.manifest, query.branch, snapshot)
        return run(self._store.tables, state, self.catalog, self._cache, query)

    def load(
        self,
        data: Any,
        *,
        mode: str,
        branch: str = MAIN,
        actor: str | None = None,
        engine: str = "auto",
        format: str | None = None,  # noqa: A002 - the name the API fixes
        mapping: str | os.PathLike[str] | Mapping[str, Any] | None = None,
        dry_run: bool = False,
        master: str | None = None,
        conf: Mapping[str, str] | None = None,
        progress: Progress = SILENT,
    ) -> LoadResult:
        """Load data in one commit, or nothing: files, records, Arrow tables or Spark DataFrames by type.

        `mode` is append, merge or overwrite. `engine` is local, spark, or auto: then small data is loaded in this
        process and large data on Spark, which `master` and `conf` are for. `dry_run` only checks.
        """
        self._refuse_read_only()
        self._contract = self._read_contract()
        with as_files(data, self._store.location, self.catalog) as (addresses, own):
            splits = discover(addresses, self.catalog, format=format, mapping=mapping if own is None else own)
            spark = partial(_spark_executor, master, conf)
            request = LoadRequest(
                splits, LoadMode(mode), _branch(branch), actor, Engine(engine), dry_run, progress, spark
            )
            return load(self._store, request)

    @overload
    def export(
        self,
        path: None = None,
        *,
        branch: str = ...,
        snapshot: str | None = ...,
        types: Sequence[str] | None = ...,
        format: str = ...,
        engine: str = ...,
    ) -> Iterator[str]: ...

    @overload
    def export(
        self,
        path: str | os.PathLike[str],
        *,
        branch: str = ...,
        snapshot: str | None = ...,
        types: Sequence[str] | None = ...,
        format: str = ...,
        engine: str = ...,
        master: str | None = ...,
        conf: Mapping[str, str] | None = ...,
        progress: Progress = ...,
    ) -> ExportResult: ...

    def export(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        branch: str = MAIN,
        snapshot: str | None = None,
        types: Sequence[str] | None = None,
        format: str = "jsonl",  # noqa: A002 - the name the API fixes
        engine: str = "auto",
        master: str | None = None,
        conf: Mapping[str, str] | None = None,
        progress: Progress = SILENT,
    ) -> Iterator[str] | ExportResult:
        """Write the entities of the graph, or of some types, in a form that `load` takes.

        Without a path they come as lines of JSON. A path that ends like its format is one file, any other a directory.
        """
        self._contract = self._read_contract()
        state = state_of(self._store.manifest, _branch(branch), snapshot)
        spark = partial(_spark_executor, master, conf)
        target = None if path is None else os.fspath(path)
        request = ExportRequest(target, types, format, Engine(engine), progress, spark)
        return (export_lines if path is None else export_files)(self._store, state, request)

    def outcome(self, operation_id: str, branch: str = MAIN) -> Commit | None:
        """Tell what became of an operation whose outcome was unknown: its commit, or None if it changed nothing."""
        if not self.read_only:
            heal(self._store, self._store.gates.patience)
        found = self._store.manifest.load(_branch(branch)).commit(operation_id)
        if found is None and operation_id in self._store.sidecars.pending():
            message = f"operation {operation_id} is not settled yet"
            raise RecoveryRequiredError(message, operation_id=operation_id, hint="open the graph read-write")
        return found

    def _refuse_read_only(self) -> None:
        if self.read_only:
            raise ReadOnlyError(f"{self.uri} is open read-only", hint="open it without `read_only`")

    def branches(self) -> list[str]:
        return self._store.manifest.branches()

    def refresh(self) -> None:
        """Pick up schema changes, and recover what other writers left behind."""
        self._contract = self._read_contract()
        if not self.read_only:
            heal(self._store, self._store.gates.patience)

    def close(self) -> None:
        """Let the handle go. Nothing is buffered, so nothing is written."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Graph {self.uri}{' read-only' if self.read_only else ''}>"

    def _read_contract(self) -> contract.Contract:
        objects = self._store.objects
        if not objects.exists(MANIFEST_PATH):
            raise self._absent()
        found = self._store.contract.read()
        if found is None:
            if not _is_made(self._store):
                raise self._absent()
            message = f"{self.uri} has lost its {contract.SOURCE}"
            raise CorruptGraphError(message, path=contract.SOURCE, hint="restore it from a backup")
        return found

    def _absent(self) -> GraphNotFoundError | NotAGraphError:
        objects = self._store.objects
        if contract.is_started(objects):
            message = f"somebody began to make a graph at {self.uri} and did not finish"
            return NotAGraphError(message, uri=self.uri, hint="finish it with `omnigraph init --force`")
        if objects.exists(""):
            message = f"{self.uri} is not a graph"
            return NotAGraphError(message, uri=self.uri, hint="name the directory that `omnigraph init` made")
        return GraphNotFoundError(f"no graph at {self.uri}", uri=self.uri, hint="make one with `omnigraph init`")


def _spark_executor(master: str | None, conf: Mapping[str, str] | None, progress: Progress) -> Executor:
    from omnigraph.pipeline.session import spark_context  # noqa: PLC0415 - Spark is started when it is needed
    from omnigraph.pipeline.spark_executor import SparkExecutor  # noqa: PLC0415

    return SparkExecutor(spark_context(master, conf), progress)


def _branch(name: str) -> str | None:
    return None if name == MAIN else name


def _source(source: str | os.PathLike[str], suffix: str, name: str) -> Source:
    """Read a file if a path is given: a text on one line that ends like one, or a path object."""
    is_path = not isinstance(source, str) or (source.endswith(suffix) and "\n" not in source)
    return Source.read(os.fspath(source)) if is_path else Source(str(source), name)


def _create_tables(store: Store, catalog: Catalog, claim: bytes) -> None:
    tables, versions = [], []
    for declared in _types(catalog):
        _check_claim(store, claim)
        key, path = table_key(declared), table_path(declared)
        created = store.tables.create(path, table_schema(declared))
        tables.append(TableRow(key, path))
        versions.append(VersionRow(key, created.version, None, 0))
    _check_claim(store, claim)
    store.manifest.create(tables, versions)


def _check_claim(store: Store, claim: bytes) -> None:
    """See that nobody has taken the place over with `force` meanwhile: his tables must not be touched."""
    if store.objects.read_if_exists(_CLAIM) != claim:
        uri = store.location.uri
        message = f"somebody else took over making a graph at {uri}"
        raise AlreadyInitializedError(message, uri=uri, hint="open it when it is made")


def _types(catalog: Catalog) -> Iterator[NodeType | EdgeType]:
    yield from catalog.nodes.values()
    yield from catalog.edges.values()


def _is_made(store: Store) -> bool:
    """A graph is made when its manifest can be opened; what an attempt left of one does not count."""
    try:
        store.manifest.table.open()
    except StorageError as error:
        if classify(error) is Kind.NOT_FOUND:
            return False
        raise
    return True


def _abandon_unless_made(store: Store, claim: bytes) -> None:
    """Take back what an attempt has claimed, unless its graph is there after all, or that cannot be told."""
    try:
        made = _is_made(store) or store.objects.read_if_exists(_CLAIM) not in (None, claim)
    except OmnigraphError as error:
        _LOG.warning("could not tell whether the graph was made: %s", error)
        return
    if not made:
        _abandon(store)


def _abandon(store: Store) -> None:
    """Take back the claim of a graph that could not be made; the failure that led here is the one to tell."""
    for name in (*reversed(contract.FILES), _CLAIM):
        _delete(store, name)


def _delete(store: Store, name: str) -> None:
    try:
        store.objects.delete(name)
    except OmnigraphError as error:
        _LOG.warning("could not remove %s: %s", name, error)
