"""A real graph: the packages that this machine's package index lists, and which depends on which."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pyarrow as pa

from . import rmat

_FIELD = re.compile(r"^(Package|Depends|Pre-Depends|Recommends|Suggests): (.*)$", re.MULTILINE)
_NAME = re.compile(r"[^\s(:|,]+")
_FEW = 10_000


def write(folder: Path) -> bool:
    """Write the graph; False if there is no index of a whole distribution here."""
    text = _index()
    if text is None or text.count("\nPackage: ") < _FEW:
        return False
    pairs = [(package, other) for package, others in _packages(text) for other in others]
    names = pa.array(sorted({name for pair in pairs for name in pair}))
    sources, targets = (pa.compute.index_in(pa.array(side), value_set=names) for side in zip(*pairs, strict=True))
    rmat.write_tables(folder, names, *(side.to_numpy().astype(np.int64) for side in (sources, targets)))
    return True


def _index() -> str | None:
    """All packages that can be installed, one paragraph each."""
    if shutil.which("apt-cache") is None:
        return None
    found = subprocess.run(["apt-cache", "dumpavail"], capture_output=True, check=False)  # noqa: S607
    return found.stdout.decode(errors="replace") if found.returncode == 0 else None


def _packages(text: str) -> list[tuple[str, list[str]]]:
    """Each package with those it wants; one that is wanted for two reasons is named twice."""
    found = []
    for paragraph in text.split("\n\n"):
        fields = _FIELD.findall(paragraph)
        name = next((value for field, value in fields if field == "Package"), None)
        wanted = [part for field, value in fields if field != "Package" for part in re.split(r"[,|]", value)]
        names = [match.group() for part in wanted if (match := _NAME.search(part))]
        if name and names:
            found.append((name, names))
    return found
