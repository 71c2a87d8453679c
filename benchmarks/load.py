"""What a load costs. `--only NAME ...` runs some of the cases, `--scale 0.01` a hundredth of their data.

Ratios are of CPU seconds of all processes, so that they hold on a busy machine, too. `benchmarks/load_cost.py` has the
cases that ask whether the cost of a load follows its input.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import lance
import pyarrow as pa

import omnigraph
from benchmarks import load_cost
from benchmarks.load_cost import Case, Past, child, sized
from benchmarks.load_data import SCHEMA, jsonl_at, parquet_at, write_dirty
from benchmarks.processes import Spent, spent
from omnigraph.spark.session import stop_session
from omnigraph.storage.observe import counted

NODES, EDGES = 1_000_000, 5_000_000
HAND_LIMIT, SMALL_LIMIT, CORES_LIMIT, MEMORY_LIMIT = 1.0, 2.0, 1.6, 4.0
TURNS = 3
DEFECTS = 1_000
HERE = Path(__file__).parent
PEERS = ("kuzu", "ladybug")
PEER_PYTHON = HERE.parent / ".peers" / "bin" / "python"


class ByHand:
    """The floor: the same checks in SQL and the same two tables, in one process, but not as one commit."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.count = 0

    def load(self, source: Path) -> None:
        self.count += 1
        base = duckdb.connect()
        if source.is_dir():
            base.execute(f"create table people as select name as id, * from '{source}/Person.parquet'")
            base.execute(f"create table edges as select uuid()::varchar as id, * from '{source}/Knows.parquet'")
        else:
            shape = (
                "{'type': 'VARCHAR', 'edge': 'VARCHAR', 'from': 'VARCHAR', 'to': 'VARCHAR', 'data': "
                "'STRUCT(name VARCHAR, age INTEGER, city VARCHAR, score DOUBLE, since DATE)'}"
            )
            base.execute(f"create table raw as from read_json('{source}', format='newline_delimited', columns={shape})")
            base.execute(
                "create table people as select data.name as id, data.* exclude (since) from raw where type = 'Person'"
            )
            base.execute(
                'create table edges as select uuid()::varchar as id, "from", "to", data.since as since '
                "from raw where edge = 'Knows'"
            )
        twice = "select count(*) from (select id from people group by id having count(*) > 1)"
        assert base.execute(twice).fetchall() == [(0,)]
        for end in ('"from"', '"to"'):
            dangling = f"select count(*) from edges where {end} not in (select id from people)"
            assert base.execute(dangling).fetchall() == [(0,)]
        for name in ("people", "edges"):
            reader = base.sql(f"select * from {name}").to_arrow_reader(100_000)
            lance.write_dataset(
                reader, self.root / f"{name}{self.count}", enable_stable_row_ids=True, max_rows_per_file=65_536
            )


def seconds(task: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    task()
    return time.perf_counter() - begun


def ours(root: Path, source: Path, engine: str, counts: tuple[int, int]) -> Callable[[], None]:
    place = root / f"{engine}-{source.name}"

    def load() -> None:
        shutil.rmtree(place, ignore_errors=True)
        done = omnigraph.init(place, SCHEMA).load(source, mode="append", engine=engine)
        assert (done.nodes["Person"], done.edges["Knows"]) == counts

    return load


def compare(root: Path, scale: float) -> Past:
    """Load JSONL and Parquet on Spark, in one process and by hand, in turn; the first turn is not counted."""
    past: Past = []
    counts = sized(NODES, scale), sized(EDGES, scale)
    for source in (jsonl_at(root, *counts), parquet_at(root, *counts)):
        place = root / "hand"
        place.mkdir()
        tasks: dict[str, Callable[[], None]] = {
            "spark": ours(root, source, "spark", counts),
            "local": ours(root, source, "local", counts),
            "by hand": partial(ByHand(place).load, source),
        }
        times: dict[str, list[Spent]] = {name: [] for name in tasks}
        for _ in range(TURNS):
            for name, task in tasks.items():
                times[name].append(spent(task))
        best = {name: Spent(*map(min, zip(*found[1:], strict=True))) for name, found in times.items()}
        shown = "   ".join(f"{name} {one.cpu:6.2f} CPU s ({one.wall:.2f} s)" for name, one in best.items())
        ratio = best["spark"].cpu / best["by hand"].cpu
        label = f"{counts[0]:,} nodes and {counts[1]:,} edges, {'Parquet' if source.is_dir() else 'JSONL'}"
        print(f"{label:<50} {shown}   ratio {ratio:.2f}")
        past += [f"Spark takes {ratio:.2f} times the CPU of the floor: {label}"] if ratio > HAND_LIMIT else []
        shutil.rmtree(place)
    return past


def dirty(root: Path, scale: float) -> Past:
    """Refuse the same data with defects in it, and say how much more that takes."""
    counts = sized(NODES, scale), sized(EDGES, scale)
    source = jsonl_at(root, *counts)
    clean = min(spent(ours(root, source, "spark", counts)).cpu for _ in range(2))
    write_dirty(root / "dirty.jsonl", source, DEFECTS)
    graph = omnigraph.init(root / "refusing", SCHEMA)
    found: list[int] = []

    def refused() -> None:
        try:
            graph.load(root / "dirty.jsonl", mode="append", engine="spark")
        except omnigraph.errors.LoadRejectedError as error:
            found.append(len(error.violations))

    took = min(spent(refused).cpu for _ in range(2))
    assert found == [DEFECTS] * 2, found
    print(f"refused for {DEFECTS:,} defects after {took:.2f} CPU s, {took / clean:.2f} times a load of the clean data")
    return []


def cores(root: Path, scale: float) -> Past:
    """The load on one core and on two, each in a process of its own, and the memory of all processes of one."""
    stop_session()  # the children have all cores for themselves
    counts = sized(NODES, scale), sized(EDGES, scale)
    source = jsonl_at(root, *counts)
    one, two = (child(source, cores=cores, turns=TURNS, watch=True) for cores in (1, 2))
    quicker = one["wall"] / two["wall"]
    print(
        f"{counts[1]:,} edges on one core {one['wall']:.2f} s, on two {two['wall']:.2f} s, "
        f"{quicker:.2f} times as quick; peak memory of all processes {two['gib']:.2f} GiB"
    )
    past = [f"two cores are {quicker:.2f} times as quick as one"] if quicker < CORES_LIMIT else []
    return past + ([f"a load takes {two['gib']:.2f} GiB"] if two["gib"] > MEMORY_LIMIT else [])


def peers(root: Path, scale: float) -> Past:
    """The same Parquet files by COPY of other graph databases, and whether they hold the same afterwards."""
    if not PEER_PYTHON.exists():
        print("kuzu and ladybug are not installed; `make bench` installs them beside the environment")
        return []
    counts = sized(NODES, scale), sized(EDGES, scale)
    source = parquet_at(root, *counts)
    graph = omnigraph.init(root / "beside", SCHEMA)
    took = seconds(lambda: graph.load(source, mode="append", engine="spark"))
    read = "query q() { match { $a: Person  $a $k:knows $b } return { sum($a.age) as a, sum($b.age) as b } }"
    (row,) = graph.query(read).rows
    for name in filter(_is_installed, PEERS):
        done = _printed([PEER_PYTHON, HERE / "load_peer.py", name, source])
        assert (done["counts"], done["ages"]) == (list(counts), row["a"] - row["b"]), (done, row)
        print(
            f"{counts[1]:,} edges from Parquet: {name} {done['version']} COPY {done['seconds']:.2f} s, "
            f"ours {took:.2f} s, ratio {took / done['seconds']:.2f}"
        )
    return []


def _is_installed(peer: str) -> bool:
    return subprocess.run([PEER_PYTHON, "-c", f"import {peer}"], capture_output=True, check=False).returncode == 0


def _printed(command: list[str | Path]) -> Any:
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=HERE.parent).stdout)


