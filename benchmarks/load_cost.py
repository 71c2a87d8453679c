"""Whether the cost of a load follows its input: many records, many files, a large graph, one hot key, a DataFrame."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import omnigraph
from benchmarks.load_data import SCHEMA, jsonl_at, parquet_at
from benchmarks.processes import spent
from omnigraph.api.options import Engine, LoadMode
from omnigraph.core.executor import Parcel, ParcelRoute, R, Scattered, T
from omnigraph.formats.sources import discover
from omnigraph.ingest.executor import LocalExecutor, LocalParcels
from omnigraph.ingest.load import LoadSpec, load
from omnigraph.spark.session import spark_session, stop_session

Past = list[str]
"""What is past its limit."""
Case = Callable[[Path, float], Past]
"""Measures in a directory of its own, with so many times the usual rows."""

BEFORE = "9b20ec0"  # the last commit whose tasks exchanged keys by files of their own
RECORDS_LIMIT, FRAME_LIMIT, FILES_LIMIT, GRAPH_LIMIT, SHARE_LIMIT = 1.2, 1.3, 2.0, 1.2, 2.0
GIB_LIMIT, DRIVER_LIMIT = 6.0, 1.0
ROOT = Path(__file__).parent.parent


def sized(rows: int, scale: float) -> int:
    return max(1, round(rows * scale))


def child(source: Path, *, path: Sequence[Path] = (), **job: Any) -> dict[str, float]:
    """Load in a process of its own; `path` comes before that of this tree."""
    command = [sys.executable, "-m", "benchmarks.load_child", json.dumps({"source": str(source), **job})]
    search = os.pathsep.join(map(str, [*path, ROOT / "src", ROOT]))
    environment = os.environ | {"PYTHONPATH": search}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=ROOT, env=environment)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def records(root: Path, scale: float) -> Past:
    """1M nodes and 10M edges against the way of the tree before keys went through the shuffle of Spark."""
    before = _tree(root / "before", BEFORE)
    if before is None:
        print(f"records: commit {BEFORE} is not here to compare with")
        return []
    stop_session()
    past: Past = []
    for make, name in ((parquet_at, "Parquet"), (jsonl_at, "JSONL")):
        source = make(root, sized(1_000_000, scale), sized(10_000_000, scale))
        was, now = (child(source, path=path, cores=2, turns=2) for path in ([before / "src"], []))
        ratio = now["cpu"] / was["cpu"]
        print(f"{_records(scale)} of {name}: {now['cpu']:.1f} CPU s, before {was['cpu']:.1f}, ratio {ratio:.2f}")
        past += [f"{name} takes {ratio:.2f} times the CPU of before"] if ratio > RECORDS_LIMIT else []
    return past


def _records(scale: float) -> str:
    return f"{sized(11_000_000, scale):,} records"


def _tree(place: Path, commit: str) -> Path | None:
    """Unpack the files of a commit."""
    git = shutil.which("git")
    found = git and subprocess.run([git, "archive", commit, "src"], cwd=ROOT, capture_output=True, check=False)
    if not found or found.returncode:
        return None
    with tarfile.open(fileobj=BytesIO(found.stdout)) as archive:
        archive.extractall(place, filter="data")
    return place


def frame(root: Path, scale: float) -> Past:
    """The rows of a DataFrame against the Parquet files that it reads, and what Spark takes to hand them to Python.

    The limit is on the sum of both: no load of a DataFrame can do with less than that.
    """
    place = parquet_at(root, sized(1_000_000, scale), sized(5_000_000, scale))
    session = spark_session()
    turns = iter(range(100))

    def load(data: Any) -> Callable[[], Any]:
        return lambda: omnigraph.init(root / str(next(turns)), SCHEMA).load(data, mode="append", engine="spark")

    frames = {name: session.read.parquet(str(place / f"{name}.parquet")) for name in ("Person", "Knows")}

    def hand_over() -> None:
        for one in frames.values():
            one.mapInArrow(_rows_of_batches(), "rows bigint").groupBy().sum("rows").collect()

    files, rows, handing = (min(spent(task).cpu for _ in range(3)) for task in (load(place), load(frames), hand_over))
    ratio = rows / (files + handing)
    print(
        f"{sized(6_000_000, scale):,} rows: Parquet {files:.1f} CPU s, "
        f"a DataFrame {rows:.1f}, ratio {rows / files:.2f}, "
        f"Spark alone hands them over in {handing:.1f}, ratio to both {ratio:.2f}"
    )
    return [f"a DataFrame takes {ratio:.2f} times its files and what Spark takes"] if ratio > FRAME_LIMIT else []


def _rows_of_batches() -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def counted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_pydict({"rows": [batch.num_rows]})

    return counted


def many_files(root: Path, _: float) -> Past:
    """1,000 files of 10 records against the same records in one file, in this process and on Spark."""
    lines = [f'{{"type":"Person","data":{{"name":"p{at}","age":{at % 90}}}}}\n' for at in range(10_000)]
    for name, size in (("one", 10_000), ("many", 10)):
        (root / name).mkdir()
        for start in range(0, len(lines), size):
            (root / name / f"{start:05}.jsonl").write_text("".join(lines[start : start + size]))
    turns = iter(range(100))
    past: Past = []

    def load(name: str, engine: str) -> None:
        omnigraph.init(root / f"graph{next(turns)}", SCHEMA).load(root / name, mode="append", engine=engine)

    for engine in ("local", "spark"):
        load("one", engine)
        one, many = (_cpu_of_some(partial(load, name, engine)) for name in ("one", "many"))
        ratio = many / one
        print(f"10,000 records, {engine}: one file {one:.2f} CPU s, 1,000 files {many:.2f}, ratio {ratio:.2f}")
        past += [f"1,000 files take {ratio:.2f} times one, {engine}"] if ratio > FILES_LIMIT else []
    return past


def large_graph(root: Path, scale: float) -> Past:
    """9,000 edges into a graph of 1M nodes against a graph of 200,000."""
    past: Past = []
    sizes = sized(200_000, scale), sized(1_000_000, scale)
    graphs = [_people(root / f"of-{people}", people) for people in sizes]
    for engine in ("local", "spark"):
        few, many = (_cpu_of_edges(root, graph, people, engine) for graph, people in zip(graphs, sizes, strict=True))
        ratio = many / few
        shown = f"{few:.2f} CPU s into {sizes[0]:,} nodes, {many:.2f} into {sizes[1]:,}, ratio {ratio:.2f}"
        print(f"9,000 edges, {engine}: {shown}")
        past += [f"9,000 edges take {ratio:.2f} times as long in a large graph, {engine}"] * (ratio > GRAPH_LIMIT)
    return past


def _people(place: Path, people: int) -> omnigraph.Graph:
    graph = omnigraph.init(place, SCHEMA)
    graph.load(parquet_at(place.parent, people, 1) / "Person.parquet", mode="append", engine="local")
    graph.ensure_indices()
    return graph


def _cpu_of_edges(root: Path, graph: omnigraph.Graph, people: int, engine: str) -> float:
    edges = parquet_at(root, people, 9_000) / "Knows.parquet"
    assert pq.read_metadata(edges).num_rows == 9_000
    graph.load(edges, mode="append", engine=engine)
    return _cpu_of_some(lambda: graph.load(edges, mode="append", engine=engine))


def _cpu_of_some(task: Callable[[], Any]) -> float:
    """Run a short task ten times: Linux counts CPU time in hundredths of a second."""
    return spent(lambda: [task() for _ in range(10)]).cpu / 10


def hot(root: Path, scale: float) -> Past:
    """10M edges to one node: the bytes of keys in the largest share against the mean."""
    source = parquet_at(root, sized(1_000_000, scale), sized(10_000_000, scale), hot=True)
    place = root / "graph"
    omnigraph.init(place, SCHEMA)
    weighing = _Weighing()
    with omnigraph.open(place) as graph:
        splits = discover([source], graph.catalog)
        store = graph._store  # noqa: SLF001 - the executor of a load cannot be chosen by users
        took = spent(
            lambda: load(store, LoadSpec(splits, LoadMode.APPEND, engine=Engine.SPARK, spark=lambda _: weighing))
        )
    weights = list(weighing.weights.values())
    largest, mean = max(weights), sum(weights) / len(weights)
    print(
        f"{sized(10_000_000, scale):,} edges to one node: {sum(weights) / 2**20:.0f} MiB of keys in {len(weights)} "
        f"shares, the largest {largest / mean:.2f} times the mean; {took.cpu:.1f} CPU s"
    )
    return [f"a share has {largest / mean:.2f} times the mean"] if largest > SHARE_LIMIT * mean else []


class _Weighing(LocalExecutor):
    """Notes how many bytes each task of a step receives."""

    def __init__(self) -> None:
        super().__init__()
        self.weights: Counter[int] = Counter()

    def gather(
        self,
        phase: str,
        step: Callable[[T, list[Parcel]], R],
        tasks: Sequence[T],
        sent: Sequence[Scattered[Any]],
        routes: Mapping[int, ParcelRoute],
    ) -> list[R]:
        for some in sent:
            assert isinstance(some, LocalParcels)
            for parcel, fetch in some.addressed():
                if parcel.section in routes:
                    for receiver in routes[parcel.section].receivers(parcel.share, parcel.of):
                        self.weights[receiver] += len(fetch().data)
        return super().gather(phase, step, tasks, sent, routes)


def huge(root: Path, scale: float) -> Past:
    """100M edges and 10M nodes from Parquet in one commit on two cores, and the memory that it takes."""
    stop_session()
    nodes, edges = sized(10_000_000, scale), sized(100_000_000, scale)
    done = child(parquet_at(root, nodes, edges), cores=2, turns=1, watch=True)
    rate = (nodes + edges) / done["cpu"] / 1e6
    print(
        f"{edges:,} edges and {nodes:,} nodes: {done['cpu']:.0f} CPU s, {done['wall']:.0f} s, {rate:.2f} M records a "
        f"CPU s; peak memory of all processes {done['gib']:.2f} GiB, of the driver {done['driver']:.2f} GiB"
    )
    past = [f"a load takes {done['gib']:.2f} GiB"] if done["gib"] > GIB_LIMIT else []
    return past + ([f"the driver takes {done['driver']:.2f} GiB"] if done["driver"] > DRIVER_LIMIT else [])


CASES: dict[str, Case] = {
    "records": records,
    "frame": frame,
    "files": many_files,
    "graph": large_graph,
    "hot": hot,
    "huge": huge,
}
