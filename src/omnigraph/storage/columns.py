"""How types are stored: the Arrow columns and the directory of a node or edge table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import lance
import pyarrow as pa

from omnigraph.core.values import Scalar, milliseconds_of
from omnigraph.lang.catalog import Catalog, EdgeType, NodeType, Property
from omnigraph.lang.identity import fnv1a
from omnigraph.lang.types import Type

_SCALARS = {
    Scalar.STRING: pa.string(),
    Scalar.BOOL: pa.bool_(),
    Scalar.I32: pa.int32(),
    Scalar.I64: pa.int64(),
    Scalar.U32: pa.uint32(),
    Scalar.U64: pa.uint64(),
    Scalar.F32: pa.float32(),
    Scalar.F64: pa.float64(),
    Scalar.DATE: pa.date32(),
    Scalar.DATETIME: pa.date64(),
}
_PRIMARY_KEY = {"lance-schema:unenforced-primary-key": "true"}


def table_key(declared: NodeType | EdgeType) -> str:
    return f"{'node' if isinstance(declared, NodeType) else 'edge'}:{declared.name}"


def table_keys(catalog: Catalog) -> set[str]:
    """Return the keys of the tables that a schema declares."""
    return {f"node:{name}" for name in catalog.nodes} | {f"edge:{name}" for name in catalog.edges}


def declared_of(catalog: Catalog, key: str) -> NodeType | EdgeType:
    """Return the type whose entities a table holds."""
    kind, _, name = key.partition(":")
    return catalog.nodes[name] if kind == "node" else catalog.edges[name]


def table_path(declared: NodeType | EdgeType) -> str:
    """Return the directory of a table: the FNV-1a hash of its type name, because a name may not suit a file system."""
    kind = "nodes" if isinstance(declared, NodeType) else "edges"
    # A directory that is taken is handled by `moved_path`.
    return f"{kind}/{fnv1a(declared.name.encode()):016x}"


def moved_path(declared: NodeType | EdgeType, mark: str) -> str:
    """Return another directory for a table, if one of an earlier type of that name occupies the usual one."""
    return f"{table_path(declared)}-{mark.lower()}"


def is_moved(path: str) -> bool:
    return "-" in path.rpartition("/")[2]


def table_schema(declared: NodeType | EdgeType) -> pa.Schema:
    """Return the columns of a table: system columns, then properties in canonical order."""
    # The mark makes two one-phase merges of one id conflict. Our own staged writes do not rely on it.
    system = [pa.field("id", pa.string(), nullable=False, metadata=_PRIMARY_KEY)]
    if isinstance(declared, EdgeType):
        system += [pa.field(name, pa.string(), nullable=False) for name in ("src", "dst")]
    return pa.schema([*system, *map(_field, declared.properties.values())])


def image_schema(declared: NodeType | EdgeType) -> pa.Schema:
    """Return the columns of a table as they are compared: a Blob as its bytes."""
    stored = table_schema(declared)
    blobs = {name for name, property_ in declared.properties.items() if property_.type.is_blob}
    return pa.schema(
        [pa.field(name, pa.large_binary()) if name in blobs else stored.field(name) for name in stored.names]
    )


def _field(declared: Property) -> pa.Field:
    if declared.type.is_blob:
        return lance.blob_field(declared.name, nullable=declared.type.nullable)
    return pa.field(declared.name, arrow_type(declared.type), nullable=declared.type.nullable)


def arrow_type(declared: Type) -> pa.DataType:
    if declared.is_vector:
        # The item is named: pyarrow, Lance and Parquet have different defaults, and types with other names are not
        # equal.
        return pa.list_(pa.field("item", pa.float32()), declared.dimension)
    scalar = _SCALARS[declared.scalar]
    return pa.list_(pa.field("item", scalar)) if declared.is_list else scalar


def to_array(declared: Type, values: Sequence[Any]) -> pa.Array:
    """Build the column of a property from plain values; blobs are bytes."""
    if declared.is_blob:
        return lance.blob_array(list(values))
    if declared.scalar is not Scalar.DATETIME:
        return pa.array(values, arrow_type(declared))
    # pa.array would truncate a date-time to its day, so the milliseconds are reinterpreted.
    if declared.is_list:
        milliseconds = [None if value is None else [_milliseconds(item) for item in value] for value in values]
        return _reinterpreted(pa.array(milliseconds, pa.list_(pa.field("item", pa.int64()))))
    return pa.array([_milliseconds(value) for value in values], pa.int64()).view(pa.date64())


def _reinterpreted(lists: pa.ListArray) -> pa.ListArray:
    items = lists.values.view(pa.date64())
    return pa.ListArray.from_arrays(
        lists.offsets, items, type=arrow_type(Type(Scalar.DATETIME, is_list=True)), mask=lists.is_null()
    )


def _milliseconds(value: Any) -> int | None:
    return None if value is None else milliseconds_of(value)
