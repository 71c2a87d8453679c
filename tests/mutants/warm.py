"""A process that has imported what tests need, but nothing of ours: its forks run tests without waiting for imports.

It reads lists of arguments for pytest, one a line, and answers with how each run ended.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import signal
import sys
from contextlib import suppress
from pathlib import Path

_PRELOADED = (
    "duckdb",
    "hypothesis.strategies",
    "lance",
    "moto",
    "networkx",
    "pyarrow.acero",
    "pyarrow.dataset",
    "typer",
)
_LONGEST_WAIT = 600  # seconds, of tests that wait for something that never comes


def _run(arguments: list[str]) -> int:
    import pytest  # noqa: PLC0415 - processes that tests start import this module too, and need nothing of it

    os.setsid()  # so that what the tests start is stopped with them
    most = int(os.environ["MUTANTS_SECONDS"]) + 30  # of the processor: more is an endless loop
    resource.setrlimit(resource.RLIMIT_CPU, (most, most))
    signal.alarm(_LONGEST_WAIT)
    with Path(os.environ["MUTANTS_LOG"]).open("wb") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    # What was imported before pytest began is of others, and has no assertions of tests to rewrite.
    early = ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    ended = pytest.main(["-n", "0", "-xq", "--tb=short", "-p", "tests.mutants.plugin", *early, *arguments])
    sys.stdout.flush()
    return int(ended)


def main() -> None:
    for name in ("pytest", *_PRELOADED):
        importlib.import_module(name)
    assert not any(name.partition(".")[0] == "omnigraph" for name in sys.modules), "each fork imports its own mutant"
    for line in sys.stdin:
        if not (child := os.fork()):
            os._exit(_run(json.loads(line)))
        _, status = os.waitpid(child, 0)
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
