"""Everything that one graph root consists of, opened once and shared by all that work on it."""

from __future__ import annotations

from dataclasses import dataclass

from omnigraph.api.results import SchemaRow, Snapshot
from omnigraph.commit.audit import Audit
from omnigraph.commit.gates import DEFAULT_TIMEOUT, LeaseGates, LocalGates, gates_of
from omnigraph.commit.sidecar import Sidecars
from omnigraph.core.location import Location
from omnigraph.errors import SchemaDriftError
from omnigraph.manifest.publisher import Manifest
from omnigraph.manifest.schema_files import SOURCE, AcceptedSchema, SchemaFilesReader, compiled, leftovers
from omnigraph.manifest.state import ManifestState
from omnigraph.storage.columns import table_keys
from omnigraph.storage.objects import ObjectStore
from omnigraph.storage.stage import TableStorage


@dataclass(frozen=True, slots=True)
class Store:
    location: Location
    objects: ObjectStore
    schema_files: SchemaFilesReader
    tables: TableStorage
    manifest: Manifest
    sidecars: Sidecars
    audit: Audit
    gates: LocalGates | LeaseGates

    def schema_of(self, state: ManifestState) -> AcceptedSchema | None:
        """The schema that belongs to the latest state of a branch; None if there is none at all.

        Once the schema has been changed, the manifest has it, and the files are copies of it for people to read. They
        are behind only while a change is being carried out, or when somebody has edited them; and they are ahead if
        the schema was changed since the state was read.
        """
        row, found = state.schema, self._files()
        if row is None and found and not found.is_changed:
            self._refuse_unfinished(found, state)
            return found
        if row is None:
            return self._origin()
        if found and found.catalog.fingerprint == row.fingerprint:
            return found
        if not self.sidecars.pending():
            self._refuse_drift(row)
        return compiled(row.source)

    def schema_at(self, snapshot: Snapshot) -> AcceptedSchema | None:
        """The schema that a state of the past was written by."""
        return compiled(snapshot.schema.source) if snapshot.schema else self._origin()

    def _origin(self) -> AcceptedSchema | None:
        """The schema that the graph was made with: the files have it until it is changed."""
        changed = self.manifest.load().schema
        return compiled(changed.origin) if changed else self.schema_files.read()

    def _files(self) -> AcceptedSchema | None:
        """What the files say; None if they contradict each other, as they do while they are being replaced."""
        try:
            return self.schema_files.read()
        except SchemaDriftError:
            return None

    def _refuse_unfinished(self, found: AcceptedSchema, state: ManifestState) -> None:
        """Files that declare what the graph has no table of may be those from before a change that others published."""
        missing = sorted(table_keys(found.catalog) - state.snapshot.entries.keys())
        if missing and leftovers(self.objects):
            message = f"{SOURCE} declares what the graph has no table of: {', '.join(missing)}"
            hint = "open the graph read-write: it finishes what another program left half-way"
            raise SchemaDriftError(message, path=SOURCE, hint=hint)

    def _refuse_drift(self, row: SchemaRow) -> None:
        """A change may have been finished since the files were read: then they agree now. Or there is a later one."""
        found = self._files()
        if found and found.catalog.fingerprint == row.fingerprint:
            return
        if self.manifest.load().schema == row:
            message = f"{SOURCE} does not mean what the graph was built with"
            hint = "restore the file; change schemas with `omnigraph schema apply`"
            raise SchemaDriftError(message, path=SOURCE, hint=hint)

    @classmethod
    def at(cls, location: Location, gate_timeout: float = DEFAULT_TIMEOUT) -> Store:
        objects = ObjectStore(location)
        return cls(
            location,
            objects,
            SchemaFilesReader(objects),
            TableStorage(location),
            Manifest(location),
            Sidecars(objects),
            Audit(location),
            gates_of(location, objects, gate_timeout),
        )
