"""Files that a branch, a tag or a later merge needs, and that are missing or not as they were written."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from omnigraph.api.maintenance import Finding, Severity
from omnigraph.api.results import Commit, TableVersion
from omnigraph.commit.store import Store
from omnigraph.core.refs import MAIN
from omnigraph.errors import OmnigraphError
from omnigraph.maintenance.retention import Collected, Place, Policy, places
from omnigraph.maintenance.tasks import map_tables
from omnigraph.manifest.publisher import Manifest
from omnigraph.manifest.rows import MANIFEST_PATH
from omnigraph.manifest.segments import DIRECTORY as SEGMENTS
from omnigraph.manifest.segments import Segment
from omnigraph.manifest.state import ManifestState
from omnigraph.manifest.time_travel import reclaimed, state_at
from omnigraph.storage.files import Listing, NamedFile, files_below_root
from omnigraph.storage.read import TableReader
from omnigraph.storage.torn import SUFFIX

BACKUP = "restore it from a backup"
MEND_INDEX = "omnigraph repair --confirm, then omnigraph optimize"
_MERGES = "a later merge"
_HEAD, _TAG = "branch ", "tag "
_BRANCHES = f"{MANIFEST_PATH}/_refs/branches/"


@dataclass(frozen=True, slots=True)
class Damage:
    """A file that is missing or damaged, what needs it, and the index that it belongs to, if it does."""

    path: str
    fault: str
    needed_by: tuple[str, ...]
    index: str | None = None

    def finding(self) -> Finding:
        heads = any(one.startswith(_HEAD) for one in self.needed_by)
        # A merge scans its bases, so it does without their indices.
        severity = Severity.ADVICE if self.index and set(self.needed_by) == {_MERGES} else Severity.PROBLEM
        message = f"{self.fault}; needed by {', '.join(self.needed_by)}"
        if self.index:
            return Finding(severity, self.path, f"index {self.index}: {message}", MEND_INDEX if heads else BACKUP)
        tags = [one.removeprefix(_TAG) for one in self.needed_by if one.startswith(_TAG)]
        give_up = f", or give it up: omnigraph tag delete {tags[0]}" if len(tags) == len(self.needed_by) == 1 else ""
        return Finding(severity, self.path, message, BACKUP + give_up)


def findings(store: Store) -> list[Finding]:
    """Compare what is referred to with what is there, for one listing per table and page."""
    found = _examined(store)
    problems = [one for one in found if one.severity is Severity.PROBLEM]
    if not problems:
        return found
    # Others write and clean up meanwhile: only a file that is missed twice is lost.
    again = {one.subject for one in _examined(store)}
    return [one for one in found if one.subject in again]


def _examined(store: Store) -> list[Finding]:
    references = _References(store)
    tables: dict[str, dict[tuple[str | None, int], list[str]]] = defaultdict(dict)
    for (path, fork), version, by in references.found:
        tables[path].setdefault((fork, version), []).append(by)

    def look(path: str) -> list[Finding]:
        listing = Listing.below(store.location, store.objects, path)
        needed = {TableVersion("", path, number, fork): by for (fork, number), by in tables[path].items()}
        damage = damaged_files(store, listing, needed)
        return [*(one.finding() for one in damage), *_set_aside(listing)]

    lost = _lost_segments(store, references)
    return [*references.unreadable, *lost, *(one for some in map_tables(look, tables) for one in some)]


def _lost_segments(store: Store, references: _References) -> list[Finding]:
    """Compare the log segments that branches and tags name with what is there, for one listing."""
    there = {one.name: one.size for one in store.objects.list_below(SEGMENTS)}
    named: dict[Segment, list[str]] = defaultdict(list)
    for state, by in references.states:
        for segment in state.segments:
            named[segment].append(by)
    found = []
    for segment, users in named.items():
        size = there.get(segment.name)
        if size != segment.size:
            fault = "it is missing" if size is None else f"it has {size} bytes instead of {segment.size}"
            found.append(Damage(segment.name, fault, tuple(users)).finding())
    return found


def damaged_files(store: Store, listing: Listing, needed: Mapping[TableVersion, Sequence[str]]) -> list[Damage]:
    """Return the damaged files of some versions of one table, each once, with all that need it."""
    tables = TableReader(store.location)  # of its own: what another handle has cached proves nothing about the storage
    users: dict[tuple[str, str, str | None], list[str]] = defaultdict(list)
    for table, by in needed.items():
        for file, fault in _faults(tables, listing, table):
            users[file.name, fault, file.index] += by
    return [Damage(path, fault, tuple(dict.fromkeys(by)), index) for (path, fault, index), by in users.items()]


def _faults(tables: TableReader, listing: Listing, table: TableVersion) -> Iterator[tuple[NamedFile, str]]:
    described = NamedFile(listing.version_file(table), None)
    if (fault := listing.fault_of(described)) is not None:
        yield described, fault
        return
    try:
        named = files_below_root(tables.own_handle(table), table)
    except OmnigraphError as error:
        yield described, error.message
        return
    for file in named:
        if (fault := listing.fault_of(file)) is not None:
            yield file, fault


def _set_aside(listing: Listing) -> list[Finding]:
    """Report files that were set aside. The reference of a branch with commits is a loss: no crash tears it."""
    message = "torn by a crash and set aside: no commit names it"
    names = {one.name for one in listing.objects}
    found = []
    for name in sorted(one for one in names if one.endswith(SUFFIX)):
        branch = _written_branch(name, names)
        if branch is None:
            found.append(Finding(Severity.ADVICE, name, message, "omnigraph cleanup --keep 10"))
        else:
            lost = f"branch {branch!r} has commits, and its reference was damaged and set aside"
            found.append(Finding(Severity.PROBLEM, name, lost, f"{BACKUP}, before a cleanup"))
    return found


def _written_branch(torn: str, names: Collection[str]) -> str | None:
    """Return the branch that a reference is of, if it is not there again and was written to since its creation."""
    if not torn.startswith(_BRANCHES) or torn.removesuffix(SUFFIX) in names:
        return None
    branch = unquote(torn.removeprefix(_BRANCHES).removesuffix(SUFFIX).removesuffix(".json"))
    versions = f"{MANIFEST_PATH}/tree/{branch}/_versions/"
    return branch if sum(one.startswith(versions) and one.endswith(".manifest") for one in names) > 1 else None


def states(store: Store) -> Iterator[ManifestState]:
    """Load the states of branches and tags; leave out those that cannot be read, which the examination reports."""
    references = _References(store)
    yield from (state for state, _ in references.states)


class _References:
    """The versions that branches, tags and later merges need; and what cannot be read on the way to them."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.found: list[tuple[Place, int, str]] = []
        self.unreadable: list[Finding] = []
        self.states: list[tuple[ManifestState, str]] = []
        heads = list(self._heads())
        for state in heads:
            self._need(state, f"{_HEAD}{state.branch or MAIN}")
        self._tags()
        try:
            self._merges(heads)
        except OmnigraphError as error:  # the history cannot be read: what later merges need is not known
            self.unreadable.append(Finding(Severity.PROBLEM, SEGMENTS, error.message, BACKUP))

    def _need(self, state: ManifestState, by: str) -> None:
        self.states.append((state, by))
        self.found += [(place, version, by) for place, version in places(state)]

    def _heads(self) -> Iterator[ManifestState]:
        for name in self.store.manifest.branches():
            try:
                yield self.store.manifest.load(None if name == MAIN else name)
            except OmnigraphError:
                continue  # deleted meanwhile, or reported with its branch

    def _tags(self) -> None:
        try:
            tags = self.store.manifest.table.tags()
        except OmnigraphError as error:
            self.unreadable.append(Finding(Severity.PROBLEM, f"{MANIFEST_PATH}/_refs/tags", error.message, BACKUP))
            return
        for name, tag in tags.items():
            self.found.append(((MANIFEST_PATH, tag["branch"]), tag["version"], f"{_TAG}{name}"))
            try:
                self._need(self.store.manifest.load_tag(name, tag), f"{_TAG}{name}")
            except OmnigraphError as error:
                # The comparison of files names what is lost, unless all of them are there.
                run = f"{BACKUP}, or give it up: omnigraph tag delete {name}"
                self.unreadable.append(Finding(Severity.PROBLEM, f"{_TAG}{name}", error.message, run))

    def _merges(self, heads: Sequence[ManifestState]) -> None:
        collected = Collected(self.store, Policy(1, None), dt.datetime.now(dt.UTC), _state_if_whole)
        collected.need_for_merges(heads)
        for place, versions in collected.versions.items():
            self.found += [(place, version, _MERGES) for version in versions]
        # A cleanup keeps merge bases of living branches; those of a deleted branch went with it.
        own = {state.branch: {commit.commit_id for commit in state.commits()} for state in heads}
        for commit in collected.absent:
            if commit.commit_id in own.get(commit.branch, ()):
                self.found.append(((MANIFEST_PATH, commit.branch), commit.manifest_version, _MERGES))


def _state_if_whole(manifest: Manifest, commit: Commit) -> ManifestState:
    """Load the state of a commit; one that is damaged counts as absent, so that the others are still looked at."""
    try:
        return state_at(manifest, commit)
    except OmnigraphError as error:
        raise reclaimed(commit) from error
