"""Read `__manifest` and publish to it: one compare-and-swap makes a whole change of the graph visible."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import lance
import pyarrow as pa

from omnigraph.api.results import MESSAGE, OPERATION, STREAM, STREAMS, Commit, SchemaRow, StreamBatch, StreamPosition
from omnigraph.api.reviews import BranchRule
from omnigraph.core.location import Location
from omnigraph.core.lru import LruCache
from omnigraph.core.refs import MAIN, branch_of
from omnigraph.errors import (
    BranchInUseError,
    BranchNotFoundError,
    ConflictError,
    ContentionError,
    ExpectedVersionMismatchError,
    GraphReplacedError,
    StorageError,
)
from omnigraph.lang.identity import new_id
from omnigraph.lang.source import did_you_mean
from omnigraph.manifest.members import NamedMembers
from omnigraph.manifest.migrations import guard, migrate, read_stamp, stamped, with_old_lineage
from omnigraph.manifest.rows import (
    MANIFEST_PATH,
    SCHEMA,
    RuleRow,
    SchemaSeen,
    TableRow,
    TombstoneRow,
    VersionRow,
    commit_record,
    encode,
    head_record,
    past_record,
    schema_record,
    stream_record,
)
from omnigraph.manifest.segments import Segments, archived
from omnigraph.manifest.state import ManifestState
from omnigraph.storage.internal import InternalTable
from omnigraph.storage.lance_errors import Failure, classify, lance_call
from omnigraph.version import INTERNAL_SCHEMA_VERSION

_LOG = logging.getLogger(__name__)
RETRY_BUDGET = 5
_MOST_BRANCHES = 64  # whose last state is kept
_PAST_BYTES, _HANDLE_BYTES = 2**24, 2**16  # of past states that are kept; a handle is counted as so many
Ready = Callable[[], None]
"""Called when all files of a publish are written, before the one step that makes it visible."""


@dataclass(frozen=True, slots=True)
class Lineage:
    """The identity of a commit: id, actor, parents. Made once per operation and kept through every retry."""

    commit_id: str
    actor_id: str | None = None
    merged_parent_id: str | None = None
    created_at: int = 0
    details: Mapping[str, Any] | None = None
    merged_branch: str | None = None
    past: Mapping[str, Any] | None = None  # of a merge: the document of its `MergedPast`

    @classmethod
    def new(
        cls,
        actor_id: str | None = None,
        merged_parent_id: str | None = None,
        details: Mapping[str, Any] | None = None,
        operation_id: str | None = None,
        message: str | None = None,
    ) -> Lineage:
        said = {name: text for name, text in ((MESSAGE, message), (OPERATION, operation_id)) if text is not None}
        known = {**(details or {}), **said} if said else details
        return cls(new_id(), actor_id, merged_parent_id, time.time_ns() // 1000, known)

    @property
    def operation_id(self) -> str | None:
        """The id that the client gave the change."""
        return (self.details or {}).get(OPERATION)

    @property
    def batch(self) -> StreamBatch | None:
        """The batch of a stream that the change is."""
        found = (self.details or {}).get(STREAM)
        return StreamBatch.of_document(found) if found else None

    @property
    def positions(self) -> list[StreamPosition]:
        """How far streams are after the change: the one that made it, or those that a merge brings in."""
        merged = [StreamPosition.of_document(one) for one in (self.details or {}).get(STREAMS, ())]
        return [*merged, StreamPosition(self.batch, self.commit_id)] if self.batch else merged


@dataclass(frozen=True, slots=True)
class Changes:
    """The rows that a publish adds, besides the history."""

    versions: tuple[VersionRow, ...] = ()
    registrations: tuple[TableRow, ...] = ()
    tombstones: tuple[TombstoneRow, ...] = ()
    schema: SchemaRow | None = None
    rule: RuleRow | None = None


@dataclass(frozen=True, slots=True)
class Member:
    """One of the changes that a publish makes visible, with a commit of its own."""

    changes: Changes
    lineage: Lineage


@dataclass(frozen=True, slots=True)
class Published:
    """A commit, and the state that is visible since. `before`: the state that was, for one of several commits."""

    commit: Commit
    state: ManifestState
    before: ManifestState | None = None


@dataclass(frozen=True, slots=True)
class SeenState:
    """A state of a branch that was read: its version, the tag of its version file if known, and its head."""

    version: int
    tag: str | None
    commit_id: str | None

    @classmethod
    def of(cls, state: ManifestState) -> SeenState:
        return cls(state.version, state.tag, state.head.commit_id if state.head else None)

    def leads_to(self, later: ManifestState) -> bool:
        """Return whether a state can be a later one of the same branch in the same graph."""
        if later.version == self.version:
            return None in (self.tag, later.tag) or self.tag == later.tag
        known = self.commit_id is None or later.commit(self.commit_id) is not None
        return later.version > self.version and known


class Manifest:
    """The `__manifest` of one graph."""

    def __init__(self, location: Location) -> None:
        self.table = InternalTable(location, MANIFEST_PATH)
        self.log = Segments(location)
        self.named = NamedMembers(location)
        # The last known state of each branch. It is used only after a probe shows that it is still current.
        self._last: dict[str | None, ManifestState] = {}
        self._lock = threading.Lock()
        self._past = LruCache(_PAST_BYTES)
        # Which state of each branch was seen last, to notice when another copy of the graph lies here.
        self._seen: dict[str | None, SeenState] = {}
        self.on_replaced: list[Callable[[], None]] = []
        # The schema files as this process has compared them, and the identity of the schema of the states they agree
        # with. Commits say so, and those who open the graph need not read the files again.
        self.schema_seen: tuple[object, SchemaSeen] | None = None

    def create(self, tables: Iterable[TableRow], versions: Iterable[VersionRow]) -> None:
        """Create the manifest with the first state and commit of the graph, stamped, all in one Lance commit."""
        genesis = Commit(new_id(), None, 1, None, None, None, time.time_ns() // 1000)
        rows: list[TableRow | VersionRow] = [*tables, *versions]
        head = head_record(genesis, genesis.commit_id)
        records = [*(row.record() for row in rows), commit_record(genesis), head]
        if not self.table.create(stamped(encode(records))):
            raise ConflictError(f"`{MANIFEST_PATH}` already exists", hint="open the graph instead")

    def load(self, branch: str | None = None, version: int | None = None) -> ManifestState:
        """Load the state of a branch, now or at an earlier version: one that was read before costs only a probe.

        If a power cut tore the newest version, load the one before it: what was torn was never acknowledged.
        """
        if version is None:
            return self._load(branch, self._read_whole)
        self._check_branch(branch)
        # A past state is the content of its version file, which a cleanup may have removed, and which is another one if
        # the branch was created again or the graph was replaced. The tag shows that.
        tag = self.table.version_tag(branch, version)
        read = partial(self._read_version, branch, version, tag)
        try:
            return self._past.get((branch, version, tag), read, _size) if tag else read()
        except StorageError as error:
            if branch is not None and classify(error) is Failure.NOT_FOUND and not self.table.has_branch(branch):
                raise self.missing(branch) from error
            raise

    def _read_version(self, branch: str | None, version: int | None, tag: str | None) -> ManifestState:
        return self._read(self.table.open(branch, version), branch, tag)

    def _load(self, branch: str | None, read: Callable[[str | None], ManifestState]) -> ManifestState:
        last = self._last.get(branch)
        if last and self._is_latest(last):
            return last
        try:
            return self._noticed(read(branch))
        except StorageError as error:
            if classify(error) is not Failure.NOT_FOUND:
                raise
            # The branch was deleted while it was read; there may be another one of its name by now.
            if branch is not None and not self.table.has_branch(branch):
                raise self.missing(branch) from error
            # A cleanup may have removed the version while it was read: then there is a newer one.
            return self._noticed(read(branch))

    def _is_latest(self, state: ManifestState) -> bool:
        """Return whether a state is the latest of its branch, and lies in the same graph as when it was read.

        A branch that was deleted and created again under its name has another file for its version.
        """
        seen = self._seen.get(state.branch)
        if seen is None or seen.version != state.version or seen.tag is None:
            return False
        if state.branch is None:
            return self.table.is_latest(state.dataset, state.version, seen.tag)
        is_newest = self.table.newest(state.branch) == (state.version, seen.tag)
        # The files of a deleted branch may still be there; its reference is not.
        return is_newest and self.table.has_branch(state.branch)

    def _read_newest(self, branch: str | None) -> ManifestState:
        self._check_branch(branch)
        newest = self.table.newest(branch)
        version, tag = newest or (None, None)  # without a version, opening raises the right error
        return self._read_version(branch, version, tag)

    def _read_whole(self, branch: str | None) -> ManifestState:
        """Read the newest version of a branch that is not torn. Only writers set torn ones aside."""
        try:
            return self._read_newest(branch)
        except StorageError:
            whole = self.table.newest_whole(branch)
            if whole is None:
                raise
            _LOG.warning("the newest version of %s is torn; reading version %d", self.table.uri(branch), whole[0])
            return self._read_version(branch, *whole)

    def _noticed(self, state: ManifestState) -> ManifestState:
        """Remember the latest state of a branch. If it is not a later one of the same graph, drop all that is cached.

        A restored backup has versions of the same numbers with other content.
        """
        seen = self._seen.get(state.branch)
        if seen is not None and not seen.leads_to(state):
            self.forget()
        # After `forget`, which drops what was seen before.
        self._seen[state.branch] = SeenState.of(state)
        with self._lock:  # evicting iterates over the states, which other threads change
            self._last.pop(state.branch, None)
            self._last[state.branch] = state
            if len(self._last) > _MOST_BRANCHES:
                del self._last[next(one for one in self._last if one is not None)]
        return state

    def forget(self) -> None:
        """Drop what was cached, here and by those who asked to be called: another graph lies at the address."""
        with self._lock:
            self._last.clear()
        self._past.clear()
        self._seen.clear()
        self.schema_seen = None
        for call in self.on_replaced:
            call()

    def load_to_write(self, branch: str | None) -> ManifestState:
        """Load the state of a branch for a writer; migrate it first if it has an older format.

        A torn newest version is an error here: a writer must set it aside first, or it could not publish behind it.
        """
        return self._current(self._load(branch, self._read_newest))

    def _current(self, state: ManifestState) -> ManifestState:
        if read_stamp(state.dataset) == INTERNAL_SCHEMA_VERSION:
            return state
        migrate(self, state.branch)
        return self.load(state.branch)

    def is_replaced(self, base: ManifestState, state: ManifestState) -> bool:
        """Return whether the graph was replaced, by a copy of it or another one, since `base` was read."""
        tag = self.table.tag_of(base.version, base.branch)
        # An empty tag is no proof: a cleanup removes old versions.
        return not SeenState.of(base).leads_to(state) or bool(tag and base.tag and tag != base.tag)

    def branches(self) -> list[str]:
        """List all branches, main first. The live listing decides whether a branch exists."""
        return [MAIN, *self.table.branch_names()]

    def states(self) -> Iterator[tuple[str, ManifestState]]:
        """Load every branch, main first. Skip branches deleted meanwhile: the caller did not name them."""
        for name in self.branches():
            try:
                state = self.load(branch_of(name))
            except BranchNotFoundError:
                continue
            yield name, state

    def missing(self, branch: str) -> BranchNotFoundError:
        """Build the error for a branch that does not exist, with similar names in its hint."""
        hint = did_you_mean(branch, self.branches()) or "see `omnigraph branch list`"
        return BranchNotFoundError(f"branch '{branch}' not found", branch=branch, hint=hint)

    def incarnation(self, branch: str | None) -> str:
        """Return the identity of a branch. A later branch of the same name has another one; that of main is empty."""
        if branch is None:
            return ""
        found = self.table.branches().get(branch)
        if found is None:
            raise self.missing(branch)
        return str(found["branch_identifier"][-1][1])

    def create_branch(self, name: str, source: ManifestState) -> None:
        """Create a branch from another state. Call it under the gate of the branches.

        Lance makes it visible with its last write, so after a failure only a look shows whether it exists.
        """
        self.named.note("branches", name, source)
        try:
            self.table.create_branch(self._open(source.branch, source.version), name)
        except StorageError:
            if not self.table.has_branch(name):
                raise

    def create_tag(self, name: str, state: ManifestState) -> Commit:
        """Create a tag at the head of a state. Call it under the gate of the branches."""
        assert state.head, "a branch has commits"
        self.named.note("tags", name, state)
        self.table.create_tag(name, state.head.branch, state.head.manifest_version)
        return state.head

    def load_tag(self, name: str, tag: Mapping[str, Any]) -> ManifestState:
        """Load the state that a tag of the table's listing names."""
        return self.named.chosen("tags", name, self.load(tag["branch"], tag["version"]))

    def delete_branch(self, name: str) -> None:
        """Delete a branch. Call it under the gate of the branches."""
        self.table.delete_branch(self.table.open(), name)
        if self.table.has_branch(name):
            message = f"branch '{name}' cannot be deleted: other branches or tags refer to it"
            raise BranchInUseError(message, branch=name, hint="delete the branches and tags created from it")

    def rule_of(self, state: ManifestState) -> BranchRule | None:
        """Return the rule of the branch of a state; None if it has none."""
        row = state.rule_row
        # Only a branch that has such a row asks which incarnation it is: every write comes by here.
        if row is None or row.rule is None or row.incarnation != self.incarnation(state.branch):
            return None
        return row.rule

    def publish(
        self,
        branch: str | None,
        changes: Changes,
        expected: Mapping[str, int],
        lineage: Lineage,
        first: ManifestState | None = None,
        *,
        ready: Ready = lambda: None,
    ) -> Published:
        """Make one change visible. See `publish_group`."""
        member = Member(changes, lineage)
        return self.publish_group(branch, [member], expected, first, ready=ready)[-1]

    def publish_group(
        self,
        branch: str | None,
        members: Sequence[Member],
        expected: Mapping[str, int],
        first: ManifestState | None = None,
        *,
        ready: Ready = lambda: None,
    ) -> list[Published]:
        """Make changes visible, a commit for each, provided every expected table is at its expected version.

        If another commit of the branch came first, it is retried on the new state, with a new parent. If a table moved,
        it is not: the change was prepared on something that no longer exists. `first` is a state that the caller has
        just loaded.
        """
        for attempt in range(RETRY_BUDGET + 1):
            try:
                # Only the first attempt may use it: a second one comes after a conflict, which proves that it is out of
                # date.
                usable = first is not None and attempt == 0 and self._is_in_place(first)
                state = self._current(first) if first and usable else self.load_to_write(branch)
                return self._attempt(state, members, expected, ready)
            # A moved table is no contention: the plan relied on something that no longer exists.
            except ExpectedVersionMismatchError:
                raise
            except ContentionError:
                continue
        message = f"{RETRY_BUDGET + 1} attempts to publish lost to other commits"
        raise ContentionError(message, attempts=RETRY_BUDGET + 1, hint="try again")

    def _is_in_place(self, state: ManifestState) -> bool:
        """Return whether the version of a state is still its own: the graph may have been replaced. No request."""
        tag = self.table.tag_of(state.version, state.branch)
        return None in (tag, state.tag) or tag == state.tag

    def _attempt(
        self, state: ManifestState, members: Sequence[Member], expected: Mapping[str, int], ready: Ready
    ) -> list[Published]:
        """Publish on one state; raise ContentionError if another commit came first."""
        landed = [found for one in members if (found := state.commit(one.lineage.commit_id))]
        if landed:  # an attempt that seemed to fail had worked, and its answer was lost
            return [Published(found, state) for found in landed]
        _check_expected(state, expected)
        commits = _commits(state, [one.lineage for one in members])
        commit = commits[-1]
        named = state.named_with(
            [
                *_records(state, _together(members)),
                *_history(state, members, commits, self._schema_seen(state, members)),
            ]
        )
        whole = encode(named.values())
        rows = archived(whole, named.values(), self.log, len(members))
        staged = self.table.stage(state.dataset, stamped(rows))
        ready()
        if self.table.is_behind(state.branch, state.version):
            raise ContentionError("another commit came first", attempts=1)
        try:
            dataset = self.table.swap(state.dataset, staged)
        except ConflictError as error:
            raise ContentionError("another commit came first", attempts=1) from error
        newest = self.table.newest_few(state.branch, 2)
        if newest[0][0] > commit.manifest_version:
            return self._followed(state.branch, commits)
        self._check_base(state, commit.manifest_version, newest[1:])
        latest = self._noticed(state.followed(named if rows is whole else None, rows, dataset, newest[0][1]))
        # Only the last one made the step from one state to the other: what follows from it is done once.
        return [Published(one, latest, state if one is commit else latest) for one in commits]

    def _schema_seen(self, state: ManifestState, members: Sequence[Member]) -> SchemaSeen | None:
        """Return what the next state can say about the schema files; nothing behind a change of the schema."""
        changes = [one.changes for one in members]
        if any(one.schema or one.registrations or one.tombstones for one in changes):
            return None
        known = self.schema_seen
        return known[1] if known and known[0] == state.schema_identity else state.schema_seen

    def _followed(self, branch: str | None, commits: Sequence[Commit]) -> list[Published]:
        """Deal with a commit whose version is not the newest: another one followed it, or it is behind the head.

        If the state that it was made on was so old that a cleanup had removed the next one, Lance has given it that
        number, and reported success. Then it is no part of the graph.
        """
        newest, commit = self._read_newest(branch), commits[-1]
        if newest.commit(commit.commit_id):
            latest = self._noticed(newest)
            return [Published(one, latest) for one in commits]
        self.table.remove_stray(branch, commit.manifest_version)
        raise ContentionError("other commits came first, and were cleaned up", attempts=1)

    def _check_base(self, base: ManifestState, version: int, below: Sequence[tuple[int, str]]) -> None:
        """Raise if the version below a new one is not what it was made on: another graph was put in its place.

        A cleanup may have removed that version meanwhile. Then the next one below must be of the same graph.
        """
        if not below or below[0] == (base.version, base.tag or below[0][1]):
            return
        if below[0][0] < base.version and self.load(base.branch, below[0][0]).graph_id == base.graph_id:
            return
        self.table.remove_stray(base.branch, version)
        uri = self.table.location.uri
        message = f"another graph was put at {uri} while a commit was published"
        raise GraphReplacedError(message, uri=uri, hint="check that it is the right one, then try again")

    def _open(self, branch: str | None, version: int | None) -> lance.LanceDataset:
        self._check_branch(branch)
        return self.table.open(branch, version)

    def _check_branch(self, branch: str | None) -> None:
        if branch is not None and not self.table.has_branch(branch):
            raise self.missing(branch)

    def _read(self, dataset: lance.LanceDataset, branch: str | None, tag: str | None = None) -> ManifestState:
        guard(read_stamp(dataset))
        with lance_call(dataset.uri, "read"):
            rows: pa.Table = dataset.to_table(columns=SCHEMA.names)
        rows = with_old_lineage(self, dataset, branch, rows)
        state = ManifestState(branch, dataset.version, rows, dataset, self.log, tag).checked()
        # A branch that has no commit of its own yet may have been created at one of several that made its version.
        is_new = branch is not None and state.head is not None and state.head.branch != branch
        return self.named.chosen("branches", branch, state) if branch and is_new else state


