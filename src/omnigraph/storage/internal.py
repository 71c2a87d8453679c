"""The internal datasets, `__manifest` and the recovery audit. They commit directly, each in its own safe way."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import lance
import pyarrow as pa
from lance.fragment import write_fragments

from omnigraph.core.location import Location
from omnigraph.core.nonblocking import may_block
from omnigraph.errors import ConflictError, ContentionError, StorageError
from omnigraph.storage.bases import at_present_root, file_name
from omnigraph.storage.files import directory_of
from omnigraph.storage.lance_errors import Failure, classify, lance_call
from omnigraph.storage.objects import ObjectStore, storage_error
from omnigraph.storage.observe import durable_write
from omnigraph.storage.stage import STORAGE_VERSION, check_staged_files, refuse_auto_cleanup
from omnigraph.storage.torn import newest_whole, set_aside_versions, torn_versions
from omnigraph.storage.versions import newest_files, version_number

PRIMARY_KEY_MARK = "lance-schema:unenforced-primary-key"
_LIST_ATTEMPTS = 32

# A file of an internal table is read in one request until it grows past this size. So the number of requests
# does not grow with the length of the history.
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
            if self.location.is_local:
                # Lance tries for seconds where a file is in the way, or a directory may not be entered.
                with suppress(FileNotFoundError):
                    Path(uri, "_versions").stat()
            how: dict[str, Any] = {"block_size": _BLOCK_SIZE, "storage_options": self.location.storage_options}
            # Without a session: a shared one would answer from its cache, and a stale handle loses the
            # compare-and-swap.
            return at_present_root(lance.dataset(uri, version=version, **how), self.location, **how)

    def newest(self, branch: str | None = None) -> tuple[int, str] | None:
        """Return the newest version and the tag of its file; None if there is no version.

        Read the tag before the content: a content that is newer than its tag is read again, the reverse would be
        believed.
        """
        return next(iter(self.newest_few(branch, 1)), None)

    def newest_few(self, branch: str | None, count: int) -> list[tuple[int, str]]:
        """Return the newest versions and the tags of their files, newest first, for one request."""
        if self.location.is_local:
            found = newest_files(self.uri(branch), count)
            return [(number, _file_tag(path)) for number, path in found]
        may_block()
        below = f"{directory_of(self.path, branch)}/_versions"
        first: list[tuple[int, str]] = []
        early: list[tuple[int, str]] = []
        for name, tag in ObjectStore(self.location).first_below(f"{below}/"):
            number = version_number(name)
            if number is None:  # a detached version, or one that was set aside
                continue
            # Early Lance releases name a version by its number: then the newest is not listed first.
            (first if name == file_name(number) else early).append((number, str(tag)))
            if len(first) == count:
                return first
        return sorted([*first, *early], reverse=True)[:count]

    def is_behind(self, branch: str | None, version: int) -> bool:
        """Return whether a later version exists on a disk. An object store is not asked: that is a request more.

        A swap leaves the hint at the version that it made, even behind the head: so look before a swap on a disk.
        """
        newest = self.newest(branch) if self.location.is_local else None
        return newest is not None and newest[0] > version

    def is_latest(self, dataset: lance.LanceDataset, version: int, tag: str) -> bool:
        """Return whether a handle on main is at a version that is still the head, and still the same file."""
        return int(dataset.version) == version and self.newest() == (version, tag)

    def tag_of(self, version: int, branch: str | None = None) -> str | None:
        """Return the tag of a version on a local disk; empty if the version is gone, None on an object store."""
        if not self.location.is_local:
            return None
        versions = f"{self.uri(branch)}/_versions"
        return _file_tag(f"{versions}/{file_name(version)}") or _file_tag(f"{versions}/{version}.manifest")

    def version_tag(self, branch: str | None, version: int) -> str | None:
        """Return the tag of a version for one request; None if it is gone, or named as early Lance releases do."""
        if self.location.is_local:
            return self.tag_of(version, branch) or None
        name = f"{directory_of(self.path, branch)}/_versions/{file_name(version)}"
        return ObjectStore(self.location).version(name)

    def open_if_exists(self) -> lance.LanceDataset | None:
        """Open the dataset; None if nothing at all is there. A dataset that lost a part is an error, not absence."""
        try:
            return self.open()
        except StorageError as error:
            if classify(error) is Failure.NOT_FOUND and not ObjectStore(self.location).exists(self.path):
                return None
            raise

    def create(self, rows: pa.Table) -> bool:
        """Create the dataset with its first rows in one commit; return False if it exists.

        `lance.write_dataset` would let the second of two creators overwrite the first; a commit without retries does
        not.
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
                lance.LanceDataset.commit(uri, transaction, max_retries=0, storage_options=options)
        except (ConflictError, StorageError) as error:
            # The commit may have worked although its answer was lost. Then the dataset exists, and the caller looks at
            # it.
            try:
                self.open()
            except StorageError:
                raise error from None
            return False
        return True

    def merge(self, dataset: lance.LanceDataset, key: str, rows: pa.Table) -> int:
        """Compare and swap: upsert rows by key, or raise if one of them was committed since `dataset` was opened.

        The guarantee holds for exactly this shape: one phase, a primary-key mark on the key, no index on it in use, no
        retries inside Lance, a handle that was just opened. Any other shape leaves two rows for one key, without an
        error.
        """
        refuse_auto_cleanup(dataset)
        durable_write("publish", dataset.uri)
        with lance_call(dataset.uri, "publish"):
            # `use_index(False)`: through an index on the key the swap is lost. `conflict_retries(0)`: a retry would
            # overwrite what it lost to.
            merge = dataset.merge_insert(key).when_matched_update_all().when_not_matched_insert_all()
            merge.use_index(use_index=False).conflict_retries(0).execute(rows)
        return int(dataset.version)

    def stage(self, dataset: lance.LanceDataset, rows: pa.Table) -> lance.Transaction:
        """Write the file of the next state. Nothing refers to it until a swap does."""
        durable_write("stage", dataset.uri)
        with lance_call(dataset.uri, "stage"):
            staged: lance.Transaction = write_fragments(
                rows,
                dataset,
                mode="overwrite",
                return_transaction=True,
                data_storage_version=STORAGE_VERSION,
                storage_options=self.location.storage_options,
            )
        if self.location.is_local:
            check_staged_files(dataset, staged)
        return staged

    def swap(self, dataset: lance.LanceDataset, staged: lance.Transaction) -> lance.LanceDataset:
        """Compare and swap: replace the whole content, or raise if anything was committed since `dataset`.

        `max_retries=0` makes it strict: with retries the last writer would win. The caller must look
        afterwards whether the new version is the newest: if a cleanup removed the one that came next, Lance puts it in
        that place, behind the head, and reports success.
        """
        refuse_auto_cleanup(dataset)
        durable_write("publish", dataset.uri)
        with lance_call(dataset.uri, "publish"):
            return lance.LanceDataset.commit(
                dataset, staged, max_retries=0, storage_options=self.location.storage_options
            )

    def remove_stray(self, branch: str | None, version: int) -> None:
        """Remove a version that landed behind the head. Only the process that made it may do that."""
        for name in (file_name(version), f"{version}.manifest"):  # the second: as early Lance releases name it
            ObjectStore(self.location).delete(f"{directory_of(self.path, branch)}/_versions/{name}")

    def compact(self, branch: str | None = None) -> None:
        """Rewrite the fragments into one. No version is removed: stale handles need them to detect conflicts."""
        dataset = self.open(branch)
        durable_write("compact", dataset.uri)
        with lance_call(dataset.uri, "compact"):
            dataset.optimize.compact_files(target_rows_per_fragment=2**20, materialize_deletions_threshold=0.0)

    def set_schema_metadata(self, dataset: lance.LanceDataset, values: dict[str, str]) -> None:
        durable_write("stamp", dataset.uri)
        with lance_call(dataset.uri, "stamp"):
            dataset.update_schema_metadata(dict(values))

    def mark_primary_key(self, dataset: lance.LanceDataset, column: str) -> None:
        """Make commits of one key conflict from now on. Lance never lets go of the mark."""
        durable_write("mark", dataset.uri)
        with lance_call(dataset.uri, "mark the key of"):
            dataset.update_field_metadata({column: {PRIMARY_KEY_MARK: "true"}})

    def newest_whole(self, branch: str | None = None) -> tuple[int, str] | None:
        """Return the newest version whose files are complete, and its tag; None on an object store, or without one."""
        whole = newest_whole(self.uri(branch)) if self.location.is_local else None
        return (whole[0], _file_tag(whole[1])) if whole else None

    def is_torn(self, branch: str | None = None) -> bool:
        """Return whether a power cut tore the newest version."""
        return self.location.is_local and bool(torn_versions(self.uri(branch)))

    def set_aside_torn(self, branch: str | None = None) -> list[int]:
        """Set aside the newest versions if a power cut tore them; return their numbers. The caller holds the gate."""
        return set_aside_versions(self.uri(branch)) if self.location.is_local else []

    def _readable(self) -> lance.LanceDataset:
        """Open the newest version of main that is whole, for what does not depend on the version."""
        try:
            return self.open()
        except StorageError:
            whole = self.newest_whole()
            if whole is None:
                raise
            return self.open(None, whole[0])

    def branches(self) -> dict[str, Any]:
        """List the native branches; retry while branches are deleted during the listing, which makes Lance fail."""
        for _ in range(_LIST_ATTEMPTS):
            dataset = self._readable()
            try:
                with lance_call(dataset.uri, "list the branches of"):
                    return dict(dataset.branches.list())
            except StorageError as error:
                if classify(error) is not Failure.NOT_FOUND:
                    raise
        message = f"the branches of {self.uri()} changed while they were listed, {_LIST_ATTEMPTS} times"
        raise ContentionError(message, attempts=_LIST_ATTEMPTS, hint="try again")

    def branch_names(self) -> list[str]:
        """Name the native branches by their reference files, in one request."""
        # `branches.list()` reads a file for each branch, 10 ms at 200 of them.
        files = ObjectStore(self.location).list(f"{self.path}/_refs/branches")
        return sorted(unquote(name.removesuffix(".json")) for name in files if name.endswith(".json"))

    def has_branch(self, name: str) -> bool:
        """Return whether a native branch exists, by its reference file, at the same cost among many."""
        return ObjectStore(self.location).exists(f"{self.path}/_refs/branches/{quote(name, safe='')}.json")

    def create_branch(self, dataset: lance.LanceDataset, name: str) -> None:
        """Create a native branch at the version and on the branch of a handle.

        Lance writes the reference last and removes it first. Files without a reference are remains of a branch that was
        not created or deleted completely; the new one must not inherit them.
        """
        if not self.has_branch(name):
            ObjectStore(self.location).delete_below(f"{self.path}/tree/{name}")
        durable_write("create branch", f"{self.uri()}@{name}")
        with lance_call(dataset.uri, "create a branch of"):
            dataset.create_branch(name, dataset.version, storage_options=self.location.storage_options)

    def tags(self) -> dict[str, Any]:
        dataset = self._readable()
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
        """Try to delete a native branch; only the listing shows whether it is gone.

        Lance refuses while another branch descends from it, and reports "not found" for any branch that is deleted in
        parallel.
        """
        durable_write("delete branch", f"{self.uri()}@{name}")
        try:
            with lance_call(dataset.uri, "delete a branch of"):
                dataset.branches.delete(name)
        except StorageError as error:
            if classify(error) not in (Failure.NOT_FOUND, Failure.IN_USE):
                raise


def _file_tag(path: str | Path) -> str:
    """Identify a version file. Another file under the same name, as in a restored copy, has another tag."""
    try:
        found = os.stat(path)  # noqa: PTH116 - quicker, and a commit does this many times
    except OSError as error:
        if classify(error) is Failure.NOT_FOUND:
            return ""
        raise storage_error(error, "read", str(path)) from error
    return f"{found.st_ino}-{found.st_mtime_ns}-{found.st_size}"


def primary_key(dataset: lance.LanceDataset) -> list[str]:
    """Name the columns with the primary-key mark."""
    return [field.name() for field in dataset.lance_schema.fields() if field.is_unenforced_primary_key()]


def fragment_count(dataset: lance.LanceDataset) -> int:
    fragments: list[Any] = dataset.get_fragments()
    return len(fragments)
