"""Read node and edge tables, each at exactly one version."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import lance
import lance.debug
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from lance.blob import BlobType
from lance.lance import _Session as Session

from omnigraph.api.results import TableVersion
from omnigraph.core.location import Location
from omnigraph.core.lru import LruCache
from omnigraph.core.running import proceed
from omnigraph.errors import StorageError
from omnigraph.lang.identity import new_id
from omnigraph.storage.bases import at_present_root, file_name
from omnigraph.storage.lance_errors import Failure, classify, lance_call
from omnigraph.storage.objects import ObjectStore
from omnigraph.storage.predicates import OneOf, Predicate, lance_filter
from omnigraph.storage.torn import newest_whole, set_aside_versions, torn_versions
from omnigraph.storage.versions import newest_files

ID, SRC, DST = "id", "src", "dst"
ADDRESS = "_rowaddr"
OFFSET_BITS = 32  # low bits of a row address: offset in the fragment; the fragment number is above
MOST_VALUES = 8192  # in one filter
_KEPT_HANDLES = 256
_GROWN_BYTES, _MOST_GROWN = 2**22, 8192  # of ids in memory; of one table
_MOST_RUNS = 16
# A file is read in one request until it grows past this size. Lance takes 4 KiB on a disk: then the files that folds
# make cost more requests, the longer the history.
_BLOCK_SIZE = 2**18
_OURS = "omnigraph-"
_OPERATION = re.compile(r"operation: (\w+)")
_UPKEEP = ("Rewrite", "ReserveFragments", "CreateIndex", "UpdateConfig")


@dataclass(frozen=True, slots=True)
class MadeBy:
    """The transaction that made a version, and the version whose content it restored, if it did."""

    uuid: str
    restored: int | None

    @property
    def is_ours(self) -> bool:
        return self.uuid.startswith(_OURS)


@dataclass(frozen=True, slots=True)
class _Growth:
    """What a version of a table is: an earlier one, and the rows of these ids that were appended to it."""

    since: TableVersion
    ids: pa.Array

    def size(self) -> int:
        return int(self.ids.nbytes) + 256


_NO_IDS = pa.array([], pa.string())


def _all_of(batches: pa.RecordBatchReader) -> pa.Table:
    """Read all batches, unless the query that asks for them has to stop."""
    found = []
    for batch in batches:
        proceed()
        found.append(batch)
    return pa.Table.from_batches(found, batches.schema)


def fork_name(branch: str) -> str:
    """Make a unique name for a fork of a table, so that no later branch can take it over.

    The unique part comes first: when Lance deletes `agent/1` it also removes the directory `agent` if it knows of
    nothing else there, and with it a fork `agent/2` that is just being created.
    """
    return f"{new_id()}/{branch}"


def transaction_id() -> str:
    """Make the uuid of a transaction. Its prefix marks the transaction as ours for good."""
    return f"{_OURS}{new_id()}"


class TableReader:
    """All tables below one root, to read. Handles share one Lance session, so a version is read once."""

    def __init__(self, location: Location) -> None:
        self.location = location
        self._objects = ObjectStore(location)
        self.forget()

    def forget(self) -> None:
        """Drop every handle and what Lance cached: the files at the address are those of another graph."""
        # One session for all tables: it caches manifests and indices by address and version.
        self._session = Session()
        self._kept = LruCache(_KEPT_HANDLES)
        self._grown = LruCache(_GROWN_BYTES)

    # Reading

    def open(self, table: TableVersion) -> lance.LanceDataset:
        """Open a table at exactly one version. The handle is shared: never move it to another version.

        Some pylance calls lock a handle against all others; use `own_handle` for those. Only handles on main are
        cached: another branch may be deleted and created again, and then hold other data.
        """
        return self.own_handle(table) if table.branch else self._keep(table, partial(self.own_handle, table))

    def _keep(self, table: TableVersion, make: Callable[[], lance.LanceDataset]) -> lance.LanceDataset:
        return self._kept.get(table, make, lambda _: 1)

    def own_handle(self, table: TableVersion) -> lance.LanceDataset:
        """Open a table at exactly one version, with a handle that is not shared."""
        uri = self._uri(table.path, table.branch)
        with lance_call(uri, "open"):
            return self._dataset(uri, table.version)

    def own_copy(self, table: TableVersion) -> lance.LanceDataset:
        """Return a handle that is not shared, without a request if the table is open. It proves nothing about files."""
        if not self._kept.holds(table):
            return self.own_handle(table)
        dataset = self.open(table)
        with lance_call(dataset.uri, "open"):
            return dataset.checkout_version(table.version)

    def scan(
        self,
        table: TableVersion,
        columns: Sequence[str],
        predicate: Predicate | None = None,
        *,
        addresses: bool = False,
    ) -> pa.Table:
        """Read the rows that satisfy a predicate, blobs as bytes, optionally with row addresses."""
        dataset = self.open(table)
        with lance_call(dataset.uri, "scan"):
            scanner = dataset.scanner(
                columns=list(columns),
                filter=lance_filter(predicate) if predicate else None,
                with_row_address=addresses,
                blob_handling="all_binary",
            )
            return _all_of(scanner.to_reader())

    def columns(self, table: TableVersion) -> pa.Schema:
        """Return the columns of a version as they are read: a blob column is binary."""
        dataset = self.open(table)
        with lance_call(dataset.uri, "read"):
            stored = dataset.schema
        return pa.schema(
            [pa.field(one.name, pa.large_binary()) if isinstance(one.type, BlobType) else one for one in stored]
        )

    def has_blobs(self, table: TableVersion) -> bool:
        """Return whether a version has a column of large values, some of which are files of their own."""
        dataset = self.open(table)
        with lance_call(dataset.uri, "read"):
            return any(isinstance(one.type, BlobType) for one in dataset.schema)

    def fragment_rows(self, table: TableVersion) -> dict[int, int]:
        """Return the number of rows of each fragment."""
        dataset = self.open(table)
        with lance_call(dataset.uri, "read"):
            return {fragment.fragment_id: fragment.count_rows() for fragment in dataset.get_fragments()}

    def scan_fragments(self, table: TableVersion, fragments: Sequence[int], columns: Sequence[str]) -> pa.Table:
        """Read some fragments in order, with row addresses."""
        dataset = self.open(table)
        with lance_call(dataset.uri, "scan"):
            chosen = [fragment for fragment in dataset.get_fragments() if fragment.fragment_id in fragments]
            return dataset.scanner(columns=list(columns), fragments=chosen, with_row_address=True).to_table()

    def lookup(
        self, table: TableVersion, column: str, values: pa.Array, columns: Sequence[str], *, addresses: bool = False
    ) -> pa.Table:
        """Read the rows whose column has one of the values, in as few scans as possible."""
        # At least one, so that a search for nothing returns an empty table with the right columns.
        chunks = [values[at : at + MOST_VALUES] for at in range(0, max(len(values), 1), MOST_VALUES)]
        found = [self.scan(table, columns, OneOf(column, chunk), addresses=addresses) for chunk in chunks]
        return pa.concat_tables(found)

    def count(self, table: TableVersion, column: str, values: pa.Array) -> int:
        """Count the rows whose column has one of the values. With an index on the column no other file is read."""
        dataset = self.open(table)
        chunks = (values[at : at + MOST_VALUES] for at in range(0, len(values), MOST_VALUES))
        with lance_call(dataset.uri, "scan"):
            return sum(dataset.count_rows(lance_filter(OneOf(column, chunk))) for chunk in chunks)

    def nearest(self, table: TableVersion, column: str, query: np.ndarray[Any, Any], k: int, probes: int) -> pa.Table:
        """Read about the `k` rows nearest to a vector, with vectors and addresses, by so many partitions of an index.

        Rows that the index does not cover are all looked at.
        """
        dataset = self.open(table)
        asked = {"column": column, "q": query, "k": k, "nprobes": probes, "metric": "L2"}
        with lance_call(dataset.uri, "scan"):
            # Lance warns if the distance is not named.
            return dataset.scanner(columns=[column, "_distance"], nearest=asked, with_row_address=True).to_table()

    def has_any(self, table: TableVersion, ids: pa.Array) -> bool:
        """Return whether a table has one of the ids. Rows that this process has just appended are not read again."""
        grown = self._growth(table)
        if pc.any(pc.is_in(ids, value_set=grown.ids)).as_py():
            return True
        try:
            return bool(self.lookup(grown.since, ID, ids, [ID]).num_rows)
        except StorageError as error:
            if grown.since == table or classify(error) is not Failure.NOT_FOUND:
                raise
            return bool(self.lookup(table, ID, ids, [ID]).num_rows)  # a cleanup removed the earlier version

    def _growth(self, table: TableVersion) -> _Growth:
        return self._grown.get(table, lambda: _Growth(table, _NO_IDS), _Growth.size)

    def _note_appended(self, before: TableVersion, after: TableVersion, ids: pa.Array | None) -> None:
        """Remember that a version is another one and some rows. Of a fork nothing is remembered, as in `open`.

        Without ids it has the same rows in fewer files.
        """
        if before.branch is not None:
            return
        known = self._growth(before)
        if ids is None and not self._is_shorter(known.since, after):
            return
        ids = _NO_IDS if ids is None else ids
        if after.version == before.version + 1 and len(known.ids) + len(ids) <= _MOST_GROWN:
            self._grown.get(after, lambda: _Growth(known.since, pa.concat_arrays([known.ids, ids])), _Growth.size)

    def _is_shorter(self, one: TableVersion, other: TableVersion) -> bool:
        """Return whether a version that is open has no more files than another: a search reads them all."""
        if not (self._kept.holds(one) and self._kept.holds(other)):
            return False
        return len(self.open(one).get_fragments()) <= len(self.open(other).get_fragments())

    def head(self, path: str, branch: str | None) -> lance.LanceDataset:
        """Open a table at its head, published or not."""
        uri = self._uri(path, branch)
        try:
            with lance_call(uri, "open"):
                return self._dataset(uri, None)
        except StorageError:
            # A power cut tore what no commit of the graph names yet: the next writer of the table sets it aside.
            whole = newest_whole(uri) if self.location.is_local else None
            if whole is None:
                raise
            with lance_call(uri, "open"):
                return self._dataset(uri, whole[0])

    def has_version(self, table: TableVersion) -> bool:
        """Return whether a version exists in the storage now, whatever is cached."""
        versions = "/".join((table.path, *(("tree", table.branch) if table.branch else ()), "_versions"))
        names = (file_name(table.version), f"{table.version}.manifest")  # the second in early releases of Lance
        return any(self._objects.exists(f"{versions}/{name}") for name in names)

    def is_torn(self, path: str, branch: str | None) -> bool:
        """Return whether a power cut left no whole version of a table or fork."""
        return self.location.is_local and newest_whole(self._uri(path, branch)) is None

    def torn(self, path: str, branch: str | None) -> set[int]:
        """Return the newest versions of a table or fork that a power cut tore."""
        found = torn_versions(self._uri(path, branch)) if self.location.is_local else ()
        return {number for number, _ in found}

    def newest_number(self, table: TableVersion) -> int:
        """Return the newest version number of a table on a local disk, torn or not; 0 on an object store."""
        found = newest_files(self._uri(table.path, table.branch), 1) if self.location.is_local else ()
        return found[0][0] if found else 0

    def set_aside_torn(self, table: TableVersion) -> list[int]:
        """Set aside torn versions past the given one; return their numbers. The caller holds the gate of the table."""
        if not self.location.is_local:
            return []

        def is_ours(version: int) -> bool:
            made_by = self.made_by(replace(table, version=version))
            return made_by is not None and made_by.is_ours

        return set_aside_versions(self._uri(table.path, table.branch), table.version, is_ours)

    def head_version(self, table: TableVersion) -> int:
        """Return the version of the head, probed from an existing version."""
        dataset = self.open(table)
        # Lance looks at every version file, which takes a while on a disk with thousands; their names are enough.
        if newest := self.newest_number(table):
            return newest
        with lance_call(dataset.uri, "probe"):
            return int(dataset.latest_version)

    def made_by(self, table: TableVersion) -> MadeBy | None:
        """Return the transaction that made a version; None if unknown, and then it was not ours."""
        dataset = self.own_handle(table)
        try:
            with lance_call(dataset.uri, "read transaction"):
                found = dataset.read_transaction(table.version)
        except TypeError:  # pylance bug: it cannot decode a compaction that remapped an index
            return None
        if found is None:
            return None
        operation = found.operation
        restored = operation.version if isinstance(operation, lance.LanceOperation.Restore) else None
        return MadeBy(str(found.uuid), restored)

    def operation_of(self, table: TableVersion) -> str | None:
        """Return the name of the operation that made a version; None if unknown."""
        dataset = self.own_handle(table)
        with lance_call(dataset.uri, "read transaction"):
            texts = lance.debug.list_transactions(dataset, 1)  # the only pylance reader that decodes every operation
        found = _OPERATION.search(texts[0] or "") if texts else None
        return found[1] if found else None

    def has_same_content(self, table: TableVersion, later: int) -> bool:
        """Return whether only maintenance happened to a table up to a later version."""
        return all(self._is_upkeep(replace(table, version=version)) for version in range(table.version + 1, later + 1))

    def _is_upkeep(self, table: TableVersion) -> bool:
        try:
            return self.operation_of(table) in _UPKEEP
        except StorageError as error:
            if classify(error) is Failure.NOT_FOUND:  # a cleanup removed it, so the content may have changed
                return False
            raise

    def take_positions(self, table: TableVersion, rows: np.ndarray[Any, Any], columns: Sequence[str]) -> pa.Table:
        """Read rows by position."""
        dataset = self.open(table)
        with lance_call(dataset.uri, "read"):
            return dataset.take(rows.tolist(), columns=list(columns))

    def take_addresses(self, table: TableVersion, addresses: np.ndarray[Any, Any], columns: Sequence[str]) -> pa.Table:
        """Read rows by address, in order of the addresses."""
        dataset = self.open(table)
        with lance_call(dataset.uri, "read"):
            chosen = ", ".join(map(str, np.sort(addresses).tolist()))
            rows = dataset.scanner(
                columns=list(columns), filter=f"{ADDRESS} IN ({chosen})" if chosen else "false", with_row_address=True
            ).to_table()
        return rows.drop_columns(ADDRESS)

    def rows_at(self, table: TableVersion, addresses: np.ndarray[Any, Any], columns: Sequence[str]) -> pa.Table:
        """Read whole rows by address, in the given order, blobs as bytes."""
        order = np.argsort(addresses)
        sorted_ = addresses[order]
        dataset = self.open(table)
        with lance_call(dataset.uri, "read"):
            # Without named fragments, Lance would search all of them for a range of addresses.
            numbers = set(np.unique(sorted_ >> OFFSET_BITS).tolist())
            chosen = [fragment for fragment in dataset.get_fragments() if fragment.fragment_id in numbers]
            parts = [
                dataset.scanner(
                    columns=list(columns),
                    fragments=chosen,
                    filter=chosen_rows,
                    with_row_address=True,
                    blob_handling="all_binary",
                ).to_table()
                for chosen_rows in _address_filters(sorted_)
            ]
        found = pa.concat_tables(parts)
        if np.array_equal(found[ADDRESS].to_numpy(), addresses):
            return found.drop_columns(ADDRESS)
        # Lance returns fragments in manifest order, not in order of their numbers.
        places = np.argsort(found[ADDRESS].to_numpy())
        return found.take(places[np.argsort(order)]).drop_columns(ADDRESS)

    def branch_points(self, table: TableVersion) -> dict[str, list[tuple[int, str]]]:
        """Return where each native branch of a table forked from its parent, by version and identity, from main on."""
        dataset = self.own_handle(table)
        with lance_call(dataset.uri, "list the branches of"):
            found = dataset.branches.list()
        return {name: [(int(at), str(uuid)) for at, uuid in one["branch_identifier"]] for name, one in found.items()}

    # Opening

    def _dataset(self, uri: str, version: int | None) -> lance.LanceDataset:
        how: dict[str, Any] = {
            "block_size": _BLOCK_SIZE,
            "storage_options": self.location.storage_options,
            "session": self._session,
        }
        return at_present_root(lance.dataset(uri, version=version, **how), self.location, **how)

    def _uri(self, path: str, branch: str | None) -> str:
        return self.location.child(path, "tree", branch) if branch else self.location.child(path)


def _address_filters(addresses: np.ndarray[Any, Any]) -> list[str]:
    """Build filters for sorted addresses. Lance reads a range much faster than a list of its rows."""
    if not len(addresses):
        return ["false"]
    starts = np.flatnonzero(np.diff(addresses, prepend=-2) != 1)
    if len(starts) > _MOST_RUNS:
        some = (addresses[at : at + MOST_VALUES].tolist() for at in range(0, len(addresses), MOST_VALUES))
        return [f"{ADDRESS} IN ({', '.join(map(str, names))})" for names in some]
    ends = np.append(starts[1:], len(addresses)) - 1
    runs = zip(addresses[starts].tolist(), addresses[ends].tolist(), strict=True)
    return [" OR ".join(f"({ADDRESS} >= {first} AND {ADDRESS} <= {last})" for first, last in runs)]
