"""Ranking: order rows by how well one variable matches, and keep the best."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from omnigraph.errors import ParameterError
from omnigraph.lang import ir
from omnigraph.lang.types import Type
from omnigraph.query.analysis import terms
from omnigraph.query.evaluate import Values
from omnigraph.query.frame import Frame
from omnigraph.query.text import text_index
from omnigraph.query.view import Positions, TableView


def rank(step: ir.Rank, frame: Frame, values: Values) -> Frame:
    """Keep the rows of the best entities of a variable, the best first; rows of one entity stay in order."""
    variable = step.ranking.variable
    view = frame.views[variable]
    entities = np.unique(frame.columns[variable])
    best, scores = _ranked(step.ranking, view, entities, step.limit, values)
    best, scores = (best, scores) if step.limit is None else (best[: step.limit], scores[: step.limit])
    place = np.full(view.count, -1, np.int64)
    place[best] = np.arange(len(best))
    places = place[frame.columns[variable]]
    kept = np.flatnonzero(places >= 0)
    order = kept[np.argsort(places[kept], kind="stable")]
    return frame.take(order).scored(scores[places[order]])


def _ranked(
    ranking: ir.Ranking, view: TableView, entities: Positions, limit: int | None, values: Values
) -> tuple[Positions, np.ndarray[Any, Any]]:
    """Order entities, the best first, with their scores; leave out those that do not match at all."""
    match ranking:
        case ir.NearestRank():
            return _nearest(ranking, view, entities, values)
        case ir.Bm25Rank():
            return _bm25(ranking, view, entities, values)
        case ir.FusedRank():
            return _fused(ranking, view, entities, limit, values)


def _nearest(
    ranking: ir.NearestRank, view: TableView, entities: Positions, values: Values
) -> tuple[Positions, np.ndarray[Any, Any]]:
    query = _vector(ranking, values)
    vectors = view.take(entities, ranking.vector.property)
    filled = vectors.is_valid().to_numpy(zero_copy_only=False)
    entities = entities[filled]
    matrix = _matrix(vectors.drop_null(), ranking.vector.type.dimension)
    distances = np.square(matrix - query).sum(axis=1, dtype=np.float32).astype(np.float64)
    order = np.lexsort((view.id_ranks(entities), distances))
    return entities[order], distances[order]


def _matrix(vectors: pa.FixedSizeListArray, dimension: int) -> np.ndarray[Any, Any]:
    numbers = vectors.flatten().fill_null(0).to_numpy(zero_copy_only=False)
    return np.asarray(numbers, np.float32).reshape(-1, dimension)


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
    wanted = [] if query is None else terms(str(query))
    index = text_index(view, ranking.text.property)
    entities = entities[index.holding(wanted)[entities]]
    scores = index.scores(wanted)[entities]
    order = np.lexsort((view.id_ranks(entities), -scores))
    return entities[order], scores[order]


def _constant(k: ir.Value, values: Values) -> int:
    """The k of a fusion. One that comes as a parameter could not be checked before."""
    value = values(k)
    if not isinstance(value, int) or value <= 0:
        message = f"the k of `rrf` must be a positive integer, not {value}"
        raise ParameterError(message, parameter=_name(k), hint="60 is usual")
    return value


def _fused(
    ranking: ir.FusedRank, view: TableView, entities: Positions, limit: int | None, values: Values
) -> tuple[Positions, np.ndarray[Any, Any]]:
    """Reciprocal rank fusion: an entity counts for its places in both rankings."""
    constant = _constant(ranking.k, values)
    scores = np.zeros(view.count)
    seen: list[Positions] = []
    for arm in (ranking.first, ranking.second):
        best, _ = _ranked(arm, view, entities, limit, values)
        best = best[:limit] if isinstance(arm, ir.NearestRank) else best
        scores[best] += 1 / (constant + np.arange(len(best)) + 1)
        seen.append(best)
    merged = np.concatenate(seen)
    _, first = np.unique(merged, return_index=True)
    candidates = merged[np.sort(first)]
    order = np.argsort(-scores[candidates], kind="stable")
    return candidates[order], scores[candidates[order]]
