"""Run histories: `python -m tests.simulation --seeds 100`, one of them again: `--seed 7`, or a case file: `--case`."""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.simulation.generator import PROFILES, Step, generate, read, save
from tests.simulation.runner import Runner
from tests.support import s3

SHRINKS = 60  # attempts


def simulate(steps: Sequence[Step], profile: str) -> Counter[str]:
    """Run a history in a place of its own; return what was counted."""
    space = Path(tempfile.mkdtemp(prefix="simulation-"))
    try:
        uri = f"s3://{s3.S3Server.of_environment().create_bucket()}/graph" if profile == "s3" else str(space / "graph")
        world = Runner(uri, space)
        world.run(steps)
        return world.counts
    finally:
        shutil.rmtree(space, ignore_errors=True)


def failure(steps: Sequence[Step], profile: str) -> str | None:
    """Return how a history fails, or None."""
    try:
        simulate(steps, profile)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is to be shown and shortened
        return f"{type(error).__name__}: {error}"
    return None


def shortened(steps: Sequence[Step], profile: str) -> list[Step]:
    """Drop steps, half of them first, as long as the same kind of failure is left."""
    left, size, attempts = list(steps), len(steps) // 2, 0
    kind = _kind(failure(left, profile))
    while size and kind and attempts < SHRINKS:
        at = 0
        while at < len(left) and attempts < SHRINKS:
            fewer = left[:at] + left[at + size :]
            attempts += 1
            if _kind(failure(fewer, profile)) == kind:
                left = fewer
            else:
                at += size
        size //= 2
    return left


def _kind(failed: str | None) -> str | None:
    """The error and the oracle."""
    return ":".join(failed.split(":")[:2]) if failed else None


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="the history of one seed")
    parser.add_argument("--seeds", type=int, default=10, help="how many histories, without --seed")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first of them")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--profile", choices=sorted(PROFILES), default="mixed")
    parser.add_argument("--case", type=Path, help="a history from a file")
    parser.add_argument("--save", type=Path, help="shorten a history that fails, and keep it in a file")
    given = parser.parse_args(words)
    with ExitStack() as stack:
        if given.profile == "s3":
            os.environ.update(stack.enter_context(s3.running()).environment)
        if given.case:
            return _report(read(given.case), given, f"--case {given.case}")[0]
        seeds = [given.seed] if given.seed is not None else range(given.first, given.first + given.seeds)
        failed, total = 0, Counter[str]()
        for seed in seeds:
            failing, counts = _report(
                generate(seed, given.steps, given.profile), given, f"--seed {seed} --steps {given.steps}"
            )
            failed += failing
            total += counts
        print(f"{len(seeds)} histories, {failed} failed: {dict(sorted(total.items()))}", flush=True)  # noqa: T201
        return min(failed, 1)


def _report(steps: Sequence[Step], given: argparse.Namespace, which: str) -> tuple[int, Counter[str]]:
    """Run a history; if it fails, say how, and in one line how to see it again."""
    try:
        return 0, simulate(steps, given.profile)
    except Exception as error:  # noqa: BLE001 - the next history may show something else
        print(f"{type(error).__name__}: {error}")  # noqa: T201 - what the program is for
        print(f"again: python -m tests.simulation {which} --profile {given.profile}", flush=True)  # noqa: T201
        if given.save:
            save(given.save, shortened(steps, given.profile), str(error))
        return 1, Counter(failed=1)


if __name__ == "__main__":
    logging.disable(logging.WARNING)  # of recoveries, of which there are many
    sys.exit(main())
