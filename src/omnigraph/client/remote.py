"""A graph behind a server, with the methods of a graph in storage."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, cast, overload

from omnigraph.api.progress import SILENT, Progress, finishing
from omnigraph.api.protocol import BranchView
from omnigraph.api.results import ExportResult
from omnigraph.api.rows import Blob, Cell
from omnigraph.client.asking import refuse_engine
from omnigraph.client.calls import PART, Calls, OfState, PinnedCalls
from omnigraph.client.differences import Differing, RemoteDiff
from omnigraph.client.exporting import Export
from omnigraph.client.reading import Asked
from omnigraph.client.steps import Steps, answered
from omnigraph.client.transport import Address, Blocking
from omnigraph.core.refs import MAIN
from omnigraph.lang.catalog import Catalog

P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C")
C_co = TypeVar("C_co", covariant=True)


class Caller(Generic[C_co]):
    """Who makes calls, and over what."""

    def __init__(self, transport: Blocking, calls: C_co) -> None:
        self._transport = transport
        self._calls = calls


def waiting(call: Callable[Concatenate[C, P], Steps[T]]) -> Callable[Concatenate[Caller[C], P], T]:
    """Make a method of a call: it returns when the answer is there."""

    @functools.wraps(call)
    def method(self: Caller[C], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._transport.run(call(self._calls, *args, **kwargs))

    method.__signature__ = answered(call)  # type: ignore[attr-defined]
    return method


class RemotePinned(Caller[PinnedCalls], OfState):
    """One state of a graph, to read. Every query and every export of it sees the same."""

    query = waiting(PinnedCalls.query)
    explain = waiting(PinnedCalls.explain)

    def blob(self, type_name: str, id: str, property: str, *, kind: str = "node") -> Blob:  # noqa: A002 - as in documents
        """The content of a Blob property of an entity: its `size`, its `etag`, and `read(start, end)`."""
        cell = Cell(type_name, id, property, kind)
        first = self._transport.run(self._calls.part(cell, 0, PART))

        def read(start: int, end: int) -> bytes:
            if end <= len(first.content):
                return first.content[start:end]
            return self._transport.run(self._calls.part(cell, start, end)).content

        return Blob(first.size, first.etag, read)

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
        refuse_engine(engine, None, None)
        export = Export(self._calls.asked, types, format)
        if path is None:
            return self._transport.stream(export.lines())
        return self._transport.run(export.file(self._calls.graph, path))

    def __repr__(self) -> str:
        return f"<RemotePinned {self.commit.commit_id}>"


class RemoteGraph(Caller[Calls]):
    """A graph behind a server. Safe to share between threads; a context manager.

    It has the methods of a graph in storage, with the same results and errors. Who makes a change is who the token
    stands for, whatever `actor` says. Nothing is sent again by itself: a change whose answer is lost raises
    OutcomeUnknownError.
    """

    read_only = False

    def __init__(self, address: Address) -> None:
        super().__init__(Blocking(address), Calls())
        self.uri = address.url

    commits = waiting(Calls.commits)
    commit = waiting(Calls.commit)
    snapshot = waiting(Calls.snapshot)
    query = waiting(Calls.query)
    explain = waiting(Calls.explain)
    mutate = waiting(Calls.mutate)
    load = waiting(Calls.load)
    plan_schema = waiting(Calls.plan_schema)
    apply_schema = waiting(Calls.apply_schema)
    outcome = waiting(Calls.outcome)
    branches = waiting(Calls.branches)
    create_branch = waiting(Calls.create_branch)
    delete_branch = waiting(Calls.delete_branch)
    merge = waiting(Calls.merge)
    revert = waiting(Calls.revert)
    tags = waiting(Calls.tags)
    create_tag = waiting(Calls.create_tag)
    delete_tag = waiting(Calls.delete_tag)
    changes = waiting(Calls.changes)
    change_cursor = waiting(Calls.change_cursor)
    baseline = waiting(Calls.baseline)
    log = waiting(Calls.log)
    commit_changes = waiting(Calls.commit_changes)
    embed = waiting(Calls.embed)
    ensure_indices = waiting(Calls.ensure_indices)
    optimize = waiting(Calls.optimize)
    cleanup = waiting(Calls.cleanup)
    repair = waiting(Calls.repair)
    doctor = waiting(Calls.doctor)

    @property
    def schema(self) -> str:
        """The accepted schema, as it was written."""
        return self._transport.run(self._calls.schema())

    @property
    def catalog(self) -> Catalog:
        return self._transport.run(self._calls.catalog())

    def at(self, ref: str) -> RemotePinned:
        """A view of one state, to read: a branch as it is now, a tag or a commit. It stays what it is."""
        state = self._transport.run(self._calls.at(ref))
        return RemotePinned(self._transport, PinnedCalls(self._calls, state))

    def diff(
        self,
        a: str,
        b: str,
        *,
        kinds: Collection[str] | None = None,
        types: Collection[str] | None = None,
        operations: Collection[str] | None = None,
    ) -> RemoteDiff:
        """Tell what turns one state into another: entities inserted, updated and deleted.

        A state is a branch, a commit, or a branch at a commit or version: `main`, an id, `main@12`. Changes are read
        when the answer is iterated; `kinds` are node and edge, `operations` insert, update and delete.
        """
        asked = Differing(a, b, kinds, types, operations)
        return RemoteDiff(self._transport, self._transport.run(asked.found()))

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

        Without a path they come as lines of JSON. A path is that of a file on this side, and ends in .jsonl.
        """
        refuse_engine(engine, master, conf)
        export = Export(Asked(branch, snapshot), types, format)
        if path is None:
            return self._transport.stream(export.lines())
        with finishing(progress):
            return self._transport.run(export.file(self._calls, path))

    @contextmanager
    def branch(
        self, name: str, *, base: str = MAIN, merge_into: str | None = None, actor: str | None = None
    ) -> Iterator[BranchView]:
        """Work on a branch, which is made if it is not there; on a clean exit it is merged and deleted.

        If the body raises, the branch stays as it is, to be looked at; so it does without `merge_into`.
        """
        name = name.strip()
        self._transport.run(self._calls.ensure_branch(name, base))
        yield BranchView(cast("Any", self), name, actor)
        if merge_into is not None:
            self._transport.run(self._calls.merge_and_delete(name, merge_into))

    def refresh(self) -> None:
        """Nothing is kept here that could be out of date."""

    def close(self) -> None:
        """Let the connections go."""
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<RemoteGraph {self.uri}>"
