"""A graph whose schema is to be changed."""

import shutil
from pathlib import Path

import pytest

import omnigraph
from omnigraph.commit.store import Store
from omnigraph.graph import Graph
from tests.schema import town
from tests.support.mutations import store_of


@pytest.fixture(scope="session")
def pattern(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph to copy."""
    path = tmp_path_factory.mktemp("town") / "g"
    town.make(str(path))
    return path


@pytest.fixture
def graph(pattern: Path, tmp_path: Path) -> Graph:
    return omnigraph.open(shutil.copytree(pattern, tmp_path / "g"))


@pytest.fixture
def store(graph: Graph) -> Store:
    """The same graph through a handle of its own."""
    return store_of(graph.uri)
