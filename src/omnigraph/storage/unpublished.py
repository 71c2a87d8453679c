"""The files that a write has put in place and that no version names yet: a write that fails deletes them."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import lance

from omnigraph.api.results import TableVersion
from omnigraph.errors import OmnigraphError
from omnigraph.storage.files import directory_of, files_below_root
from omnigraph.storage.layout import path_of
from omnigraph.storage.objects import ObjectStore
from omnigraph.storage.read import TableReader

if TYPE_CHECKING:  # staging notes what it writes
    from omnigraph.storage.stage import Staged, TableStorage

_LOG = logging.getLogger(__name__)


Place = tuple[str, str | None]  # the path of a table, and the fork


@dataclass(slots=True)
class _Made:
    """What a write has made so far: files and directories by their names below the root, and forks."""

    files: dict[Place, set[str]] = field(default_factory=lambda: defaultdict(set))
    forks: set[Place] = field(default_factory=set)
    tables: set[str] = field(default_factory=set)  # paths of new tables
    recorded: set[str] = field(default_factory=set)  # those that a recovery record registers
    bases: set[TableVersion] = field(default_factory=set)


_current: ContextVar[_Made | None] = ContextVar("unpublished", default=None)


@contextmanager
def taking_back(tables: TableStorage) -> Iterator[None]:
    """Delete at the end what was staged inside, except for what `leave_to_recovery` was called for.

    Files of tasks on other machines, and one that Lance was writing when it was stopped, are left to a cleanup.
    """
    made = _Made()
    token = _current.set(made)
    try:
        yield
    finally:
        _current.reset(token)
        try:
            _delete(tables, made)
        except OmnigraphError as error:  # what stopped the write is reported, not this
            _LOG.info("files of a write that failed are left to a cleanup: %s", error.message)


def note(base: TableVersion, names: Iterable[str]) -> None:
    """Note files that were written for a change of a version, by their names below the directory of the table."""
    note_at((base.path, base.branch), names)
    made = _current.get()
    if made is not None:
        made.bases.add(base)


def note_at(place: Place, names: Iterable[str]) -> None:
    """Note files that were written for a table, by their names below its directory."""
    made = _current.get()
    if made is not None:
        made.files[place].update(f"{directory_of(*place)}/{name}" for name in names)


def note_fork(fork: TableVersion) -> None:
    made = _current.get()
    if made is not None:
        made.forks.add((fork.path, fork.branch))


def note_table(path: str) -> None:
    """Note a table that was created where none was."""
    made = _current.get()
    if made is not None:
        made.tables.add(path)


def noted() -> list[str]:
    """Return the files that were noted, below the root."""
    made = _current.get()
    return sorted(name for names in made.files.values() for name in names) if made is not None else []


def leave_to_caller() -> None:
    """Keep what was noted: the caller knows of it."""
    made = _current.get()
    if made is not None:
        made.files.clear()


def leave_to_recovery(staged: Iterable[Staged], registered: Iterable[Place] = ()) -> None:
    """Keep the files of changes whose recovery record is written: their versions may come to be at any moment.

    `registered` are tables and forks that are published as they are.
    """
    made = _current.get()
    if made is None:
        return
    made.tables, made.recorded = set(), made.tables
    for one in staged:
        place = one.base.path, one.base.branch
        # From here on a version that names these files may appear at any moment, by this process or by a recovery.
        made.files[place] -= {f"{directory_of(*place)}/{name}" for step in one.steps for name in named_by(step)}
        made.forks.discard(place)
    for place in registered:
        made.files.pop(place, None)
        made.forks.discard(place)


def note_again(staged: Iterable[Staged], forks: Iterable[TableVersion]) -> None:
    """Note again what was left to recovery: its record is gone, and no head has moved."""
    made = _current.get()
    for path in made.recorded if made is not None else ():
        note_table(path)
    for fork in forks:
        note_fork(fork)
    for one in staged:
        note(one.base, (name for step in one.steps for name in (transaction_file(step), *new_in(step))))


def named_by(transaction: lance.Transaction) -> Iterator[str]:
    """Yield the files that a transaction names, below the directory of its table, and its own."""
    yield transaction_file(transaction)
    yield from new_in(transaction)
    for fragment in _fragments(transaction, "updated_fragments"):
        yield from (f"data/{path_of(file)}" for file in fragment.files)


def transaction_file(transaction: lance.Transaction) -> str:
    return f"_transactions/{transaction.read_version}-{transaction.uuid}.txn"


def new_in(transaction: lance.Transaction) -> Iterator[str]:
    """Yield the files that were written for a transaction, below the directory of its table."""
    if isinstance(transaction.operation, lance.LanceOperation.Merge):
        return  # a change of columns: its fragments are those of its base
    for fragment in _fragments(transaction, "fragments", "new_fragments"):
        yield from (f"data/{path_of(file)}" for file in fragment.files)
    yield from deletion_files(_fragments(transaction, "fragments", "new_fragments", "updated_fragments"))
    yield from (f"_indices/{index.uuid}" for index in getattr(transaction.operation, "new_indices", None) or ())


def deletion_files(fragments: Iterable[Any]) -> Iterator[str]:
    """Yield the files that list the deleted rows of fragments."""
    return (one.deletion_file.path(one.id) for one in fragments if one.deletion_file is not None)


def _fragments(transaction: lance.Transaction, *names: str) -> Iterator[Any]:
    parts = [transaction.operation, *(getattr(transaction.operation, "groups", None) or ())]
    return (one for part in parts for name in names for one in getattr(part, name, None) or ())


def _delete(tables: TableStorage, made: _Made) -> None:
    for path, fork in made.forks:
        # Lance fails to delete a fork that is not there, and its creation may be what failed.
        if fork in tables.forks(path):
            tables.delete_fork(path, fork)
    objects = ObjectStore(tables.location)
    for path in made.tables:
        objects.delete_below(path)
    for place, names in made.files.items():
        # The files of a fork went with it.
        loose = names if names and place not in made.forks else set[str]()
        for name in sorted(loose - _named(tables, place, made.bases) if loose else ()):
            _delete_file(objects, name)


def _delete_file(objects: ObjectStore, name: str) -> None:
    kind = name.split("/")[-2]
    if kind != "_indices":
        objects.delete(name)
    # A segment of an index is a directory, and a data file has its large Blobs beside it.
    if kind in ("_indices", "data"):
        objects.delete_below(name.removesuffix(".lance"))


def _named(tables: TableStorage, place: Place, bases: Iterable[TableVersion]) -> set[str]:
    """Return what the base of the write and the head of its table name: none of it may ever be deleted."""
    reader = TableReader(tables.location)  # a cached version proves nothing about the storage
    head = TableVersion("", place[0], int(reader.head(*place).version), place[1])
    versions = [head, *(base for base in bases if (base.path, base.branch) == place)]
    return {file.name for one in versions for file in files_below_root(reader.own_handle(one), one)}
