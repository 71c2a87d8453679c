"""Documents with a text, a vector and links to others, for questions that join search with the graph."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from . import rmat

COUNT, DIMENSION, WORDS, LINKS = 20_000, 64, 4_000, 5
SHORTEST, LONGEST = 20, 180  # in words; so hardly any two texts match equally well
_SYLLABLES = ("ba", "do", "gu", "ka", "lo", "mu", "na", "po", "ra", "tu")


def word(number: int) -> str:
    """A word that no stemmer cuts: syllables that end in a vowel."""
    return "".join(_SYLLABLES[int(digit)] for digit in f"{number:04d}")


def write(folder: Path) -> None:
    """Write `nodes.parquet` with text and vector, and `links.parquet`."""
    random = np.random.default_rng(11)
    lengths = random.integers(SHORTEST, LONGEST, COUNT)
    chosen = (WORDS * random.random(lengths.sum()) ** 3).astype(np.int64)  # some words are far more common
    vocabulary = np.array([word(number) for number in range(WORDS)])
    texts = [" ".join(line) for line in np.split(vocabulary[chosen], np.cumsum(lengths)[:-1])]
    vectors = random.standard_normal((COUNT, DIMENSION)).astype(np.float32)
    names = pa.array([f"d{number}" for number in range(COUNT)])
    rmat.write_tables(folder, names, *random.integers(0, COUNT, (2, COUNT * LINKS)))
    flat = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), DIMENSION)
    nodes = pa.table({"name": names, "number": np.arange(COUNT), "text": texts, "place": flat})
    pq.write_table(nodes, folder / "nodes.parquet")
