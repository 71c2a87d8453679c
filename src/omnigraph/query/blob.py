"""Read the content of one Blob property, in parts."""

from __future__ import annotations

import hashlib
from typing import Any

import lance
import pyarrow as pa

from omnigraph.api.results import Snapshot
from omnigraph.api.rows import Blob, Cell
from omnigraph.errors import BlobNotFoundError, BlobPropertyError
from omnigraph.lang.catalog import Catalog, EdgeType, NodeType
from omnigraph.lang.source import did_you_mean
from omnigraph.storage.columns import table_key
from omnigraph.storage.lance_errors import lance_call
from omnigraph.storage.predicates import OneOf, lance_filter
from omnigraph.storage.read import ADDRESS, ID, OFFSET_BITS
from omnigraph.storage.stage import TableStorage


def find_blob(tables: TableStorage, snapshot: Snapshot, catalog: Catalog, cell: Cell) -> Blob:
    """Find the Blob of a property of an entity in one state."""
    declared = _declared(catalog, cell)
    table = snapshot.entries[table_key(declared)].table
    dataset = tables.open(table)
    with lance_call(dataset.uri, "read"):
        rows = dataset.scanner(
            columns=[cell.property],
            filter=lance_filter(OneOf(ID, pa.array([cell.id]))),
            with_row_address=True,
            blob_handling="blobs_descriptions",
        ).to_table()
    described = rows[cell.property][0].as_py() if rows.num_rows else None
    if described is None:
        what = "has no content" if rows.num_rows else "is not there"
        raise BlobNotFoundError(f"{cell} {what}", type_name=cell.type_name, entity_id=cell.id, property=cell.property)
    address = rows[ADDRESS][0].as_py()
    etag = _etag(dataset, address, cell.property)
    return Blob(described["size"], etag, lambda start, end: _bytes(dataset, cell.property, address, start, end))


def _declared(catalog: Catalog, cell: Cell) -> NodeType | EdgeType:
    types: dict[str, Any] = {"node": catalog.nodes, "edge": catalog.edges}
    known = types.get(cell.kind, {})
    declared: NodeType | EdgeType | None = known.get(cell.type_name)
    property_ = declared.properties.get(cell.property) if declared else None
    if declared is None or property_ is None or not property_.type.is_blob:
        what = f"there is no {cell.kind} type '{cell.type_name}'" if declared is None else f"{cell} is no Blob"
        names = known if declared is None else [name for name, one in declared.properties.items() if one.type.is_blob]
        hint = did_you_mean(cell.type_name if declared is None else cell.property, sorted(names))
        raise BlobPropertyError(what, type_name=cell.type_name, property=cell.property, hint=hint)
    return declared


def _etag(dataset: lance.LanceDataset, address: int, column: str) -> str:
    """Return the etag of a Blob: its address in a data file."""
    # Data files never change and their names are never reused, so an address has one content for ever.
    with lance_call(dataset.uri, "read"):
        fragment = dataset.get_fragment(address >> OFFSET_BITS)
    assert fragment, "the row was found in it"
    files = [file.path for file in fragment.metadata.files]
    return hashlib.sha256(repr((files, address, column)).encode()).hexdigest()


def _bytes(dataset: lance.LanceDataset, column: str, address: int, start: int, end: int) -> bytes:
    with lance_call(dataset.uri, "read"):
        (file,) = dataset.take_blobs(column, addresses=[address])
        assert file, "the property is not null"
        with file:
            file.seek(start)
            return bytes(file.read(end - start))
