"""The methods of a graph. Generated from `operations.py` by `scripts/generate_methods.py`: change those."""

from __future__ import annotations

import functools
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from datetime import timedelta
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from omnigraph.api import operations as op
from omnigraph.api.changes import DEFAULT_BYTES, DEFAULT_COMMITS, DEFAULT_LIMIT, Baseline, ChangePage, EntityVersion
from omnigraph.api.maintenance import (
    ORPHAN_AGE,
    BackupResult,
    CleanupResult,
    HealthReport,
    Relocation,
    RepairResult,
    UpkeepReport,
    UpkeepResult,
    VerifyResult,
)
from omnigraph.api.operation import OPERATIONS, Operation
from omnigraph.api.options import EmbedMode, Resolve
from omnigraph.api.progress import SILENT, Progress
from omnigraph.api.results import (
    Commit,
    EmbedResult,
    LoadResult,
    LogEntry,
    MergeResult,
    MutationResult,
    ResolveResult,
    SchemaResult,
    Snapshot,
    Tag,
)
from omnigraph.api.reviews import Review, RuleOfBranch
from omnigraph.api.rows import Explanation, Result
from omnigraph.core.refs import MAIN

_T = TypeVar("_T")
_P = ParamSpec("_P")


class GraphMethods(Protocol):
    """The operations of a graph as methods. Each makes a value of its operation, and calls it."""

    def call(self, operation: Operation[_T], /) -> _T:
        """Execute an operation."""
        ...

    def snapshot(self, branch: str = MAIN) -> Snapshot:
        """Return which version of each table a branch consists of."""
        return self.call(op.ReadSnapshot(branch))

    def commits(self, branch: str = MAIN, actor: str | None = None) -> list[Commit]:
        """List the commits of a branch, newest first; with `actor` only those of one actor."""
        return self.call(op.ListCommits(branch, actor))

    def commit(self, commit_id: str) -> Commit:
        """Find a commit on any branch."""
        return self.call(op.FindCommit(commit_id))

    def query(
        self,
        source: str | os.PathLike[str],
        params: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
        branch: str = MAIN,
        snapshot: str | None = None,
        timeout: float | None = None,
        branches: Sequence[str] | None = None,
    ) -> Result:
        """Run a read query. It sees one state of the graph: the branch as it is, or as it was at a commit.

        With `branches` it is run on each of them, and the rows of all have the name of their branch in the column
        `branch`.
        """
        return self.call(
            op.RunQuery(source, params, name=name, branch=branch, snapshot=snapshot, timeout=timeout, branches=branches)
        )

    def explain(
        self,
        source: str | os.PathLike[str],
        params: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
        branch: str = MAIN,
        snapshot: str | None = None,
        timeout: float | None = None,
    ) -> Explanation:
        """Run a read query, and return how it was executed: its steps, their rows and what they cost."""
        return self.call(op.ExplainQuery(source, params, name=name, branch=branch, snapshot=snapshot, timeout=timeout))

    def mutate(
        self,
        source: str | os.PathLike[str],
        params: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
        branch: str = MAIN,
        actor: str | None = None,
        message: str | None = None,
        if_commit: str | None = None,
    ) -> MutationResult:
        """Run a query that inserts, updates or deletes: all of it in one commit, or nothing.

        `source` is the text of `.gq` queries or the path of a file; `name` chooses one of several. With `if_commit` the
        mutation happens only if the branch is at that commit. When it returns, the change is durable and visible; when
        it raises, nothing was changed, except for OutcomeUnknownError: then ask `outcome`.
        """
        return self.call(
            op.Mutate(source, params, name=name, branch=branch, actor=actor, message=message, if_commit=if_commit)
        )

    def load(
        self,
        data: Any,
        *,
        mode: str,
        branch: str = MAIN,
        base: str | None = None,
        actor: str | None = None,
        message: str | None = None,
        engine: str = "auto",
        format: str | None = None,
        mapping: str | os.PathLike[str] | Mapping[str, Any] | None = None,
        csv: Mapping[str, Any] | None = None,
        dry_run: bool = False,
        rejects: str | os.PathLike[str] | None = None,
        max_bad: int | None = None,
        dedupe: str | None = None,
        master: str | None = None,
        conf: Mapping[str, str] | None = None,
        progress: Progress = SILENT,
    ) -> LoadResult:
        """Load data in one commit, or nothing: files, records, Arrow tables or Spark DataFrames by type.

        `mode` is append, merge or overwrite. A branch that does not exist is created from `base`, another branch.
        `engine` is local, spark, or auto: then small data is loaded in this process and large data on Spark, which
        `master` and `conf` configure. `csv` says how CSV files are written, such as {"delimiter": ";"}. `dry_run` only
        checks. All problems are written to the file `rejects`, as JSON lines. With `max_bad`, up to so many bad records
        are left out, and the others are loaded. `dedupe="ends"` has a merge replace edges that have no id by those with
        the same ends. A client sends files to the server; `s3://` addresses the server reads itself, if its load roots
        allow it.
        """
        return self.call(
            op.LoadData(
                data,
                mode=mode,
                branch=branch,
                base=base,
                actor=actor,
                message=message,
                engine=engine,
                format=format,
                mapping=mapping,
                csv=csv,
                dry_run=dry_run,
                rejects=rejects,
                max_bad=max_bad,
                dedupe=dedupe,
                master=master,
                conf=conf,
                progress=progress,
            )
        )

    def embed(
        self,
        types: Sequence[str] | None = None,
        *,
        mode: str = EmbedMode.FILL_MISSING,
        branch: str = MAIN,
        actor: str | None = None,
        message: str | None = None,
        progress: Progress = SILENT,
    ) -> EmbedResult:
        """Fill the vectors that `@embed` properties lack, from their texts; with the mode `reembed_all` all of them.

        Each batch is a commit. If one fails, those before it stay, and the next call does the rest.
        """
        return self.call(
            op.EmbedTexts(types, mode=mode, branch=branch, actor=actor, message=message, progress=progress)
        )

    def plan_schema(
        self, schema: str | os.PathLike[str], *, allow_data_loss: bool = False, branch: str = MAIN
    ) -> SchemaResult:
        """Return the steps that lead to a schema, whether each is supported, and how many entities they touch."""
        return self.call(op.PlanSchema(schema, allow_data_loss=allow_data_loss, branch=branch))

    def apply_schema(
        self,
        schema: str | os.PathLike[str],
        *,
        allow_data_loss: bool = False,
        branch: str = MAIN,
        actor: str | None = None,
        message: str | None = None,
    ) -> SchemaResult:
        """Change the schema in one commit, without rewriting data. Earlier commits keep the schema of their time.

        Dropped data stays readable at earlier commits until a cleanup, unless `allow_data_loss` gives it up at once.
        """
        return self.call(
            op.ApplySchema(schema, allow_data_loss=allow_data_loss, branch=branch, actor=actor, message=message)
        )

    def outcome(self, operation_id: str, branch: str = MAIN) -> Commit | None:
        """Return what an operation with an unknown outcome did: its commit, or None if it changed nothing."""
        return self.call(op.FindOutcome(operation_id, branch))

    def branches(self) -> list[str]:
        """List the branches, main first."""
        return self.call(op.ListBranches())

    def create_branch(self, name: str, base: str = MAIN) -> None:
        """Create a branch from another branch, a tag or a commit. No data is copied."""
        self.call(op.CreateBranch(name, base))

    def delete_branch(self, name: str) -> None:
        """Delete a branch, and what only it has."""
        self.call(op.DeleteBranch(name))

    def merge(
        self,
        source: str,
        into: str = MAIN,
        *,
        actor: str | None = None,
        message: str | None = None,
        dry_run: bool = False,
        resolve: Resolve | None = None,
        by: str = "property",
        engine: str = "auto",
        master: str | None = None,
        conf: Mapping[str, str] | None = None,
        progress: Progress = SILENT,
    ) -> MergeResult:
        """Merge a branch into another: one commit with two parents, or MergeConflictError with all conflicts.

        Changes of different properties of one entity are combined; `by="entity"` makes them a conflict. `resolve` says
        who wins where both changed the same: `ours` (the branch that is merged into), `theirs`, one of them for each
        type (`Person`) or property (`Person.age`), a list of conflicts each with what to `take`, or a file of them.
        `dry_run` only returns what would happen. A merge of very many entities runs on Spark, unless `engine` says
        otherwise.
        """
        return self.call(
            op.MergeBranch(
                source,
                into,
                actor=actor,
                message=message,
                dry_run=dry_run,
                resolve=resolve,
                by=by,
                engine=engine,
                master=master,
                conf=conf,
                progress=progress,
            )
        )

    def revert(
        self,
        commit_id: str,
        branch: str = MAIN,
        *,
        actor: str | None = None,
        message: str | None = None,
        resolve: Resolve | None = None,
    ) -> MergeResult:
        """Undo what one commit changed, by a new commit. A property that was changed again since then is a conflict."""
        return self.call(op.RevertCommit(commit_id, branch, actor=actor, message=message, resolve=resolve))

    def cherry_pick(
        self,
        commit_id: str,
        branch: str = MAIN,
        *,
        actor: str | None = None,
        message: str | None = None,
        resolve: Resolve | None = None,
    ) -> MergeResult:
        """Make the changes of one commit on another branch, by a new commit. What contradicts them is a conflict.

        Of a merge, that is all it brought in. What the branch has already makes no commit.
        """
        return self.call(op.PickCommit(commit_id, branch, actor=actor, message=message, resolve=resolve))

    def restore_entities(
        self,
        type_name: str,
        ids: Sequence[str] | None = None,
        *,
        ref: str,
        kind: str | None = None,
        branch: str = MAIN,
        actor: str | None = None,
        message: str | None = None,
    ) -> MergeResult:
        """Bring a type, or some of its entities, to what they were in another state, by a new commit.

        An entity that the state lacks is deleted. The rules of the schema are checked on the result: a node that edges
        refer to is not removed.
        """
        return self.call(
            op.RestoreEntities(type_name, ids, ref=ref, kind=kind, branch=branch, actor=actor, message=message)
        )

    def protect(
        self,
        branch: str,
        *,
        approvals: int = 1,
        self_approval: bool = False,
        lapse: str = "source_or_target",
        checks: Mapping[str, str] | Sequence[str] | None = None,
        bypass: Sequence[str] | None = None,
        actor: str | None = None,
    ) -> RuleOfBranch:
        """Protect a branch: from now on it takes merge requests only, with so many approvals and whose checks pass.

        An approval lapses when the source or the target moves; with `lapse="source"` only when the source does. Actors
        in `bypass` may write without a request. The rule is in the history of the branch, as a commit.
        """
        return self.call(
            op.ProtectBranch(
                branch,
                approvals=approvals,
                self_approval=self_approval,
                lapse=lapse,
                checks=checks,
                bypass=bypass,
                actor=actor,
            )
        )

    def unprotect(self, branch: str, *, actor: str | None = None) -> RuleOfBranch:
        """Lift the rule of a branch, in a commit."""
        return self.call(op.UnprotectBranch(branch, actor=actor))

    def rule(self, branch: str = MAIN) -> RuleOfBranch:
        """Return what a branch demands of writes."""
        return self.call(op.FindRule(branch))

    def resolve(
        self,
        type_name: str,
        *,
        key: Sequence[str] = (),
        words: str | None = None,
        vector: str | None = None,
        pairs: Sequence[Sequence[str]] | None = None,
        block: str | None = None,
        threshold: float = 0.8,
        branch: str = MAIN,
        actor: str | None = None,
        message: str | None = None,
        dry_run: bool = False,
    ) -> ResolveResult:
        """Find nodes of a type that are the same entity, and merge them: one is kept, with the edges of all.

        Candidates are nodes with equal values of `key`, with common `words` in a property, or near each other by a
        `vector`, whose score reaches the threshold; with `block` only nodes with an equal value there. `pairs` are
        known ones. `dry_run` returns them, and changes nothing.
        """
        return self.call(
            op.ResolveEntities(
                type_name,
                key=key,
                words=words,
                vector=vector,
                pairs=pairs,
                block=block,
                threshold=threshold,
                branch=branch,
                actor=actor,
                message=message,
                dry_run=dry_run,
            )
        )

    def tags(self) -> list[Tag]:
        """List the tags by name, each with its commit."""
        return self.call(op.ListTags())

    def create_tag(self, name: str, ref: str = MAIN) -> Tag:
        """Create an immutable name for a commit: by its id, or the one that a branch is at."""
        return self.call(op.CreateTag(name, ref))

    def delete_tag(self, name: str) -> None:
        """Delete a tag; its commit stays."""
        self.call(op.DeleteTag(name))

    def log(self, branches: Sequence[str] | None = None) -> list[LogEntry]:
        """List the commits of some branches, or of all, newest first, with the branches and tags that are at them."""
        return self.call(op.ReadLog(branches))

    def history_of(
        self, type_name: str, id: str, branch: str = MAIN, *, kind: str | None = None, limit: int = 100
    ) -> list[EntityVersion]:
        """List what happened to one entity, newest first: by which commit, and which properties changed.

        What a merge brought in is listed by the commits of its branch, as long as that can be read.
        """
        return self.call(op.ReadHistory(type_name, id, branch, kind=kind, limit=limit))

    def changes(
        self,
        branch: str = MAIN,
        *,
        after: str | None = None,
        start: str | None = None,
        cursor: str | None = None,
        page_token: str | None = None,
        kinds: Collection[str] | None = None,
        types: Collection[str] | None = None,
        operations: Collection[str] | None = None,
        limit: int = DEFAULT_LIMIT,
        max_bytes: int = DEFAULT_BYTES,
        max_commits: int = DEFAULT_COMMITS,
    ) -> ChangePage:
        """Return what the commits of a branch changed, each compared with its first parent, page by page.

        `start` is now, beginning or after:<commit>, for which `after` is short; `cursor` and `page_token` continue
        where an earlier page ended. A change can be returned twice, but is never left out.
        """
        return self.call(
            op.PollChanges(
                branch,
                after=after,
                start=start,
                cursor=cursor,
                page_token=page_token,
                kinds=kinds,
                types=types,
                operations=operations,
                limit=limit,
                max_bytes=max_bytes,
                max_commits=max_commits,
            )
        )

    def change_cursor(self, after: str, branch: str = MAIN) -> str:
        """Return the cursor of all changes after a commit, to continue from an export at that commit."""
        return self.call(op.FindChangeCursor(after, branch))

    def baseline(
        self,
        branch: str = MAIN,
        *,
        kinds: Collection[str] | None = None,
        types: Collection[str] | None = None,
        operations: Collection[str] | None = None,
    ) -> Baseline:
        """Return where to start following a branch: what to export at which commit, and the cursor to continue with.

        `kinds` and `types` choose tables; pass the same `kinds`, `types` and `operations` to `changes` with the cursor.
        """
        return self.call(op.FindBaseline(branch, kinds=kinds, types=types, operations=operations))

    def commit_changes(
        self,
        commit_id: str,
        *,
        page_token: str | None = None,
        kinds: Collection[str] | None = None,
        types: Collection[str] | None = None,
        operations: Collection[str] | None = None,
        limit: int = DEFAULT_LIMIT,
        max_bytes: int = DEFAULT_BYTES,
    ) -> ChangePage:
        """Return what one commit changed, compared with its first parent."""
        return self.call(
            op.ReadCommitChanges(
                commit_id,
                page_token=page_token,
                kinds=kinds,
                types=types,
                operations=operations,
                limit=limit,
                max_bytes=max_bytes,
            )
        )

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
        return self.call(
            op.EnsureIndices(branch, actor=actor, engine=engine, master=master, conf=conf, progress=progress)
        )

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
        """Compact small fragments into large ones and index them, in one commit; rows stay unchanged."""
        return self.call(op.Optimize(branch, actor=actor, engine=engine, master=master, conf=conf, progress=progress))

    def cleanup(
        self,
        keep: int | None = None,
        older_than: timedelta | None = None,
        *,
        confirm: bool = False,
        orphan_age: timedelta = ORPHAN_AGE,
        progress: Progress = SILENT,
    ) -> CleanupResult:
        """Remove what only old commits need: those not among the last `keep` and not younger than `older_than`.

        Without `confirm` nothing is removed, and the result says what would be. Branches and tags are kept as they are.
        Files that nothing refers to are removed when they are older than `orphan_age`.
        """
        return self.call(op.Cleanup(keep, older_than, confirm=confirm, orphan_age=orphan_age, progress=progress))

    def upkeep(
        self, keep: int | None = None, older_than: timedelta | None = None, *, progress: Progress = SILENT
    ) -> UpkeepReport:
        """Optimize the branches that need it, and with `keep` or `older_than` clean up what they let go.

        With nothing to do it changes nothing, so it can run as often as you like.
        """
        return self.call(op.RunUpkeep(keep, older_than, progress=progress))

    def repair(self, *, confirm: bool = False, force: bool = False) -> RepairResult:
        """Find tables that another program moved; with `confirm`, keep the moves that provably changed no rows.

        With `force` as well, all moves are kept.
        """
        return self.call(op.Repair(confirm=confirm, force=force))

    def relocate(self) -> Relocation:
        """Make every branch of a graph that was copied or moved refer to the files at its present address.

        Opening a graph read-write does the same when it is needed.
        """
        return self.call(op.Relocate())

    def backup(self, target: str | os.PathLike[str], *, progress: Progress = SILENT) -> BackupResult:
        """Copy all branches and tags with their history to a directory or bucket, while others write.

        A later backup to the same target copies only what is new.
        """
        return self.call(op.Backup(target, progress=progress))

    def verify(self, against: str | os.PathLike[str] | None = None, *, progress: Progress = SILENT) -> VerifyResult:
        """Check that every file that the graph refers to is there; with `against`, that it is as in that backup."""
        return self.call(op.Verify(against, progress=progress))

    def doctor(
        self,
        *,
        deep: bool = False,
        backup: str | os.PathLike[str] | None = None,
        engine: str = "auto",
        master: str | None = None,
        conf: Mapping[str, str] | None = None,
        progress: Progress = SILENT,
    ) -> HealthReport:
        """Report the health of the graph: what is broken, what could be better, and which command to run.

        Every file that branches, tags and later merges need is looked for. With `deep`, every row of them is read and
        compared with row counts, ids, the ends of edges and indices. With `backup`, the address of backups, every file
        that the latest one has is read and compared with its digest. Very many rows are read on Spark, unless `engine`
        says otherwise.
        """
        return self.call(
            op.Doctor(deep=deep, backup=backup, engine=engine, master=master, conf=conf, progress=progress)
        )


