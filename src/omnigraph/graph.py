"""Graph: the handle people hold. It authorizes an operation, and hands it to the packages that do the work."""

from __future__ import annotations

import copy
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

from omnigraph.api import operations as op
from omnigraph.api.access import READS, Access, Action, Principal, authorize
from omnigraph.api.changes import Baseline, ChangePage, Difference, EntityVersion
from omnigraph.api.maintenance import (
    BackupResult,
    CleanupResult,
    HealthReport,
    Relocation,
    RepairResult,
    RestoreResult,
    UpkeepReport,
    UpkeepResult,
    VerifyResult,
)
from omnigraph.api.operation import Operation, description_of
from omnigraph.api.options import (
    Engine,
    LoadMode,
    MergeBy,
    Resolution,
    Upkeep,
    dedupe_option,
    max_bad_option,
    message_option,
    option,
)
from omnigraph.api.progress import SILENT, Progress, finishing
from omnigraph.api.protocol import GraphAPI, StateView
from omnigraph.api.results import (
    Commit,
    EmbedResult,
    ExportResult,
    LoadResult,
    LogEntry,
    MergeResult,
    MutationResult,
    NamedState,
    ResolveResult,
    SchemaResult,
    Snapshot,
    StreamBatch,
    StreamPosition,
    Tag,
)
from omnigraph.api.reviews import MOST_APPROVALS, BranchRule, Lapse, Review, ReviewState, RuleOfBranch
from omnigraph.api.rows import Blob, Cell, Explanation, Result
from omnigraph.commit.plan import PublishPlan, WriteTxn
from omnigraph.commit.publish import undo_unrecorded
from omnigraph.commit.recovery import heal, set_aside_torn, set_aside_torn_refs, sweep
from omnigraph.commit.staged_schema import reconcile
from omnigraph.commit.store import Store
from omnigraph.core.executor import ChooseExecutor, Executor
from omnigraph.core.location import Location
from omnigraph.core.refs import FOREIGN_LOCK, MAIN, Ref, checked_name, parse_ref
from omnigraph.embed.embedder import Embedder, Embedding
from omnigraph.errors import (
    CorruptGraphError,
    ForkedHandleError,
    GraphNotFoundError,
    HistoryReclaimedError,
    NotAGraphError,
    OptionError,
    ReadOnlyError,
    RecoveryRequiredError,
    StorageError,
)
from omnigraph.history.branches import create_branch, create_tag, delete_branch, delete_tag, tags
from omnigraph.history.log import log
from omnigraph.history.resolve import TypeRef, explaining_reclaimed, find_commit, resolve, state_to_read, tables_of
from omnigraph.lang.catalog import Catalog
from omnigraph.lang.identity import is_new_id
from omnigraph.lang.schema_steps import DropMode
from omnigraph.lang.source import source_given
from omnigraph.manifest import schema_files
from omnigraph.manifest.rows import MANIFEST_PATH, RESTORING
from omnigraph.manifest.state import GraphState, ManifestState
from omnigraph.query.memory import cache_budget, time_limit
from omnigraph.query.query import Query, QueryReader
from omnigraph.query.view import TableCache
from omnigraph.storage.lance_errors import Failure, classify
from omnigraph.storage.read import TableReader

# A handler imports the work that it asks for. Most processes read: with loads, merges and maintenance, each of them
# would import fifty modules more before it starts.
if TYPE_CHECKING:
    from omnigraph.history.feed import Feed
    from omnigraph.history.merge import MergeSpec
    from omnigraph.history.reviews import Reviews
    from omnigraph.ingest.distributed import FrameInput

_T = TypeVar("_T")
_FOLD_WITHIN = 6  # versions of a table from one commit that folds its tail on the way to the next
_FOLD_EVERY = 16  # versions of a table between two looks at its tail
_LOCAL_MAINTENANCE_ROWS = 5_000_000  # more than this runs on Spark, unless `engine` says otherwise
_LOG = logging.getLogger(__name__)


def init(
    uri: str | os.PathLike[str],
    schema: str | os.PathLike[str],
    *,
    force: bool = False,
    durability: str | None = None,
    upkeep: str | None = None,
) -> Graph:
    """Create a graph. `schema` is the text of a `.pg` schema or the path of a file that holds one.

    `force` takes over from an attempt that died before its graph was made; a graph itself is never replaced.
    `durability` and `upkeep` are as in `open`.
    """
    from omnigraph.schema.apply import init_graph

    chosen, store = Upkeep.of(upkeep), Store.at(Location.parse(uri), durability=durability)
    made = init_graph(store, source_given(schema, ".pg", "<schema>"), force=force)
    return Graph(made, read_only=False, upkeep=chosen)


def open(  # noqa: A001 - the name the API fixes
    uri: str | os.PathLike[str],
    *,
    read_only: bool = False,
    embedder: Embedder | None = None,
    durability: str | None = None,
    upkeep: str | None = None,
) -> Graph:
    """Open a graph. Read-write finishes or undoes what a crash left behind; read-only never writes anything.

    `embedder` turns texts into vectors. Without one, the environment names the embedder that is loaded when needed.
    `durability` is what a commit to a local disk waits for: `full`, `files` or `off`; by default OMNIGRAPH_DURABILITY
    says so, else it is `full`.
    `upkeep` is `auto` or `off`: whether writes through this handle merge the small files that many commits leave. By
    default OMNIGRAPH_UPKEEP says so, else it is `auto`.
    """
    chosen, store = Upkeep.of(upkeep), Store.at(Location.parse(uri), durability=durability)
    return Graph(store, read_only=read_only, embedder=embedder, upkeep=chosen)


