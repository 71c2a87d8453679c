"""`cleanup`: remove versions and files that no kept commit, branch or running write needs."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from omnigraph.api.maintenance import ORPHAN_AGE, CleanupResult, Removal, TableCleanup
from omnigraph.api.results import TableVersion
from omnigraph.commit import audit, failpoints
from omnigraph.commit.gates import Gate
from omnigraph.commit.plan import ref_gates, table_gates
from omnigraph.commit.publish import undo_unrecorded_everywhere
from omnigraph.commit.store import Store
from omnigraph.core.refs import MAIN, branch_of
from omnigraph.errors import BranchNotFoundError, DriftError, OmnigraphError, RetentionError, StorageError
from omnigraph.maintenance.optimize import UNSETTLED, owned_tables, pin_and_head, refuse_pending, settle
from omnigraph.maintenance.relocate import relocate
from omnigraph.maintenance.retention import Needed, Place, Policy, before, needed, refs_of
from omnigraph.maintenance.tasks import map_tables
from omnigraph.manifest.rows import MANIFEST_PATH
from omnigraph.manifest.segments import DIRECTORY as SEGMENTS
from omnigraph.storage import reclaim
from omnigraph.storage.lance_errors import Failure, classify
from omnigraph.storage.read import TableReader
from omnigraph.storage.reclaim import Orphan
from omnigraph.storage.torn import SUFFIX

TEMPORARY = "__tmp"
# Nothing breaks without an age: a reader or a writer whose version was removed notices, and starts again. This spares
# it that, and keeps the log segments of a state that was read less than so long ago.
MANIFEST_AGE = dt.timedelta(minutes=10)
# The audit log is merged into. If versions were removed since a recovery opened it, Lance would miss a conflict, and
# keep two rows of one operation. No recovery takes this long.
AUDIT_AGE = dt.timedelta(days=1)
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CleanupRequest:
    """What to keep, and whether to remove the rest or only report it.

    Versions of `__manifest` that are younger than `manifest_age` stay whatever else is said, and those of the audit log
    that are younger than `audit_age`.
    """

    keep: int | None = None
    older_than: dt.timedelta | None = None
    confirm: bool = False
    orphan_age: dt.timedelta = ORPHAN_AGE
    manifest_age: dt.timedelta = MANIFEST_AGE
    audit_age: dt.timedelta = AUDIT_AGE


def cleanup(store: Store, request: CleanupRequest, advance: Callable[[], None] = lambda: None) -> CleanupResult:
    """Remove old versions by count and age, forks of deleted branches, and unreferenced files."""
    policy = _policy(request)
    # Lance keeps what forks need only if they name this root. The mark of the root is not enough here: a copy over an
    # existing graph may have brought back some versions and not the mark.
    relocate(store)
    settle(store)
    undo_unrecorded_everywhere(store)
    _refuse_drift(store)
    run = _Cleanup(store, policy, request, dt.datetime.now(dt.UTC))
    tables = []
    for key, path in sorted(run.needed.paths):
        tables.append(run.table(key, path))
        advance()
    internal = run.internal_tables()
    left_over = [*run.abandoned(), *run.unnamed_segments()]
    return CleanupResult(request.confirm, (*tables, *internal), run.remove(left_over))


def give_up_past(store: Store, table_keys: Collection[str]) -> None:
    """Remove all versions of some tables that no branch head and no tag needs. Failures are left to a cleanup."""
    try:
        request = CleanupRequest(keep=1, confirm=True)
        relocate(store)
        run = _Cleanup(store, _policy(request), request, dt.datetime.now(dt.UTC))
        done = [run.table(key, path) for key, path in sorted(run.needed.paths) if key in table_keys]
        problems = [f"{one.table_key}: {one.error}" for one in done if one.error]
    except OmnigraphError as error:
        problems = [error.message]
    for problem in problems:
        _LOG.warning("the past of what was dropped is still there: %s", problem)


def _policy(request: CleanupRequest) -> Policy:
    if request.keep is None and request.older_than is None:
        message = "cleanup needs to know what to keep"
        raise RetentionError(message, hint="give a number of commits, an age, or both")
    if (request.keep or 0) < 0 or (request.older_than or dt.timedelta()) < dt.timedelta():
        raise RetentionError("what to keep cannot be negative", hint="give a number of commits, an age, or both")
    return Policy(request.keep, request.older_than)


def _refuse_drift(store: Store) -> None:
    """Refuse tables that another program moved: a repair may need what cleanup would remove."""
    for _, state in store.manifest.states():
        owned = owned_tables(state.branch, state.snapshot.entries)
        heads = zip(owned, map_tables(store.tables.head_version, owned), strict=True)
        for table in [table for table, head in heads if head != table.version]:
            pin, head = pin_and_head(store, state.branch, table)
            if head != pin:
                message = f"table '{table.key}' is at version {head}, but the graph pins version {pin}"
                raise DriftError(message, table_key=table.key, pin=pin, head=head, hint="run `omnigraph repair` first")


class _Cleanup:
    """One cleanup. Each table is cleaned on its own: a failure does not stop the others, and can be retried."""

    def __init__(self, store: Store, policy: Policy, request: CleanupRequest, now: dt.datetime) -> None:
        self.store = store
        self.policy = policy
        self.request = request
        self.now = now
        self.needed: Needed = needed(store, policy, now)

    def table(self, key: str, path: str) -> TableCleanup:
        if not self.store.objects.exists(path):  # dropped, and all its files are gone
            return TableCleanup(key)
        forks: list[str] = []

        def removals() -> Iterator[Removal]:
            found = reclaim.forks(self.store.tables, path)
            gone = reclaim.removable_forks(found, partial(self._drop_orphan, key, path))
            forks.extend(one.name for one in gone)
            # Forks first: the versions that a fork is based on can go once the fork is gone.
            for name in (*(fork.name for fork in found if fork.name not in forks), None):
                yield self._versions(key, (path, name))

        return _cleaned(key, removals(), forks)

    # Versions

    def _versions(self, key: str, place: Place) -> Removal:
        """Remove the versions of a table or fork that are not needed, holding the gate of its writers."""
        path, fork = place
        with self.store.gates.hold(_gates(key, fork)) as held:
            self._look_again()
            # The type was dropped. Lance never removes the latest version, so its rows are deleted first.
            is_gone = fork is None and place not in self.needed.versions
            if is_gone and self.request.confirm:
                held.check()
                reclaim.empty(self.store.tables, path)
            chosen = self._not_needed(place)
            old = reclaim.stale_previews(self.store.objects, path, fork, self._orphaned_before)
            if not self.request.confirm:
                found = reclaim.preview_versions(self.store.tables, path, fork, chosen)
                if is_gone:
                    found += reclaim.preview_emptying(self.store.tables, self.store.objects, path)
                return found + self.remove([*old, *self._unreferenced(place)])
            # What is newer must be on the medium first: after a power cut, a state that lost its successor is needed.
            self.store.medium.sync("")
            held.check()
            failpoints.reach(failpoints.CLEANUP_BEFORE_REMOVAL)
            done = reclaim.remove_versions(self.store.tables, path, fork, chosen)
            done += self.remove(old)
            # Last: what the removed versions and previews named is gone already, and is not counted twice.
            orphans = self._unreferenced(place)
            held.check()
            return done + self.remove(orphans)

    def _unreferenced(self, place: Place) -> list[Orphan]:
        """Return the files of dead writes. A preview leaves out what Lance removes, and counts, by its own rule."""
        path, fork = place
        # A reader of its own: a version that another handle has cached may be gone.
        tables = TableReader(self.store.location)
        found = reclaim.unreferenced(tables, self.store.objects, path, fork, self._orphaned_before)
        if self.request.confirm:
            return found
        by_lance = {one.name for one in reclaim.orphans(self.store.objects, path, self.now - ORPHAN_AGE)}
        return [one for one in found if one.name.endswith(SUFFIX) or one.name not in by_lance]

    def _look_again(self) -> None:
        """Collect again if branches or tags changed: a new one may need versions that none needed before."""
        if refs_of(self.store) != self.needed.refs:
            self.needed = needed(self.store, self.policy, self.now)

    def _not_needed(self, place: Place) -> list[int]:
        """Return the versions that are not needed. Versions newer than the collected heads are left alone."""
        there = reclaim.versions(self.store.tables, *place)[:-1]
        kept, head = self.needed.versions.get(place, frozenset()), self.needed.heads.get(place)
        chosen = [version for version in there if version not in kept and (head is None or version < head)]
        shared = reclaim.shared_with_forks(self.store.tables, self.store.objects, *place, chosen)
        return [version for version in chosen if version not in shared]

    # The tables that describe the graph

    def internal_tables(self) -> list[TableCleanup]:
        found = [self._internal(MANIFEST_PATH, [None if name == MAIN else name for name in self.needed.branches])]
        if self.store.objects.exists(audit.PATH):
            found.append(self._internal(audit.PATH, [None]))
        return found

    def _internal(self, path: str, branches: Sequence[str | None]) -> TableCleanup:
        return _cleaned(path, (self._internal_versions((path, branch)) for branch in branches))

    def _internal_versions(self, place: Place) -> Removal:
        """Remove old versions while holding the gates, so that no publish and no new branch can come in between."""
        path, branch = place
        with self.store.gates.hold(ref_gates(branch or MAIN)) as held:
            if branch is not None and not self.store.manifest.table.has_branch(branch):
                return Removal()
            self._look_again()
            # The recovery of a dead write reads the state that it was made on.
            refuse_pending(self.store, branch, UNSETTLED, "run cleanup again")
            chosen = self._old_versions(place)
            aside = reclaim.set_aside(self.store.objects, path, branch, self._orphaned_before)
            if not self.request.confirm:
                return reclaim.preview_versions(self.store.tables, path, branch, chosen) + self.remove(aside)
            # What is newer must be on the medium first: after a power cut, a state that lost its successor is needed.
            self.store.medium.sync("")
            held.check()
            failpoints.reach(failpoints.CLEANUP_BEFORE_REMOVAL)
            return reclaim.remove_versions(self.store.tables, path, branch, chosen) + self.remove(aside)

    def _old_versions(self, place: Place) -> list[int]:
        age = self.request.manifest_age if place[0] == MANIFEST_PATH else self.request.audit_age
        old = set(reclaim.versions_before(self.store.objects, *place, before(self.now, age)))
        return [version for version in self._not_needed(place) if version in old]

    def unnamed_segments(self) -> list[Orphan]:
        """The log segments that no remaining version of the manifest names: merged into others, or of dead writes."""
        loose = {one.name: one for one in reclaim.orphans(self.store.objects, SEGMENTS, self._orphaned_before)}
        for name in self.needed.branches if loose else ():
            place = MANIFEST_PATH, branch_of(name)
            there = reclaim.versions(self.store.tables, *place)
            kept = sorted({*there} - {*self._old_versions(place)}, reverse=True)
            for named in map_tables(partial(self._segments_of, place[1]), kept):
                loose = {key: one for key, one in loose.items() if key not in named}
        return [*loose.values()]

    def _segments_of(self, branch: str | None, version: int) -> set[str]:
        try:
            return {one.name for one in self.store.manifest.load(branch, version).segments}
        except (StorageError, BranchNotFoundError) as error:
            if isinstance(error, StorageError) and classify(error) is not Failure.NOT_FOUND:
                raise
            return set()  # removed meanwhile, or an earlier removal stopped half-way

    # Forks

    def _is_orphan(self, path: str, fork: reclaim.Fork) -> bool:
        """Whether no branch knows a fork, and no running write can be about to publish it."""
        if (path, fork.name) in self.needed.forks:
            return False
        return _owner(fork.name) not in self.needed.branches or fork.made_at < self._orphaned_before

    def _drop_orphan(self, key: str, path: str, fork: reclaim.Fork) -> bool:
        """Drop a fork that is not needed; return whether it is gone, or would be."""
        if not self._is_orphan(path, fork):
            return False
        with self.store.gates.hold(_gates(key, fork.name)) as held:
            self.needed = needed(self.store, self.policy, self.now)
            if not self._is_orphan(path, fork):
                return False
            if self.request.confirm:
                held.check()
                self.store.tables.delete_fork(path, fork.name)
            return True

    # Files

    @property
    def _orphaned_before(self) -> dt.datetime:
        return before(self.now, self.request.orphan_age)

    def abandoned(self) -> list[Orphan]:
        """The files of loads that died."""
        return reclaim.orphans(self.store.objects, TEMPORARY, self._orphaned_before)

    def remove(self, found: Sequence[Orphan]) -> Removal:
        if self.request.confirm:
            return reclaim.remove(self.store.objects, found)
        return Removal(files=len(found), size=sum(one.size for one in found))


def _owner(fork: str | None) -> str | None:
    return TableVersion("", "", 0, fork).owner


def _gates(key: str, fork: str | None) -> list[Gate]:
    """Return the gates of a table, its writers, and the creation of branches and tags."""
    owner = _owner(fork)
    return [*ref_gates(owner or MAIN), *table_gates(owner, [key])]


def _cleaned(key: str, removals: Iterable[Removal], forks: Sequence[str] = ()) -> TableCleanup:
    """Add up removals until one fails. What was removed before it stays removed, and is reported with the error."""
    removed, problem = Removal(), None
    try:
        for one in removals:
            removed += one
    except OmnigraphError as error:
        problem = error.message
    return TableCleanup(key, removed.size, removed.versions, removed.files, tuple(forks), problem)
