"""What history costs: diffs and merges of one change in a small table and in one ten times as large, and branches."""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa

import omnigraph
from omnigraph.graph import Graph
from omnigraph.storage.observe import counted

SCHEMA = "node Doc { name: String @key  pages: I32?  face: Vector(384)? }"
DIMENSION = 384
SIZES = (100_000, 1_000_000)
PARTS = 10  # loads that fill a table, so that both histories are equally long
CHANGED = 1000
ROUNDS = 9
LIMIT = 1.25
MEMORY_LIMIT = 64  # MiB
NEW_ROWS = 100_000
TURNS, FORWARD_LIMIT = 3, 3.0
TYPES = (3, 60)
REQUEST_LIMIT = 1.2
UNIT_LIMIT = 1.2


def documents(numbers: np.ndarray, pages: int) -> pa.Table:
    """Rows whose vectors cannot be compressed, the same for the same number."""
    values = np.random.default_rng(numbers[0]).random((len(numbers), DIMENSION), dtype=np.float32)
    return pa.table(
        {
            "name": pa.array([f"doc-{number:08d}" for number in numbers.tolist()]),
            "pages": pa.array([pages] * len(numbers), pa.int32()),
            "face": pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), DIMENSION),
        }
    )


def filled(root: Path, size: int) -> Graph:
    graph = omnigraph.init(root / str(size), SCHEMA)
    for rows in np.split(np.arange(size), PARTS):
        graph.load({"Doc": documents(rows, 1)}, mode="append", engine="local")
    return graph


def scattered(size: int, seed: int) -> np.ndarray:
    """Numbers of rows all over the table."""
    return np.sort(np.random.default_rng(seed).choice(size, CHANGED, replace=False))


def clustered(size: int, seed: int) -> np.ndarray:
    """Numbers of rows that were loaded one after the other."""
    return np.arange(CHANGED) + size // 2 + seed * CHANGED


def diff_ratio(graphs: dict[int, Graph], choose: Callable[[int, int], np.ndarray]) -> float:
    """Compare two commits that lie one change apart, in both sizes in turn."""
    states = {}
    for size, graph in graphs.items():
        before = graph.commits()[0].commit_id
        graph.load({"Doc": documents(choose(size, 1), 2)}, mode="merge", engine="local")
        states[size] = before, graph.commits()[0].commit_id
    times: dict[int, list[float]] = {size: [] for size in graphs}
    for _ in range(ROUNDS):
        for size, (before, after) in states.items():
            graph = omnigraph.open(graphs[size].uri, read_only=True)
            start = time.perf_counter()
            changes = list(graph.diff(before, after))
            times[size].append(time.perf_counter() - start)
            assert len(changes) == CHANGED
    medians = [statistics.median(times[size]) for size in SIZES]
    shown = "  ".join(f"{size:,} rows {found * 1e3:6.1f} ms" for size, found in zip(SIZES, medians, strict=True))
    ratio = medians[1] / medians[0]
    print(f"diff, {CHANGED:,} {choose.__name__} rows   {shown}   ratio {ratio:.2f} (at most {LIMIT})")
    return ratio


def changed(graph: Graph, branch: str, rows: np.ndarray, seed: int) -> None:
    """A change of so many rows on a branch: nine of ten are updated, the others new."""
    edge = len(rows) // 10
    fresh = np.arange(edge) + 10_000_000 + seed * edge
    graph.load({"Doc": documents(np.concatenate([rows[edge:], fresh]), 3)}, mode="merge", branch=branch, engine="local")


def peak_growth(task: Callable[[], object]) -> float:
    """How many MiB more memory a task needs at its peak than there was in use before."""
    Path("/proc/self/clear_refs").write_text("5")
    before = memory("VmRSS")
    task()
    return memory("VmHWM") - before


