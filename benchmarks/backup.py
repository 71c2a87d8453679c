"""What a backup costs: the first against a plain copy of the directory, and a second one after a small change.

python benchmarks/backup.py --megabytes 1000
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

import omnigraph
from omnigraph.commit.plan import PublishPlan, TableAction, WriterKind
from omnigraph.commit.publish import begin, publish
from omnigraph.commit.store import Store
from omnigraph.core.location import Location
from omnigraph.manifest.publisher import Lineage

SCHEMA = "node Item { name: String @key vector: Vector(256) }"
TABLE = "node:Item"
ROWS = 32_768
ROW_BYTES = 256 * 4
COPY_LIMIT, INCREMENT_LIMIT = 1.3, 0.10
CHANGED = 0.01


def add(store: Store, rows: int, name: str) -> None:
    """Commit rows of noise, which nothing can compress."""
    txn = begin(store)
    noise = np.random.default_rng(len(name)).random((rows, 256), dtype=np.float32)
    ids = pa.array([f"{name}-{at}" for at in range(rows)])
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(noise.ravel()), 256)
    staged = store.tables.stage_append(txn.entries[TABLE].table, pa.table({"id": ids, "name": ids, "vector": vectors}))
    publish(store, PublishPlan(txn, WriterKind.LOAD, (TableAction(staged),), lineage=Lineage.new("bench")))


def timed(action: Callable[[], object]) -> float:
    os.sync()
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def copy(source: Path, target: Path) -> None:
    """The floor: a copy that is on the medium, as a backup is."""
    shutil.copytree(source, target)
    os.sync()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--folder", help="where to work; a temporary directory by default")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        root = Path(folder)
        graph = omnigraph.init(root / "graph", SCHEMA)
        store = Store.at(Location.parse(root / "graph"))
        total = given.megabytes * 2**20 // ROW_BYTES
        for at in range(0, total, ROWS):
            add(store, min(ROWS, total - at), f"first{at}")
        copies, firsts = [], []
        for run in range(given.runs):  # in turns, so that both meet the same machine
            copies.append(timed(lambda run=run: copy(root / "graph", root / f"copy{run}")))  # type: ignore[misc]
            firsts.append(timed(lambda run=run: graph.backup(root / f"backup{run}")))  # type: ignore[misc]
        add(store, int(total * CHANGED), "more")
        second = timed(lambda: graph.backup(root / "backup0"))
    ratio, increment = min(firsts) / min(copies), second / min(firsts)
    print(f"{given.megabytes} MB: copy {min(copies):.2f} s, backup {min(firsts):.2f} s: {ratio:.2f} times")
    print(f"second backup after {CHANGED:.0%}: {second:.2f} s: {increment:.1%} of the first")
    return int(ratio > COPY_LIMIT or increment > INCREMENT_LIMIT)


if __name__ == "__main__":
    sys.exit(main())
