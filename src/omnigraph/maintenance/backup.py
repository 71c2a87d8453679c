"""`backup`, `restore` and `verify`: copy every file that a graph refers to, with its digest, and bring it back.

A backup directory holds any number of backups of one graph: `backup.json` names the graph, `files/` has each file
once, and `backups/<id>.json` lists the files of one backup. That list comes last: without it there is no backup.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from urllib.parse import quote

import pyarrow.compute as pc

from omnigraph.api.maintenance import BackupResult, FileProblem, RestoreResult, VerifyResult
from omnigraph.api.pipelines import RUNS
from omnigraph.api.progress import SILENT, Progress
from omnigraph.api.results import TableVersion
from omnigraph.commit.gates import DIRECTORY as GATES
from omnigraph.commit.publish import undo_unrecorded_everywhere
from omnigraph.commit.sidecar import DIRECTORY as RECORDS
from omnigraph.commit.store import Store
from omnigraph.core.executor import map_in_threads
from omnigraph.core.location import Location
from omnigraph.core.refs import MAIN
from omnigraph.errors import (
    BackupDamagedError,
    BackupNotFoundError,
    BackupTargetError,
    ContentionError,
    StorageDeniedError,
    StorageError,
    StorageFullError,
)
from omnigraph.history.reviews import DIRECTORY as REVIEWS
from omnigraph.lang.identity import new_id
from omnigraph.maintenance import damage
from omnigraph.maintenance.cleanup import TEMPORARY
from omnigraph.maintenance.relocate import MARK, alone
from omnigraph.manifest.members import DIRECTORY as NOTED
from omnigraph.manifest.rows import MANIFEST_PATH, RESTORING
from omnigraph.manifest.schema_files import FILES, is_started
from omnigraph.manifest.segments import DIRECTORY as SEGMENTS
from omnigraph.manifest.state import ManifestState
from omnigraph.storage import reclaim
from omnigraph.storage.bases import TablePlace, fork_of_version_file, moved_file
from omnigraph.storage.durability import Durability, Medium
from omnigraph.storage.files import directory_of, files_below_root
from omnigraph.storage.lance_errors import lance_call
from omnigraph.storage.objects import Listed, ObjectStore
from omnigraph.storage.read import TableReader
from omnigraph.storage.versions import version_number

FORMAT = "omnigraph-backup-1"
MISSING = "missing"
CLAIM, INDEXES, CONTENT = "backup.json", "backups", "files"
_ATTEMPTS = 3
_AT_ONCE = 4
_WHOLE = 2**23  # a file up to this size is copied in one piece
_PASSED_OVER = (GATES, RECORDS, TEMPORARY)
_VERSIONS = re.compile(r"(?P<path>.+?)(/tree/(?P<fork>.+))?/_versions/[^/]+")
# Files that can have other content under the same name: they are kept under a name with their digest.
_CHANGING = re.compile(r"(.+/)?(_versions|_refs|__refs|__pipelines)/.+|[^/]+")


@dataclass(frozen=True, slots=True)
class _File:
    path: str
    size: int
    sha256: str
    modified: str
    stored: str


@dataclass(frozen=True, slots=True)
class _Cut:
    """The states of all branches at one moment, and the tags."""

    states: Mapping[str, ManifestState]
    tags: Mapping[str, object]

    @property
    def identity(self) -> object:
        heads = {name: (state.version, state.head) for name, state in self.states.items()}
        return heads, sorted(self.tags)


# Backup ---------------------------------------------------------------------------------------------


def backup(store: Store, target: Location, progress: Progress = SILENT, *, may_wait: bool = True) -> BackupResult:
    """Copy what all branches and tags refer to, with their history. Writers go on meanwhile.

    Nothing is written to the graph. If a cleanup removes a file before it is copied, it begins again.
    """
    _refuse_target(store.location, target)
    if may_wait:
        undo_unrecorded_everywhere(store)  # a version that a power cut tore could not be read
    for attempt in range(_ATTEMPTS):
        cut = _cut(store, may_wait=may_wait)
        try:
            return _copied(store, cut, target, progress)
        except (StorageDeniedError, StorageFullError):
            raise
        except (StorageError, BackupDamagedError) as error:
            is_source = isinstance(error, BackupDamagedError) or error.path.startswith(store.location.uri)
            if not is_source or attempt == _ATTEMPTS - 1:
                raise
    raise AssertionError("the last attempt returns or raises")


def _refuse_target(source: Location, target: Location) -> None:
    # With the slash: `/data/graph2` does not lie inside of `/data/graph`.
    one, two = f"{source.uri}/", f"{target.uri}/"
    if one.startswith(two) or two.startswith(one):
        message = f"{target.uri} and the graph at {source.uri} lie one in the other"
        raise BackupTargetError(message, uri=target.uri, hint="back up to an address outside of the graph")
    objects = ObjectStore(target)
    if objects.exists(MANIFEST_PATH) or is_started(objects):
        message = f"{target.uri} is a graph, not a place for backups"
        raise BackupTargetError(message, uri=target.uri, hint="name an empty directory, or one that has backups")


def _cut(store: Store, *, may_wait: bool) -> _Cut:
    """Read the states of all branches as they were at one moment: two looks that agree, or one behind all gates."""
    last = _look(store)
    for _ in range(_ATTEMPTS):
        again = _look(store)
        if again.identity == last.identity:
            return again
        last = again
    if not may_wait:
        message = f"the branches of {store.location.uri} changed while they were read"
        raise ContentionError(message, attempts=_ATTEMPTS, hint="try again, or open the graph read-write")
    with alone(store):
        return _look(store)


def _look(store: Store) -> _Cut:
    return _Cut(dict(store.manifest.states()), store.manifest.table.tags())


def _copied(store: Store, cut: _Cut, target: Location, progress: Progress) -> BackupResult:
    listed = {one.name: one for one in store.objects.list_below("")}
    names = sorted(_referenced(store, cut, listed))
    lost = {name for name in names if name not in listed}
    if lost:
        _refuse_damage(store, lost, listed)
        names = [name for name in names if name not in lost]
    objects = ObjectStore(target)
    graph_id = cut.states[MAIN].graph_id
    _claim(objects, target, graph_id)
    previous = _latest(objects)
    known = {one.path: one for one in _files(previous)} if previous else {}
    copier = _Copier(store.objects, objects, known)
    progress.phase("back up", len(names))
    files = []
    for file, written in map_in_threads(copier.copy, [listed[name] for name in names], _AT_ONCE):
        files.append(file)
        copier.count(written)
        progress.advance(1, 0)
    # All files are on the medium before the list that names them.
    Medium(target, Durability.of(None)).sync(CONTENT, INDEXES)
    document = {
        "format": FORMAT,
        "graph_id": graph_id,
        "backup_id": new_id(),
        "made_at": time.time_ns() // 1000,
        "root": store.location.uri,
        "previous": previous["backup_id"] if previous else None,
        "heads": {name: state.head.commit_id for name, state in cut.states.items() if state.head},
        "tags": sorted(cut.tags),
        "files": [asdict(one) for one in files],
    }
    objects.write(f"{INDEXES}/{document['backup_id']}.json", json.dumps(document).encode())
    Medium(target, Durability.of(None)).sync(INDEXES)
    return _result(target, document, copier)


def _refuse_damage(store: Store, lost: Collection[str], listed: Collection[str]) -> None:
    """Refuse a graph that lost a file.

    A version that a fork starts from and nothing else needs does not count: cleanups of releases before 0.2.0 took
    its files and left its name.
    """
    tables = TableReader(store.location)
    paths = {path for path, _ in _places(listed) if any(name.startswith(f"{path}/") for name in lost)}
    unread = {name for path in paths for name in reclaim.named_only_by_starts(tables, store.objects, path)}
    unread -= {one.subject for one in damage.findings(store)}
    for name in sorted(lost):
        if not any(name == one or name.startswith(f"{one}/") for one in unread):
            message = f"{name} is missing from the graph, so it cannot be backed up"
            raise BackupDamagedError(message, path=name, hint="run `omnigraph doctor`")


def _claim(objects: ObjectStore, target: Location, graph_id: str | None) -> None:
    """Make the target the place of this graph's backups; refuse one of another graph or with other files."""
    found = objects.read_if_exists(CLAIM)
    if found is None:
        # Another backup may be about to claim it: its unfinished file is no content, and then the claim is there.
        if objects.list_below("") and not objects.exists(CLAIM):
            message = f"{target.uri} is not empty, and holds no backups"
            raise BackupTargetError(message, uri=target.uri, hint="name an empty directory, or one that has backups")
        objects.create(CLAIM, json.dumps({"format": FORMAT, "graph_id": graph_id}).encode())
        found = objects.read(CLAIM)
    owner = None
    with suppress(ValueError, TypeError, KeyError):
        owner = json.loads(found)["graph_id"]
    if owner != graph_id:
        message = f"{target.uri} holds backups of another graph"
        raise BackupTargetError(message, uri=target.uri, hint="choose another address")


