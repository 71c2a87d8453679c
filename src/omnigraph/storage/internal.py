"""The internal datasets, `__manifest` and the recovery audit: they commit at once, each in its own safe way."""

from __future__ import annotations

from typing import Any

import lance
import pyarrow as pa

from omnigraph.storage.durable import durable_write
from omnigraph.storage.lance_errors import lance_call
from omnigraph.storage.location import Location
from omnigraph.storage.tables import STORAGE_VERSION

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
        with lance_call(dataset.uri, "probe"):
            return int(dataset.version) == version == int(dataset.latest_version)

    def create(self, rows: pa.Table) -> int:
        """Create the dataset with its first rows in one commit; fails if there is one."""
        durable_write("create", self.uri())
        with lance_call(self.uri(), "create"):
            dataset = lance.write_dataset(
                rows,
                self.uri(),
                mode="create",
                enable_stable_row_ids=True,
                data_storage_version=STORAGE_VERSION,
                storage_options=self.location.storage_options,
            )
        return int(dataset.version)

    def append(self, rows: pa.Table) -> None:
        durable_write("append", self.uri())
        with lance_call(self.uri(), "append"):
            lance.write_dataset(rows, self.uri(), mode="append", storage_options=self.location.storage_options)

    def merge(self, dataset: lance.LanceDataset, key: str, rows: pa.Table) -> int:
        """Compare and swap: upsert rows by key, or lose to whoever committed one of them since `dataset` was opened.

        The guarantee holds for exactly this shape: one phase, a primary-key mark on the key, no index on it in use,
        no retries inside lance, on a handle that was just opened.
        """
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


def fragment_count(dataset: lance.LanceDataset) -> int:
    fragments: list[Any] = dataset.get_fragments()
    return len(fragments)
