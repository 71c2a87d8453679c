"""What upkeep costs and brings: optimize and a scan against pylance alone, requests of writes over many commits."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import lance
import pyarrow as pa

import omnigraph
from omnigraph.commit.plan import PublishPlan, TableAction, WriterKind
from omnigraph.commit.publish import begin, publish
from omnigraph.storage.counters import counted

SCHEMA = "node Person { name: String @key  age: I32?  bio: String? }"
PERSON = "node:Person"
COMMITS = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
ROWS = 100  # of each commit
WRITES, EVERY, WINDOW = 5 * COMMITS, 100, 16
TURNS = 10
COMPACT_LIMIT, SCAN_LIMIT, REQUEST_LIMIT = 1.5, 1.1, 0.10
INSERT = "query add($n: String) { insert Person { name: $n, age: 1 } }"


def people(start: int, count: int) -> pa.Table:
    names = [f"p{number:08d}" for number in range(start, start + count)]
    ages = pa.array(range(count), pa.int32())
    return pa.table({"id": names, "age": ages, "bio": [f"{name} writes about things" for name in names], "name": names})


def grown(root: Path) -> omnigraph.Graph:
    """A graph whose rows came in small commits, each of them a fragment; its indices cover the first."""
    graph = omnigraph.init(root, SCHEMA)
    append(graph, people(0, ROWS))
    graph.ensure_indices()
    for number in range(1, COMMITS):
        append(graph, people(number * ROWS, ROWS))
    return graph


def append(graph: omnigraph.Graph, rows: pa.Table) -> None:
    store = graph._store  # noqa: SLF001
    txn = begin(store)
    table = txn.entries[PERSON].table
    staged = store.tables.stage_append(table, rows.select(store.tables.open(table).schema.names))
    publish(store, PublishPlan(txn, WriterKind.LOAD, (TableAction(staged),)))


def table_uri(graph: omnigraph.Graph) -> str:
    return graph._store.location.child(graph.snapshot().entries[PERSON].table.path)  # noqa: SLF001


def by_hand(source: str, root: Path) -> str:
    """The same table, made by pylance alone: as many fragments, the same indices over the first."""
    uri, found = str(root / "hand"), lance.dataset(source)
    schema = found.schema
    for number in range(COMMITS):
        rows = people(number * ROWS, ROWS).select(schema.names).cast(schema)
        mode = "append" if number else "create"
        written = lance.write_dataset(rows, uri, mode=mode, enable_stable_row_ids=True, data_storage_version="2.2")
        if not number:
            for column in ("id", "name"):
                written.create_scalar_index(column, "BTREE")
    return uri


def seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def tidied_by_hand(uri: str) -> None:
    handle = lance.dataset(uri)
    handle.optimize.compact_files(target_rows_per_fragment=65_536)
    lance.dataset(uri).optimize.optimize_indices()


def report(what: str, ratio: float, limit: float, detail: str) -> bool:
    good = ratio <= limit
    print(f"{what:<58} {ratio:6.2f} (at most {limit:.2f})  {'ok' if good else 'MISSED'}  {detail}")
    return good


def compaction(root: Path) -> list[bool]:
    graph = grown(root / "graph")
    hand = by_hand(table_uri(graph), root)
    ours, theirs = seconds(graph.optimize), seconds(lambda: tidied_by_hand(hand))
    once = str(root / "once")
    rows = lance.dataset(hand).to_table()
    lance.write_dataset(rows, once, max_rows_per_file=65_536, enable_stable_row_ids=True, data_storage_version="2.2")
    times = {
        uri: min(seconds(lance.dataset(uri).to_table) for _ in range(TURNS))
        for uri in (once, table_uri(graph), once, table_uri(graph))
    }
    scan, floor = times[table_uri(graph)], times[once]
    return [
        report(
            f"optimize of {COMMITS} commits / pylance", ours / theirs, COMPACT_LIMIT, f"{ours:.2f} s, {theirs:.2f} s"
        ),
        report(
            "scan afterwards / written at once", scan / floor, SCAN_LIMIT, f"{scan * 1e3:.1f} ms, {floor * 1e3:.1f} ms"
        ),
    ]


def requests(root: Path) -> list[bool]:
    """Requests of one insert, averaged over a window, at the beginning and after many with an optimize now and then."""
    graph = omnigraph.init(root / "long", SCHEMA)
    append(graph, people(0, ROWS))
    graph.optimize()
    early = average(graph, 0)
    for number in range(WINDOW, WRITES, EVERY):
        for at in range(EVERY):
            graph.mutate(INSERT, {"n": f"w{number + at}"})
        graph.optimize()
    late = average(graph, WRITES + EVERY)
    ratio = abs(late / early - 1)
    return [
        report(f"requests of a write after {WRITES} commits, change", ratio, REQUEST_LIMIT, f"{early:.1f}, {late:.1f}")
    ]


def average(graph: omnigraph.Graph, start: int) -> float:
    with counted() as found:
        for at in range(WINDOW):
            graph.mutate(INSERT, {"n": f"w{start + at}"})
    return found.requests.total / WINDOW


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        good = [*compaction(Path(directory)), *requests(Path(directory))]
    raise SystemExit(not all(good))


if __name__ == "__main__":
    main()
