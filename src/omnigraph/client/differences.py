"""A difference between two states of a graph that is served: read when it is asked for, and only in parts."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from omnigraph.api.changes import Change, ChangeOperation, DiffStats, SchemaDifference
from omnigraph.api.documents import DiffHead, Show, from_document
from omnigraph.api.operation import NDJSON
from omnigraph.api.operations import DiffStates
from omnigraph.api.results import Commit
from omnigraph.client.requests import Request, Steps, Stream, options
from omnigraph.client.transport import Awaiting, Blocking
from omnigraph.core.refs import parse_range

if TYPE_CHECKING:
    import pyarrow as pa


Found = tuple[DiffStates, DiffHead]


def find_states(asked: DiffStates) -> Steps[Found]:
    """Find the two states. From then on the difference is between their commits."""
    answer = yield _request(asked, Show.HEAD)
    head = from_document(DiffHead, answer.document)
    # Commits and no longer branches, so that `stats`, `rows` and a second iteration are about the same two states.
    return replace(asked, a=head.before.commit_id, b=head.after.commit_id), head


def _request(asked: DiffStates, show: Show) -> Request:
    sides = parse_range(asked.a, "...") if asked.b is None else None
    before, after = sides or (asked.a, asked.b)
    fork = "true" if sides else None
    query = {"from": before, "to": after, "kind": asked.kinds, "type": asked.types, "op": asked.operations}
    return Request("GET", "/diff", options(**query, fork=fork, show=show), accept=NDJSON)


def _stats(asked: DiffStates) -> Steps[DiffStats]:
    answer = yield _request(asked, Show.STATS)
    return from_document(DiffStats, json.loads(answer.content.splitlines()[-1]))


def _rows(asked: DiffStates) -> Stream[RemoteRows]:
    return Stream(_request(asked, Show.CHANGES), _Rows().feed)


@dataclass(frozen=True, slots=True)
class At:
    """One side of a difference."""

    commit: Commit


@dataclass(slots=True)
class RemoteRows:
    """Some changes of one type."""

    key: str
    counts: Mapping[ChangeOperation, int]
    compared: bool
    _changes: list[Change] = field(default_factory=list)

    def changes(self) -> list[Change]:
        """The changes, in the order of their ids."""
        return self._changes


class _Rows:
    """Puts changes together that come line by line."""

    def __init__(self) -> None:
        self._open: RemoteRows | None = None

    def feed(self, line: str) -> Iterator[RemoteRows]:
        document: dict[str, Any] = json.loads(line)
        if "op" in document:
            assert self._open is not None, "a line before changes names their type"
            self._open.changes().append(from_document(Change, document))
            return
        # A part is complete when the next one begins: only then are its changes all here.
        if self._open is not None:
            yield self._open
        part = document.get("rows")
        self._open = None if part is None else _begun(part)


def _begun(part: Mapping[str, Any]) -> RemoteRows:
    counts = {ChangeOperation(name): count for name, count in part["counts"].items()}
    return RemoteRows(part["table_key"], counts, part["compared"])


class _Sides:
    """Between which commits a difference is, and how the types differ."""

    def __init__(self, found: Found) -> None:
        self._asked, head = found
        self.before, self.after = At(head.before), At(head.after)
        self.schema: SchemaDifference = head.schema


class RemoteDiff(_Sides):
    """What turns one state of a graph into another, as `Graph.diff` returns it."""

    def __init__(self, transport: Blocking, found: Found) -> None:
        super().__init__(found)
        self._transport = transport

    def __iter__(self) -> Iterator[Change]:
        for rows in self.rows():
            yield from rows.changes()

    def rows(self) -> Iterator[RemoteRows]:
        """The changes, some at a time and each time of one type."""
        return self._transport.stream(_rows(self._asked))

    def stats(self) -> DiffStats:
        """Count the changes."""
        return self._transport.run(_stats(self._asked))

    def to_arrow(self) -> pa.Table:
        """All changes as one table; the properties before and after are JSON texts."""
        from omnigraph.api.arrow import change_table  # noqa: PLC0415 - loads Arrow

        return change_table(rows.changes() for rows in self.rows())


class AsyncDiff(_Sides):
    """What turns one state of a graph into another, for `async for`."""

    def __init__(self, transport: Awaiting, found: Found) -> None:
        super().__init__(found)
        self._transport = transport

    async def __aiter__(self) -> AsyncIterator[Change]:
        async for rows in self.rows():
            for change in rows.changes():
                yield change

    async def rows(self) -> AsyncIterator[RemoteRows]:
        """The changes, some at a time and each time of one type."""
        async for rows in await self._transport.stream(_rows(self._asked)):
            yield rows

    async def stats(self) -> DiffStats:
        """Count the changes."""
        return await self._transport.run(_stats(self._asked))

    async def to_arrow(self) -> pa.Table:
        """All changes as one table; the properties before and after are JSON texts."""
        from omnigraph.api.arrow import change_table  # noqa: PLC0415 - loads Arrow

        return change_table([rows.changes() async for rows in self.rows()])
