"""Each graph is made once; a test that changes it has a copy."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import omnigraph
from omnigraph.graph import Graph
from omnigraph.query import view
from tests.query import generator
from tests.query.scene import GRAPHS


@pytest.fixture(scope="session")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("templates")
    for name, (schema, data) in GRAPHS.items():
        graph = omnigraph.init(folder / name, schema)
        if data:
            graph.load(data, mode="append")
    omnigraph.init(folder / "random", generator.SCHEMA)
    return folder


@pytest.fixture
def copy_of(templates: Path, tmp_path: Path) -> Callable[[str], Graph]:
    def make(name: str) -> Graph:
        shutil.copytree(templates / name, tmp_path / name)
        return omnigraph.open(tmp_path / name)

    return make


@pytest.fixture
def shared(templates: Path) -> Callable[[str], Graph]:
    """A graph that is only read; each has its own cache."""
    return lambda name: omnigraph.open(templates / name, read_only=True)


@pytest.fixture
def people(copy_of: Callable[[str], Graph]) -> Graph:
    return copy_of("people")


@pytest.fixture(params=["whole tables", "rows as needed"])
def reading(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How tables are read: whole, as small ones are, or by filters of the storage and late, as large ones are."""
    if request.param == "rows as needed":
        read_late(monkeypatch)
    return str(request.param)


def read_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view, "SMALL_TABLE", 0)
    monkeypatch.setattr(view, "_FEW", 0)
