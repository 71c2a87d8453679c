"""Clocks that jump: a writer under libfaketime, years ahead at one commit and years behind at the next."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import omnigraph
from tests.chaos.graph import SCHEMA, Told, add, check
from tests.chaos.skipped import SkippedError

_ROOT = Path(__file__).parents[2]
_LIBRARIES = ("/usr/lib/*/faketime/libfaketimeMT.so.1", "/usr/lib*/faketime/libfaketimeMT.so.1")
_FURTHEST = 20 * 365 * 24 * 3600  # seconds


def jumping(directory: Path, number: int) -> str:
    """Commit while the clock jumps; then the history must be one chain, and the feed complete."""
    library = _library()
    uri, clock = str(directory / "graph"), directory / "clock"
    omnigraph.init(uri, SCHEMA)
    clock.write_text("+0")
    environment = {
        "LD_PRELOAD": library,
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_NO_CACHE": "1",
        "DONT_FAKE_MONOTONIC": "1",
    }
    command = [sys.executable, "-m", __name__, uri, str(clock), str(number)]
    done = subprocess.run(
        command, cwd=_ROOT, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    told = Told()
    for line in done.stdout.splitlines():
        kind, _, name = line.rpartition(" ")
        told.hear((kind, name))
    assert len(told.acknowledged) == number, told
    check(uri, told)
    _check_feed(uri, told.acknowledged)
    return f"{number} jumps of up to 20 years, {told}, feed complete"


def _library() -> str:
    if shutil.which("faketime") is None:
        raise SkippedError("needs libfaketime (package faketime)")
    found = [path for pattern in _LIBRARIES for path in Path("/").glob(pattern.lstrip("/"))]
    if not found:
        raise SkippedError(f"libfaketimeMT.so.1 is not in {' or '.join(_LIBRARIES)}")
    return str(found[0])


def _check_feed(uri: str, names: set[str]) -> None:
    """The feed, read from its beginning, has every item."""
    graph, items = omnigraph.open(uri, read_only=True), set[str]()
    page = graph.changes(start="beginning", types=["Item"], operations=["insert"])
    while True:
        items |= {change.id for block in page for change in block.changes}
        if page.caught_up:
            break
        token = page.next_page_token
        page = graph.changes(page_token=token) if token else graph.changes(cursor=page.cursor)
    assert items >= names, f"not in the feed: {sorted(names - items)[:5]}"


def _write(uri: str, clock: Path, number: int) -> None:
    graph, chance = omnigraph.open(uri), random.Random(number)
    for at in range(number):
        # Another file takes its place at once: a reader never finds half a number.
        after = clock.with_suffix(".new")
        after.write_text(f"{chance.randint(-_FURTHEST, _FURTHEST):+d}")
        after.replace(clock)
        name = f"c{at}"
        print("try", name)
        print(*add(graph, name))


if __name__ == "__main__":
    _write(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