def memory(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{name}:"))


def merge_ratio(graphs: dict[int, Graph], choose: Callable[[int, int], np.ndarray]) -> tuple[float, float]:
    """Merge a change into main, which has changed as well since; returns the ratio of times and the peak of memory."""
    times: dict[int, list[float]] = {size: [] for size in graphs}
    peaks = []
    for turn in range(ROUNDS):
        for size in SIZES:
            branch, graph = f"{choose.__name__}{turn}", omnigraph.open(graphs[size].uri)
            graph.create_branch(branch)
            changed(graph, branch, choose(size, turn + 2), turn)
            graph.load({"Doc": documents(np.arange(10) + turn * 10, 4)}, mode="merge", engine="local")
            graph = omnigraph.open(graphs[size].uri)
            start = time.perf_counter()
            peaks.append(peak_growth(lambda: graph.merge(branch)))  # noqa: B023 - it is called at once
            times[size].append(time.perf_counter() - start)
    medians = [statistics.median(times[size][1:]) for size in SIZES]
    shown = "  ".join(f"{size:,} rows {found * 1e3:6.1f} ms" for size, found in zip(SIZES, medians, strict=True))
    ratio = medians[1] / medians[0]
    print(f"merge, {CHANGED:,} {choose.__name__} rows   {shown}   ratio {ratio:.2f} (at most {LIMIT})")
    print(f"{'':<30}peak memory {max(peaks):.0f} MiB more (at most {MEMORY_LIMIT})")
    return ratio, max(peaks)


def unit_ratio(graph: Graph) -> float:
    """Merge by property against by entity: the same changes of other rows on each side, each previewed in turn."""
    size = graph.snapshot().entries["node:Doc"].row_count
    graph.create_branch("units")
    changed(graph, "units", scattered(size, 77), 77)
    graph.load({"Doc": documents(np.arange(10) + 500, 5)}, mode="merge", engine="local")
    times: dict[str, list[float]] = {"property": [], "entity": []}
    for _ in range(ROUNDS):
        for by, found in times.items():
            opened = omnigraph.open(graph.uri)
            start = time.perf_counter()
            done = opened.merge("units", dry_run=True, by=by, resolve="theirs")
            found.append(time.perf_counter() - start)
            assert sum(one.updated + one.inserted for one in done.changes.values()) >= CHANGED - 10
    one, other = (statistics.median(times[by][1:]) for by in ("property", "entity"))
    ratio = one / other
    shown = f"by property {one * 1e3:.1f} ms  by entity {other * 1e3:.1f} ms"
    print(f"merge, {CHANGED:,} scattered rows   {shown}   ratio {ratio:.2f} (at most {UNIT_LIMIT})")
    return ratio


def forward_ratio(root: Path) -> float:
    """Bring new rows from a branch onto main that has not moved, against appending them with pylance alone."""
    graph = omnigraph.init(root / "forward", SCHEMA)
    graph.load({"Doc": documents(np.arange(1000), 1)}, mode="append", engine="local")
    stored = lance.dataset(f"{graph.uri}/{graph.snapshot().entries['node:Doc'].table.path}")
    hand = lance.write_dataset(stored.to_table(), root / "hand", enable_stable_row_ids=True)
    ours, floor = [], []
    for turn in range(TURNS):
        branch = f"new{turn}"
        graph.create_branch(branch)
        rows = documents(np.arange(NEW_ROWS) + (turn + 1) * NEW_ROWS, 1)
        graph.load({"Doc": rows}, mode="append", branch=branch, engine="local")
        start = time.perf_counter()
        assert graph.merge(branch).outcome == "fast_forward"
        ours.append(time.perf_counter() - start)
        plain = rows.append_column("id", rows["name"]).select(hand.schema.names).cast(hand.schema)
        start = time.perf_counter()
        hand.insert(plain)
        floor.append(time.perf_counter() - start)
    mine, theirs = statistics.median(ours), statistics.median(floor)
    ratio = mine / theirs
    print(f"fast-forward of {NEW_ROWS:,} new rows   {mine * 1e3:.0f} ms   pylance append {theirs * 1e3:.0f} ms", end="")
    print(f"   ratio {ratio:.2f} (at most {FORWARD_LIMIT})")
    return ratio


def request_ratio(root: Path) -> float:
    """Make a branch and read from it for the first time, in a graph of few and of many types."""
    found = []
    for types in TYPES:
        schema = "\n".join(f"node Type{number} {{ name: String @key }}" for number in range(types))
        graph = omnigraph.init(root / f"types{types}", schema)
        graph.mutate('query w() { insert Type0 { name: "one" } }')
        with counted() as counting:
            graph.create_branch("branch")
            graph.query("query q() { match { $a: Type0 } return { $a.name } }", branch="branch")
        found.append(counting.total)
    ratio = found[1] / found[0]
    shown = "  ".join(f"{types} types {count}" for types, count in zip(TYPES, found, strict=True))
    print(f"requests to make a branch and read from it   {shown}   ratio {ratio:.2f} (at most {REQUEST_LIMIT})")
    return ratio


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        requests, forward = request_ratio(root), forward_ratio(root)
        graphs = {size: filled(root, size) for size in SIZES}
        diffs = [diff_ratio(graphs, choose) for choose in (clustered, scattered)]
        units = unit_ratio(graphs[SIZES[0]])
        merges = [merge_ratio(graphs, choose) for choose in (clustered, scattered)]
    slower, memory_peak = max(ratio for ratio, _ in merges), max(peak for _, peak in merges)
    problems = [
        *([f"a diff of the larger table takes {max(diffs):.2f} times as long"] if max(diffs) > LIMIT else []),
        *([f"a merge into the larger table takes {slower:.2f} times as long"] if slower > LIMIT else []),
        *([f"a merge needs {memory_peak:.0f} MiB of memory"] if memory_peak > MEMORY_LIMIT else []),
        *([f"a merge by property takes {units:.2f} times one by entity"] if units > UNIT_LIMIT else []),
        *([f"a fast-forward takes {forward:.2f} times an append"] if forward > FORWARD_LIMIT else []),
        *([f"a branch costs {requests:.2f} times the requests"] if requests > REQUEST_LIMIT else []),
    ]
    if problems:
        sys.exit("; ".join(problems))


if __name__ == "__main__":
    main()
