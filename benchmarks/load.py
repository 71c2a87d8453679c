"""What a load costs: Spark and one process against the same checks and writes by hand with DuckDB and pylance."""

from __future__ import annotations

import json
import os
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
from benchmarks.load_data import SCHEMA, write_dirty, write_jsonl, write_parquet
from omnigraph.spark.session import stop_session
from omnigraph.storage.observe import counted

SIZES = ((100_000, 500_000), (1_000_000, 5_000_000), (5_000_000, 25_000_000))
USUAL = 2  # so many of them, unless OMNIGRAPH_BENCH_SIZES says otherwise
LIMITS = {5_000_000: 1.3, 25_000_000: 1.0}  # times the floor, by edges
SMALL_LIMIT, CORES_LIMIT, MEMORY_LIMIT, GROWTH_LIMIT, FILES_LIMIT = 2.0, 1.6, 4.0, 1.5, 2.0
TURNS = 3
DEFECTS = 1_000
HERE = Path(__file__).parent
PEERS = ("kuzu", "ladybug")
PEER_PYTHON = HERE.parent / ".peers" / "bin" / "python"

Told = list[str]
"""What is past its limit."""


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


def compare(root: Path, counts: tuple[int, int]) -> Told:
    """Load JSONL and Parquet on Spark, in one process and by hand, in turn."""
    told: Told = []
    for source in (root / "data.jsonl", root / "data"):
        place = root / "hand" / source.name
        place.mkdir(parents=True)
        tasks: dict[str, Callable[[], None]] = {
            "spark": ours(root, source, "spark", counts),
            "local": ours(root, source, "local", counts),
            "by hand": partial(ByHand(place).load, source),
        }
        times: dict[str, list[float]] = {name: [] for name in tasks}
        for _ in range(TURNS):
            for name, task in tasks.items():
                times[name].append(seconds(task))
        best = {name: min(found) for name, found in times.items()}
        ratio = best["spark"] / best["by hand"]
        shown = "   ".join(f"{name} {value:6.2f} s" for name, value in best.items())
        label = f"{counts[0]:,} nodes and {counts[1]:,} edges, {'Parquet' if source.is_dir() else 'JSONL'}"
        print(f"{label:<50} {shown}   ratio {ratio:.2f}")
        if ratio > LIMITS.get(counts[1], float("inf")):
            told.append(f"Spark takes {ratio:.2f} times the floor: {label}")
        shutil.rmtree(place)
    return told


def dirty(root: Path, counts: tuple[int, int]) -> None:
    """Refuse the same data with defects in it, and say how much longer that takes."""
    clean = seconds(ours(root, root / "data.jsonl", "spark", counts))
    write_dirty(root / "dirty.jsonl", root / "data.jsonl", DEFECTS)
    graph = omnigraph.init(root / "refusing", SCHEMA)
    found: list[int] = []

    def refused() -> None:
        try:
            graph.load(root / "dirty.jsonl", mode="append", engine="spark")
        except omnigraph.errors.LoadRejectedError as error:
            found.append(len(error.violations))

    took = min(seconds(refused) for _ in range(2))
    assert found == [DEFECTS] * 2, found
    print(f"refused for {DEFECTS:,} defects after {took:.2f} s, {took / clean:.2f} times the load of the clean data")


def cores_and_memory(root: Path, counts: tuple[int, int]) -> tuple[Told, float]:
    """The load on one core and on two, each in a process of its own, and the memory of all processes of one."""
    command: list[str | Path] = [sys.executable, "-m", "benchmarks.load_child", root / "data.jsonl"]
    one, two = (_printed([*command, str(cores)]) for cores in (1, 2))
    quicker = one["seconds"] / two["seconds"]
    print(
        f"{counts[1]:,} edges on one core {one['seconds']:.2f} s, on two {two['seconds']:.2f} s, "
        f"{quicker:.2f} times as quick; peak memory of all processes {two['gib']:.2f} GiB"
    )
    told = [f"two cores are {quicker:.2f} times as quick as one"] if quicker < CORES_LIMIT else []
    told += [f"a load takes {two['gib']:.2f} GiB"] if two["gib"] > MEMORY_LIMIT else []
    return told, two["gib"]


def peers(root: Path, counts: tuple[int, int]) -> None:
    """The same Parquet files by COPY of other graph databases, and whether they hold the same afterwards."""
    if not PEER_PYTHON.exists():
        print("kuzu and ladybug are not installed; `make bench` installs them beside the environment")
        return
    graph = omnigraph.init(root / "beside", SCHEMA)
    took = seconds(lambda: graph.load(root / "data", mode="append", engine="spark"))
    read = "query q() { match { $a: Person  $a $k:knows $b } return { sum($a.age) as a, sum($b.age) as b } }"
    (row,) = graph.query(read).rows
    for name in filter(_is_installed, PEERS):
        done = _printed([PEER_PYTHON, HERE / "load_peer.py", name, root / "data"])
        assert (done["counts"], done["ages"]) == (list(counts), row["a"] - row["b"]), (done, row)
        print(
            f"{counts[1]:,} edges from Parquet: {name} {done['version']} COPY {done['seconds']:.2f} s, "
            f"ours {took:.2f} s, ratio {took / done['seconds']:.2f}"
        )


