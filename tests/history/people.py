"""A few people who know each other: the graph on which branches and merges are tried, and what it holds."""

from __future__ import annotations

import atexit
import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

import omnigraph
from omnigraph.errors import MergeConflictError, OmnigraphError
from omnigraph.graph import Graph

PEOPLE = "node Person { name: String @key  age: I32? } edge Knows: Person -> Person"
SEED = """
insert Person { name: "Alice", age: 30 } insert Person { name: "Bob", age: 25 }
insert Person { name: "Carol", age: 40 } insert Person { name: "Dan", age: 50 }
insert Knows { from: "Bob", to: "Carol" }
"""


@cache
def _made(schema: str, seed: str) -> Path:
    """Make a graph once for all tests of the process that begin with it."""
    folder = Path(mkdtemp(prefix="omnigraph-people-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    graph = omnigraph.init(folder / "g", schema)
    if seed:
        run(graph, seed)
    return folder / "g"


def new_graph(folder: Path, schema: str = PEOPLE, seed: str = SEED) -> Graph:
    """A graph of one's own. A graph without branches is nothing but files, so it can be copied."""
    shutil.copytree(_made(schema, seed), folder / "g")
    return omnigraph.open(folder / "g")


def run(graph: Graph, statements: str, branch: str = "main", **more: Any) -> None:
    done = graph.mutate(f"query change() {{ {statements} }}", branch=branch, **more)
    assert done.commit, "the statements change something"


def rows(graph: Graph, branch: str = "main") -> list[dict[str, Any]]:
    """Everything on a branch, in an order of its own."""
    return [json.loads(line) for line in sorted(graph.export(branch=branch))]


def ages(graph: Graph, branch: str = "main") -> dict[str, int | None]:
    found = (row["data"] for row in rows(graph, branch) if row.get("type") == "Person")
    return {data["name"]: data.get("age") for data in found}


def acquaintances(graph: Graph, branch: str = "main") -> list[tuple[str, str]]:
    return sorted((row["from"], row["to"]) for row in rows(graph, branch) if "edge" in row)


def head(graph: Graph, branch: str = "main") -> str:
    return graph.commits(branch)[0].commit_id


def files(graph: Graph) -> list[str]:
    """Every file of the graph. Locks are taken by readers as well, and say nothing."""
    root = Path(graph.uri)
    found = (path.relative_to(root) for path in root.rglob("*") if path.is_file())
    return sorted(str(path) for path in found if path.suffix != ".lock")


def records(graph: Graph) -> list[str]:
    """The recovery records that are there."""
    return [name for name in files(graph) if name.startswith("__recovery/")]


def refused(graph: Graph, act: Callable[[], object], branch: str = "main") -> OmnigraphError:
    """Do what must be refused; the branch is as before, and nothing is left behind."""
    before = rows(graph, branch), graph.commits(branch)
    with pytest.raises(OmnigraphError) as caught:
        act()
    assert (rows(graph, branch), graph.commits(branch)) == before
    assert records(graph) == []
    return caught.value


def conflicts(graph: Graph, source: str, into: str = "main", **more: Any) -> list[tuple[str, str, str | None]]:
    """The conflicts with which a merge is refused, as a preview and the merge itself tell them."""
    error = refused(graph, lambda: graph.merge(source, into, **more), into)
    assert isinstance(error, MergeConflictError)
    assert graph.merge(source, into, dry_run=True, **more).conflicts == error.conflicts
    return [(conflict.kind, conflict.table_key, conflict.id) for conflict in error.conflicts]
