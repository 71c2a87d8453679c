"""What a load costs: Spark and one process against the same checks and writes by hand with DuckDB and pylance."""

from __future__ import annotations

import json
import os
import resource
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
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import omnigraph
from omnigraph.pipeline.session import spark_context, stop_session
from omnigraph.storage.counters import counted

SCHEMA = """
node Person { name: String @key  age: I32?  city: String?  score: F64? }
edge Knows: Person -> Person { since: Date? }
"""
SIZES = ((100_000, 500_000), (1_000_000, 5_000_000))
LIMIT, SMALL_LIMIT, PUBLISH_LIMIT = 1.3, 2.0, 0.1
TURNS = 3
_CHUNK = 200_000


def write_jsonl(path: Path, people: int, edges: int) -> None:
    ends = np.random.default_rng(1).integers(0, people, (2, edges))
    with path.open("w") as file:
        for start in range(0, people, _CHUNK):
            file.writelines(
                f'{{"type":"Person","data":{{"name":"person-{n}","age":{n % 90},"city":"city-{n % 1000}",'
                f'"score":{(n % 1000) / 10}}}}}\n'
                for n in range(start, min(people, start + _CHUNK))
            )
        for start in range(0, edges, _CHUNK):
            part = ends[:, start : start + _CHUNK].tolist()
            file.writelines(
                f'{{"edge":"Knows","from":"person-{a}","to":"person-{b}",'
                f'"data":{{"since":"20{a % 20 + 10}-01-0{b % 9 + 1}"}}}}\n'
                for a, b in zip(*part, strict=True)
            )


def write_parquet(root: Path, people: int, edges: int) -> None:
    root.mkdir()
    names = pa.array([f"person-{n}" for n in range(people)])
    numbers = np.arange(people)
    columns = {"name": names, "age": pa.array(numbers % 90, pa.int32()), "score": numbers % 1000 / 10}
    pq.write_table(pa.table(columns), root / "Person.parquet", row_group_size=100_000)
    ends = np.random.default_rng(1).integers(0, people, (2, edges))
    table = pa.table({"from": names.take(pa.array(ends[0])), "to": names.take(pa.array(ends[1]))})
    pq.write_table(table, root / "Knows.parquet", row_group_size=500_000)


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
    number = iter(range(1_000))

    def load() -> None:
        graph = omnigraph.init(root / f"{engine}{source.name}{next(number)}", SCHEMA)
        done = graph.load(source, mode="append", engine=engine)
        assert (done.nodes["Person"], done.edges["Knows"]) == counts

    return load


def compare(root: Path, counts: tuple[int, int]) -> float:
    """Load JSONL and Parquet on Spark, in one process and by hand, in turn."""
    write_jsonl(root / "data.jsonl", *counts)
    write_parquet(root / "data", *counts)
    ratios = []
    for source in (root / "data.jsonl", root / "data"):
        hand = ByHand(root / "hand" / source.name)
        tasks: dict[str, Callable[[], None]] = {
            "spark": ours(root, source, "spark", counts),
            "local": ours(root, source, "local", counts),
            "by hand": partial(hand.load, source),
        }
        times: dict[str, list[float]] = {name: [] for name in tasks}
        for _ in range(TURNS):
            for name, task in tasks.items():
                times[name].append(seconds(task))
        best = {name: min(found) for name, found in times.items()}
        shown = "   ".join(f"{name} {value:6.2f} s" for name, value in best.items())
        ratios.append(best["spark"] / best["by hand"])
        kind = "Parquet" if source.is_dir() else "JSONL"
        print(f"{counts[0]:,} nodes and {counts[1]:,} edges, {kind:<8} {shown}   ratio {ratios[-1]:.2f}")
    return max(ratios)


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


def main() -> None:
    sizes = SIZES[: int(os.environ.get("OMNIGRAPH_BENCH_SIZES", len(SIZES)))]
    cold()
    spark_context()
    worst = 0.0
    for counts in sizes:
        with tempfile.TemporaryDirectory() as directory:
            (Path(directory) / "hand").mkdir()
            for name in ("data.jsonl", "data"):
                (Path(directory) / "hand" / name).mkdir()
            worst = compare(Path(directory), counts)
    with tempfile.TemporaryDirectory() as directory:
        little = small(Path(directory))
        requests_of_publish(Path(directory))
    stop_session()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    print(f"peak memory of the driver {peak:.2f} GiB, of its largest child {children:.2f} GiB")
    problems = [
        *([f"Spark takes {worst:.2f} times the floor at the largest size"] if worst > LIMIT else []),
        *([f"a small load takes {little:.2f} times the same mutation"] if little > SMALL_LIMIT else []),
    ]
    if problems:
        sys.exit("; ".join(problems))


if __name__ == "__main__":
    main()
