"""A fresh graph for every test of its manifest, wherever a graph can live."""

from pathlib import Path

import pytest

import omnigraph
from omnigraph.commit.store import Store
from omnigraph.storage.location import Location
from tests.support.graphs import SCHEMA
from tests.support.s3 import s3_server, s3_uri

__all__ = ["s3_server", "s3_uri", "store"]


@pytest.fixture(params=["local", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    uri = request.getfixturevalue("s3_uri") if request.param == "s3" else tmp_path / "graph"
    omnigraph.init(uri, SCHEMA)
    return Store.at(Location.parse(uri))
