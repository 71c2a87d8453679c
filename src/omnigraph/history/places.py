"""Where in the target of a merge the rows are that it changes or removes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.api.results import TableVersion
from omnigraph.history.delta import Touched
from omnigraph.storage.layout import Addresses, fragments
from omnigraph.storage.read import ADDRESS, ID, OFFSET_BITS, TableReader

_NOWHERE = -1


def places(tables: TableReader, ids: pa.Array, since: Touched, change: Touched) -> Addresses:
    """Find the addresses of entities in the target, in order.

    `since` is what the target did to the base, `change` what the source did to it. What the target has not touched is
    in the same file as in the base; only if a compaction has moved it there must the table be searched.
    """
    assert since.after
    found = _addresses(ids, since.inserted, since.new)
    untouched = found == _NOWHERE
    if untouched.any() and since.before:
        before = _addresses(ids.filter(pa.array(untouched)), change.deleted, change.old)
        found[untouched] = _moved(tables, since.before, since.after, before)
    lost = ids.filter(pa.array(found == _NOWHERE))
    if len(lost):
        looked_up = tables.lookup(since.after, ID, lost, [ID], addresses=True)[ADDRESS].to_numpy()
        found = np.concatenate([found[found != _NOWHERE], looked_up.astype(np.int64)])
    return np.sort(found)


def _addresses(ids: pa.Array, *parts: pa.Table) -> Addresses:
    """The addresses of those ids that are among some rows."""
    rows = pa.concat_tables([part.select([ID, ADDRESS]) for part in parts])
    at = pc.index_in(ids, value_set=rows[ID])
    return np.array(rows[ADDRESS].take(at).fill_null(_NOWHERE).to_numpy(), np.int64)  # a copy, to write to


def _moved(tables: TableReader, before: TableVersion, after: TableVersion, addresses: Addresses) -> Addresses:
    """Turn addresses of one version into those of another, for rows that are in the same files there."""
    if before == after:
        return addresses
    files = {one.files: one.number for one in fragments(tables, after)}
    numbers = {one.number: files.get(one.files, _NOWHERE) for one in fragments(tables, before)}
    old, which = np.unique(addresses >> OFFSET_BITS, return_inverse=True)
    new = np.array([numbers.get(number, _NOWHERE) for number in old.tolist()], np.int64)[which]
    offsets = addresses & ((1 << OFFSET_BITS) - 1)
    return np.where((addresses == _NOWHERE) | (new == _NOWHERE), _NOWHERE, (new << OFFSET_BITS) | offsets)
