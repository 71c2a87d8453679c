"""Blocks in conditions: `exists { }`, `count { }` and aggregates of a pattern, for each row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from omnigraph.lang import ir
from omnigraph.query.arrays import Integers
from omnigraph.query.frame import Frame
from omnigraph.storage.columns import arrow_type
from omnigraph.storage.expressions import Values, evaluate

BLOCK = "@block"
"""The variable that stands for the blocks of a condition; its properties are their numbers."""
_FOLDS = {"sum": "sum", "avg": "mean", "min": "min", "max": "max"}


@dataclass(frozen=True, slots=True)
class RowsWithBlocks:
    """Rows of bindings, with the values of blocks."""

    frame: Frame
    blocks: Sequence[pa.Array]

    @property
    def count(self) -> int:
        return self.frame.count

    def value(self, variable: str, name: str) -> pa.Array:
        return self.blocks[int(name)] if variable == BLOCK else self.frame.value(variable, name)

    def take(self, rows: np.ndarray[Any, Any]) -> RowsWithBlocks:
        chosen = pa.array(np.flatnonzero(rows) if rows.dtype == bool else rows)
        return RowsWithBlocks(self.frame.take(rows), [block.take(chosen) for block in self.blocks])


def folded(block: ir.Subquery, found: Frame, rows: Integers, count: int, values: Values) -> pa.Array:
    """Return one value for each of `count` rows, given the matches of a block and the row of each."""
    if block.function == "exists":
        there = np.zeros(count, bool)
        there[rows] = True
        return pa.array(there)
    if block.argument is None:
        return pa.array(np.bincount(rows, minlength=count))
    cells = evaluate(block.argument, found, values)
    if block.function == "count":
        return pa.array(np.bincount(_counted(cells, rows, distinct=block.distinct), minlength=count))
    exact = block.function == "sum" and pa.types.is_integer(cells.type)
    if block.function in ("sum", "avg"):
        cells = cells.cast(pa.decimal128(38)) if exact else cells.cast(pa.float64(), safe=False)
    table = pa.table({"row": pa.array(rows), "cell": cells})
    made = table.group_by("row").aggregate([("cell", _FOLDS[block.function])])
    at = np.full(count, -1)
    at[made["row"].to_numpy()] = np.arange(len(made))
    found_cells = made[f"cell_{_FOLDS[block.function]}"].combine_chunks()
    return found_cells.take(pa.array(at, mask=at < 0)).cast(arrow_type(block.type))


def _counted(cells: pa.Array, rows: Integers, *, distinct: bool) -> Integers:
    """Return the rows of the values that count."""
    kept: Integers
    there = np.asarray(cells.is_valid())
    if not distinct:
        kept = rows[there]
        return kept
    table = pa.table({"row": pa.array(rows), "cell": cells}).filter(pa.array(there))
    kept = table.group_by(["row", "cell"]).aggregate([])["row"].to_numpy()
    return kept
