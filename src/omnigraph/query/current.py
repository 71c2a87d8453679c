"""The state of main as it is now, with the schema that belongs to it: one request if nothing was published since."""

from __future__ import annotations

from collections.abc import Callable

from omnigraph.commit.store import Store
from omnigraph.manifest.schema_files import AcceptedSchema
from omnigraph.manifest.state import ManifestState


class Current:
    """What main is now. The schema files are read again only when the manifest has moved.

    A change of the schema writes its recovery record, publishes, puts the schema files in place and only then removes
    the record. So if there is no record after a state was loaded, the files read next are not older than the state;
    and if the state is still the latest afterwards, they are not newer either. Such a pair stays true for good.
    """

    def __init__(self, store: Store, read_contract: Callable[[ManifestState], AcceptedSchema]) -> None:
        self._store = store
        self._read_contract = read_contract
        self._known: tuple[ManifestState, AcceptedSchema] | None = None

    def load(self) -> tuple[ManifestState, AcceptedSchema]:
        state = self._store.manifest.load()
        known = self._known
        # The manifest hands out one and the same state as long as its probe says that it is the latest.
        if known is not None and known[0] is state:
            return known
        settled = not self._store.sidecars.pending()
        pair = state, self._read_contract(state)
        self._known = pair if settled else None
        return pair