def small(root: Path, _: float) -> Past:
    """A load of 1,000 records against the same commit by `mutate`."""
    graph = omnigraph.init(root / "small", SCHEMA)
    declared = ", ".join(f"$n{at}: String" for at in range(1_000))
    text = f"query many({declared}) {{" + " ".join(f"insert Person {{ name: $n{at} }}" for at in range(1_000)) + "}"
    turns = iter(range(1_000))

    def load() -> None:
        turn = next(turns)
        graph.load([{"type": "Person", "data": {"name": f"l{turn}-{at}"}} for at in range(1_000)], mode="merge")

    def mutate() -> None:
        turn = next(turns)
        graph.mutate(text, {f"n{at}": f"m{turn}-{at}" for at in range(1_000)})

    times = [(seconds(load), seconds(mutate)) for _ in range(8)][1:]
    loaded, mutated = (statistics.median(column) for column in zip(*times, strict=True))
    print(f"1,000 records: load {loaded * 1e3:.1f} ms, mutate {mutated * 1e3:.1f} ms, ratio {loaded / mutated:.2f}")
    ratio = loaded / mutated
    return [f"a small load takes {ratio:.2f} times the same mutation"] if ratio > SMALL_LIMIT else []


def cold(root: Path, _: float) -> Past:
    """A whole process that loads one record on Spark, the way the command line does."""
    omnigraph.init(root / "cold", SCHEMA)
    (root / "one.jsonl").write_text(json.dumps({"type": "Person", "data": {"name": "one"}}))
    command: list[str | Path] = [sys.executable, "-m", "omnigraph", "load", root / "cold", "--mode", "merge"]
    command += ["--engine", "spark", "--data", root / "one.jsonl"]
    found = [seconds(lambda: subprocess.run(command, check=True, capture_output=True)) for _ in range(2)]
    print(f"`omnigraph load` of one record on Spark, as a process: first {found[0]:.1f} s, again {found[1]:.1f} s")
    return []


def requests(root: Path, _: float) -> Past:
    """Requests of a load and of one of ten times the rows: those of its tasks are what there is more of."""
    found = []
    for people in (10_000, 100_000):
        graph = omnigraph.init(root / f"requests{people}", SCHEMA)
        rows = {"Person": pa.table({"name": [f"p{n}" for n in range(people)]})}
        with counted() as made:
            graph.load(rows, mode="append", engine="local")
        found.append(made.total)
    print(f"requests of a load of 10,000 rows {found[0]}, of 100,000 rows {found[1]}")
    return []


CASES: dict[str, Case] = {
    "cold": cold,
    "hand": compare,
    "dirty": dirty,
    "peers": peers,
    "cores": cores,
    "small": small,
    "requests": requests,
    **load_cost.CASES,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="What a load costs.")
    parser.add_argument("--only", nargs="+", choices=CASES, metavar="NAME", help=", ".join(CASES))
    parser.add_argument("--scale", type=float, default=1.0, help="so many times the usual rows")
    asked = parser.parse_args()
    past: Past = []
    for name in asked.only or [name for name in CASES if name != "huge"]:
        with tempfile.TemporaryDirectory() as directory:
            past += CASES[name](Path(directory), asked.scale)
    if past:
        sys.exit("; ".join(past))


if __name__ == "__main__":
    main()
