"""A place to load data from, on a local disk and in a bucket."""

from pathlib import Path

import pytest

from omnigraph.core.location import Location
from omnigraph.storage.objects import ObjectStore


class Inbox:
    """A directory or a prefix to put input files into."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._objects = ObjectStore(Location.parse(uri))

    def put(self, name: str, data: bytes) -> str:
        """Write a file, and return its address."""
        self._objects.write(name, data)
        return f"{self.uri}/{name}"


@pytest.fixture(params=["local", "s3"])
def inbox(request: pytest.FixtureRequest, tmp_path: Path) -> Inbox:
    return Inbox(request.getfixturevalue("s3_uri") if request.param == "s3" else str(tmp_path / "inbox"))
