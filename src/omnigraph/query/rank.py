"""Ranking: order rows by how well a variable matches, and keep the best."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from omnigraph.api.results import TableVersion
from omnigraph.errors import ParameterError
from omnigraph.lang import ir
from omnigraph.lang.types import Type
from omnigraph.query.approximate import Wanted, distances, near_by_index
from omnigraph.query.frame import Frame
from omnigraph.query.growth import Growth
from omnigraph.query.text_search import text_index
from omnigraph.query.view import Positions, TableView
from omnigraph.query.words import wanted_words
from omnigraph.storage.expressions import Values

_Ranked = tuple[Positions, np.ndarray[Any, Any]]
"""Entities, the best first, and their scores."""


PLACE = "@place"  # of the entity of a row in a fused ranking, which settles ties by the first arm


def rank(step: ir.Rank, frame: Frame, values: Values) -> Frame:
    """Keep the rows of the best entities of a variable, the best first; rows of one entity stay in order."""
    variable = step.ranking.variable
    view = frame.views[variable]
    best, scores = _Ranker(view, view.distinct(frame.columns[variable]), step.limit, values).run(step.ranking)
    kept = _cut(scores, step.limit)
    best, scores = best[:kept], scores[:kept]
    # A table of places instead of a search for each row: rows are many, and positions are dense.
    place = np.full(view.count, -1, np.int64)
    place[best] = np.arange(len(best))
    places = place[frame.columns[variable]]
    found = np.flatnonzero(places >= 0)
    order = found[np.argsort(places[found], kind="stable")]
    ranked = frame.take(order).scored(scores[places[order]])
    return ranked.hide(PLACE, places[order]) if isinstance(step.ranking, ir.FusedRank) else ranked


def _cut(scores: np.ndarray[Any, Any], limit: int | None) -> int:
    """Return how many entities may be in the result: those with the score of the last one, too.

    Later sort keys decide between these. Entities are cut, not rows: a row may be dropped only after all keys.
    """
    if limit is None or not 0 < limit < len(scores):
        return len(scores) if limit is None else min(limit, len(scores))
    differing = np.flatnonzero(scores[limit:] != scores[limit - 1])
    return limit + int(differing[0]) if len(differing) else len(scores)


@dataclass(frozen=True, slots=True)
class _Ranker:
    """Ranks the entities of a variable that the match has left."""

    view: TableView
    left: Positions
    limit: int | None
    values: Values

    def run(self, ranking: ir.Ranking) -> _Ranked:
        """Order entities by score; leave out those that do not match."""
        match ranking:
            case ir.NearestRank():
                return self._nearest(ranking)
            case ir.Bm25Rank():
                return self._bm25(ranking)
            case ir.FusedRank():
                return self._fused(ranking)

    def _nearest(self, ranking: ir.NearestRank) -> _Ranked:
        query = self._vector(ranking)
        if ranking.approximate and self.limit:
            found = near_by_index(self.view, ranking.vector.property, query, Wanted(self.left, self.limit))
            if found is not None:
                return self._in_order(*found, self.limit)
        entities, rows, vectors = _vectors_of(self.view, ranking.vector, self.left)
        near = vectors.near(query, rows, self.limit)
        # Computed from differences: the product that chose the candidates is not exact enough to order them.
        return self._in_order(entities[near], distances(vectors.chosen(rows[near]), query), self.limit)

    def _in_order(self, entities: Positions, keys: np.ndarray[Any, Any], limit: int | None) -> _Ranked:
        """Return at least the first entities by a key, then by id, without sorting the rest."""
        if limit is not None and 0 < limit < len(keys):
            last = np.partition(keys, limit - 1)[limit - 1]
            first = np.flatnonzero(keys <= last)  # more than `limit` where several share the last place
            # NaN sorts last and compares with nothing: then all of them are sorted.
            entities, keys = (entities[first], keys[first]) if len(first) >= limit else (entities, keys)
        order = np.lexsort((self.view.id_ranks(entities), keys))
        return entities[order], keys[order]

    def _vector(self, ranking: ir.NearestRank) -> np.ndarray[Any, Any]:
        query, declared = self.values(ranking.query), ranking.vector.type
        assert not isinstance(query, str), "texts have become vectors before the plan runs"
        numbers = np.asarray(query if isinstance(query, tuple) else (), np.float32)
        if len(numbers) != declared.dimension:
            message = f"the vector has {len(numbers)} numbers; {ranking.vector.property} has {declared.dimension}"
            hint = f"pass a {Type(scalar=declared.scalar, dimension=declared.dimension)}"
            raise ParameterError(message, parameter=_name(ranking.query), hint=hint)
        return numbers

    def _bm25(self, ranking: ir.Bm25Rank) -> _Ranked:
        query = self.values(ranking.query)
        index = text_index(self.view, ranking.text.property)
        words = index.spelled(() if query is None else wanted_words(str(query)))
        entities = self.left[index.holding(words)[self.left]]
        # Without the limit: an arm of a fusion needs the place of every entity.
        best, keys = self._in_order(entities, -index.scores(chain.from_iterable(words))[entities], None)
        return best, -keys

    def _fused(self, ranking: ir.FusedRank) -> _Ranked:
        """Reciprocal rank fusion of two rankings."""
        constant = self._constant(ranking.k)
        scores = np.zeros(self.view.count)
        seen: list[Positions] = []
        for arm in (ranking.first, ranking.second):
            best = self._arm(arm)
            scores[best] += 1 / (constant + np.arange(len(best)) + 1)
            seen.append(best)
        merged = np.concatenate(seen)
        _, first = np.unique(merged, return_index=True)
        # In order of first appearance, and then a stable sort: of equal scores, the first arm decides.
        candidates = merged[np.sort(first)]
        order = np.argsort(-scores[candidates], kind="stable")
        return candidates[order], scores[candidates[order]]

    def _arm(self, arm: ir.NearestRank | ir.Bm25Rank) -> Positions:
        """Rank the entities of one arm. `nearest` takes part with as many as the result may have."""
        return self._bm25(arm)[0] if isinstance(arm, ir.Bm25Rank) else self._nearest(arm)[0][: self.limit]

    def _constant(self, k: ir.Value) -> int:
        """Return the k of a fusion. A parameter cannot be checked before it is given."""
        value = self.values(k)
        if not isinstance(value, int) or value <= 0:
            message = f"the k of `rrf` must be a positive integer, not {value}"
            raise ParameterError(message, parameter=_name(k), hint="60 is usual")
        return value


def _name(query: ir.Value) -> str | None:
    return query.name if isinstance(query, ir.ParameterRef) else None


@dataclass(frozen=True, slots=True)
class Vectors:
    """Vectors as matrices, their squared lengths, and the row of each entity; -1 where there is none.

    A commit adds a matrix of its own, so that the large one is not copied; a vector that is gone has no entity.
    """

    matrices: tuple[np.ndarray[Any, Any], ...]
    lengths: np.ndarray[Any, Any]
    rows: Positions

    @classmethod
    def of(cls, column: pa.FixedSizeListArray, size: int) -> Vectors:
        filled = column.is_valid().to_numpy(zero_copy_only=False)
        numbers = column.drop_null().flatten().fill_null(0).to_numpy(zero_copy_only=False)
        matrix = np.asarray(numbers, np.float32).reshape(-1, size)
        return cls((matrix,), np.einsum("ij,ij->i", matrix, matrix), np.where(filled, np.cumsum(filled) - 1, -1))

    @property
    def nbytes(self) -> int:
        return int(sum(one.nbytes for one in self.matrices) + self.lengths.nbytes + self.rows.nbytes)

    def grown(self, grown: Growth, own: Vectors) -> Vectors | None:
        """Return those of a version that has some more rows, and lacks some; None if most vectors are gone."""
        matrices = (*self.matrices, *(one for one in own.matrices if len(one)))
        if len(matrices) > _MOST_MATRICES:
            matrices = (matrices[0], np.concatenate(matrices[1:]))
        rows = grown.arranged(self.rows, np.where(own.rows >= 0, own.rows + len(self.lengths), -1))
        lengths = np.concatenate([self.lengths, own.lengths])
        return Vectors(matrices, lengths, rows) if 2 * int((rows >= 0).sum()) >= len(lengths) else None

    def near(self, query: np.ndarray[Any, Any], rows: Positions, limit: int | None) -> Positions | slice:
        """Return which of the rows surely include the nearest. A product excludes most others, up to rounding."""
        if limit is None or not 0 < limit < len(rows):
            return slice(None)
        about = self._products(query, rows)
        about *= -2
        about += self.lengths[rows]
        error = 8 * len(query) * np.finfo(np.float32).eps * (self.lengths.max() + query @ query)
        last = np.partition(about, limit - 1)[limit - 1] + 2 * error
        return np.flatnonzero(about <= last) if np.isfinite(last) else slice(None)

    def chosen(self, rows: Positions) -> np.ndarray[Any, Any]:
        """Return some of the vectors."""
        found = np.empty((len(rows), self.matrices[0].shape[1]), np.float32)
        start = 0
        for matrix in self.matrices:
            here = (rows >= start) & (rows < start + len(matrix))
            found[here] = matrix[rows[here] - start]
            start += len(matrix)
        return found

    def _products(self, query: np.ndarray[Any, Any], rows: Positions) -> np.ndarray[Any, Any]:
        # Not `@`: the threads of a BLAS library wait for each other on a busy machine.
        if len(rows) * _FEW_ROWS < len(self.lengths):
            return np.asarray(np.einsum("ij,j->i", self.chosen(rows), query))
        # Of all rows, and then chosen: a copy of most of the matrix costs more than the products of the others.
        return np.asarray(np.concatenate([np.einsum("ij,j->i", one, query) for one in self.matrices])[rows])


_FEW_ROWS = 4  # up to one row in so many is copied
_MOST_MATRICES = 8
_MATRIX = "@matrix"


def _vectors_of(view: TableView, vector: ir.PropertyRef, entities: Positions) -> tuple[Positions, Positions, Vectors]:
    """Return the entities that have a vector, the row of each, and the vectors."""
    name, size = vector.property, vector.type.dimension
    if not view.is_worth_a_scan(entities):
        found = Vectors.of(view.take(entities, name), size)
        return entities[found.rows >= 0], np.arange(len(found.lengths)), found
    whole = all_vectors(view, name, size)
    rows = whole.rows[entities]
    filled = rows >= 0
    return entities[filled], rows[filled], whole


def all_vectors(view: TableView, name: str, size: int) -> Vectors:
    """Return the vectors of a whole table."""

    def grow(other: tuple[TableVersion, str, str], old: Vectors) -> Vectors | None:
        grown = view.growth(other[0])
        if grown is None:
            return None
        own = view.own(grown, name)
        return old.grown(grown, Vectors.of(own[0] if own else pa.nulls(0, pa.list_(pa.float32(), size)), size))

    return view.cache.grown(
        (view.table.path, name, _MATRIX),
        (view.table, name, _MATRIX),
        grow,
        lambda: Vectors.of(view.columns_once(name)[0], size),
        lambda made: made.nbytes,
    )
