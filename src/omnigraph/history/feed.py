"""The changes of a branch, commit by commit, for readers that come again."""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

from omnigraph.api.changes import (
    DEFAULT_BYTES,
    DEFAULT_COMMITS,
    DEFAULT_LIMIT,
    MAX_BYTES,
    MAX_COMMITS,
    MAX_LIMIT,
    Baseline,
    Change,
    ChangeBlock,
    ChangePage,
)
from omnigraph.api.results import Commit
from omnigraph.commit.store import Store
from omnigraph.core.refs import MAIN, branch_of
from omnigraph.errors import (
    ChangeRefusedError,
    ChangeRequestError,
    CommitNotFoundError,
    HistoryReclaimedError,
    ResourceLimitError,
)
from omnigraph.history.cursor import Position, Scope, decode, short_id
from omnigraph.history.delta import Touched
from omnigraph.history.diff import ChangeFilter, Diff, TablePair, changed_rows, chosen, touched, type_names
from omnigraph.history.resolve import find_commit, graph_state_at
from omnigraph.manifest.publisher import Manifest
from omnigraph.manifest.state import GraphState, ManifestState

_NOW, _BEGINNING, _AFTER = "now", "beginning", "after:"
PARENTLESS, SCHEMA_CHANGED = "parentless_commit", "schema_boundary"  # why nobody can say what a commit changed


@dataclass(frozen=True, slots=True)
class ChangeRequest:
    """Which changes of which branch, from where on, and how many at most."""

    branch: str = MAIN
    start: str | None = None
    cursor: str | None = None
    page_token: str | None = None
    kinds: Collection[str] | None = None
    types: Collection[str] | None = None
    operations: Collection[str] | None = None
    limit: int = DEFAULT_LIMIT
    max_bytes: int = DEFAULT_BYTES
    max_commits: int = DEFAULT_COMMITS

    def checked(self) -> ChangeRequest:
        given = [name for name in ("start", "cursor", "page_token") if getattr(self, name) is not None]
        if len(given) > 1:
            message = f"{' and '.join(given)} exclude each other"
            raise ChangeRequestError(message, option=given[0], hint=f"give one of them, such as {given[-1]}")
        for name, value, most in (
            ("changes", self.limit, MAX_LIMIT),
            ("bytes", self.max_bytes, MAX_BYTES),
            ("commits", self.max_commits, MAX_COMMITS),
        ):
            if value > most:
                message = f"{value:,} {name} are more than a page may have"
                raise ResourceLimitError(
                    message, resource=name, limit=most, actual=value, hint=f"ask for at most {most:,}"
                )
            if value < 1:
                raise ChangeRequestError(f"a page of {value} {name}", option="limit", hint="ask for at least one")
        return self


