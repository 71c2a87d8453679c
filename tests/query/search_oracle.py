"""What a search must find, told by looking at every text and every vector."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import snowballstemmer

STOP_WORDS = frozenset({"the", "of", "and", "to", "in", "is", "with"})
FOLDED = str.maketrans("éèäöüñ", "eeaoun")
_STEM = snowballstemmer.stemmer("english").stemWord

Text = str | None
Scores = dict[str, float]


@cache  # the texts and queries of the tests are few, and finding stems is slow
def tokens(text: str) -> tuple[str, ...]:
    words = [word.lower() for word in re.findall(r"[^\W_]+", text)]
    return tuple(_STEM(word).translate(FOLDED) for word in words if word not in STOP_WORDS and len(word) < 40)


@cache
def edits(left: str, right: str) -> int:
    """How many letters must be put in, left out or replaced."""
    if not left or not right:
        return len(left) + len(right)
    if left[0] == right[0]:
        return edits(left[1:], right[1:])
    return 1 + min(edits(left[1:], right), edits(left, right[1:]), edits(left[1:], right[1:]))


def found(text: Text, query: str, most: int = 0) -> bool:
    """Whether a text holds a word of the query, or one that is at most so many edits away."""
    if text is None:
        return False
    return any(
        held == wanted or (abs(len(held) - len(wanted)) <= most and edits(held, wanted) <= most)
        for held in tokens(text)
        for wanted in tokens(query)
    )


def bm25(texts: Mapping[str, Text], query: str) -> Scores:
    """The score of every text that holds a word of the query, by id."""
    analysed = {key: Counter(tokens(text)) for key, text in texts.items() if text is not None}
    # A text without a single term is not in the statistics.
    filled = {key: terms for key, terms in analysed.items() if terms}
    scores: Counter[str] = Counter()
    average = sum(terms.total() for terms in filled.values()) / max(len(filled), 1)
    for word in tokens(query):
        holding = [key for key, terms in filled.items() if word in terms]
        idf = math.log(1 + (len(filled) - len(holding) + 0.5) / (len(holding) + 0.5))
        for key in holding:
            count, length = filled[key][word], filled[key].total() / average
            scores[key] += idf * count * 2.2 / (count + 1.2 * (0.25 + 0.75 * length))  # type: ignore[assignment]
    return dict(scores)


def distances(vectors: Mapping[str, Sequence[float] | None], query: Sequence[float]) -> Scores:
    return {
        key: sum((one - other) ** 2 for one, other in zip(vector, query, strict=True))
        for key, vector in vectors.items()
        if vector is not None
    }


@dataclass(frozen=True)
class Ranked:
    """Ids, the best first, and the score of each."""

    ids: list[str]
    scores: Scores

    def among(self, chosen: Iterable[str], most: int | None = None) -> Ranked:
        wanted = set(chosen)
        return Ranked([one for one in self.ids if one in wanted][:most], self.scores)


def best_first(scores: Scores, *, descending: bool) -> Ranked:
    """Equal scores follow each other by id."""
    sign = -1 if descending else 1
    return Ranked(sorted(scores, key=lambda key: (round(sign * scores[key], 9), key.encode())), scores)


def fused(first: Ranked, second: Ranked, k: int) -> Ranked:
    scores: dict[str, Any] = {}
    for arm in (first, second):
        for place, key in enumerate(arm.ids):
            scores[key] = scores.get(key, 0) + 1 / (k + place + 1)
    order = list(scores)  # as they appear: first in the first arm, then in the second
    return Ranked(sorted(order, key=lambda key: -round(scores[key], 12)), scores)
