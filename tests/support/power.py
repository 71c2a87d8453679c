"""Power cuts: every state that a disk can be in when the power fails during an operation.

What was synced stays. Every file written since may be there or empty. Names are journalled in their order by every file
system that people use: so the files that are missing are the last ones, and deletions are all there or all lost.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from omnigraph.storage.observe import set_write_hook

LOCKS = "__gates"  # lock files mean nothing after a power cut


@dataclass(frozen=True, slots=True)
class Cut:
    """One moment of an operation: what is on the medium for certain, and what only the page cache has."""

    at: str
    durable: dict[str, bytes]
    written: dict[str, bytes]
    order: list[str]  # of the files as they were written
    acknowledged: bool

    @property
    def unsynced(self) -> list[str]:
        """The files that differ between the medium and the page cache."""
        names = sorted(self.durable.keys() | self.written.keys())
        return [name for name in names if self.durable.get(name) != self.written.get(name)]

    def states(self, subsets: int, seed: int = 0, *, alone: bool = True) -> Iterator[tuple[str, dict[str, bytes]]]:
        """Yield the disks that the cut can leave: each unsynced file lost alone, all together, and random subsets.

        Without `alone`, only the first and the last of the files are lost alone.
        """
        lost = [name for name in self.order if name in self.unsynced]
        deleted = [name for name in self.unsynced if name not in self.written]
        for name in lost if alone else [*dict.fromkeys([*lost[:1], *lost[-1:]])]:
            yield f"{self.at}: {name} lost", self._without([name], empty=True)
        if deleted:
            yield f"{self.at}: {len(deleted)} deletions lost", self._without(deleted, empty=True)
        for empty in (True, False):
            yield f"{self.at}: all lost, {'empty' if empty else 'missing'}", self._without(lost, empty=empty)
        chance = random.Random(seed)  # noqa: S311 - chooses cases, guards nothing
        for number in range(subsets if len(lost) > 1 else 0):
            count, empty = chance.randint(1, len(lost)), chance.random() < 0.5
            some = chance.sample(lost, count) if empty else lost[-count:]
            yield f"{self.at}: subset {number} of {len(lost)}", self._without(some, empty=empty)

    def _without(self, lost: list[str], *, empty: bool) -> dict[str, bytes]:
        disk = dict(self.written)
        for name in lost:
            if name in self.durable:  # a deletion or a replacement that did not reach the medium
                disk[name] = self.durable[name]
            elif empty:
                disk[name] = b""
            else:
                del disk[name]
        return disk


def distinct_states(cuts: Sequence[Cut], subsets: int) -> Iterator[tuple[bool, str, dict[str, bytes]]]:
    """Yield each disk that the cuts can leave, once: was the operation acknowledged, how was it left, and its files.

    With few subsets, every file is lost alone at the last moment before a sync, when most of what needs it is there,
    and the first and the last one at every moment; with many, every file at every moment.
    """
    seen = set()
    for cut in cuts:
        is_last = cut.at in ("sync", "acknowledged")
        for what, disk in cut.states(subsets, alone=subsets > 1 or is_last):
            state = (cut.acknowledged, frozenset(disk.items()))
            if state not in seen:
                seen.add(state)
                yield cut.acknowledged, what, disk


@dataclass
class Recorder:
    """Records the disk before every durable write of an operation, and what was synced by then."""

    root: Path
    cuts: list[Cut] = field(default_factory=list)
    _durable: dict[str, bytes] = field(default_factory=dict)
    _syncing: bool = False

    def run(self, act: Callable[[], object]) -> list[Cut]:
        self._durable = read_files(self.root)
        previous = set_write_hook(self._before)
        try:
            act()
        finally:
            set_write_hook(previous)
        self._settle()
        self.cuts.append(Cut("acknowledged", self._durable, *self._written(), acknowledged=True))
        return self.cuts

    def _before(self, operation: str, path: str) -> None:
        self._settle()
        where = Path(path).name if operation != "sync" else ""
        self.cuts.append(Cut(f"{operation} {where}".strip(), self._durable, *self._written(), acknowledged=False))
        self._syncing = operation == "sync"

    def _written(self) -> tuple[dict[str, bytes], list[str]]:
        files = read_files(self.root)
        return files, sorted(files, key=lambda name: (self.root / name).stat().st_mtime_ns)

    def _settle(self) -> None:
        """A sync is over when the next step begins."""
        if self._syncing:
            self._durable = read_files(self.root)
            self._syncing = False


def read_files(root: Path) -> dict[str, bytes]:
    found = (path for path in root.rglob("*") if path.is_file())
    return {str(path.relative_to(root)): path.read_bytes() for path in found if LOCKS not in path.parts}


def write_files(root: Path, files: dict[str, bytes]) -> Path:
    """Lay out a disk in place of whatever was there."""
    shutil.rmtree(root, ignore_errors=True)
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root
