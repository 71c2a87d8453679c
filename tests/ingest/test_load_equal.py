"""Loads in this process, by the pipeline and on Spark: random inputs, clean and dirty, must come to the same end."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import omnigraph
from omnigraph.errors import LoadRejectedError
from omnigraph.graph import Graph
from tests.support.faults import assert_settled
from tests.support.loads import by_pipeline, left_over, rows_of, store_of, without_made

SCHEMA = """
node Person {
    name: String @key
    nick: String? @unique
    first: String?
    last: I32?
    age: I32?
    @unique(first, last)
    @range(age, 0..120)
}
node Note { text: String  rank: F64? @unique  day: Date? }
node Slot { tenant: String  at: U32  @key(tenant, at) }
edge Knows: Person -> Person @card(0..2) { how: enum(well, hardly)? }
edge Wrote: Person -> Note @card(1..2) { @unique(src, dst) }
edge Holds: Note -> Slot
"""
PARQUET = {
    "Person": {"name": "string", "nick": "string", "first": "string", "last": "int32", "age": "int32"},
    "Note": {"id": "string", "text": "string", "rank": "double", "day": "date32"},
    "Slot": {"tenant": "string", "at": "uint32"},
    "Knows": {"id": "string", "from": "string", "to": "string", "how": "string"},
    "Wrote": {"id": "string", "from": "string", "to": "string"},
    "Holds": {"id": "string", "from": "string", "to": "string"},
}
EDGES = ("Knows", "Wrote", "Holds")
BAD_LINES = (
    "{",
    "[]",
    "x" * 90,
    '{"type": "Persn", "data": {}}',
    '{"edge": "Knows", "from": "ann", "to": 1}',
    '{"type": "Person", "data": {"name": "ann", "name": "bob"}}',
    '{"type": "Person", "data": {"name": "ann", "age": "old"}}',
    '{"type": "Person", "data": {"name": "ann", "id": "bob"}}',
    '{"type": "Person", "data": {"age": 1}}',
    '{"type": "Note", "data": {"text": "t", "day": "2024-02-30"}}',
    '{"type": "Note", "data": {"text": "t"}, "_rowid": 1}',
)
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Load:
    """Rows of some types, lines that are none, and how they are put into files."""

    mode: str
    rows: tuple[tuple[str, Row], ...]
    bad: tuple[tuple[int, str], ...] = ()
    format: str = "jsonl"
    files: int = 1
    split: int = 60
    shares: int = 3


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


def files_of(load: Load, folder: Path) -> list[Path]:
    """Write the files of a load."""
    parts = [load.rows[at :: load.files] for at in range(load.files)]
    if load.format != "jsonl":
        write = _write_csv if load.format == "csv" else _write_parquet
        return [
            write(folder / str(at) / f"{name}.{load.format}", name, [row for type_, row in part if type_ == name])
            for at, part in enumerate(parts)
            for name in sorted({name for name, _ in part})
        ]
    texts = [[json.dumps(_record(name, row), ensure_ascii=False) for name, row in part] for part in parts]
    for at, line in load.bad:
        texts[0].insert(at, line)
    found = [folder / f"{at}.jsonl" for at in range(load.files)]
    for path, lines in zip(found, texts, strict=True):
        path.write_text("\n".join(lines), encoding="utf-8")
    return found


def _record(name: str, row: Row) -> Row:
    if name not in EDGES:
        return {"type": name, "data": row}
    data = {key: value for key, value in row.items() if key not in ("from", "to")}
    return {"edge": name, "from": row["from"], "to": row["to"], **({"data": data} if data else {})}


def _write_csv(path: Path, name: str, rows: list[Row]) -> Path:
    path.parent.mkdir(exist_ok=True)
    lines = [",".join(_quoted(row.get(column)) for column in PARQUET[name]) for row in rows]
    path.write_text("".join(f"{line}\n" for line in (",".join(PARQUET[name]), *lines)), encoding="utf-8")
    return path


def _quoted(value: object) -> str:
    """Spell a value; an empty one is null, and texts are quoted to be none."""
    if value is None:
        return ""
    return '"' + value.replace('"', '""') + '"' if isinstance(value, str) else str(value)


def _write_parquet(path: Path, name: str, rows: list[Row]) -> Path:
    path.parent.mkdir(exist_ok=True)
    schema = pa.schema([(column, pa.type_for_alias(kind)) for column, kind in PARQUET[name].items()])
    texts = (
        schema if "day" not in PARQUET[name] else schema.set(schema.get_field_index("day"), pa.field("day", "string"))
    )
    pq.write_table(pa.Table.from_pylist(rows, schema=texts).cast(schema), path, row_group_size=3)
    return path


# Outcomes ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Outcome:
    """All that a person can see of a load: what it told, and what is in the graph afterwards."""

    told: Any
    rows: Mapping[str, Counter[str]]
    commits: int


def outcome_of(graph: Graph, files: list[Path], mode: str, engine: str = "local") -> Outcome:
    before = [commit.commit_id for commit in graph.commits()]
    told: Any
    try:
        done = graph.load(files, mode=mode, engine=engine)
        told = (done.nodes, done.edges, done.commit is not None)
    except LoadRejectedError as error:
        told = (type(error).__name__, error.message, error.hint, [_told(one) for one in error.violations])
        assert [commit.commit_id for commit in graph.commits()] == before
    store = store_of(graph.uri)
    assert_settled(store)
    assert left_over(graph.uri) == []
    found = rows_of(store)
    assert broken_rules(found) == []
    rows = {
        key: Counter(json.dumps({**row, "id": without_made(row["id"])}, default=str) for row in some)
        for key, some in found.items()
    }
    return Outcome(told, rows, len(graph.commits()))


def _told(problem: Any) -> Row:
    return {
        **problem.to_dict(),
        "id": without_made(problem.entity_id) if problem.entity_id else problem.entity_id,
        "hint": problem.hint,
    }


def broken_rules(rows: Mapping[str, list[Row]]) -> list[str]:
    """Every rule of SCHEMA that a graph breaks, found by looking at all of it."""
    people, notes, slots, knows, wrote, holds = (
        rows[key] for key in ("node:Person", "node:Note", "node:Slot", "edge:Knows", "edge:Wrote", "edge:Holds")
    )
    names, notes_there, slots_there = ({row["id"] for row in some} for some in (people, notes, slots))
    findings = {
        "an id is there twice": any(_repeats(row["id"] for row in some) for some in rows.values()),
        "a nick is there twice": _repeats(row["nick"] for row in people if row["nick"] is not None),
        "a name is there twice": _repeats(
            (row["first"], row["last"]) for row in people if row["first"] is not None and row["last"] is not None
        ),
        "a rank is there twice": _repeats(row["rank"] for row in notes if row["rank"] is not None),
        "an age is out of range": any(not 0 <= row["age"] <= 120 for row in people if row["age"] is not None),
        "somebody unknown knows": not names >= {end for row in knows for end in (row["src"], row["dst"])},
        "somebody unknown wrote": not names >= {row["src"] for row in wrote},
        "something unknown was written": not notes_there >= {row["dst"] for row in wrote},
        "something unknown is held": not notes_there >= {row["src"] for row in holds},
        "something unknown is a slot": not slots_there >= {row["dst"] for row in holds},
        "somebody knows too many": max(Counter(row["src"] for row in knows).values(), default=0) > 2,
        "somebody wrote too much": max(Counter(row["src"] for row in wrote).values(), default=0) > 2,
        "something was written twice": _repeats((row["src"], row["dst"]) for row in wrote),
    }
    return [rule for rule, is_broken in findings.items() if is_broken]


def _repeats(values: Any) -> bool:
    return max(Counter(values).values(), default=0) > 1


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


CLEAN = Load(
    "append",
    (
        ("Knows", {"from": "bob", "to": "ann", "how": "well"}),
        ("Person", {"name": "ann", "nick": "x", "first": "f", "last": 1}),
        ("Person", {"name": "bob", "nick": "y", "first": "f", "last": 2, "age": 5}),
        ("Note", {"id": "n1", "text": "t", "rank": 1.5}),
        ("Note", {"text": "u"}),
        ("Slot", {"tenant": "a", "at": 0}),
        ("Wrote", {"id": "w1", "from": "ann", "to": "n1"}),
        ("Holds", {"from": "n1", "to": '["0","a"]'}),
    ),
)
DIRTY = Load(
    "merge",
    (
        ("Person", {"name": "cat", "nick": "x", "age": 121}),
        ("Person", {"name": "dan", "first": "f", "last": 2}),
        ("Person", {"name": "dan"}),
        ("Wrote", {"id": "w1", "from": "bob", "to": "n1"}),
        ("Wrote", {"from": "zoe", "to": "n2"}),
        *(("Knows", {"from": "bob", "to": "bob"}) for _ in range(3)),
    ),
    ((2, "{"), (5, BAD_LINES[6])),
    files=2,
)
MOVING = Load(
    "merge",
    (
        ("Person", {"name": "ann", "nick": "y"}),
        ("Person", {"name": "bob", "nick": "x"}),
        ("Wrote", {"id": "w1", "from": "ann", "to": "n2"}),
        ("Wrote", {"id": "w2", "from": "bob", "to": "n1"}),
        ("Note", {"id": "n2", "text": "new"}),
    ),
    format="parquet",
)
SMALLER = Load(
    "overwrite",
    (
        ("Person", {"name": "ann"}),
        ("Knows", {"from": "ann", "to": "ann", "id": "k1"}),
        ("Wrote", {"from": "ann", "to": "n1"}),
    ),
    format="csv",
)


@pytest.mark.usefixtures("spark")
def test_spark_does_what_a_small_load_does(empty: Path, tmp_path: Path) -> None:
    small, spark = (omnigraph.open(shutil.copytree(empty, tmp_path / name)) for name in ("small", "spark"))
    for at, load in enumerate((CLEAN, DIRTY, MOVING, SMALLER)):
        (tmp_path / str(at)).mkdir()
        files = files_of(load, tmp_path / str(at))
        expected = outcome_of(small, files, load.mode)
        with by_pipeline(load.split, load.shares):
            found = outcome_of(spark, files, load.mode, "spark")
        assert found == expected
        assert (expected.told[0] == "LoadRejectedError") == (load is DIRTY)
