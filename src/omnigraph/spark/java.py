"""The Java that Spark runs on: where it is, and whether it is new enough."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from omnigraph.errors import JavaMissingError

OLDEST = 17
_PATIENCE = 30
_HINT = f"install Java {OLDEST} or newer, or set JAVA_HOME to where it is"


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that will do. `build` is what it says of itself, down to the build."""

    path: str
    build: str


def find_java(environment: Mapping[str, str] = os.environ) -> Java:
    """Find the Java that Spark would take: that of JAVA_HOME, or the first on the PATH."""
    home = environment.get("JAVA_HOME")
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
    """The major version; that of `1.8.0` is 8."""
    found = re.search(r'version "(?:1\.)?(\d+)', build)
    return int(found[1]) if found else None


def _missing(why: str, found: int | None = None) -> JavaMissingError:
    return JavaMissingError(
        f"Spark needs Java {OLDEST} or newer, and {why}", hint=_HINT, found=None if found is None else str(found)
    )
