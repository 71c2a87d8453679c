"""Send this package to the executors of a cluster, so that both sides run the same code."""

from __future__ import annotations

import atexit
import shutil
import tempfile
import threading
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from omnigraph import version
from omnigraph.version import __version__

if TYPE_CHECKING:
    from pyspark import SparkContext

_LOCK = threading.Lock()
_SHIPPED: set[str] = set()


def ship_package(context: SparkContext) -> None:
    """Send the package to the executors, once for each application. Local ones share our interpreter."""
    if is_local(context.master):
        return
    with _LOCK:
        if context.applicationId not in _SHIPPED:
            context.addPyFile(str(_packed()))
            _SHIPPED.add(context.applicationId)


def is_local(master: str | None) -> bool:
    """Return whether tasks run as child processes of this one."""
    return master is not None and master.startswith("local") and not master.startswith("local-cluster")


def _packed() -> Path:
    """Write the archive; Spark serves it from there as long as this process lives."""
    directory = Path(tempfile.mkdtemp(prefix="omnigraph-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    archive = directory / f"omnigraph-{__version__}.zip"
    root = Path(version.__file__).parent
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as opened:
        for file in sorted(root.rglob("*")):
            if file.is_file() and file.suffix != ".pyc":
                opened.write(file, file.relative_to(root.parent))
    return archive
