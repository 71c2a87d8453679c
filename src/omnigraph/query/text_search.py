"""Full-text search: an inverted index of a column, and how well texts match words (BM25)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.api.results import TableVersion
from omnigraph.lang import ir
from omnigraph.query.arrays import Integers, Mask, narrow, spread
from omnigraph.query.frame import Frame
from omnigraph.query.growth import Growth
from omnigraph.query.view import TableView
from omnigraph.query.words import MARK, SIGNS, beginnings, entries_of, term_of, wanted_words, words
from omnigraph.storage.expressions import Values

_K1, _B = 1.2, 0.75
_DEFAULT_EDITS = 2
_MOST_PARTS = 8
_TERMS = "@text"
GONE = -1

Floats = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Postings:
    """Some texts: those of each entry of the vocabulary with how often it occurs, and the terms of each text."""

    vocabulary: pa.Array  # plain words, and marked terms of others, in order
    starts: Integers  # of entry i: from starts[i] to starts[i + 1]
    texts: Integers
    counts: Integers
    lengths: Integers

    @classmethod
    def of(cls, column: pa.Array) -> Postings:
        """Collect the words of texts."""
        cut = [(found.dictionary_encode(), texts) for found, texts in words(column)]
        occurring = pa.chunked_array([one for one, _ in cut]).unify_dictionaries()
        # Each distinct word once: this is Python, and a column has far fewer words than occurrences of them.
        kinds = [*map(entries_of, occurring.chunk(0).dictionary.to_pylist())]
        vocabulary, numbers = _ordered(pa.array(chain.from_iterable(kinds), pa.string()))
        many = np.array([len(kind) for kind in kinds], np.int64)
        firsts = np.cumsum(many) - many
        lengths, codes = np.zeros(len(column), np.int64), []
        for chunk, (_, texts) in zip(occurring.chunks, cut, strict=True):
            at = chunk.indices.to_numpy()
            holding = np.repeat(texts, many[at])
            lengths += np.bincount(holding, minlength=len(column))  # stop words do not make a text long
            codes.append((numbers[spread(firsts[at], many[at])] << _BITS) | holding)
        return cls._of(vocabulary, np.concatenate(codes), lengths)

    @classmethod
    def _of(cls, vocabulary: pa.Array, codes: Integers, lengths: Integers) -> Postings:
        """Build them from pairs of entry and text, each packed into one number, one for each occurrence."""
        codes.sort()
        new = np.ones(len(codes), bool)
        new[1:] = codes[1:] != codes[:-1]
        at = np.flatnonzero(new)
        counts, pairs = np.diff(at, append=len(codes)), codes[at]
        starts = np.searchsorted(pairs, np.arange(len(vocabulary) + 1) << _BITS)
        return cls(vocabulary, _small(starts), _small(pairs & _TEXT), _small(counts), _small(lengths))

    @classmethod
    def joined(cls, parts: Sequence[tuple[Postings, Integers]], rows: int) -> Postings:
        """Join several, with the number that each of their texts gets; those without one are left out."""
        vocabulary, numbers = _ordered(pa.concat_arrays([one.vocabulary for one, _ in parts]))
        lengths, codes, first = np.zeros(rows, np.int64), [], 0
        for one, placed in parts:
            lengths[placed[placed != GONE]] = one.lengths[placed != GONE]
            entries = numbers[first : first + len(one.vocabulary)]
            texts = placed[one.texts].astype(np.int64)
            found = (np.repeat(entries, one.sizes) << _BITS) | texts
            codes.append(np.repeat(found[texts != GONE], one.counts[texts != GONE]))
            first += len(entries)
        return cls._of(vocabulary, np.concatenate(codes), lengths)

    @property
    def nbytes(self) -> int:
        arrays = (self.vocabulary, self.starts, self.texts, self.counts, self.lengths)
        return int(sum(array.nbytes for array in arrays))

    @property
    def sizes(self) -> Integers:
        """How many texts each entry has."""
        starts = self.starts.astype(np.int64)
        return starts[1:] - starts[:-1]

    @cached_property
    def terms(self) -> pa.Array:
        """All terms. Takes long, once."""
        return pc.unique(pa.array(map(term_of, self.vocabulary.to_pylist()), pa.string()))

    def find(self, one: str) -> tuple[Integers, Integers]:
        """Return the texts of a term, and how often each has it."""
        parts = [slice(int(self.starts[at]), int(self.starts[at + 1])) for at in self._entries(one)]
        texts = np.concatenate([self.texts[part] for part in parts] or [self.texts[:0]])
        counts = np.concatenate([self.counts[part] for part in parts] or [self.counts[:0]])
        if len(parts) <= 1:
            return texts, counts
        distinct, inverse = np.unique(texts, return_inverse=True)
        return distinct, np.bincount(inverse, counts).astype(np.int64)

    def _entries(self, one: str) -> Iterator[int]:
        """Return the entries that stand for a term."""
        for start in beginnings(one):
            first, last = self._place(start), self._place(f"{start}{_LAST}")
            near = self.vocabulary.slice(first, last - first).to_pylist()
            yield from (first + at for at, entry in enumerate(near) if term_of(entry) == one)
        at = self._place(f"{MARK}{one}")
        if at < len(self.vocabulary) and self.vocabulary[at].as_py() == f"{MARK}{one}":
            yield at

    def _place(self, entry: str) -> int:
        return bisect_left(range(len(self.vocabulary)), entry, key=lambda at: self.vocabulary[at].as_py())


_BITS = 32  # of the number of a text in a packed pair
_TEXT = 2**_BITS - 1
_LAST = "\x7f"  # behind all letters and digits


def _ordered(entries: pa.Array) -> tuple[pa.Array, Integers]:
    """Return the distinct entries in order, and the number of each."""
    kinds = entries.dictionary_encode()
    order = pc.sort_indices(kinds.dictionary).to_numpy().astype(np.int64)
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.arange(len(order))
    return kinds.dictionary.take(pa.array(order)), ranks[kinds.indices.to_numpy()]


def _small(numbers: Integers) -> Integers:
    """Return numbers that are not negative in as few bytes as they need."""
    return numbers.astype(np.min_scalar_type(int(numbers.max(initial=0))), copy=False)


@dataclass(frozen=True, slots=True)
class Part:
    """Postings, and the position of each of their texts in a version; -1 where it is gone."""

    postings: Postings
    at: Integers

    def holding(self, one: str) -> tuple[Integers, Integers, Integers]:
        """Return the texts of a term: their positions, how often they hold it, and how many terms they have."""
        texts, counts = self.postings.find(one)
        at = self.at[texts]
        there = at != GONE
        return at[there], counts[there], self.postings.lengths[texts[there]]


@dataclass(frozen=True, slots=True)
class TextIndex:
    """An inverted index of one version of a column: that of its base, and one for each commit since.

    A commit adds postings of its own, so that the large ones are not copied; a text that is gone has no position.
    """

    count: int
    parts: tuple[Part, ...]

    @classmethod
    def of(cls, column: pa.Array) -> TextIndex:
        return cls(len(column), (Part(Postings.of(column), np.arange(len(column), dtype=narrow(len(column)))),))

    @property
    def nbytes(self) -> int:
        return sum(part.postings.nbytes + int(part.at.nbytes) for part in self.parts)

    def grown(self, grown: Growth, own: Postings) -> TextIndex | None:
        """Return that of a version that has some more rows, and lacks some; None if most texts are gone."""
        kind = narrow(grown.kept + len(grown.added))
        parts = self.parts if grown.is_plain else tuple(_moved(part, grown.moved, kind) for part in self.parts)
        if len(grown.added):
            parts = (*parts, Part(own, grown.added.astype(kind)))
        if sum(int((part.at != GONE).sum()) for part in parts) * 2 < sum(len(part.at) for part in parts):
            return None
        return TextIndex(grown.kept + len(grown.added), _few(parts))

    def lengths(self) -> tuple[int, int]:
        """Return how many texts have a term, and how many terms these have together."""
        live = [part.postings.lengths[part.at != GONE] for part in self.parts]
        return sum(int((one > 0).sum()) for one in live), sum(int(one.sum(dtype=np.int64)) for one in live)

    def holding(self, wanted: Iterable[Sequence[str]]) -> Mask:
        """Return which texts contain all terms of any of the words."""
        mask = np.zeros(self.count, bool)
        for word in wanted:
            for part in self.parts:
                mask[reduce(np.intersect1d, [part.holding(one)[0] for one in word])] = True
        return mask

    def scores(self, wanted: Iterable[str]) -> Floats:
        """Return the BM25 score of each text; 0 without any of the terms."""
        total = np.zeros(self.count)
        filled, terms = self.lengths()
        average = terms / max(filled, 1)
        for one in wanted:
            found = [part.holding(one) for part in self.parts]
            often = sum(len(at) for at, _, _ in found)
            weight = np.log(1 + (filled - often + 0.5) / (often + 0.5))
            for at, counts, lengths in found:
                length = lengths / average if often else lengths
                total[at] += weight * counts * (_K1 + 1) / (counts + _K1 * (1 - _B + _B * length))
        return total

    def spelled(self, wanted: Iterable[Sequence[str]]) -> list[Sequence[str]]:
        """Return words as their terms are; a single sign, which is part of terms only, becomes each of these."""
        return [
            word
            for asked in wanted
            for word in (self._with_sign(asked[0]) if len(asked[0]) == 1 and SIGNS.match(asked[0]) else [asked])
        ]

    def _with_sign(self, sign: str) -> list[Sequence[str]]:
        held = (part.postings.vocabulary for part in self.parts)
        return _words(pc.utf8_slice_codeunits(one.filter(pc.match_substring(one, sign)), len(MARK)) for one in held)

    def near(self, word: Sequence[str], edits: int) -> list[Sequence[str]]:
        """Return the words within some edits of one; a word of signs is only near itself."""
        if SIGNS.match(word[0]):
            return [word]
        return _words(_near(part.postings.terms, word[0], edits) for part in self.parts)


def _words(found: Iterable[pa.Array]) -> list[Sequence[str]]:
    return [(one,) for one in sorted({*chain.from_iterable(each.to_pylist() for each in found)})]


def _moved(part: Part, moved: Integers, kind: type[np.integer[Any]]) -> Part:
    # Of a text that is gone already, -1, the last number.
    return Part(part.postings, np.append(moved, GONE)[part.at].astype(kind))


def _few(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """Join the parts of commits if they are many; the first, which is large, stays as it is."""
    if len(parts) <= _MOST_PARTS:
        return parts
    first, *rest = parts
    at = np.concatenate([part.at for part in rest])
    live = at[at != GONE]
    numbers = np.where(at != GONE, np.cumsum(at != GONE) - 1, GONE)
    split = np.split(numbers, np.cumsum([len(part.at) for part in rest])[:-1])
    together = [(part.postings, each) for part, each in zip(rest, split, strict=True)]
    return (first, Part(Postings.joined(together, len(live)), live))


def text_index(view: TableView, name: str) -> TextIndex:
    """Return the inverted index of a column, made once and then grown with each commit."""

    def grow(other: tuple[TableVersion, str, str], old: TextIndex) -> TextIndex | None:
        grown = view.growth(other[0])
        if grown is None:
            return None
        own = view.own(grown, name)
        return old.grown(grown, Postings.of(own[0] if own else pa.nulls(0, pa.string())))

    return view.cache.grown(
        (view.table.path, name, _TERMS),
        (view.table, name, _TERMS),
        grow,
        lambda: TextIndex.of(view.columns_once(name)[0]),
        lambda made: made.nbytes,
    )


def text_mask(predicate: ir.TextMatch, frame: Frame, values: Values) -> Mask:
    """Return which rows match a text search."""
    variable, name = predicate.text.variable, predicate.text.property
    index = text_index(frame.views[variable], name)
    query = values(predicate.query)
    wanted = index.spelled(() if query is None else wanted_words(str(query)))
    if predicate.function == "fuzzy":
        edits = _DEFAULT_EDITS if predicate.edits is None else values(predicate.edits)
        wanted = [] if edits is None else [near for one in wanted for near in index.near(one, int(str(edits)))]
    positions = frame.columns[variable]
    # Behind the others: what an optional block has not bound has the number -1.
    found: Mask = np.append(index.holding(wanted), False)[positions]
    return found


def _near(terms: pa.Array, wanted: str, edits: int) -> pa.Array:
    """Return the terms within some edits of one."""
    # An edit changes the length by at most one, so most terms are excluded without comparing letters.
    sizes = pc.utf8_length(terms).to_numpy()
    candidates = terms.filter(pa.array(np.abs(sizes - len(wanted)) <= edits))
    return candidates.filter(pa.array(_distances(wanted, candidates.to_pylist()) <= edits))


def _distances(word: str, others: list[str]) -> Integers:
    """Return the edit distance of a word to each of the others, all at once."""
    if not others:
        return np.empty(0, np.int64)
    width = max(map(len, others))
    letters = np.array(others, f"<U{width}").view(np.uint32).reshape(len(others), width)
    row = np.tile(np.arange(width + 1), (len(others), 1))
    for number, letter in enumerate(word, 1):
        following = np.empty_like(row)
        following[:, 0] = number
        for at in range(1, width + 1):
            kept = row[:, at - 1] + (letters[:, at - 1] != ord(letter))
            following[:, at] = np.minimum(np.minimum(row[:, at], following[:, at - 1]) + 1, kept)
        row = following
    found: Integers = row[np.arange(len(others)), [len(other) for other in others]]
    return found
