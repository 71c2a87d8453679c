"""Run the tests against a sample of mutants, and report which ones they do not notice. `make mutants` runs it.

First run the tests of the module that was changed, then all of its package, until one fails or the budget is spent.
Survivors are compared with those that `judged.toml` explains.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.mutating import TARGETS, Mutant, changed, sample

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "omnigraph"
WORK = ROOT / ".mutants"
COPY = WORK / "src" / "omnigraph"
HERE = Path(__file__).parent
FLOOR = 85  # percent of the mutants that are not judged to be harmless

_ALL = "not spark and not docs"
_QUICK = f"{_ALL} and not s3 and not process and not slow"

Key = tuple[
    str, str, str
]  # the file, the line before and after: what a judgement holds for, wherever the line moves to


@dataclass(frozen=True, slots=True)
class Outcome:
    mutant: Mutant
    diff: Sequence[str]
    state: str  # killed, timeout or survived
    killer: str = ""
    needs: Sequence[str] = ()  # the markers of the killer

    @property
    def key(self) -> Key:
        before, after = (_words(*(line[1:] for line in self.diff[2:] if line[0] == sign)) for sign in "-+")
        return self.mutant.file, before, after

    @property
    def survived(self) -> bool:
        return self.state == "survived"


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--mutants", type=int, default=100, help="how many, spread evenly over the targets")
    options.add_argument("--seed", type=int, default=1, help="which ones")
    options.add_argument("--seconds", type=int, default=60, help="of the processor, for the tests against one mutant")
    options.add_argument("--only", default="", help="a part of the name of a file: mutants of such files only")
    options.add_argument(
        "--quick", action="store_true", help="run the nearest tests only, and none that `make quick` skips"
    )
    given = options.parse_args()
    shutil.rmtree(COPY.parent, ignore_errors=True)
    shutil.copytree(SOURCE, COPY)
    runner = Runner(given.seconds, quick=given.quick)
    outcomes = []
    for mutant in sample(COPY, given.mutants, given.seed, given.only):
        outcomes.append(outcome := _try(mutant, runner))
        _say(f"{outcome.state:9} {mutant.file}:{mutant.line} {mutant.operator} {outcome.killer}")
    return _report(outcomes)


class Runner:
    """Runs tests in forks of one warm process, in which the copy of the package comes before the package itself."""

    def __init__(self, seconds: int, *, quick: bool) -> None:
        self.quick = quick
        self._passing: dict[str, bool] = {}
        self._killer, self._log = WORK / "killer.json", WORK / "log.txt"
        settings = {
            "PYTHONPATH": str(COPY.parent),
            "PYTHONDONTWRITEBYTECODE": "1",  # two mutants of one size in one second would share theirs
            "MUTANTS_SECONDS": str(seconds),
            "MUTANTS_KILLER": str(self._killer),
            "MUTANTS_LOG": str(self._log),
        }
        command = [str(ROOT / ".venv/bin/python"), "-W", "ignore:lance is not fork-safe", "-m", "tests.mutants.warm"]
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=os.environ | settings, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def passes(self, test: str) -> bool:
        """Return whether a test passes on the code as it is: only then has it noticed the change."""
        if test not in self._passing:
            self._passing[test] = self.run([test])[0] == "survived"
        return self._passing[test]

    def run(self, tests: Sequence[str]) -> tuple[str, str, list[str]]:
        """Run tests until the first failure; return what became of the mutant, which test failed, and its markers."""
        assert self._process.stdin
        assert self._process.stdout
        self._killer.unlink(missing_ok=True)
        self._process.stdin.write(json.dumps(["-m", _QUICK if self.quick else _ALL, *tests]) + "\n")
        self._process.stdin.flush()
        ended = int(self._process.stdout.readline())
        if ended in {0, 5}:  # all passed, or there are none
            return "survived", "", []
        if ended in {-signal.SIGXCPU, -signal.SIGKILL, -signal.SIGALRM}:
            return "timeout", "", []
        name, needs = json.loads(self._killer.read_text()) if self._killer.exists() else ("", [])  # or at import
        assert "file or directory not found" not in self._log.read_text(), "`tests.toml` names tests that exist"
        return "killed", name, needs


def _try(mutant: Mutant, runner: Runner) -> Outcome:
    file, before = COPY / mutant.file, (SOURCE / mutant.file).read_text()
    after = changed(mutant, before)
    file.write_text(after)
    lines = difflib.unified_diff(
        before.splitlines(), after.splitlines(), mutant.file, mutant.operator, n=1, lineterm=""
    )
    state, killer, needs = runner.run(_nearest(mutant))
    if state == "survived" and not runner.quick:
        state, killer, needs = runner.run([f"tests/{mutant.file.partition('/')[0]}"])
    shutil.copy2(SOURCE / mutant.file, file)  # with its time, so that its bytecode is valid again
    if killer and not runner.passes(killer):
        state = "survived"
        _say(f"{killer} fails without a mutant too")
    return Outcome(mutant, list(lines), state, killer, needs)


def _nearest(mutant: Mutant) -> list[str]:
    near = tomllib.loads((HERE / "tests.toml").read_text())[mutant.file]
    return [f"tests/{name}.py" for name in near]


def _report(outcomes: Sequence[Outcome]) -> int:
    judged = tomllib.loads((HERE / "judged.toml").read_text())["mutant"]
    reasons: dict[Key, str] = {(one["file"], one["before"], one["after"]): one["reason"] for one in judged}
    for one in outcomes:
        if one.survived:
            _say("", *one.diff, f"survived: {reasons.get(one.key, 'not judged')}")
    costly = [
        f"{one.mutant.file}:{one.mutant.line} {one.killer} ({', '.join(one.needs)})" for one in outcomes if one.needs
    ]
    _say("", "Killed only by a test that is slow, or needs a server or a process:", *costly or ["none"])
    stale = [str(key) for key in reasons if not _applies(key, outcomes)]
    _say("", "Judged, but the line is no longer there, or a test notices the change:", *stale or ["none"])
    return 1 if _score(outcomes, reasons) < FLOOR or stale else 0


def _applies(key: Key, outcomes: Sequence[Outcome]) -> bool:
    file, before, _ = key
    there = (SOURCE / file).exists() and before in _words((SOURCE / file).read_text())
    return there and not any(one.key == key and not one.survived for one in outcomes)


def _score(outcomes: Sequence[Outcome], reasons: Mapping[Key, str]) -> float:
    """Print what became of the mutants of each target, and return the score of all."""
    _say("", f"{'':20}{'killed':>8}{'timeout':>8}{'survived':>9}{'judged':>8}{'score':>8}")
    score = 0.0
    for name in (*TARGETS, "all"):
        ours = [one for one in outcomes if name in {one.mutant.target, "all"}]
        timeouts, dead = sum(one.state == "timeout" for one in ours), sum(not one.survived for one in ours)
        judged = sum(one.survived and one.key in reasons for one in ours)
        score = 100 * dead / max(1, len(ours) - judged)
        _say(f"{name:20}{dead - timeouts:8}{timeouts:8}{len(ours) - dead:9}{judged:8}{score:7.0f}%")
    return score


def _words(*lines: str) -> str:
    return " ".join(" ".join(lines).split())


def _say(*lines: str) -> None:
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
