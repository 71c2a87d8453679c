"""The words of texts, and the term that each is searched by."""

from __future__ import annotations

import re
import string
import threading
import unicodedata
from collections.abc import Iterator
from functools import cache, lru_cache
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.core.running import proceed
from omnigraph.query.arrays import Integers

_CUT = r"[^\p{L}\p{N}]+"
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
# Letters that plain spelling writes as two.
_LIGATURES = str.maketrans({"æ": "ae", "œ": "oe", "ø": "o", "ß": "ss", "ð": "d", "đ": "d", "þ": "th", "ł": "l"})
# Han, kana and hangul, which are written without spaces, or with endings that are part of the word.
_SIGN = (
    "\u1100-\u11ff\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uac00-\ud7af\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)
SIGNS, _RUNS = re.compile(f"[{_SIGN}]"), re.compile(f"[{_SIGN}]+|[^{_SIGN}]+")
MARK = "="  # no letter, so no word begins with it
_ONE_AT_A_TIME = threading.Lock()  # a stemmer keeps the current word in itself


@lru_cache(maxsize=65_536)
def term(word: str) -> str | None:
    """Return the search term of a lower-case word; None for stop words and overlong ones."""
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
    """Remove the accents of a Latin letter."""
    plain = "".join(part for part in unicodedata.normalize("NFKD", letter) if not unicodedata.combining(part))
    return plain if plain.isascii() else letter


def terms_of(word: str) -> tuple[str, ...]:
    """Return the search terms of a lower-case word: one, none, or each pair of signs of a script without spaces."""
    if word.isascii():
        one = term(word)
        return (one,) if one else ()
    return tuple(chain.from_iterable(map(_terms_of_run, _RUNS.findall(word))))


def entries_of(word: str) -> tuple[str, ...]:
    """Return what an index keeps of a lower-case word: a plain one as it is, of others the marked terms.

    Finding the term of a word is slow. So that of a plain word is found when a search comes near it.
    """
    if word.isascii():
        return () if not word or len(word) > _LONGEST or word in _COMMON else (word,)
    return tuple(f"{MARK}{one}" for one in terms_of(word))


def term_of(entry: str) -> str | None:
    """Return the term that an entry of an index stands for."""
    return entry[1:] if entry.startswith(MARK) else term(entry)


def beginnings(one: str) -> tuple[str, ...]:
    """Return how plain words of a term begin, in one way each: stemming changes the end only."""
    usual = one[: max(len(one) - 2, 2)]
    # "dying" is of "die", and so are all words of a letter and "ying".
    return (usual, f"{one[0]}ying") if len(one) == len("die") and one.endswith("ie") else (usual,)


def _terms_of_run(run: str) -> tuple[str, ...]:
    if SIGNS.match(run):
        # Where words begin is not written. So a word is found if all of its pairs are.
        return tuple(run[at : at + 2] for at in range(max(len(run) - 1, 1)))
    one = term(run)
    return (one,) if one else ()


@lru_cache(maxsize=1024)
def wanted_words(text: str) -> tuple[tuple[str, ...], ...]:
    """Return the terms of each word of a query, in order."""
    found = map(terms_of, _cut(pa.array([text])).flatten().to_pylist())
    return tuple(one for one in found if one)


def _cut(texts: pa.Array) -> pa.ListArray:
    """Cut texts into words by the regular expression, which knows all scripts, and takes several times as long."""
    return pc.split_pattern_regex(pc.utf8_lower(texts), _CUT)


# Bytes of ASCII letters and digits, lower-case; 0 for all others.
_LOWER = np.zeros(256, np.uint8)
for _byte in (string.ascii_letters + string.digits).encode():
    _LOWER[_byte] = ord(chr(_byte).lower())
_NOT_ASCII = 128  # bytes from here on are parts of other letters
_BLOCK = 2**23  # bytes of text that are cut at a time: what that takes besides is several times as much


def words(texts: pa.Array) -> Iterator[tuple[pa.Array, Integers]]:
    """Cut texts into words, block by block: the words in lower case, and the index of the text of each."""
    texts = texts.fill_null("")
    offsets = _offsets(texts)
    if not len(texts) or offsets[0] == offsets[-1]:
        yield pa.nulls(0, pa.string()), np.empty(0, np.int32)
        return
    marks = np.searchsorted(offsets, np.arange(offsets[0], offsets[-1], _BLOCK))
    for start, end in zip(marks, [*marks[1:], len(texts)], strict=True):
        proceed()
        if start < end:
            yield from _block_words(texts.slice(start, end - start), start)


def _offsets(texts: pa.Array) -> Integers:
    kind = np.int64 if pa.types.is_large_string(texts.type) else np.int32
    return np.frombuffer(texts.buffers()[1], kind)[texts.offset : texts.offset + len(texts) + 1]


def _block_words(texts: pa.Array, first: int) -> Iterator[tuple[pa.Array, Integers]]:
    offsets = _offsets(texts)
    letters = np.frombuffer(texts.buffers()[2], np.uint8)[offsets[0] : offsets[-1]]
    foreign = np.flatnonzero(letters >= _NOT_ASCII)
    rest = np.unique(np.searchsorted(offsets, foreign + offsets[0], side="right") - 1)
    if len(rest):
        lists = _cut(texts.take(pa.array(rest)))
        parents = pc.list_parent_indices(lists).to_numpy()
        yield pc.list_flatten(lists).cast(pa.string()), (rest[parents] + first).astype(np.int32)
    plain = np.setdiff1d(np.arange(len(texts)), rest, assume_unique=True)
    found, counts = _plain_words(texts if not len(rest) else texts.take(pa.array(plain)))
    yield found, np.repeat((plain + first).astype(np.int32), counts)


def _plain_words(texts: pa.Array) -> tuple[pa.Array, Integers]:
    """Cut texts of ASCII; return the words, and how many each text has."""
    offsets = _offsets(texts)
    data = np.frombuffer(texts.buffers()[2] or b"", np.uint8)[offsets[0] : offsets[-1]]
    lower = _LOWER[data]
    inside = lower != 0
    begins = inside.copy()
    begins[1:] &= ~inside[:-1]
    edges = offsets - offsets[0]
    firsts = edges[:-1][edges[:-1] < len(data)]
    begins[firsts] = inside[firsts]  # a text begins a word, even if the last one ended with a letter
    at = np.flatnonzero(begins)
    # Words without what is between them: a word ends where the next one begins, as Arrow wants it.
    packed = lower[inside]
    places = np.append(np.cumsum(inside, dtype=np.int32)[at] - 1, len(packed)).astype(np.int32)
    found = pa.StringArray.from_buffers(len(at), pa.py_buffer(places), pa.py_buffer(packed))
    return found, np.diff(np.searchsorted(at, edges))
