"""Entity resolution: pairs by key, words and vectors; merged nodes have the edges of all; undone by one revert."""

from __future__ import annotations

import json
import random
import re
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import omnigraph
from omnigraph.errors import ConstraintError, OptionError
from omnigraph.graph import Graph
from tests.support.cli import command

SCHEMA = """
node Person { slug: String @key  name: String?  email: String?  age: I32?  face: Vector(4)?  city: String? }
node Company { name: String @key }
edge Knows: Person -> Person { since: I32? }
edge WorksAt: Person -> Company @card(0..1)
"""


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    return omnigraph.init(tmp_path / "people", SCHEMA)


def person(slug: str, **more: Any) -> dict[str, Any]:
    return {"type": "Person", "data": {"slug": slug, **more}}


def edge(kind: str, source: str, target: str, **more: Any) -> dict[str, Any]:
    return {"edge": kind, "from": source, "to": target, "data": more}


def people(graph: Graph) -> dict[str, dict[str, Any]]:
    rows = (json.loads(line)["data"] for line in graph.export(types=["Person"]))
    return {row["slug"]: {name: value for name, value in row.items() if name not in ("id", "slug")} for row in rows}


def edges(graph: Graph, kind: str) -> list[tuple[str, str]]:
    return sorted((row["from"], row["to"]) for row in map(json.loads, graph.export(types=[kind])))


def test_nodes_of_one_key_become_one_with_the_edges_of_all_and_a_revert_undoes_it(graph: Graph) -> None:
    graph.load(
        [
            person("ann", email="Ann@x.org ", age=30),
            person("ann2", email="ann@x.org", name="Ann"),
            person("ann3", email="ann@X.org", name="Anne"),
            person("bob"),
            person("cem", email=""),
            person("dan", email=""),
            {"type": "Company", "data": {"name": "acme"}},
            edge("Knows", "ann2", "bob"),
            edge("Knows", "bob", "ann3"),
            edge("Knows", "ann", "ann3"),
            edge("Knows", "ann", "bob"),
            edge("Knows", "ann3", "bob", since=5),
            edge("WorksAt", "ann2", "acme"),
        ],
        mode="append",
    )
    before = sorted(graph.export())

    planned = graph.resolve("Person", key=["email"], dry_run=True)
    done = graph.resolve("Person", key=["email"], actor="eve")

    assert sorted(before) != sorted(graph.export())
    assert (planned.groups, planned.commit) == (done.groups, None)
    assert [(one.kept, one.merged) for one in done.groups] == [("ann", ("ann2", "ann3"))]
    assert sorted(people(graph)) == ["ann", "bob", "cem", "dan"]
    assert {**people(graph)["ann"], "face": None} == {
        "name": "Ann", "email": "Ann@x.org ", "age": 30, "face": None, "city": None,
    }  # fmt: skip
    assert edges(graph, "Knows") == [("ann", "bob"), ("ann", "bob"), ("bob", "ann")], "one of them has another property"
    assert edges(graph, "WorksAt") == [("ann", "acme")]
    assert (done.edges_moved, done.edges_dropped) == (3, 2)
    assert done.commit
    assert (done.commit.details or {})["resolved"] == {"type": "Person", "merged": {"ann": ["ann2", "ann3"]}}
    graph.revert(done.commit.commit_id)
    assert sorted(graph.export()) == before
    assert graph.resolve("Person", key=["email"], branch="main", dry_run=True).merged == 2


def test_alike_words_make_pairs_with_their_scores(graph: Graph) -> None:
    names = {"a": "Ann Maria Lee", "b": "lee, ann maria", "c": "Ann Lee", "d": "Bob Ray", "e": "", "f": None}
    graph.load([person(slug, name=name) for slug, name in names.items()], mode="append")

    found = graph.resolve("Person", words="name", threshold=0.6, dry_run=True)

    assert [(one.left, one.right, one.score) for one in found.candidates] == [
        ("a", "b", 1.0),
        ("a", "c", pytest.approx(2 / 3)),
        ("b", "c", pytest.approx(2 / 3)),
    ]
    assert [(one.kept, one.merged) for one in found.groups] == [("a", ("b", "c"))]


def test_pairs_by_words_are_those_of_a_plain_comparison(graph: Graph) -> None:
    chosen = random.Random(5)  # noqa: S311 - the same names each time
    words = [f"w{number}" for number in range(12)]
    names = {f"p{number:03d}": " ".join(chosen.choices(words, k=chosen.randint(1, 5))) for number in range(60)}
    graph.load([person(slug, name=name) for slug, name in names.items()], mode="append")

    found = graph.resolve("Person", words="name", threshold=0.5, dry_run=True)

    sets = {slug: set(re.split(r"\W+", name)) for slug, name in names.items()}
    expected = {
        (a, b): len(sets[a] & sets[b]) / len(sets[a] | sets[b])
        for a, b in combinations(sorted(sets), 2)
        if len(sets[a] & sets[b]) / len(sets[a] | sets[b]) >= 0.5
    }
    assert len(expected) > 50
    assert {(one.left, one.right): one.score for one in found.candidates} == pytest.approx(expected, abs=1e-6)


