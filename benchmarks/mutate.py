"""What a mutation costs: time against the same storage calls by hand, and requests against history and size."""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa

import omnigraph
from omnigraph.commit.plan import OpClass, PublishPlan, TableAction, WriterKind
from omnigraph.commit.publish import begin, publish
from omnigraph.manifest.rows import SCHEMA as MANIFEST_SCHEMA
from omnigraph.storage.layout import IndexSpec
from omnigraph.storage.observe import counted

SCHEMA = """
node Person { name: String @key  age: I32? }
edge Knows: Person -> Person { since: Date? }
"""
PERSON, KNOWS = "node:Person", "edge:Knows"
NODES, EDGES = 100_000, 1_000_000
DEPTHS = (10, 1000)
SIZES = (10_000, 1_000_000)
WINDOW = 16  # two rounds of manifest compaction
TURNS, TIMES = 5, 8
TIME_LIMIT, REQUEST_LIMIT, MANY_LIMIT = 2.0, 0.10, 1.5

INSERT = "query insert_person($n: String) { insert Person { name: $n, age: 1 } }"
CONNECT = "query connect($n: String, $m: String) { insert Knows { from: $n, to: $m } }"
UPDATE = "query grow($n: String) { update Person set { age: 2 } where name = $n }"
DELETE = "query remove($n: String) { delete Person where name = $n }"


def people(count: int) -> pa.Table:
    names = pa.array([f"p{number}" for number in range(count)])
    return pa.table({"id": names, "age": pa.nulls(count, pa.int32()), "name": names})


def friendships(people_count: int, count: int) -> pa.Table:
    ends = np.random.default_rng(7).integers(0, people_count, (2, count))
    columns = {"id": pa.array([f"e{number:09d}" for number in range(count)])}
    columns |= {name: pa.array([f"p{at}" for at in ends[row]]) for row, name in enumerate(("src", "dst"))}
    return pa.table({**columns, "since": pa.nulls(count, pa.date32())})


def graph_of(root: Path, nodes: int, edges: int) -> omnigraph.Graph:
    """A graph of that size with its indices built."""
    graph = omnigraph.init(root, SCHEMA)
    store = graph._store  # noqa: SLF001
    for key, rows in ((PERSON, people(nodes)), (KNOWS, friendships(nodes, edges))):
        txn = begin(store)
        staged = store.tables.stage_append(txn.entries[key].table, rows)
        publish(store, PublishPlan(txn, WriterKind.LOAD, (TableAction(staged),)))
    txn = begin(store)
    indices = {PERSON: ("id", "name"), KNOWS: ("id", "src", "dst")}
    actions = tuple(
        TableAction(
            store.tables.stage_create_indices(txn.entries[key].table, [IndexSpec(name, "BTREE") for name in names]),
            OpClass.MAINTENANCE,
        )
        for key, names in indices.items()
    )
    publish(store, PublishPlan(txn, WriterKind.ENSURE_INDICES, actions))
    return graph


class ByHand:
    """The floor: the same storage operations with pylance alone, with nothing around them that makes them safe."""

    def __init__(self, graph: omnigraph.Graph, root: Path) -> None:
        entries = graph.snapshot().entries
        self.uris = {}
        for key in (PERSON, KNOWS):
            self.uris[key] = str(root / key.replace(":", "-"))
            source = lance.dataset(graph._store.location.child(entries[key].table.path))  # noqa: SLF001
            copy = lance.write_dataset(
                source.to_table(), self.uris[key], enable_stable_row_ids=True, max_rows_per_file=65536
            )
            for column in ("id", "name") if key == PERSON else ("id", "src", "dst"):
                copy.create_scalar_index(column, "BTREE")
        self.manifest = str(root / "manifest")
        lance.write_dataset(MANIFEST_SCHEMA.empty_table(), self.manifest, enable_stable_row_ids=True)

    def insert(self, name: str) -> None:
        row = pa.table({"id": [name], "age": pa.array([1], pa.int32()), "name": [name]})
        merge = lance.dataset(self.uris[PERSON]).merge_insert("id")
        merge.when_matched_update_all().when_not_matched_insert_all().execute(row)
        self.publish(name)

    def connect(self, source: str, target: str) -> None:
        people = lance.dataset(self.uris[PERSON])
        for end in (source, target):
            assert people.scanner(columns=["id"], filter=f"id = '{end}'").to_table().num_rows
        row = {"id": [source + target], "src": [source], "dst": [target], "since": pa.nulls(1, pa.date32())}
        lance.write_dataset(pa.table(row), self.uris[KNOWS], mode="append")
        self.publish(source)

    def update(self, name: str) -> None:
        people = lance.dataset(self.uris[PERSON])
        rows = people.scanner(filter=f"name = '{name}'").to_table()
        rows = rows.set_column(1, "age", pa.array([2], pa.int32()))
        people.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(rows)
        self.publish(name)

    def delete(self, name: str) -> None:
        people = lance.dataset(self.uris[PERSON])
        ids = people.scanner(columns=["id"], filter=f"name = '{name}'").to_table()["id"].to_pylist()
        people.delete(f"id = '{ids[0]}'")
        edges = lance.dataset(self.uris[KNOWS])
        edges.delete(f"src = '{ids[0]}' OR dst = '{ids[0]}'")
        self.publish(name)

    def publish(self, text: str) -> None:
        record = {"object_id": "head", "object_type": "graph_head", "table_key": "", "metadata": text}
        merge = lance.dataset(self.manifest).merge_insert("object_id").use_index(False)  # noqa: FBT003
        merge = merge.when_matched_update_all().when_not_matched_insert_all().conflict_retries(0)
        merge.execute(pa.Table.from_pylist([record], schema=MANIFEST_SCHEMA))


