"""Graphs to load data into, the ways a load can go, what a test looks at before and after, and steps that go wrong."""

from __future__ import annotations

import json
import re
import shutil
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

import omnigraph
from omnigraph.api.results import LoadResult
from omnigraph.commit import failpoints
from omnigraph.commit.store import Store
from omnigraph.core.executor import Parcel
from omnigraph.core.location import Location
from omnigraph.errors import LoadRejectedError, StorageError
from omnigraph.graph import Graph
from omnigraph.ingest import steps
from omnigraph.ingest.steps import StageResult, StageTask
from omnigraph.storage import observe
from tests.support.deaths import die_each
from tests.support.faults import assert_settled, pins
from tests.support.forks import FORKS, forked
from tests.support.graphs import SCHEMA
from tests.support.mutations import at_write
from tests.support.steps import MeetingTask, meets

PEOPLE = SCHEMA
PEOPLE_DATA = """
{"type": "Person", "data": {"name": "Alice", "age": 30}}
{"type": "Person", "data": {"name": "Bob", "age": 25}}
{"type": "Person", "data": {"name": "Charlie", "age": 35}}
{"type": "Person", "data": {"name": "Diana", "age": 28}}
{"type": "Company", "data": {"name": "Acme"}}
{"type": "Company", "data": {"name": "Globex"}}
{"edge": "Knows", "from": "Alice", "to": "Bob", "data": {"id": "k1"}}
{"edge": "Knows", "from": "Alice", "to": "Charlie", "data": {"id": "k2"}}
{"edge": "Knows", "from": "Bob", "to": "Diana", "data": {"id": "k3"}}
{"edge": "WorksAt", "from": "Alice", "to": "Acme", "data": {"id": "w1"}}
{"edge": "WorksAt", "from": "Bob", "to": "Globex", "data": {"id": "w2"}}
"""
RULES = """
node User {
    name: String @key
    email: String? @unique
    born: Date? @unique
    first: String?
    last: String?
    mood: enum(calm, sad)?
    age: I32?
    nick: String?
    face: Vector(3)?
    photo: Blob?
    seen: DateTime?
    marks: [I32]?
    @unique(first, last)
    @range(age, 0..150)
    @check(nick, "^[a-z]+$")
}
node Note { text: String  rank: I64? @unique }
node Serial { number: U64 @key }
node Day { day: Date @key }
node Ratio { ratio: F32 @key }
node Slot { tenant: String  slot: U32  @key(tenant, slot) }
node Company { name: String @key }
edge WorksAt: User -> Company @card(0..1)
edge Owns: User -> Company @card(1..2)
edge Wrote: User -> Note { @unique(src, dst) }
edge Holds: Slot -> Serial
"""
RULES_DATA = """
{"type": "User", "data": {"name": "ann", "email": "a@x", "born": "2000-01-01", "first": "Ann", "last": "Lee"}}
{"type": "User", "data": {"name": "ben", "email": "b@x"}}
{"type": "User", "data": {"name": "cleo"}}
{"type": "Company", "data": {"name": "Acme"}}
{"type": "Company", "data": {"name": "Globex"}}
{"type": "Note", "data": {"id": "n1", "text": "one", "rank": 1}}
{"type": "Note", "data": {"id": "n2", "text": "two"}}
{"type": "Serial", "data": {"number": 18446744073709551615}}
{"type": "Day", "data": {"day": "2024-01-01"}}
{"type": "Ratio", "data": {"ratio": 0.1}}
{"type": "Slot", "data": {"tenant": "acme", "slot": 7}}
{"edge": "WorksAt", "from": "ann", "to": "Acme", "data": {"id": "w1"}}
{"edge": "Owns", "from": "ann", "to": "Acme", "data": {"id": "o1"}}
{"edge": "Owns", "from": "ben", "to": "Acme", "data": {"id": "o2"}}
{"edge": "Wrote", "from": "ann", "to": "n1", "data": {"id": "r1"}}
{"edge": "Holds", "from": "[\\"7\\",\\"acme\\"]", "to": "18446744073709551615", "data": {"id": "h1"}}
"""
GRAPHS = {"people": (PEOPLE, PEOPLE_DATA), "rules": (RULES, RULES_DATA)}
NEXT = '{"type": "Company", "data": {"name": "Next"}}'
"""A record that suits both graphs."""

_PATIENCE = 300.0
_MADE = re.compile("[0-9A-HJKMNP-TV-Z]{26}")