def _size(state: ManifestState) -> int:
    return int(state.rows.nbytes) + _HANDLE_BYTES


def _check_expected(state: ManifestState, expected: Mapping[str, int]) -> None:
    for table_key, version in expected.items():
        actual = state.actual_version(table_key)
        if actual != version:
            message = f"table '{table_key}' is at version {actual}, not at {version} as expected"
            raise ExpectedVersionMismatchError(
                message, table_key=table_key, expected=version, actual=actual, hint="read again and retry"
            )


def _commits(state: ManifestState, lineages: Iterable[Lineage]) -> list[Commit]:
    """Build the commits. The first parent is the current head, chosen again in every attempt: history is one chain."""
    made: list[Commit] = []
    for lineage in lineages:
        parent = made[-1] if made else state.head
        made.append(
            Commit(
                lineage.commit_id,
                state.branch,
                state.version + 1,
                parent.commit_id if parent else None,
                lineage.merged_parent_id,
                lineage.actor_id,
                lineage.created_at,
                lineage.details,
                lineage.merged_branch,
            )
        )
    assert made == sorted(made, key=lambda commit: commit.order), "the last member of a group must be the head"
    return made


def _together(members: Sequence[Member]) -> Changes:
    """Return the rows of all members. Only a member that is alone may do more than add versions of tables."""
    if len(members) == 1:
        return members[0].changes
    return Changes(tuple(row for one in members for row in one.changes.versions))


