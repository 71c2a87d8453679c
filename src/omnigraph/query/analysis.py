"""Text analysis: from texts to the terms that search compares.

A text is cut at everything that is no letter and no digit; words are put in lower case, common ones and those of 40
characters or more are left out, the others are cut to their English stems, and accents are removed from these.
"""

from __future__ import annotations

import threading
import unicodedata
from functools import cache, lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

CUT = r"[^\p{L}\p{N}]+"
_LONGEST = 39
_COMMON_WORDS = (
    "a about after again against all am an and are as at be been being below between both but by can did "
    "do doing down each few for from further had has have having he her here heres hers herself him "
    "himself his how hows i if in into is it its itself just me more most my myself now of off on or "
    "other our ours out over own re same she should so some such than that thats the their theirs them "
    "then there theres these they this those through to too under until up was we were what whats when "
    "where wheres which while who whom will with you your youre yours yourself"
)
_COMMON = frozenset(_COMMON_WORDS.split())
# What is one letter, but two in plain spelling.
_LIGATURES = str.maketrans({"æ": "ae", "œ": "oe", "ø": "o", "ß": "ss", "ð": "d", "đ": "d", "þ": "th", "ł": "l"})
_ONE_AT_A_TIME = threading.Lock()  # it keeps the word that it is at


@lru_cache(maxsize=65_536)
def term(word: str) -> str | None:
    """The term that a word in lower case counts as; None if it counts as none."""
    if not word or len(word) > _LONGEST or word in _COMMON:
        return None
    with _ONE_AT_A_TIME:
        stem: str = _stemmer().stemWord(word)
    return "".join(map(_folded, stem.translate(_LIGATURES)))


@cache
def _stemmer() -> Any:
    # The package imports the stemmers of thirty languages, which a query without a search would wait for.
    import snowballstemmer  # noqa: PLC0415

    return snowballstemmer.stemmer("english")


def _folded(letter: str) -> str:
    """A letter without its accents, if it is one of the Latin alphabet."""
    plain = "".join(part for part in unicodedata.normalize("NFKD", letter) if not unicodedata.combining(part))
    return plain if plain.isascii() else letter


@lru_cache(maxsize=1024)
def terms(text: str) -> tuple[str, ...]:
    """The terms of a text, in order."""
    found = (term(word) for word in words(pa.array([text]))[0].to_pylist())
    return tuple(one for one in found if one)


def words(texts: pa.Array) -> tuple[pa.DictionaryArray, np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """The words of many texts, and the text that each is of."""
    lists = pc.split_pattern_regex(pc.utf8_lower(texts), CUT)
    return pc.list_flatten(lists).dictionary_encode(), pc.list_parent_indices(lists).to_numpy().astype(np.int64)
