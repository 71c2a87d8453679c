"""Files whose rows have several nodes and edges each, by a mapping: in every format, and from DataFrames."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import omnigraph
from omnigraph.errors import InputColumnsError, KeyConflictError, LoadRejectedError
from omnigraph.graph import Graph
from omnigraph.spark import write
from tests.support.loads import PIPELINE, load_by, look

SCHEMA = """
node Customer { code: String @key  name: String? }
node Item { title: String @key }
node Coupon { code: String @key }
edge Bought: Customer -> Item { amount: I32? }
edge Used: Customer -> Coupon
"""
ROWS: dict[str, list[Any]] = {
    "customer": ["c1", "c1", "c2", "c1"],
    "name": ["Ann", "Ann", "Bob", "Anna"],
    "item": ["hat", "cap", "hat", "hat"],
    "amount": [1, 2, 3, 4],
    "coupon": [None, "x", "x", "x"],
}
OTHERS: dict[str, None] = {"amount": None, "item": None, "coupon": None}
ENTRIES: list[dict[str, Any]] = [
    {"type": "Customer", "columns": {**OTHERS, "customer": "code"}, "distinct": True},
    {
        "type": "Item",
        "columns": {"customer": None, "name": None, "amount": None, "coupon": None, "item": "title"},
        "distinct": True,
    },
    {
        "type": "Coupon",
        "columns": {"customer": None, "name": None, "amount": None, "item": None, "coupon": "code"},
        "when": "coupon",
        "distinct": True,
    },
    {"type": "Bought", "columns": {"name": None, "coupon": None, "customer": "from", "item": "to"}},
    {
        "type": "Used",
        "columns": {"name": None, "amount": None, "item": None, "customer": "from", "coupon": "to"},
        "when": "coupon",
        "distinct": True,
    },
]
MAPPING = {"files": {"sales*": ENTRIES}}
STORED = {
    "Customer#c1 code=c1 name=Anna": 1,
    "Customer#c2 code=c2 name=Bob": 1,
    "Item#hat title=hat": 1,
    "Item#cap title=cap": 1,
    "Coupon#x code=x": 1,
    "Bought c1 -> hat amount=1": 1,
    "Bought c1 -> cap amount=2": 1,
    "Bought c2 -> hat amount=3": 1,
    "Bought c1 -> hat amount=4": 1,
    "Used c1 -> x": 1,
    "Used c2 -> x": 1,
}


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    return omnigraph.init(tmp_path / "graph", SCHEMA)


def written(folder: Path, format_: str, rows: dict[str, list[Any]] = ROWS) -> Path:
    """Write the rows as one file; as many for `many`, so that they are packed."""
    folder.mkdir(exist_ok=True)
    table = pa.table(rows)
    if format_ == "parquet":
        pq.write_table(table, folder / "sales.parquet", row_group_size=2)
    elif format_ == "csv":
        pcsv.write_csv(table, folder / "sales.csv")
    else:
        for at in range(table.num_rows):
            pcsv.write_csv(table.slice(at, 1), folder / f"sales{at}.csv")
    return folder


@pytest.mark.parametrize("format_", ["csv", "parquet", "many"])
def test_a_row_is_several_nodes_and_edges(graph: Graph, tmp_path: Path, format_: str) -> None:
    done = load_by(PIPELINE, graph, written(tmp_path / "data", format_), "append", mapping=MAPPING)

    assert look(graph).rows == Counter(STORED)
    assert done.nodes == {"Coupon": 1, "Customer": 2, "Item": 2}
    assert done.edges == {"Bought": 4, "Used": 2}


def test_a_small_file_goes_the_same_way(graph: Graph, tmp_path: Path) -> None:
    graph.load(written(tmp_path / "data", "csv"), mode="append", mapping=MAPPING)
    assert look(graph).rows == Counter(STORED)


def test_so_does_a_dataframe(graph: Graph, spark: SparkSession) -> None:
    rows = list(zip(*ROWS.values(), strict=True))
    frame = spark.createDataFrame(rows, "customer string, name string, item string, amount int, coupon string")

    write(graph, {"sales": frame.coalesce(1)}, mode="append", mapping=MAPPING)

    assert look(graph).rows == Counter(STORED)


def test_a_key_that_the_graph_has_is_an_error_of_an_append_and_replaced_by_a_merge(
    graph: Graph, tmp_path: Path
) -> None:
    data = written(tmp_path / "data", "csv")
    graph.load([{"type": "Customer", "data": {"code": "c1", "name": "Old"}}], mode="append")

    with pytest.raises(KeyConflictError):
        graph.load(data, mode="append", mapping=MAPPING)
    graph.load(data, mode="merge", mapping=MAPPING)

    assert look(graph).rows == Counter(STORED)


@pytest.mark.parametrize("format_", ["csv", "parquet", "many"])
def test_a_problem_names_the_line_of_the_row_whichever_type_it_is_of(
    graph: Graph, tmp_path: Path, format_: str
) -> None:
    bad = {**ROWS, "amount": [1, 2, 2**40, 4]}
    data = written(tmp_path / "data", format_, bad)

    with pytest.raises(LoadRejectedError) as caught:
        load_by(PIPELINE, graph, data, "append", mapping=MAPPING)

    (problem,) = caught.value.violations
    file, line = {"csv": ("sales.csv", 4), "parquet": ("sales.parquet", 3), "many": ("sales2.csv", 2)}[format_]
    assert (problem.rule, problem.file, problem.line) == ("type", str(data / file), line)


def test_without_distinct_a_key_that_comes_twice_is_an_error(graph: Graph, tmp_path: Path) -> None:
    mapping = {"files": {"sales*": [{**one, "distinct": False} for one in ENTRIES]}}

    with pytest.raises(LoadRejectedError) as caught:
        graph.load(written(tmp_path / "data", "csv"), mode="append", mapping=mapping)

    assert {(one.type_name, one.line) for one in caught.value.violations} == {
        *(("Customer", 3), ("Customer", 5), ("Item", 4), ("Item", 5), ("Coupon", 4), ("Coupon", 5)),
    }


def test_a_condition_on_a_column_that_there_is_not_is_an_error(graph: Graph, tmp_path: Path) -> None:
    mapping = {"files": {"sales*": {**ENTRIES[2], "when": "voucher"}}}

    with pytest.raises(InputColumnsError, match="no column 'voucher' for 'when'"):
        graph.load(written(tmp_path / "data", "csv"), mode="append", mapping=mapping)
