"""The data of the load benchmark: people who know each other, as JSONL and as Parquet, clean or with defects."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

SCHEMA = """
node Person { name: String @key  age: I32?  city: String?  score: F64? }
edge Knows: Person -> Person { since: Date? }
"""
_CHUNK = 200_000
_DEFECTS = (
    '{"type":"Person","data":{"name":"person-1","age":1}}',  # there already
    '{"type":"Person","data":{"name":"x","age":"old"}}',
    '{"type":"Person","data":{"name":"x","unknown":1}}',
    '{"edge":"Knows","from":"person-1","to":"nobody"}',
    '{"type":"Person","data":{"name":',
)


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


def write_dirty(path: Path, clean: Path, defects: int) -> None:
    """Copy a file with so many defects spread over it."""
    step = max(clean.stat().st_size // defects, 1)
    with clean.open("rb") as source, path.open("wb") as target:
        for at in range(defects):
            target.write(source.read(step) + source.readline())
            target.write(_DEFECTS[at % len(_DEFECTS)].encode() + b"\n")
        target.write(source.read())


def write_parquet(root: Path, people: int, edges: int) -> None:
    root.mkdir()
    names = pa.array([f"person-{n}" for n in range(people)])
    numbers = np.arange(people)
    columns = {"name": names, "age": pa.array(numbers % 90, pa.int32()), "score": numbers % 1000 / 10}
    pq.write_table(pa.table(columns), root / "Person.parquet", row_group_size=100_000)
    ends = np.random.default_rng(1).integers(0, people, (2, edges))
    table = pa.table({"from": names.take(pa.array(ends[0])), "to": names.take(pa.array(ends[1]))})
    pq.write_table(table, root / "Knows.parquet", row_group_size=500_000)
