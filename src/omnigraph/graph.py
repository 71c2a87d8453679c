"""Graph: the handle people hold. It delegates; the rooms below do the work."""

from __future__ import annotations

import copy
import logging
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack, overload

from omnigraph.access import READS, Access, Action, Principal, authorize
from omnigraph.commit.recovery import heal, sweep
from omnigraph.commit.store import Store
from omnigraph.embed import Embedder
from omnigraph.embed.embedding import Embedding
from omnigraph.embed.modes import Mode as EmbedMode
from omnigraph.engines import choose_runner, finishing, spark_executor
from omnigraph.errors import (
    BranchInUseError,
    CorruptGraphError,
    GraphNotFoundError,
    HistoryReclaimedError,
    NotAGraphError,
    ReadOnlyError,
    RecoveryRequiredError,
    StorageError,
)
from omnigraph.genesis import is_made, make
from omnigraph.history.branches import (
    Tag,
    checked_name,
    create_branch,
    create_tag,
    delete_branch,
    delete_tag,
    find_commit,
    resolve,
    tags,
)
from omnigraph.history.diff import Diff, diff
from omnigraph.history.feed import Baseline, ChangeOptions, ChangePage, ChangeRequest, Feed
from omnigraph.history.log import LogEntry, log
from omnigraph.history.merge import MergeRequest, MergeResult, merge, preview, revert
from omnigraph.history.resolution import Resolution, Resolve
from omnigraph.lang.catalog import Catalog
from omnigraph.lang.evolution import DropMode
from omnigraph.lang.source import source_given
from omnigraph.maintenance.cleanup import CleanupRequest, CleanupResult, cleanup, give_up_past
from omnigraph.maintenance.doctor import Report, examine
from omnigraph.maintenance.optimize import optimize
from omnigraph.maintenance.repair import RepairResult, mode_of, repair
from omnigraph.maintenance.upkeep import UpkeepResult, ensure_indices
from omnigraph.manifest import contract
from omnigraph.manifest.rows import MAIN, MANIFEST_PATH, Commit
from omnigraph.manifest.state import ManifestState, Snapshot
from omnigraph.on_branch import OnBranch
from omnigraph.pinned import Pinned, export_state, telling_reclaimed
from omnigraph.pipeline.export import ExportRequest, ExportResult
from omnigraph.pipeline.inputs import as_files
from omnigraph.pipeline.load import Engine, LoadRequest, LoadResult, load, option
from omnigraph.pipeline.progress import SILENT, Progress
from omnigraph.pipeline.sources import discover
from omnigraph.query.cache import Cache
from omnigraph.query.current import Current
from omnigraph.query.explain import Explanation
from omnigraph.query.query import Query, Reader, State, state_of
from omnigraph.query.result import Result
from omnigraph.schema_apply.apply import SchemaResult, apply_schema, preview_schema
from omnigraph.storage.lance_errors import Kind, classify
from omnigraph.storage.location import Location
from omnigraph.storage.reclaim import ORPHAN_AGE
from omnigraph.write.embed_graph import EmbedRequest, EmbedResult, embed_graph, embed_mode
from omnigraph.write.load import LoadMode
from omnigraph.write.mutation import Mutation, MutationResult, mutate

_CACHE_BYTES = 1024 * 1024 * 1024
_LOG = logging.getLogger(__name__)
_A = TypeVar("_A")


def init(uri: str | os.PathLike[str], schema: str | os.PathLike[str], *, force: bool = False) -> Graph:
    """Create a graph. `schema` is the text of a `.pg` schema or the path of a file that holds one.

    `force` takes over from an attempt that died before its graph was made; a graph itself is never replaced.
    """
    return Graph(make(Location.parse(uri), source_given(schema, ".pg", "<schema>"), force=force), read_only=False)


def open(  # noqa: A001 - the name the API fixes
    uri: str | os.PathLike[str], *, read_only: bool = False, embedder: Embedder | None = None
) -> Graph:
    """Open a graph. Read-write finishes or undoes what a crash left behind; read-only never writes anything.

    `embedder` makes vectors of texts. If none is given, the one that the environment asks for does, when it is needed.
    """
    return Graph(Store.at(Location.parse(uri)), read_only=read_only, embedder=embedder)


