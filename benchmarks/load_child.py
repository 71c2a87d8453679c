"""One load in a process of its own, on so many cores: how long it takes when all is warm, and how much memory."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
import time
from pathlib import Path

import omnigraph
from benchmarks.load_data import SCHEMA
from omnigraph.spark.session import spark_session, stop_session

_INTERVAL = 0.2


def main() -> None:
    source, cores = Path(sys.argv[1]), int(sys.argv[2])
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    spark_session(f"local[{cores},4]")
    with tempfile.TemporaryDirectory() as directory:
        best, watch = float("inf"), _Memory()
        for turn in range(3):
            graph = omnigraph.init(f"{directory}/{turn}", SCHEMA)
            begun = time.perf_counter()
            graph.load(source, mode="append", engine="spark")
            best = min(best, time.perf_counter() - begun)
        peak = watch.stop()
    stop_session()
    print(json.dumps({"seconds": best, "gib": peak / 2**30}))


class _Memory:
    """Looks now and then at what this process and all below it hold; what they share is counted once."""

    def __init__(self) -> None:
        self._peak = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> int:
        self._over.set()
        self._thread.join()
        return self._peak

    def _watch(self) -> None:
        while not self._over.wait(_INTERVAL):
            self._peak = max(self._peak, sum(map(_held, _tree(os.getpid()))))


def _tree(root: int) -> list[int]:
    below: dict[int, list[int]] = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((place / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has just ended
            continue
        below.setdefault(parent, []).append(int(place.name))
    found = [root]
    for process in found:
        found += below.get(process, [])
    return found


def _held(process: int) -> int:
    try:
        lines = Path("/proc", str(process), "smaps_rollup").read_text().splitlines()
    except OSError:  # it has just ended
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


if __name__ == "__main__":
    main()
