"""Remove old versions of tables, and files that nothing refers to."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import lance

from omnigraph.api.maintenance import Removal
from omnigraph.api.results import TableVersion
from omnigraph.errors import StorageError
from omnigraph.storage.bases import file_name
from omnigraph.storage.files import NamedFile, directory_of, files_below_root
from omnigraph.storage.lance_errors import lance_call
from omnigraph.storage.objects import ObjectStore
from omnigraph.storage.observe import durable_write
from omnigraph.storage.read import TableReader
from omnigraph.storage.stage import TableStorage
from omnigraph.storage.torn import SUFFIX
from omnigraph.storage.versions import version_number

_NEVER = dt.timedelta(days=365 * 100)
# What a version can name: a data file, the large values of one, a deletion file, a segment of an index.
_REFERABLE = [
    re.compile(text)
    for text in (r"(data/[^/]+\.lance)", r"(data/[^/]+)/[^/]+\.blob", r"(_deletions/[^/]+)", r"(_indices/[^/]+)/.+")
]


def versions(tables: TableReader, path: str, fork: str | None) -> list[int]:
    """List the versions of a table or a fork, oldest first."""
    dataset = tables.head(path, fork)
    with lance_call(dataset.uri, "list the versions of"):
        return sorted(int(one["version"]) for one in dataset.version_refs())


def versions_before(objects: ObjectStore, path: str, fork: str | None, before: dt.datetime) -> list[int]:
    """List the versions of a table that were made before some time."""
    found = orphans(objects, _versions_of(path, fork), before)
    numbers = (version_number(one.name.rpartition("/")[2]) for one in found)
    return sorted(number for number in numbers if number is not None)


def shared_with_forks(
    tables: TableReader, objects: ObjectStore, path: str, fork: str | None, chosen: Sequence[int]
) -> frozenset[int]:
    """Return the versions among those chosen that a fork starts from and still shares files with.

    Lance would keep them without the files that no fork shares, so that they could not be read.
    """
    starts = [one for one in _starts_of_forks(tables, path) if one.branch == fork and one.version in chosen]
    if not starts:
        return frozenset()
    elsewhere = (table for table in _every_version(objects, path) if table.branch != fork)
    shared = {file.name for table in elsewhere for file in _names(tables, table)}
    return frozenset(one.version for one in starts if any(file.name in shared for file in _names(tables, one)))


def named_only_by_starts(tables: TableReader, objects: ObjectStore, path: str) -> frozenset[str]:
    """Return the files that no version of a table names but those that forks start from."""
    starts, named = _starts_of_forks(tables, path), set[str]()
    others = {file.name for one in _every_version(objects, path) if one not in starts for file in _names(tables, one)}
    for one in starts:
        with suppress(StorageError):  # its version is gone as well
            named |= {file.name for file in _names(tables, one)}
    return frozenset(named - others)


def _starts_of_forks(tables: TableReader, path: str) -> set[TableVersion]:
    dataset = tables.head(path, None)
    with lance_call(dataset.uri, "list the forks of"):
        found = dataset.branches.list().values()
    return {TableVersion("", path, one["parent_version"], one["parent_branch"]) for one in found}


def preview_versions(tables: TableStorage, path: str, fork: str | None, chosen: Sequence[int]) -> Removal:
    """Count what removing versions would remove. The head stays, and so do versions that forks start from."""
    dataset = tables.head(path, fork)
    with lance_call(dataset.uri, "look at the versions of"):
        found = dataset.explain_cleanup_old_versions(**_which(chosen), error_if_tagged_old_versions=False)
    return _removal(found.stats)


def remove_versions(tables: TableStorage, path: str, fork: str | None, chosen: Sequence[int]) -> Removal:
    """Remove versions, files that only they refer to, and old files that nothing refers to."""
    dataset = tables.head(path, fork)
    durable_write("remove versions", dataset.uri)
    with lance_call(dataset.uri, "remove versions of"):
        return _removal(dataset.cleanup_old_versions(**_which(chosen), error_if_tagged_old_versions=False))


def empty(tables: TableStorage, path: str) -> None:
    """Put an empty version on top of a table, so that all of its rows can be removed: Lance keeps the latest one."""
    dataset = tables.head(path, None)
    if not _is_empty(dataset):
        tables.create(path, dataset.schema)


def preview_emptying(tables: TableStorage, objects: ObjectStore, path: str) -> Removal:
    """Count what emptying a table would remove beside older versions: the latest one and its files."""
    dataset = tables.head(path, None)
    if _is_empty(dataset):
        return Removal()
    own = _own_files(dataset)
    names = ((one, one.name.removeprefix(f"{path}/")) for one in objects.list_below(path))
    found = [one for one, name in names if own.fullmatch(name)]
    return Removal(1, len(found), sum(one.size for one in found))


def _is_empty(dataset: lance.LanceDataset) -> bool:
    with lance_call(dataset.uri, "count the rows of"):
        return bool(dataset.count_rows() == 0)


def _own_files(dataset: lance.LanceDataset) -> re.Pattern[str]:
    """Return a pattern for the names of the files of a version, below its table."""
    with lance_call(dataset.uri, "read"):
        made_by = dataset.read_transaction(dataset.version)
        fragments = dataset.get_fragments()
        segments = [part.uuid for index in dataset.describe_indices() for part in index.segments]
    names = [f"_versions/{file_name(dataset.version)}"]
    names += [f"data/{file.path}" for fragment in fragments for file in fragment.data_files()]
    names += [name for fragment in fragments if (name := fragment.deletion_file())]
    patterns = [*map(re.escape, names), *(f"_indices/{uuid}/.*" for uuid in segments)]
    return re.compile("|".join([*patterns, *([rf"_transactions/\d+-{made_by.uuid}\.txn"] if made_by else [])]))


def _which(chosen: Sequence[int]) -> dict[str, Any]:
    # Without versions Lance would fall back to its default, and remove everything older than two weeks.
    return {"versions": list(chosen)} if chosen else {"older_than": _NEVER}


def _removal(stats: Any) -> Removal:
    names = ("data_files_removed", "transaction_files_removed", "index_files_removed", "deletion_files_removed")
    files = sum(int(getattr(stats, name)) for name in names)
    return Removal(int(stats.old_versions), files + int(stats.old_versions), int(stats.bytes_removed))


@dataclass(frozen=True, slots=True)
class Fork:
    """A native branch of a table, when it was created, and the fork that it starts from, if not from main."""

    name: str
    made_at: dt.datetime
    parent: str | None


def forks(tables: TableStorage, path: str) -> list[Fork]:
    """List the forks of a table, deepest first: Lance refuses to delete a fork that others start from."""
    dataset = tables.head(path, None)
    with lance_call(dataset.uri, "list the forks of"):
        found = dataset.branches.list()
    made = {name: dt.datetime.fromtimestamp(one["create_at"], dt.UTC) for name, one in found.items()}
    depth = {name: len(one["branch_identifier"]) for name, one in found.items()}
    names = sorted(made, key=lambda name: (-depth[name], name))
    return [Fork(name, made[name], found[name]["parent_branch"]) for name in names]


def removable_forks(found: Iterable[Fork], goes: Callable[[Fork], bool]) -> Iterator[Fork]:
    """Yield the forks that go, deepest first. One that another starts from stays as long as that one, unasked."""
    parents = set[str | None]()
    for fork in found:
        if fork.name not in parents and goes(fork):
            yield fork
        else:
            parents.add(fork.parent)


@dataclass(frozen=True, slots=True)
class Orphan:
    name: str
    size: int


def orphans(objects: ObjectStore, prefix: str, before: dt.datetime) -> list[Orphan]:
    """List the objects below a prefix that were last written before some time."""
    return [Orphan(one.name, one.size) for one in objects.list_below(prefix) if one.modified < before]


def unreferenced(
    tables: TableReader, objects: ObjectStore, path: str, fork: str | None, before: dt.datetime
) -> list[Orphan]:
    """List old files of a table or fork that no version names: those of writes that died, and what was set aside.

    The caller holds the gate of its writers, so that no commit can name one of them meanwhile.
    """
    own = f"{directory_of(path, fork)}/"
    old = _old_files(objects, path, fork, before)
    torn = [one for one in old if one.name.endswith(SUFFIX)]
    loose = {one: name for one in old if (name := _named_as(one.name.removeprefix(own))) is not None}
    if loose:
        # Versions of other forks count as well: they share the files of what they were made from.
        named = {file.name for table in _every_version(objects, path) for file in _names(tables, table)}
        loose = {one: name for one, name in loose.items() if f"{own}{name}" not in named}
    return [*torn, *loose]


def set_aside(objects: ObjectStore, path: str, fork: str | None, before: dt.datetime) -> list[Orphan]:
    """List old files of a table or fork that were torn by a crash and set aside."""
    return [one for one in _old_files(objects, path, fork, before) if one.name.endswith(SUFFIX)]


def _old_files(objects: ObjectStore, path: str, fork: str | None, before: dt.datetime) -> list[Orphan]:
    """List the files of a table or fork that were last written before some time, without those of its forks."""
    found = orphans(objects, directory_of(path, fork), before)
    return found if fork else [one for one in found if not one.name.startswith(f"{path}/tree/")]


def _named_as(name: str) -> str | None:
    """Return the name by which a version would refer to a file below its directory; None if it is of another kind."""
    for pattern in _REFERABLE:
        if found := pattern.fullmatch(name):
            return f"{found[1]}.lance" if name.endswith(".blob") else found[1]
    return None


def _every_version(objects: ObjectStore, path: str) -> Iterator[TableVersion]:
    """Yield the versions of a table and of all of its forks, previews included, by their files."""
    for one in objects.list_below(path):
        directory, _, name = one.name.rpartition("/_versions/")
        number = version_number(name.removeprefix("d"))
        if directory and number is not None:
            number = int(name[1:].partition(".")[0]) if name.startswith("d") else number
            yield TableVersion("", path, number, directory.removeprefix(path).removeprefix("/tree/") or None)


def _names(tables: TableReader, table: TableVersion) -> list[NamedFile]:
    return files_below_root(tables.own_handle(table), table)


def stale_previews(objects: ObjectStore, path: str, fork: str | None, before: dt.datetime) -> list[Orphan]:
    """List previews that were made before some time, which no process can be reading any more."""
    found = orphans(objects, _versions_of(path, fork), before)
    return [one for one in found if one.name.rpartition("/")[2].startswith("d")]


def _versions_of(path: str, fork: str | None) -> str:
    return f"{directory_of(path, fork)}/_versions"


def remove(objects: ObjectStore, found: Sequence[Orphan]) -> Removal:
    for one in found:
        objects.delete(one.name)
    return Removal(files=len(found), size=sum(one.size for one in found))
