"""What converting input costs: records per CPU second, against parsing the same JSON and doing nothing with it."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from functools import partial

import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.json as pj
import pyarrow.parquet as pq

from omnigraph.formats.batch import ConvertedBatch, joined
from omnigraph.formats.jsonl import jsonl_batches
from omnigraph.formats.sources import convert_split, discover
from omnigraph.lang import Source, compile_schema
from omnigraph.lang.catalog import Catalog

SCHEMA = """
node Person { name: String @key  age: I32?  score: F64?  active: Bool? }
edge Knows: Person -> Person { since: Date? }
"""
RECORDS = 300_000
RATE_LIMIT = 400_000
CATALOG = compile_schema(Source(SCHEMA))


def convert_jsonl(data: bytes, catalog: Catalog) -> ConvertedBatch:
    return joined(jsonl_batches(data, catalog))


def records() -> list[dict[str, object]]:
    """Two edges to each node, in turn."""
    return [person(at) if at % 3 == 0 else edge(at) for at in range(RECORDS)]


def person(at: int) -> dict[str, object]:
    return {
        "type": "Person",
        "data": {"name": f"person-{at}", "age": at % 90, "score": at * 0.37, "active": at % 2 == 0},
    }


def edge(at: int) -> dict[str, object]:
    data = {"since": f"2020-01-{at % 28 + 1:02}"}
    return {"edge": "Knows", "from": f"person-{at % 977}", "to": f"person-{at * 7 % 977}", "data": data}


def lines(documents: list[dict[str, object]]) -> bytes:
    return b"".join(json.dumps(document).encode() + b"\n" for document in documents)


def floor(data: bytes) -> None:
    """Parse every line into one table of whatever is there, with nothing checked."""
    options = pj.ReadOptions(use_threads=False, block_size=2**22)
    pj.read_json(pa.BufferReader(data), read_options=options)


def cpu(run: Callable[[], object], rounds: int = 3) -> float:
    best = float("inf")
    for _ in range(rounds):
        start = time.process_time()
        run()
        best = min(best, time.process_time() - start)
    return best


def report(name: str, seconds: float, least: float) -> None:
    print(f"{name:<28} {RECORDS / seconds / 1000:8,.0f}k records/s  {seconds / least:5.2f}x the floor")


def jsonl() -> bool:
    documents = records()
    clean = lines(documents)
    reordered = lines([dict(sorted(document.items())) for document in documents])
    for document in documents[:: RECORDS // 50]:
        document["data"] = {"nonsense": 1}
    dirty = lines(documents)
    least = cpu(lambda: floor(clean))
    rate = RECORDS / cpu(lambda: convert_jsonl(clean, CATALOG))
    report("parse only (floor)", least, least)
    report("JSONL", RECORDS / rate, least)
    report("JSONL, members sorted", cpu(lambda: convert_jsonl(reordered, CATALOG)), least)
    report("JSONL, 50 bad records", cpu(lambda: convert_jsonl(dirty, CATALOG)), least)
    return rate >= RATE_LIMIT


def tables() -> None:
    people = [person(at)["data"] for at in range(RECORDS)]
    with tempfile.TemporaryDirectory() as directory:
        table = pa.Table.from_pylist(people)
        pq.write_table(table, f"{directory}/Person.parquet")
        pcsv.write_csv(table, f"{directory}/Person.csv")
        texts = pcsv.ReadOptions(use_threads=False)
        floors: dict[str, Callable[[], object]] = {
            "csv": lambda: pcsv.read_csv(f"{directory}/Person.csv", read_options=texts),
            "parquet": lambda: pq.read_table(f"{directory}/Person.parquet", use_threads=False),
        }
        for format_, read in floors.items():
            report(format_, cpu(partial(load, f"{directory}/Person.{format_}")), cpu(read))


def load(path: str) -> None:
    for split in discover(path, CATALOG):
        convert_split(split, CATALOG)


def main() -> None:
    fast = jsonl()
    tables()
    assert fast, f"fewer than {RATE_LIMIT} records per CPU second"


if __name__ == "__main__":
    main()