def restore(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    backup: str | None = None,
    progress: Progress = SILENT,
) -> RestoreResult:
    """Make a graph of a backup: the latest, or the one with the given id. Nothing may be at the target."""
    from omnigraph.maintenance.backup import restore as restored

    with finishing(progress):
        return restored(Location.parse(source), Location.parse(target), backup, progress)


def backups(source: str | os.PathLike[str]) -> list[BackupResult]:
    """List the complete backups at an address, oldest first."""
    from omnigraph.maintenance.backup import backups as found

    return found(Location.parse(source))


def verify_backup(
    source: str | os.PathLike[str], *, backup: str | None = None, progress: Progress = SILENT
) -> VerifyResult:
    """Read every file of a backup, and compare its size and digest: of the latest, or of the one with the given id."""
    from omnigraph.maintenance.backup import verify_backup as verified

    with finishing(progress):
        return verified(Location.parse(source), backup, progress)


_HANDLERS: dict[type[Operation[Any]], Callable[[Graph, Any], Any]] = {}


def _handles(kind: type[Operation[_T]]) -> Callable[[Callable[[Graph, Any], _T]], Callable[[Graph, Any], _T]]:
    """Make a method the handler of an operation. mypy compares what both return."""

    def register(handler: Callable[[Graph, Any], _T]) -> Callable[[Graph, Any], _T]:
        _HANDLERS[kind] = handler
        return handler

    return register


