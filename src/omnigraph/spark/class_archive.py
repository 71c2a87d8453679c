"""An archive of the classes that Spark loads, which a JVM maps instead of reading them one by one from the jars.

The first JVM writes it when it ends, the next ones start in half the time. A JVM ignores an archive that does not fit,
and so does this module everything that goes wrong with one: it is only there for speed.
"""

from __future__ import annotations

import hashlib
import os
import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from omnigraph.spark.java import Java

_KEPT = 3
_CLAIM_SECONDS = 600


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """The archive for one Java and one set of jars, there or not."""

    file: Path

    @classmethod
    def of(cls, java: Java, jars: Path, directory: Path) -> ClassArchive:
        """Name the archive after all that a JVM compares before it takes one."""
        facts = [java.path, java.build, platform.machine(), str(jars)]
        facts += [f"{jar.name} {jar.stat().st_size} {jar.stat().st_mtime_ns}" for jar in sorted(jars.iterdir())]
        return cls(directory / f"spark-{hashlib.sha256('|'.join(facts).encode()).hexdigest()[:16]}.jsa")

    def options(self) -> list[str]:
        """How to start a JVM with the archive; without one yet, how to start the one that makes it."""
        if '"' in str(self.file):
            return []
        try:
            self._take_finished()
            if self.file.exists():
                os.utime(self.file)
                return [f'"-XX:SharedArchiveFile={self.file}"']
            return [f'"-XX:ArchiveClassesAtExit={self._part}"'] if self._claim() else []
        except OSError:
            return []

    @property
    def _part(self) -> Path:
        return self.file.with_suffix(".part")

    def _take_finished(self) -> None:
        """Put in place what an earlier JVM has written. It writes the header last, so a zero means that it has not."""
        if self._part.exists() and _first_bytes(self._part).strip(b"\0"):
            self._part.replace(self.file)
            _forget_all_but(_KEPT, self.file.parent)

    def _claim(self) -> bool:
        """Only one JVM at a time shall make it; an old claim is of one that was killed."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        if self._part.exists() and time.time() - self._part.stat().st_mtime < _CLAIM_SECONDS:
            return False
        self._part.unlink(missing_ok=True)
        self._part.touch(exist_ok=False)
        return True


def cache_directory(environment: Mapping[str, str] = os.environ) -> Path:
    """Where this user keeps what can be made again."""
    return Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "omnigraph"


def _first_bytes(file: Path) -> bytes:
    with file.open("rb") as opened:
        return opened.read(8)


def _forget_all_but(kept: int, directory: Path) -> None:
    """Remove the archives that were not used for longest; each is as large as all the jars."""
    archives = sorted(directory.glob("spark-*.jsa"), key=lambda file: file.stat().st_mtime, reverse=True)
    for old in archives[kept:]:
        old.unlink(missing_ok=True)