def median(task: Callable[[int], Any], start: int) -> float:
    times = []
    for number in range(start, start + TIMES):
        begun = time.perf_counter()
        task(number)
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


def compare(name: str, ours: Callable[[int], Any], floor: Callable[[int], Any]) -> float:
    """Both sides in turn, so that whatever disturbs the machine disturbs both."""
    measured: tuple[list[float], list[float]] = ([], [])
    for turn in range(TURNS):
        for side, task in zip(measured, (ours, floor), strict=True):
            side.append(median(task, turn * TIMES))
    mine, theirs = (statistics.median(side[1:]) for side in measured)
    print(f"{name:<28}{mine * 1e3:8.1f} ms   by hand {theirs * 1e3:8.1f} ms   ratio {mine / theirs:5.2f}")
    return mine / theirs


def time_ratios(root: Path) -> list[float]:
    print(f"a graph of {NODES:,} nodes and {EDGES:,} edges")
    graph = graph_of(root / "graph", NODES, EDGES)
    hand = ByHand(graph, root)
    ratios = [
        compare("keyed insert", lambda n: graph.mutate(INSERT, {"n": f"new{n}"}), lambda n: hand.insert(f"new{n}")),
        compare(
            "edge insert",
            lambda n: graph.mutate(CONNECT, {"n": f"p{n}", "m": f"p{n + 1}"}),
            lambda n: hand.connect(f"p{n}", f"p{n + 1}"),
        ),
        compare("update", lambda n: graph.mutate(UPDATE, {"n": f"p{n}"}), lambda n: hand.update(f"p{n}")),
        compare("delete with cascade", lambda n: graph.mutate(DELETE, {"n": f"p{n}"}), lambda n: hand.delete(f"p{n}")),
    ]
    print(f"{'':<60}at most {TIME_LIMIT}")
    return ratios


def many_in_one(root: Path) -> float:
    """Two hundred inserts in one query against one insert."""
    graph = omnigraph.init(root, SCHEMA)
    declared = ", ".join(f"$n{at}: String" for at in range(200))
    text = f"query many({declared}) {{" + " ".join(f"insert Person {{ name: $n{at} }}" for at in range(200)) + "}"

    def many(number: int) -> None:
        graph.mutate(text, {f"n{at}": f"m{number}-{at}" for at in range(200)})

    return compare("200 inserts in one query", many, lambda n: graph.mutate(INSERT, {"n": f"one{n}"}))


def requests(graph: omnigraph.Graph, first: int) -> float:
    """Requests of one round of each mutation, averaged over cycles of manifest compaction."""
    found = []
    for number in range(first, first + WINDOW):
        with counted() as counting:
            graph.mutate(INSERT, {"n": f"r{number}"})
            graph.mutate(CONNECT, {"n": f"p{number}", "m": f"p{number + 1}"})
            graph.mutate(UPDATE, {"n": f"p{number}"})
        found.append(counting.total)
    return statistics.mean(found)


def optimized(graph: omnigraph.Graph) -> None:
    """Bring the tables into the shape that `optimize` leaves; without it, reading costs what fragments there are."""
    store = graph._store  # noqa: SLF001
    for key in (PERSON, KNOWS):
        txn = begin(store)
        table = txn.entries[key].table
        staged = store.tables.stage_overwrite(table, store.tables.open(table).to_table())
        publish(store, PublishPlan(txn, WriterKind.OPTIMIZE, (TableAction(staged),)))
    txn = begin(store)
    actions = tuple(
        TableAction(
            store.tables.stage_create_indices(txn.entries[key].table, [IndexSpec(name, "BTREE") for name in names]),
            OpClass.MAINTENANCE,
        )
        for key, names in ((PERSON, ("id", "name")), (KNOWS, ("id", "src", "dst")))
    )
    publish(store, PublishPlan(txn, WriterKind.ENSURE_INDICES, actions))


def request_growth(root: Path) -> list[float]:
    graph = graph_of(root / "deep", 10_000, 10_000)
    by_depth = []
    for depth in DEPTHS:
        while len(graph.commits()) < depth:
            graph.mutate(INSERT, {"n": f"d{len(graph.commits())}"})
        optimized(graph)
        by_depth.append(requests(graph, depth))
    by_size = [requests(graph_of(root / f"size{size}", size, size), 0) for size in SIZES]
    growth = [max(pair) / min(pair) - 1 for pair in (by_depth, by_size)]
    print(f"requests of three mutations at depth {DEPTHS}: {by_depth}, growth {growth[0]:.1%}")
    print(f"requests of three mutations with {SIZES} rows: {by_size}, growth {growth[1]:.1%} (at most 10%)")
    return growth


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        ratios = time_ratios(root)
        many = many_in_one(root / "many")
        growth = request_growth(root)
    problems = [
        *([f"a mutation takes {max(ratios):.2f} times the floor"] if max(ratios) > TIME_LIMIT else []),
        *([f"200 inserts cost {many:.2f} times one"] if many > MANY_LIMIT else []),
        *([f"requests grow by {max(growth):.1%}"] if max(growth) > REQUEST_LIMIT else []),
    ]
    if problems:
        sys.exit("; ".join(problems))


if __name__ == "__main__":
    main()
