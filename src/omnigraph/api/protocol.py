"""GraphAPI: what every graph can do, in storage or behind a server. Front ends take this, not a class."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self, overload

from omnigraph.api.changes import Difference
from omnigraph.api.methods import GraphMethods, RequestMethods
from omnigraph.api.operations import DiffStates, ExportFiles, ExportLines, ReadSchema
from omnigraph.api.progress import SILENT, Progress
from omnigraph.api.results import Commit, ExportResult, LoadResult, MergeResult, MutationResult, Snapshot
from omnigraph.api.rows import Blob, Explanation, Result
from omnigraph.core.refs import MAIN
from omnigraph.errors import BranchInUseError
from omnigraph.lang.catalog import Catalog

_LOG = logging.getLogger(__name__)


class StateView(Protocol):
    """One state of a graph, to read. Every query and every export of it sees the same, whatever others write."""

    _graph: GraphAPI
    _where: Mapping[str, Any]  # the arguments that name this state to the graph

    @property
    def branch(self) -> str:
        """The branch that this was a state of."""
        ...

    @property
    def commit(self) -> Commit | None:
        """The commit that made this state."""
        ...

    @property
    def schema(self) -> str: ...
    @property
    def catalog(self) -> Catalog: ...

    def query(
        self,
        source: str | os.PathLike[str],
        params: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
        timeout: float | None = None,
    ) -> Result:
        """Run a read query, for so many seconds at most."""
        return self._graph.query(source, params, name=name, timeout=timeout, **self._where)

    def explain(
        self,
        source: str | os.PathLike[str],
        params: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
        timeout: float | None = None,
    ) -> Explanation:
        """Run a read query, and return how it was executed."""
        return self._graph.explain(source, params, name=name, timeout=timeout, **self._where)

    def blob(self, type_name: str, id: str, property: str, *, kind: str = "node") -> Blob:  # noqa: A002 - as in documents
        """Return the content of a Blob property of an entity: its `size`, its `etag`, and `read(start, end)`."""
        ...

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
        # By way of the graph and not of the store, so that permissions are checked for views too.
        return self._graph.export(path, types=types, format=format, engine=engine, **self._where)


class GraphAPI(GraphMethods, Protocol):
    """A graph: the methods of its operations, and what is built from them. A context manager."""

    read_only: bool

    @property
    def uri(self) -> str: ...

    @property
    def schema(self) -> str:
        """The accepted schema, as it was written."""
        return self.call(ReadSchema())

    @property
    def catalog(self) -> Catalog: ...

    @property
    def requests(self) -> RequestMethods:
        """The merge requests: `open`, `list`, `get`, `approve`, `check`, `merge` and `close`."""
        return RequestMethods(self)

    def at(self, ref: str) -> StateView:
        """Return a view of one state, to read: a branch as it is now, a tag or a commit. The view never changes."""
        ...

    def diff(
        self,
        a: str,
        b: str | None = None,
        *,
        kinds: Collection[str] | None = None,
        types: Collection[str] | None = None,
        operations: Collection[str] | None = None,
    ) -> Difference:
        """Return what turns one state into another: entities inserted, updated and deleted.

        A state is a branch, a tag, a commit, or one of them with `~n` or `@version`. `a...b` alone is what b did since
        it parted from a. Changes are read when the answer is iterated; `kinds` are node and edge, `operations` insert,
        update and delete.
        """
        return self.call(DiffStates(a, b, kinds=kinds, types=types, operations=operations))

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

        Without a path they come as lines of JSON. A path that ends like its format is one file, any other a directory;
        a server exports files of JSON lines only.
        """
        if path is None:
            return self.call(ExportLines(branch=branch, snapshot=snapshot, types=types, format=format, engine=engine))
        where = {"branch": branch, "snapshot": snapshot, "types": types, "format": format, "engine": engine}
        return self.call(ExportFiles(path, **where, master=master, conf=conf, progress=progress))  # type: ignore[arg-type]

    @contextmanager
    def branch(
        self, name: str, *, base: str = MAIN, merge_into: str | None = None, actor: str | None = None
    ) -> Iterator[BranchView]:
        """Work on a branch, which is created if it does not exist; on a clean exit it is merged and deleted.

        If the body raises, the branch stays as it is, and can be looked at; so it does without `merge_into`.
        """
        # As every operation does with names, or the test below would miss an existing branch.
        name = name.strip()
        if name not in self.branches():
            self.create_branch(name, base)
        # No `finally`: if the body raises, the branch must stay for the caller to look at.
        yield BranchView(self, name, actor)
        if merge_into is not None:
            self.merge(name, merge_into, actor=actor)
            try:
                self.delete_branch(name)
            except BranchInUseError as error:  # other branches come from it: that must not look like a failed merge
                _LOG.warning("the branch was merged, but not deleted: %s", error.message)

    def refresh(self) -> None: ...
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class BranchView:
    """The calls of a graph, on one branch and by one actor."""

    graph: GraphAPI
    name: str
    actor: str | None = None

    def query(self, source: str | os.PathLike[str], params: Mapping[str, Any] | None = None, **more: Any) -> Result:
        return self.graph.query(source, params, branch=self.name, **more)

    def mutate(
        self, source: str | os.PathLike[str], params: Mapping[str, Any] | None = None, **more: Any
    ) -> MutationResult:
        # The actor is a default: a caller that names another one wins.
        return self.graph.mutate(source, params, branch=self.name, **{"actor": self.actor, **more})

    def load(self, data: Any, *, mode: str, **more: Any) -> LoadResult:
        return self.graph.load(data, mode=mode, branch=self.name, **{"actor": self.actor, **more})

    def snapshot(self) -> Snapshot:
        return self.graph.snapshot(self.name)

    def commits(self) -> list[Commit]:
        return self.graph.commits(self.name)

    def merge(self, source: str, **more: Any) -> MergeResult:
        """Merge another branch into this one."""
        return self.graph.merge(source, into=self.name, **{"actor": self.actor, **more})
