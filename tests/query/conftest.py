"""Each graph is made once; a test that changes it has a copy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import omnigraph
from omnigraph.graph import Graph
from omnigraph.query import view
from tests.query import generator
from tests.query.scene import GRAPHS
from tests.support.templates import Templates


def _make(name: str, uri: str) -> None:
    schema, data = GRAPHS.get(name, (generator.SCHEMA, []))
    graph = omnigraph.init(uri, schema)
    if data:
        graph.load(data, mode="append")


@pytest.fixture
def copy_of(templates: Templates, tmp_path: Path) -> Callable[[str], Graph]:
    return lambda name: templates.copy(f"read-{name}", partial(_make, name), tmp_path / name)


@pytest.fixture
def shared(templates: Templates) -> Callable[[str], Graph]:
    """A graph that is only read; each has its own cache."""
    return lambda name: omnigraph.open(templates.path(f"read-{name}", partial(_make, name)), read_only=True)


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
