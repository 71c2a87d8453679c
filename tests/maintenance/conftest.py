"""Graphs to look after, and Spark for those that are large."""

from pathlib import Path

import pytest

from omnigraph.commit.store import Store
from omnigraph.graph import Graph
from tests.maintenance.scene import grown
from tests.support.mutations import store_of
from tests.support.templates import Templates


@pytest.fixture
def graph(templates: Templates, tmp_path: Path) -> Graph:
    """Six people who know each other, each from a commit of its own."""
    return templates.copy("grown", grown, tmp_path / "g")


@pytest.fixture
def store(graph: Graph) -> Store:
    """The same graph through a handle of its own."""
    return store_of(graph.uri)
