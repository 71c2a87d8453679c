"""All calls of a graph that is served, and those of one state of it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from omnigraph.api.documents import commit_of
from omnigraph.api.results import Commit
from omnigraph.api.rows import Blob, Cell, Explanation, Result
from omnigraph.client.asking import options, segment
from omnigraph.client.changing import ChangeCalls
from omnigraph.client.reading import Asked
from omnigraph.client.steps import Request, Steps
from omnigraph.client.upkeep import UpkeepCalls
from omnigraph.lang.catalog import Catalog
from omnigraph.lang.schema_check import compile_schema
from omnigraph.lang.source import Source


@dataclass(frozen=True, slots=True)
class State:
    """One state of a graph: of which branch, the commit that made it, and its types."""

    branch: str
    commit: Commit
    schema: str
    catalog: Catalog


class Calls(ChangeCalls, UpkeepCalls):
    """What can be asked of a graph that is served."""

    def at(self, ref: str) -> Steps[State]:
        """A view of one state, to read: a branch as it is now, a tag or a commit. It stays what it is."""
        document = (yield Request("GET", f"/states/{segment(ref)}")).document
        schema = document["schema_source"]
        return State(document["branch"], commit_of(document["commit"]), schema, compile_schema(Source(schema)))


@dataclass(frozen=True, slots=True)
class Part:
    """Some bytes of a Blob, how long all of it is, and its tag."""

    content: bytes
    size: int
    etag: str


PART = 2**20  # what is fetched of a Blob with the first look at it


@dataclass(frozen=True, slots=True)
class PinnedCalls:
    """What can be asked of one state."""

    graph: Calls
    state: State

    @property
    def asked(self) -> Asked:
        return Asked(self.state.branch, self.state.commit.commit_id)

    def query(
        self, source: str | os.PathLike[str], params: Mapping[str, Any] | None = None, *, name: str | None = None
    ) -> Steps[Result]:
        """Run a query that reads."""
        asked = self.asked
        return self.graph.query(source, params, name=name, branch=asked.branch, snapshot=asked.snapshot)

    def explain(
        self, source: str | os.PathLike[str], params: Mapping[str, Any] | None = None, *, name: str | None = None
    ) -> Steps[Explanation]:
        """Run a query and tell how it was done."""
        asked = self.asked
        return self.graph.explain(source, params, name=name, branch=asked.branch, snapshot=asked.snapshot)

    def blob(self, type_name: str, id: str, property: str, *, kind: str = "node") -> Steps[Blob]:  # noqa: A002 - as in documents
        """The content of a Blob property of an entity: its `size`, its `etag`, and `read(start, end)`."""
        cell = Cell(type_name, id, property, kind)
        part = yield from self.part(cell, 0, PART)
        rest = (yield from self.part(cell, PART, part.size)).content if part.size > PART else b""
        content = part.content + rest
        return Blob(part.size, part.etag, lambda start, end: content[start:end])

    def part(self, cell: Cell, start: int, end: int) -> Steps[Part]:
        """Some bytes of a Blob; fewer if it ends before."""
        commit = self.state.commit.commit_id
        names = options(entity=cell.kind, type=cell.type_name, id=cell.id, property=cell.property, snapshot=commit)
        answer = yield Request("GET", "/blob", names, headers={"Range": f"bytes={start}-{end - 1}"})
        size = answer.header("content-range").rpartition("/")[2]
        return Part(answer.content, int(size or len(answer.content)), answer.header("etag").strip('"'))


class OfState:
    """What is known of a state without asking."""

    _calls: PinnedCalls

    @property
    def branch(self) -> str:
        """The branch that this was a state of."""
        return self._calls.state.branch

    @property
    def commit(self) -> Commit:
        """The commit that made this state."""
        return self._calls.state.commit

    @property
    def schema(self) -> str:
        return self._calls.state.schema

    @property
    def catalog(self) -> Catalog:
        return self._calls.state.catalog
