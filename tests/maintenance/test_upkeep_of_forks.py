"""A branch whose tables came with indices from main is looked after as any other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import omnigraph

SCHEMA = "node P { name: String @key  age: I32? @index  bio: String? @index }\n"


def _people(prefix: str, count: int) -> list[dict[str, Any]]:
    return [{"type": "P", "data": {"name": f"{prefix}{n}", "age": n, "bio": f"text {n}"}} for n in range(count)]


def test_a_fork_that_came_with_indices_can_be_compacted_and_changed_again(tmp_path: Path) -> None:
    graph = omnigraph.init(tmp_path / "graph", SCHEMA)
    for prefix in "abc":
        graph.load(_people(prefix, 20), mode="append")
    graph.ensure_indices()
    graph.create_branch("other")
    for prefix in "xyz":
        graph.load(_people(prefix, 10), mode="merge", branch="other")
    graph.optimize("other")
    graph.load(_people("a", 3), mode="merge", branch="other")
    graph.mutate('query q() { update P set { age: 99 } where name = "b1" }', branch="other")
    graph.mutate('query q() { delete P where name = "c1" }', branch="other")
    graph.merge("other")

    ages = {
        row["p.name"]: row["p.age"]
        for row in graph.query("query q() { match { $p: P } return { $p.name, $p.age } }").rows
    }
    assert (len(ages), ages["b1"], "c1" in ages, ages["x9"]) == (89, 99, False, 9)
