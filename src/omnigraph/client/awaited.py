"""A graph behind a server, for an event loop: the methods of a graph in storage, each awaited."""

from __future__ import annotations

import functools
import os
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, cast, overload

from omnigraph.api.progress import SILENT, Progress, finishing
from omnigraph.api.protocol import BranchView
from omnigraph.api.results import ExportResult
from omnigraph.client.asking import refuse_engine
from omnigraph.client.calls import Calls, OfState, PinnedCalls
from omnigraph.client.differences import AsyncDiff, Differing
from omnigraph.client.exporting import Export
from omnigraph.client.reading import Asked
from omnigraph.client.steps import Steps, answered
from omnigraph.client.transport import Address, Awaiting
from omnigraph.core.refs import MAIN
from omnigraph.lang.catalog import Catalog

P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C")
C_co = TypeVar("C_co", covariant=True)


class AsyncCaller(Generic[C_co]):
    """Who makes calls, and over what."""

    def __init__(self, transport: Awaiting, calls: C_co) -> None:
        self._transport = transport
        self._calls = calls


def awaiting(
    call: Callable[Concatenate[C, P], Steps[T]],
) -> Callable[Concatenate[AsyncCaller[C], P], Coroutine[Any, Any, T]]:
    """Make a method of a call: to await it is to wait for the answer."""

    @functools.wraps(call)
    async def method(self: AsyncCaller[C], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._transport.run(call(self._calls, *args, **kwargs))

    method.__signature__ = answered(call)  # type: ignore[attr-defined]
    return method


class AsyncPinned(AsyncCaller[PinnedCalls], OfState):
    """One state of a graph, to read. Every query and every export of it sees the same."""

    query = awaiting(PinnedCalls.query)
    explain = awaiting(PinnedCalls.explain)
    blob = awaiting(PinnedCalls.blob)

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
        refuse_engine(engine, None, None)
        export = Export(self._calls.asked, types, format)
        if path is None:
            return await self._transport.stream(export.lines())
        return await self._transport.run(export.file(self._calls.graph, path))

    def __repr__(self) -> str:
        return f"<AsyncPinned {self.commit.commit_id}>"


class AsyncGraph(AsyncCaller[Calls]):
    """A graph behind a server, for one event loop; an asynchronous context manager.

    It has the methods of a graph in storage, with the same results and errors; each is awaited, also the properties
    `schema` and `catalog`. Who makes a change is who the token stands for, whatever `actor` says.
    """

    read_only = False

    def __init__(self, address: Address) -> None:
        super().__init__(Awaiting(address), Calls())
        self.uri = address.url

    commits = awaiting(Calls.commits)
    commit = awaiting(Calls.commit)
    snapshot = awaiting(Calls.snapshot)
    query = awaiting(Calls.query)
    explain = awaiting(Calls.explain)
    mutate = awaiting(Calls.mutate)
    load = awaiting(Calls.load)
    plan_schema = awaiting(Calls.plan_schema)
    apply_schema = awaiting(Calls.apply_schema)
    outcome = awaiting(Calls.outcome)
    branches = awaiting(Calls.branches)
    create_branch = awaiting(Calls.create_branch)
    delete_branch = awaiting(Calls.delete_branch)
    merge = awaiting(Calls.merge)
    revert = awaiting(Calls.revert)
    tags = awaiting(Calls.tags)
    create_tag = awaiting(Calls.create_tag)
    delete_tag = awaiting(Calls.delete_tag)
    changes = awaiting(Calls.changes)
    change_cursor = awaiting(Calls.change_cursor)
    baseline = awaiting(Calls.baseline)
    log = awaiting(Calls.log)
    commit_changes = awaiting(Calls.commit_changes)
    embed = awaiting(Calls.embed)
    ensure_indices = awaiting(Calls.ensure_indices)
    optimize = awaiting(Calls.optimize)
    cleanup = awaiting(Calls.cleanup)
    repair = awaiting(Calls.repair)
    doctor = awaiting(Calls.doctor)

    @property
    def schema(self) -> Coroutine[Any, Any, str]:
        """The accepted schema, as it was written."""
        return self._transport.run(self._calls.schema())

    @property
    def catalog(self) -> Coroutine[Any, Any, Catalog]:
        return self._transport.run(self._calls.catalog())

    async def at(self, ref: str) -> AsyncPinned:
        """A view of one state, to read: a branch as it is now, a tag or a commit. It stays what it is."""
        state = await self._transport.run(self._calls.at(ref))
        return AsyncPinned(self._transport, PinnedCalls(self._calls, state))

    async def diff(
        self,
        a: str,
        b: str,
        *,
        kinds: Collection[str] | None = None,
        types: Collection[str] | None = None,
        operations: Collection[str] | None = None,
    ) -> AsyncDiff:
        """Tell what turns one state into another: entities inserted, updated and deleted, for `async for`."""
        asked = Differing(a, b, kinds, types, operations)
        return AsyncDiff(self._transport, await self._transport.run(asked.found()))

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
        refuse_engine(engine, master, conf)
        export = Export(Asked(branch, snapshot), types, format)
        if path is None:
            return await self._transport.stream(export.lines())
        with finishing(progress):
            return await self._transport.run(export.file(self._calls, path))

    @asynccontextmanager
    async def branch(
        self, name: str, *, base: str = MAIN, merge_into: str | None = None, actor: str | None = None
    ) -> AsyncIterator[Any]:
        """Work on a branch, which is made if it is not there; on a clean exit it is merged and deleted.

        If the body raises, the branch stays as it is, to be looked at; so it does without `merge_into`.
        """
        name = name.strip()
        await self._transport.run(self._calls.ensure_branch(name, base))
        yield BranchView(cast("Any", self), name, actor)
        if merge_into is not None:
            await self._transport.run(self._calls.merge_and_delete(name, merge_into))

    async def refresh(self) -> None:
        """Nothing is kept here that could be out of date."""

    async def close(self) -> None:
        """Let the connections go."""
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<AsyncGraph {self.uri}>"
