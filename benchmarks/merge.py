"""What history costs: the same change in a small table and in one ten times as large."""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

import omnigraph
from omnigraph.graph import Graph

SCHEMA = "node Doc { name: String @key  pages: I32?  face: Vector(384)? }"
DIMENSION = 384
SIZES = (100_000, 1_000_000)
PARTS = 10  # loads that fill a table, so that both histories are equally long
CHANGED = 1000
ROUNDS = 9
LIMIT = 1.25


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


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        graphs = {size: filled(Path(directory), size) for size in SIZES}
        ratios = [diff_ratio(graphs, choose) for choose in (clustered, scattered)]
    if max(ratios) > LIMIT:
        sys.exit(f"a diff of the larger table takes {max(ratios):.2f} times as long")


if __name__ == "__main__":
    main()
