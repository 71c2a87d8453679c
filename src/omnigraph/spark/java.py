"""The Java that Spark runs on: finding it, and an archive of classes with which it starts in half the time.

The first JVM writes the archive when it ends; the next ones map it instead of reading classes from the jars one by one.
A JVM ignores an archive that does not fit, and this module ignores every failure around one: it is only for speed.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from omnigraph.errors import JavaMissingError

OLDEST = 17
_PATIENCE = 30
_HINT = (
    f"install Java {OLDEST} or newer, or set JAVA_HOME to where it is; "
    'or stay in this process with --engine local or engine="local"'
)
_KEPT = 3
_CLAIM_SECONDS = 600


@dataclass(frozen=True, slots=True)
class Java:
    """A usable Java. `build` is the output of `java -version`."""

    path: str
    build: str


def find_java(environment: Mapping[str, str] = os.environ) -> Java:
    """Find the Java that Spark would use: that of JAVA_HOME, or the first on the PATH."""
    home = environment.get("JAVA_HOME")
    # In the order of Spark's own scripts, or the version that is checked would not be the one that runs.
    path = str(Path(home) / "bin" / "java") if home else shutil.which("java", path=environment.get("PATH", ""))
    if path is None:
        raise _missing("there is no `java` on the PATH")
    build = _ask(path)
    if build is None:
        raise _missing(f"{path} does not run" + (", which is where JAVA_HOME points" if home else ""))
    version = _version(build)
    if version is None or version < OLDEST:
        raise _missing(f"{path} is version {version or 'unknown'}", version)
    return Java(path, build)


def _ask(path: str) -> str | None:
    try:
        shown = subprocess.run(  # noqa: S603 - the Java of the person who runs this
            [path, "-version"], capture_output=True, text=True, check=False, timeout=_PATIENCE
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return None if shown.returncode else shown.stderr


def _version(build: str) -> int | None:
    """Return the major version; that of `1.8.0` is 8."""
    found = re.search(r'version "(?:1\.)?(\d+)', build)
    return int(found[1]) if found else None


def _missing(why: str, found: int | None = None) -> JavaMissingError:
    return JavaMissingError(
        f"Spark needs Java {OLDEST} or newer, and {why}", hint=_HINT, found=None if found is None else str(found)
    )


# The class archive ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """The archive for one Java and one set of jars; the file may not exist yet."""

    file: Path

    @classmethod
    def of(cls, java: Java, jars: Path, directory: Path) -> ClassArchive:
        """Name the archive after everything that a JVM compares before it uses one."""
        facts = [java.path, java.build, platform.machine(), str(jars)]
        facts += [f"{jar.name} {jar.stat().st_size} {jar.stat().st_mtime_ns}" for jar in sorted(jars.iterdir())]
        return cls(directory / f"spark-{hashlib.sha256('|'.join(facts).encode()).hexdigest()[:16]}.jsa")

    def options(self) -> list[str]:
        """Return the options to start a JVM with the archive, or if there is none, to write it."""
        # The option is quoted for the launcher, which knows no escape.
        if '"' in str(self.file):
            return []
        try:
            self._take_finished()
            if self.file.exists():
                # The least recently used archives are removed, and a JVM that maps one does not touch it.
                os.utime(self.file)
                return [f'"-XX:SharedArchiveFile={self.file}"']
            return [f'"-XX:ArchiveClassesAtExit={self._part}"'] if self._claim() else []
        except OSError:
            return []

    @property
    def _part(self) -> Path:
        return self.file.with_suffix(".part")

    def _take_finished(self) -> None:
        """Put the archive of an earlier JVM in place. Its header is written last: zeros mean it is incomplete."""
        if self._part.exists() and _first_bytes(self._part).strip(b"\0"):
            self._part.replace(self.file)
            _keep_latest(_KEPT, self.file.parent)

    def _claim(self) -> bool:
        """Let only one JVM at a time write it; an old claim is of a JVM that was killed."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        if self._part.exists() and time.time() - self._part.stat().st_mtime < _CLAIM_SECONDS:
            return False
        self._part.unlink(missing_ok=True)
        # Of two processes that come here at once one fails, and starts without an archive.
        self._part.touch(exist_ok=False)
        return True


def cache_directory(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the directory for caches of this user."""
    return Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "omnigraph"


def _first_bytes(file: Path) -> bytes:
    with file.open("rb") as opened:
        return opened.read(8)


def _keep_latest(kept: int, directory: Path) -> None:
    """Remove the least recently used archives; each is as large as all the jars."""
    archives = sorted(directory.glob("spark-*.jsa"), key=lambda file: file.stat().st_mtime, reverse=True)
    for old in archives[kept:]:
        old.unlink(missing_ok=True)
