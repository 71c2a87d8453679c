"""The change feed: the changes of a branch, commit by commit, for readers that poll."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace

from omnigraph.api.changes import (
    MAX_BYTES,
    MAX_COMMITS,
    MAX_LIMIT,
    Baseline,
    Change,
    ChangeBlock,
    ChangePage,
)
from omnigraph.api.operations import FindBaseline, FindChangeCursor, PollChanges, ReadCommitChanges
from omnigraph.api.results import Commit
from omnigraph.commit.store import Store
from omnigraph.core.refs import branch_of, checked_name
from omnigraph.errors import (
    ChangeCursorError,
    ChangeRefusedError,
    ChangeRequestError,
    CommitNotFoundError,
    HistoryReclaimedError,
    ResourceLimitError,
)
from omnigraph.history.delta import Touched
from omnigraph.history.diff import (
    ChangeFilter,
    Diff,
    TablePair,
    changed_rows,
    chosen,
    diff_of,
    short_id,
    touched,
    type_names,
)
from omnigraph.history.resolve import find_commit, graph_state_at
from omnigraph.lang.schema_steps import SchemaPlan
from omnigraph.manifest.publisher import Manifest
from omnigraph.manifest.state import GraphState, ManifestState

_NOW, _BEGINNING, _AFTER = "now", "beginning", "after:"
PARENTLESS, SCHEMA_CHANGED = "parentless_commit", "schema_boundary"  # why the changes of a commit are unknown


class Feed:
    """Reads the change feed. It keeps the changed rows of a large commit until its last page is read."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._found: tuple[TablePair, Touched] | None = None

    def poll(self, request: PollChanges) -> ChangePage:
        """Return the next page of changes of a branch."""
        _check(request)
        history = _History.of(self._store, request.branch)
        wanted, scope = self._scope(request, history)
        position = history.start(request, scope, self._store.manifest)
        coming = history.since(position.after)
        if request.start == _BEGINNING:
            self._check_beginning(coming[0])
        # A page token names its last commit: commits made between two pages belong to the next poll.
        last = _place(coming, position.until) if position.until else request.max_commits
        page = _PageBuilder(request, scope, wanted, reaches_head=last >= len(coming) - 1)
        return self._page(page, coming[: last + 1], position)

    def cursor(self, find: FindChangeCursor) -> str:
        """Return the cursor of a starting point without reading any change."""
        history = _History.of(self._store, find.branch)
        request = PollChanges(find.branch, start=f"{_AFTER}{find.after}")
        _, scope = self._scope(request, history)
        position = history.start(request, scope, self._store.manifest)
        history.since(position.after)  # raises if the branch does not contain it
        return position.encode(scope)

    def baseline(self, find: FindBaseline) -> Baseline:
        """Return the current commit of the branch, the tables to export at it, and the cursor after it."""
        history = _History.of(self._store, find.branch)
        wanted, scope = self._scope(find, history)
        commit_id = history.head.commit_id
        tables = tuple(key for key in history.state.snapshot.entries if wanted.wants_table(key))
        return Baseline(commit_id, CursorPosition(commit_id).encode(scope), tables)

    def _scope(self, request: PollChanges | FindBaseline, history: _History) -> tuple[ChangeFilter, CursorScope]:
        wanted = _filter(request, history.state.graph_state)
        graph, branch = str(history.state.graph_id), checked_name(request.branch)
        return wanted, CursorScope.of(graph, branch, history.incarnation, wanted.digest)

    def commit(self, request: ReadCommitChanges) -> ChangePage:
        """Return the changes of one commit relative to its first parent."""
        _check(request)
        manifest = self._store.manifest
        commit = find_commit(manifest, request.commit_id)
        if commit.parent_id is None:
            message = f"commit {request.commit_id} has no parent to compare it with"
            hint = "export the graph at this commit instead"
            raise ChangeRefusedError(message, commit_id=request.commit_id, reason=PARENTLESS, hint=hint)
        parent = find_commit(manifest, commit.parent_id)
        wanted = _filter(request, graph_state_at(manifest, commit))
        # The parent in place of the graph: the token of one commit must not be taken for a cursor of the feed.
        scope = CursorScope.of(commit.parent_id, "", "", wanted.digest)
        token = request.page_token
        position = CursorPosition(parent.commit_id) if token is None else decode(token, scope)
        page = self._page(_PageBuilder(request, scope, wanted, reaches_head=True), [parent, commit], position)
        return replace(page, cursor=None)

    def _check_beginning(self, first: Commit) -> None:
        """Refuse to start at a first commit that has entities: the feed could not report them."""
        entries = graph_state_at(self._store.manifest, first).snapshot.entries.values()
        if any(entry.row_count for entry in entries):
            message = f"commit {first.commit_id} has entities but no parent: the feed cannot report them"
            hint = f"export the graph at this commit, then start at after:{first.commit_id}"
            raise ChangeRefusedError(message, commit_id=first.commit_id, reason=PARENTLESS, hint=hint)

    def _page(self, page: _PageBuilder, coming: Sequence[Commit], position: CursorPosition) -> ChangePage:
        """Fill a page with the changes of all commits after the first."""
        done, until = coming[0], coming[-1].commit_id
        before = None
        for commit in coming[1:]:
            try:
                before = before or graph_state_at(self._store.manifest, done)
                after = graph_state_at(self._store.manifest, commit)
                diff = diff_of(self._store, before, after, page.filter)
                diff.check_readable()
                _refuse_unknown(diff, commit)
                schema = diff.schemas.plan if diff.schemas else None
                with diff.explaining_reclaimed():
                    stopped = page.add(commit, self._changes(diff, position), schema)
            except (HistoryReclaimedError, ChangeRefusedError):
                if not page.blocks:
                    raise
                page.reaches_head = False  # deliver what comes before it; the next poll starts with the error
                break
            if stopped is not None:
                token = replace(stopped, after=done.commit_id, until=until)
                return page.page(None, token.encode(page.scope))
            # The state after this commit is the one before the next, and is not read twice.
            done, before, position = commit, after, CursorPosition(commit.commit_id)
        self._found = None  # all of it is delivered
        return page.page(CursorPosition(done.commit_id).encode(page.scope))

    def _changes(self, diff: Diff, position: CursorPosition) -> Iterator[tuple[TablePair, Change]]:
        """Yield the changes of one commit, starting after a position in it."""
        pairs = diff.pairs()
        beyond = position.entity
        if position.table is not None:
            pairs = list(itertools.dropwhile(lambda pair: short_id(pair.key) != position.table, pairs))
        for pair in pairs:
            for rows in changed_rows(pair.key, self._touched(pair), diff.filter, beyond):
                yield from ((pair, change) for change in rows.changes())
            beyond = None

    def _touched(self, pair: TablePair) -> Touched:
        known = self._found
        if known is None or known[0] != pair:
            known = pair, touched(self._store.tables, pair)
            self._found = known
        return known[1]


