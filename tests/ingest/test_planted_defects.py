"""Many defects among many records: each is found at its line and no other; without them all is one commit.

`make soak` does it with a million nodes and five million edges, on Spark; the suite with fewer, in this process.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import omnigraph
from omnigraph.errors import LoadRejectedError
from omnigraph.graph import Graph
from omnigraph.ingest.problems import FIRST
from tests.support.faults import assert_settled, pins
from tests.support.loads import edge, left_over, node, store_of

SOAKING = "OMNIGRAPH_SOAK" in os.environ
NODES, LIKES, EACH = (1_000_000, 3, 1_000) if SOAKING else (20_000, 1, 100)
KNOWS = 2
EDGES = NODES * (KNOWS + LIKES)
ENGINE = "spark" if SOAKING else "local"
SCHEMA = """
node Person {
    name: String @key
    nick: String? @unique
    age: I32?
    mood: enum(calm, sad)?
    mail: String?
    first: String?
    last: I64?
    day: Date?
    @unique(first, last)
    @range(age, 0..150)
    @check(mail, "@")
}
node Note { text: String }
edge Knows: Person -> Person @card(0..4) { since: Date? }
edge Likes: Person -> Note { @unique(src, dst) }
"""

Record = dict[str, Any] | str
Defect = tuple[Record, tuple[str, ...]]


def clean_nodes() -> Iterator[Record]:
    for at in range(NODES):
        yield node("Person", name=f"p{at}", nick=f"n{at}", age=at % 150, first="f", last=at, day=at, mail="a@b")


def clean_edges() -> Iterator[Record]:
    """Some from everybody: to two people, and to notes."""
    for at in range(NODES):
        yield edge("Knows", f"p{at}", f"p{(at * 7 + 1) % NODES}", since="2024-01-01")
        yield edge("Knows", f"p{at}", f"p{(at * 11 + 2) % NODES}", id=f"k{at}")
        yield from (edge("Likes", f"p{at}", f"note{(at + more) % 50}") for more in range(LIKES))


def node_defects(at: int) -> list[Defect]:
    """One of each kind, with the rules that it breaks. Nothing else is wrong because of it."""
    new = f"new{at}"
    return [
        ('{"type":"Person","data":{"name":"' + new, ("json",)),
        ('{"type":"Person","data":{"name":"a","name":"b"}}', ("json",)),
        (node("Persn", name=new), ("shape",)),
        (node("Person", name=new, nope=1), ("shape",)),
        ({**node("Person", name=new), "_rowid": at}, ("shape",)),
        (node("Person", name=new, age="1"), ("type",)),
        (node("Person", name=new, day="2024-02-30"), ("type",)),
        (node("Person", age=1), ("required",)),
        (node("Note"), ("required",)),
        (node("Person", name=new, id="other"), ("key",)),
        (node("Person", name=f"old{at}"), ("key",)),
        (node("Person", name=f"range{at}", age=151), ("range",)),
        (node("Person", name=f"enum{at}", mood="cross"), ("enum",)),
        (node("Person", name=f"check{at}", mail="nothing"), ("check",)),
        (node("Person", name=f"p{at * 3}", nick=f"twice{at}"), ("unique",)),
        (node("Person", name=f"nick{at}", nick=f"n{at * 5 + 1}"), ("unique",)),
        (node("Person", name=f"taken{at}", nick=f"oldnick{at}"), ("unique",)),
        (node("Person", name=f"pair{at}", first="f", last=at * 7 + 2), ("unique",)),
    ]


def edge_defects(at: int) -> list[Defect]:
    """As above. A source that has too many edges is told of at the last one of them."""
    hundred = at * 100
    return [
        (edge("Knows", f"p{hundred + 7}", f"nobody{at}"), ("endpoint",)),
        (edge("Likes", f"nobody{at}", "note1"), ("endpoint",)),
        (edge("Likes", f"nobody{at}", f"nothing{at}"), ("endpoint", "endpoint")),
        (edge("Knows", f"p{hundred + 20}", "p1", id=f"k{at}"), ("key",)),
        (edge("Likes", f"p{hundred + 30}", f"note{(hundred + 30) % 50}"), ("unique",)),
        (edge("Knows", f"p{hundred + 50}", "p1"), ()),
        (edge("Knows", f"p{hundred + 50}", "p2"), ()),
        (edge("Knows", f"p{hundred + 50}", "p3"), ("cardinality",)),
        (edge("Knows", "p1", "p2", since=True), ("type",)),
        ({"edge": "Knows", "from": "p1"}, ("shape",)),
    ]


def planted(records: Iterator[Record], count: int, defects: Callable[[int], list[Defect]]) -> Iterator[Defect]:
    """Put one of each kind behind every part of the records."""
    for at in range(EACH):
        yield from ((record, ()) for record in islice(records, count // EACH))
        yield from defects(at)


def write_dirty(path: Path, records: Iterable[Defect]) -> Iterator[tuple[str, int, str]]:
    """Write records, and yield what is wrong with them: file, line and rule."""
    with path.open("w", encoding="utf-8") as file:
        for line, (record, rules) in enumerate(records, 1):
            file.write(spelled(record))
            yield from ((path.name, line, rule) for rule in rules)


def write_clean(path: Path, records: Iterable[Record]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(map(spelled, records))


def spelled(record: Record) -> str:
    return f"{record if isinstance(record, str) else json.dumps(record)}\n"


def state(graph: Graph) -> tuple[list[str], dict[str, Any]]:
    """The commits and what they name; no write may have left anything behind."""
    store = store_of(graph.uri)
    assert_settled(store)
    assert left_over(graph.uri) == []
    return [commit.commit_id for commit in graph.commits()], dict(pins(store))


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    """A graph with some people of old, beside whom the many are loaded."""
    graph = omnigraph.init(tmp_path / "graph", SCHEMA)
    old = (node("Person", name=f"old{at}", nick=f"oldnick{at}") for at in range(EACH))
    graph.load([*old, *(node("Note", id=f"note{at}", text="t") for at in range(50))], mode="append")
    return graph


@pytest.mark.slow
def test_every_defect_among_many_records_is_found_at_its_line_and_the_clean_ones_are_one_commit(
    graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not SOAKING:
        monkeypatch.setattr("omnigraph.formats.sources.SPLIT", 2**19)
    before = state(graph)
    edges, nodes, rejects = (tmp_path / name for name in ("edges.jsonl", "nodes.jsonl", "rejects"))
    expected = [
        *write_dirty(edges, planted(clean_edges(), EDGES, edge_defects)),
        *write_dirty(nodes, planted(clean_nodes(), NODES, node_defects)),
    ]

    with pytest.raises(LoadRejectedError) as caught:
        graph.load([edges, nodes], mode="append", engine=ENGINE, rejects=rejects)

    found = [(Path(str(one.file)).name, one.line, one.rule) for one in caught.value.violations]
    assert found == expected[:FIRST]
    told = [json.loads(line) for line in rejects.read_text().splitlines()]
    assert sorted((Path(one["file"]).name, one["line"], one["rule"]) for one in told) == sorted(expected)
    by_rule = Counter(rule for _, _, rule in expected)
    assert sum((Counter({one.rule: one.count}) for one in caught.value.counts), Counter()) == by_rule
    assert state(graph) == before

    write_clean(edges, clean_edges())
    write_clean(nodes, clean_nodes())
    done = graph.load([edges, nodes], mode="append", engine=ENGINE)

    assert (done.nodes, done.edges) == ({"Person": NODES}, {"Knows": KNOWS * NODES, "Likes": LIKES * NODES})
    assert len(state(graph)[0]) == len(before[0]) + 1
    rows = {key: entry.row_count for key, entry in graph.snapshot().entries.items()}
    assert rows == {
        "node:Person": NODES + EACH,
        "node:Note": 50,
        "edge:Knows": KNOWS * NODES,
        "edge:Likes": LIKES * NODES,
    }
