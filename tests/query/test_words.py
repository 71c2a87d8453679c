"""Words are cut quickly as they are cut slowly, and a search finds all words of a term."""

from __future__ import annotations

from itertools import product
from random import Random

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from omnigraph.query import words as module
from omnigraph.query.text_search import Postings, TextIndex
from omnigraph.query.words import beginnings, entries_of, term, words

# fmt: off
PIECES = (
    "ab",
    "Cd",
    "e1",
    " ",
    "  ",
    "-",
    "_",
    "",
    "\n",
    "é",
    "ß",
    "İ",
    "日本",
    "\U0001f600",
    "x" * 40,
    "'",
    "[",
    "`",
    "{",
    "@",
)


def slowly(texts: pa.Array) -> list[tuple[str, int]]:
    lists = pc.split_pattern_regex(pc.utf8_lower(texts.fill_null("")), r"[^\p{L}\p{N}]+")
    found = zip(lists.flatten().to_pylist(), pc.list_parent_indices(lists).to_pylist(), strict=True)
    return sorted(one for one in found if one[0])


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
@pytest.mark.parametrize("block", [2**23, 7])
def test_words_are_cut_as_by_the_regular_expression(
    kind: pa.DataType, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BLOCK", block)
    random = Random(1)  # noqa: S311
    for _ in range(20):
        count = random.randint(0, 9)
        texts = [None if random.random() < 0.1 else "".join(random.choices(PIECES, k=random.randint(0, 7)))
                 for _ in range(count)]  # fmt: skip
        column = pa.array([*texts, "behind"], kind).slice(1 if count else 0, max(count - 1, 0))

        found = [(word, at) for part, ats in words(column) for word, at in zip(part.to_pylist(), ats, strict=True)]

        assert sorted((word, int(at)) for word, at in found if word) == slowly(column), texts


# fmt: off
STARTS = ("a", "ba", "cri", "gener", "rely", "happ", "hop", "hopp", "siz", "y", "toy", "commun", "arsen", "skat", "ski",
          "d", "l", "t", "pa", "con", "fluent", "lov", "un", "inn", "out", "proc", "log", "sens", "abl", "new")
# fmt: on
# fmt: off
ENDS = ("", "s", "ies", "ied", "ed", "eed", "ing", "y", "ying", "ly", "edly", "ingly", "eedly", "e", "tional", "enci",
        "anci", "abli", "entli", "ization", "izer", "ational", "ation", "ator", "alism", "ality", "ally", "fulness",
        "ously", "ousness", "iveness", "ivity", "ability", "bly", "ogy", "fully", "lessly", "alize", "icate", "icity",
        "ical", "ful", "ness", "ative", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment", "ent",
        "ism", "ate", "iti", "ous", "ive", "ize", "ion", "sses", "us", "ll", "le", "ist", "ies", "skies", "die")
# fmt: on


def test_a_plain_word_begins_as_its_term_does() -> None:
    every = {start + end for start, end in product(STARTS, ENDS)} | {
        a + b + c for a, b, c in product("dv", ENDS, ENDS[::3])
    }
    kept = [(word, term(word) or "") for word in every if entries_of(word)]

    assert [pair for pair in kept if not pair[0].startswith(beginnings(pair[1]))] == []
    assert {term(word) for word in ("dying", "vying", "dyings")} == {"die", "vie"}


def test_a_term_has_all_of_its_words() -> None:
    texts = ["tie tying ties", "tied", "graphs graphing Graph", "naïve naive", "日本語", "the", "2 2", None, ""]
    index = TextIndex.of(pa.array(texts))

    def held(one: str) -> dict[int, int]:
        at, counts, _ = index.parts[0].holding(one)
        return dict(zip(at.tolist(), counts.tolist(), strict=True))

    assert held("tie") == {0: 3, 1: 1}
    assert held("graph") == {2: 3}
    assert held("naiv") == {3: 2}
    assert held("日本") == {4: 1}
    assert held("2") == {6: 2}
    assert index.lengths() == (6, 3 + 1 + 3 + 2 + 2 + 2)


def test_what_is_kept_of_many_words_is_small() -> None:
    random = np.random.default_rng(3)
    kinds = pa.array([f"word{number}" for number in range(2_000)])
    held = kinds.take(pa.array(random.integers(0, 2_000, 200_000)))
    column = pc.binary_join(pa.ListArray.from_arrays(pa.array(np.arange(0, 200_001, 10, dtype=np.int32)), held), " ")

    made = Postings.of(column)

    assert made.nbytes < 200_000 * 6  # four bytes of each text, one of how often it occurs
