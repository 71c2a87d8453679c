"""A graph behind a server, for an event loop: the methods of a graph in storage, each awaited."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Collection, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar, overload

from omnigraph.api.access import Caller
from omnigraph.api.methods import AsyncGraphMethods, AsyncRequestMethods
from omnigraph.api.operation import Operation
from omnigraph.api.operations import DiffStates, ExportFiles, ExportLines, ReadSchema
from omnigraph.api.progress import SILENT, Progress
from omnigraph.api.results import Commit, ExportResult, LoadResult, MergeResult, MutationResult, Snapshot
from omnigraph.api.rows import Blob, Cell, Explanation, Result
from omnigraph.client import calls
from omnigraph.client.calls import export_lines
from omnigraph.client.differences import AsyncDiff, find_states
from omnigraph.client.requests import asking
from omnigraph.client.transport import Address, Awaiting
from omnigraph.core.refs import MAIN
from omnigraph.errors import BranchInUseError
from omnigraph.lang.catalog import Catalog
from omnigraph.lang.schema_check import compile_schema
from omnigraph.lang.source import Source

_T = TypeVar("_T")
_LOG = logging.getLogger(__name__)


class AsyncGraph(AsyncGraphMethods):
    """A graph behind a server, for one event loop; an asynchronous context manager.

    It has the methods of a graph in storage, with the same results and errors; each is awaited, also the properties
    `schema` and `catalog`. The actor of a change is the one of the token, whatever `actor` says.
    """

    read_only = False

    def __init__(self, address: Address) -> None:
        self._transport = Awaiting(address)
        self.uri = address.url

    async def call(self, operation: Operation[_T], /) -> _T:
        """Ask the server to execute an operation, and wait for the result."""
        return await self._transport.run(calls.steps_of(operation))

    @property
    def schema(self) -> Coroutine[Any, Any, str]:
        """The accepted schema, as it was written."""
        return self.call(ReadSchema())

    @property
    def catalog(self) -> Coroutine[Any, Any, Catalog]:
        # A property cannot be a coroutine function, but it can return a coroutine; `await graph.catalog` reads as for
        # `schema`.
        return self._catalog()

    async def _catalog(self) -> Catalog:
        return compile_schema(Source(await self.schema))

    @property
    def requests(self) -> AsyncRequestMethods:
        """The merge requests: `open`, `list`, `get`, `approve`, `check`, `merge` and `close`."""
        return AsyncRequestMethods(self)

    async def at(self, ref: str) -> AsyncSnapshotView:
        """Return a view of one state, to read: a branch as it is now, a tag or a commit. The view never changes."""
        return AsyncSnapshotView(self, self._transport, await self._transport.run(calls.state_at(ref)))

    async def diff(
        self,
        a: str,
        b: str | None = None,
        *,
        kinds: Collection[str] | None = None,
        types: Collection[str] | None = None,
        operations: Collection[str] | None = None,
    ) -> AsyncDiff:
        """Return what turns one state into another: entities inserted, updated and deleted, for `async for`."""
        asked = DiffStates(a, b, kinds=kinds, types=types, operations=operations)
        # The names are resolved here, once. A branch that moves while the difference is read must not change it
        # half-way.
        return AsyncDiff(self._transport, await self._transport.run(find_states(asked)))

    @overload
    async def export(
        self,
        path: None = None,
        *,
        branch: str = ...,
        snapshot: str | None = ...,
        types: Sequence[str] | None = ...,
        format: str = ...,
        engine: str = ...,
    ) -> AsyncIterator[str]: ...

    @overload
    async def export(
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

    async def export(
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
    ) -> AsyncIterator[str] | ExportResult:
        """Write the entities of the graph, or of some types, in a form that `load` takes.

        Without a path they come as lines of JSON. A path is that of a file on this side, and ends in .jsonl.
        """
        where: dict[str, Any] = {"branch": branch, "snapshot": snapshot, "types": types, "format": format}
        if path is not None:
            return await self.call(
                ExportFiles(path, **where, engine=engine, master=master, conf=conf, progress=progress)
            )
        asked = ExportLines(**where, engine=engine)
        # `stream` waits for the head of the answer, so a refused export raises at the call and not at the first line.
        with asking(asked):
            return await self._transport.stream(export_lines(asked))

    @asynccontextmanager
    async def branch(
        self, name: str, *, base: str = MAIN, merge_into: str | None = None, actor: str | None = None
    ) -> AsyncIterator[AsyncBranchView]:
        """Work on a branch, which is created if it does not exist; on a clean exit it is merged and deleted.

        If the body raises, the branch stays as it is, and can be looked at; so it does without `merge_into`.
        """
        name = name.strip()
        if name not in await self.branches():
            await self.create_branch(name, base)
        yield AsyncBranchView(self, name, actor)
        if merge_into is not None:
            await self.merge(name, merge_into, actor=actor)
            try:
                await self.delete_branch(name)
            except BranchInUseError as error:  # other branches come from it: that must not look like a failed merge
                _LOG.warning("the branch was merged, but not deleted: %s", error.message)

    async def whoami(self) -> Caller:
        """Return who the server takes you for, and which actions it allows you."""
        return await self._transport.run(calls.whoami())

    async def stored_queries(self) -> list[calls.StoredQueryInfo]:
        """List the stored queries of the server, with their parameters."""
        return await self._transport.run(calls.stored_queries())

    async def invoke_query(
        self, name: str, params: Mapping[str, Any] | None = None, *, branch: str = MAIN, snapshot: str | None = None
    ) -> Result:
        """Run a stored query that reads."""
        return await self._transport.run(calls.invoke_query(name, params, branch, snapshot))

    async def invoke_mutation(
        self,
        name: str,
        params: Mapping[str, Any] | None = None,
        *,
        branch: str = MAIN,
        if_commit: str | None = None,
        message: str | None = None,
    ) -> MutationResult:
        """Run a stored query that changes the graph; with `if_commit` only if the branch is at that commit."""
        return await self._transport.run(calls.invoke_mutation(name, params, branch, if_commit, message))

    async def refresh(self) -> None:
        """Do nothing: a client keeps nothing that could be out of date."""

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<AsyncGraph {self.uri}>"


class AsyncSnapshotView(calls.StateProperties[AsyncGraph, Awaiting]):
    """One state of a graph, to read. Every query and every export of it sees the same."""

    async def query(
        self,
        source: str | os.PathLike[str],
        params: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - a limit of the server
    ) -> Result:
        """Run a read query."""
        return await self._graph.query(source, params, name=name, timeout=timeout, **self._where)

    async def explain(
        self,
        source: str | os.PathLike[str],
        params: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - a limit of the server
    ) -> Explanation:
        """Run a read query, and return how it was executed."""
        return await self._graph.explain(source, params, name=name, timeout=timeout, **self._where)

    async def blob(self, type_name: str, id: str, property: str, *, kind: str = "node") -> Blob:  # noqa: A002 - as in documents
        """Return the content of a Blob property of an entity: its `size`, its `etag`, and `read(start, end)`."""
        return await self._transport.run(self._state.blob(Cell(type_name, id, property, kind)))

    @overload
    async def export(
        self, path: None = None, *, types: Sequence[str] | None = ..., format: str = ..., engine: str = ...
    ) -> AsyncIterator[str]: ...

    @overload
    async def export(
        self, path: str | os.PathLike[str], *, types: Sequence[str] | None = ..., format: str = ..., engine: str = ...
    ) -> ExportResult: ...

    async def export(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        types: Sequence[str] | None = None,
        format: str = "jsonl",  # noqa: A002 - the name the API fixes
        engine: str = "auto",
    ) -> AsyncIterator[str] | ExportResult:
        """Write the entities, or those of some types, in a form that `load` takes; without a path as lines of JSON."""
        what: dict[str, Any] = {"types": types, "format": format, "engine": engine, **self._where}
        return await self._graph.export(path, **what)


@dataclass(frozen=True, slots=True)
class AsyncBranchView:
    """The calls of a graph, on one branch and by one actor."""

    graph: AsyncGraph
    name: str
    actor: str | None = None

    async def query(
        self, source: str | os.PathLike[str], params: Mapping[str, Any] | None = None, **more: Any
    ) -> Result:
        return await self.graph.query(source, params, branch=self.name, **more)

    async def mutate(
        self, source: str | os.PathLike[str], params: Mapping[str, Any] | None = None, **more: Any
    ) -> MutationResult:
        return await self.graph.mutate(source, params, branch=self.name, **{"actor": self.actor, **more})

    async def load(self, data: Any, *, mode: str, **more: Any) -> LoadResult:
        return await self.graph.load(data, mode=mode, branch=self.name, **{"actor": self.actor, **more})

    async def snapshot(self) -> Snapshot:
        return await self.graph.snapshot(self.name)

    async def commits(self) -> list[Commit]:
        return await self.graph.commits(self.name)

    async def merge(self, source: str, **more: Any) -> MergeResult:
        """Merge another branch into this one."""
        return await self.graph.merge(source, into=self.name, **{"actor": self.actor, **more})
