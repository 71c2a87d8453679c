"""What a commit costs: time against the same storage calls by hand, with and without syncs; requests by depth."""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import lance
import pyarrow as pa
from lance.fragment import write_fragments

import omnigraph
from omnigraph.commit.plan import PublishPlan, TableAction, WriterKind, WriteTxn
from omnigraph.commit.publish import begin, publish
from omnigraph.commit.store import Store
from omnigraph.core.location import Location
from omnigraph.manifest.publisher import Lineage
from omnigraph.manifest.rows import SCHEMA as MANIFEST_SCHEMA
from omnigraph.storage.durability import Durability, Medium
from omnigraph.storage.observe import counted

SCHEMA = """
node Person { name: String @key }
node Company { name: String @key }
"""
TABLES = ("node:Company", "node:Person")
DEPTHS = (10, 100, 1000)
WINDOW = 16  # one log segment
CPU_LIMIT, TIME_LIMIT = 1.5, 1.7
WARM, TURNS = 20, 200
REQUEST_LIMIT = 0.10


def rows(name: str) -> pa.Table:
    return pa.table({"id": [name], "name": [name]})


def plan(store: Store, txn: WriteTxn, name: str) -> PublishPlan:
    actions = tuple(TableAction(store.tables.stage_append(txn.entries[key].table, rows(name))) for key in TABLES)
    return PublishPlan(txn, WriterKind.MUTATION, actions, lineage=Lineage.new("bench"))


def commit(store: Store, name: str) -> None:
    publish(store, plan(store, begin(store), name))


class ByHand:
    """The floor: two appends and one publish, with nothing around them that makes them safe together."""

    def __init__(self, root: Path) -> None:
        schema = pa.schema([pa.field("id", pa.string(), nullable=False), pa.field("name", pa.string())])
        self.tables = [str(root / name) for name in ("a", "b")]
        for uri in self.tables:
            self._create(schema.empty_table(), uri)
        self.manifest = str(root / "manifest")
        self._create(MANIFEST_SCHEMA.empty_table(), self.manifest)

    @staticmethod
    def _create(rows: pa.Table, uri: str) -> None:
        lance.write_dataset(rows, uri, enable_stable_row_ids=True, data_storage_version="2.2")

    def commit(self, name: str) -> None:
        for uri in self.tables:
            lance.write_dataset(rows(name), uri, mode="append")
        self.publish(name)

    def publish(self, name: str) -> None:
        record = {"object_id": "head", "object_type": "graph_head", "table_key": "", "metadata": name}
        state, dataset = pa.Table.from_pylist([record], schema=MANIFEST_SCHEMA), lance.dataset(self.manifest)
        staged = write_fragments(state, dataset, mode="overwrite", return_transaction=True)
        lance.LanceDataset.commit(dataset, staged, max_retries=0)


