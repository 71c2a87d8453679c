"""A graph whose schema is to be changed."""

from pathlib import Path

import pytest

from omnigraph.commit.store import Store
from omnigraph.graph import Graph
from tests.schema import town
from tests.support.mutations import store_of
from tests.support.templates import Templates


@pytest.fixture(scope="session")
def pattern(templates: Templates) -> Path:
    """A graph to copy."""
    return templates.path("town", town.make)


@pytest.fixture
def graph(templates: Templates, tmp_path: Path) -> Graph:
    return templates.copy("town", town.make, tmp_path / "g")


@pytest.fixture
def store(graph: Graph) -> Store:
    """The same graph through a handle of its own."""
    return store_of(graph.uri)
