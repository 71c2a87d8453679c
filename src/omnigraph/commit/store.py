"""Everything that one graph root consists of, opened once and shared by all that work on it."""

from __future__ import annotations

from dataclasses import dataclass

from omnigraph.commit.audit import Audit
from omnigraph.commit.gates import DEFAULT_TIMEOUT, LeaseGates, LocalGates, gates_of
from omnigraph.commit.sidecar import Sidecars
from omnigraph.manifest.contract import ContractReader
from omnigraph.manifest.publisher import Manifest
from omnigraph.storage.location import Location
from omnigraph.storage.objects import ObjectStore
from omnigraph.storage.tables import TableStorage


@dataclass(frozen=True, slots=True)
class Store:
    location: Location
    objects: ObjectStore
    contract: ContractReader
    tables: TableStorage
    manifest: Manifest
    sidecars: Sidecars
    audit: Audit
    gates: LocalGates | LeaseGates

    @classmethod
    def at(cls, location: Location, gate_timeout: float = DEFAULT_TIMEOUT) -> Store:
        objects = ObjectStore(location)
        return cls(
            location,
            objects,
            ContractReader(objects),
            TableStorage(location),
            Manifest(location),
            Sidecars(objects),
            Audit(location),
            gates_of(location, objects, gate_timeout),
        )
