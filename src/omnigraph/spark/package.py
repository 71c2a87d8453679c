"""Send this package to the executors of a cluster, and check that their tasks have imported this one."""

from __future__ import annotations

import atexit
import hashlib
import shutil
import tempfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from functools import cache, partial
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING

from omnigraph import version
from omnigraph.errors import SparkError
from omnigraph.spark.session import is_connect, is_local
from omnigraph.version import __version__

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOCK = threading.Lock()
_SHIPPED: set[str] = set()


def ship_package(spark: SparkSession) -> str | None:
    """Send the package to the executors, once for each application, and return its digest.

    Local ones share our interpreter: then it is None.
    """
    if is_connect(spark):
        # A server keeps it for one session.
        session_id = spark.client._session_id  # noqa: SLF001 - `session_id` is no part of the common interface
        _ship_once(session_id, partial(spark.addArtifacts, pyfile=True))
    elif is_local(spark.sparkContext.master):
        return None
    else:
        _ship_once(str(spark.sparkContext.applicationId), spark.sparkContext.addPyFile)
    return digest()


def _ship_once(where: str, ship: Callable[[str], None]) -> None:
    with _LOCK:
        if where not in _SHIPPED:
            ship(str(_packed()))
            _SHIPPED.add(where)


@cache
def _packed() -> Path:
    """Write the archive; Spark serves it from there as long as this process lives."""
    directory = Path(tempfile.mkdtemp(prefix="omnigraph-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    # Spark takes two files of one name for the same, and refuses or forgets the second.
    archive = directory / f"omnigraph-{__version__}-{digest()[:12]}.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as opened:
        for name, file in _contents(files("omnigraph")):
            opened.writestr(f"omnigraph/{name}", file.read_bytes())
    return archive


@cache
def digest() -> str:
    """Return a hash of the source of the package that this process has imported, from a directory or an archive."""
    found = hashlib.sha256()
    for name, file in _contents(files("omnigraph")):
        found.update(f"{name}\0".encode() + hashlib.sha256(file.read_bytes()).digest())
    return found.hexdigest()


def _contents(directory: Traversable, prefix: str = "") -> Iterator[tuple[str, Traversable]]:
    for entry in sorted(directory.iterdir(), key=lambda one: one.name):
        name = f"{prefix}{entry.name}"
        if entry.is_dir():
            yield from _contents(entry, f"{name}/")
        elif not name.endswith(".pyc"):  # executors may run another minor version of Python
            yield name, entry


def check_package(expected: str) -> None:
    """Raise unless this worker has imported the package of the driver.

    Spark keeps workers from job to job. One that imported an installed omnigraph for an earlier job, before
    the package of this driver arrived, never imports another. Spark ends a worker that raises, and tries the task
    again in a new one, which does.
    """
    if digest() == expected:
        return
    message = f"a worker of Spark runs another omnigraph than this one ({__version__}): {Path(version.__file__).parent}"
    hint = "a job before this one has imported it there: start a new Spark session, or install the same one there"
    raise SparkError(message, hint=hint, detail="")
