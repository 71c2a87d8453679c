"""Loads that are the same for every engine, and all that a person can see of what came of them."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import omnigraph
from omnigraph.errors import InputError, LoadRejectedError
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
    except (LoadRejectedError, InputError) as error:
        problems = error.violations if isinstance(error, LoadRejectedError) else ()
        told = (type(error).__name__, error.message, error.hint, [_told(one) for one in problems])
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


# A history of loads --------------------------------------------------------------------------------

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
BAD = Load("append", (("Person", {"name": "eve"}), ("Note", {"text": "t"})), tuple(enumerate(BAD_LINES)), files=2)
REFUSED = Load(
    "append",
    (
        ("Person", {"name": "ann"}),
        ("Person", {"name": "eve", "nick": "y"}),
        ("Person", {"name": "eve", "first": "f", "last": 1}),
        ("Slot", {"tenant": "a", "at": 0}),
        ("Note", {"id": "n1", "text": "t", "rank": 1.5}),
        ("Wrote", {"id": "w1", "from": "ann", "to": "n1"}),
        ("Knows", {"id": "k1", "from": "zoe", "to": "ann"}),
        *(("Knows", {"id": f"k{at}", "from": "ann", "to": "bob"}) for at in range(2, 5)),
        ("Holds", {"from": "n9", "to": '["7","a"]'}),
    ),
    format="parquet",
    files=2,
)
AGAIN = Load(
    "merge",
    (
        ("Knows", {"id": "k1", "from": "zoe", "to": "ann"}),
        ("Knows", {"id": "k1", "from": "ann", "to": "bob"}),
        ("Person", {"name": "ann", "nick": "z", "age": 7}),
    ),
    format="csv",
)
DROPPED = Load("overwrite", (("Note", {"id": "n2", "text": "t"}),), format="parquet")
NOTHING = Load("append", ())
HISTORY = {
    "clean": CLEAN,
    "dirty": DIRTY,
    "bad": BAD,
    "refused": REFUSED,
    "nothing": NOTHING,
    "moving": MOVING,
    "again": AGAIN,
    "dropped": DROPPED,
    "smaller": SMALLER,
}


def write_history(folder: Path) -> None:
    """Make an empty graph, and the files of all loads."""
    omnigraph.init(folder / "empty", SCHEMA)
    for name, load in HISTORY.items():
        (folder / name).mkdir()
        files_of(load, folder / name)


def outcomes_of(folder: Path, target: Path, engine: str, split: int | None = None) -> dict[str, Outcome]:
    """Carry out the history with an engine, by the pipeline, on a graph of its own; `split` makes fewer tasks."""
    graph = omnigraph.open(shutil.copytree(folder / "empty", target))
    found = {}
    for name, load in HISTORY.items():
        with by_pipeline(split or load.split, load.shares):
            found[name] = outcome_of(graph, sorted((folder / name).rglob("*.*")), load.mode, engine)
    return found
