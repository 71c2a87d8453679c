"""Upkeep of a graph on an object store: the same, with leases for gates."""

from __future__ import annotations

from collections import Counter

import omnigraph
from omnigraph.core.location import Location
from tests.maintenance.scene import (
    KNOWS,
    PERSON,
    add,
    cleaned,
    coverage,
    grown,
    made_of,
    manifest_versions,
    named,
    people,
    table_of,
)
from tests.support.cli import command
from tests.support.faults import assert_settled
from tests.support.mutations import store_of
from tests.support.s3 import S3Server


def test_a_graph_on_an_object_store_is_looked_after_as_any_other(s3_uri: str) -> None:
    graph = grown(s3_uri, people=3)
    graph.create_branch("feature")
    add(graph, 60, branch="feature")
    assert graph.optimize().commit
    assert graph.optimize("feature").commit
    assert [len(made_of(graph, key).parts) for key in (PERSON, KNOWS)] == [1, 1]
    assert all(coverage(graph, PERSON).values())
    assert graph.optimize().commit is None
    assert graph.cleanup(keep=1) != graph.cleanup(keep=1, confirm=True)
    assert sum(row.old_versions_removed for row in graph.cleanup(keep=1).tables) == 0
    cleaned(store_of(s3_uri), keep=1)
    left = [len(manifest_versions(store_of(s3_uri), branch)) for branch in (None, "feature")]
    assert max(left) <= 3, "the head, its commit, and on main where the branch began"
    by_hand = ("cleanup", s3_uri, "--keep", "1", "--confirm", "--json")
    assert command(*by_hand).code == 1
    assert command(*by_hand, "--yes").document["confirmed"]
    fresh = omnigraph.open(s3_uri)
    assert (len(people(fresh)), len(people(fresh, branch="feature"))) == (3, 4)
    assert named(fresh, "p2") == [2]
    assert {row.action.value for row in fresh.repair().tables} == {"no_op"}
    assert fresh.doctor().is_healthy
    assert_settled(store_of(s3_uri))


def test_lost_files_on_an_object_store_are_found_and_indices_mended(s3_uri: str) -> None:
    graph = grown(s3_uri, people=3)
    graph.optimize()
    add(graph, 60)
    store = store_of(s3_uri)
    assert omnigraph.open(s3_uri, read_only=True).doctor(deep=True).is_healthy
    below = table_of(graph, PERSON).path
    index = next(one.name for one in store.objects.list_below(f"{below}/_indices"))
    store.objects.delete(index)
    problems = {one.subject for one in omnigraph.open(s3_uri).doctor().findings if one.severity == "problem"}
    assert problems == {index.rpartition("/")[0]}
    assert omnigraph.open(s3_uri).repair(confirm=True).commits
    assert omnigraph.open(s3_uri).doctor().is_healthy
    add(omnigraph.open(s3_uri), 70)


def test_doctor_asks_for_pages_of_listings_and_not_for_files(s3_uri: str, s3_server: S3Server) -> None:
    types = [f"T{at}" for at in range(6)]
    graph = omnigraph.init(s3_uri, "".join(f"node {name} {{ name: String @key }}\n" for name in types))
    bucket = Location.parse(s3_uri).bucket

    def add_to_all(at: int) -> None:
        inserts = " ".join(f'insert {name} {{ name: "n{at}" }}' for name in types)
        graph.mutate(f"query q() {{ {inserts} }}")

    def asked() -> Counter[str]:
        before = s3_server.requests(bucket)
        assert omnigraph.open(s3_uri, read_only=True).doctor().is_healthy
        return s3_server.requests(bucket) - before

    for at in range(2):
        add_to_all(at)
    few = asked()
    for at in range(2, 8):
        add_to_all(at)
    many = asked()
    assert few.keys() == many.keys() <= {"get", "head", "list"}
    assert many["list"] == few["list"]
    assert many["head"] + many["get"] == few["head"] + few["get"]
