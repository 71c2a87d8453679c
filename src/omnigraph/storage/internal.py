"""The internal datasets, `__manifest` and the recovery audit: they commit at once, each in its own safe way."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, unquote

import lance
import pyarrow as pa
from lance.fragment import write_fragments

from omnigraph.core.location import Location
from omnigraph.core.nonblocking import may_block
from omnigraph.errors import ConflictError, ContentionError, StorageError
from omnigraph.storage.lance_errors import PROBE, Failure, classify, lance_call
from omnigraph.storage.objects import ObjectStore
from omnigraph.storage.observe import durable_write
from omnigraph.storage.stage import STORAGE_VERSION, refuse_auto_cleanup

PRIMARY_KEY_MARK = "lance-schema:unenforced-primary-key"
_LIST_ATTEMPTS = 32

# A file of an internal table is read whole, in one request, until it grows past this; so reading costs the same number
# of requests however long the history is.
_BLOCK_SIZE = 2**20


class InternalTable:
    """One internal dataset below the root. Nothing is cached: every open sees the latest version."""

    def __init__(self, location: Location, path: str) -> None:
        self.location = location
        self.path = path

    def uri(self, branch: str | None = None) -> str:
        return self.location.child(self.path, "tree", branch) if branch else self.location.child(self.path)

    def open(self, branch: str | None = None, version: int | None = None) -> lance.LanceDataset:
        uri = self.uri(branch)
        with lance_call(uri, "open"):
            return lance.dataset(
                uri, version=version, block_size=_BLOCK_SIZE, storage_options=self.location.storage_options
            )

    def is_latest(self, dataset: lance.LanceDataset, version: int) -> bool:
        """Probe whether a handle is still at a version, and that version is the head."""
        if not self.location.is_local:
            may_block()
        with lance_call(dataset.uri, PROBE):
            return int(dataset.version) == version == int(dataset.latest_version)

    def open_if_exists(self) -> lance.LanceDataset | None:
        """Open the dataset, or find that nothing at all is there: one that lost a part is an error, not absence."""
        try:
            return self.open()
        except StorageError as error:
            if classify(error) is Failure.NOT_FOUND and not ObjectStore(self.location).exists(self.path):
                return None
            raise

    def create(self, rows: pa.Table) -> bool:
        """Create the dataset with its first rows in one commit; False if somebody else has.

        `lance.write_dataset` would let the second of two creators overwrite the first; a strict commit does not.
        """
        uri, options = self.uri(), self.location.storage_options
        durable_write("create", uri)
        try:
            with lance_call(uri, "create"):
                transaction = write_fragments(
                    rows,
                    uri,
                    mode="create",
                    return_transaction=True,
                    data_storage_version=STORAGE_VERSION,
                    storage_options=options,
                )
                lance.LanceDataset.commit(
                    uri, transaction, max_retries=0, enable_stable_row_ids=True, storage_options=options
                )
        except (ConflictError, StorageError) as error:
            try:
                self.open()
            except StorageError:
                raise error from None
            return False
        return True

    def merge(self, dataset: lance.LanceDataset, key: str, rows: pa.Table) -> int:
        """Compare and swap: upsert rows by key, or lose to whoever committed one of them since `dataset` was opened.

        The guarantee holds for exactly this shape: one phase, a primary-key mark on the key, no index on it in use,
        no retries inside lance, on a handle that was just opened.
        """
        refuse_auto_cleanup(dataset)
        durable_write("publish", dataset.uri)
        with lance_call(dataset.uri, "publish"):
            merge = dataset.merge_insert(key).when_matched_update_all().when_not_matched_insert_all()
            merge.use_index(use_index=False).conflict_retries(0).execute(rows)
        return int(dataset.version)

    def compact(self, branch: str | None = None) -> None:
        """Rewrite the fragments into one. No version is removed: a stale handle must find what it conflicts with."""
        dataset = self.open(branch)
        durable_write("compact", dataset.uri)
        with lance_call(dataset.uri, "compact"):
            dataset.optimize.compact_files(target_rows_per_fragment=2**20, materialize_deletions_threshold=0.0)

    def set_schema_metadata(self, dataset: lance.LanceDataset, values: dict[str, str]) -> None:
        durable_write("stamp", dataset.uri)
        with lance_call(dataset.uri, "stamp"):
            dataset.update_schema_metadata(dict(values))

    def mark_primary_key(self, dataset: lance.LanceDataset, column: str) -> None:
        """Have commits of one key conflict from now on. Lance keeps the mark for good: it can never be moved."""
        durable_write("mark", dataset.uri)
        with lance_call(dataset.uri, "mark the key of"):
            dataset.update_field_metadata({column: {PRIMARY_KEY_MARK: "true"}})

    def branches(self) -> dict[str, Any]:
        """List the native branches. When one is deleted while lance reads the list, lance fails: it is read again."""
        for _ in range(_LIST_ATTEMPTS):
            dataset = self.open()
            try:
                with lance_call(dataset.uri, "list the branches of"):
                    return dict(dataset.branches.list())
            except StorageError as error:
                if classify(error) is not Failure.NOT_FOUND:
                    raise
        message = f"the branches of {self.uri()} changed while they were listed, {_LIST_ATTEMPTS} times"
        raise ContentionError(message, attempts=_LIST_ATTEMPTS, hint="try again")

    def branch_names(self) -> list[str]:
        """Name the native branches, by the files that make them be: one request, however many there are."""
        files = ObjectStore(self.location).list(f"{self.path}/_refs/branches")
        return sorted(unquote(name.removesuffix(".json")) for name in files if name.endswith(".json"))

    def has_branch(self, name: str) -> bool:
        """Tell whether a native branch is there, by the file that makes it be; it costs the same among many."""
        return ObjectStore(self.location).exists(f"{self.path}/_refs/branches/{quote(name, safe='')}.json")

    def create_branch(self, dataset: lance.LanceDataset, name: str) -> None:
        """Make a native branch at the version, and on the branch, that a handle is at.

        Lance makes the name last and removes it first: files without a name are left of a branch that was not made, or
        not removed, to the end, and the new one must not have them.
        """
        if not self.has_branch(name):
            ObjectStore(self.location).delete_below(f"{self.path}/tree/{name}")
        durable_write("create branch", f"{self.uri()}@{name}")
        with lance_call(dataset.uri, "create a branch of"):
            dataset.create_branch(name, dataset.version, storage_options=self.location.storage_options)

    def tags(self) -> dict[str, Any]:
        dataset = self.open()
        with lance_call(dataset.uri, "list the tags of"):
            return dict(dataset.tags.list())

    def create_tag(self, name: str, branch: str | None, version: int) -> None:
        dataset = self.open()
        durable_write("create tag", f"{self.uri()}@{name}")
        with lance_call(dataset.uri, "tag"):
            dataset.tags.create(name, (branch, version) if branch else version)

    def delete_tag(self, name: str) -> None:
        dataset = self.open()
        durable_write("delete tag", f"{self.uri()}@{name}")
        with lance_call(dataset.uri, "delete a tag of"):
            dataset.tags.delete(name)

    def delete_branch(self, dataset: lance.LanceDataset, name: str) -> None:
        """Try to delete a native branch; only the list tells whether it is gone.

        Lance has no way to insist: it refuses while another branch descends from this one, and when somebody else is
        deleting it says "not found" of whichever branch that was.
        """
        durable_write("delete branch", f"{self.uri()}@{name}")
        try:
            with lance_call(dataset.uri, "delete a branch of"):
                dataset.branches.delete(name)
        except StorageError as error:
            if classify(error) not in (Failure.NOT_FOUND, Failure.EXISTS):
                raise


def primary_key(dataset: lance.LanceDataset) -> list[str]:
    """Name the columns that carry the primary-key mark."""
    return [field.name() for field in dataset.lance_schema.fields() if field.is_unenforced_primary_key()]


def data_files(dataset: lance.LanceDataset) -> list[str]:
    """Name the data files of a version: no two datasets share one, and asking costs no request."""
    return [file.path for fragment in dataset.get_fragments() for file in fragment.data_files()]


def fragment_count(dataset: lance.LanceDataset) -> int:
    fragments: list[Any] = dataset.get_fragments()
    return len(fragments)
