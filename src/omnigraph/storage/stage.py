"""Write node and edge tables, staged only. A head moves in `commit_staged` and nowhere else."""

from __future__ import annotations

import json
import os
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import lance
import numpy as np
import pyarrow as pa
from lance.fragment import write_fragments

from omnigraph.api.results import TableVersion
from omnigraph.errors import ConflictError, CorruptGraphError, StorageError, StorageFullError
from omnigraph.storage.lance_errors import Failure, classify, lance_call
from omnigraph.storage.layout import INDEX_KINDS, IndexSpec, index_segments, path_of, write_index
from omnigraph.storage.objects import ObjectStore
from omnigraph.storage.observe import durable_write
from omnigraph.storage.predicates import Predicate, lance_filter
from omnigraph.storage.read import (
    ID,
    OFFSET_BITS,
    TableReader,
    fork_name,
    transaction_id,
)
from omnigraph.storage.unpublished import deletion_files, new_in, note, note_fork, note_table, transaction_file

# A one-row update rewrites the row-id sequence of its fragment, so fragments stay small (3 ms at 100,000 rows, 33 ms
# at a million).
MAX_ROWS_PER_FILE = 65_536
STORAGE_VERSION: Literal["2.2"] = "2.2"


@dataclass(frozen=True, slots=True)
class Staged:
    """An uncommitted transaction on a table: its files are written, its head has not moved.

    `then` follow at once, each on the state that the one before makes. `uuid` is that of the last step: a head made by
    it shows that all steps are done. `appended` are the ids of an append, which is the last step.
    """

    base: TableVersion
    transaction: lance.Transaction
    then: tuple[lance.Transaction, ...] = ()
    appended: pa.Array | None = field(default=None, compare=False, repr=False)

    @property
    def uuid(self) -> str:
        return str(self.steps[-1].uuid)

    @property
    def is_append(self) -> bool:
        """Whether it is no more than rows to add, and so means the same on any later version."""
        return not self.then and self.adds_rows

    @property
    def adds_rows(self) -> bool:
        """Whether all that it changes is to add rows. A fold may come first, and that keeps what is there."""
        changes_columns = isinstance(self.transaction.operation, lance.LanceOperation.Merge)
        return isinstance(self.steps[-1].operation, lance.LanceOperation.Append) and not changes_columns

    @property
    def is_overwrite(self) -> bool:
        """Whether it replaces all rows."""
        return isinstance(self.transaction.operation, lance.LanceOperation.Overwrite)

    @property
    def steps(self) -> list[lance.Transaction]:
        return [self.transaction, *self.then]


