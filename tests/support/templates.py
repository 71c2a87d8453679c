"""Graphs that are made once in a process, and copied for every test that changes one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import omnigraph
from omnigraph.core.location import Location
from tests.support.s3 import S3Server

Make = Callable[[str], object]


class Templates:
    """The graphs made so far, by name, on a local disk and on S3."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._buckets: dict[str, str] = {}

    def path(self, name: str, make: Make) -> Path:
        """Return where a graph is, for tests that only read it."""
        path = self._folder / name
        if not path.exists():
            make(str(path))
        return path

    def copy(self, name: str, make: Make, uri: str | Path) -> omnigraph.Graph:
        """Copy a graph to an address, and open it there."""
        location = Location.parse(uri)
        if location.is_local:
            # A copy is as young as a graph made now: cleanup spares young files, and the template may be an hour old.
            shutil.copytree(self.path(name, make), uri, copy_function=shutil.copyfile)
            return omnigraph.open(uri)
        server = S3Server.of_environment()
        if name not in self._buckets:
            bucket = server.create_bucket()
            make(f"s3://{bucket}/{location.key}")
            self._buckets[name] = bucket
        server.copy_objects(self._buckets[name], location.bucket)
        return omnigraph.open(uri)


@pytest.fixture(scope="session")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Templates:
    return Templates(tmp_path_factory.mktemp("templates"))