class Graph:
    """A graph. Safe to share between threads; a context manager."""

    def __init__(self, store: Store, *, read_only: bool, embedder: Embedder | None = None) -> None:
        self._store = store
        self.read_only = read_only
        self._principal: Principal | None = None
        self._cache = Cache(_CACHE_BYTES)
        self._feed = Feed(store)
        self._embedding = Embedding(embedder)
        self._contract = self._read_contract()
        self._current = Current(store, self._read_contract)
        if read_only:
            store.manifest.load()
        else:
            store.manifest.load_to_write(None)
            if self._contract.foreign:
                contract.write_compiled(store.objects, self._contract.catalog)
                _LOG.warning("the compiled schema of %s was rebuilt from %s", self.uri, contract.SOURCE)
                self._contract = self._read_contract()
            sweep(store)

    def acting_as(self, principal: Principal) -> Graph:
        """The same graph in the hands of somebody who may do only some things, and in whose name commits are made."""
        handle = copy.copy(self)
        handle._principal = principal  # noqa: SLF001 - it is one of us
        return handle

    @property
    def uri(self) -> str:
        return self._store.location.uri

    @property
    def catalog(self) -> Catalog:
        return self._contract.catalog

    @property
    def schema(self) -> str:
        """The accepted schema, as it was written."""
        self._admit(Action.READ)
        return self._contract.text

    def snapshot(self, branch: str = MAIN) -> Snapshot:
        """Capture which version of each table the graph consists of now."""
        self._look(branch)
        return self._store.manifest.load(_branch(branch)).snapshot

    def commits(self, branch: str = MAIN, actor: str | None = None) -> list[Commit]:
        """List the commits of a branch, newest first, optionally those of one actor."""
        self._look(branch)
        found = self._store.manifest.load(_branch(branch)).commits()
        return [commit for commit in reversed(found) if actor is None or commit.actor_id == actor]

    def commit(self, commit_id: str) -> Commit:
        """Find a commit on whichever branch has it."""
        self._look()
        return find_commit(self._store.manifest, commit_id)

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
        self._admit(Action.CHANGE, branch)
        text = source_given(source, ".gq", "<query>")
        return mutate(
            self._store, Mutation(text, name, params, _branch(branch), self._actor(actor), if_commit), self._embedding
        )

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
        text = source_given(source, ".gq", "<query>")
        query = Query(text, name, params, _branch(branch), snapshot)
        try:
            return self._read(query, Reader.run)
        except HistoryReclaimedError:
            if snapshot is not None:
                raise
            return self._read(query, Reader.run)  # the branch has moved on, and what it was is gone

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
        text = source_given(source, ".gq", "<query>")
        return self._read(Query(text, name, params, _branch(branch), snapshot), Reader.explain)

    def at(self, ref: str) -> Pinned:
        """A view of one state, to read: a branch as it is now, a tag or a commit. It stays what it is."""
        self._admit(Action.READ, ref)
        found = resolve(self._store.manifest, ref)
        state = State(found.snapshot, found.head)
        known = self._store.schema_at(state.snapshot) or self._read_contract()
        return Pinned(self._store, self._reader(state, known.catalog), partial(self._admit, Action.EXPORT, ref))

    def _read(self, query: Query, do: Callable[[Reader, Query], _A]) -> _A:
        self._admit(Action.READ, query.branch or MAIN)
        state, catalog = self._state(query.branch, query.commit)
        with telling_reclaimed(self._store, state):
            return do(self._reader(state, catalog), query)

    def _reader(self, state: State, catalog: Catalog) -> Reader:
        return Reader(self._store.tables, state, catalog, self._cache, self._embedding)

    def _state(self, branch: str | None, commit: str | None) -> tuple[State, Catalog]:
        """Find the state to read; of main as it is now that takes one request, unless it has changed."""
        if branch is None and commit is None:
            current, known = self._load_current()
            self._contract = known
            return State(current.snapshot, current.head), known.catalog
        state = state_of(self._store.manifest, branch, commit)
        known = self._store.schema_at(state.snapshot) or self._read_contract()
        return state, known.catalog

    def _load_current(self) -> tuple[ManifestState, contract.Contract]:
        try:
            return self._current.load()
        except StorageError as error:
            if classify(error) is Kind.NOT_FOUND and not self._store.objects.exists(MANIFEST_PATH):
                raise self._absent() from None
            raise

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
        self._admit(Action.CHANGE, branch)
        if base is not None and branch.strip() not in self.branches():
            self._admit(Action.BRANCH_CREATE, base, branch)
        how, by = option(LoadMode, "mode", mode), option(Engine, "engine", engine)
        self._contract = self._read_contract()
        with as_files(data, self._store.location, self.catalog) as (addresses, own):
            splits = discover(addresses, self.catalog, format=format, mapping=mapping if own is None else own)
            spark = partial(spark_executor, master, conf)
            begins = None if base is None else checked_name(base)
            request = LoadRequest(
                splits, how, _branch(branch), self._actor(actor), by, dry_run, progress, spark, begins
            )
            return load(self._store, request)

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
        self._admit(Action.CHANGE, branch)
        progress.phase("embed", 1)
        try:
            request = EmbedRequest(
                embed_mode(mode), types, _branch(branch), self._actor(actor), partial(progress.advance, 0)
            )
            return embed_graph(self._store, request, self._embedding)
        finally:
            progress.finish()

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

        Without a path they come as lines of JSON. A path that ends like its format is one file, any other a directory.
        """
        self._admit(Action.EXPORT, branch)
        state, _ = self._state(_branch(branch), snapshot)
        spark = partial(spark_executor, master, conf)
        target = None if path is None else os.fspath(path)
        request = ExportRequest(target, types, format, option(Engine, "engine", engine), progress, spark)
        return export_state(self._store, state, request)

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
        self._admit(Action.ADMIN, branch)
        with finishing(progress):
            return ensure_indices(
                self._store, _branch(branch), choose_runner(engine, master, conf, progress), self._actor(actor)
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
        """Make many small fragments few large ones and let indices cover them, in one commit; rows stay as they are."""
        self._admit(Action.ADMIN, branch)
        with finishing(progress):
            return optimize(
                self._store, _branch(branch), choose_runner(engine, master, conf, progress), self._actor(actor)
            )

    def diff(
        self,
        a: str,
        b: str,
        *,
        kinds: Collection[str] | None = None,
        types: Collection[str] | None = None,
        operations: Collection[str] | None = None,
    ) -> Diff:
        """Tell what turns one state into another: entities inserted, updated and deleted.

        A state is a branch, a commit, or a branch at a commit or version: `main`, an id, `main@12`. Changes are read
        when the answer is iterated; `kinds` are node and edge, `operations` insert, update and delete.
        """
        self._look()
        return diff(self._store, a, b, kinds=kinds, types=types, operations=operations)

    def changes(self, branch: str = MAIN, *, after: str | None = None, **request: Unpack[ChangeOptions]) -> ChangePage:
        """Tell what the commits of a branch changed, each with respect to its first parent, page by page.

        `start` is now, beginning or after:<commit>, which `after` is short for; `cursor` and `page_token` go on where
        an earlier page ended. What was told once may be told again, never left out.
        """
        self._look(branch)
        if after is not None:
            request["start"] = f"after:{after}"
        return self._feed.poll(ChangeRequest(branch, **request))

    def change_cursor(self, after: str, branch: str = MAIN) -> str:
        """The cursor of all changes behind a commit: with it `changes` goes on from an export at that commit."""
        self._look(branch)
        return self._feed.cursor(ChangeRequest(branch, f"after:{after}"))

    def baseline(self, branch: str = MAIN, **request: Unpack[ChangeOptions]) -> Baseline:
        """Where to begin to follow a branch: export the tables that it names at its commit, then go on with its cursor.

        `kinds` and `types` choose tables; with the cursor `changes` takes the same `kinds`, `types` and `operations`.
        """
        self._look(branch)
        return self._feed.baseline(ChangeRequest(branch, **request))

    def log(self, branches: Sequence[str] | None = None) -> list[LogEntry]:
        """List the commits of some branches, or of all, newest first, with the branches and tags that are at them."""
        self._look()
        return log(self._store.manifest, self.branches() if branches is None else branches)

    def commit_changes(self, commit_id: str, **request: Unpack[ChangeOptions]) -> ChangePage:
        """Tell what one commit changed with respect to its first parent."""
        self._look()
        return self._feed.commit(commit_id, ChangeRequest(**request))

    def cleanup(
        self,
        keep: int | None = None,
        older_than: timedelta | None = None,
        *,
        confirm: bool = False,
        orphan_age: timedelta = ORPHAN_AGE,
        progress: Progress = SILENT,
    ) -> CleanupResult:
        """Remove what only old commits need: those that are neither among the last `keep` nor younger than that.

        Without `confirm` nothing is removed, and the result tells what would be. Branches and tags are kept as they
        are. Files that nothing refers to go when they are older than `orphan_age`.
        """
        self._admit(Action.ADMIN)
        request = CleanupRequest(keep, older_than, confirm, orphan_age)
        with finishing(progress):
            progress.phase("clean up", len(self._store.manifest.load().paths))
            return cleanup(self._store, request, lambda: progress.advance(1, 0))

    def repair(self, *, confirm: bool = False, force: bool = False) -> RepairResult:
        """Look at tables that something else has moved; confirmed, keep what is proven to have changed no rows.

        With `force` as well, whatever is there is kept.
        """
        self._admit(Action.ADMIN)
        return repair(self._store, mode_of(confirm=confirm, force=force))

    def doctor(self) -> Report:
        """Report the health of the graph: what stands in the way, what could be better, and what to run."""
        self._admit(Action.READ)
        return examine(self._store, self._read_contract().catalog)

    def plan_schema(self, schema: str | os.PathLike[str], *, allow_data_loss: bool = False) -> SchemaResult:
        """Tell which steps lead to a schema, whether each is supported, and how many entities they touch."""
        self._admit(Action.READ)
        return preview_schema(self._store, source_given(schema, ".pg", "<schema>"), _drops(allow_data_loss))

    def apply_schema(
        self, schema: str | os.PathLike[str], *, allow_data_loss: bool = False, actor: str | None = None
    ) -> SchemaResult:
        """Change the schema in one commit; no data is rewritten. Reads at earlier commits go by the schema of then.

        What is dropped stays readable at earlier commits until a cleanup, unless `allow_data_loss` gives it up at once.
        """
        self._admit(Action.SCHEMA_APPLY, target=MAIN)
        done = apply_schema(
            self._store, source_given(schema, ".pg", "<schema>"), _drops(allow_data_loss), self._actor(actor)
        )
        if done.given_up:
            give_up_past(self._store, done.given_up)
        self._contract = self._read_contract()
        return done

    def outcome(self, operation_id: str, branch: str = MAIN) -> Commit | None:
        """Tell what became of an operation whose outcome was unknown: its commit, or None if it changed nothing."""
        self._admit(Action.READ, branch)
        if not self.read_only:
            heal(self._store, self._store.gates.patience)
        found = self._store.manifest.load(_branch(branch)).commit(operation_id)
        if found is None and operation_id in self._store.sidecars.pending():
            message = f"operation {operation_id} is not settled yet"
            raise RecoveryRequiredError(message, operation_id=operation_id, hint="open the graph read-write")
        return found

    def _admit(self, action: Action, branch: str | None = None, target: str | None = None) -> None:
        """The one door: whoever asks must be allowed to, and a handle that is read-only changes nothing."""
        if self._principal is not None:
            authorize(self._principal, Access(action, branch, target))
        if self.read_only and action not in READS:
            raise ReadOnlyError(f"{self.uri} is open read-only", hint="open it without `read_only`")

    def _look(self, branch: str | None = None) -> None:
        """Admit a read, and go by the schema as it is now."""
        self._admit(Action.READ, branch)
        self._contract = self._read_contract()

    def _actor(self, named: str | None) -> str | None:
        """In whose name a change is made; whoever has proven who it is has no other."""
        return self._principal.actor if self._principal else named

    def branches(self) -> list[str]:
        """List the branches, main first."""
        self._admit(Action.READ)
        return [name for name in self._store.manifest.branches() if not name.startswith("__")]

    def create_branch(self, name: str, base: str = MAIN) -> None:
        """Make a branch that begins as its base is: another branch, a tag or a commit. No data is copied."""
        self._admit(Action.BRANCH_CREATE, base, name)
        create_branch(self._store, name, base)

    def delete_branch(self, name: str) -> None:
        """Delete a branch and what only it has."""
        self._admit(Action.BRANCH_DELETE, target=name)
        delete_branch(self._store, name)

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
        request = MergeRequest(_branch(source), _branch(into), self._actor(actor), Resolution.of(resolve))
        runner = choose_runner(engine, master, conf, progress)
        self._admit(Action.READ if dry_run else Action.BRANCH_MERGE, source, into)
        with finishing(progress):
            return (preview if dry_run else merge)(self._store, request, runner)

    def revert(
        self,
        commit_id: str,
        branch: str = MAIN,
        *,
        actor: str | None = None,
        resolve: Resolve | None = None,
    ) -> MergeResult:
        """Undo what one commit changed, by a new commit. What was changed again since then is a conflict."""
        self._admit(Action.CHANGE, branch)
        request = MergeRequest(None, _branch(branch), self._actor(actor), Resolution.of(resolve))
        return revert(self._store, self.commit(commit_id), request, choose_runner("auto", None, None, SILENT))

    def tags(self) -> list[Tag]:
        """List the tags by name, each with its commit."""
        self._admit(Action.READ)
        return tags(self._store.manifest)

    def create_tag(self, name: str, ref: str = MAIN) -> Tag:
        """Give the commit that a branch is at, or a commit by its id, a name that stays."""
        self._admit(Action.BRANCH_CREATE, ref, name)
        return create_tag(self._store, name, ref)

    def delete_tag(self, name: str) -> None:
        """Take a name away; the commit stays."""
        self._admit(Action.BRANCH_DELETE, target=name)
        delete_tag(self._store, name)

    @contextmanager
    def branch(
        self, name: str, *, base: str = MAIN, merge_into: str | None = None, actor: str | None = None
    ) -> Iterator[OnBranch]:
        """Work on a branch, which is made if it is not there; on a clean exit it is merged and deleted.

        If the body raises, the branch stays as it is, to be looked at; so it does without `merge_into`.
        """
        name = checked_name(name)
        if name not in self.branches():
            self.create_branch(name, base)
        yield OnBranch(self, name, actor)
        if merge_into is not None:
            self.merge(name, merge_into, actor=actor)
            self._delete_merged(name)

    def _delete_merged(self, name: str) -> None:
        """Delete a branch whose work is done. That others were made from it must not look as if it was not."""
        try:
            self.delete_branch(name)
        except BranchInUseError as error:
            _LOG.warning("the branch was merged, but not deleted: %s", error.message)

    def refresh(self) -> None:
        """Pick up schema changes, and recover what other writers left behind."""
        self._contract = self._read_contract()
        if not self.read_only:
            heal(self._store, self._store.gates.patience)

    def close(self) -> None:
        """Let the handle go. Nothing is buffered, so nothing is written."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Graph {self.uri}{' read-only' if self.read_only else ''}>"

    def _read_contract(self, state: ManifestState | None = None) -> contract.Contract:
        objects = self._store.objects
        if not objects.exists(MANIFEST_PATH):
            raise self._absent()
        try:
            found = self._store.schema_of(state or self._store.manifest.load())
        except StorageError:
            if is_made(self._store):
                raise
            raise self._absent() from None
        if found is None:
            message = f"{self.uri} has lost its {contract.SOURCE}"
            raise CorruptGraphError(message, path=contract.SOURCE, hint="restore it from a backup")
        return found

    def _absent(self) -> GraphNotFoundError | NotAGraphError:
        objects = self._store.objects
        if contract.is_started(objects):
            message = f"somebody began to make a graph at {self.uri} and did not finish"
            return NotAGraphError(message, uri=self.uri, hint="finish it with `omnigraph init --force`")
        if objects.exists(""):
            message = f"{self.uri} is not a graph"
            return NotAGraphError(message, uri=self.uri, hint="name the directory that `omnigraph init` made")
        return GraphNotFoundError(f"no graph at {self.uri}", uri=self.uri, hint="make one with `omnigraph init`")


def _branch(name: str) -> str | None:
    name = checked_name(name)
    return None if name == MAIN else name


def _drops(allow_data_loss: bool) -> DropMode:  # noqa: FBT001 - the two modes, as the API names them
    return DropMode.HARD if allow_data_loss else DropMode.SOFT
