"""GraphAPI: what every graph can do, in storage or behind a server. Front ends take this, not a class."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Any, Protocol, Self, Unpack, overload

from omnigraph.api.changes import Baseline, ChangeOptions, ChangePage, Difference
from omnigraph.api.maintenance import CleanupResult, HealthReport, RepairResult, UpkeepResult
from omnigraph.api.options import EmbedMode, Resolve
from omnigraph.api.progress import SILENT, Progress
from omnigraph.api.results import (
    Commit,
    EmbedResult,
    ExportResult,
    LoadResult,
    LogEntry,
    MergeResult,
    MutationResult,
    SchemaResult,
    Snapshot,
    Tag,
)
from omnigraph.api.rows import Blob, Explanation, Result
from omnigraph.core.refs import MAIN
from omnigraph.lang.catalog import Catalog


class StateView(Protocol):
    """One state of a graph, to read. It stays the same whatever others write."""

    @property
    def branch(self) -> str: ...
    @property
    def commit(self) -> Commit | None: ...
    @property
    def schema(self) -> str: ...
    @property
    def catalog(self) -> Catalog: ...

    def query(
        self, source: str | os.PathLike[str], params: Mapping[str, Any] | None = None, *, name: str | None = None
    ) -> Result: ...

    def explain(
        self, source: str | os.PathLike[str], params: Mapping[str, Any] | None = None, *, name: str | None = None
    ) -> Explanation: ...

    def blob(self, type_name: str, id: str, property: str, *, kind: str = "node") -> Blob: ...  # noqa: A002 - as in documents

    @overload
    def export(
        self, path: None = None, *, types: Sequence[str] | None = ..., format: str = ..., engine: str = ...
    ) -> Iterator[str]: ...

    @overload
    def export(
        self, path: str | os.PathLike[str], *, types: Sequence[str] | None = ..., format: str = ..., engine: str = ...
    ) -> ExportResult: ...


class GraphAPI(Protocol):
    """The calls of a graph."""

    read_only: bool

    @property
    def uri(self) -> str: ...
    @property
    def schema(self) -> str: ...
    @property
    def catalog(self) -> Catalog: ...

    def branch(
        self, name: str, *, base: str = MAIN, merge_into: str | None = None, actor: str | None = None
    ) -> AbstractContextManager[BranchView]: ...
    def refresh(self) -> None: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def commits(self, branch: str = MAIN, actor: str | None = None) -> list[Commit]:
        """List the commits of a branch, newest first, optionally those of one actor."""

    def commit(self, commit_id: str) -> Commit:
        """Find a commit on whichever branch has it."""

    def snapshot(self, branch: str = MAIN) -> Snapshot:
        """Capture which version of each table the graph consists of now."""

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

    def at(self, ref: str) -> StateView:
        """A view of one state, to read: a branch as it is now, a tag or a commit. It stays what it is."""

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

    def load(
        self,
        data: Any,
        *,
        mode: str,
        branch: str = MAIN,
        base: str | None = None,
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

        `mode` is append, merge or overwrite. If the branch is not there, it is made of `base`, another branch. `engine`
        is local, spark, or auto: then small data is loaded in this process and large data on Spark, which `master` and
        `conf` are for. `dry_run` only checks.
        """

    def embed(
        self,
        types: Sequence[str] | None = None,
        *,
        mode: str = EmbedMode.FILL_MISSING,
        branch: str = MAIN,
        actor: str | None = None,
        progress: Progress = SILENT,
    ) -> EmbedResult:
        """Make the vectors that `@embed` properties lack, of their texts; with the mode `reembed_all` all of them.

        Each batch is a commit. If one fails, those before it stay, and the next call does the rest.
        """

    def plan_schema(self, schema: str | os.PathLike[str], *, allow_data_loss: bool = False) -> SchemaResult:
        """Tell which steps lead to a schema, whether each is supported, and how many entities they touch."""

    def apply_schema(
        self, schema: str | os.PathLike[str], *, allow_data_loss: bool = False, actor: str | None = None
    ) -> SchemaResult:
        """Change the schema in one commit; no data is rewritten. Reads at earlier commits go by the schema of then.

        What is dropped stays readable at earlier commits until a cleanup, unless `allow_data_loss` gives it up at once.
        """

    def outcome(self, operation_id: str, branch: str = MAIN) -> Commit | None:
        """Tell what became of an operation whose outcome was unknown: its commit, or None if it changed nothing."""

    def branches(self) -> list[str]:
        """List the branches, main first."""

    def create_branch(self, name: str, base: str = MAIN) -> None:
        """Make a branch that begins as its base is: another branch, a tag or a commit. No data is copied."""

    def delete_branch(self, name: str) -> None:
        """Delete a branch and what only it has."""

    def merge(
        self,
        source: str,
        into: str = MAIN,
        *,
        actor: str | None = None,
        dry_run: bool = False,
        resolve: Resolve | None = None,
        engine: str = "auto",
        master: str | None = None,
        conf: Mapping[str, str] | None = None,
        progress: Progress = SILENT,
    ) -> MergeResult:
        """Bring onto a branch what another has: one commit with two parents, or MergeConflictError with all conflicts.

        `resolve` says who wins where both changed the same: `ours` (the branch that is merged into), `theirs`, one of
        them for each type, or a list of conflicts each with the side to `take`. `dry_run` only tells what would be. A
        merge of very many entities runs on Spark, unless `engine` says otherwise.
        """

    def revert(
        self,
        commit_id: str,
        branch: str = MAIN,
        *,
        actor: str | None = None,
        resolve: Resolve | None = None,
    ) -> MergeResult:
        """Undo what one commit changed, by a new commit. What was changed again since then is a conflict."""

    def tags(self) -> list[Tag]:
        """List the tags by name, each with its commit."""

    def create_tag(self, name: str, ref: str = MAIN) -> Tag:
        """Give the commit that a branch is at, or a commit by its id, a name that stays."""

    def delete_tag(self, name: str) -> None:
        """Take a name away; the commit stays."""

    def diff(
        self,
        a: str,
        b: str,
        *,
        kinds: Collection[str] | None = None,
        types: Collection[str] | None = None,
        operations: Collection[str] | None = None,
    ) -> Difference:
        """Tell what turns one state into another: entities inserted, updated and deleted.

        A state is a branch, a commit, or a branch at a commit or version: `main`, an id, `main@12`. Changes are read
        when the answer is iterated; `kinds` are node and edge, `operations` insert, update and delete.
        """

    def changes(self, branch: str = MAIN, *, after: str | None = None, **request: Unpack[ChangeOptions]) -> ChangePage:
        """Tell what the commits of a branch changed, each with respect to its first parent, page by page.

        `start` is now, beginning or after:<commit>, which `after` is short for; `cursor` and `page_token` go on where
        an earlier page ended. What was told once may be told again, never left out.
        """

    def change_cursor(self, after: str, branch: str = MAIN) -> str:
        """The cursor of all changes behind a commit: with it `changes` goes on from an export at that commit."""

    def baseline(self, branch: str = MAIN, **request: Unpack[ChangeOptions]) -> Baseline:
        """Where to begin to follow a branch: export the tables that it names at its commit, then go on with its cursor.

        `kinds` and `types` choose tables; with the cursor `changes` takes the same `kinds`, `types` and `operations`.
        """

    def log(self, branches: Sequence[str] | None = None) -> list[LogEntry]:
        """List the commits of some branches, or of all, newest first, with the branches and tags that are at them."""

    def commit_changes(self, commit_id: str, **request: Unpack[ChangeOptions]) -> ChangePage:
        """Tell what one commit changed with respect to its first parent."""

    def ensure_indices(
        self,
        branch: str = MAIN,
        *,
        actor: str | None = None,
        engine: str = "auto",
        master: str | None = None,
        conf: Mapping[str, str] | None = None,
        progress: Progress = SILENT,
    ) -> UpkeepResult:
        """Build the indices that the schema asks for over all rows, in one commit. No answer depends on them."""

    def optimize(
        self,
        branch: str = MAIN,
        *,
        actor: str | None = None,
        engine: str = "auto",
        master: str | None = None,
        conf: Mapping[str, str] | None = None,
        progress: Progress = SILENT,
    ) -> UpkeepResult:
        """Make many small fragments few large ones and let indices cover them, in one commit; rows stay as they are."""

    def cleanup(
        self,
        keep: int | None = None,
        older_than: timedelta | None = None,
        *,
        confirm: bool = False,
        orphan_age: timedelta = ...,
        progress: Progress = SILENT,
    ) -> CleanupResult:
        """Remove what only old commits need: those that are neither among the last `keep` nor younger than that.

        Without `confirm` nothing is removed, and the result tells what would be. Branches and tags are kept as they
        are. Files that nothing refers to go when they are older than `orphan_age`.
        """

    def repair(self, *, confirm: bool = False, force: bool = False) -> RepairResult:
        """Look at tables that something else has moved; confirmed, keep what is proven to have changed no rows.

        With `force` as well, whatever is there is kept.
        """

    def doctor(self) -> HealthReport:
        """Report the health of the graph: what stands in the way, what could be better, and what to run."""


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
        return self.graph.mutate(source, params, branch=self.name, **{"actor": self.actor, **more})

    def load(self, data: Any, *, mode: str, **more: Any) -> LoadResult:
        return self.graph.load(data, mode=mode, branch=self.name, **{"actor": self.actor, **more})

    def snapshot(self) -> Snapshot:
        return self.graph.snapshot(self.name)

    def commits(self) -> list[Commit]:
        return self.graph.commits(self.name)

    def merge(self, source: str, **more: Any) -> MergeResult:
        """Bring onto this branch what another one has."""
        return self.graph.merge(source, into=self.name, **{"actor": self.actor, **more})