class _Copier:
    def __init__(self, source: ObjectStore, target: ObjectStore, known: Mapping[str, _File]) -> None:
        self._source, self._target, self._known = source, target, known
        self.files = self.size = 0

    def count(self, written: int | None) -> None:
        self.files += written is not None
        self.size += written or 0

    def copy(self, listed: Listed) -> tuple[_File, int | None]:
        """Copy a file unless the previous backup has it; return its entry, and how much was written."""
        modified = listed.modified.isoformat()
        before = self._known.get(listed.name)
        is_changing = _CHANGING.fullmatch(listed.name) is not None
        # Other files have unique names: the same name and size is the same file.
        # A version file can be rewritten by `relocate`, and a reference by its branch: for those the time counts as
        # well.
        if before and before.size == listed.size and (not is_changing or before.modified == modified):
            return before, None
        if is_changing or listed.size <= _WHOLE:
            data = self._source.read(listed.name)
            digest = hashlib.sha256(data).hexdigest()
            stored = f"{listed.name}.{digest[:16]}" if is_changing else listed.name
            # Under another name than before: earlier backups refer to the older content.
            self._target.write(f"{CONTENT}/{stored}", data)
            return _File(listed.name, len(data), digest, modified, stored), len(data)
        hashed = _Hashed(self._source.chunks(listed.name))
        self._target.write_chunks(f"{CONTENT}/{listed.name}", hashed)
        return _File(listed.name, hashed.size, hashed.digest, modified, listed.name), hashed.size


