"""Upkeep that dies: at every durable write the rows are what they were, and to do it again brings it to its end."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import omnigraph
from omnigraph.errors import OmnigraphError
from omnigraph.graph import Graph
from tests.commit import child
from tests.maintenance.scene import Clean, Index, Tidy, coverage, made_of, manifest_versions
from tests.support.faults import assert_settled, refuse
from tests.support.graphs import contents
from tests.support.mutations import Death, Query, at_write, die, store_of

SCHEMA = "node Person { name: String @key } edge Knows: Person -> Person"
TABLES = ("node:Person", "edge:Knows")
NEXT = Query('() { insert Person { name: "next" } }')
ORDERS: dict[str, Any] = {"ensure_indices": Index(), "optimize": Tidy(), "cleanup": Clean()}
BUILDS = ("build index",) * 5
PUBLISH = ("stage", "publish", "delete")
WRITES = {
    "ensure_indices": (*BUILDS, "write", *["commit table"] * 2, *PUBLISH),
    "optimize": (
        *["rewrite fragments"] * 2,
        *BUILDS,
        "write",
        *["commit table"] * 4,
        *PUBLISH,
        *["delete"] * 6,  # the files of previews, which nothing refers to
    ),
    "cleanup": ("remove versions",) * 3,
}


@dataclass(frozen=True, slots=True)
class Scene:
    """A graph, what it holds, and the durable writes of one kind of upkeep of it."""

    uri: str
    order: Any
    rows: dict[str, list[dict[str, Any]]]
    writes: tuple[str, ...]

    @property
    def ordinals(self) -> list[int]:
        """Where to die: before every write that others can see, and before one of those that only add files."""
        files = ("build index", "rewrite fragments")
        return [at for at, write in enumerate(self.writes, 1) if write not in files or write != self.writes[at - 2]]


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Scene]:
    uri = str(tmp_path_factory.mktemp("graphs") / "g")
    graph = omnigraph.init(uri, SCHEMA)
    for at in range(3):
        Query(f'() {{ insert Person {{ name: "p{at}" }} }}').run(graph)
    for at in range(2):
        Query(f'() {{ insert Knows {{ from: "p{at}", to: "p{at + 1}" }} }}').run(graph)

    @cache
    def scene(name: str) -> Scene:
        copy = _copied(uri)
        with at_write(0, refuse) as writes:
            ORDERS[name].run(omnigraph.open(copy))
        return Scene(uri, ORDERS[name], contents(store_of(uri)), tuple(writes))

    return scene


@pytest.mark.parametrize("name", ORDERS)
def test_upkeep_that_dies_at_any_durable_write_loses_nothing_and_can_be_done_again(
    scenes: Callable[[str], Scene], name: str
) -> None:
    scene = scenes(name)
    assert scene.writes == WRITES[name]
    deaths = [Death(_copied(scene.uri), scene.order, ordinal) for ordinal in scene.ordinals]
    die(deaths)
    for death in deaths:
        assert contents(store_of(death.uri)) == scene.rows, "what can be read at once"
        _recovers(death.uri, scene)


@pytest.mark.parametrize("name", ["optimize", "cleanup"])
def test_upkeep_whose_storage_fails_at_any_durable_write_loses_nothing(
    scenes: Callable[[str], Scene], name: str
) -> None:
    scene = scenes(name)
    for ordinal in scene.ordinals:
        uri = _copied(scene.uri)
        graph = omnigraph.open(uri)
        with at_write(ordinal, refuse):
            try:
                scene.order.run(graph)
            except OmnigraphError:
                assert contents(store_of(uri)) == scene.rows
        _recovers(uri, scene)


@pytest.mark.parametrize("name", ["ensure_indices", "optimize"])
def test_a_recovery_from_upkeep_that_dies_at_any_durable_write_loses_nothing(
    scenes: Callable[[str], Scene], name: str
) -> None:
    """When some tables have moved, or one of them half-way; when all have, and when all is visible."""
    scene = scenes(name)
    first = [at for at, write in enumerate(scene.writes, 1) if write == "commit table"][1]
    for ordinal in (first, scene.writes.index("publish") + 1, scene.writes.index("publish") + 2):
        uri = _copied(scene.uri)
        die([Death(uri, scene.order, ordinal)])
        with at_write(0, refuse) as writes:
            omnigraph.open(_copied(uri))
        again = [child.Death("open", _copied(uri), at) for at in range(1, len(writes) + 1)]
        assert again
        child.die(again)
        for death in again:
            _recovers(death.uri, scene)


def test_cleanups_that_each_die_at_a_durable_write_bring_it_to_its_end(scenes: Callable[[str], Scene]) -> None:
    scene = scenes("cleanup")
    uri = _copied(scene.uri)
    for ordinal in (1, 2, 1):
        die([Death(uri, scene.order, ordinal)])
        assert contents(store_of(uri)) == scene.rows
    _recovers(uri, scene)


def _recovers(uri: str, scene: Scene) -> None:
    """Open a graph after a death, write to it, and do the upkeep again, whatever had become of it."""
    graph = omnigraph.open(uri)
    store = store_of(uri)
    assert_settled(store)
    assert contents(store) == scene.rows
    assert NEXT.run(graph).commit
    scene.order.run(graph)
    _is_tidy(graph, scene)
    assert_settled(store)
    assert [row["id"] for row in contents(store)["node:Person"]] == ["next", "p0", "p1", "p2"]


def _is_tidy(graph: Graph, scene: Scene) -> None:
    if isinstance(scene.order, Clean):
        versions = [
            len(store_of(graph.uri).tables.head(entry.table.path, None).version_refs()) for entry in _tables(graph)
        ]
        assert versions == [1, 1]
        assert len(manifest_versions(store_of(graph.uri))) == 1
        return
    assert all(all(coverage(graph, key).values()) for key in TABLES)
    if isinstance(scene.order, Tidy):
        assert [len(made_of(graph, key).parts) for key in TABLES] == [1, 1]


def _tables(graph: Graph) -> list[Any]:
    return list(graph.snapshot().entries.values())


def _copied(uri: str) -> str:
    return str(shutil.copytree(uri, Path(uri).with_name(uuid.uuid4().hex)))
