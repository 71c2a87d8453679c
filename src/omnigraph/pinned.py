"""A view of one state of a graph, which stays what it is whatever others write."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, overload

from omnigraph.api.options import Engine, option
from omnigraph.api.progress import SILENT
from omnigraph.api.results import Commit, ExportResult
from omnigraph.api.rows import Blob, Cell, Explanation, Result
from omnigraph.commit.store import Store
from omnigraph.core.refs import MAIN
from omnigraph.engines import spark_executor
from omnigraph.errors import StorageError
from omnigraph.ingest.export import ExportRequest, export_files, export_lines
from omnigraph.lang.catalog import Catalog
from omnigraph.lang.source import source_given
from omnigraph.maintenance.retention import is_reclaimed
from omnigraph.manifest.state import GraphState
from omnigraph.manifest.time_travel import reclaimed
from omnigraph.query.blob import find_blob
from omnigraph.query.query import Query, Reader
from omnigraph.storage.lance_errors import Failure, classify


@contextmanager
def telling_reclaimed(store: Store, state: GraphState) -> Iterator[None]:
    """Tell of files that are missing whether a cleanup has removed them."""
    try:
        yield
    except StorageError as error:
        missing = classify(error) is Failure.NOT_FOUND and is_reclaimed(store.tables, state.snapshot)
        if not missing or state.head is None:
            raise
        raise reclaimed(state.head) from error


def export_state(store: Store, state: GraphState, request: ExportRequest) -> Iterator[str] | ExportResult:
    """Write one state of the graph."""
    if request.path is None:
        return _lines(store, state, export_lines(store, state, request))
    with telling_reclaimed(store, state):
        return export_files(store, state, request)


def _lines(store: Store, state: GraphState, lines: Iterator[str]) -> Iterator[str]:
    with telling_reclaimed(store, state):
        yield from lines


class Pinned:
    """One state of a graph, to read. Every query and every export of it sees the same."""

    def __init__(self, store: Store, reader: Reader, schema: str, admit_export: Callable[[], None]) -> None:
        self._store = store
        self._reader = reader
        self._admit_export = admit_export
        self.schema = schema

    @property
    def branch(self) -> str:
        """The branch that this was a state of."""
        return self._reader.state.snapshot.branch or MAIN

    @property
    def commit(self) -> Commit | None:
        """The commit that made this state."""
        return self._reader.state.head

    @property
    def catalog(self) -> Catalog:
        return self._reader.catalog

    def query(
        self, source: str | os.PathLike[str], params: Mapping[str, Any] | None = None, *, name: str | None = None
    ) -> Result:
        """Run a query that reads."""
        with telling_reclaimed(self._store, self._reader.state):
            return self._reader.run(self._asked(source, params, name))

    def explain(
        self, source: str | os.PathLike[str], params: Mapping[str, Any] | None = None, *, name: str | None = None
    ) -> Explanation:
        """Run a query and tell how it was done."""
        with telling_reclaimed(self._store, self._reader.state):
            return self._reader.explain(self._asked(source, params, name))

    def blob(self, type_name: str, id: str, property: str, *, kind: str = "node") -> Blob:  # noqa: A002 - as in documents
        """The content of a Blob property of an entity: its `size`, its `etag`, and `read(start, end)`."""
        state = self._reader.state
        with telling_reclaimed(self._store, state):
            return find_blob(self._store.tables, state.snapshot, self.catalog, Cell(type_name, id, property, kind))

    @overload
    def export(
        self, path: None = None, *, types: Sequence[str] | None = ..., format: str = ..., engine: str = ...
    ) -> Iterator[str]: ...

    @overload
    def export(
        self, path: str | os.PathLike[str], *, types: Sequence[str] | None = ..., format: str = ..., engine: str = ...
    ) -> ExportResult: ...

    def export(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        types: Sequence[str] | None = None,
        format: str = "jsonl",  # noqa: A002 - the name the API fixes
        engine: str = "auto",
    ) -> Iterator[str] | ExportResult:
        """Write the entities, or those of some types, in a form that `load` takes; without a path as lines of JSON."""
        self._admit_export()
        target = None if path is None else os.fspath(path)
        spark = partial(spark_executor, None, None)
        request = ExportRequest(target, types, format, option(Engine, "engine", engine), SILENT, spark)
        return export_state(self._store, self._reader.state, request)

    def _asked(self, source: str | os.PathLike[str], params: Mapping[str, Any] | None, name: str | None) -> Query:
        return Query(source_given(source, ".gq", "<query>"), name, params, self.branch)

    def __repr__(self) -> str:
        return f"<Pinned {self.commit.commit_id if self.commit else 'the beginning'}>"
