"""Loads in this process and by the pipeline: random inputs, clean and dirty, must come to the same end.

Those on Spark are in tests/spark/test_behaviour.py.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import omnigraph
from tests.support.loads import by_pipeline
from tests.support.outcomes import BAD_LINES, SCHEMA, Load, Row, files_of, outcome_of

# Inputs --------------------------------------------------------------------------------------------

NAMES = st.sampled_from(["ann", "bob", "cat", "dan", "Ünä"])
NOTES = st.sampled_from(["n1", "n2", "n3"])
PEOPLE = st.fixed_dictionaries(
    {"name": NAMES},
    optional={
        "nick": st.sampled_from(["x", "y", "z", "v", "w", ""]),
        "first": st.sampled_from(["f", "g"]),
        "last": st.sampled_from([1, 2]),
        "age": st.sampled_from([5, 6, 7, 120, 121]),
    },
)
ROWS: dict[str, st.SearchStrategy[Row]] = {
    "Person": PEOPLE,
    "Note": st.fixed_dictionaries(
        {"text": st.sampled_from(["t", "u", "", "long" * 30])},
        optional={"id": NOTES, "rank": st.sampled_from([0.0, -0.0, 1.5, 2.5, 1e300]), "day": st.just("2024-02-29")},
    ),
    "Slot": st.fixed_dictionaries({"tenant": st.sampled_from(["a", 'b"']), "at": st.integers(0, 2)}),
    "Knows": st.fixed_dictionaries(
        {"from": NAMES, "to": NAMES},
        optional={"id": st.sampled_from(["k1", "k2", "k3"]), "how": st.sampled_from(["well", "hardly", "never"])},
    ),
    "Wrote": st.fixed_dictionaries(
        {"from": NAMES, "to": NOTES}, optional={"id": st.sampled_from(["w1", "w2", "w3", "w4"])}
    ),
    "Holds": st.fixed_dictionaries(
        {"from": NOTES, "to": st.sampled_from(['["0","a"]', '["1","b\\""]'])},
        optional={"id": st.sampled_from(["h1", "h2"])},
    ),
}
ANY_ROW = st.sampled_from([*ROWS, "Knows", "Wrote"]).flatmap(lambda name: st.tuples(st.just(name), ROWS[name]))


def _tidied(rows: list[tuple[str, Row]], mode: str) -> Iterator[tuple[str, Row]]:
    """Leave out most of what a load would be refused for: what is there twice, and what is never right."""
    seen: set[tuple[Any, ...]] = set()
    for name, row in rows:
        keys: list[tuple[Any, ...]] = (
            [(name, row["id"])] if "id" in row and (mode != "merge" or name == "Wrote") else []
        )
        keys += [(name, column, row[column]) for column in ("name", "nick", "rank") if column in row]
        keys += [(name, row.get("first"), row.get("last"))] if {"first", "last"} <= set(row) else []
        keys += [(name, row["tenant"], row["at"])] if name == "Slot" else []
        keys += [(name, row["from"], row["to"])] if name == "Wrote" else []
        if not seen & {*keys} and row.get("age") != 121 and row.get("how") != "never":
            seen |= {*keys}
            yield name, row


@st.composite
def loads(draw: st.DrawFn, *, first: bool) -> Load:
    mode = draw(st.sampled_from(["append", "merge", "merge", "overwrite"]))
    rows = draw(st.lists(ANY_ROW, max_size=12))
    if first:  # so that edges have somewhere to go
        rows += [("Person", {"name": name}) for name in draw(st.sets(NAMES, min_size=2))]
        rows += [("Note", {"id": name, "text": "t"}) for name in draw(st.sets(NOTES, min_size=1))]
    tidy = first or draw(st.booleans())
    bad = () if tidy else draw(st.lists(st.tuples(st.integers(0, 12), st.sampled_from(BAD_LINES)), max_size=2))
    return Load(
        mode,
        tuple(_tidied(rows, mode) if tidy else rows),
        tuple(bad),
        draw(st.sampled_from(["jsonl", "jsonl", "csv", "parquet"])),
        draw(st.integers(1, 3)),
        draw(st.sampled_from([30, 90, 1000])),
        draw(st.sampled_from([1, 2, 5])),
    )


HISTORIES = st.tuples(loads(first=True), st.lists(loads(first=False), min_size=2, max_size=4)).map(
    lambda parts: (parts[0], *parts[1])
)

# Tests ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    uri = tmp_path_factory.mktemp("empty") / "graph"
    omnigraph.init(uri, SCHEMA)
    return uri


@given(history=HISTORIES)
@settings(
    max_examples=settings().max_examples // 4,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
def test_the_pipeline_does_what_a_small_load_does(history: tuple[Load, ...], empty: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        small, big = (omnigraph.open(shutil.copytree(empty, Path(folder, name))) for name in ("small", "big"))
        for at, load in enumerate(history):
            Path(folder, str(at)).mkdir()
            files = files_of(load, Path(folder, str(at)))
            expected = outcome_of(small, files, load.mode)
            with by_pipeline(load.split, load.shares):
                found = outcome_of(big, files, load.mode)
            assert found == expected