def _check(request: PollChanges | ReadCommitChanges) -> None:
    """Refuse a request with two starting points, or with a page that is too large or empty."""
    starts = ("start", "cursor", "page_token")
    given = [name for name in starts if getattr(request, name, None) is not None]
    if len(given) > 1:
        message = f"{' and '.join(given)} cannot be combined"
        raise ChangeRequestError(message, option=given[0], hint="give only one of them")
    limits = [("changes", request.limit, MAX_LIMIT), ("bytes", request.max_bytes, MAX_BYTES)]
    if isinstance(request, PollChanges):
        limits.append(("commits", request.max_commits, MAX_COMMITS))
    for name, value, most in limits:
        if value > most:
            message, hint = f"a page cannot hold {value:,} {name}", f"the limit is {most:,}"
            raise ResourceLimitError(message, resource=name, limit=most, actual=value, hint=hint)
        if value < 1:
            raise ChangeRequestError(f"a page cannot hold {value} {name}", option="limit", hint="the minimum is 1")


def _filter(request: PollChanges | FindBaseline | ReadCommitChanges, state: GraphState) -> ChangeFilter:
    return chosen(request.kinds, request.types, request.operations, type_names(state))


def _refuse_unknown(diff: Diff, commit: Commit) -> None:
    """Refuse a commit of another implementation that changed the schema: it left no record of what it did."""
    if diff.schemas is None and diff.schema:
        message = f"commit {commit.commit_id} changed the schema: the feed cannot report its changes"
        hint = f"export the graph at this commit as a baseline, then start at after:{commit.commit_id}"
        raise ChangeRefusedError(message, commit_id=commit.commit_id, reason=SCHEMA_CHANGED, hint=hint)


@dataclass(slots=True)
class _PageBuilder:
    """A page while it is filled."""

    request: PollChanges | ReadCommitChanges
    scope: CursorScope
    filter: ChangeFilter
    reaches_head: bool
    blocks: list[ChangeBlock] = field(default_factory=list)
    count: int = 0
    size: int = 0

    def add(
        self, cause: Commit, changes: Iterator[tuple[TablePair, Change]], schema: SchemaPlan | None
    ) -> CursorPosition | None:
        """Add the changes of a commit; if they do not all fit, return the position of the last that did."""
        added: list[Change] = []
        stopped = last = None
        for pair, change in changes:
            if not self._fits(change):
                stopped = last or CursorPosition("")  # none of this commit fits: the next page has it from its start
                break
            added.append(change)
            last = CursorPosition("", table=short_id(pair.key), entity=short_id(change.id))
        if added or stopped is None:
            self.blocks.append(ChangeBlock(cause, tuple(added), schema))
        return stopped

    def _fits(self, change: Change) -> bool:
        """Count a change if the page has room for it. A page has at least one, however large."""
        # As it is sent: the limit protects the response.
        size = len(json.dumps(change.to_dict(), ensure_ascii=False).encode())
        if self.count and (self.count >= self.request.limit or self.size + size > self.request.max_bytes):
            return False
        self.count, self.size = self.count + 1, self.size + size
        return True

    def page(self, cursor: str | None, token: str | None = None) -> ChangePage:
        return ChangePage(tuple(self.blocks), cursor, token, caught_up=cursor is not None and self.reaches_head)


