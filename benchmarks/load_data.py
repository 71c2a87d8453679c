"""The data of the load benchmark: people who know each other, as JSONL and as Parquet, clean or with defects."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

SCHEMA = """
node Person { name: String @key  age: I32?  city: String?  score: F64? }
edge Knows: Person -> Person { since: Date? }
"""
_CHUNK = 200_000
_GROUP = 500_000
_DEFECTS = (
    '{"type":"Person","data":{"name":"person-1","age":1}}',  # there already
    '{"type":"Person","data":{"name":"x","age":"old"}}',
    '{"type":"Person","data":{"name":"x","unknown":1}}',
    '{"edge":"Knows","from":"person-1","to":"nobody"}',
    '{"type":"Person","data":{"name":',
)


def jsonl_at(root: Path, people: int, edges: int) -> Path:
    """Write the data as one file, or return the one that is there."""
    path = root / f"{people}-{edges}.jsonl"
    if not path.exists():
        write_jsonl(path, people, edges)
    return path


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


def parquet_at(root: Path, people: int, edges: int, *, hot: bool = False) -> Path:
    """Write the data as a directory of two files, or return the one that is there.

    If it is `hot`, all edges lead to one person.
    """
    place = root / f"{people}-{edges}{'-hot' * hot}"
    if not place.exists():
        place.mkdir()
        _write_groups(place / "Person.parquet", people, _people)
        _write_groups(place / "Knows.parquet", edges, partial(_knows, people, hot))
    return place


def _write_groups(path: Path, rows: int, group: Callable[[int, int], pa.Table]) -> None:
    """Write one row group after the other, so that a file may be larger than memory."""
    with pq.ParquetWriter(path, group(0, 0).schema) as writer:
        for start in range(0, rows, _GROUP):
            writer.write_table(group(start, min(rows, start + _GROUP)))


def _people(start: int, end: int) -> pa.Table:
    numbers = np.arange(start, end)
    columns = {"name": _names(numbers), "age": pa.array(numbers % 90, pa.int32()), "score": numbers % 1000 / 10}
    return pa.table(columns)


def _knows(people: int, hot: bool, start: int, end: int) -> pa.Table:  # noqa: FBT001 - bound by `partial`
    ends = np.random.default_rng(start).integers(0, people, (2, end - start))
    return pa.table({"from": _names(ends[0]), "to": _names(ends[1] * (not hot))})


def _names(numbers: np.ndarray[Any, np.dtype[np.int64]]) -> pa.Array:
    return pc.binary_join_element_wise("person-", pc.cast(pa.array(numbers), pa.string()), "")