def _history(
    state: ManifestState, members: Sequence[Member], commits: Sequence[Commit], seen: SchemaSeen | None
) -> list[dict[str, Any]]:
    """Return the rows of the commits and of the head. All commits but the last say how their states differ from it."""
    last = {row.table_key: row for one in members for row in one.changes.versions}
    known = {key: entry for key, entry in state.snapshot.entries.items() if key in last}
    at = {key: VersionRow(key, one.table.version, one.table.branch, one.row_count) for key, one in known.items()}
    records = []
    for member, commit in zip(members, commits, strict=True):
        at |= {row.table_key: row for row in member.changes.versions}
        pins = {key: row for key, row in at.items() if row != last[key]} if commit is not commits[-1] else None
        records.append(commit_record(commit, pins))
        if member.lineage.past:
            records.append(past_record(commit.commit_id, member.lineage.past))
        records += map(stream_record, member.lineage.positions)
    return [*records, head_record(commits[-1], state.graph_id or commits[-1].commit_id, seen)]


def _records(state: ManifestState, changes: Changes) -> list[dict[str, Any]]:
    """Check the requested rows against the state: rows may be added, but never rewritten into something else."""
    known = dict(state.paths)
    for at, table in enumerate(changes.registrations):
        if any(other.table_key == table.table_key for other in changes.registrations[:at]):
            raise _conflict(f"table '{table.table_key}' is registered twice")
        gone = table.table_key not in state.snapshot.entries  # a type that is added again may get another directory
        if known.setdefault(table.table_key, table.path) != table.path and not gone:
            raise _conflict(f"table '{table.table_key}' is registered at another path")
    ids: set[str] = set()
    named: list[VersionRow | TombstoneRow] = [*changes.versions, *changes.tombstones]
    for row in named:
        if row.table_key not in known:
            raise _conflict(f"table '{row.table_key}' is not registered")
        if row.object_id in ids:
            raise _conflict(f"{row.object_id} is named twice")
        ids.add(row.object_id)
    for version in changes.versions:
        _check_version(state, version)
    for tombstone in changes.tombstones:
        if state.has(tombstone.object_id):
            raise _conflict(f"table '{tombstone.table_key}' does not exist any more")
    schema = [schema_record(changes.schema)] if changes.schema else []
    rule = [changes.rule.record()] if changes.rule else []
    return [*(table.record() for table in changes.registrations), *(row.record() for row in named), *schema, *rule]


def _check_version(state: ManifestState, row: VersionRow) -> None:
    """Raise if a version is published already, unless it changes hands between branches with the same rows."""
    there = state.version_row(row.table_key, row.version)
    if there and (there["table_branch"] == row.branch or there["row_count"] != row.row_count):
        raise _conflict(f"version {row.version} of table '{row.table_key}' is already published")


def _conflict(message: str) -> ConflictError:
    return ConflictError(message, hint="read again and retry")