class Graph(GraphAPI):
    """A graph in storage. Safe to share between threads; a context manager."""

    def __init__(
        self, store: Store, *, read_only: bool, embedder: Embedder | None = None, upkeep: Upkeep = Upkeep.AUTO
    ) -> None:
        self._store = store
        self._process = os.getpid()
        self.read_only = read_only
        self._principal: Principal | None = None
        self._operation: str | None = None
        self._batch: StreamBatch | None = None
        self._pinned: tuple[GraphState, schema_files.AcceptedSchema] | None = None  # the one state that a view reads
        self._under_way: set[str] = set()  # ids that callers gave to operations; shared by all copies of this handle
        # One for all handles of this graph: `acting_as` and views copy the reference.
        self._cache = TableCache(cache_budget())
        self._feed = cache(partial(_feed_of, store))  # made when it is first asked for; shared by all copies
        self._embedding = Embedding(embedder)
        self._relocated = Relocation(self.uri)
        # Cached columns are keyed by table and version, and another graph at the address has the same of both.
        store.manifest.on_replaced.append(self._cache.clear)
        self._written: tuple[WriteTxn, ManifestState] | None = None
        store.on_written.append(self._note_written)
        if not read_only and upkeep is Upkeep.AUTO:
            store.on_prepared.append(partial(_with_folds, store))
            store.on_written.append(partial(_fold_if_due, store))
        self._contract = self._read_contract(None if read_only else self._recover())
        if not read_only and not self._contract.is_known:
            schema_files.write_beside(store.objects, self._contract.catalog)
            _LOG.info("another implementation compiled the schema of %s; its files stay as they are", self.uri)
            self._contract = self._read_contract()

    def _recover(self) -> ManifestState:
        """Bring the graph to the current format, finish or undo what stopped half-way, and return the state of main."""
        from omnigraph.maintenance.relocate import settle_down

        try:
            state = self._store.manifest.load_to_write(None)
        except StorageError:
            self._read_contract()  # raises a better error if there is no graph
            if not set_aside_torn(self._store, None):
                raise
            state = self._store.manifest.load_to_write(None)
        set_aside_torn_refs(self._store)
        self._relocated = settle_down(self._store)
        # The order matters: torn references keep Lance from listing branches, and recovery reads through forks, which
        # must refer to this root first.
        recovered = sweep(self._store)
        if self._store.location.is_local:  # a record outlives everything but a power cut
            undo_unrecorded(self._store)
        reconcile(self._store)
        return self._store.manifest.load() if recovered or self._store.location.is_local else state

    # --- handles and views ---

    def acting_as(self, principal: Principal) -> Self:
        """Return the same graph for a caller who may do only some things, and in whose name commits are made."""
        handle = copy.copy(self)
        handle._principal = principal  # noqa: SLF001 - a copy of this object
        return handle

    def as_operation(self, operation_id: str) -> Self:
        """Return the same graph for one change with a given id: `outcome` finds it, and it is made only once."""
        if not is_new_id(operation_id):
            message = f"{operation_id!r:.60} cannot be the id of an operation"
            raise OptionError(message, option="operation_id", hint="give it a ULID: 26 characters, in capitals")
        handle = copy.copy(self)
        handle._operation = operation_id  # noqa: SLF001 - a copy of this object
        return handle

    def as_batch(self, batch: StreamBatch) -> Self:
        """Return the same graph for the load of one batch of a stream: a batch is committed once."""
        handle = copy.copy(self)
        handle._batch = batch  # noqa: SLF001 - a copy of this object
        return handle

    def stream(self, name: str, *, branch: str = MAIN) -> StreamPosition | None:
        """Return how far a stream is on a branch: its last batch and commit; None if it never wrote to it."""
        self._admit(Access(Action.READ, branch))
        return self._look().manifest.load(named_branch(branch)).stream(name)

    @property
    def uri(self) -> str:
        return self._store.location.uri

    @property
    def catalog(self) -> Catalog:
        return self._contract.catalog

    def refresh(self) -> None:
        """Pick up schema changes, and recover what other writers left behind."""
        self._contract = self._compare_files()
        if not self.read_only:
            heal(self._store, self._store.gates.patience)

    def upkeep_due(self) -> str | None:
        """Return what upkeep is due after the last write, in a sentence; None without any.

        It looks at a table about every 16th version, and is otherwise free.
        """
        due = self._written[0].moved_past(self._written[1], _FOLD_EVERY) if self._written else []
        if not due:
            return None
        from omnigraph.maintenance.upkeep import advice

        return advice(self._store, self._store.manifest.load(due[0].owner), [table.key for table in due])

    def _note_written(self, before: WriteTxn, after: ManifestState) -> None:
        self._written = before, after

    def close(self) -> None:
        """Let the handle go. Nothing is buffered, so nothing is written."""

    def at(self, ref: str) -> SnapshotView:
        """Return a view of one state, to read: a branch as it is now, a tag or a commit. The view never changes."""
        self._admit(Access(Action.READ, ref))
        state = resolve(self._store.manifest, ref).graph_state
        known = self._store.schema_at(state.snapshot) or self._read_contract()
        handle = copy.copy(self)
        handle._pinned = state, known  # noqa: SLF001 - a copy of this object
        return SnapshotView(handle, ref, self._reader(state, known.catalog), known.text)

    def __repr__(self) -> str:
        return f"<Graph {self.uri}{' read-only' if self.read_only else ''}>"

    # --- every operation passes here ---

    def call(self, operation: Operation[_T], /) -> _T:
        """Execute an operation: authorize it, register it if it makes a commit, and hand it to its handler."""
        known = description_of(operation)
        self._admit(known.access(operation))
        handler: Callable[[Graph, Operation[_T]], _T] = _HANDLERS[type(operation)]
        if not known.commits or self._operation is None:
            return handler(self, operation)
        # While it runs, `outcome` must answer "not settled yet", and not that there is no such commit.
        self._under_way.add(self._operation)
        try:
            return handler(self, operation)
        finally:
            self._under_way.discard(self._operation)

    def _admit(self, access: Access) -> None:
        """Authorize the caller, and refuse every change on a read-only handle."""
        if self._process != os.getpid():
            message = f"the handle on {self.uri} was opened before this process was forked"
            hint = "open the graph in the child process, or start it with `spawn`"
            raise ForkedHandleError(message, uri=self.uri, hint=hint)
        # First who, then what: a caller without permission must not learn whether the handle is read-only.
        if self._principal is not None:
            authorize(self._principal, access)
        if self.read_only and access.action not in READS:
            raise ReadOnlyError(f"{self.uri} is open read-only", hint="open it without `read_only`")

    def _actor(self, named: str | None) -> str | None:
        """The actor of a change: an authenticated caller cannot name another."""
        return self._principal.actor if self._principal else named

    def _look(self) -> Store:
        """Use the schema as it is now, and return the store."""
        self._contract = self._read_contract()
        return self._store

    # --- reading ---

    @_handles(op.ReadSchema)
    def _schema(self, _: op.ReadSchema) -> str:
        self._contract = self._compare_files()
        return self._contract.text

    @_handles(op.ReadSnapshot)
    def _snapshot(self, read: op.ReadSnapshot) -> Snapshot:
        return resolve(self._look().manifest, read.branch).snapshot

    @_handles(op.ListCommits)
    def _commits(self, listing: op.ListCommits) -> list[Commit]:
        found = resolve(self._look().manifest, listing.branch).commits()
        return [commit for commit in reversed(found) if listing.actor is None or commit.actor_id == listing.actor]

    @_handles(op.FindCommit)
    def _commit(self, find: op.FindCommit) -> Commit:
        return find_commit(self._look().manifest, find.commit_id)

    @_handles(op.ResolveState)
    def _resolve(self, find: op.ResolveState) -> NamedState:
        view = self.at(find.ref)
        return NamedState(view.branch, view.commit, view.schema)

    @_handles(op.RunQuery)
    def _query(self, asked: op.RunQuery) -> Result:
        if asked.branches is not None:
            from omnigraph.api.arrow import of_branches

            if self._pinned is not None:
                raise OptionError("a view has one state", option="branches", hint="ask the graph")
            return of_branches(asked, self.call)  # by the door: each branch is a read of its own
        try:
            return self._read(asked, QueryReader.run)
        except HistoryReclaimedError:
            # A state that was asked for by name is gone for good. Only the head of a branch can be read again, at its
            # new state.
            if asked.snapshot is not None or self._pinned is not None:
                raise
            return self._read(asked, QueryReader.run)  # the branch has moved on, and a cleanup removed its former state

    @_handles(op.ExplainQuery)
    def _explain(self, asked: op.ExplainQuery) -> Explanation:
        return self._read(asked, QueryReader.explain)

    @_handles(op.ExportLines)
    def _export_lines(self, export: op.ExportLines) -> Iterator[str]:
        from omnigraph.ingest.export import ExportSpec, export_lines

        state, _ = self._state(export.branch, export.snapshot)
        request = ExportSpec(None, export.types, export.format, option(Engine, "engine", export.engine))
        # Not inside the generator: what cannot be exported is refused by the call, and not by the first line.
        lines = export_lines(self._store, state, request)

        def produced() -> Iterator[str]:
            with _explaining_reclaimed(self._store.tables, state):
                yield from lines

        return produced()

    @_handles(op.ExportFiles)
    def _export_files(self, export: op.ExportFiles) -> ExportResult:
        from omnigraph.ingest.export import ExportSpec, export_files

        state, _ = self._state(export.branch, export.snapshot)
        spark = partial(_spark_executor, "export", export.master, export.conf)
        engine = option(Engine, "engine", export.engine)
        request = ExportSpec(os.fspath(export.path), export.types, export.format, engine, export.progress, spark)
        with _explaining_reclaimed(self._store.tables, state):
            return export_files(self._store, state, request)

    def _read(self, asked: op.RunQuery | op.ExplainQuery, do: Callable[[QueryReader, Query], _T]) -> _T:
        text = source_given(asked.source, ".gq", "<query>")
        state, catalog = self._state(asked.branch, asked.snapshot)
        reported = state.snapshot.branch or MAIN if asked.snapshot is None else asked.branch.strip()
        with _explaining_reclaimed(self._store.tables, state):
            seconds = time_limit(asked.timeout)
            return do(self._reader(state, catalog), Query(text, asked.name, asked.params, reported, seconds))

    def _reader(self, state: GraphState, catalog: Catalog) -> QueryReader:
        return QueryReader(self._store.tables, state, catalog, self._cache, self._embedding)

    def _state(self, branch: str, snapshot: str | None) -> tuple[GraphState, Catalog]:
        """Find the state to read; the head of main takes one request, unless it has changed."""
        if self._pinned is not None:
            return self._pinned[0], self._pinned[1].catalog
        if snapshot is None and parse_ref(branch) == Ref(MAIN):
            current, known = self._load_current()
            self._contract = known
            return current.graph_state, known.catalog
        state = state_to_read(self._store.manifest, branch, snapshot)
        known = self._store.schema_at(state.snapshot) or self._read_contract()
        return state, known.catalog

    def _load_current(self) -> tuple[ManifestState, schema_files.AcceptedSchema]:
        try:
            state = self._store.manifest.load()
            return state, self._read_contract(state)
        except StorageError as error:
            # Deleted since it was opened: the user must read that there is no graph, not that a file is missing.
            if classify(error) is Failure.NOT_FOUND and not self._store.objects.exists(MANIFEST_PATH):
                raise self._absent() from None
            raise

    # --- writing ---

    @_handles(op.Mutate)
    def _mutate(self, asked: op.Mutate) -> MutationResult:
        from omnigraph.write.mutation import Mutation, mutate

        text, on = source_given(asked.source, ".gq", "<query>"), named_branch(asked.branch)
        actor = self._actor(asked.actor)
        mutation = Mutation(
            text, asked.name, asked.params, on, actor, asked.if_commit, self._operation, message_option(asked.message)
        )
        return mutate(self._store, mutation, self._embedding)

    @_handles(op.LoadData)
    def _load(self, asked: op.LoadData) -> LoadResult:
        from omnigraph.formats.sources import discover
        from omnigraph.ingest.load import LoadSpec, as_files, load, without_frames

        # A load that creates its branch needs the permission for that as well.
        if asked.base is not None and asked.branch.strip() not in self.branches():
            self._admit(Access(Action.BRANCH_CREATE, asked.base, asked.branch))
        how, by = option(LoadMode, "mode", asked.mode), option(Engine, "engine", asked.engine)
        dedupe, most = dedupe_option(asked.dedupe, how), max_bad_option(asked.max_bad)
        said = message_option(asked.message)
        self._look()
        catalog = self._catalog_for(asked)
        data, found = without_frames(asked.data)
        spark: Callable[[Progress], Executor] = partial(_spark_executor, "load", asked.master, asked.conf)
        frames, spark = self._frames(found, by, asked.mapping, catalog) if found else ((), spark)
        with as_files(data, self._store.location, catalog) as (addresses, own):
            mapping = asked.mapping if own is None else own
            splits = discover(addresses, catalog, format=asked.format, mapping=mapping, csv=asked.csv)
            begins = None if asked.base is None else str(parse_ref(asked.base))
            on, actor = named_branch(asked.branch), self._actor(asked.actor)
            request = LoadSpec(
                splits, how, on, actor, by, asked.dry_run, asked.progress, spark, begins, self._operation, frames
            )
            request = replace(request, rejects=asked.rejects, max_bad=most, dedupe=dedupe, batch=self._batch)
            request = replace(request, message=said)
            return load(self._store, request)

    def _catalog_for(self, asked: op.LoadData) -> Catalog:
        """Return the schema of the branch to load into, which may still have to be created."""
        name = checked_name(asked.branch)
        if asked.base is not None and name not in self._store.manifest.branches():
            name = asked.base
        return self.catalog if name == MAIN else self._state(name, None)[1]

    def _frames(
        self,
        found: Mapping[str, Any],
        engine: Engine,
        mapping: str | os.PathLike[str] | Mapping[str, Any] | None,
        catalog: Catalog,
    ) -> tuple[Sequence[FrameInput], Callable[[Progress], Executor]]:
        """Check DataFrames; return them with the executor of their session."""
        from omnigraph.spark.executor import SparkExecutor
        from omnigraph.spark.frames import frame_inputs

        frames, session = frame_inputs(found, catalog, engine, mapping)
        return frames, partial(SparkExecutor, session, operation="load")

    @_handles(op.EmbedTexts)
    def _embed(self, asked: op.EmbedTexts) -> EmbedResult:
        from omnigraph.write.embed import EmbedRequest, embed_graph, embed_mode

        asked.progress.phase("embed", 1)
        with finishing(asked.progress):
            on, actor = named_branch(asked.branch), self._actor(asked.actor)
            advance = partial(asked.progress.advance, 0)
            request = EmbedRequest(
                embed_mode(asked.mode), asked.types, on, actor, advance, message_option(asked.message)
            )
            return embed_graph(self._store, request, self._embedding)

    @_handles(op.PlanSchema)
    def _plan_schema(self, asked: op.PlanSchema) -> SchemaResult:
        from omnigraph.schema.apply import preview_schema

        return preview_schema(
            self._store, source_given(asked.schema, ".pg", "<schema>"), _drops(asked), named_branch(asked.branch)
        )

    @_handles(op.ApplySchema)
    def _apply_schema(self, asked: op.ApplySchema) -> SchemaResult:
        from omnigraph.maintenance.cleanup import give_up_past
        from omnigraph.schema.apply import apply_schema

        source = source_given(asked.schema, ".pg", "<schema>")
        said, on = message_option(asked.message), named_branch(asked.branch)
        actor, by = self._actor(asked.actor), self._operation
        done = apply_schema(self._store, source, _drops(asked), actor, operation_id=by, message=said, branch=on)
        # After the commit: until then, the old schema still reads the tables whose past is given up here.
        if done.given_up:
            give_up_past(self._store, done.given_up)
        self._look()
        return done

    @_handles(op.FindOutcome)
    def _outcome(self, find: op.FindOutcome) -> Commit | None:
        # Looked up before the state is read: an operation that ends in between counts as under way, and is asked again.
        at_work = find.operation_id in self._under_way
        if not self.read_only:
            heal(self._store, self._store.gates.patience)
        state = self._store.manifest.load(named_branch(find.branch))
        found = state.commit(find.operation_id) or state.commit_of_operation(find.operation_id)
        if found is None and (at_work or self._is_pending(find.operation_id)):
            message = f"operation {find.operation_id} is not settled yet"
            hint = "ask again when it is done" if at_work else "open the graph read-write"
            raise RecoveryRequiredError(message, operation_id=find.operation_id, hint=hint)
        return found

    def _is_pending(self, operation_id: str) -> bool:
        sidecars = self._store.sidecars
        return any((record := sidecars.read(one)) and record.is_of(operation_id) for one in sidecars.pending())

    # --- branches and tags ---

    @_handles(op.ListBranches)
    def _branches(self, _: op.ListBranches) -> list[str]:
        return [name for name in self._store.manifest.branches() if name != FOREIGN_LOCK]

    @_handles(op.CreateBranch)
    def _create_branch(self, asked: op.CreateBranch) -> None:
        create_branch(self._store, asked.name, asked.base)

    @_handles(op.DeleteBranch)
    def _delete_branch(self, asked: op.DeleteBranch) -> None:
        delete_branch(self._store, asked.name)

    @_handles(op.MergeBranch)
    def _merge(self, asked: op.MergeBranch) -> MergeResult:
        from omnigraph.history.hooks import MergeHooks
        from omnigraph.history.merge import MergeSpec, merge, preview
        from omnigraph.history.reviews import about_done, hooked

        source, into = str(parse_ref(asked.source)), named_branch(asked.into)
        runner = _choose_runner(asked)
        with finishing(asked.progress):
            actor, resolution = self._actor(asked.actor), Resolution.of(asked.resolve)
            by = option(MergeBy, "by", asked.by)
            request = MergeSpec(source, into, actor, resolution, self._operation, by, message_option(asked.message))
            if asked.dry_run:
                return preview(self._store, request, None if self.read_only else runner)
            hooks = MergeHooks.of_environment()
            done = merge(self._store, request, runner, hooked(hooks, request))
            if done.commit:
                hooks.run_after(about_done(request, done))
            return done

    @_handles(op.RevertCommit)
    def _revert(self, asked: op.RevertCommit) -> MergeResult:
        from omnigraph.history.replay import revert

        request = self._replaying(asked, Resolution.of(asked.resolve))
        return revert(self._store, self.commit(asked.commit_id), request, _choose_runner(op.MergeBranch(MAIN)))

    @_handles(op.PickCommit)
    def _cherry_pick(self, asked: op.PickCommit) -> MergeResult:
        from omnigraph.history.replay import pick

        request = self._replaying(asked, Resolution.of(asked.resolve))
        return pick(self._store, self.commit(asked.commit_id), request, _choose_runner(op.MergeBranch(MAIN)))

    @_handles(op.RestoreEntities)
    def _restore_entities(self, asked: op.RestoreEntities) -> MergeResult:
        from omnigraph.history.replay import RestoreSpec, restore_entities

        ids = None if asked.ids is None else frozenset(asked.ids)
        wanted = RestoreSpec(TypeRef(asked.type_name, asked.kind), ids, asked.ref)
        request = self._replaying(asked, Resolution())
        return restore_entities(self._store, wanted, request, _choose_runner(op.MergeBranch(MAIN)))

    def _replaying(
        self, asked: op.RevertCommit | op.PickCommit | op.RestoreEntities, resolution: Resolution
    ) -> MergeSpec:
        from omnigraph.history.merge import MergeSpec

        on, actor = named_branch(asked.branch), self._actor(asked.actor)
        said = message_option(asked.message)
        return MergeSpec(MAIN, on, actor, resolution, self._operation, message=said)

    # --- merge requests, and the rules of branches ---

    def _reviews(self) -> Reviews:
        from omnigraph.history.reviews import Reviews
        from omnigraph.query.checks import run_checks

        return Reviews(self._look(), partial(run_checks, self._store, self._embedding))

    @_handles(op.OpenRequest)
    def _open_request(self, asked: op.OpenRequest) -> Review:
        from omnigraph.history.reviews import Opening
        from omnigraph.query.checks import checks_given

        source, into = checked_name(asked.source), checked_name(asked.into)
        said, actor = message_option(asked.message), self._actor(asked.actor)
        reviews = self._reviews()
        checks = checks_given(asked.checks, self.catalog)
        return reviews.open(Opening(source, into, actor, asked.title, said, checks))

    @_handles(op.ListRequests)
    def _list_requests(self, asked: op.ListRequests) -> list[Review]:
        state = None if asked.state is None else option(ReviewState, "state", asked.state)
        return self._reviews().all(state)

    @_handles(op.FindRequest)
    def _find_request(self, asked: op.FindRequest) -> Review:
        return self._reviews().get(asked.request_id)

    @_handles(op.ApproveRequest)
    def _approve_request(self, asked: op.ApproveRequest) -> Review:
        return self._reviews().approve(asked.request_id, self._actor(asked.actor))

    @_handles(op.CheckRequest)
    def _check_request(self, asked: op.CheckRequest) -> Review:
        return self._reviews().check(asked.request_id, _choose_runner(op.MergeBranch(MAIN)))

    @_handles(op.MergeRequested)
    def _merge_request(self, asked: op.MergeRequested) -> MergeResult:
        from omnigraph.history.hooks import MergeHooks
        from omnigraph.history.merge import MergeSpec

        by, resolution = option(MergeBy, "by", asked.by), Resolution.of(asked.resolve)
        spec = MergeSpec("", None, self._actor(asked.actor), resolution, self._operation, by)
        spec = replace(spec, message=message_option(asked.message))
        runner = _choose_runner(op.MergeBranch(MAIN))
        return self._reviews().merge(asked.request_id, spec, runner, MergeHooks.of_environment())

    @_handles(op.CloseRequest)
    def _close_request(self, asked: op.CloseRequest) -> Review:
        return self._reviews().close(asked.request_id, self._actor(asked.actor))

    @_handles(op.ProtectBranch)
    def _protect(self, asked: op.ProtectBranch) -> RuleOfBranch:
        from omnigraph.query.checks import checks_given

        if not 0 <= asked.approvals <= MOST_APPROVALS:
            message = f"approvals must be 0 to {MOST_APPROVALS}, not {asked.approvals}"
            raise OptionError(message, option="approvals", hint="name a number that your reviewers can reach")
        lapse = option(Lapse, "lapse", asked.lapse)
        self._look()
        checks, bypass = checks_given(asked.checks, self.catalog), tuple(sorted({*(asked.bypass or ())}))
        rule = BranchRule(asked.approvals, asked.self_approval, lapse, checks, bypass)
        return self._set_rule(asked.branch, rule, asked.actor)

    @_handles(op.UnprotectBranch)
    def _unprotect(self, asked: op.UnprotectBranch) -> RuleOfBranch:
        return self._set_rule(asked.branch, None, asked.actor)

    def _set_rule(self, branch: str, rule: BranchRule | None, actor: str | None) -> RuleOfBranch:
        from omnigraph.history.protection import set_rule

        return set_rule(self._store, named_branch(branch), rule, self._actor(actor))

    @_handles(op.FindRule)
    def _rule(self, asked: op.FindRule) -> RuleOfBranch:
        from omnigraph.history.protection import rule_of

        return rule_of(self._look(), named_branch(asked.branch))

    @_handles(op.ResolveEntities)
    def _resolve_entities(self, asked: op.ResolveEntities) -> ResolveResult:
        from omnigraph.write.entities import ResolveSpec, resolve_entities

        spec = ResolveSpec(
            asked.type_name,
            tuple(asked.key),
            asked.words,
            asked.vector,
            asked.pairs,
            asked.block,
            asked.threshold,
            named_branch(asked.branch),
            self._actor(asked.actor),
            message_option(asked.message),
            asked.dry_run,
            self._operation,
        )
        return resolve_entities(self._store, spec)

    @_handles(op.ListTags)
    def _tags(self, _: op.ListTags) -> list[Tag]:
        return tags(self._store.manifest)

    @_handles(op.CreateTag)
    def _create_tag(self, asked: op.CreateTag) -> Tag:
        return create_tag(self._store, asked.name, asked.ref)

    @_handles(op.DeleteTag)
    def _delete_tag(self, asked: op.DeleteTag) -> None:
        delete_tag(self._store, asked.name)

    # --- history ---

    @_handles(op.DiffStates)
    def _diff(self, asked: op.DiffStates) -> Difference:
        from omnigraph.history.diff import diff

        return diff(self._look(), asked.a, asked.b, kinds=asked.kinds, types=asked.types, operations=asked.operations)

    @_handles(op.ReadHistory)
    def _history_of(self, asked: op.ReadHistory) -> list[EntityVersion]:
        from omnigraph.history.entities import history_of

        return history_of(self._look(), asked.branch, TypeRef(asked.type_name, asked.kind), asked.id, asked.limit)

    @_handles(op.PollChanges)
    def _changes(self, asked: op.PollChanges) -> ChangePage:
        self._look()
        return self._feed().poll(asked)

    @_handles(op.FindChangeCursor)
    def _change_cursor(self, find: op.FindChangeCursor) -> str:
        self._look()
        return self._feed().cursor(find)

    @_handles(op.FindBaseline)
    def _baseline(self, find: op.FindBaseline) -> Baseline:
        self._look()
        return self._feed().baseline(find)

    @_handles(op.ReadLog)
    def _log(self, asked: op.ReadLog) -> list[LogEntry]:
        return log(self._look().manifest, asked.branches)

    @_handles(op.ReadCommitChanges)
    def _commit_changes(self, asked: op.ReadCommitChanges) -> ChangePage:
        self._look()
        return self._feed().commit(asked)

    # --- maintenance ---

    @_handles(op.EnsureIndices)
    def _ensure_indices(self, asked: op.EnsureIndices) -> UpkeepResult:
        from omnigraph.maintenance.optimize import ensure_indices
        from omnigraph.maintenance.tasks import concurrency

        with finishing(asked.progress):
            on, runner = named_branch(asked.branch), _choose_runner(asked, concurrency())
            return ensure_indices(self._store, on, runner, self._actor(asked.actor))

    @_handles(op.Optimize)
    def _optimize(self, asked: op.Optimize) -> UpkeepResult:
        from omnigraph.maintenance.optimize import optimize
        from omnigraph.maintenance.tasks import concurrency

        with finishing(asked.progress):
            on, runner = named_branch(asked.branch), _choose_runner(asked, concurrency())
            return optimize(self._store, on, runner, self._actor(asked.actor))

    @_handles(op.Cleanup)
    def _cleanup(self, asked: op.Cleanup) -> CleanupResult:
        from omnigraph.maintenance.cleanup import CleanupRequest, cleanup

        request = CleanupRequest(asked.keep, asked.older_than, asked.confirm, asked.orphan_age)
        with finishing(asked.progress):
            asked.progress.phase("clean up", len(self._store.manifest.load().paths))
            return cleanup(self._store, request, lambda: asked.progress.advance(1, 0))

    @_handles(op.RunUpkeep)
    def _upkeep(self, asked: op.RunUpkeep) -> UpkeepReport:
        from omnigraph.maintenance.tasks import concurrency
        from omnigraph.maintenance.upkeep import upkeep

        with finishing(asked.progress):
            runner = _choose_runner(op.Optimize(progress=asked.progress), concurrency())
            return upkeep(self._store, runner, asked.keep, asked.older_than)

    @_handles(op.Repair)
    def _repair(self, asked: op.Repair) -> RepairResult:
        from omnigraph.maintenance.repair import mode_of, repair

        return repair(self._store, mode_of(confirm=asked.confirm, force=asked.force))

    @_handles(op.Relocate)
    def _relocate(self, _: op.Relocate) -> Relocation:
        # Opening the graph may have done the work already: then this is what the caller asks about.
        from omnigraph.maintenance.relocate import relocate

        before, self._relocated = self._relocated, Relocation(self.uri)
        done = relocate(self._store)
        return done if done.versions else before

    @_handles(op.Backup)
    def _backup(self, asked: op.Backup) -> BackupResult:
        from omnigraph.maintenance.backup import backup

        with finishing(asked.progress):
            return backup(self._store, Location.parse(asked.target), asked.progress, may_wait=not self.read_only)

    @_handles(op.Verify)
    def _verify(self, asked: op.Verify) -> VerifyResult:
        from omnigraph.maintenance.backup import verify

        with finishing(asked.progress):
            against = None if asked.against is None else Location.parse(asked.against)
            return verify(self._store, against, asked.progress)

    @_handles(op.Doctor)
    def _doctor(self, asked: op.Doctor) -> HealthReport:
        from omnigraph.maintenance.doctor import examine

        backup = None if asked.backup is None else Location.parse(asked.backup)
        with finishing(asked.progress):
            chosen = _choose_runner(asked) if asked.deep else None
            self._compare_files()  # refused if the files were edited
            return examine(self._store, deep=chosen, backup=backup)

    # --- the schema ---

    def _compare_files(self) -> schema_files.AcceptedSchema:
        """Read the schema files again: comments may have changed, or the files were edited. The manifest stays then."""
        self._store.schema_files.forget()
        return self._read_contract()

    def _read_contract(self, state: ManifestState | None = None) -> schema_files.AcceptedSchema:
        try:
            found = self._store.schema_of(state or self._store.manifest.load())
        except StorageError:
            from omnigraph.schema.apply import graph_exists

            if not self._store.objects.exists(MANIFEST_PATH):
                raise self._absent() from None
            if graph_exists(self._store):  # then something else is wrong with it
                raise
            raise self._absent() from None
        if found is None:
            message = f"{self.uri} has lost its {schema_files.SOURCE}"
            raise CorruptGraphError(message, path=schema_files.SOURCE, hint="restore it from a backup")
        return found

    def _absent(self) -> GraphNotFoundError | NotAGraphError:
        objects = self._store.objects
        if objects.exists(RESTORING):
            message = f"{self.uri} is an unfinished graph: its restore stopped half-way"
            return NotAGraphError(message, uri=self.uri, hint="run the same `omnigraph restore` again")
        if schema_files.is_started(objects):
            message = f"{self.uri} is an unfinished graph: its creation stopped half-way"
            return NotAGraphError(message, uri=self.uri, hint="finish it with `omnigraph init --force`")
        if objects.exists(""):
            message = f"{self.uri} is not a graph"
            return NotAGraphError(message, uri=self.uri, hint="name the directory that `omnigraph init` made")
        return GraphNotFoundError(f"no graph at {self.uri}", uri=self.uri, hint="make one with `omnigraph init`")


