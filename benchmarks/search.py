"""What a search costs: first, warm, after a commit of one row, and approximately.

Every answer is compared with that of a graph that is opened again. Run it as `python -m benchmarks.search [rows]`.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import omnigraph
from benchmarks.data.documents import word
from omnigraph.graph import Graph

ROWS, SIZE, CLUSTERS, ASKED = 1_000_000, 128, 2_000, 10
SCHEMA = f"node Doc {{ name: String @key  part: I64 @index  text: String  place: Vector({SIZE}) @index }}"
ARM, QUICK = "nearest($d.place, $v)", "nearest($d.place, $v, approximate: true)"
WORDS = f'bm25($d.text, "{word(3900)} {word(3500)}")'


def query(ranking: str, match: str = "$d: Doc") -> str:
    head = f"query q($v: Vector({SIZE})) {{ match {{ {match} }}"
    return f"{head} return {{ $d.name }} order {{ {ranking} }} limit 10 }}"


def texts(random: np.random.Generator, rows: int) -> pa.Array:
    """Texts of four to twelve words."""
    vocabulary = pa.array([word(number) for number in range(10_000)])
    ends = np.concatenate([[0], np.cumsum(random.integers(4, 13, rows))]).astype(np.int32)
    chosen = (10_000 * random.random(ends[-1]) ** 3).astype(np.int32)
    return pc.binary_join(pa.ListArray.from_arrays(pa.array(ends), vocabulary.take(pa.array(chosen))), " ")


def vectors(random: np.random.Generator, rows: int, *, spread: bool) -> np.ndarray[Any, Any]:
    if spread:
        return random.random((rows, SIZE), np.float32)
    centres = random.standard_normal((CLUSTERS, SIZE), np.float32)
    return centres[random.integers(0, CLUSTERS, rows)] + 0.35 * random.standard_normal((rows, SIZE), np.float32)


def cpu(run: Callable[[], Any]) -> float:
    begun = time.process_time()
    run()
    return time.process_time() - begun


def verdict(what: str, ratio: float, limit: float, detail: str = "") -> None:
    print(f"  {'met   ' if ratio <= limit else 'MISSED'} {what}: {ratio:.2f}, may be {limit}{detail}", flush=True)


def after_a_commit(graph: Graph, place: list[float]) -> None:
    for name, ranking in (("nearest", ARM), ("bm25", WORDS)):
        ask = query(ranking)

        def run(ask: str = ask) -> list[Any]:
            return graph.query(ask, {"v": place}).rows

        run()
        warm = min(cpu(run) for _ in range(5))
        ratios = []
        for number in range(3):
            row = f'name: "{name}{number}"  part: 1  text: "new"  place: $v'
            graph.mutate(f"query q($v: Vector({SIZE})) {{ insert Doc {{ {row} }} }}", {"v": [9.0] * SIZE})
            ratios.append(cpu(run) / warm)
        assert run() == omnigraph.open(graph.uri, read_only=True).query(ask, {"v": place}).rows
        verdict(f"{name} after an insert, of warm", sorted(ratios)[1], 2, f" (warm {warm * 1e3:.1f} ms CPU)")


def recall(graph: Graph, places: list[list[float]], exact: str, quick: str) -> float:
    found = [
        {row["d.name"] for row in graph.query(exact, {"v": place}).rows}
        & {row["d.name"] for row in graph.query(quick, {"v": place}).rows}
        for place in places
    ]
    return float(np.mean([len(one) / 10 for one in found]))


def approximate(graph: Graph, places: list[list[float]], kind: str) -> None:
    for what, match in (("all rows", "$d: Doc"), ("1 % of the rows", "$d: Doc { part: 7 }")):
        share = recall(graph, places, query(ARM, match), query(QUICK, match))
        print(
            f"  {'met   ' if share >= 0.95 else 'MISSED'} recall, {kind}, {what}: {share:.3f}, at least 0.95",
            flush=True,
        )
    exact, quick = (query(f"rrf({arm}, {WORDS})") for arm in (ARM, QUICK))
    times = [min(cpu(lambda: graph.query(ask, {"v": places[0]})) for _ in range(5)) for ask in (exact, quick)]  # noqa: B023
    share = recall(graph, places, exact, quick)
    detail = f" (exact {times[0] * 1e3:.1f} ms CPU, recall {share:.3f}, at least 0.98)"
    verdict(f"hybrid, {kind}, of exact", times[1] / times[0], 0.3, detail)


def first_search(graph: Graph, column: pa.Array, place: list[float], home: Path) -> None:
    opened = omnigraph.open(graph.uri, read_only=True)
    ours = cpu(lambda: opened.query(query(WORDS), {"v": place}))
    theirs = lance.write_dataset(pa.table({"text": column}), home / "words.lance")
    built = cpu(lambda: theirs.create_scalar_index("text", "INVERTED"))
    verdict("first bm25, of pylance building its index", ours / built, 0.5, f" ({ours:.2f} of {built:.2f} s CPU)")


def main(rows: int) -> None:
    for kind in ("clusters", "evenly spread"):
        random = np.random.default_rng(11)
        column, places = texts(random, rows), vectors(random, rows, spread=kind != "clusters")
        flat = pa.FixedSizeListArray.from_arrays(pa.array(places.reshape(-1)), SIZE)
        names = pa.array([f"d{number}" for number in range(rows)])
        table = pa.table({"name": names, "part": np.arange(rows) % 100, "text": column, "place": flat})
        asked = [(places[at * 37] + np.float32(0.05)).tolist() for at in range(ASKED)]
        with tempfile.TemporaryDirectory() as home:
            graph = omnigraph.init(Path(home) / "g", SCHEMA, upkeep="off")
            graph.load({"Doc": table}, mode="append")
            del table, flat, places
            print(f"{rows:,} documents with vectors of {SIZE}, {kind}")
            if kind == "clusters":
                first_search(graph, column, asked[0], Path(home))
                after_a_commit(graph, asked[0])
            graph.optimize()
            approximate(graph, asked, kind)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else ROWS)