class Feed:
    """Tells what was changed. It keeps what it found out about a large commit until that is told in full."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._found: tuple[TablePair, Touched] | None = None

    def poll(self, request: ChangeRequest) -> ChangePage:
        """Tell the next changes of a branch."""
        request = request.checked()
        history = _History.of(self._store, request.branch)
        wanted, scope = self._scope(request, history)
        position = history.start(request, scope, self._store.manifest)
        if request.start == _BEGINNING:
            self._check_beginning(history.commits[0])
        at = history.place(position.after)
        last = history.place(position.until) if position.until else at + request.max_commits
        told = _Told(request, scope, wanted, reaches_head=last >= len(history.commits) - 1)
        return self._page(told, history.commits[at : last + 1], position)

    def cursor(self, request: ChangeRequest) -> str:
        """The cursor of a place to start, without reading what comes behind it."""
        history = _History.of(self._store, request.branch)
        _, scope = self._scope(request, history)
        position = history.start(request, scope, self._store.manifest)
        history.place(position.after)
        return position.encode(scope)

    def baseline(self, request: ChangeRequest) -> Baseline:
        """Where to begin to follow what a request asks for: the branch as it is now."""
        history = _History.of(self._store, request.branch)
        wanted, scope = self._scope(request, history)
        commit_id = history.commits[-1].commit_id
        tables = tuple(key for key in history.state.snapshot.entries if wanted.wants_table(key))
        return Baseline(commit_id, Position(commit_id).encode(scope), tables)

    def _scope(self, request: ChangeRequest, history: _History) -> tuple[ChangeFilter, Scope]:
        wanted = self._filter(request, history.state.graph_state)
        return wanted, Scope.of(history.commits[0].commit_id, request.branch, history.incarnation, wanted.digest)

    def commit(self, commit_id: str, request: ChangeRequest) -> ChangePage:
        """Tell what one commit changed with respect to its first parent."""
        request = request.checked()
        if request.start is not None or request.cursor is not None:
            raise ChangeRequestError("one commit has no place to start", option="start", hint="use a page token")
        manifest = self._store.manifest
        commit = find_commit(manifest, commit_id)
        if commit.parent_id is None:
            message = f"commit {commit_id} is the first one: there is nothing to compare it with"
            hint = "export the graph at this commit instead"
            raise ChangeRefusedError(message, commit_id=commit_id, reason=PARENTLESS, hint=hint)
        parent = find_commit(manifest, commit.parent_id)
        wanted = self._filter(request, graph_state_at(manifest, commit))
        scope = Scope.of(commit.parent_id, "", "", wanted.digest)
        token = request.page_token
        position = Position(parent.commit_id) if token is None else decode(token, scope)
        page = self._page(_Told(request, scope, wanted, reaches_head=True), [parent, commit], position)
        return replace(page, cursor=None)

    def _check_beginning(self, first: Commit) -> None:
        """See that nothing was there before the first change that can be told."""
        entries = graph_state_at(self._store.manifest, first).snapshot.entries.values()
        if any(entry.row_count for entry in entries):
            message = f"commit {first.commit_id} has no parent, and entities: who began there would miss them"
            hint = f"export the graph at it, and go on with after:{first.commit_id}"
            raise ChangeRefusedError(message, commit_id=first.commit_id, reason=PARENTLESS, hint=hint)

    def _filter(self, request: ChangeRequest, state: GraphState) -> ChangeFilter:
        return chosen(request.kinds, request.types, request.operations, type_names(state))

    def _page(self, told: _Told, coming: Sequence[Commit], position: Position) -> ChangePage:
        """Tell the commits behind the first of some, as far as the page goes."""
        done, until = coming[0], coming[-1].commit_id
        before = None
        for commit in coming[1:]:
            try:
                before = before or graph_state_at(self._store.manifest, done)
                after = graph_state_at(self._store.manifest, commit)
                diff = _told_diff(Diff(self._store.tables, before, after, told.filter), commit)
                with diff.telling_reclaimed():
                    stopped = told.add(commit, self._changes(diff, position))
            except (HistoryReclaimedError, ChangeRefusedError):
                if not told.blocks:
                    raise
                told.reaches_head = False  # what comes before it can still be told; the next poll begins with it
                break
            if stopped is not None:
                token = replace(stopped, after=done.commit_id, until=until)
                return told.page(None, token.encode(told.scope))
            done, before, position = commit, after, Position(commit.commit_id)
        self._found = None
        return told.page(Position(done.commit_id).encode(told.scope))

    def _changes(self, diff: Diff, position: Position) -> Iterator[tuple[TablePair, Change]]:
        """The changes of one commit, from a position in it on."""
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


def _told_diff(diff: Diff, commit: Commit) -> Diff:
    """See that the difference can be told: both states are there, and the types are the same."""
    diff.check_readable()
    if diff.schema:
        message = f"commit {commit.commit_id} changed the schema: what it did to each entity is not told"
        hint = f"go on behind it with after:{commit.commit_id}; export the graph at it for a baseline"
        raise ChangeRefusedError(message, commit_id=commit.commit_id, reason=SCHEMA_CHANGED, hint=hint)
    return diff


@dataclass(slots=True)
class _Told:
    """A page as it fills."""

    request: ChangeRequest
    scope: Scope
    filter: ChangeFilter
    reaches_head: bool
    blocks: list[ChangeBlock] = field(default_factory=list)
    count: int = 0
    size: int = 0

    def add(self, cause: Commit, changes: Iterator[tuple[TablePair, Change]]) -> Position | None:
        """Add the changes of a commit; if they do not all fit, say which one was the last that did."""
        told: list[Change] = []
        stopped = last = None
        for pair, change in changes:
            if not self._fits(change):
                stopped = last or Position("")
                break
            told.append(change)
            last = Position("", table=short_id(pair.key), entity=short_id(change.id))
        if told or stopped is None:
            self.blocks.append(ChangeBlock(cause, tuple(told)))
        return stopped

    def _fits(self, change: Change) -> bool:
        """Count a change, unless the page is full with it. A page has at least one, however large."""
        size = len(json.dumps(change.to_dict(), ensure_ascii=False).encode())
        if self.count and (self.count >= self.request.limit or self.size + size > self.request.max_bytes):
            return False
        self.count, self.size = self.count + 1, self.size + size
        return True

    def page(self, cursor: str | None, token: str | None = None) -> ChangePage:
        return ChangePage(tuple(self.blocks), cursor, token, caught_up=cursor is not None and self.reaches_head)


@dataclass(frozen=True, slots=True)
class _History:
    """A branch and its commits from the first on, each the first parent of the next."""

    commits: Sequence[Commit]
    state: ManifestState
    incarnation: str

    @classmethod
    def of(cls, store: Store, name: str) -> _History:
        branch = branch_of(name)
        incarnation = store.manifest.incarnation(branch)
        state = store.manifest.load(branch)
        assert state.head is not None, "a graph begins with a commit"
        known = {commit.commit_id: commit for commit in state.commits()}
        commits = [state.head]
        while (parent := known.get(commits[-1].parent_id or "")) is not None:
            commits.append(parent)
        return cls(commits[::-1], state, incarnation)

    def start(self, request: ChangeRequest, scope: Scope, manifest: Manifest) -> Position:
        """Find where to begin."""
        if request.cursor is not None:
            return decode(request.cursor, scope)
        if request.page_token is not None:
            return decode(request.page_token, scope)
        start = request.start or _NOW
        if start == _NOW:
            return Position(self.commits[-1].commit_id)
        if start == _BEGINNING:
            return Position(self.commits[0].commit_id)
        if start.startswith(_AFTER):
            named = start.removeprefix(_AFTER)
            if all(commit.commit_id != named for commit in self.commits):
                named = find_commit(manifest, named).commit_id
            return Position(named)
        message = f"a feed does not start at '{start}'"
        raise ChangeRequestError(message, option="start", hint="use now, beginning or after:<commit>")

    def place(self, commit_id: str) -> int:
        for at, commit in enumerate(self.commits):
            if commit.commit_id == commit_id:
                return at
        message = f"commit '{commit_id}' is not one of the branch"
        raise CommitNotFoundError(message, commit_id=commit_id, hint="start again, now or after a commit of the branch")
