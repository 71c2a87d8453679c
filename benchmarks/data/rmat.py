"""A graph with a power law, as R-MAT makes it: parallel edges, loops and a few nodes that know very many."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

Numbers = np.ndarray[Any, np.dtype[np.int64]]
_PARTS = (0.57, 0.19, 0.19, 0.05)  # how likely an edge falls into each quarter of the matrix


def write(folder: Path, scale: int, edges: int) -> None:
    """Write `nodes.parquet` with 2^scale nodes and `links.parquet` with so many edges between them."""
    random = np.random.default_rng(7)
    sources = np.zeros(edges, np.int64)
    targets = np.zeros(edges, np.int64)
    for bit in range(scale):
        quarter = np.searchsorted(np.cumsum(_PARTS), random.random(edges), side="right").clip(max=3)
        sources |= (quarter >> 1) << bit
        targets |= (quarter & 1) << bit
    write_tables(folder, pa.array([f"n{number}" for number in range(2**scale)]), sources, targets)


def write_tables(folder: Path, names: pa.Array, sources: Numbers, targets: Numbers) -> None:
    """Write nodes and links in the form that every contestant loads: by name and by number, with a property each."""
    random = np.random.default_rng(8)
    folder.mkdir(parents=True)
    nodes = {"name": names, "number": np.arange(len(names)), "score": random.permutation(len(names))}
    pq.write_table(pa.table(nodes), folder / "nodes.parquet")
    ends = {"from": names.take(pa.array(sources)), "to": names.take(pa.array(targets))}
    links = {**ends, "source": sources, "target": targets, "weight": random.integers(0, 1_000, len(sources))}
    pq.write_table(pa.table(links), folder / "links.parquet")
