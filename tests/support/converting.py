"""Whole inputs converted at once, and JSONL line by line in the way that defines the format."""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from omnigraph.formats.batch import ConvertedBatch, joined
from omnigraph.formats.files import BOM
from omnigraph.formats.jsonl import JsonlBlock, jsonl_batches
from omnigraph.formats.tables import table_batches
from omnigraph.lang.catalog import Catalog, EdgeType, NodeType


def convert_jsonl(data: bytes, catalog: Catalog) -> ConvertedBatch:
    return joined(jsonl_batches(data, catalog))


def convert_exactly(data: bytes, catalog: Catalog) -> ConvertedBatch:
    block = JsonlBlock(data.removeprefix(BOM), 0, catalog)
    block.read_one_by_one(np.arange(len(block.lines)))
    return block.converted_so_far()


def convert_table(
    rows: pa.Table,
    declared: NodeType | EdgeType,
    columns: Mapping[str, str | None] | None = None,
    *,
    source: str = "the table",
) -> ConvertedBatch:
    return joined(table_batches(rows.to_reader(), declared, columns or {}, source=source))
