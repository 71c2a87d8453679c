"""How long a command takes to start: `omnigraph query` and `omnigraph --help` against `import lance`.

Run it as `python -m benchmarks.cold`. Times are those of the processor, the least of several turns: a busy machine
makes everything slower, but by a different factor at each turn.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import omnigraph

SCHEMA = "node Person { name: String @key  age: I32? }  edge Knows: Person -> Person"
INSERT = 'query i() { insert Person { name: "a" } insert Person { name: "b" } insert Knows { from: "a", to: "b" } }'
FRIENDS = 'query f() { match { $p: Person { name: "a" } $p knows $f } return { $f.name } }'
TURNS = 5
QUERY_LIMIT = 1.6
PROGRAM = str(Path(sys.executable).parent / "omnigraph")


def seconds(words: Sequence[str]) -> float:
    """The processor time of one process, in user and system mode."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        uri = str(Path(folder) / "g")
        with omnigraph.init(uri, SCHEMA) as graph:
            graph.mutate(INSERT)
        ways = {
            "import lance": [sys.executable, "-c", "import lance"],
            "omnigraph query": [PROGRAM, "query", "--store", uri, "-e", FRIENDS],
            "omnigraph --help": [PROGRAM, "--help"],
        }
        # In turns, so that a busy moment does not fall on one of them alone.
        times = [{name: seconds(words) for name, words in ways.items()} for _ in range(TURNS)]
    least = {name: min(turn[name] for turn in times) for name in ways}
    for name, value in least.items():
        print(f"{name:18} {value:6.2f} s  {value / least['import lance']:5.2f} times import lance")
    ratio = least["omnigraph query"] / least["import lance"]
    if ratio > QUERY_LIMIT:
        sys.exit(f"a cold query takes {ratio:.2f} times `import lance`; at most {QUERY_LIMIT} is the aim")


if __name__ == "__main__":
    main()