class _Hashed:
    """Pieces of a file that are hashed as they pass."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._hash, self.size = pieces, hashlib.sha256(), 0

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._pieces:
            self._hash.update(piece)
            self.size += len(piece)
            yield piece

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()


# What a graph refers to -----------------------------------------------------------------------------


def _referenced(store: Store, cut: _Cut, listed: Mapping[str, Listed]) -> Iterator[str]:
    """Yield the names of all files that the states of a cut refer to, and those of their past."""
    yield from (name for name in FILES if name in listed)
    inside: dict[str, set[str]] = defaultdict(set)
    for name in listed:
        inside[name.rpartition("/")[0]].add(name)
    caps, found = _caps(cut), set[str]()
    for path, fork in sorted(_places(listed), key=str):
        ref = f"{path}/_refs/branches/{_quoted(fork)}.json" if fork else ""
        # Of tables all forks are kept: a merge may need one whose branch is deleted. One without a reference was never
        # completed, unless a branch has it.
        if fork and (path, fork) not in caps and (path == MANIFEST_PATH or ref not in listed):
            continue
        found |= set(_tracked(store, path, fork, caps.get((path, fork)), inside))
        found |= {ref} if ref else set()
    found |= {f"{MANIFEST_PATH}/_refs/tags/{_quoted(tag)}.json" for tag in cut.tags}
    found |= {name for name in listed if name.startswith((f"{NOTED}/", f"{REVIEWS}/", f"{RUNS}/"))}
    # Past states name segments that later ones do not: without reading each of them, all are needed.
    found |= inside.get(SEGMENTS, set()) | {one.name for state in cut.states.values() for one in state.segments}
    yield from found


def _quoted(name: str) -> str:
    return quote(name, safe="")


def _places(listed: Collection[str]) -> set[tuple[str, str | None]]:
    """Return all tables and forks. Directories of dropped types are among them: a past state may be made of them."""
    found = (_VERSIONS.fullmatch(name) for name in listed if not name.startswith(_PASSED_OVER))
    return {(one["path"], one["fork"]) for one in found if one}


def _caps(cut: _Cut) -> dict[tuple[str, str | None], int]:
    """Return the newest version of each table that some branch has; later ones belong to writes under way."""
    caps: dict[tuple[str, str | None], int] = defaultdict(int)
    for name, state in cut.states.items():
        caps[MANIFEST_PATH, None if name == MAIN else name] = state.version
        for entry in state.snapshot.entries.values():
            place = entry.table.path, entry.table.branch
            caps[place] = max(caps[place], entry.table.version)
    return dict(caps)


def _tracked(
    store: Store, path: str, fork: str | None, cap: int | None, inside: Mapping[str, set[str]]
) -> Iterator[str]:
    """Yield the files of a table or fork up to a version, those it shares with others of its table included."""
    dataset = store.tables.head(path, fork)
    try:
        with lance_call(dataset.uri, "list the files of"):
            rows = dataset.tracked_files().read_all()
    except StorageError:
        torn = store.tables.torn(path, fork)
        if not torn:
            raise
        # Lance lists nothing beside a version that a power cut tore, and a reader cannot set it aside.
        yield from _tracked_but(torn, store, TableVersion("", path, cap or 0, fork), inside)
        return
    if cap is not None:
        rows = rows.filter(pc.less_equal(rows["version"], cap))
    columns = (rows[name].to_pylist() for name in ("base_uri", "path", "type"))
    for base, name, kind in set(zip(*columns, strict=True)):
        # The base may name a former root. Behind the path of the table it is the same.
        directory = f"{path}{base.rpartition(f'/{path}')[2]}"
        # A cleanup removes transactions of versions that it keeps: nothing reads them any more.
        if kind != "transaction file" or f"{directory}/{name}" in inside.get(f"{directory}/_transactions", ()):
            yield f"{directory}/{name}"
        if kind == "data file":  # Lance does not mention the files of large Blobs: they lie in a directory beside it
            yield from inside.get(f"{directory}/{name.removesuffix('.lance')}", ())


def _tracked_but(
    torn: Collection[int], store: Store, last: TableVersion, inside: Mapping[str, set[str]]
) -> Iterator[str]:
    """Yield the files of the versions of a table up to the last one, one by one, without those that are torn."""
    directory = directory_of(last.path, last.branch)
    for name in inside.get(f"{directory}/_versions", ()):
        number = version_number(name.rpartition("/")[2])
        if number is None or number in torn or number > (last.version or number):
            continue
        yield name
        table = replace(last, version=number)
        for file in files_below_root(store.tables.own_handle(table), table):
            yield from (file.name,) if file.index is None else inside.get(file.name, ())
            yield from inside.get(file.name.removesuffix(".lance"), ())
    yield from inside.get(f"{directory}/_transactions", ())


# Backups --------------------------------------------------------------------------------------------


def backups(target: Location) -> list[BackupResult]:
    """List the complete backups at an address, oldest first."""
    objects = ObjectStore(target)
    return [_result(target, _index(objects, name)) for name in objects.list(INDEXES)]


def _latest(objects: ObjectStore) -> dict[str, object] | None:
    names = objects.list(INDEXES)
    return _index(objects, names[-1]) if names else None


def _index(objects: ObjectStore, name: str) -> dict[str, object]:
    document = None
    with suppress(ValueError):
        document = json.loads(objects.read(f"{INDEXES}/{name}"))
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise BackupDamagedError(
            f"{INDEXES}/{name} is not the list of a backup", path=name, hint="choose another backup"
        )
    return document


def _files(document: Mapping[str, object]) -> list[_File]:
    files = document["files"]
    assert isinstance(files, list)
    return [_File(**one) for one in files]


def _chosen(source: Location, backup_id: str | None) -> dict[str, object]:
    objects = ObjectStore(source)
    names = objects.list(INDEXES)
    wanted = f"{backup_id}.json" if backup_id else (names[-1] if names else None)
    if wanted is None or wanted not in names:
        which = f"backup {backup_id}" if backup_id else "complete backup"
        message = f"there is no {which} at {source.uri}"
        raise BackupNotFoundError(message, uri=source.uri, hint="see `omnigraph backup list`")
    return _index(objects, wanted)


def _result(target: Location, document: Mapping[str, object], copier: _Copier | None = None) -> BackupResult:
    files, heads = _files(document), document["heads"]
    assert isinstance(heads, dict)
    made_at = document["made_at"]
    assert isinstance(made_at, int)
    copied = (copier.files, copier.size) if copier else (None, None)
    size = sum(one.size for one in files)
    return BackupResult(target.uri, str(document["backup_id"]), made_at, heads, len(files), size, *copied)


# Restore and verify ---------------------------------------------------------------------------------


def restore(
    source: Location, target: Location, backup_id: str | None = None, progress: Progress = SILENT
) -> RestoreResult:
    """Make a graph of a backup, each file checked against its digest. What is there already is never replaced.

    The versions of the manifest come last: until then there is no graph. After a death, do it again.
    """
    document = _chosen(source, backup_id)
    chosen = str(document["backup_id"])
    objects, stored = ObjectStore(target), ObjectStore(source)
    begun = objects.read_if_exists(RESTORING)
    if begun != chosen.encode():
        if begun is not None or objects.exists(""):
            what = "another restore began there" if begun is not None else "it is not empty"
            message = f"cannot restore to {target.uri}: {what}"
            raise BackupTargetError(message, uri=target.uri, hint="choose an address where nothing is")
        if not objects.create(RESTORING, chosen.encode()):
            message = f"cannot restore to {target.uri}: another restore has just begun there"
            raise BackupTargetError(message, uri=target.uri, hint="choose another address")
    files = sorted(_files(document), key=lambda one: (_order(one.path), one.path))
    progress.phase("restore", len(files))
    late = next((at for at, one in enumerate(files) if _order(one.path)), len(files))
    for part in (files[:late], files[late:]):  # in two rounds: no file of the second may come before one of the first
        for _ in map_in_threads(lambda one: _restored(stored, objects, target, one), part, _AT_ONCE):
            progress.advance(1, 0)
        Medium(target, Durability.of(None)).sync("")
    objects.write(MARK, json.dumps({"root": target.uri}).encode())
    objects.delete(RESTORING)
    return RestoreResult(target.uri, chosen, len(files), sum(one.size for one in files))


def _order(path: str) -> int:
    return int(path.startswith(f"{MANIFEST_PATH}/_versions/"))


def _restored(stored: ObjectStore, objects: ObjectStore, target: Location, one: _File) -> None:
    fork = fork_of_version_file(one.path)
    if fork is None and one.size > _WHOLE:
        hashed = _Hashed(stored.chunks(f"{CONTENT}/{one.stored}"))
        objects.write_chunks(one.path, hashed)
        if hashed.digest != one.sha256:
            objects.delete(one.path)
            raise _damaged(one)
        return
    data = stored.read(f"{CONTENT}/{one.stored}")
    if hashlib.sha256(data).hexdigest() != one.sha256:
        raise _damaged(one)
    objects.write(one.path, data if fork is None else moved_file(data, TablePlace(target, fork[0])))


def _damaged(one: _File) -> BackupDamagedError:
    message = f"{one.stored} in the backup is not the file that was backed up"
    return BackupDamagedError(message, path=one.stored, hint="restore another backup; see `omnigraph verify`")


def verify_backup(source: Location, backup_id: str | None = None, progress: Progress = SILENT) -> VerifyResult:
    """Read every file of a backup, and compare its size and digest."""
    document, objects = _chosen(source, backup_id), ObjectStore(source)
    files = _files(document)
    listed = {one.name.removeprefix(f"{CONTENT}/"): one.size for one in objects.list_below(CONTENT)}
    progress.phase("verify", len(files))
    problems = []
    for problem in map_in_threads(lambda one: _problem(objects, listed, one), files, _AT_ONCE):
        problems += [problem] if problem else []
        progress.advance(1, 0)
    return VerifyResult(source.uri, len(files), sum(one.size for one in files), tuple(problems))


def _problem(
    objects: ObjectStore, listed: Mapping[str, int], one: _File, below: str = f"{CONTENT}/"
) -> FileProblem | None:
    if one.stored not in listed:
        return FileProblem(one.stored, MISSING)
    if listed[one.stored] != one.size:
        return FileProblem(one.stored, f"has {listed[one.stored]} bytes instead of {one.size}")
    hashed = _Hashed(objects.chunks(f"{below}{one.stored}"))
    for _ in hashed:
        pass
    return None if hashed.digest == one.sha256 else FileProblem(one.stored, "has other content")


def verify(store: Store, against: Location | None = None, progress: Progress = SILENT) -> VerifyResult:
    """Check that every file that a graph refers to is there; with a backup, that those it has too are the same."""
    cut = _cut(store, may_wait=False)
    listed = {one.name: one for one in store.objects.list_below("")}
    names = sorted(_referenced(store, cut, listed))
    known = _digests(against, cut) if against else {}
    progress.phase("verify", len(names))
    problems, compared = [], 0
    for name in names:
        if name not in listed:
            problems.append(FileProblem(name, MISSING))
        elif name in known and _is_same(known[name], listed[name]):
            found = _problem(store.objects, {name: listed[name].size}, replace(known[name], stored=name), below="")
            problems += [found] if found else []
            compared += 1
        progress.advance(1, 0)
    size = sum(listed[name].size for name in names if name in listed)
    unknown = sum(name in listed for name in names) - compared if against else 0
    return VerifyResult(store.location.uri, len(names), size, tuple(problems), unknown)


def _digests(against: Location, cut: _Cut) -> dict[str, _File]:
    """Return the files of the latest backup of a graph, by their names."""
    document = _chosen(against, None)
    if document["graph_id"] != cut.states[MAIN].graph_id:
        message = f"{against.uri} holds backups of another graph"
        raise BackupTargetError(message, uri=against.uri, hint="name the address of backups of this graph")
    return {one.path: one for one in _files(document)}


def _is_same(before: _File, listed: Listed) -> bool:
    """Whether a file must be the one in the backup: its name is unique, or it was not written since."""
    return not _CHANGING.fullmatch(before.path) or before.modified == listed.modified.isoformat()
