"""Run the tests against a sample of mutants, and report which ones they do not notice. `make mutants` runs it.

First note which tests execute which lines. Against a mutant run those that execute its statement, then the slow tests
nearest to its module, until one fails or the budget is spent. Survivors are compared with those in `judged.toml`.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
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

from tests.mutants.covering import Map
from tests.mutants.mutating import TARGETS, Mutant, changed, sample

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "omnigraph"
WORK = ROOT / ".mutants"
COPY = WORK / "src" / "omnigraph"
HERE = Path(__file__).parent
MAP = WORK / "map.json"
FLOOR = 85  # percent of the mutants that are not judged to be harmless

_ALONE = "not spark and not docs and not s3 and not process"  # in one process, which notes the lines
_COSTLY = "(s3 or process or slow) and not spark and not docs"
_MAPPED = ("commit", "manifest", "history", "write", "schema/test_staged_schema.py")
_UNMAPPED = ("commit/test_power_cuts.py", "commit/test_costs.py", "history/test_merge_model.py", "write/test_skew.py")

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
    options.add_argument("--quick", action="store_true", help="run only tests that the map names, and young ones")
    options.add_argument("--at", default="", help="FILE:LINE,... of the sample that are tried again; all by default")
    given = options.parse_args()
    shutil.rmtree(COPY.parent, ignore_errors=True)
    shutil.copytree(SOURCE, COPY)
    if not MAP.exists() or json.loads(MAP.read_text())["source"] != _digest():
        _make_map()
    runner = Runner(given.seconds, Map.read(MAP), quick=given.quick)
    outcomes = []
    for mutant in sample(COPY, given.mutants, given.seed, given.only):
        if given.at and f"{mutant.file}:{mutant.line}" not in given.at.split(","):
            continue
        outcomes.append(outcome := _try(mutant, runner))
        _say(f"{outcome.state:9} {mutant.file}:{mutant.line} {mutant.operator} {outcome.killer}")
    return _report(outcomes)


def _make_map() -> None:
    """Run the tests that stay in one process once, and note which lines each executes. Young tests need no new map."""
    settings = {"PYTHONPATH": str(COPY.parent), "MUTANTS_SOURCE": str(COPY), "MUTANTS_MAP": str(MAP)}
    left_out = [f"--ignore=tests/{name}" for name in _UNMAPPED]
    command = [".venv/bin/python", "-m", "pytest", "-n", "0", "-q", "-p", "tests.mutants.measure", "-m", _ALONE]
    subprocess.run(
        [*command, *left_out, *(f"tests/{name}" for name in _MAPPED)], cwd=ROOT, env=os.environ | settings, check=False
    )
    MAP.write_text(json.dumps(json.loads(MAP.read_text()) | {"source": _digest()}))


def _digest() -> str:
    """The content of the files that are mutated: after a change the lines of the map are others."""
    paths = sorted(
        file
        for target in TARGETS
        for file in ((SOURCE / target).rglob("*.py") if (SOURCE / target).is_dir() else [SOURCE / target])
    )
    return hashlib.sha256(b"".join(file.read_bytes() for file in paths)).hexdigest()


class Runner:
    """Runs tests in forks of one warm process, in which the copy of the package comes before the package itself."""

    def __init__(self, seconds: int, covering: Map, *, quick: bool) -> None:
        self.quick, self._map = quick, covering
        self._passing = dict.fromkeys(covering.seconds, True)
        self._killer, self._log, self._chosen = WORK / "killer.json", WORK / "log.txt", WORK / "chosen.json"
        settings = {
            "PYTHONPATH": str(COPY.parent),
            "PYTHONDONTWRITEBYTECODE": "1",  # two mutants of one size in one second would share theirs
            "MUTANTS_SECONDS": str(seconds),
            "MUTANTS_KILLER": str(self._killer),
            "MUTANTS_CHOSEN": str(self._chosen),
            "MUTANTS_LOG": str(self._log),
        }
        command = [str(ROOT / ".venv/bin/python"), "-W", "ignore:lance is not fork-safe", "-m", "tests.mutants.warm"]
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=os.environ | settings, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def passes(self, test: str) -> bool:
        """Return whether a test passes on the code as it is: only then has it noticed the change."""
        if test not in self._passing:
            self._chosen.write_text("null")
            self._passing[test] = self._run([test])[0] == "survived"
        return self._passing[test]

    def covering(self, mutant: Mutant, source: str) -> tuple[str, str, list[str]]:
        """Run the tests that execute what was changed, and all of the nearest files that the map does not know yet."""
        chosen = self._map.tests(mutant.file, source, mutant.line)
        self._chosen.write_text(json.dumps({"chosen": chosen, "known": [*self._map.seconds]}))
        files = {test.partition("::")[0] for test in chosen} | set(_nearest(mutant))
        return self._run(["-m", _ALONE, *sorted(files)])

    def costly(self, mutant: Mutant) -> tuple[str, str, list[str]]:
        """Run the tests near a module that the map leaves out: they are slow, or need a server or a process."""
        self._chosen.write_text("null")
        return self._run(["-m", _COSTLY, *_nearest(mutant)])

    def _run(self, arguments: Sequence[str]) -> tuple[str, str, list[str]]:
        """Run tests until the first failure; return what became of the mutant, which test failed, and its markers."""
        assert self._process.stdin
        assert self._process.stdout
        self._killer.unlink(missing_ok=True)
        self._process.stdin.write(json.dumps([*arguments]) + "\n")
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
    state, killer, needs = runner.covering(mutant, before)
    if state == "survived" and not runner.quick:
        state, killer, needs = runner.costly(mutant)
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
