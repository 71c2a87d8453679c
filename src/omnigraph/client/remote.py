"""A graph behind a server, with the methods of a graph in storage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, cast

from omnigraph.api.access import Caller
from omnigraph.api.operation import Operation
from omnigraph.api.operations import DiffStates, ExportLines, ReadSchema
from omnigraph.api.protocol import GraphAPI, StateView
from omnigraph.api.results import MutationResult
from omnigraph.api.rows import Blob, Cell, Result
from omnigraph.client import calls
from omnigraph.client.calls import export_lines
from omnigraph.client.differences import RemoteDiff, find_states
from omnigraph.client.requests import asking
from omnigraph.client.transport import Address, Blocking
from omnigraph.core.refs import MAIN
from omnigraph.lang.catalog import Catalog
from omnigraph.lang.schema_check import compile_schema
from omnigraph.lang.source import Source

_T = TypeVar("_T")


class RemoteGraph(GraphAPI):
    """A graph behind a server. Safe to share between threads; a context manager.

    It has the methods of a graph in storage, with the same results and errors. The actor of a change is the one of the
    token, whatever `actor` says. Nothing is sent twice: a change whose answer is lost raises OutcomeUnknownError.
    """

    read_only = False

    def __init__(self, address: Address) -> None:
        self._transport = Blocking(address)
        self._uri = address.url

    @property
    def uri(self) -> str:
        return self._uri

    @property
    def catalog(self) -> Catalog:
        return compile_schema(Source(self.call(ReadSchema())))

    def call(self, operation: Operation[_T], /) -> _T:
        """Ask the server to execute an operation, and wait for the result."""
        found: object
        match operation:
            case ExportLines():
                with asking(operation):
                    found = self._transport.stream(export_lines(operation))
            case DiffStates():
                found = RemoteDiff(self._transport, self._transport.run(find_states(operation)))
            case _:
                return self._transport.run(calls.steps_of(operation))
        return cast("_T", found)

    def at(self, ref: str) -> RemoteSnapshotView:
        """Return a view of one state, to read: a branch as it is now, a tag or a commit. The view never changes."""
        return RemoteSnapshotView(self, self._transport, self._transport.run(calls.state_at(ref)))

    def whoami(self) -> Caller:
        """Return who the server takes you for, and which actions it allows you."""
        return self._transport.run(calls.whoami())

    def stored_queries(self) -> list[calls.StoredQueryInfo]:
        """List the stored queries of the server, with their parameters."""
        return self._transport.run(calls.stored_queries())

    def invoke_query(
        self, name: str, params: Mapping[str, Any] | None = None, *, branch: str = MAIN, snapshot: str | None = None
    ) -> Result:
        """Run a stored query that reads."""
        return self._transport.run(calls.invoke_query(name, params, branch, snapshot))

    def invoke_mutation(
        self,
        name: str,
        params: Mapping[str, Any] | None = None,
        *,
        branch: str = MAIN,
        if_commit: str | None = None,
        message: str | None = None,
    ) -> MutationResult:
        """Run a stored query that changes the graph; with `if_commit` only if the branch is at that commit."""
        return self._transport.run(calls.invoke_mutation(name, params, branch, if_commit, message))

    def refresh(self) -> None:
        """Do nothing: a client keeps nothing that could be out of date."""

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    def __repr__(self) -> str:
        return f"<RemoteGraph {self.uri}>"


class RemoteSnapshotView(calls.StateProperties[GraphAPI, Blocking], StateView):
    """One state of a graph, to read. Every query and every export of it sees the same."""

    def blob(self, type_name: str, id: str, property: str, *, kind: str = "node") -> Blob:  # noqa: A002 - as in documents
        """Return the content of a Blob property of an entity: its `size`, its `etag`, and `read(start, end)`."""
        cell = Cell(type_name, id, property, kind)
        first = self._transport.run(self._state.part(cell, 0, calls.FIRST_PART))

        def read(start: int, end: int) -> bytes:
            # The first part came with the size. Most Blobs are smaller, and are read without another request.
            if end <= len(first.content):
                return first.content[start:end]
            return self._transport.run(self._state.part(cell, start, end)).content

        return Blob(first.size, first.etag, read)
