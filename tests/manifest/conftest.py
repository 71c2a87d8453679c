"""A fresh graph for every test of its manifest, wherever a graph can live."""

import pytest

import omnigraph
from omnigraph.commit.store import Store
from omnigraph.core.location import Location
from tests.support.graphs import SCHEMA
from tests.support.templates import Templates


@pytest.fixture
def store(root_uri: str, templates: Templates) -> Store:
    templates.copy("people", lambda uri: omnigraph.init(uri, SCHEMA), root_uri)
    return Store.at(Location.parse(root_uri))
