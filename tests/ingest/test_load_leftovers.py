"""What a load leaves behind, which is nothing; and what is said the same way however the load is done."""

from __future__ import annotations

import datetime as dt
import os
import time
from pathlib import Path

import pyarrow as pa
import pytest

import omnigraph
from omnigraph.errors import LoadRejectedError, OptionError
from omnigraph.graph import Graph
from tests.support.loads import (
    PIPELINE,
    SMALL,
    Death,
    by_pipeline,
    copied,
    die,
    edge,
    left_over,
    lines,
    load_by,
    look,
    make_graph,
    node,
    writes_of,
)

NUMBERS = "node Mark { name: String @key  value: F64? @unique }"


@pytest.fixture
def people(tmp_path: Path) -> Graph:
    return make_graph("people", tmp_path / "people")


def problems(graph: Graph, way: str, data: object) -> list[str]:
    with pytest.raises(LoadRejectedError) as caught:
        load_by(way, graph, data, "merge")
    return [str(one) for one in caught.value.violations]


def test_the_two_zeros_and_what_is_no_number_are_told_alike_on_both_ways(tmp_path: Path) -> None:
    graph = omnigraph.init(tmp_path / "marks", NUMBERS)
    graph.load([node("Mark", name="there", value=0.0)], mode="append")
    infinite = float("inf")
    rows = {"Mark": pa.table({"name": list("abcd"), "value": [-0.0, 0.0, infinite, infinite]})}

    found = {way: problems(graph, way, rows) for way in (SMALL, PIPELINE)}

    assert found[SMALL] == found[PIPELINE]
    assert not any("-0.0" in text for text in found[SMALL])
    assert sum("@unique" in text for text in found[SMALL]) == 3, "one is there twice, and both are taken"


def test_a_refused_load_leaves_no_state_behind_that_was_made_to_look_at_it(people: Graph) -> None:
    before = {path for path in Path(people.uri).rglob("*") if path.is_file()}
    wrong = [node("Person", name="Alice"), node("Person", name="New"), edge("Knows", "New", "Nobody")]

    with pytest.raises(LoadRejectedError):
        load_by(PIPELINE, people, wrong, "append")

    assert {path for path in Path(people.uri).rglob("*") if path.is_file() and "__gates" not in path.parts} <= before


def test_a_load_that_replaces_rows_of_its_own_leaves_only_what_it_published(people: Graph) -> None:
    twice = [edge("Knows", "Alice", "Bob", id="k9"), edge("Knows", "Bob", "Alice", id="k9")]

    load_by(PIPELINE, people, twice, "merge")

    assert left_over(people.uri) == []
    assert look(people).rows["Knows#k9 Bob -> Alice"] == 1


def test_a_cleanup_removes_what_a_killed_load_left_and_counts_its_bytes(people: Graph, tmp_path: Path) -> None:
    file = tmp_path / "input.jsonl"
    file.write_text(lines(node("Person", name="Eve"), node("Person", name="Frank"), edge("Knows", "Eve", "Alice")))
    writes = writes_of(copied(people.uri), str(file), "append")
    before = sizes(people.uri)
    die([Death(people.uri, str(file), "append", writes.index("commit table"))])  # the record is not written yet
    left = sum(sizes(people.uri).values()) - sum(before.values())
    assert len(sizes(people.uri)) - len(before) >= 3

    done = people.cleanup(keep=100, orphan_age=dt.timedelta(), confirm=True)

    assert sizes(people.uri) == before
    assert sum(one.bytes_removed for one in done.tables) + done.temporary.size == left
    assert not [one.error for one in done.tables if one.error]


def sizes(uri: str) -> dict[str, int]:
    """The files of a graph without its locks."""
    found = {str(path.relative_to(uri)): path.stat().st_size for path in Path(uri).rglob("*") if path.is_file()}
    return {name: size for name, size in found.items() if not name.startswith("__gates")}


def test_the_next_load_removes_what_a_load_left_that_died_long_ago(people: Graph) -> None:
    old, young = (Path(people.uri, "__tmp", name, "keys") for name in ("load-old", "load-young"))
    for file in (old, young):
        file.parent.mkdir(parents=True)
        file.write_bytes(b"keys")
    os.utime(old, (time.time() - 2 * 24 * 3_600,) * 2)

    with by_pipeline():
        people.load([node("Person", name="Eve")], mode="append", engine="local")

    assert not old.exists()
    assert young.exists(), "somebody may be loading"


@pytest.mark.parametrize(
    "option, given, possible",
    [("mode", {"mode": "upsert"}, "append, merge, overwrite"), ("engine", {"engine": "flink"}, "auto, local, spark")],
)
def test_an_option_that_there_is_not_is_told_with_those_that_there_are(
    people: Graph, option: str, given: dict[str, str], possible: str
) -> None:
    with pytest.raises(OptionError, match=f"unknown {option}") as caught:
        people.load([node("Person", name="Eve")], **{"mode": "append", **given})  # type: ignore[arg-type]

    assert (caught.value.option, caught.value.hint) == (option, f"use {possible}")


def test_an_export_by_something_that_there_is_not_is_refused(people: Graph, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="unknown engine 'flink'"):
        people.export(tmp_path / "out", engine="flink")
    assert not (tmp_path / "out").exists()
