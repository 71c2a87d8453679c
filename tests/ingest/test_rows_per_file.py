"""The files of a load: small ones, so that updates are cheap, and large ones where their number counts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import omnigraph
from omnigraph.core.location import Location
from omnigraph.formats.sources import discover
from omnigraph.ingest.keys import key_sections
from omnigraph.ingest.steps import KeyExchange, StageTask, rows_per_file, stage

ROWS = 300_000


@pytest.mark.parametrize(
    "size, expected",
    [(2**29, [65_536] * 4 + [37_856]), (2**33, [65_536] * 4 + [37_856]), (2**35, [262_144, 37_856]), (2**37, [ROWS])],
)
def test_the_more_bytes_a_load_has_the_more_rows_are_in_a_file(tmp_path: Path, size: int, expected: list[int]) -> None:
    graph = omnigraph.init(tmp_path / "graph", "node Person { age: I32 }")
    pq.write_table(pa.table({"age": pa.array(range(ROWS), pa.int32())}), tmp_path / "Person.parquet")
    (split,) = discover([tmp_path / "Person.parquet"], graph.catalog)
    location = Location.parse(tmp_path / "graph")
    exchange = KeyExchange(location, "__tmp/load-0", 1, 4, key_sections(graph.catalog))
    exchange = replace(exchange, rows_per_file=rows_per_file(size))
    tables = {"node:Person": graph.snapshot().entries["node:Person"].table}

    result, _ = stage(StageTask(0, split, graph.catalog, tables, exchange))

    assert [json.loads(text)["physical_rows"] for text in result.tables["node:Person"].written] == expected
