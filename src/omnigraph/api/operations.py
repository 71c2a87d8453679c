"""Every operation of a graph, as data. Methods, routes, clients and the OpenAPI document are derived from this file.

To add one: declare it here, write its handler in `graph.py`, run `scripts/generate_methods.py`, and render
its result on the command line. docs/dev/operations.md shows it step by step.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY
from datetime import timedelta
from typing import Annotated, Any

from omnigraph.api.access import Action
from omnigraph.api.changes import (
    DEFAULT_BYTES,
    DEFAULT_COMMITS,
    DEFAULT_LIMIT,
    Baseline,
    ChangePage,
    Difference,
    EntityVersion,
)
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
from omnigraph.api.operation import Doc, Local, Operation, Route, SourceText, operation
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
    NamedState,
    ResolveResult,
    SchemaResult,
    Snapshot,
    Tag,
)
from omnigraph.api.reviews import Review, RuleOfBranch
from omnigraph.api.rows import Explanation, Result
from omnigraph.core.refs import MAIN

Branch = Annotated[str, Doc("The branch; main if none is named.")]
Ref = Annotated[str, Doc("A branch, a tag, a commit, `ref~n` or `ref@version`; main by default.")]
CommitId = Annotated[str, Doc("The id of a commit, or a unique prefix of it.")]
SnapshotId = Annotated[
    str | None,
    Doc("The state to read: a branch, a tag, a commit, `ref~n` or `ref@version`. Not with `branch`."),
]
QueryText = Annotated[
    str | os.PathLike[str], SourceText(".gq", "<query>"), Doc("Queries in the language of `.gq` files.")
]
SchemaText = Annotated[
    str | os.PathLike[str], SourceText(".pg", "<schema>"), Doc("A schema in the language of `.pg` files.")
]
QueryName = Annotated[str | None, Doc("Which query, if the source holds several.")]
TimeLimit = Annotated[float | None, Doc("How many seconds the query may take.")]
Parameters = Annotated[Mapping[str, Any] | None, Doc("The parameters of the query by name.")]
Resolving = Annotated[
    Resolve | None, Doc("Who wins conflicts: `ours`, `theirs`, one of them for each type, or for each conflict.")
]
MergeUnit = Annotated[str, Doc("property: combine changes of different properties; entity: one side per entity.")]
Message = Annotated[str | None, Doc("What the commit says about the change; at most 8 KiB.")]
Kinds = Annotated[Collection[str] | None, Doc("node or edge; can be repeated.")]
Types = Annotated[Collection[str] | None, Doc("Names of types; can be repeated.")]
Changes = Annotated[Collection[str] | None, Doc("insert, update or delete; can be repeated.")]
# The bounds themselves are checked where the page is made: a client must not refuse what a newer server allows.
Limit = Annotated[int, Doc("How many changes at most.")]
MaxBytes = Annotated[int, Doc("How many bytes of them at most.")]
PageToken = Annotated[str | None, Doc("Continue with the page that this token names.")]

# The server takes the actor from the token, and decides itself who does the work and how.
Actor = Annotated[str | None, Local]
EngineName = Annotated[str, Local]
Master = Annotated[str | None, Local]
Conf = Annotated[Mapping[str, str] | None, Local]
Reporting = Annotated[Progress, Local]

RequestId = Annotated[str, Doc("The id of the merge request.")]
Checks = Annotated[
    Mapping[str, str] | Sequence[str] | None,
    Doc("Queries that must find no rows: texts by name, or texts; on a server also the names of stored queries."),
]
TypeName = Annotated[str, Doc("The name of a type.")]
KindOfType = Annotated[str | None, Doc("node or edge, if a node type and an edge type have the name.")]

_FILTERS = {"kinds": "kind", "types": "type", "operations": "op"}


def _get(path: str, **more: Any) -> Route:
    return Route("GET", path, **more)


def _post(path: str, **more: Any) -> Route:
    return Route("POST", path, **more)


def _delete(path: str, **more: Any) -> Route:
    return Route("DELETE", path, **more)


# --- reading -----------------------------------------------------------------------------------------------------


@operation(
    Action.READ,
    _get("/schema", id="schema", answer=("SchemaOutput", {"schema_source": "."})),
    method="",
    command="schema show",
)
class ReadSchema(Operation[str]):
    """Return the accepted schema, as it was written."""


@operation(Action.READ, _get("/snapshot", id="snapshot"), method="snapshot", command="snapshot")
class ReadSnapshot(Operation[Snapshot]):
    """Return which version of each table a branch consists of."""

    branch: Branch = MAIN


@operation(
    Action.READ,
    _get("/commits", answer=("CommitListOutput", {"commits": "."})),
    method="commits",
    command="commit list",
)
class ListCommits(Operation[list[Commit]]):
    """List the commits of a branch, newest first; with `actor` only those of one actor."""

    branch: Branch = MAIN
    actor: str | None = None


@operation(Action.READ, _get("/commits/{commit_id}", id="get_commit"), method="commit", command="commit show")
class FindCommit(Operation[Commit]):
    """Find a commit on any branch."""

    commit_id: CommitId


@operation(Action.READ, _get("/states/{ref}", id="get_state"), method="", source="ref")
class ResolveState(Operation[NamedState]):
    """Resolve a branch, a tag or a commit to the commit it is at, with the schema of that state."""

    ref: Ref


@operation(Action.READ, _post("/query", names={"source": "query"}), method="query", command="query")
class RunQuery(Operation[Result]):
    """Run a read query. It sees one state of the graph: the branch as it is, or as it was at a commit.

    With `branches` it is run on each of them, and the rows of all have the name of their branch in the column `branch`.
    """

    source: QueryText
    params: Parameters = None
    _: KW_ONLY
    name: QueryName = None
    branch: Branch = MAIN
    snapshot: SnapshotId = None
    timeout: TimeLimit = None
    # Never sent: a client asks for one branch after the other.
    branches: Annotated[Sequence[str] | None, Local] = None


@operation(Action.READ, _post("/explain", id="explain", names={"source": "query"}), method="explain", command="query")
class ExplainQuery(Operation[Explanation]):
    """Run a read query, and return how it was executed: its steps, their rows and what they cost."""

    source: QueryText
    params: Parameters = None
    _: KW_ONLY
    name: QueryName = None
    branch: Branch = MAIN
    snapshot: SnapshotId = None
    timeout: TimeLimit = None


# No routes: streams are written by hand in `server.routes` and `client.calls`, but permissions come from here.
@operation(Action.EXPORT, method="", command="export")
class ExportLines(Operation[Iterator[str]]):
    """Write the entities of a state as lines of JSON, in a form that `load` takes."""

    _: KW_ONLY
    branch: Branch = MAIN
    snapshot: SnapshotId = None
    types: Sequence[str] | None = None
    format: str = "jsonl"
    engine: EngineName = "auto"


@operation(Action.EXPORT, method="", command="export")
class ExportFiles(Operation[ExportResult]):
    """Write the entities of a state into a file or a directory, in a form that `load` takes."""

    path: str | os.PathLike[str]
    _: KW_ONLY
    branch: Branch = MAIN
    snapshot: SnapshotId = None
    types: Sequence[str] | None = None
    format: str = "jsonl"
    engine: EngineName = "auto"
    master: Master = None
    conf: Conf = None
    progress: Reporting = SILENT


# --- writing -----------------------------------------------------------------------------------------------------


@operation(
    Action.CHANGE,
    _post("/mutate", names={"source": "query"}),
    _post(
        "/mutate/if-graph-commit",
        id="mutate_if_graph_commit",
        names={"source": "query"},
        condition="if_commit",
        doc="Run a mutation only if its branch is at the commit that the header names.",
    ),
    commits=True,
    command="mutate",
)
class Mutate(Operation[MutationResult]):
    """Run a query that inserts, updates or deletes: all of it in one commit, or nothing.

    `source` is the text of `.gq` queries or the path of a file; `name` chooses one of several. With `if_commit` the
    mutation happens only if the branch is at that commit. When it returns, the change is durable and visible;
    when it raises, nothing was changed, except for OutcomeUnknownError: then ask `outcome`.
    """

    source: QueryText
    params: Parameters = None
    _: KW_ONLY
    name: QueryName = None
    branch: Branch = MAIN
    actor: Actor = None
    message: Message = None
    # Chooses the route and travels in a header, so it is not part of the body; see `Route.condition`.
    if_commit: str | None = None


@operation(Action.CHANGE, method="load", commits=True, command="load")
class LoadData(Operation[LoadResult]):
    """Load data in one commit, or nothing: files, records, Arrow tables or Spark DataFrames by type.

    `mode` is append, merge or overwrite. A branch that does not exist is created from `base`, another branch. `engine`
    is local, spark, or auto: then small data is loaded in this process and large data on Spark, which `master` and
    `conf` configure. `csv` says how CSV files are written, such as {"delimiter": ";"}. `dry_run` only checks. All
    problems are written to the file `rejects`, as JSON lines. With `max_bad`, up to so many bad records are left out,
    and the others are loaded. `dedupe="ends"` has a merge replace edges that have no id by those with the same ends. A
    client sends files to the server; `s3://` addresses the server reads itself, if its load roots allow it.
    """

    data: Any
    _: KW_ONLY
    mode: str
    branch: Branch = MAIN
    base: str | None = None
    actor: Actor = None
    message: Message = None
    engine: EngineName = "auto"
    format: str | None = None
    mapping: str | os.PathLike[str] | Mapping[str, Any] | None = None
    csv: Mapping[str, Any] | None = None
    dry_run: bool = False
    rejects: str | os.PathLike[str] | None = None
    max_bad: int | None = None
    dedupe: str | None = None
    master: Master = None
    conf: Conf = None
    progress: Reporting = SILENT


@operation(Action.CHANGE, method="embed", command="embed")
class EmbedTexts(Operation[EmbedResult]):
    """Fill the vectors that `@embed` properties lack, from their texts; with the mode `reembed_all` all of them.

    Each batch is a commit. If one fails, those before it stay, and the next call does the rest.
    """

    types: Sequence[str] | None = None
    _: KW_ONLY
    # A text, as in every operation: `option` reads it, and the error names the values that there are.
    mode: str = EmbedMode.FILL_MISSING
    branch: Branch = MAIN
    actor: Actor = None
    message: Message = None
    progress: Reporting = SILENT


@operation(Action.READ, _post("/schema/plan", names={"schema": "schema_source"}), command="schema plan")
class PlanSchema(Operation[SchemaResult]):
    """Return the steps that lead to a schema, whether each is supported, and how many entities they touch."""

    schema: SchemaText
    _: KW_ONLY
    allow_data_loss: Annotated[bool, Doc("Give up at once what is dropped.")] = False
    branch: Branch = MAIN


@operation(
    Action.SCHEMA_APPLY,
    _post(
        "/schema/apply",
        names={"schema": "schema_source"},
        doc="Change the schema in one commit. Refused if a stored query does not fit the new schema.",
    ),
    commits=True,
    command="schema apply",
)
class ApplySchema(Operation[SchemaResult]):
    """Change the schema in one commit, without rewriting data. Earlier commits keep the schema of their time.

    Dropped data stays readable at earlier commits until a cleanup, unless `allow_data_loss` gives it up at once.
    """

    schema: SchemaText
    _: KW_ONLY
    allow_data_loss: Annotated[bool, Doc("Give up at once what is dropped.")] = False
    branch: Branch = MAIN
    actor: Actor = None
    message: Message = None


@operation(
    Action.READ,
    _get("/outcomes/{operation_id}", id="get_outcome", answer=("OutcomeOutput", {"commit": "."})),
    method="outcome",
)
class FindOutcome(Operation[Commit | None]):
    """Return what an operation with an unknown outcome did: its commit, or None if it changed nothing."""

    operation_id: str
    branch: Branch = MAIN


# --- branches and tags -------------------------------------------------------------------------------------------


@operation(
    Action.READ,
    _get("/branches", doc="List the branches, sorted."),
    method="branches",
    command="branch list",
)
class ListBranches(Operation[list[str]]):
    """List the branches, main first."""


@operation(
    Action.BRANCH_CREATE,
    _post(
        "/branches",
        names={"base": "from"},
        answer=("BranchCreateOutput", {"uri": "@uri", "from": "@base", "name": "@name", "actor_id": "@actor"}),
    ),
    command="branch create",
    source="base",
    target="name",
)
class CreateBranch(Operation[None]):
    """Create a branch from another branch, a tag or a commit. No data is copied."""

    name: str
    base: Ref = MAIN


@operation(
    Action.BRANCH_DELETE,
    _delete(
        "/branches/{branch}",
        names={"name": "branch"},
        answer=("BranchDeleteOutput", {"uri": "@uri", "name": "@name", "actor_id": "@actor"}),
    ),
    command="branch delete",
    target="name",
)
class DeleteBranch(Operation[None]):
    """Delete a branch, and what only it has."""

    name: str


@operation(
    Action.BRANCH_MERGE,
    _post("/branches/merge", names={"into": "target"}),
    _post(
        "/branches/merge/preview",
        id="preview_merge",
        names={"into": "target"},
        given={"dry_run": True},
        action=Action.READ,
        doc="Return what a merge would do, conflicts included, and change nothing.",
    ),
    method="merge",
    commits=True,
    command="branch merge",
    source="source",
    target="into",
)
class MergeBranch(Operation[MergeResult]):
    """Merge a branch into another: one commit with two parents, or MergeConflictError with all conflicts.

    Changes of different properties of one entity are combined; `by="entity"` makes them a conflict. `resolve` says who
    wins where both changed the same: `ours` (the branch that is merged into), `theirs`, one of them for each type
    (`Person`) or property (`Person.age`), a list of conflicts each with what to `take`, or a file of them. `dry_run`
    only returns what would happen. A merge of very many entities runs on Spark, unless `engine` says otherwise.
    """

    source: str
    into: Branch = MAIN
    _: KW_ONLY
    actor: Actor = None
    message: Message = None
    dry_run: bool = False
    resolve: Resolving = None
    by: MergeUnit = "property"
    engine: EngineName = "auto"
    master: Master = None
    conf: Conf = None
    progress: Reporting = SILENT


@operation(Action.CHANGE, _post("/revert", id="revert"), method="revert", commits=True, command="revert")
class RevertCommit(Operation[MergeResult]):
    """Undo what one commit changed, by a new commit. A property that was changed again since then is a conflict."""

    commit_id: CommitId
    branch: Branch = MAIN
    _: KW_ONLY
    actor: Actor = None
    message: Message = None
    resolve: Resolving = None


@operation(
    Action.CHANGE,
    _post("/cherry-pick", id="cherry_pick"),
    method="cherry_pick",
    commits=True,
    command="cherry-pick",
)
class PickCommit(Operation[MergeResult]):
    """Make the changes of one commit on another branch, by a new commit. What contradicts them is a conflict.

    Of a merge, that is all it brought in. What the branch has already makes no commit.
    """

    commit_id: CommitId
    branch: Branch = MAIN
    _: KW_ONLY
    actor: Actor = None
    message: Message = None
    resolve: Resolving = None


@operation(
    Action.CHANGE,
    _post("/restore-entities", names={"type_name": "type"}),
    commits=True,
    command="restore-entities",
)
class RestoreEntities(Operation[MergeResult]):
    """Bring a type, or some of its entities, to what they were in another state, by a new commit.

    An entity that the state lacks is deleted. The rules of the schema are checked on the result: a node that edges
    refer to is not removed.
    """

    type_name: TypeName
    ids: Annotated[Sequence[str] | None, Doc("The entities; all of the type if none are named.")] = None
    _: KW_ONLY
    ref: Annotated[str, Doc("The state to take them from: a branch, a tag, a commit, `ref~n` or `ref@version`.")]
    kind: KindOfType = None
    branch: Branch = MAIN
    actor: Actor = None
    message: Message = None


# --- merge requests, and the rules of branches --------------------------------------------------------------------


@operation(
    Action.BRANCH_MERGE,
    _post("/merge-requests", names={"into": "target"}),
    method="requests.open",
    command="request open",
)
class OpenRequest(Operation[Review]):
    """Ask for a merge of a branch into another. The checks must find no rows on the merged state."""

    source: str
    into: Branch = MAIN
    _: KW_ONLY
    title: Annotated[str, Doc("What it is about, in a line.")]
    message: Annotated[str | None, Doc("More about it; the commit will say it.")] = None
    checks: Checks = None
    actor: Actor = None


@operation(
    Action.READ,
    _get("/merge-requests", answer=("ReviewListOutput", {"requests": "."})),
    method="requests.list",
    command="request list",
)
class ListRequests(Operation[list[Review]]):
    """List the merge requests, newest first: all, or those in a state, open, merged or closed."""

    state: Annotated[str | None, Doc("open, merged or closed; all if none is named.")] = None


@operation(
    Action.READ, _get("/merge-requests/{request_id}", id="get_request"), method="requests.get", command="request show"
)
class FindRequest(Operation[Review]):
    """Find a merge request, with the approvals and checks that count for its branches as they are now."""

    request_id: RequestId


@operation(
    Action.BRANCH_MERGE,
    _post("/merge-requests/{request_id}/approve", id="approve_request"),
    method="requests.approve",
    command="request approve",
)
class ApproveRequest(Operation[Review]):
    """Approve the merge of both branches as they are now. The approval lapses when one of them moves."""

    request_id: RequestId
    _: KW_ONLY
    actor: Actor = None


@operation(
    Action.BRANCH_MERGE,
    _post("/merge-requests/{request_id}/checks", id="check_request"),
    method="requests.check",
    command="request check",
)
class CheckRequest(Operation[Review]):
    """Run the checks of a merge request, and those of the target, on what the merge would make now."""

    request_id: RequestId


@operation(
    Action.BRANCH_MERGE,
    _post("/merge-requests/{request_id}/merge", id="merge_request"),
    method="requests.merge",
    commits=True,
    command="request merge",
)
class MergeRequested(Operation[MergeResult]):
    """Merge a request in one commit. Its checks are run on the merged state before that is published.

    A protected target demands the approvals of its rule. What was decided is in the details of the commit.
    """

    request_id: RequestId
    _: KW_ONLY
    actor: Actor = None
    message: Message = None
    resolve: Resolving = None
    by: MergeUnit = "property"


@operation(
    Action.BRANCH_MERGE,
    _post("/merge-requests/{request_id}/close", id="close_request"),
    method="requests.close",
    command="request close",
)
class CloseRequest(Operation[Review]):
    """Close a merge request without merging it."""

    request_id: RequestId
    _: KW_ONLY
    actor: Actor = None


@operation(
    Action.ADMIN,
    _post("/branches/{branch}/rule", id="protect_branch"),
    method="protect",
    command="branch protect",
    target="branch",
)
class ProtectBranch(Operation[RuleOfBranch]):
    """Protect a branch: from now on it takes merge requests only, with so many approvals and whose checks pass.

    An approval lapses when the source or the target moves; with `lapse="source"` only when the source does. Actors in
    `bypass` may write without a request. The rule is in the history of the branch, as a commit.
    """

    branch: str
    _: KW_ONLY
    approvals: Annotated[int, Doc("How many actors must approve.")] = 1
    self_approval: Annotated[bool, Doc("Whether the author may approve.")] = False
    lapse: Annotated[str, Doc("source_or_target or source.")] = "source_or_target"
    checks: Checks = None
    bypass: Annotated[Sequence[str] | None, Doc("Actors who may write without a request.")] = None
    actor: Actor = None


@operation(
    Action.ADMIN,
    _delete("/branches/{branch}/rule", id="unprotect_branch"),
    method="unprotect",
    command="branch unprotect",
    target="branch",
)
class UnprotectBranch(Operation[RuleOfBranch]):
    """Lift the rule of a branch, in a commit."""

    branch: str
    _: KW_ONLY
    actor: Actor = None


@operation(
    Action.READ, _get("/branches/{branch}/rule", id="get_rule"), method="rule", command="branch rule", source="branch"
)
class FindRule(Operation[RuleOfBranch]):
    """Return what a branch demands of writes."""

    branch: Branch = MAIN


@operation(Action.CHANGE, _post("/resolve", id="resolve"), method="resolve", commits=True, command="resolve")
class ResolveEntities(Operation[ResolveResult]):
    """Find nodes of a type that are the same entity, and merge them: one is kept, with the edges of all.

    Candidates are nodes with equal values of `key`, with common `words` in a property, or near each other by a
    `vector`, whose score reaches the threshold; with `block` only nodes with an equal value there. `pairs` are known
    ones. `dry_run` returns them, and changes nothing.
    """

    type_name: str
    _: KW_ONLY
    key: Annotated[Sequence[str], Doc("Properties that are equal, apart from case and blanks.")] = ()
    words: Annotated[str | None, Doc("A property with words in common.")] = None
    vector: Annotated[str | None, Doc("A property with near vectors.")] = None
    pairs: Annotated[Sequence[Sequence[str]] | None, Doc("Pairs of ids that are known to be the same.")] = None
    block: Annotated[str | None, Doc("Compare only nodes with an equal value of this property.")] = None
    threshold: Annotated[float, Doc("The least score of a pair, up to 1.")] = 0.8
    branch: Branch = MAIN
    actor: Actor = None
    message: Message = None
    dry_run: bool = False


@operation(Action.READ, _get("/tags", answer=("TagListOutput", {"tags": "."})), method="tags", command="tag list")
class ListTags(Operation[list[Tag]]):
    """List the tags by name, each with its commit."""


@operation(Action.BRANCH_CREATE, _post("/tags"), command="tag create", source="ref", target="name")
class CreateTag(Operation[Tag]):
    """Create an immutable name for a commit: by its id, or the one that a branch is at."""

    name: str
    ref: Ref = MAIN


@operation(
    Action.BRANCH_DELETE,
    _delete("/tags/{tag}", names={"name": "tag"}, answer=("TagDeleteOutput", {"uri": "@uri", "name": "@name"})),
    command="tag delete",
    target="name",
)
class DeleteTag(Operation[None]):
    """Delete a tag; its commit stays."""

    name: str


# --- history -----------------------------------------------------------------------------------------------------


@operation(
    Action.READ,
    _get("/log", id="log", names={"branches": "branch"}, answer=("LogOutput", {"commits": "."})),
    method="log",
    command="log",
)
class ReadLog(Operation[list[LogEntry]]):
    """List the commits of some branches, or of all, newest first, with the branches and tags that are at them."""

    branches: Annotated[Sequence[str] | None, Doc("Branches, or ranges `a..b`: what b has and a lacks.")] = None


@operation(
    Action.READ,
    _get("/history", id="get_history", names={"type_name": "type"}, answer=("HistoryOutput", {"versions": "."})),
    method="history_of",
    command="history",
)
class ReadHistory(Operation[list[EntityVersion]]):
    """List what happened to one entity, newest first: by which commit, and which properties changed.

    What a merge brought in is listed by the commits of its branch, as long as that can be read.
    """

    type_name: TypeName
    id: Annotated[str, Doc("The id of the entity.")]
    branch: Ref = MAIN
    _: KW_ONLY
    kind: KindOfType = None
    limit: Annotated[int, Doc("How many changes at most.")] = 100


@operation(Action.READ, _get("/changes", names=_FILTERS), method="changes", command="changes")
class PollChanges(Operation[ChangePage]):
    """Return what the commits of a branch changed, each compared with its first parent, page by page.

    `start` is now, beginning or after:<commit>, for which `after` is short; `cursor` and `page_token` continue where
    an earlier page ended. A change can be returned twice, but is never left out.
    """

    branch: Branch = MAIN
    _: KW_ONLY
    # Never sent: `__post_init__` turns it into `start`.
    after: Annotated[str | None, Local] = None
    start: Annotated[str | None, Doc("now, beginning or after:<commit>.")] = None
    cursor: Annotated[str | None, Doc("Continue where an earlier poll ended.")] = None
    page_token: PageToken = None
    kinds: Kinds = None
    types: Types = None
    operations: Changes = None
    limit: Limit = DEFAULT_LIMIT
    max_bytes: MaxBytes = DEFAULT_BYTES
    max_commits: Annotated[int, Doc("How many commits at most.")] = DEFAULT_COMMITS

    def __post_init__(self) -> None:
        if self.after is not None:  # one form from here on, so that engine and server know only `start`
            object.__setattr__(self, "start", f"after:{self.after}")


@operation(
    Action.READ,
    _get("/changes/cursor", id="get_change_cursor", answer=("ChangeCursorOutput", {"cursor": "."})),
    method="change_cursor",
    command="changes",
)
class FindChangeCursor(Operation[str]):
    """Return the cursor of all changes after a commit, to continue from an export at that commit."""

    after: CommitId
    branch: Branch = MAIN


@operation(
    Action.READ, _get("/changes/baseline", id="get_baseline", names=_FILTERS), method="baseline", command="changes"
)
class FindBaseline(Operation[Baseline]):
    """Return where to start following a branch: what to export at which commit, and the cursor to continue with.

    `kinds` and `types` choose tables; pass the same `kinds`, `types` and `operations` to `changes` with the cursor.
    """

    branch: Branch = MAIN
    _: KW_ONLY
    kinds: Kinds = None
    types: Types = None
    operations: Changes = None


@operation(
    Action.READ,
    _get("/commits/{commit_id}/changes", id="get_commit_changes", names=_FILTERS),
    method="commit_changes",
    command="changes",
)
class ReadCommitChanges(Operation[ChangePage]):
    """Return what one commit changed, compared with its first parent."""

    commit_id: CommitId
    _: KW_ONLY
    page_token: PageToken = None
    kinds: Kinds = None
    types: Types = None
    operations: Changes = None
    limit: Limit = DEFAULT_LIMIT
    max_bytes: MaxBytes = DEFAULT_BYTES


@operation(Action.READ, method="", command="diff")
class DiffStates(Operation[Difference]):
    """Compare two states: which entities turn the first into the second.

    Without a second one, `a...b` compares b with the commit where it parted from a: what b did since.
    """

    a: Ref
    b: Ref | None = None
    _: KW_ONLY
    kinds: Kinds = None
    types: Types = None
    operations: Changes = None


# --- maintenance: works on the storage itself, so it is not served ------------------------------------------------


@operation(Action.ADMIN, command="optimize")
class EnsureIndices(Operation[UpkeepResult]):
    """Build the indices that the schema asks for over all rows, in one commit. No answer depends on them."""

    branch: Branch = MAIN
    _: KW_ONLY
    actor: Actor = None
    engine: EngineName = "auto"
    master: Master = None
    conf: Conf = None
    progress: Reporting = SILENT


@operation(Action.ADMIN, command="optimize")
class Optimize(Operation[UpkeepResult]):
    """Compact small fragments into large ones and index them, in one commit; rows stay unchanged."""

    branch: Branch = MAIN
    _: KW_ONLY
    actor: Actor = None
    engine: EngineName = "auto"
    master: Master = None
    conf: Conf = None
    progress: Reporting = SILENT


@operation(Action.ADMIN, command="cleanup")
class Cleanup(Operation[CleanupResult]):
    """Remove what only old commits need: those not among the last `keep` and not younger than `older_than`.

    Without `confirm` nothing is removed, and the result says what would be. Branches and tags are kept as they
    are. Files that nothing refers to are removed when they are older than `orphan_age`.
    """

    keep: int | None = None
    older_than: timedelta | None = None
    _: KW_ONLY
    confirm: bool = False
    orphan_age: timedelta = ORPHAN_AGE
    progress: Reporting = SILENT


@operation(Action.ADMIN, method="upkeep", command="upkeep")
class RunUpkeep(Operation[UpkeepReport]):
    """Optimize the branches that need it, and with `keep` or `older_than` clean up what they let go.

    With nothing to do it changes nothing, so it can run as often as you like.
    """

    keep: int | None = None
    older_than: timedelta | None = None
    _: KW_ONLY
    progress: Reporting = SILENT


@operation(Action.ADMIN, command="repair")
class Repair(Operation[RepairResult]):
    """Find tables that another program moved; with `confirm`, keep the moves that provably changed no rows.

    With `force` as well, all moves are kept.
    """

    _: KW_ONLY
    confirm: bool = False
    force: bool = False


@operation(Action.ADMIN, command="relocate")
class Relocate(Operation[Relocation]):
    """Make every branch of a graph that was copied or moved refer to the files at its present address.

    Opening a graph read-write does the same when it is needed.
    """


# Not ADMIN: it reads everything and changes nothing in the graph, exactly as an export.
@operation(Action.EXPORT, command="backup create")
class Backup(Operation[BackupResult]):
    """Copy all branches and tags with their history to a directory or bucket, while others write.

    A later backup to the same target copies only what is new.
    """

    target: str | os.PathLike[str]
    _: KW_ONLY
    progress: Reporting = SILENT


@operation(Action.READ, command="verify")
class Verify(Operation[VerifyResult]):
    """Check that every file that the graph refers to is there; with `against`, that it is as in that backup."""

    against: str | os.PathLike[str] | None = None
    _: KW_ONLY
    progress: Reporting = SILENT


@operation(Action.READ, command="doctor")
class Doctor(Operation[HealthReport]):
    """Report the health of the graph: what is broken, what could be better, and which command to run.

    Every file that branches, tags and later merges need is looked for. With `deep`, every row of them is read and
    compared with row counts, ids, the ends of edges and indices. With `backup`, the address of backups, every file that
    the latest one has is read and compared with its digest. Very many rows are read on Spark, unless `engine` says
    otherwise.
    """

    _: KW_ONLY
    deep: bool = False
    backup: str | os.PathLike[str] | None = None
    engine: EngineName = "auto"
    master: Master = None
    conf: Conf = None
    progress: Reporting = SILENT