def _is_installed(peer: str) -> bool:
    return subprocess.run([PEER_PYTHON, "-c", f"import {peer}"], capture_output=True, check=False).returncode == 0


def _printed(command: list[str | Path]) -> Any:
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=HERE.parent).stdout)


def small(root: Path) -> float:
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
    ratio: float = loaded / mutated
    return ratio


def many_files(root: Path) -> float:
    """The CPU time of 1,000 files of 10 records against that of the same records in one file."""
    lines = [f'{{"type":"Person","data":{{"name":"p{at}","age":{at % 90}}}}}\n' for at in range(10_000)]
    for name, size in (("one", 10_000), ("many", 10)):
        (root / name).mkdir()
        for start in range(0, len(lines), size):
            (root / name / f"{start:05}.jsonl").write_text("".join(lines[start : start + size]))

    def cpu(name: str) -> float:
        shutil.rmtree(root / "graph", ignore_errors=True)
        graph = omnigraph.init(root / "graph", SCHEMA)
        begun = time.process_time()
        graph.load(root / name, mode="append", engine="local")
        return time.process_time() - begun

    cpu("one")
    one, many = (min(cpu(name) for _ in range(5)) for name in ("one", "many"))
    print(
        f"10,000 records: one file {one * 1e3:.0f} ms of CPU, 1,000 files {many * 1e3:.0f} ms, ratio {many / one:.2f}"
    )
    return many / one


def cold() -> None:
    """A whole process that loads one record on Spark, the way the command line does."""
    with tempfile.TemporaryDirectory() as directory:
        omnigraph.init(f"{directory}/graph", SCHEMA)
        Path(directory, "one.jsonl").write_text(json.dumps({"type": "Person", "data": {"name": "one"}}))
        command = [sys.executable, "-m", "omnigraph", "load", f"{directory}/graph", "--mode", "merge"]
        command += ["--engine", "spark", "--data", f"{directory}/one.jsonl"]
        found = [seconds(lambda: subprocess.run(command, check=True, capture_output=True)) for _ in range(2)]
    print(f"`omnigraph load` of one record on Spark, as a process: first {found[0]:.1f} s, again {found[1]:.1f} s")


def requests_of_publish(root: Path) -> float:
    """Requests that do not depend on how many rows there are: those of a load of ten times the rows, less its tasks."""
    found = []
    for people in (10_000, 100_000):
        graph = omnigraph.init(root / f"requests{people}", SCHEMA)
        rows = {"Person": pa.table({"name": [f"p{n}" for n in range(people)]})}
        with counted() as requests:
            graph.load(rows, mode="append", engine="local")
        found.append(requests.total)
    print(f"requests of a load of 10,000 rows {found[0]}, of 100,000 rows {found[1]}")
    return found[1] / found[0] - 1


def at_size(counts: tuple[int, int]) -> tuple[Told, float]:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        write_jsonl(root / "data.jsonl", *counts)
        write_parquet(root / "data", *counts)
        told = compare(root, counts)
        dirty(root, counts)
        peers(root, counts)
        stop_session()  # the next ones have all cores for themselves
        more, gib = cores_and_memory(root, counts)
        return [*told, *more], gib


def main() -> None:
    sizes = SIZES[: int(os.environ.get("OMNIGRAPH_BENCH_SIZES", USUAL))]
    cold()
    told: Told = []
    memory: dict[int, float] = {}
    for counts in sizes:
        more, memory[counts[1]] = at_size(counts)
        told += more if counts[1] in LIMITS else []
    if set(memory) >= set(LIMITS):
        small_one, large = (memory[edges] for edges in LIMITS)
        print(f"memory grows {large / small_one:.2f} times from 5 to 25 million edges")
        told += [f"memory grows {large / small_one:.2f} times"] if large > GROWTH_LIMIT * small_one else []
    with tempfile.TemporaryDirectory() as directory:
        little = small(Path(directory))
        requests_of_publish(Path(directory))
        files = many_files(Path(directory))
    told += [f"a small load takes {little:.2f} times the same mutation"] if little > SMALL_LIMIT else []
    told += [f"1,000 files take {files:.2f} times the CPU of one"] if files > FILES_LIMIT else []
    if told:
        sys.exit("; ".join(told))


if __name__ == "__main__":
    main()
