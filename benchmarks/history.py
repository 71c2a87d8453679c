"""What the length of the history costs: bytes of `__manifest` per commit, and requests of a cold commit, open and read.

The commits that make the history longer change no table, so that only the history counts. `python benchmarks/history.py
10 1000 5000` chooses the depths.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import omnigraph
from omnigraph.core.location import Location
from omnigraph.manifest.publisher import Changes, Lineage, Manifest
from omnigraph.manifest.rows import MANIFEST_PATH
from omnigraph.manifest.segments import DIRECTORY, WINDOW
from omnigraph.storage.observe import counted

SCHEMA = "node Person { name: String @key }\nedge Knows: Person -> Person\n"
INSERT = "query q($name: String) { insert Person { name: $name } }"
ONE_HOP = 'query q() { match { $p: Person { name: "p0" }  $p knows $q } return { $q.name } }'
DEPTHS = (10, 1000, 5000)
BYTES_LIMIT, REQUESTS_LIMIT = 2.0, 1.15


def written(root: Path) -> int:
    paths = (path for name in (MANIFEST_PATH, DIRECTORY) for path in (root / name).rglob("*"))
    return sum(path.stat().st_size for path in paths if path.is_file())


def deepen(root: Path, commits: int) -> float:
    """Add commits; return the bytes that each of them wrote to the manifest and the log."""
    manifest, before = Manifest(Location.parse(root)), written(root)
    for _ in range(commits):
        manifest.publish(None, Changes(), {}, Lineage.new("bench"))
    return (written(root) - before) / max(commits, 1)


def requests(act: Callable[[], object]) -> int:
    with counted() as found:
        act()
    return found.total


def main() -> None:
    depths = tuple(map(int, sys.argv[1:])) or DEPTHS
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory) / "graph"
        graph = omnigraph.init(root, SCHEMA)
        people = [{"type": "Person", "data": {"name": f"p{number}"}} for number in range(100)]
        graph.load([*people, {"edge": "Knows", "from": "p0", "to": "p1"}], mode="merge", engine="local")
        depth, found = len(graph.commits()), []
        for target in depths:
            deepen(root, max(target - depth - WINDOW, 0))
            size = deepen(root, WINDOW)  # one cycle of segments
            commit = requests(lambda: omnigraph.open(root).mutate(INSERT, {"name": f"new at {target}"}))  # noqa: B023
            graph.optimize()
            read = requests(lambda: omnigraph.open(root, read_only=True).query(ONE_HOP))
            depth = len(graph.commits())
            found.append((size, commit, read))
            print(f"at {depth:>5} commits: {size / 1e3:6.1f} KB a commit, {commit:>3} requests of a cold commit, "
                  f"{read:>3} of an open and a read")  # fmt: skip
    names, limits = ("bytes", "cold commit", "open and read"), (BYTES_LIMIT, REQUESTS_LIMIT, REQUESTS_LIMIT)
    problems = []
    for name, limit, values in zip(names, limits, zip(*found, strict=True), strict=True):
        ratio = values[-1] / values[0]
        print(f"{name}: {ratio:.2f} times as much at the end     (at most {limit})")
        problems += [f"{name}: {ratio:.2f}"] if ratio > limit else []
    if problems:
        sys.exit("; ".join(problems))


if __name__ == "__main__":
    main()
