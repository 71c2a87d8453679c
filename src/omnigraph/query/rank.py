"""Ranking: order rows by how well a variable matches, and keep the best."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from omnigraph.errors import ParameterError
from omnigraph.lang import ir
from omnigraph.lang.types import Type
from omnigraph.query.evaluate import Values
from omnigraph.query.frame import Frame
from omnigraph.query.text_search import terms, text_index
from omnigraph.query.view import Positions, TableView

_Ranked = tuple[Positions, np.ndarray[Any, Any]]
"""Entities, the best first, and their scores."""


def rank(step: ir.Rank, frame: Frame, values: Values, scanned: Positions | None = None) -> Frame:
    """Keep the rows of the best entities of a variable, the best first; rows of one entity stay in order."""
    variable = step.ranking.variable
    view = frame.views[variable]
    entities = view.distinct(frame.columns[variable])
    best, scores = _Ranker(view, entities, entities if scanned is None else scanned, step.limit, values).run(
        step.ranking
    )
    # Entities are cut, not rows: all rows of an entity that is among the best stay.
    best, scores = best[: step.limit], scores[: step.limit]
    # A table of places instead of a search for each row: rows are many, and positions are dense.
    place = np.full(view.count, -1, np.int64)
    place[best] = np.arange(len(best))
    places = place[frame.columns[variable]]
    kept = np.flatnonzero(places >= 0)
    order = kept[np.argsort(places[kept], kind="stable")]
    return frame.take(order).scored(scores[places[order]])


@dataclass(frozen=True, slots=True)
class _Ranker:
    """Ranks the entities of a variable: those left by the match, and those that its scan found.

    A variable that was reached by a traversal has no scan of its own: what the match has left is all there is.
    """

    view: TableView
    left: Positions
    scanned: Positions
    limit: int | None
    values: Values

    def run(self, ranking: ir.Ranking) -> _Ranked:
        """Order entities by score; leave out those that do not match."""
        match ranking:
            case ir.NearestRank():
                return self._nearest(ranking, self.left)
            case ir.Bm25Rank():
                return self._bm25(ranking)
            case ir.FusedRank():
                return self._fused(ranking)

    def _nearest(self, ranking: ir.NearestRank, entities: Positions) -> _Ranked:
        query = self._vector(ranking)
        entities, vectors = _vectors_of(self.view, ranking.vector, entities)
        near = vectors.near(query, self.limit)
        # Computed from differences: the product that chose the candidates is not exact enough to order them.
        away = vectors.matrix[near] - query
        distances = np.einsum("ij,ij->i", away, away).astype(np.float64)
        return self._in_order(entities[near], distances, self.limit)

    def _in_order(self, entities: Positions, keys: np.ndarray[Any, Any], limit: int | None) -> _Ranked:
        """Return the first entities by a key, then by id, without sorting the rest."""
        if limit is not None and 0 < limit < len(keys):
            last = np.partition(keys, limit - 1)[limit - 1]
            first = np.flatnonzero(keys <= last)  # more than `limit` where several share the last place
            # NaN sorts last and compares with nothing: then all of them are sorted.
            entities, keys = (entities[first], keys[first]) if len(first) >= limit else (entities, keys)
        order = np.lexsort((self.view.id_ranks(entities), keys))[:limit]
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
        wanted = () if query is None else terms(str(query))
        index = text_index(self.view, ranking.text.property)
        entities = self.left[index.holding(wanted)[self.left]]
        # Without the limit: an arm of a fusion needs the place of every entity.
        best, keys = self._in_order(entities, -index.scores(wanted)[entities], None)
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
        """Rank the entities of one arm. `nearest` applies its limit to the scan, as it does alone."""
        if isinstance(arm, ir.Bm25Rank):
            return self._bm25(arm)[0]
        best = self._nearest(arm, self.scanned)[0]
        return best[np.isin(best, self.left)]

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
class _Vectors:
    """Vectors as one matrix, their squared lengths, and the row of each entity; -1 where there is none."""

    matrix: np.ndarray[Any, Any]
    lengths: np.ndarray[Any, Any]
    rows: Positions

    @classmethod
    def of(cls, column: pa.FixedSizeListArray, size: int) -> _Vectors:
        filled = column.is_valid().to_numpy(zero_copy_only=False)
        numbers = column.drop_null().flatten().fill_null(0).to_numpy(zero_copy_only=False)
        matrix = np.asarray(numbers, np.float32).reshape(-1, size)
        return cls(matrix, np.einsum("ij,ij->i", matrix, matrix), np.where(filled, np.cumsum(filled) - 1, -1))

    @property
    def nbytes(self) -> int:
        return int(self.matrix.nbytes + self.lengths.nbytes + self.rows.nbytes)

    def near(self, query: np.ndarray[Any, Any], limit: int | None) -> Positions | slice:
        """Return rows that surely include the nearest. One matrix product excludes most others, up to rounding."""
        if limit is None or not 0 < limit < len(self.matrix):
            return slice(None)
        # Not `@`: the threads of a BLAS library wait for each other on a busy machine.
        about = self.lengths - 2 * np.einsum("ij,j->i", self.matrix, query)
        error = 8 * len(query) * np.finfo(np.float32).eps * (self.lengths.max() + query @ query)
        last = np.partition(about, limit - 1)[limit - 1] + 2 * error
        return np.flatnonzero(about <= last) if np.isfinite(last) else slice(None)


def _vectors_of(view: TableView, vector: ir.PropertyRef, entities: Positions) -> tuple[Positions, _Vectors]:
    """Return the entities that have a vector, and their vectors in the same order."""
    name, size = vector.property, vector.type.dimension
    if not view.is_worth_a_scan(entities):
        found = _Vectors.of(view.take(entities, name), size)
        return entities[found.rows >= 0], found
    key = (view.table, name, "@matrix")
    whole = view.cache.get(key, lambda: _Vectors.of(view.column(name), size), lambda made: made.nbytes)
    rows = whole.rows[entities]
    filled = rows >= 0
    if filled.all() and len(rows) == len(whole.matrix):
        return entities, whole
    chosen = rows[filled]
    return entities[filled], _Vectors(whole.matrix[chosen], whole.lengths[chosen], chosen)
