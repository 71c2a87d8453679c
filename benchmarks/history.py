"""What the length of the history costs a graph that nobody looks after, and what many branches cost.

`python benchmarks/history.py 10 1000 5000` chooses the depths. All limits but that of time are counts.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import omnigraph
from omnigraph.graph import Graph
from omnigraph.manifest.rows import MANIFEST_PATH
from omnigraph.manifest.segments import DIRECTORY, WINDOW
from omnigraph.storage.observe import counted

SCHEMA = "node Person { name: String @key  age: I32? }\nedge Knows: Person -> Person\n"
THREE_ROWS = """query q($one: String, $two: String) {
    insert Person { name: $one, age: 1 }
    insert Person { name: $two, age: 2 }
    insert Knows { from: $one, to: $two }
}"""
ONE_ROW = "query q($name: String) { insert Person { name: $name } }"
ONE_HOP = 'query q() { match { $p: Person { name: "one 0" }  $p knows $q } return { $q.name } }'
COUNT = "query q() { match { $p: Person } return { count($p) as n } }"
DEPTHS = (10, 1000, 5000)
CYCLES, CYCLE = 5, 2 * WINDOW  # of which each has two folds and two log segments
KEPT = 3000  # commits after which the size is taken
BRANCHES, SPINE = 1000, 100
LIMITS = {
    "bytes of the manifest a commit": 2.0,
    "requests of a cold commit": 1.15,
    "requests of an open and a read": 1.15,
    "CPU time of a commit": 1.15,
}
READ_LIMIT = 20  # requests
SIZE_LIMIT = 40e6


def size(*folders: Path) -> int:
    return sum(path.stat().st_size for folder in folders for path in folder.rglob("*") if path.is_file())


def requests(act: Callable[[], object]) -> int:
    with counted() as found:
        act()
    return found.total


def grow(graph: Graph, start: int, end: int) -> None:
    """Make commits of three rows."""
    for number in range(start, end):
        grow_by_one(graph, number)


def grow_by_one(graph: Graph, number: int) -> float:
    """Make one commit; return the CPU time of all threads, which other programs hardly change."""
    begun = time.process_time()
    graph.mutate(THREE_ROWS, {"one": f"one {number}", "two": f"two {number}"})
    return time.process_time() - begun


def turns(deep: Graph, at: int, young: Graph) -> list[float]:
    """Let two graphs commit in turns, through whole cycles of folds and log segments; return how the times compare.

    The median of each cycle is compared, so that a fold counts in neither; the young graph has another phase.
    """
    found = []
    for cycle in range(CYCLES):
        steps = range(cycle * CYCLE, (cycle + 1) * CYCLE)
        pairs = [(grow_by_one(deep, at + one), grow_by_one(young, DEPTHS[0] + one)) for one in steps]
        here, there = map(statistics.median, zip(*pairs, strict=True))
        found.append(here / there)
    return found


def costs(folder: Path, graph: Graph, depth: int) -> list[float]:
    """Measure over whole cycles of folds and log segments, because each has a rhythm.

    The time is that of a commit beside one of a graph that begins at the first depth.
    """
    root, young = folder / "graph", omnigraph.init(folder / f"young-{depth}", SCHEMA, durability="off")
    manifest = (root / MANIFEST_PATH, root / DIRECTORY)
    grow(young, 0, DEPTHS[0])
    before = size(*manifest)
    slower = statistics.median(turns(graph, depth, young))
    written = (size(*manifest) - before) / (CYCLES * CYCLE)
    commits, reads = [], []
    for number in range(WINDOW):
        commits.append(requests(lambda: omnigraph.open(root).mutate(ONE_ROW, {"name": f"{depth} {number}"})))  # noqa: B023
        # By three rows, so that both tables of the read grow and are folded on the way.
        grow_by_one(graph, depth + CYCLES * CYCLE + number)
        reads.append(requests(lambda: omnigraph.open(root, read_only=True).query(ONE_HOP)))
    return [written, statistics.mean(commits), statistics.mean(reads), slower]


def size_after_upkeep(root: Path, folder: Path) -> int:
    """Return the size of a copy after upkeep that keeps the newest hundred commits, as a server does it.

    An hour passes first: versions of the manifest that are younger than ten minutes stay whatever is kept.
    """
    copy, before = folder / "copy", time.time() - 3600
    shutil.copytree(root, copy)
    for path in copy.rglob("*"):
        os.utime(path, (before, before))
    omnigraph.open(copy).upkeep(keep=100)
    found = size(copy)
    shutil.rmtree(copy)
    return found


def by_depth(folder: Path, depths: tuple[int, ...]) -> list[str]:
    root = folder / "graph"
    graph = omnigraph.init(root, SCHEMA, durability="off")
    at, found, problems = 0, [], []
    for depth in depths:
        if at <= KEPT < depth:
            grow(graph, at, KEPT)
            at, kept = KEPT, size_after_upkeep(root, folder)
            print(f"after {KEPT:,} commits of three rows, with upkeep: {kept / 1e6:.1f} MB     (at most 40)")
            problems += [f"{kept / 1e6:.1f} MB"] if kept > SIZE_LIMIT else []
        grow(graph, at, depth)
        written, commit, read, slower = costs(folder, graph, depth)
        print(
            f"at {depth:>5} commits: {written / 1e3:5.1f} KB of manifest a commit, "
            f"{commit:4.1f} requests of a cold commit, {read:4.1f} of an open and a read, "
            f"{slower:4.2f} times the CPU time of a commit of a young graph"
        )
        at = depth + CYCLES * CYCLE + WINDOW
        found.append((written, commit, read, slower))
    for (name, limit), values in zip(LIMITS.items(), zip(*found, strict=True), strict=True):
        ratio = values[-1] / values[0]
        print(f"{name}: {ratio:.2f} times as much at the end     (at most {limit})")
        problems += [f"{name}: {ratio:.2f}"] if ratio > limit else []
    most = max(read for _, _, read, _ in found)
    return problems + ([f"{most:.1f} requests of an open and a read"] if most > READ_LIMIT else [])


def life(graph: Graph, name: str, source: str) -> tuple[int, int, int]:
    """Count the requests of creating a branch, of its first commit and of its first read."""
    return (
        requests(lambda: graph.create_branch(name, source)),
        requests(lambda: graph.mutate(ONE_ROW, {"name": name}, branch=name)),
        requests(lambda: omnigraph.open(graph.uri, read_only=True).query(COUNT, branch=name)),
    )


def by_branches(folder: Path, branches: int, spine: int) -> list[str]:
    graph = omnigraph.init(folder / "branches", SCHEMA, durability="off")
    graph.mutate(ONE_ROW, {"name": "first"})
    first = life(graph, "b0", "main")
    for number in range(1, branches - 1):
        graph.create_branch(f"b{number}")
    last = life(graph, f"b{branches}", "main")
    print(f"create, first commit, first read of branch 1: {first}; of branch {branches}: {last}")
    found, source = [], "main"
    for number in range(spine):
        found.append(life(graph, f"s{number}", source))
        source = f"s{number}"
    # The first commit reads the small files that the branches before it left, up to a fold.
    early, late = (
        tuple(max(one) for one in zip(*part, strict=True)) for part in (found[1 : spine // 2], found[spine // 2 :])
    )
    print(f"a branch of a branch of ...: at most {early} in the first half, {late} in the second")
    grown = [*zip(first, last, strict=True), *zip(early, late, strict=True)]
    return [f"requests of branches: {before} to {after}" for before, after in grown if after > 1.15 * before]


def main() -> None:
    depths = tuple(map(int, sys.argv[1:])) or DEPTHS
    with tempfile.TemporaryDirectory() as directory:
        problems = by_depth(Path(directory), depths) + by_branches(Path(directory), BRANCHES, SPINE)
    if problems:
        sys.exit("; ".join(problems))


if __name__ == "__main__":
    main()
