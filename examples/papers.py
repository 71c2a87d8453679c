"""The data of the demo: papers that cite earlier ones, as Parquet files that `omnigraph load` takes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

SMALLEST = 100
DIMENSION = 16  # of the vectors in papers.pg
TOPICS = {
    "astronomy": ("stars", "galaxies", "comets", "lenses", "orbits", "nebulae"),
    "botany": ("mosses", "orchids", "seeds", "roots", "pollen", "leaves"),
    "computing": ("compilers", "caches", "queries", "graphs", "proofs", "sorting"),
    "geology": ("basalt", "glaciers", "faults", "fossils", "caves", "sand"),
    "medicine": ("vaccines", "nerves", "fevers", "bones", "sleep", "hearing"),
    "music": ("fugues", "tuning", "rhythm", "bells", "choirs", "strings"),
    "physics": ("magnets", "plasma", "photons", "friction", "crystals", "vacuum"),
    "zoology": ("beetles", "whales", "bats", "corals", "spiders", "migration"),
}
_WAYS = ("On", "Notes on", "The theory of", "A survey of", "Against", "Measuring", "Towards", "A history of")
_FIRST = ("Ada", "Boris", "Chen", "Dora", "Emil", "Fatima", "Grace", "Hugo", "Ines", "Jonas", "Kofi", "Lena")
_LAST = ("Abel", "Brandt", "Costa", "Dietz", "Eklund", "Fischer", "Gomes", "Haas", "Ito", "Jensen", "Klein", "Lund")
Numbers = np.ndarray[Any, np.dtype[np.int64]]
Rows = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True, slots=True)
class Made:
    """What was written: how much of it, and who cites whom, by number."""

    nodes: int
    edges: int
    citing: Numbers
    cited: Numbers


def write(folder: Path, papers: int) -> Made:
    """Write one file for each type. A paper cites some five earlier ones, the earliest far more often."""
    random = np.random.default_rng(5)
    folder.mkdir()
    authors = papers // 4
    topics = random.integers(0, len(TOPICS), papers)
    later = random.integers(1, papers, papers * 5)
    citing, cited = _once(later, (later * random.random(len(later)) ** 3).astype(np.int64))
    author, paper = _once(random.integers(0, authors, papers * 2), np.arange(papers * 2) // 2)
    slugs, people = _numbered("p", papers), _numbered("a", authors)
    tables = {
        "Author": {"slug": people, "name": _names(authors)},
        "Topic": {"slug": pa.array(TOPICS)},
        "Paper": {**_titles(topics, slugs), "meaning": _vectors(random, topics)},
        "Wrote": _ends(people.take(pa.array(author)), slugs.take(pa.array(paper))),
        "About": _ends(slugs, pa.array(TOPICS).take(pa.array(topics))),
        "Cites": _ends(slugs.take(pa.array(citing)), slugs.take(pa.array(cited))),
    }
    for name, columns in tables.items():
        pq.write_table(pa.table(columns), folder / f"{name}.parquet")
    nodes = authors + len(TOPICS) + papers
    return Made(nodes, papers + len(citing) + len(author), citing, cited)


def vector_of(topic: str) -> list[float]:
    """Where the papers of a topic lie, more or less."""
    return [float(number) for number in _centres()[list(TOPICS).index(topic)]]


def _centres() -> Rows:
    return np.random.default_rng(6).standard_normal((len(TOPICS), DIMENSION)).astype(np.float32)


def _vectors(random: np.random.Generator, topics: Numbers) -> pa.Array:
    noise = random.standard_normal((len(topics), DIMENSION)).astype(np.float32)
    return pa.FixedSizeListArray.from_arrays(pa.array((_centres()[topics] + noise / 2).reshape(-1)), DIMENSION)


def _titles(topics: Numbers, slugs: pa.Array) -> dict[str, pa.Array]:
    numbers = np.arange(len(topics))
    words = np.array(list(TOPICS.values()))
    way, first, second = np.array(_WAYS)[numbers % 8], words[topics, numbers // 8 % 6], words[topics, numbers // 48 % 6]
    titles = [f"{a} {b} and {c}" if b != c else f"{a} {b}" for a, b, c in zip(way, first, second, strict=True)]
    years = 1900 + numbers * 124 // len(numbers)
    return {"slug": slugs, "title": pa.array(titles), "year": pa.array(years, pa.int32())}


def _names(count: int) -> pa.Array:
    return pa.array([f"{_FIRST[n % 12]} {_LAST[n // 12 % 12]} {n // 144 + 1}" for n in range(count)])


def _numbered(letter: str, count: int) -> pa.Array:
    return pa.array([f"{letter}-{number}" for number in range(count)])


def _once(sources: Numbers, targets: Numbers) -> tuple[Numbers, Numbers]:
    """The pairs, none of them twice."""
    pairs = np.unique(np.stack([sources, targets]), axis=1)
    return pairs[0], pairs[1]


def _ends(sources: pa.Array, targets: pa.Array) -> dict[str, pa.Array]:
    return {"from": sources, "to": targets}