def named_branch(name: str) -> str | None:
    """Check the name of a branch, and return it as the storage knows it, which has no name for main."""
    name = checked_name(name)
    return None if name == MAIN else name


def _with_folds(store: Store, plan: PublishPlan) -> PublishPlan:
    """Let a plan that adds rows merge the small files that those before it have left."""
    # A table moves by one version with each commit, so this is true of one of them. It takes no look at the table.
    if not any((action.staged.base.version + 1) % _FOLD_WITHIN == 0 for action in plan.actions):
        return plan
    from omnigraph.maintenance.fold import with_folds

    return with_folds(store, plan, _FOLD_WITHIN)


def _fold_if_due(store: Store, before: WriteTxn, after: ManifestState) -> None:
    """Fold the tables that the last writes have left in many small files."""
    if due := before.moved_past(after, _FOLD_EVERY):
        from omnigraph.maintenance.fold import fold

        fold(store, replace(before, base=after, forks={}), due)


def _feed_of(store: Store) -> Feed:
    from omnigraph.history.feed import Feed

    return Feed(store)


def _drops(asked: op.PlanSchema | op.ApplySchema) -> DropMode:
    return DropMode.HARD if asked.allow_data_loss else DropMode.SOFT


def _spark_executor(operation: str, master: str | None, conf: Mapping[str, str] | None, progress: Progress) -> Executor:
    from omnigraph.spark.executor import SparkExecutor
    from omnigraph.spark.session import spark_session

    return SparkExecutor(spark_session(master, conf), progress, operation)


