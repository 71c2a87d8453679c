"""The history of one entity: which commits changed it, found from the versions of its row."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice

import pyarrow as pa

from omnigraph.api.changes import ChangeOperation, EntityVersion
from omnigraph.api.results import Commit, TableVersion
from omnigraph.commit.store import Store
from omnigraph.errors import BranchNotFoundError, ChangeRequestError, EntityNotFoundError, HistoryReclaimedError
from omnigraph.history.ancestry import Ancestry
from omnigraph.history.delta import differing_rows
from omnigraph.history.diff import changes_of
from omnigraph.history.resolve import TypeRef, resolve
from omnigraph.manifest.state import ManifestState
from omnigraph.manifest.time_travel import state_at
from omnigraph.storage.layout import WRITTEN, fragments
from omnigraph.storage.read import ADDRESS, ID

_MOST = 1000


def history_of(store: Store, ref: str, which: TypeRef, entity_id: str, limit: int) -> list[EntityVersion]:
    """List the changes of an entity, newest first, up to a limit or to where the history was cleaned up."""
    if not 1 <= limit <= _MOST:
        raise ChangeRequestError(f"limit must be 1 to {_MOST:,}, not {limit:,}", option="limit", hint="ask for fewer")
    state = resolve(store.manifest, ref)
    key = which.key(state.snapshot.entries)
    history = _EntityHistory(store, key, state.snapshot.entries[key].table.path, entity_id)
    found = list(islice(history.of(_Line(state)), limit))
    if not found:
        name = key.partition(":")[2]
        message = f"there is no {name} '{entity_id}', and there was none as far as the history can be read"
        raise EntityNotFoundError(message, type_name=name, id=entity_id, hint="check the id and the branch")
    return found


@dataclass(frozen=True)
class _Line:
    """A state and its first parents, oldest first: the commits that made a branch what it is."""

    state: ManifestState

    @cached_property
    def commits(self) -> list[Commit]:
        head = self.state.head
        return [*self.state.first_parents(head)][::-1] if head else []


@dataclass(frozen=True, slots=True)
class _EntityHistory:
    store: Store
    key: str
    path: str
    entity_id: str

    def of(self, line: _Line) -> Iterator[EntityVersion]:
        """Yield what the commits of a line did to the entity; what merges brought in by the commits that made it."""
        at = len(line.commits) - 1
        while at >= 0:
            try:
                found = self._last_change(line, at)
            except HistoryReclaimedError:  # the rest was cleaned up
                return
            if found is None:
                return
            at, version = found
            if version is not None:
                inside = [*self._merged(line, at, version)]
                yield from inside or [version]
            at -= 1

    def _last_change(self, line: _Line, at: int) -> tuple[int, EntityVersion | None] | None:
        """Find the last commit up to one that may have changed the entity, and what it did; None if none did."""
        table = self._table(line.commits[at])
        if table is None:
            return None
        row = self._row(table)
        # A row says by which version of the table it was written. Without it, each version must be looked at.
        since = _written(row) or table.version
        place = bisect_left(range(at + 1), since, key=lambda one: self._version(line.commits[one]))
        before = self._table(line.commits[place - 1]) if place else None
        after = self._table(line.commits[place])
        old = self._row(before) if before else None
        new = row if after == table else self._row(after) if after else None
        return place, self._change(line.commits[place], before, old, after, new)

    def _version(self, commit: Commit) -> int:
        table = self._table(commit)
        return table.version if table else 0

    def _table(self, commit: Commit) -> TableVersion | None:
        # By its directory: a type that was renamed had another key before.
        entries = state_at(self.store.manifest, commit).snapshot.entries.values()
        return next((one.table for one in entries if one.table.path == self.path), None)

    def _row(self, table: TableVersion) -> pa.Table | None:
        """Read the keys of the row and the version that wrote it; None if it is not there."""
        traced = all(one.is_traced for one in fragments(self.store.tables, table))
        names = [ID, WRITTEN] if traced else [ID]
        found = self.store.tables.lookup(table, ID, pa.array([self.entity_id]), names, addresses=True)
        return found if found.num_rows else None

    def _change(
        self,
        commit: Commit,
        before: TableVersion | None,
        old: pa.Table | None,
        after: TableVersion | None,
        new: pa.Table | None,
    ) -> EntityVersion | None:
        one, other = self._whole(before, old), self._whole(after, new)
        if one is None and other is None:
            return None
        if one is not None and other is not None:
            one, other = _comparable(one, other)
            if not differing_rows(one, other).any():
                return None  # written again with the same values
        kinds = {(True, False): ChangeOperation.INSERT, (False, True): ChangeOperation.DELETE}
        operation = kinds.get((one is None, other is None), ChangeOperation.UPDATE)
        [change] = changes_of(self.key, operation, one, other)
        return EntityVersion(commit, change)

    def _whole(self, table: TableVersion | None, row: pa.Table | None) -> pa.Table | None:
        if table is None or row is None:
            return None
        names = self.store.tables.columns(table).names
        return self.store.tables.rows_at(table, row[ADDRESS].to_numpy().astype("int64"), names)

    def _merged(self, line: _Line, at: int, version: EntityVersion) -> Iterator[EntityVersion]:
        """Yield what the commits that a merge brought in did to the entity, if their branch can still be read."""
        merge = version.commit
        if merge.merged_parent_id is None:
            return
        manifest = self.store.manifest
        try:
            source = manifest.load(None if merge.merged_branch in (None, "main") else merge.merged_branch)
            commit = source.commit(merge.merged_parent_id)
            if commit is None:
                return
            source, target = state_at(manifest, commit), state_at(manifest, line.commits[at - 1])
        except (BranchNotFoundError, HistoryReclaimedError):
            return
        assert target.head
        brought = {one.commit_id for one in Ancestry(manifest, (source, target)).brought_in(commit, target.head)}
        for one in self.of(_Line(source)):
            if (one.merge or one.commit).commit_id not in brought:
                return
            yield replace(one, merge=one.merge or merge)


def _comparable(one: pa.Table, other: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return two rows in the columns that both have, in the types of the later one: a column may have been widened."""
    names = [name for name in other.column_names if name in one.column_names]
    later = other.select(names)
    return one.select(names).cast(later.schema), later


def _written(row: pa.Table | None) -> int | None:
    return int(row[WRITTEN][0].as_py()) if row is not None and WRITTEN in row.column_names else None
