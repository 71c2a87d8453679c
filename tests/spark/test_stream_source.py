"""The changes of a graph as a stream: commits are offsets, and replayed they make the same graph."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import omnigraph
from omnigraph.graph import Graph
from omnigraph.spark.datasource import OmnigraphSource
from omnigraph.spark.source import ChangePart, ChangeStream

Change = dict[str, Any]
SCHEMA = "node Person { name: String @key  age: I32? }\nedge Knows: Person -> Person { since: Date? }"


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    return omnigraph.init(tmp_path / "people", SCHEMA)


def load(graph: Graph, mode: str = "merge", **ages: int) -> None:
    graph.load([{"type": "Person", "data": {"name": name, "age": age}} for name, age in ages.items()], mode=mode)


class Reader:
    """Calls a source as Spark does; each call reads what is available, and goes on where the last one ended."""

    def __init__(self, **options: str) -> None:
        self.options = options
        self.offset: dict[str, Any] | None = None
        self.meanwhile: Callable[[], object] = lambda: None

    def __call__(self, **options: str) -> list[list[Change]]:
        """Return the batches that are not empty."""
        source = OmnigraphSource({**self.options, **options})
        schema = source.schema()
        reader = source.streamReader(schema)
        assert isinstance(reader, ChangeStream)
        reader.prepareForTriggerAvailableNow()
        self.offset = json.loads(json.dumps(self.offset or reader.initialOffset()))
        batches = []
        while (end := json.loads(json.dumps(reader.latestOffset(self.offset, None)))) != self.offset:
            assert self.offset is not None
            found = [row for part in reader.partitions(self.offset, end) for row in _rows(reader, part)]
            batches.append(sorted(found, key=lambda row: str(row["id"])))
            self.offset = end
            self.meanwhile()
        return [batch for batch in batches if batch]


def _rows(reader: ChangeStream, part: ChangePart) -> Iterator[Change]:
    part = pickle.loads(pickle.dumps(part))  # noqa: S301 - as it comes to a task
    for batch in reader.read(part):
        yield from batch.to_pylist()


def change(operation: str, name: str, before: int | None = None, after: int | None = None) -> Change:
    images = [None if age is None else {"name": name, "age": age} for age in (before, after)]
    return {"operation": operation, "id": name, "before": images[0], "after": images[1]}


def test_a_stream_begins_with_all_rows_and_goes_on_with_the_changes(graph: Graph) -> None:
    read = Reader(graph=graph.uri, type="Person", since="")
    load(graph, ann=30, bob=40)
    load(graph, bob=41)

    assert read() == [[change("insert", "ann", after=30), change("insert", "bob", after=41)]]
    assert read() == []
    load(graph, ann=31, eve=1)
    graph.mutate('query q() { delete Person where name = "bob" }')
    graph.optimize()
    # One batch: each id once, with its row before the first of the commits and after the last.
    assert read() == [
        [change("update", "ann", 30, 31), change("delete", "bob", before=41), change("insert", "eve", after=1)]
    ]


def test_a_batch_has_as_many_commits_as_are_allowed_and_a_query_ends_where_the_branch_was(graph: Graph) -> None:
    load(graph, ann=1)
    start = graph.commits()[0].commit_id
    for age in (2, 3, 4):
        load(graph, ann=age)
    read = Reader(graph=graph.uri, type="Person", since=start, maxCommits="1")
    read.meanwhile = lambda: load(graph, ann=5)
    assert read() == [[change("update", "ann", age - 1, age)] for age in (2, 3, 4)]
    assert read() == [[change("update", "ann", 4, 5)]], "what was written meanwhile"


def test_a_stream_that_is_replayed_into_an_empty_graph_makes_the_same_graph(graph: Graph, tmp_path: Path) -> None:
    copy = omnigraph.init(tmp_path / "copy", SCHEMA)
    readers = [Reader(graph=graph.uri, type=name, since="", maxCommits="1") for name in ("Person", "Knows")]

    def replay() -> None:
        people, knows = [[row for batch in read() for row in batch] for read in readers]
        records = [{"type": "Person", "data": row["after"]} for row in people if row["after"]]
        records += [
            {
                "edge": "Knows",
                "from": row["after"]["src"],
                "to": row["after"]["dst"],
                "data": {"id": row["id"], "since": row["after"]["since"]},
            }
            for row in knows
            if row["after"]
        ]
        if records:
            copy.load(records, mode="merge")
        # Its edges go with a node, as they did in the graph.
        for row in (one for one in people if one["operation"] == "delete"):
            copy.mutate(f'query q() {{ delete Person where name = "{row["id"]}" }}')

    load(graph, ann=1, bob=2, eve=3)
    replay()
    graph.load([{"edge": "Knows", "from": "ann", "to": "bob", "data": {"since": "2024-01-01"}}], mode="append")
    load(graph, ann=7)
    replay()
    graph.mutate('query q() { delete Person where name = "bob" }')
    load(graph, kim=9)
    replay()

    assert sorted(copy.export()) == sorted(graph.export())


def test_a_schema_that_changes_under_a_stream_stops_it_until_it_starts_again(graph: Graph) -> None:
    load(graph, ann=1)
    read = Reader(graph=graph.uri, type="Person", since="", maxCommits="1")

    def change_schema() -> None:
        graph.apply_schema(SCHEMA.replace("age: I32?", "age: I32?  city: String?"))
        graph.load([{"type": "Person", "data": {"name": "bob", "city": "Rome"}}], mode="merge")

    read.meanwhile = change_schema
    assert len(read()) == 1
    read.meanwhile = lambda: None
    found = [row for batch in read() for row in batch]
    assert [(row["id"], row["after"]["city"]) for row in found if row["operation"] == "insert"] == [("bob", "Rome")]


def test_a_checkpoint_of_another_graph_is_refused(graph: Graph, tmp_path: Path) -> None:
    load(graph, ann=1)
    read = Reader(graph=graph.uri, type="Person", since="")
    read()
    other = omnigraph.init(tmp_path / "other", SCHEMA)
    load(other, bob=2)

    with pytest.raises(Exception, match="the checkpoint is one of another graph"):
        read(graph=other.uri)


@pytest.mark.parametrize(
    "options, message",
    [
        ({}, "there is no `since`"),
        ({"since": "", "until": "main"}, "a stream of changes has no end"),
        ({"since": "", "maxCommits": "0"}, "the maxCommits '0' is no number"),
        ({"since": "nowhere"}, "nowhere"),
        ({"since": "", "type": "Persn"}, "unknown type 'Persn'"),
    ],
)
def test_wrong_options_are_refused(graph: Graph, options: dict[str, str], message: str) -> None:
    read = Reader(graph=graph.uri, **{"type": "Person", **options})

    with pytest.raises(Exception, match=message):
        read()
