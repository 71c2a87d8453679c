"""Removing what nobody needs from the storage: old versions of tables, and files that nothing refers to."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from omnigraph.storage.durable import durable_write
from omnigraph.storage.lance_errors import lance_call
from omnigraph.storage.objects import ObjectStore
from omnigraph.storage.tables import TableStorage

# Lance takes younger files for those of a write that is under way, and so do we.
ORPHAN_AGE = dt.timedelta(days=7)
_NEVER = dt.timedelta(days=365 * 100)


@dataclass(frozen=True, slots=True)
class Removal:
    """How many versions, files and bytes were removed, or would be."""

    versions: int = 0
    files: int = 0
    size: int = 0

    def __add__(self, other: Removal) -> Removal:
        return Removal(self.versions + other.versions, self.files + other.files, self.size + other.size)


def versions(tables: TableStorage, path: str, fork: str | None) -> list[int]:
    """The versions of a table, or of a fork of it, oldest first."""
    dataset = tables.head(path, fork)
    with lance_call(dataset.uri, "list the versions of"):
        return sorted(int(one["version"]) for one in dataset.version_refs())


def preview_versions(tables: TableStorage, path: str, fork: str | None, chosen: Sequence[int]) -> Removal:
    """Tell what the removal of versions would remove. What a fork was made from stays, and so does the head."""
    dataset = tables.head(path, fork)
    with lance_call(dataset.uri, "look at the versions of"):
        found = dataset.explain_cleanup_old_versions(**_which(chosen), error_if_tagged_old_versions=False)
    return _removal(found.stats)


def remove_versions(tables: TableStorage, path: str, fork: str | None, chosen: Sequence[int]) -> Removal:
    """Remove versions, the files that only they refer to, and those that nothing has referred to for a long time."""
    dataset = tables.head(path, fork)
    durable_write("remove versions", dataset.uri)
    with lance_call(dataset.uri, "remove versions of"):
        return _removal(dataset.cleanup_old_versions(**_which(chosen), error_if_tagged_old_versions=False))


def empty(tables: TableStorage, path: str) -> None:
    """Put a version without rows on top of a table, so that all of its rows can be removed."""
    dataset = tables.head(path, None)
    with lance_call(dataset.uri, "count the rows of"):
        is_empty = dataset.count_rows() == 0
    if not is_empty:
        tables.create(path, dataset.schema)


def _which(chosen: Sequence[int]) -> dict[str, Any]:
    return {"versions": list(chosen)} if chosen else {"older_than": _NEVER}


def _removal(stats: Any) -> Removal:
    names = ("data_files_removed", "transaction_files_removed", "index_files_removed", "deletion_files_removed")
    files = sum(int(getattr(stats, name)) for name in names)
    return Removal(int(stats.old_versions), files + int(stats.old_versions), int(stats.bytes_removed))


@dataclass(frozen=True, slots=True)
class Fork:
    """A native branch of a table, and when it was made."""

    name: str
    made_at: dt.datetime


def forks(tables: TableStorage, path: str) -> list[Fork]:
    """The forks of a table, those first that others may have been made from last."""
    dataset = tables.head(path, None)
    with lance_call(dataset.uri, "list the forks of"):
        found = dataset.branches.list()
    made = {name: dt.datetime.fromtimestamp(one["create_at"], dt.UTC) for name, one in found.items()}
    depth = {name: len(one["branch_identifier"]) for name, one in found.items()}
    return [Fork(name, made[name]) for name in sorted(made, key=lambda name: (-depth[name], name))]


@dataclass(frozen=True, slots=True)
class Orphan:
    name: str
    size: int


def orphans(objects: ObjectStore, prefix: str, before: dt.datetime) -> list[Orphan]:
    """The objects below a prefix that nobody has touched since."""
    return [Orphan(one.name, one.size) for one in objects.list_below(prefix) if one.modified < before]


def stale_previews(objects: ObjectStore, path: str, fork: str | None, before: dt.datetime) -> list[Orphan]:
    """The states that were made readable to look at them, and that nobody can be looking at any more."""
    directory = "/".join((path, *(("tree", fork) if fork else ()), "_versions"))
    return [one for one in orphans(objects, directory, before) if one.name.rpartition("/")[2].startswith("d")]


def remove(objects: ObjectStore, found: Sequence[Orphan]) -> Removal:
    for one in found:
        objects.delete(one.name)
    return Removal(files=len(found), size=sum(one.size for one in found))
