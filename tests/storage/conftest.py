"""The places where a graph can live: every behaviour of storage is tested over all of them."""

from pathlib import Path

import pytest

from omnigraph.storage.location import Location
from omnigraph.storage.objects import ObjectStore
from tests.support.s3 import s3_server, s3_uri

__all__ = ["objects", "root_uri", "s3_server", "s3_uri"]


@pytest.fixture(params=["local", "s3"])
def root_uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    uri: str = request.getfixturevalue("s3_uri") if request.param == "s3" else str(tmp_path / "graphs" / "one")
    return uri


@pytest.fixture
def objects(root_uri: str) -> ObjectStore:
    return ObjectStore(Location.parse(root_uri))