def lines(*records: Mapping[str, Any]) -> str:
    """Records as the text of a JSONL file."""
    return "".join(json.dumps(record) + "\n" for record in records)


def node(type_name: str, /, **data: Any) -> dict[str, Any]:
    return {"type": type_name, "data": data}


def edge(type_name: str, source: str, target: str, /, **data: Any) -> dict[str, Any]:
    return {"edge": type_name, "from": source, "to": target, "data": data}


def make_graph(name: str, uri: Path) -> Graph:
    """Make one of GRAPHS; its data comes by a load, in this process."""
    schema, data = GRAPHS[name]
    graph = omnigraph.init(uri, schema)
    graph.load(map(json.loads, data.strip().splitlines()), mode="append", engine="local")
    return graph


def copied(uri: str | Path) -> str:
    return str(shutil.copytree(uri, Path(uri).with_name(uuid.uuid4().hex)))


def store_of(uri: str) -> Store:
    return Store.at(Location.parse(uri))


# The ways of a load --------------------------------------------------------------------------------

SMALL, PIPELINE, SPARK = "small", "pipeline", "spark"
SPLIT = 100
"""Small data is cut into pieces of so many bytes, so that there is something to put together."""


@contextmanager
def by_pipeline(split: int = 16 * 2**20, shares: int = 4) -> Iterator[None]:
    """Have the pipeline do also what is small, with splits and shares of a given size."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("omnigraph.ingest.load.MOST_RECORDS", -1)
        patch.setattr("omnigraph.ingest.load._FEWEST_SHARES", shares)
        patch.setattr("omnigraph.formats.sources.SPLIT", split)
        yield


def load_by(way: str, graph: Graph, data: Any, mode: str, *, split: int = SPLIT, **options: Any) -> LoadResult:
    """Load in one of the three ways, in splits of so many bytes where there are splits."""
    if way == SMALL:
        return graph.load(data, mode=mode, engine="local", **options)
    with by_pipeline(split, shares=3):
        return graph.load(data, mode=mode, engine="local" if way == PIPELINE else "spark", **options)


# What there is afterwards --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class State:
    """All that a reader of the graph can tell apart."""

    commits: list[str]
    versions: dict[str, int]
    rows: Counter[str]


def look(graph: Graph) -> State:
    """See the graph as it is published; no write may be under way, or have left anything behind."""
    store = store_of(graph.uri)
    assert_settled(store)
    assert left_over(graph.uri) == []
    rows = Counter(spelled(key, row) for key, found in rows_of(store).items() for row in found)
    return State([commit.commit_id for commit in graph.commits()], pins(store), rows)


def left_over(uri: str) -> list[str]:
    """The files of loads that should be gone: what their tasks needed, and what they made to look at it."""
    temporary = [path for path in Path(uri, "__tmp").rglob("*") if path.is_file()]
    return [str(path) for path in (*temporary, *Path(uri).rglob("_versions/d*.manifest"))]


def rows_of(store: Store) -> dict[str, list[dict[str, Any]]]:
    """What is stored, by table; a Blob is its bytes."""
    entries = store.manifest.load().snapshot.entries
    return {
        key: store.tables.open(entry.table).to_table(blob_handling="all_binary").to_pylist()
        for key, entry in entries.items()
    }


def spelled(key: str, row: Mapping[str, Any]) -> str:
    """Spell a row for a case file: `Person#Eve name=Eve`, `Knows#k1 Eve -> Bob`; ids that were made are left out."""
    ends = f" {row['src']} -> {row['dst']}" if "src" in row else ""
    told = {name: value for name, value in row.items() if name not in ("id", "src", "dst") and value is not None}
    id_ = without_made(f"#{row['id']}")
    return f"{key.partition(':')[2]}{id_}{ends}" + "".join(f" {name}={value}" for name, value in told.items())


def without_made(id_: str) -> str:
    """Leave out an id that a load made up: it is another one every time."""
    return "" if _MADE.fullmatch(id_.removeprefix("#")) else id_


def difference(before: State, after: State) -> list[str]:
    """Name the rows that are gone and those that are new, in order."""
    gone, new = before.rows - after.rows, after.rows - before.rows
    return sorted([*(f"- {row}" for row in gone.elements()), *(f"+ {row}" for row in new.elements())])


@contextmanager
def nothing_changes(graph: Graph, way: str = SMALL) -> Iterator[None]:
    """What happens inside must leave the graph as it is, and able to take the next load."""
    before = look(graph)
    yield
    assert look(graph) == before
    load_by(way, graph, [json.loads(NEXT)], "append")
    after = look(graph)
    assert difference(before, after) == ["+ Company#Next name=Next"]
    assert len(after.commits) == len(before.commits) + 1


# Deaths --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Death:
    """An order to load a file through the pipeline and to die before the k-th durable write."""

    uri: str
    file: str
    mode: str
    ordinal: int


def die(deaths: Iterable[Death]) -> None:
    """Carry out orders, each in a process of its own."""
    die_each(_die, deaths)


def _die(death: Death) -> None:
    graph = omnigraph.open(death.uri)
    with at_write(death.ordinal, failpoints.die):
        load_by(PIPELINE, graph, death.file, death.mode)


def writes_of(uri: str, file: str, mode: str) -> list[str]:
    """Load a file through the pipeline and name the durable writes."""
    with at_write(0, failpoints.die) as written:
        load_by(PIPELINE, omnigraph.open(uri), file, mode)
    return list(written)


# Races ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Order:
    """An order to load a file through the pipeline."""

    uri: str
    file: str
    mode: str


Race = Callable[[Sequence[Order]], list[str | LoadRejectedError]]
"""Carries out loads at once: each has seen the same graph before any writes. Returns their commits, or why not."""


def race_of_threads(orders: Sequence[Order]) -> list[str | LoadRejectedError]:
    barrier = threading.Barrier(len(orders), timeout=_PATIENCE)
    with _meeting(barrier), by_pipeline(SPLIT, shares=3), ThreadPoolExecutor(len(orders)) as pool:
        return list(pool.map(_carry_out, orders))


def race_of_processes(orders: Sequence[Order]) -> list[str | LoadRejectedError]:
    barrier = FORKS.Barrier(len(orders), timeout=_PATIENCE)
    ends = []
    for order in orders:
        mine, theirs = FORKS.Pipe()
        process = forked(_compete, (order, barrier, theirs), daemon=True)
        process.start()
        ends.append((mine, process))
    found = []
    for mine, process in ends:
        assert mine.poll(_PATIENCE), "a load does not come to its end"
        found.append(mine.recv())
        process.join(_PATIENCE)
    return found


def _compete(order: Order, barrier: Any, end: Connection) -> None:
    with _meeting(barrier), by_pipeline(SPLIT, shares=3):
        end.send(_carry_out(order))


def _carry_out(order: Order) -> str | LoadRejectedError:
    try:
        done = omnigraph.open(order.uri).load(order.file, mode=order.mode, engine="local")
    except LoadRejectedError as error:
        return error
    assert done.commit
    return done.commit.commit_id


@contextmanager
def _meeting(barrier: Any) -> Iterator[None]:
    """Have every load wait for the others before it writes its first rows."""
    met: set[int] = set()

    def hook(operation: str, _: str) -> None:
        if operation == "write rows" and threading.get_ident() not in met:
            met.add(threading.get_ident())
            barrier.wait()

    previous = observe.set_write_hook(hook)
    try:
        yield
    finally:
        observe.set_write_hook(previous)


# Steps that go wrong, for executors to import ------------------------------------------------------


def stage_failing_once(task: StageTask) -> tuple[StageResult, list[Parcel]]:
    """Fail at the first attempt of every task, after it has left all its files behind."""
    done = _stage(task)
    try:
        _mark(task, "failed").touch(exist_ok=False)
    except FileExistsError:
        return done
    raise StorageError("the storage does not answer, this once", path=task.split.file, operation="write")


def stage_failing_last(task: StageTask) -> tuple[StageResult, list[Parcel]]:
    """Fail for good in the last task, once all others are done."""
    file = Path(task.split.file)
    others = -(-file.stat().st_size // SPLIT) - 1
    if task.number != others:
        done = _stage(task)
        _mark(task, "done").touch()
        return done
    end = time.monotonic() + _PATIENCE
    while len(list(file.parent.glob("_done-*"))) < others:
        assert time.monotonic() < end, "the other tasks do not come to their end"
        time.sleep(0.01)
    raise StorageError("the storage does not answer", path=task.split.file, operation="write")


def stage_meeting(task: StageTask) -> tuple[StageResult, list[Parcel]]:
    """Leave all files behind, then wait to be told to go on, or to be killed."""
    done = _stage(task)
    meets(MeetingTask(str(Path(task.split.file).parent / "meeting"), task.number))
    return done


def _mark(task: StageTask, name: str) -> Path:
    return Path(task.split.file).with_name(f"_{name}-{task.number}")


_stage = steps.stage
