"""Run the scenarios of real faults, and report what ran and what was skipped: `make chaos`."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.chaos import clocks, network, power, processes, systemcalls
from tests.chaos.skipped import SkippedError

Scenario = Callable[[Path], str]


def main() -> int:
    given = _arguments()
    scenarios: dict[str, Scenario] = {
        "power-cuts": partial(power.cuts, number=given.cuts),
        "system-calls": partial(systemcalls.failing, number=given.faults),
        "clocks": partial(clocks.jumping, number=given.jumps),
        "network": partial(network.failing, number=given.requests),
        "interrupts": partial(processes.interrupts, number=given.interrupts),
        "kills": partial(processes.kills, number=given.kills),
        "writers": partial(processes.many_writers, writers=given.writers, commits=given.commits),
    }
    chosen = given.only.split(",") if given.only else [*scenarios]
    failed = [name for name in chosen if not _run(name, scenarios[name])]
    return 1 if failed else 0


def _run(name: str, scenario: Scenario) -> bool:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="omnigraph-chaos-") as directory:
        try:
            result = f"ran: {scenario(Path(directory))}"
            is_good = True
        except SkippedError as why:
            result, is_good = f"skipped: {why}", True
        except AssertionError as problem:
            result, is_good = f"FAILED: {problem}", False
    print(f"{name:<13} {result} ({time.monotonic() - began:.0f} s)", flush=True)
    return is_good


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make chaos")
    parser.add_argument("--only", default="", help="scenarios to run, separated by commas")
    parser.add_argument("--cuts", type=int, default=5, help="power cuts")
    parser.add_argument("--faults", type=int, default=300, help="commits under failing system calls")
    parser.add_argument("--jumps", type=int, default=40, help="jumps of the clock")
    parser.add_argument("--requests", type=int, default=60, help="commits over a bad network")
    parser.add_argument("--interrupts", type=int, default=200)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--writers", type=int, default=16)
    parser.add_argument("--commits", type=int, default=200, help="of each writer")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
