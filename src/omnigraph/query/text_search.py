"""Full-text search: words of a text, and how well documents match them (BM25)."""

from __future__ import annotations

import re
import threading
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, reduce
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.lang import ir
from omnigraph.query.arrays import spread
from omnigraph.query.evaluate import Mask, Values
from omnigraph.query.frame import Frame
from omnigraph.query.view import TableView

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
# Letters that plain spelling writes as two.
_LIGATURES = str.maketrans({"æ": "ae", "œ": "oe", "ø": "o", "ß": "ss", "ð": "d", "đ": "d", "þ": "th", "ł": "l"})
# Han, kana and hangul, which are written without spaces, or with endings that are part of the word.
_SIGN = (
    "\u1100-\u11ff\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uac00-\ud7af\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)
_SIGNS, _RUNS = re.compile(f"[{_SIGN}]"), re.compile(f"[{_SIGN}]+|[^{_SIGN}]+")
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


def _terms_of_run(run: str) -> tuple[str, ...]:
    if _SIGNS.match(run):
        # Where words begin is not written. So a word is found if all of its pairs are.
        return tuple(run[at : at + 2] for at in range(max(len(run) - 1, 1)))
    one = term(run)
    return (one,) if one else ()


@lru_cache(maxsize=1024)
def wanted_words(text: str) -> tuple[tuple[str, ...], ...]:
    """Return the terms of each word of a query, in order."""
    found = map(terms_of, words(pa.array([text]))[0].to_pylist())
    return tuple(one for one in found if one)


def words(texts: pa.Array) -> tuple[pa.DictionaryArray, np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """Return the words of many texts, and the index of the text of each."""
    lists = pc.split_pattern_regex(pc.utf8_lower(texts), CUT)
    return pc.list_flatten(lists).dictionary_encode(), pc.list_parent_indices(lists).to_numpy().astype(np.int64)


_K1, _B = 1.2, 0.75
_DEFAULT_EDITS = 2


@dataclass(frozen=True)
class TextIndex:
    """An inverted index: the texts of each term with their frequencies, and the length of each text."""

    vocabulary: dict[str, int]
    starts: np.ndarray[Any, Any]
    texts: np.ndarray[Any, Any]
    counts: np.ndarray[Any, Any]
    lengths: np.ndarray[Any, Any]
    filled: int  # texts that have a term

    @property
    def nbytes(self) -> int:
        arrays = (self.starts, self.texts, self.counts, self.lengths)
        return sum(array.nbytes for array in arrays) + 100 * len(self.vocabulary)  # about the bytes of one entry

    def holding(self, wanted: Iterable[Sequence[str]]) -> Mask:
        """Return which texts contain all terms of any of the words."""
        mask = np.zeros(len(self.lengths), bool)
        for word in wanted:
            texts = [self._texts_of(one)[0] for one in word]
            mask[reduce(np.intersect1d, texts)] = True
        return mask

    def scores(self, wanted: Iterable[str]) -> np.ndarray[Any, Any]:
        """Return the BM25 score of each text; 0 without any of the terms."""
        total = np.zeros(len(self.lengths))
        average = self.lengths.sum() / max(self.filled, 1)
        for one in wanted:
            at, counts = self._texts_of(one)
            if len(at):
                weight = np.log(1 + (self.filled - len(at) + 0.5) / (len(at) + 0.5))
                length = self.lengths[at] / average
                total[at] += weight * counts * (_K1 + 1) / (counts + _K1 * (1 - _B + _B * length))
        return total

    def spelled(self, wanted: Iterable[Sequence[str]]) -> list[Sequence[str]]:
        """Return words as their terms are; a single sign, which is part of terms only, becomes each of these."""
        return [
            word
            for asked in wanted
            for word in (self._with_sign(asked[0]) if len(asked[0]) == 1 and _SIGNS.match(asked[0]) else [asked])
        ]

    def _with_sign(self, sign: str) -> list[Sequence[str]]:
        return [(one,) for one in self.vocabulary if sign in one]

    def near(self, word: Sequence[str], edits: int) -> list[Sequence[str]]:
        """Return the words within some edits of one; a word of signs is only near itself."""
        if _SIGNS.match(word[0]):
            return [word]
        return [(one,) for one in self._near(word[0], edits)]

    def _near(self, wanted: str, edits: int) -> list[str]:
        # An edit changes the length by at most one, so most terms are excluded without comparing letters.
        candidates = [one for one in self.vocabulary if abs(len(one) - len(wanted)) <= edits]
        return [
            one for one, distance in zip(candidates, _distances(wanted, candidates), strict=True) if distance <= edits
        ]

    def _texts_of(self, one: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        at = self.vocabulary.get(one)
        if at is None:
            return self.texts[:0], self.counts[:0]
        part = slice(self.starts[at], self.starts[at + 1])
        return self.texts[part], self.counts[part]


def text_index(view: TableView, name: str) -> TextIndex:
    return view.cache.get((view.table, name, "@text"), lambda: _build(view.column(name)), lambda made: made.nbytes)


def _build(column: pa.Array) -> TextIndex:
    found, texts = words(column)
    # Each distinct word once: stemming is Python, and a column has far fewer words than occurrences of them.
    kinds = [*map(terms_of, found.dictionary.to_pylist())]
    vocabulary = {one: at for at, one in enumerate(dict.fromkeys(chain.from_iterable(kinds)))}
    numbers = np.array([vocabulary[one] for one in chain.from_iterable(kinds)], np.int64)
    many = np.array([len(kind) for kind in kinds], np.int64)
    occurring = found.indices.to_numpy() if len(found) else np.empty(0, np.int64)
    counts_of = many[occurring]
    of_word = numbers[spread(np.cumsum(many)[occurring] - counts_of, counts_of)]
    texts = np.repeat(texts, counts_of)
    pairs, counts = np.unique(of_word * len(column) + texts, return_counts=True)
    terms_at, texts_of = np.divmod(pairs, max(len(column), 1))
    starts = np.searchsorted(terms_at, np.arange(len(vocabulary) + 1))
    # In terms that count: stop words do not make a text long.
    lengths = np.bincount(texts, minlength=len(column))
    return TextIndex(vocabulary, starts, texts_of, counts, lengths, int((lengths > 0).sum()))


def text_mask(predicate: ir.TextMatch, frame: Frame, values: Values) -> Mask:
    """Return which rows match a text search."""
    variable, name = predicate.text.variable, predicate.text.property
    index = text_index(frame.views[variable], name)
    query = values(predicate.query)
    wanted = index.spelled(() if query is None else wanted_words(str(query)))
    if predicate.function == "fuzzy":
        edits = _DEFAULT_EDITS if predicate.edits is None else values(predicate.edits)
        wanted = [] if edits is None else [near for one in wanted for near in index.near(one, int(str(edits)))]
    found: Mask = index.holding(wanted)[frame.columns[variable]]
    return found


def _distances(word: str, others: list[str]) -> np.ndarray[Any, Any]:
    """Return the edit distance of a word to each of the others, all at once."""
    width = max(map(len, others), default=0)
    letters = np.zeros((len(others), width), np.int64)
    for at, other in enumerate(others):
        letters[at, : len(other)] = [ord(letter) for letter in other]
    row = np.tile(np.arange(width + 1), (len(others), 1))
    for number, letter in enumerate(word, 1):
        following = np.empty_like(row)
        following[:, 0] = number
        for at in range(1, width + 1):
            kept = row[:, at - 1] + (letters[:, at - 1] != ord(letter))
            following[:, at] = np.minimum(np.minimum(row[:, at], following[:, at - 1]) + 1, kept)
        row = following
    return row[np.arange(len(others)), [len(other) for other in others]] if others else np.empty(0, np.int64)