@dataclass(frozen=True, slots=True)
class Removed:
    """Rows that are marked as deleted: descriptions of their fragments, and the numbers of those with no row left."""

    updated: tuple[str, ...] = ()
    emptied: tuple[int, ...] = ()

    @property
    def files(self) -> list[str]:
        """The files that list the deleted rows, below the directory of the table."""
        return list(deletion_files(map(lance.FragmentMetadata.from_json, self.updated)))


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """A change of the columns of a table. New columns are nullable.

    `widen` has columns by their old names, and what they become, by their new ones: the values are written again.
    """

    drop: tuple[str, ...] = ()
    rename: tuple[tuple[str, str], ...] = ()
    add: tuple[pa.Field, ...] = ()
    widen: tuple[tuple[str, pa.Field], ...] = ()
    relax: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        assert all(field.nullable for field in (*self.add, *(field for _, field in self.widen)))

    @property
    def written(self) -> pa.Schema:
        """The columns whose values are written, by the names that they have until the old ones are gone."""
        # A capital: no property has such a name.
        return pa.schema([field.with_name(f"New_{field.name}") for _, field in self.widen])

    def values(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Compute the values to write for some rows."""
        return pa.record_batch([rows[old].cast(field.type) for old, field in self.widen], schema=self.written)

    @property
    def index_names(self) -> set[str]:
        """The names of indices on the columns that get a new name."""
        taken = [*(new for _, new in self.rename), *(field.name for field in self.add)]
        return {IndexSpec(column, kind).name for column in taken for kind in INDEX_KINDS}


@dataclass(frozen=True, slots=True)
class CommittedVersion:
    """The version that a commit made, its row count, and the handle on it that Lance returned."""

    version: int
    row_count: int
    handle: lance.LanceDataset | None = field(default=None, compare=False, repr=False)


class TableStorage(TableReader):
    """All tables below one root, to read and to stage writes on."""

    # Reading staged states

    def read_staged(self, staged: Staged) -> lance.LanceDataset:
        """Open the state that a staged transaction would make. The head does not move."""
        dataset = self.open(staged.base)
        with lance_call(dataset.uri, "read staged"):
            options = self.location.storage_options
            # A detached commit has no conflict detection; it is only ever read, and its base is the one it was staged
            # on.
            found = lance.LanceDataset.commit(dataset, staged.transaction, detached=True, storage_options=options)
        note(staged.base, [f"_versions/d{found.version}.manifest", transaction_file(staged.transaction)])
        return found

    def take_staged(
        self, base: TableVersion, opened: lance.LanceDataset, rows: np.ndarray[Any, Any], columns: Sequence[str]
    ) -> pa.Table:
        """Read rows of a staged append by their positions in it."""
        with lance_call(opened.uri, "read staged"):
            # Appended rows come behind all others, so positions in the append begin at the rows of the base.
            before = self.open(base).count_rows()
            return opened.take((rows + before).tolist(), columns=list(columns))

    def scan_staged(self, opened: lance.LanceDataset, columns: Sequence[str], predicate: Predicate) -> pa.Table:
        """Read the rows that satisfy a predicate from a staged state."""
        with lance_call(opened.uri, "read staged"):
            return opened.to_table(columns=list(columns), filter=lance_filter(predicate))

    def staged_state(self, staged: Staged) -> TableVersion:
        """Return the version that the first step of a staged change makes. The head does not move."""
        return replace(staged.base, version=int(self.read_staged(staged).version))

    # Staging

    def stage_append(self, base: TableVersion, rows: pa.Table) -> Staged:
        return replace(self._stage_fragments(base, rows, "append"), appended=rows[ID].combine_chunks())

    def stage_overwrite(self, base: TableVersion, rows: pa.Table) -> Staged:
        """Replace all rows; an empty table of rows is allowed."""
        return self._stage_fragments(base, rows, "overwrite")

    def write_rows(
        self,
        base: TableVersion,
        rows: pa.Table,
        rows_per_file: int = MAX_ROWS_PER_FILE,
        onto: lance.LanceDataset | None = None,
    ) -> list[str]:
        """Write the data files of new rows; return descriptions that another process can stage together with others.

        `onto` is a state of the table that is only staged, and has other columns.
        """
        uri = self._uri(base.path, base.branch)
        durable_write("write rows", uri)
        with lance_call(uri, "write rows"):
            written = write_fragments(
                rows,
                uri if onto is None else onto,  # an empty dataset is false
                mode="append",
                max_rows_per_file=rows_per_file,
                data_storage_version=STORAGE_VERSION,
                storage_options=self.location.storage_options,
            )
        # `to_json` returns a dict and `from_json` takes a text.
        found = [json.dumps(fragment.to_json()) for fragment in written]
        note(base, data_files(found))
        return found

    def stage_written(self, base: TableVersion, written: Sequence[str], replaced: np.ndarray[Any, Any]) -> Staged:
        """Stage rows whose files are written, in place of those at the given addresses."""
        fragments = [lance.FragmentMetadata.from_json(text) for text in written]
        if not len(replaced):
            return _staged(base, lance.Transaction(base.version, lance.LanceOperation.Append(fragments)))
        dataset = self.open(base)
        durable_write("stage replacement", dataset.uri)
        with lance_call(dataset.uri, "stage replacement"):
            updated, emptied = _delete_addresses(base, dataset, replaced)
        # One transaction for removal and addition: two would show a state without the replaced rows.
        operation = lance.LanceOperation.Update(emptied, updated, fragments, update_mode="rewrite_rows")
        return _staged(base, lance.Transaction(base.version, operation))

    def remove_rows(self, base: TableVersion, addresses: np.ndarray[Any, Any], version: int | None = None) -> Removed:
        """Mark rows as deleted; return descriptions that another process can stage together with others.

        `version` is one that has rows staged on the base.
        """
        dataset = self.open(base if version is None else replace(base, version=version))
        durable_write("remove rows", dataset.uri)
        with lance_call(dataset.uri, "remove rows"):
            updated, emptied = _delete_addresses(base, dataset, addresses)
        return Removed(tuple(json.dumps(one.to_json()) for one in updated), tuple(emptied))

    def stage_removed(self, base: TableVersion, written: Sequence[str], removed: Sequence[Removed]) -> Staged:
        """Stage rows whose files are written, in place of rows that are marked as deleted."""
        new, updated = (
            [lance.FragmentMetadata.from_json(text) for text in texts]
            for texts in (written, (text for one in removed for text in one.updated))
        )
        emptied = [number for one in removed for number in one.emptied]
        operation: Any = lance.LanceOperation.Update(emptied, updated, new, update_mode="rewrite_rows")
        if not updated and not emptied:
            operation = lance.LanceOperation.Append(new)
        elif not new:
            operation = lance.LanceOperation.Delete(updated, emptied, "omnigraph: removed rows")
        return _staged(base, lance.Transaction(base.version, operation))

    def stage_overwrite_written(self, base: TableVersion, written: Sequence[str]) -> Staged:
        """Stage the replacement of all rows by rows whose files are written."""
        fragments = [lance.FragmentMetadata.from_json(text) for text in written]
        # By the schema of the table and not of the rows: an overwrite with another one would change the columns.
        operation = lance.LanceOperation.Overwrite(self.open(base).schema, fragments)
        return _staged(base, lance.Transaction(base.version, operation))

    def numbered_written(self, dataset: lance.LanceDataset, written: Sequence[str]) -> list[str]:
        """Give files that are not committed the numbers they have in `dataset`, the state that they would make."""
        # Deletion files are named after fragments, so the fragments must keep these numbers.
        ids = [fragment.fragment_id for fragment in dataset.get_fragments()][-len(written) :]
        return [json.dumps({**json.loads(text), "id": number}) for text, number in zip(written, ids, strict=True)]

    def without_removed(self, numbered: Sequence[str], removed: Sequence[Removed]) -> list[str]:
        """Return the descriptions of files, as `numbered_written` returns them, without the rows that were removed."""
        left = {json.loads(text)["id"]: text for one in removed for text in one.updated}
        emptied = {number for one in removed for number in one.emptied}
        ids = [json.loads(text)["id"] for text in numbered]
        return [left.get(id_, text) for id_, text in zip(ids, numbered, strict=True) if id_ not in emptied]

    def stage_upsert(self, base: TableVersion, rows: pa.Table) -> Staged:
        """Replace the rows whose id exists, insert the others. The ids of `rows` must be distinct."""
        dataset = self.open(base)
        durable_write("stage upsert", dataset.uri)
        with lance_call(dataset.uri, "stage upsert"):
            # Always whole rows: with an index on the key, Lance would rewrite single columns of whole fragments.
            merge = dataset.merge_insert(ID).when_matched_update_all().when_not_matched_insert_all()
            transaction, _ = merge.write_mode("rewrite_rows").execute_uncommitted(rows.select(dataset.schema.names))
        note(base, new_in(transaction))
        return _staged(base, transaction)

    def stage_delete_rows(self, base: TableVersion, addresses: np.ndarray[Any, Any], reason: str) -> Staged:
        """Stage the deletion of rows by address. `reason` is the text that Lance stores with it."""
        assert len(addresses), "a transaction that deletes nothing must not be staged"
        dataset = self.open(base)
        durable_write("stage delete", dataset.uri)
        with lance_call(dataset.uri, "stage delete"):
            updated, emptied = _delete_addresses(base, dataset, addresses)
        operation = lance.LanceOperation.Delete(updated, emptied, reason)
        return _staged(base, lance.Transaction(base.version, operation))

    def stage_create_indices(self, base: TableVersion, indices: Sequence[IndexSpec]) -> Staged:
        """Build several indices over the whole table in one transaction."""
        dataset = self.own_handle(base)
        durable_write("stage index", dataset.uri)
        with lance_call(dataset.uri, "stage index"):
            fragments = [fragment.fragment_id for fragment in dataset.get_fragments()]
            built = [write_index(dataset, index, fragments) for index in indices]
            note(base, (f"_indices/{one.uuid}" for one in built))
            # The segments that are replaced must be named, or Lance panics on fragments that are covered twice.
            names = {index.name for index in indices}
            replaced = index_segments(dataset, lambda name, _: name in names)
        return _staged(base, lance.Transaction(base.version, lance.LanceOperation.CreateIndex(built, replaced)))

    def stage_schema_change(self, base: TableVersion, change: SchemaChange) -> Staged:
        """Change the columns of a table. Only the values of columns that get new ones are written."""
        dataset = self.own_handle(base)
        durable_write("stage schema change", dataset.uri)
        with lance_call(dataset.uri, "stage schema change"):
            fragments = [self._with_values(fragment, change) for fragment in dataset.get_fragments()]
            operation = lance.LanceOperation.Merge(fragments, self._changed_schema(dataset, change))
            stale = index_segments(dataset, lambda name, _: name in change.index_names)
        staged = _staged(base, lance.Transaction(base.version, operation))
        note(base, (f"data/{path_of(one.files[-1])}" for one in fragments if change.widen))
        if not stale:
            return staged
        # An index keeps its name when its column is renamed, and would block one on the column that takes the name.
        forget = lance.Transaction(base.version, lance.LanceOperation.CreateIndex([], stale))
        return replace(staged, then=(_staged(base, forget).transaction,))

    def _with_values(self, fragment: lance.LanceFragment, change: SchemaChange) -> lance.FragmentMetadata:
        """Write the new columns of a fragment beside its others."""
        if not change.written.names:
            return fragment.metadata
        return fragment.merge_columns(change.values, columns=[old for old, _ in change.widen])[0]

    def _changed_schema(self, dataset: lance.LanceDataset, change: SchemaChange) -> Any:
        """Compute the new Lance schema on a throw-away clone: only Lance knows which field ids are free."""
        # A schema built from Arrow would number its fields from 0, and a reused field id reads another column's data.
        options = self.location.storage_options
        with self._scratch() as uri:
            clone = dataset.shallow_clone(uri, dataset.version, storage_options=options)
            written = change.written
            if written.names:  # first, so that they get the ids that `_with_values` has given them
                clone.add_columns(written)
            gone = [*change.drop, *(old for old, _ in change.widen)]
            if gone:
                clone.drop_columns(gone)
            widened = {field.name for _, field in change.widen}
            renamed = [pair for pair in change.rename if pair[1] not in widened]
            for old, new in [*renamed, *((f"New_{name}", name) for name in sorted(widened))]:
                clone.alter_columns({"path": old, "name": new})  # type: ignore[dict-item]  # the stub says Iterable
            if change.add:
                clone.add_columns(pa.schema(change.add))
            for name in change.relax:
                clone.alter_columns({"path": name, "nullable": True})  # type: ignore[dict-item]
            return clone.lance_schema

    @contextmanager
    def _scratch(self) -> Iterator[str]:
        """Provide an address for a temporary dataset."""
        if self.location.is_local:
            # Outside of the graph: a cleanup or a copy that comes across a scratch table would take it for one of the
            # graph.
            with tempfile.TemporaryDirectory() as directory:
                yield f"{directory}/scratch"
            return
        scratch = f"__tmp/{uuid.uuid4()}"
        try:
            yield self.location.child(scratch)
        finally:
            ObjectStore(self.location).delete_below(scratch)

    def fork(self, table: TableVersion, branch: str) -> TableVersion:
        """Create a native branch of a table, for a graph branch that will change it. The data is shared."""
        name = fork_name(branch)
        dataset = self.own_handle(table)
        durable_write("fork table", f"{dataset.uri}@{name}")
        with lance_call(dataset.uri, "fork"):
            dataset.create_branch(name, table.version, storage_options=self.location.storage_options)
        forked = replace(table, branch=name)
        note_fork(forked)
        return forked

    def forks(self, path: str) -> list[str]:
        """Name the native branches of a table."""
        dataset = self.head(path, None)
        with lance_call(dataset.uri, "list the forks of"):
            return sorted(dataset.branches.list())

    def delete_fork(self, path: str, name: str) -> None:
        """Delete a native branch of a table and the files written to it."""
        dataset = self.head(path, None)
        durable_write("delete fork", f"{dataset.uri}@{name}")
        with lance_call(dataset.uri, "delete a fork of"):
            dataset.branches.delete(name)

    def stage_restore(self, head: TableVersion, version: int, transaction_uuid: str) -> Staged:
        """Stage a return to the content of an earlier version, under a uuid that recovery recognises."""
        operation = lance.LanceOperation.Restore(version)
        return Staged(head, lance.Transaction(head.version, operation, uuid=transaction_uuid))

    def _stage_fragments(self, base: TableVersion, rows: pa.Table, mode: str) -> Staged:
        dataset = self.open(base)
        durable_write(f"stage {mode}", dataset.uri)
        with lance_call(dataset.uri, f"stage {mode}"):
            schema = dataset.schema  # Lance makes a new one at every look
            transaction = write_fragments(
                rows.select(schema.names).cast(schema),  # a schema change can reorder columns
                dataset,
                mode=mode,
                return_transaction=True,
                max_rows_per_file=MAX_ROWS_PER_FILE,
                data_storage_version=STORAGE_VERSION,
                storage_options=self.location.storage_options,
                allow_external_blob_outside_bases=True,
            )
        note(base, new_in(transaction))
        return _staged(base, transaction)

    # Moving heads. Only commit/ and schema/init.py call these.

    def create(self, path: str, schema: pa.Schema) -> CommittedVersion:
        """Create an empty table, replacing the remains of an abandoned attempt."""
        uri = self._uri(path, None)
        try:
            created = self._write_empty(uri, schema, "create")
        except StorageError as error:
            if classify(error) is not Failure.EXISTS:
                raise
            # The remains of an attempt that died: a claim or a gate keeps living ones apart.
            return self._write_empty(uri, schema, "overwrite")
        self._note_new(path)
        return created

    def create_behind(self, path: str, schema: pa.Schema, version: int, source: str) -> None:
        """Create an empty table whose versions continue behind those of `source`, so that none comes twice."""
        if path != source:
            self._clone(source, path)
        # The snapshot fold compares version numbers with the tombstone of the key: a new table must begin past it.
        while self.create(path, schema).version <= version:
            pass

    def _clone(self, source: str, path: str) -> None:
        """Start a table as a clone of another: Lance has no other way to start at a later version than the first."""
        try:
            dataset = self.head(source, None)
        except StorageError as error:
            if classify(error) is not Failure.NOT_FOUND:
                raise
            return
        uri = self._uri(path, None)
        durable_write("clone table", uri)
        with lance_call(uri, "clone"):
            dataset.shallow_clone(uri, dataset.version, storage_options=self.location.storage_options)
        self._note_new(path)

    def _note_new(self, path: str) -> None:
        # Where a gate can be lost unnoticed, another schema change may have created the same table since.
        if self.location.is_local:
            note_table(path)

    def _write_empty(self, uri: str, schema: pa.Schema, mode: str) -> CommittedVersion:
        durable_write("create table", uri)
        with lance_call(uri, "create table"):
            dataset = lance.write_dataset(
                schema.empty_table(),
                uri,
                mode=mode,
                enable_stable_row_ids=True,
                data_storage_version=STORAGE_VERSION,
                storage_options=self.location.storage_options,
                session=self._session,
            )
        return CommittedVersion(dataset.version, 0)

    def commit_staged(self, staged: Staged, expected: int, onto: lance.LanceDataset | None = None) -> CommittedVersion:
        """Move the head to the staged state. It must land on the expected version, right behind the published one.

        `onto` is a handle on the base of a commit that follows another one; without it the base is opened.
        """
        dataset = onto or self.open(staged.base)
        if not isinstance(staged.transaction.operation, lance.LanceOperation.UpdateConfig):
            refuse_auto_cleanup(dataset)  # turning it off is the one commit that is allowed
        if self.location.is_local:
            check_staged_files(dataset, staged.transaction)
        durable_write("commit table", dataset.uri)
        with lance_call(dataset.uri, "commit table"):
            options = self.location.storage_options
            # Even without retries Lance rebases an append onto a newer head: so the version is compared afterwards.
            done = lance.LanceDataset.commit(dataset, staged.transaction, max_retries=0, storage_options=options)
            committed = CommittedVersion(done.version, done.count_rows(), done)
        if committed.version != expected:
            message = f"a commit to {dataset.uri} landed on version {committed.version} instead of {expected}"
            raise ConflictError(message, hint="do not write to the tables of a graph except through omnigraph")
        made = replace(staged.base, version=committed.version)
        if made.branch is None:  # the next write starts from this version: it is known without a look
            self._keep(made, lambda: done)
        if staged.appended is not None:
            self._note_appended(staged.base, made, None if staged.then else staged.appended)
        return committed


def _staged(base: TableVersion, transaction: lance.Transaction) -> Staged:
    """Give the transaction a uuid of ours: the recovery record names it before the head moves."""
    return Staged(base, replace(transaction, uuid=transaction_id()))


def staged_on(staged: Staged, version: int) -> Staged:
    """Return a staged append as if it had been staged on a later version: it names no row of its base."""
    if staged.base.version == version:
        return staged
    assert staged.is_append, "anything else names rows of its base"
    return Staged(replace(staged.base, version=version), replace(staged.transaction, read_version=version))


def after_fold(staged: Staged, fold: Staged) -> Staged:
    """Let an append follow a rewrite of its base that keeps every row."""
    assert staged.is_append, "anything else names rows of its base"
    assert staged.base == fold.base
    return replace(staged, transaction=fold.transaction, then=(staged.transaction,))


def check_staged_files(dataset: lance.LanceDataset, staged: lance.Transaction) -> None:
    """Check the length of every staged file on a local disk: Lance may not notice that it is full."""
    for fragment in _written_fragments(staged.operation):
        if fragment.deletion_file is not None and fragment.deletion_file.base_id is None:
            _check_length(f"{dataset.uri}/{fragment.deletion_file.path(fragment.id)}", None)
        for file in fragment.files:
            if getattr(file, "base_id", None) is None and file.file_size_bytes:
                _check_length(f"{dataset.uri}/data/{path_of(file)}", file.file_size_bytes)


def _check_length(path: str, written: int | None) -> None:
    """Raise if a file is empty, or shorter than what was written to it."""
    at = {"path": path, "operation": "stage"}
    try:
        length = os.stat(path).st_size  # noqa: PTH116 - quicker
    except OSError as error:
        raise StorageError(f"a staged file cannot be read: {error}", **at, hint="prepare the write again") from error
    if length != (written or length) or length == 0:
        message = f"{path} is shorter than the data written to it: the disk is full"
        raise StorageFullError(message, **at, hint="free some space and try again")


def refuse_auto_cleanup(dataset: lance.LanceDataset) -> None:
    """Raise if the dataset has automatic cleanup: with a commit, Lance would remove published versions."""
    if auto_cleanup_settings(dataset):
        hint = "run `omnigraph optimize`, which turns that off"
        raise CorruptGraphError(f"{dataset.uri} has automatic cleanup turned on", path=dataset.uri, hint=hint)


def auto_cleanup_settings(dataset: lance.LanceDataset) -> list[str]:
    return [key for key in dataset.config() if key.startswith("lance.auto_cleanup.")]


def _written_fragments(operation: Any) -> list[Any]:
    """Return the fragments that an operation adds or changes."""
    names = ("fragments", "new_fragments", "updated_fragments")
    parts = [operation, *(getattr(operation, "groups", None) or ())]
    return [fragment for part in parts for name in names for fragment in getattr(part, name, None) or ()]


def data_files(written: Iterable[str]) -> list[str]:
    """Name the data files of written rows, below the directory of their table."""
    return [f"data/{file['path']}" for text in written for file in json.loads(text)["files"]]


def _delete_addresses(
    base: TableVersion, dataset: lance.LanceDataset, addresses: np.ndarray[Any, Any]
) -> tuple[list[Any], list[int]]:
    updated, emptied = [], []
    fragments = addresses >> OFFSET_BITS
    offsets = addresses & ((1 << OFFSET_BITS) - 1)
    for fragment_id in np.unique(fragments).tolist():
        fragment = dataset.get_fragment(fragment_id)
        assert fragment is not None
        left = fragment.delete_rows(offsets[fragments == fragment_id].tolist())
        if left is None:
            emptied.append(fragment_id)
        else:
            updated.append(left)
            note(base, deletion_files([left]))
    return updated, emptied