def _choose_runner(
    asked: op.MergeBranch | op.EnsureIndices | op.Optimize | op.Doctor, parallel: int = 1
) -> ChooseExecutor:
    """Choose by the number of rows whether this process does the work, with so many tasks in parallel, or Spark."""
    from omnigraph.ingest.executor import LocalExecutor

    chosen = option(Engine, "engine", asked.engine)

    def choose(rows: int) -> Executor:
        if chosen is Engine.SPARK or (chosen is Engine.AUTO and rows > _LOCAL_MAINTENANCE_ROWS):
            return _spark_executor(type(asked).__name__, asked.master, asked.conf, asked.progress)
        return LocalExecutor(asked.progress, parallel)

    return choose


def _explaining_reclaimed(tables: TableReader, state: GraphState) -> AbstractContextManager[None]:
    return explaining_reclaimed(tables, lambda: [(state.head, tables_of(state.snapshot).values())])


class SnapshotView(StateView):
    """One state of a graph in storage, to read."""

    def __init__(self, graph: Graph, ref: str, reader: QueryReader, schema: str) -> None:
        self._graph = graph
        self._where = {"branch": ref}
        self._reader = reader
        self._schema = schema

    @property
    def branch(self) -> str:
        return self._reader.state.snapshot.branch or MAIN

    @property
    def commit(self) -> Commit | None:
        return self._reader.state.head

    @property
    def schema(self) -> str:
        return self._schema

    @property
    def catalog(self) -> Catalog:
        return self._reader.catalog

    def blob(self, type_name: str, id: str, property: str, *, kind: str = "node") -> Blob:  # noqa: A002 - as in documents
        with _explaining_reclaimed(self._reader.tables, self._reader.state):
            return self._reader.blob(Cell(type_name, id, property, kind))

    def __repr__(self) -> str:
        return f"<SnapshotView {self.commit.commit_id if self.commit else 'the beginning'}>"