class SyncedByHand(ByHand):
    """The floor of a durable commit: the same calls, and a sync before and after the publish."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.medium = Medium(Location.parse(root), Durability.FULL)

    def commit(self, name: str) -> None:
        for uri in self.tables:
            lance.write_dataset(rows(name), uri, mode="append")
        self.medium.sync()
        self.publish(name)
        self.medium.sync()


class StagedByHand(ByHand):
    """The least that Lance can do the same with: handles are kept, and files are staged before a table is committed."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.opened = {uri: lance.dataset(uri) for uri in self.tables}

    def commit(self, name: str) -> None:
        staged = {
            uri: write_fragments(rows(name), opened, mode="append", return_transaction=True)
            for uri, opened in self.opened.items()
        }
        self.opened = {uri: lance.LanceDataset.commit(self.opened[uri], one) for uri, one in staged.items()}
        self.publish(name)


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of a commit: those of the processor, of all threads, and those of the clock."""

    processor: list[float] = field(default_factory=list)
    clock: list[float] = field(default_factory=list)

    def measure(self, task: Callable[[str], None], name: str) -> None:
        processor, clock = time.process_time(), time.perf_counter()
        task(name)
        self.processor.append(time.process_time() - processor)
        self.clock.append(time.perf_counter() - clock)


def time_ratios(root: Path) -> list[str]:
    """All in turn, commit by commit, so that whatever disturbs the machine disturbs all.

    Without syncs a commit is work of the processor, so that is compared: other programs hardly change it.
    """
    floors = {"by hand, off": ByHand, "staged by hand, off": StagedByHand, "by hand, full": SyncedByHand}
    tasks: dict[str, Callable[[str], None]] = {}
    for durability in ("off", "full"):
        store = omnigraph.init(root / f"graph-{durability}", SCHEMA, durability=durability)._store  # noqa: SLF001
        tasks[f"durability {durability}"] = partial(commit, store)
    for name, floor in floors.items():
        (root / name).mkdir()
        tasks[name] = floor(root / name).commit
    for turn in range(WARM):
        for task in tasks.values():
            task(f"w{turn}")
    times = {name: Times() for name in tasks}
    for turn in range(TURNS):
        for name, task in tasks.items():
            times[name].measure(task, f"t{turn}")
    processor = {name: statistics.median(one.processor) for name, one in times.items()}
    clock = {name: statistics.median(one.clock) for name, one in times.items()}
    for name in tasks:
        print(f"one commit to two tables, {name:<20}{processor[name] * 1e3:6.1f} ms of CPU{clock[name] * 1e3:7.1f} ms")
    off = processor["durability off"] / processor["by hand, off"]
    staged = processor["durability off"] / processor["staged by hand, off"]
    full = clock["durability full"] / clock["by hand, full"]
    print(f"ratio to the same calls by hand, off, CPU   {off:6.2f}        (at most {CPU_LIMIT})")
    print(f"ratio to staged calls on kept handles, CPU  {staged:6.2f}")
    print(f"ratio to the same calls by hand, full, time {full:6.2f}        (at most {TIME_LIMIT})")
    print(f"ratio of full to off, time                  {clock['durability full'] / clock['durability off']:6.2f}")
    return [
        *([f"the ratio {off:.2f} exceeds {CPU_LIMIT}"] if off > CPU_LIMIT else []),
        *([f"the ratio {full:.2f} with syncs exceeds {TIME_LIMIT}"] if full > TIME_LIMIT else []),
    ]


def requests_by_depth(root: Path) -> list[float]:
    """Requests of a commit, an open and a snapshot at several depths, each averaged over a cycle of log segments."""
    uri = root / "deep"
    store = omnigraph.init(uri, SCHEMA)._store  # noqa: SLF001
    depth, shown = 0, []
    for target in DEPTHS:
        while depth < target - WINDOW:
            commit(store, f"d{depth}")
            depth += 1
        figures = []
        for _ in range(WINDOW):
            figures.append(_requests(store, uri, f"d{depth}"))
            depth += 1
        shown.append([statistics.mean(column) for column in zip(*figures, strict=True)])
    print(f"requests at depth          {'  '.join(f'{depth:>6}' for depth in DEPTHS)}")
    growth = []
    for name, means in zip(("commit", "open", "snapshot"), zip(*shown, strict=True), strict=True):
        growth.append(max(means) / max(min(means), 1) - 1)  # a warm snapshot makes none
        columns = "  ".join(f"{mean:6.1f}" for mean in means)
        print(f"  {name:<25}{columns}   growth {growth[-1]:.1%} (at most {REQUEST_LIMIT:.0%})")
    return growth


def _requests(store: Store, uri: Path, name: str) -> tuple[int, int, int]:
    with counted() as committing:
        commit(store, name)
    with counted() as opening:
        graph = omnigraph.open(uri)
    with counted() as reading:
        graph.snapshot()
    return committing.total, opening.total, reading.total


def requests_by_width(root: Path) -> tuple[int, int]:
    """Requests of an open, with few types and with many."""
    found = []
    for types in (3, 60):
        uri = root / f"wide{types}"
        omnigraph.init(uri, "".join(f"node T{n} {{ name: String @key }}\n" for n in range(types)))
        with counted() as opening:
            omnigraph.open(uri).snapshot()
        found.append(opening.total)
    print(f"requests to open and snapshot a graph of 3 types {found[0]}, of 60 types {found[1]}")
    return found[0], found[1]


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        assert Location.parse(root).is_local
        slow = time_ratios(root)
        growth = requests_by_depth(root)
        few, many = requests_by_width(root)
    problems = [
        *slow,
        *([f"requests grow by {max(growth):.1%} with the history"] if max(growth) > REQUEST_LIMIT else []),
        *([f"opening 60 types takes {many} requests, 3 types {few}"] if many > few else []),
    ]
    if problems:
        sys.exit("; ".join(problems))


if __name__ == "__main__":
    main()