@dataclass(frozen=True, slots=True)
class _History:
    """A branch: its latest state, and its commits along the first parents."""

    state: ManifestState
    incarnation: str

    @classmethod
    def of(cls, store: Store, name: str) -> _History:
        branch = branch_of(checked_name(name))
        # Before the state is loaded: a branch recreated in between must not get a cursor of the new incarnation.
        incarnation = store.manifest.incarnation(branch)
        return cls(store.manifest.load(branch), incarnation)

    @property
    def head(self) -> Commit:
        assert self.state.head is not None, "a graph begins with a commit"
        return self.state.head

    def since(self, commit_id: str) -> list[Commit]:
        """Return a commit and those after it, oldest first. What it costs follows their number, not the history."""
        # Along first parents only: what a merge brought in is the change of the merge commit, and would come twice.
        found: list[Commit] = []
        for commit in self.state.first_parents(self.head):
            found.append(commit)
            if commit.commit_id == commit_id:
                return found[::-1]
        raise _not_on_branch(commit_id)

    def start(self, request: PollChanges, scope: CursorScope, manifest: Manifest) -> CursorPosition:
        """Return the position to start after."""
        if request.cursor is not None:
            return decode(request.cursor, scope)
        if request.page_token is not None:
            return decode(request.page_token, scope)
        start = request.start or _NOW
        if start == _NOW:
            return CursorPosition(self.head.commit_id)
        if start == _BEGINNING:
            *_, first = self.state.first_parents(self.head)
            return CursorPosition(first.commit_id)
        if start.startswith(_AFTER):
            named = start.removeprefix(_AFTER)
            # An id of this branch is taken as it is: to resolve it may load other branches.
            if self.state.commit(named) is None:
                named = find_commit(manifest, named).commit_id
            return CursorPosition(named)
        message = f"invalid start '{start}'"
        raise ChangeRequestError(message, option="start", hint="use now, beginning or after:<commit>")


def _place(commits: Sequence[Commit], commit_id: str) -> int:
    for at, commit in enumerate(commits):
        if commit.commit_id == commit_id:
            return at
    raise _not_on_branch(commit_id)


def _not_on_branch(commit_id: str) -> CommitNotFoundError:
    message = f"commit '{commit_id}' is not in the history of the branch"
    return CommitNotFoundError(message, commit_id=commit_id, hint="start now, or after a commit of the branch")


# Cursors and page tokens: opaque texts, each valid for one graph, branch and filter -----------------

_LONGEST = 4096
_VERSION = 1


@dataclass(frozen=True, slots=True)
class CursorScope:
    """What a cursor is valid for: the graph, the incarnation of the branch, and the filter."""

    graph: str
    branch: str
    filter: str

    @classmethod
    def of(cls, graph: str, branch: str, incarnation: str, digest: str) -> CursorScope:
        return cls(graph, hashlib.sha256(f"{branch}\0{incarnation}".encode()).hexdigest()[:16], digest)


@dataclass(frozen=True, slots=True)
class CursorPosition:
    """The last commit delivered in full; a page token also has the position inside the next, and the last commit."""

    after: str
    until: str | None = None
    table: str | None = None
    entity: str | None = None

    def encode(self, scope: CursorScope) -> str:
        # Not signed: a forged cursor reads nothing that the same caller could not read with `start`.
        text = json.dumps([_VERSION, asdict(scope), asdict(self)], separators=(",", ":"))
        encoded = base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")
        assert len(encoded) <= _LONGEST, "a token is short, whatever the ids are"
        return encoded


def decode(text: str, scope: CursorScope) -> CursorPosition:
    """Decode a cursor or page token; raise ChangeCursorError if it is invalid or of another scope."""
    # Before it is decoded: decoding and parsing cost many times the length of the text.
    if len(text) > _LONGEST:
        raise _rejected("it is too long to be one")
    try:
        version, theirs, position = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        found, bound = CursorPosition(**position), CursorScope(**theirs)
    # RecursionError: a client may send any text, also one that is nested deeply.
    except (ValueError, TypeError, RecursionError):
        raise _rejected("it cannot be read") from None
    if version != _VERSION or not _is_text(found):
        raise _rejected("it cannot be read")
    for part, problem in (
        ("graph", "it is one of another graph"),
        ("branch", "it is one of another branch, or of a branch that was deleted and made again"),
        ("filter", "it was made with another filter"),
    ):
        if getattr(bound, part) != getattr(scope, part):
            raise _rejected(problem)
    return found


def _is_text(position: CursorPosition) -> bool:
    optional = (position.until, position.table, position.entity)
    return isinstance(position.after, str) and all(isinstance(part, str | None) for part in optional)


def _rejected(reason: str) -> ChangeCursorError:
    return ChangeCursorError(f"change cursor rejected: {reason}", hint="start again with `start`, or from a baseline")
