"""What upkeep costs and brings: optimize and a scan against pylance alone, requests of writes over many commits."""

from __future__ import annotations

import datetime as dt
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import lance
import pyarrow as pa

import omnigraph
from omnigraph.commit.plan import PublishPlan, TableAction, WriterKind
from omnigraph.commit.publish import begin, publish
from omnigraph.maintenance.cleanup import CleanupRequest, cleanup
from omnigraph.storage.observe import counted

SCHEMA = "node Person { name: String @key  age: I32?  bio: String? }"
PERSON = "node:Person"
COMMITS = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
ROWS = 100  # of each commit
WRITES, EVERY, WINDOW = 5 * COMMITS, 100, 16
CLEANUPS = 5  # while those writes are made
TURNS, SCANS = 7, 41
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
    """Both tidy up copies of what they have made, in turn, so that neither always has the warmer page cache."""
    made = grown(root / "graph")
    by_hand(table_uri(made), root)
    times: list[list[float]] = [[], []]
    for turn in range(TURNS):
        graph, hand = omnigraph.open(copied(root / "graph")), str(copied(root / "hand"))
        sides: list[Callable[[], object]] = [graph.optimize, partial(tidied_by_hand, hand)]
        for side in (0, 1) if turn % 2 else (1, 0):
            times[side].append(seconds(sides[side]))
    one, two = map(median, times)
    label = f"optimize of {COMMITS} commits / pylance"
    return [report(label, one / two, COMPACT_LIMIT, f"{one:.3f} s, {two:.3f} s"), scans(root, table_uri(graph))]


def scans(root: Path, tidy: str) -> bool:
    """Read a table that was optimized, and the same rows written at once, in turn."""
    once = str(root / "once")
    rows = lance.dataset(tidy).to_table()
    lance.write_dataset(rows, once, max_rows_per_file=65_536, enable_stable_row_ids=True, data_storage_version="2.2")
    handles = [lance.dataset(tidy), lance.dataset(once)]
    times: list[list[float]] = [[], []]
    for turn in range(SCANS):
        for side in (0, 1) if turn % 2 else (1, 0):
            times[side].append(seconds(handles[side].to_table))
    scan, floor = map(median, times)
    detail = f"{scan * 1e3:.1f} ms, {floor * 1e3:.1f} ms"
    return report("scan afterwards / written at once", scan / floor, SCAN_LIMIT, detail)


def copied(path: Path) -> Path:
    copy = path.with_name(f"{path.name}-copy")
    shutil.rmtree(copy, ignore_errors=True)
    return Path(shutil.copytree(path, copy))


def requests(root: Path) -> list[bool]:
    """Requests of one insert, averaged over a window, at the beginning and after many, with upkeep now and then."""
    graph = omnigraph.init(root / "long", SCHEMA)
    append(graph, people(0, ROWS))
    graph.optimize()
    early = average(graph, 0)
    for number in range(WINDOW, WRITES, EVERY):
        for at in range(EVERY):
            graph.mutate(INSERT, {"n": f"w{number + at}"})
        graph.optimize()
        if number // EVERY % (WRITES // EVERY // CLEANUPS) == 0:
            clean(graph)
    late = average(graph, WRITES + EVERY)
    ratio = abs(late / early - 1)
    label, versions = f"requests of a write after {WRITES} commits, change", manifest_versions(graph)
    return [
        report(label, ratio, REQUEST_LIMIT, f"{early:.1f}, {late:.1f}; the manifest has {versions} versions"),
    ]


def clean(graph: omnigraph.Graph) -> None:
    """Clean up as later, when nothing of this is young any more."""
    request = CleanupRequest(keep=EVERY, confirm=True, manifest_age=dt.timedelta())
    failed = [row for row in cleanup(graph._store, request).tables if row.error]  # noqa: SLF001
    assert not failed, failed


def manifest_versions(graph: omnigraph.Graph) -> int:
    return len(graph._store.manifest.table.open().version_refs())  # noqa: SLF001


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
