"""Each test has a graph of its own: a copy, for that is quicker than making one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import omnigraph
from omnigraph.graph import Graph
from tests.write import scene

_GRAPHS = {"people": (scene.PEOPLE, scene.PEOPLE_DATA), "rules": (scene.RULES, scene.RULES_DATA)}


@pytest.fixture(scope="session")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("templates")
    for name, (schema, data) in _GRAPHS.items():
        omnigraph.init(folder / name, schema).mutate(data)
    return folder


@pytest.fixture
def copy_of(templates: Path, tmp_path: Path) -> Callable[[str], Graph]:
    def make(name: str) -> Graph:
        shutil.copytree(templates / name, tmp_path / name)
        return omnigraph.open(tmp_path / name)

    return make


@pytest.fixture
def people(copy_of: Callable[[str], Graph]) -> Graph:
    return copy_of("people")


@pytest.fixture
def rules(copy_of: Callable[[str], Graph]) -> Graph:
    return copy_of("rules")