def test_near_vectors_are_compared_within_a_block(graph: Graph) -> None:
    chosen = np.random.default_rng(3)
    vectors = chosen.normal(size=(30, 4))
    vectors[1], vectors[2] = vectors[0] * 2, vectors[0]
    rows = [person(f"p{n:02d}", face=v.tolist(), city="Oslo" if n == 2 else "Rome") for n, v in enumerate(vectors)]
    graph.load([*rows, person("none", city="Rome")], mode="append")

    everywhere = graph.resolve("Person", vector="face", threshold=0.999, dry_run=True)
    blocked = graph.resolve("Person", vector="face", threshold=0.999, block="city", dry_run=True)

    assert {(one.left, one.right) for one in everywhere.candidates} >= {("p00", "p01"), ("p00", "p02"), ("p01", "p02")}
    assert [(one.left, one.right) for one in blocked.candidates] == [("p00", "p01")]
    assert graph.resolve("Person", vector="face", threshold=0.999, block="city").merged == 1
    assert "p01" not in people(graph)


def test_reviewed_pairs_are_merged_from_the_command_line(graph: Graph, tmp_path: Path) -> None:
    graph.load([person(slug, name="Ann Lee") for slug in ("a", "b", "c")], mode="append")
    options = ["resolve", "Person", "--store", graph.uri]
    planned = command(*options, "--words", "name", "--dry-run", "--json")
    document = json.loads(planned.out)
    assert len(document["candidates"]) == 3
    assert "1.000 a b" in command(*options, "--words", "name", "--dry-run").out
    document["candidates"] = [one for one in document["candidates"] if (one["left"], one["right"]) == ("b", "c")]
    (tmp_path / "pairs.json").write_text(json.dumps(document))

    done = command(*options, "--pairs", str(tmp_path / "pairs.json"), "--quiet")

    assert done.out == "merged 1 nodes of Person into 1: 0 edges moved, 0 dropped\n"
    assert sorted(people(graph)) == ["a", "b"]


def test_a_merge_that_breaks_a_rule_changes_nothing(graph: Graph) -> None:
    graph.load(
        [
            person("a", email="x"),
            person("b", email="x"),
            *({"type": "Company", "data": {"name": name}} for name in ("acme", "zeta")),
            edge("WorksAt", "a", "acme"),
            edge("WorksAt", "b", "zeta"),
        ],
        mode="append",
    )

    for dry_run in (True, False):
        with pytest.raises(ConstraintError) as caught:
            graph.resolve("Person", key=["email"], dry_run=dry_run)
        assert [one.rule for one in caught.value.violations] == ["cardinality"]
    assert sorted(people(graph)) == ["a", "b"]


def test_another_branch_and_chains_of_pairs(graph: Graph) -> None:
    slugs = [f"p{number:03d}" for number in range(50)]
    graph.load([person(slug) for slug in slugs], mode="append")
    graph.create_branch("review")
    pairs = [[a, b] for a, b in pairwise(slugs) if b != "p025"]
    random.Random(1).shuffle(pairs)  # noqa: S311 - any order

    done = graph.resolve("Person", pairs=pairs, branch="review")

    assert [one.kept for one in done.groups] == ["p000", "p025"]
    assert len(people(graph)) == 50
    graph.merge("review")
    assert sorted(people(graph)) == ["p000", "p025"]


@pytest.mark.parametrize(
    "options, option",
    [
        ({"type_name": "Persn", "key": ["email"]}, "type_name"),
        ({}, "key"),
        ({"key": ["email"], "words": "name"}, "key"),
        ({"key": ["mail"]}, "key"),
        ({"words": "face"}, "words"),
        ({"vector": "name"}, "vector"),
        ({"words": "name", "block": "face"}, "block"),
        ({"words": "name", "threshold": 0}, "threshold"),
        ({"pairs": [["a"]]}, "pairs"),
        ({"pairs": [["a", "zz"]]}, "pairs"),
    ],
)
def test_wrong_options_are_refused(graph: Graph, options: dict[str, Any], option: str) -> None:
    graph.load([person("a")], mode="append")

    with pytest.raises(OptionError) as caught:
        graph.resolve(**{"type_name": "Person", **options})

    assert caught.value.option == option
    assert len(graph.commits()) == 2
