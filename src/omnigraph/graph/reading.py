"""Reading a graph: queries, states of the past, exports."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar, overload

from omnigraph.api.access import Action
from omnigraph.api.options import Engine, option
from omnigraph.api.progress import SILENT, Progress
from omnigraph.api.results import Commit, ExportResult, Snapshot
from omnigraph.api.rows import Explanation, Result
from omnigraph.core.refs import MAIN, Ref, parse_ref
from omnigraph.engines import spark_executor
from omnigraph.errors import (
    HistoryReclaimedError,
    StorageError,
)
from omnigraph.graph.handle import Handle
from omnigraph.history.resolve import find_commit, resolve, state_to_read
from omnigraph.ingest.export import ExportRequest
from omnigraph.lang.catalog import Catalog
from omnigraph.lang.source import source_given
from omnigraph.manifest import schema_files
from omnigraph.manifest.rows import MANIFEST_PATH
from omnigraph.manifest.state import GraphState, ManifestState
from omnigraph.pinned import Pinned, export_state, telling_reclaimed
from omnigraph.query.query import Query, Reader
from omnigraph.storage.lance_errors import Failure, classify

_A = TypeVar("_A")


class Reading(Handle):
    """What reads."""

    def snapshot(self, branch: str = MAIN) -> Snapshot:
        """Capture which version of each table the graph consists of now."""
        self._look(branch)
        return resolve(self._store.manifest, branch).snapshot

    def commits(self, branch: str = MAIN, actor: str | None = None) -> list[Commit]:
        """List the commits of a branch, newest first, optionally those of one actor."""
        self._look(branch)
        found = resolve(self._store.manifest, branch).commits()
        return [commit for commit in reversed(found) if actor is None or commit.actor_id == actor]

    def commit(self, commit_id: str) -> Commit:
        """Find a commit, on whichever branch it is."""
        self._look()
        return find_commit(self._store.manifest, commit_id)

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
        text = source_given(source, ".gq", "<query>")
        query = partial(Query, text, name, params)
        try:
            return self._read(query, branch, snapshot, Reader.run)
        except HistoryReclaimedError:
            if snapshot is not None:
                raise
            return self._read(query, branch, snapshot, Reader.run)  # the branch has moved on, and what it was is gone

    def explain(
        self,
        source: str | os.PathLike[str],
        params: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
        branch: str = MAIN,
        snapshot: str | None = None,
    ) -> Explanation:
        """Run a query that reads, and tell how it was done: its steps, their rows and what they cost."""
        text = source_given(source, ".gq", "<query>")
        return self._read(partial(Query, text, name, params), branch, snapshot, Reader.explain)

    def at(self, ref: str) -> Pinned:
        """A view of one state, to read: a branch as it is now, a tag or a commit. It stays what it is."""
        self._admit(Action.READ, ref)
        state = resolve(self._store.manifest, ref).graph_state
        known = self._store.schema_at(state.snapshot) or self._read_contract()
        reader = self._reader(state, known.catalog)
        return Pinned(self._store, reader, known.text, partial(self._admit, Action.EXPORT, ref))

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
        self._admit(Action.EXPORT, branch)
        state, _ = self._state(branch, snapshot)
        spark = partial(spark_executor, master, conf)
        target = None if path is None else os.fspath(path)
        request = ExportRequest(target, types, format, option(Engine, "engine", engine), progress, spark)
        return export_state(self._store, state, request)

    def _read(
        self, query: Callable[[str], Query], branch: str, snapshot: str | None, do: Callable[[Reader, Query], _A]
    ) -> _A:
        self._admit(Action.READ, branch)
        state, catalog = self._state(branch, snapshot)
        reported = state.snapshot.branch or MAIN if snapshot is None else branch.strip()
        with telling_reclaimed(self._store, state):
            return do(self._reader(state, catalog), query(reported))

    def _reader(self, state: GraphState, catalog: Catalog) -> Reader:
        return Reader(self._store.tables, state, catalog, self._cache, self._embedding)

    def _state(self, branch: str, snapshot: str | None) -> tuple[GraphState, Catalog]:
        """Find the state to read; of main as it is now that takes one request, unless it has changed."""
        if snapshot is None and parse_ref(branch) == Ref(MAIN):
            current, known = self._load_current()
            self._contract = known
            return current.graph_state, known.catalog
        state = state_to_read(self._store.manifest, branch, snapshot)
        known = self._store.schema_at(state.snapshot) or self._read_contract()
        return state, known.catalog

    def _load_current(self) -> tuple[ManifestState, schema_files.AcceptedSchema]:
        try:
            return self._current.load()
        except StorageError as error:
            if classify(error) is Failure.NOT_FOUND and not self._store.objects.exists(MANIFEST_PATH):
                raise self._absent() from None
            raise
