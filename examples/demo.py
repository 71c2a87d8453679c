"""`make demo`: what Omnigraph does today, shown by its own commands."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
STEPS = (
    ("A schema and a file of queries, checked", "lint --schema library.pg --query library.gq", 0),
    ("How mistakes are told", "lint --schema library.pg --query mistakes.gq", 1),
    ("Both files are in their canonical layout", "fmt --check library.pg library.gq", 0),
    ("A graph of that schema", "init {graph} --schema library.pg", 0),
    ("Which version of each table it consists of", "snapshot {graph}", 0),
    ("Its history", "commit list {graph}", 0),
    ("The same queries, checked against the graph", "lint {graph} --query library.gq", 0),
    (
        "What next year's schema would take, and what stands in its way",
        "schema plan --from library.pg --to library_next.pg",
        0,
    ),
)


def main() -> None:
    colour = {"FORCE_COLOR": "1"} if sys.stdout.isatty() else {}
    with tempfile.TemporaryDirectory() as directory:
        for title, line, expected in STEPS:
            arguments = line.format(graph=f"{directory}/library").split()
            print(f"\n== {title}\n$ omnigraph {line.format(graph='library')}", flush=True)
            command = [sys.executable, "-m", "omnigraph", *arguments]
            done = subprocess.run(command, cwd=HERE, env={**os.environ, **colour}, check=False)  # noqa: S603
            if done.returncode != expected:
                sys.exit(f"the demo expected exit code {expected} here, not {done.returncode}")
    print("\nThe languages and the commit path are here; docs/index.md tells more.")


if __name__ == "__main__":
    main()
