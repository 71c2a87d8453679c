"""Each test has a graph of its own: a copy, for that is quicker than making one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import omnigraph
from omnigraph.graph import Graph
from tests.support.templates import Templates
from tests.write import scene

_GRAPHS = {"people": (scene.PEOPLE, scene.PEOPLE_DATA), "rules": (scene.RULES, scene.RULES_DATA)}


@pytest.fixture
def copy_of(templates: Templates, tmp_path: Path) -> Callable[[str], Graph]:
    def copied(name: str) -> Graph:
        schema, data = _GRAPHS[name]
        return templates.copy(f"written-{name}", lambda uri: omnigraph.init(uri, schema).mutate(data), tmp_path / name)

    return copied


@pytest.fixture
def people(copy_of: Callable[[str], Graph]) -> Graph:
    return copy_of("people")


@pytest.fixture
def rules(copy_of: Callable[[str], Graph]) -> Graph:
    return copy_of("rules")
