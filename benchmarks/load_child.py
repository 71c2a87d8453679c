"""Loads in a process of its own, of this tree or another one: their CPU and wall seconds, and the peak of memory.

The argument is a JSON object: `source`, `cores`, `turns`, `watch` (whether to look at memory), `keep` (a directory that
the graph stays in). Only what every version has is used here, so that an older one can be measured beside this one.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import omnigraph
from benchmarks.load_data import SCHEMA
from benchmarks.processes import Memory, spent
from omnigraph.spark.session import stop_session


def main() -> None:
    job: dict[str, Any] = json.loads(sys.argv[1])
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: job["cores"]])
    os.environ["OMNIGRAPH_SPARK_MASTER"] = f"local[{job['cores']},4]"
    memory = Memory(1.0) if job.get("watch") else None
    with tempfile.TemporaryDirectory() as directory:
        place = Path(job.get("keep") or directory)
        found = [spent(partial(_load, place / str(turn), job["source"])) for turn in range(job["turns"])]
    if memory:
        memory.stop()
    stop_session()
    best = {"cpu": min(one.cpu for one in found), "wall": min(one.wall for one in found)}
    held = {"gib": memory.peak / 2**30, "driver": memory.driver / 2**30} if memory else {}
    print(json.dumps(best | held))


def _load(place: Path, source: str) -> None:
    omnigraph.init(place, SCHEMA).load(source, mode="append", engine="spark")


if __name__ == "__main__":
    main()
