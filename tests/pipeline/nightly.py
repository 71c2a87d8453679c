"""A pipeline with every step over small CSV files, and a process that runs it and is killed where a test says so.

python -m tests.pipeline.nightly <file> <failpoint> <number>
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from itertools import count
from pathlib import Path

import omnigraph
from omnigraph import pipeline
from omnigraph.commit import failpoints
from omnigraph.graph import Graph
from tests.support.spark import ROOT

SCHEMA = """
node Person { name: String @key  age: I32?  since: Date? }
node City { name: String @key }
edge LivesIn: Person -> City
"""
PIPELINE = """\
pipeline: people
target:
  graph: people
  branch: nightly
sources:
  staff:
    path: staff*.csv
    incremental: files
load:
  - type: City
    from: staff
    columns: {name: town}
    distinct: true
  - type: Person
    from: staff
    columns: {name: full_name, age: age, since: since}
    latest_by: updated
  - type: LivesIn
    from: staff
    columns:
      id: {text: "{full_name}-lives"}
      from: full_name
      to: town
    latest_by: updated
quality:
  max_bad: 2
  rejects: rejects
  checks:
    too old: "query q() { match { $p: Person  $p.age > 100 } return { $p.name } }"
then:
  merge: main
  optimize: true
  export: {path: out, format: jsonl}
"""
STEPS = ["load", "check", "merge", "optimize", "export"]
FIRST = """\
full_name,age,town,since,updated
ann,30,Rome,2024-01-01,1
bob,40,Oslo,,2
ann,31,Rome,2024-05-01,10
"""
_PATIENCE = 120


def make(folder: Path, text: str = PIPELINE) -> Path:
    """Make an empty graph, a file of people, and the pipeline; return its file."""
    omnigraph.init(folder / "people", SCHEMA)
    (folder / "staff-1.csv").write_text(FIRST)
    file = folder / "people.yaml"
    file.write_text(text)
    return file


def people(graph: Graph, branch: str = "main") -> dict[str, int | None]:
    rows = graph.query("query q() { match { $p: Person } return { $p.name as n, $p.age as a } }", branch=branch).rows
    return {row["n"]: row["a"] for row in rows}


def run_and_kill(file: Path, place: str, number: int) -> None:
    """Run the pipeline in a process that is killed when it reaches a failpoint for the n-th time."""
    command = [sys.executable, "-m", "tests.pipeline.nightly", str(file), place, str(number)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=_PATIENCE, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()


def _main(file: str, place: str, number: str) -> None:
    arrivals = count(1)

    def arrive() -> None:
        if next(arrivals) == int(number):
            os.kill(os.getpid(), signal.SIGKILL)

    with failpoints.armed(place, arrive):
        pipeline.run(file)


if __name__ == "__main__":
    _main(*sys.argv[1:])
