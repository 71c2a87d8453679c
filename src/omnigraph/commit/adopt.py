"""Publishing heads as they are: for tables that something else has moved, once a person has decided to keep that."""

from __future__ import annotations

from collections.abc import Sequence

from omnigraph.api.results import TableVersion
from omnigraph.commit.gates import Held
from omnigraph.commit.recovery import head_row
from omnigraph.commit.store import Store
from omnigraph.manifest.publisher import Changes, Lineage, Published
from omnigraph.manifest.state import ManifestState


def adopt_heads(
    store: Store, state: ManifestState, tables: Sequence[TableVersion], held: Held, lineage: Lineage
) -> Published:
    """Pin tables to where their heads are, in one commit. The caller holds the gates of all of them."""
    rows = tuple(head_row(store, table.key, table.path, table.branch) for table in tables)
    expected = {table.key: state.actual_version(table.key) for table in tables}
    held.check()
    return store.manifest.publish(state.branch, Changes(rows), expected, lineage)