class RequestMethods:
    """The operations on merge requests: `graph.requests`."""

    def __init__(self, graph: GraphMethods) -> None:
        self._graph = graph

    def call(self, operation: Operation[_T], /) -> _T:
        return self._graph.call(operation)

    def open(
        self,
        source: str,
        into: str = MAIN,
        *,
        title: str,
        message: str | None = None,
        checks: Mapping[str, str] | Sequence[str] | None = None,
        actor: str | None = None,
    ) -> Review:
        """Ask for a merge of a branch into another. The checks must find no rows on the merged state."""
        return self.call(op.OpenRequest(source, into, title=title, message=message, checks=checks, actor=actor))

    def list(self, state: str | None = None) -> list[Review]:
        """List the merge requests, newest first: all, or those in a state, open, merged or closed."""
        return self.call(op.ListRequests(state))

    def get(self, request_id: str) -> Review:
        """Find a merge request, with the approvals and checks that count for its branches as they are now."""
        return self.call(op.FindRequest(request_id))

    def approve(self, request_id: str, *, actor: str | None = None) -> Review:
        """Approve the merge of both branches as they are now. The approval lapses when one of them moves."""
        return self.call(op.ApproveRequest(request_id, actor=actor))

    def check(self, request_id: str) -> Review:
        """Run the checks of a merge request, and those of the target, on what the merge would make now."""
        return self.call(op.CheckRequest(request_id))

    def merge(
        self,
        request_id: str,
        *,
        actor: str | None = None,
        message: str | None = None,
        resolve: Resolve | None = None,
        by: str = "property",
    ) -> MergeResult:
        """Merge a request in one commit. Its checks are run on the merged state before that is published.

        A protected target demands the approvals of its rule. What was decided is in the details of the commit.
        """
        return self.call(op.MergeRequested(request_id, actor=actor, message=message, resolve=resolve, by=by))

    def close(self, request_id: str, *, actor: str | None = None) -> Review:
        """Close a merge request without merging it."""
        return self.call(op.CloseRequest(request_id, actor=actor))


