"""The driver of a load of ten billion edges, for real but for the rows: what its steps take in time, memory and bytes.

10,000 splits are packed into tasks, 20,000 descriptors of fragments come back, 1,024 shares answer, and one commit
publishes them. The data files are links to one small file, so that all else is as it would be. Then some tasks send a
parcel to each of 1,024 shares on Spark. `docs/dev/scale.md` explains what follows from the figures.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import resource
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.parquet as pq

import omnigraph
from benchmarks.load_data import SCHEMA
from benchmarks.processes import cpu_of_tree
from omnigraph.api.options import Engine, LoadMode
from omnigraph.core.executor import Parcel, ParcelRoute, R, Scattered, T
from omnigraph.formats.sources import discover
from omnigraph.ingest.executor import LocalExecutor, LocalParcels
from omnigraph.ingest.load import LoadSpec, load
from omnigraph.ingest.steps import StageTask, stage
from omnigraph.spark.executor import SparkExecutor, pack_tasks
from omnigraph.spark.session import spark_session, stop_session

EDGES = 10_000_000_000
SPLIT_BYTES = 16 * 2**20
SHARES = 1024


class Clock:
    """Prints the CPU seconds, the seconds and the peak of memory of each part of a program."""

    def __init__(self) -> None:
        self._since = self._now()

    def lap(self, name: str, more: str = "") -> None:
        cpu, wall = self._now()
        held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(f"{name:<52} {cpu - self._since[0]:7.2f} CPU s {wall - self._since[1]:7.2f} s {held:5.2f} GiB  {more}")
        self._since = self._now()

    def _now(self) -> tuple[float, float]:
        return cpu_of_tree(os.getpid()), time.perf_counter()


class CannedTasks(LocalExecutor):
    """Answers for the tasks of a large load with the result of one small one, each with files of its own."""

    def __init__(self, clock: Clock, fragments: int) -> None:
        super().__init__()
        self._clock = clock
        self._fragments = fragments  # of each task

    def scatter(
        self, phase: str, step: Callable[[T], tuple[R, Sequence[Parcel]]], tasks: Sequence[T]
    ) -> LocalParcels[R]:
        first = tasks[0] if tasks else None
        if step is not stage or not isinstance(first, StageTask):
            return super().scatter(phase, step, tasks)
        self._clock.lap("plan the splits")
        packed = pack_tasks(tasks)
        size = sum(map(len, packed.tasks)) + len(pickle.dumps(packed.common))
        self._clock.lap("pack the tasks", f"{size / len(tasks):,.0f} bytes a task")
        sent = LocalParcels[Any]()
        received = _results(first, len(tasks), self._fragments)
        self._clock.lap("(make the results up)")
        for data in received:
            sent.add(pickle.loads(data), [])  # noqa: S301 - made above
        self._clock.lap("unpack their results", f"{sum(map(len, received)) / len(tasks):,.0f} bytes a task")
        return sent

    def gather(
        self,
        phase: str,
        step: Callable[[T, list[Parcel]], R],
        tasks: Sequence[T],
        sent: Sequence[Scattered[Any]],
        routes: Mapping[int, ParcelRoute],
    ) -> list[R]:
        self._clock.lap("plan the checks")
        found = super().gather(phase, step, tasks, sent, routes)
        if tasks:
            self._clock.lap("check shares that no key was sent to", f"{len(tasks)} tasks")
        return found


def _results(task: StageTask, count: int, fragments: int) -> list[bytes]:
    """Return the pickled results of so many tasks, whose fragments are copies of those of a task of one row."""
    result, _ = stage(task)
    (key,) = result.tables
    table = result.tables[key]
    (text,) = table.written
    fragment = json.loads(text)
    directory = Path(task.exchange.location.uri, task.tables[key].path, "data")
    original = directory / fragment["files"][0]["path"]
    each = EDGES // count // fragments
    found = []
    for split in range(count):
        written = []
        for part in range(fragments):
            name = f"{split:08x}{part:02x}{original.name[10:]}"
            (directory / name).hardlink_to(original)
            files = [{**fragment["files"][0], "path": name}]
            written.append(json.dumps({**fragment, "files": files, "physical_rows": each}))
        rows = each * fragments
        copied = replace(table, written=tuple(written), rows=rows, first_record=0)
        keys = dict.fromkeys(result.keys, rows)
        found.append(pickle.dumps(replace(result, tables={key: copied}, lines=rows, keys=keys)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--splits", type=int, default=10_000)
    parser.add_argument("--fragments", type=int, default=2, help="of each split")
    parser.add_argument("--senders", type=int, default=64)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        simulate(Path(directory), asked.splits, asked.fragments)
    if asked.senders:
        exchange(asked.senders)


def simulate(root: Path, count: int, fragments: int) -> None:
    graph = omnigraph.init(root / "graph", SCHEMA)
    graph.load({"Person": pa.table({"name": ["a"]})}, mode="append", engine="local")
    source = root / "Knows.parquet"
    pq.write_table(pa.table({"from": ["a"], "to": ["a"]}), source)
    clock = Clock()
    (split,) = discover([source], graph.catalog)
    splits = [replace(split, size=SPLIT_BYTES)] * count
    request = LoadSpec(splits, LoadMode.APPEND, engine=Engine.SPARK, spark=lambda _: CannedTasks(clock, fragments))
    done = load(graph._store, request)  # noqa: SLF001 - the executor of a load cannot be chosen by users
    clock.lap("commit", f"{done.edges['Knows']:,} edges")
    largest = max((root / "graph").glob("**/*.manifest"), key=lambda path: path.stat().st_size)
    size = largest.stat().st_size
    opened = lance.dataset(largest.parent.parent)
    each = f"{size / 2**20:.1f} MiB, {size / len(opened.get_fragments()):.0f} bytes a fragment"
    clock.lap("open the table by itself", f"manifest of {each}")
    with omnigraph.open(root / "graph") as again:
        clock.lap("open the graph")
        for name in ("commit one edge more", "and another one"):
            again.mutate('query q() { insert Knows { from: "a" to: "a" } }')
            clock.lap(name)


def exchange(senders: int) -> None:
    """Send parcels of few and of many bytes through the shuffle: what each one costs, and what its bytes do."""
    executor = SparkExecutor(spark_session())
    receivers, routes = [None] * SHARES, {0: ParcelRoute(0, spread=True)}
    for size in (24, 24, 24 * 1_000):  # the first is to warm up
        clock = Clock()
        sent = executor.scatter("send", send, [size] * senders)
        clock.lap(f"send {senders * SHARES:,} parcels of {size:,} bytes")
        assert sum(executor.gather("receive", receive, receivers, [sent], routes)) == senders * SHARES
        clock.lap("receive them")
        sent.close()
    stop_session()


def send(size: int) -> tuple[None, list[Parcel]]:
    return None, [Parcel(0, share, bytes(size)) for share in range(SHARES)]


def receive(_: None, parcels: list[Parcel]) -> int:
    return len(parcels)


if __name__ == "__main__":
    main()
