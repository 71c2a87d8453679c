"""Some entities of one type as they are in several states of a table, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.history.delta import Touched, image_schema
from omnigraph.history.equality import Mask, differing_rows
from omnigraph.lang.catalog import EdgeType, NodeType
from omnigraph.storage.read import ID


@dataclass(frozen=True, slots=True)
class Image:
    """The rows of some entities in one state, in one order for all states; those that are not there are all null."""

    there: Mask
    rows: pa.Table

    def differs(self, other: Image) -> Mask:
        """Tell of each entity whether it is another in another state."""
        differs: Mask = self.there != other.there
        both = np.flatnonzero(self.there & other.there)
        differs[both] = differing_rows(self.rows.take(both), other.rows.take(both))
        return differs

    def where(self, mask: Mask, other: Image) -> Image:
        """Take the marked entities as they are here, and the others as they are there."""
        at = np.where(mask, np.arange(len(mask)), np.arange(len(mask)) + len(mask))
        both = pa.concat_tables([self.rows, other.rows])
        return Image(np.where(mask, self.there, other.there), both.take(at))

    def after(self, ids: pa.Array, touched: Touched) -> Image:
        """The entities as they are in the later state of `touched`; this is how they were in the earlier."""
        return self._replaced(ids, _touched_ids(touched), _later(touched))

    def before(self, ids: pa.Array, touched: Touched) -> Image:
        """The entities as they are in the earlier state of `touched`; this is how they were in the later."""
        return self._replaced(ids, _touched_ids(touched), _earlier(touched))

    def _replaced(self, ids: pa.Array, changed: pa.Array, rows: pa.Table) -> Image:
        moved = pc.is_in(ids, value_set=changed).to_numpy(zero_copy_only=False)
        return aligned(ids, rows).where(moved, self)


def aligned(ids: pa.Array, rows: pa.Table) -> Image:
    """Put rows into the order of some ids."""
    at = pc.index_in(ids, value_set=rows[ID].combine_chunks())
    return Image(at.is_valid().to_numpy(zero_copy_only=False), rows.take(at))


def latest(declared: NodeType | EdgeType, touched: Sequence[Touched]) -> tuple[pa.Array, Image]:
    """The ids that any of some changes to one state touches, and the entities as they are in that state."""
    ids = pc.unique(pa.chunked_array([_touched_ids(one) for one in touched], pa.string()))
    nobody = np.zeros(len(ids), np.bool_)
    image = Image(nobody, aligned(ids, image_schema(declared).empty_table()).rows)
    for one in touched:
        image = image.after(ids, one)
    return ids, image


def _touched_ids(touched: Touched) -> pa.Array:
    return pa.concat_arrays([*touched.ids.chunks, pa.array([], pa.string())])


def _later(touched: Touched) -> pa.Table:
    return touched.rows_after(pa.concat_tables([touched.inserted, touched.new]))


def _earlier(touched: Touched) -> pa.Table:
    return touched.rows_before(pa.concat_tables([touched.deleted, touched.old]))
