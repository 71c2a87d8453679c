"""A fresh graph for every test of its manifest, wherever a graph can live."""

import pytest

import omnigraph
from omnigraph.commit.store import Store
from omnigraph.core.location import Location
from tests.support.graphs import SCHEMA


@pytest.fixture
def store(root_uri: str) -> Store:
    omnigraph.init(root_uri, SCHEMA)
    return Store.at(Location.parse(root_uri))
