"""The CPU time and the memory of a process and all below it, from the process table of Linux."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

_TICK = os.sysconf("SC_CLK_TCK")


class Spent(NamedTuple):
    """Seconds: of CPU in all processes, and by the clock."""

    cpu: float
    wall: float


def spent(task: Callable[[], Any]) -> Spent:
    """Run a task, and return what it took in this process and all below it."""
    cpu, wall = cpu_of_tree(os.getpid()), time.perf_counter()
    task()
    return Spent(cpu_of_tree(os.getpid()) - cpu, time.perf_counter() - wall)


def cpu_of_tree(root: int) -> float:
    """Return the CPU seconds of a process, all below it, and those of them that have ended."""
    return sum(map(_cpu, tree(root)))


class Memory:
    """Looks now and then at what this process and all below it hold; what they share is counted once."""

    def __init__(self, interval: float = 0.2) -> None:
        self.peak = 0
        self.driver = 0  # this process alone
        self._interval = interval
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(self._interval):
            driver, *others = map(_held, tree(os.getpid()))
            self.driver = max(self.driver, driver)
            self.peak = max(self.peak, driver + sum(others))


def tree(root: int) -> list[int]:
    """Return a process and all below it."""
    below: dict[int, list[int]] = {}
    for place in Path("/proc").glob("[0-9]*"):
        if stat := _stat(int(place.name)):
            below.setdefault(int(stat[1]), []).append(int(place.name))
    found = [root]
    for process in found:
        found += below.get(process, [])
    return found


def _stat(process: int) -> list[str]:
    """Return the fields behind the name of a process, which may have spaces; none if it has just ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _cpu(process: int) -> float:
    # User and system time, of the process and of those below it that it has waited for.
    return sum(map(int, _stat(process)[11:15])) / _TICK


def _held(process: int) -> int:
    try:
        lines = Path("/proc", str(process), "smaps_rollup").read_text().splitlines()
    except OSError:  # it has just ended
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
