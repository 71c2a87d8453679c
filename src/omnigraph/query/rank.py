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


@dataclass(frozen=True, slots=True)
class Candidates:
    """The entities to rank: those left by the match, and those that the scan of the variable found.

    A variable that was reached by a traversal has no scan of its own: what the match has left is all there is.
    """

    left: Positions
    scanned: Positions


def rank(step: ir.Rank, frame: Frame, values: Values, scanned: Positions | None = None) -> Frame:
    """Keep the rows of the best entities of a variable, the best first; rows of one entity stay in order."""
    variable = step.ranking.variable
    view = frame.views[variable]
    entities = view.distinct(frame.columns[variable])
    candidates = Candidates(entities, entities if scanned is None else scanned)
    best, scores = _ranked(step.ranking, view, candidates, step.limit, values)
    best, scores = (best, scores) if step.limit is None else (best[: step.limit], scores[: step.limit])
    place = np.full(view.count, -1, np.int64)
    place[best] = np.arange(len(best))
    places = place[frame.columns[variable]]
    kept = np.flatnonzero(places >= 0)
    order = kept[np.argsort(places[kept], kind="stable")]
    return frame.take(order).scored(scores[places[order]])


def _ranked(
    ranking: ir.Ranking, view: TableView, entities: Candidates, limit: int | None, values: Values
) -> tuple[Positions, np.ndarray[Any, Any]]:
    """Order entities by score, the best first; leave out those that do not match."""
    match ranking:
        case ir.NearestRank():
            return _nearest(ranking, view, entities.left, limit, values)
        case ir.Bm25Rank():
            return _bm25(ranking, view, entities.left, values)
        case ir.FusedRank():
            return _fused(ranking, view, entities, limit, values)


def _nearest(
    ranking: ir.NearestRank, view: TableView, entities: Positions, limit: int | None, values: Values
) -> tuple[Positions, np.ndarray[Any, Any]]:
    query = _vector(ranking, values)
    entities, vectors = _vectors_of(view, ranking.vector, entities)
    near = vectors.near(query, limit)
    away = vectors.matrix[near] - query
    distances = np.einsum("ij,ij->i", away, away).astype(np.float64)
    return _in_order(view, entities[near], distances, limit)


def _in_order(
    view: TableView, entities: Positions, keys: np.ndarray[Any, Any], limit: int | None
) -> tuple[Positions, np.ndarray[Any, Any]]:
    """Return the first entities by a key, then by id, without sorting the rest."""
    if limit is not None and 0 < limit < len(keys):
        last = np.partition(keys, limit - 1)[limit - 1]
        first = np.flatnonzero(keys <= last)
        entities, keys = (entities[first], keys[first]) if len(first) >= limit else (entities, keys)
    order = np.lexsort((view.id_ranks(entities), keys))[:limit]
    return entities[order], keys[order]


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


def _vector(ranking: ir.NearestRank, values: Values) -> np.ndarray[Any, Any]:
    query = values(ranking.query)
    expected = ranking.vector.type.dimension
    assert not isinstance(query, str), "texts have become vectors before the plan runs"
    numbers = np.asarray(query if isinstance(query, tuple) else (), np.float32)
    if len(numbers) != expected:
        message = f"the vector has {len(numbers)} numbers; {ranking.vector.property} has {expected}"
        raise ParameterError(message, parameter=_name(ranking.query), hint=f"pass a {Type(**_shape(ranking))}")
    return numbers


def _name(query: ir.Value) -> str | None:
    return query.name if isinstance(query, ir.ParameterRef) else None


def _shape(ranking: ir.NearestRank) -> dict[str, Any]:
    return {"scalar": ranking.vector.type.scalar, "dimension": ranking.vector.type.dimension}


def _bm25(
    ranking: ir.Bm25Rank, view: TableView, entities: Positions, values: Values
) -> tuple[Positions, np.ndarray[Any, Any]]:
    query = values(ranking.query)
    wanted = () if query is None else terms(str(query))
    index = text_index(view, ranking.text.property)
    entities = entities[index.holding(wanted)[entities]]
    best, keys = _in_order(view, entities, -index.scores(wanted)[entities], None)
    return best, -keys


def _constant(k: ir.Value, values: Values) -> int:
    """Return the k of a fusion. A parameter cannot be checked before it is given."""
    value = values(k)
    if not isinstance(value, int) or value <= 0:
        message = f"the k of `rrf` must be a positive integer, not {value}"
        raise ParameterError(message, parameter=_name(k), hint="60 is usual")
    return value


def _fused(
    ranking: ir.FusedRank, view: TableView, entities: Candidates, limit: int | None, values: Values
) -> tuple[Positions, np.ndarray[Any, Any]]:
    """Reciprocal rank fusion of two rankings."""
    constant = _constant(ranking.k, values)
    scores = np.zeros(view.count)
    seen: list[Positions] = []
    for arm in (ranking.first, ranking.second):
        best = _arm(arm, view, entities, limit, values)
        scores[best] += 1 / (constant + np.arange(len(best)) + 1)
        seen.append(best)
    merged = np.concatenate(seen)
    _, first = np.unique(merged, return_index=True)
    candidates = merged[np.sort(first)]
    order = np.argsort(-scores[candidates], kind="stable")
    return candidates[order], scores[candidates[order]]


def _arm(
    arm: ir.NearestRank | ir.Bm25Rank, view: TableView, entities: Candidates, limit: int | None, values: Values
) -> Positions:
    """Rank the entities of one arm. `nearest` applies its limit to the scan, as it does alone."""
    if isinstance(arm, ir.Bm25Rank):
        return _bm25(arm, view, entities.left, values)[0]
    best = _nearest(arm, view, entities.scanned, limit, values)[0]
    return best[np.isin(best, entities.left)]