class _Calls(Protocol):
    async def call(self, operation: Operation[_T], /) -> _T: ...


def _asynchronous(
    kind: Callable[_P, Operation[_T]], owner: type
) -> Callable[Concatenate[Any, _P], Coroutine[Any, Any, _T]]:
    """Make the asynchronous method of an operation. Type checkers take its parameters from the operation."""

    async def method(self: _Calls, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return await self.call(kind(*args, **kwargs))

    # So that `help` shows the name, the signature and the text that the same synchronous method has.
    functools.update_wrapper(method, getattr(owner, OPERATIONS[kind].method.rpartition(".")[2]))  # type: ignore[index]
    return method


class AsyncGraphMethods(ABC):
    """The same methods, each to be awaited."""

    @abstractmethod
    async def call(self, operation: Operation[_T], /) -> _T:
        """Execute an operation."""

    snapshot = _asynchronous(op.ReadSnapshot, GraphMethods)
    commits = _asynchronous(op.ListCommits, GraphMethods)
    commit = _asynchronous(op.FindCommit, GraphMethods)
    query = _asynchronous(op.RunQuery, GraphMethods)
    explain = _asynchronous(op.ExplainQuery, GraphMethods)
    mutate = _asynchronous(op.Mutate, GraphMethods)
    load = _asynchronous(op.LoadData, GraphMethods)
    embed = _asynchronous(op.EmbedTexts, GraphMethods)
    plan_schema = _asynchronous(op.PlanSchema, GraphMethods)
    apply_schema = _asynchronous(op.ApplySchema, GraphMethods)
    outcome = _asynchronous(op.FindOutcome, GraphMethods)
    branches = _asynchronous(op.ListBranches, GraphMethods)
    create_branch = _asynchronous(op.CreateBranch, GraphMethods)
    delete_branch = _asynchronous(op.DeleteBranch, GraphMethods)
    merge = _asynchronous(op.MergeBranch, GraphMethods)
    revert = _asynchronous(op.RevertCommit, GraphMethods)
    cherry_pick = _asynchronous(op.PickCommit, GraphMethods)
    restore_entities = _asynchronous(op.RestoreEntities, GraphMethods)
    protect = _asynchronous(op.ProtectBranch, GraphMethods)
    unprotect = _asynchronous(op.UnprotectBranch, GraphMethods)
    rule = _asynchronous(op.FindRule, GraphMethods)
    resolve = _asynchronous(op.ResolveEntities, GraphMethods)
    tags = _asynchronous(op.ListTags, GraphMethods)
    create_tag = _asynchronous(op.CreateTag, GraphMethods)
    delete_tag = _asynchronous(op.DeleteTag, GraphMethods)
    log = _asynchronous(op.ReadLog, GraphMethods)
    history_of = _asynchronous(op.ReadHistory, GraphMethods)
    changes = _asynchronous(op.PollChanges, GraphMethods)
    change_cursor = _asynchronous(op.FindChangeCursor, GraphMethods)
    baseline = _asynchronous(op.FindBaseline, GraphMethods)
    commit_changes = _asynchronous(op.ReadCommitChanges, GraphMethods)
    ensure_indices = _asynchronous(op.EnsureIndices, GraphMethods)
    optimize = _asynchronous(op.Optimize, GraphMethods)
    cleanup = _asynchronous(op.Cleanup, GraphMethods)
    upkeep = _asynchronous(op.RunUpkeep, GraphMethods)
    repair = _asynchronous(op.Repair, GraphMethods)
    relocate = _asynchronous(op.Relocate, GraphMethods)
    backup = _asynchronous(op.Backup, GraphMethods)
    verify = _asynchronous(op.Verify, GraphMethods)
    doctor = _asynchronous(op.Doctor, GraphMethods)


class AsyncRequestMethods:
    """The same, each to be awaited."""

    def __init__(self, graph: AsyncGraphMethods) -> None:
        self._graph = graph

    async def call(self, operation: Operation[_T], /) -> _T:
        return await self._graph.call(operation)

    open = _asynchronous(op.OpenRequest, RequestMethods)
    list = _asynchronous(op.ListRequests, RequestMethods)
    get = _asynchronous(op.FindRequest, RequestMethods)
    approve = _asynchronous(op.ApproveRequest, RequestMethods)
    check = _asynchronous(op.CheckRequest, RequestMethods)
    merge = _asynchronous(op.MergeRequested, RequestMethods)
    close = _asynchronous(op.CloseRequest, RequestMethods)
