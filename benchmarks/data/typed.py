"""Three types of nodes and the edges between them, most of which a few nodes have."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

PAIRS = ("ab", "bc", "ac")


def write(folder: Path, nodes: int, edges: int) -> None:
    """Write `ab.parquet`, `bc.parquet` and `ac.parquet`: pairs of numbers, none of them twice."""
    random = np.random.default_rng(9)
    folder.mkdir(parents=True)
    for name in PAIRS:
        sides = ((nodes * random.random(edges) ** 3).astype(np.int64) for _ in range(2))
        codes = np.unique(nodes * next(sides) + next(sides))
        pq.write_table(pa.table({"source": codes // nodes, "target": codes % nodes}), folder / f"{name}.parquet")
