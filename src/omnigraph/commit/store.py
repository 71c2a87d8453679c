"""The parts of one graph root, opened once and shared by all that work on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from omnigraph.api.results import SchemaRow, Snapshot, TableVersion
from omnigraph.commit.audit import Audit
from omnigraph.commit.gates import DEFAULT_TIMEOUT, LeaseGates, LocalGates, gates_of
from omnigraph.commit.plan import PublishPlan, WriteTxn
from omnigraph.commit.sidecar import DIRECTORY, Sidecars
from omnigraph.core.location import Location
from omnigraph.errors import SchemaDriftError
from omnigraph.lang.schema_ids import SchemaIds, decoded, first_ids
from omnigraph.manifest.publisher import Manifest
from omnigraph.manifest.rows import MANIFEST_PATH, SchemaSeen
from omnigraph.manifest.schema_files import FILES, SOURCE, AcceptedSchema, SchemaFilesReader, compiled, leftovers
from omnigraph.manifest.segments import DIRECTORY as SEGMENTS
from omnigraph.manifest.state import ManifestState
from omnigraph.storage.columns import table_keys
from omnigraph.storage.durability import Durability, Medium
from omnigraph.storage.objects import ObjectStore
from omnigraph.storage.stage import TableStorage
from omnigraph.storage.torn import has_torn_refs

_LONGEST_SOURCE = 2**14  # characters of a schema that each version of the manifest may repeat


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
    medium: Medium
    # Called with each plan that was prepared outside the gates: it may get folds. They must not raise.
    on_prepared: list[Callable[[PublishPlan], PublishPlan]] = field(default_factory=list, compare=False)
    # Called after each published write, with the state it was prepared on and the one it made. They must not raise.
    on_written: list[Callable[[WriteTxn, ManifestState], None]] = field(default_factory=list, compare=False)

    def schema_of(self, state: ManifestState) -> AcceptedSchema | None:
        """Return the schema of the latest state of a branch; None if there is no graph.

        Once the schema has been changed, the manifest holds it, and the files are copies for people to read. They are
        behind while a change is carried out, ahead if the schema changed after the state was read, and different if
        they were edited.
        """
        row, which = state.schema, state.schema_identity
        if row is not None and state.branch is not None:
            return compiled(row.source)  # the files are copies of the schema of main
        # The files are read once for each schema: only a publish changes it, and that changes the row. One of another
        # implementation leaves no row, but other tables.
        if (agreed := self.schema_files.agreed(which)) is not None:
            return agreed
        if (unchanged := self._unchanged(state)) is not None:
            return self._agree(state, unchanged)
        found = self._files()
        # Both say that the schema was never changed: the files are the only copy.
        if row is None and found and not found.is_changed:
            self._refuse_unfinished(found, state)
            return self._agree(state, found)
        if row is None:
            return self._origin()
        if found and found.catalog.fingerprint == row.fingerprint:
            return self._agree(state, found)
        # A pending record explains files that are behind: a change is being carried out, or its writer died.
        if not self.sidecars.pending():
            self._refuse_drift(row)
        return compiled(row.source)

    def _unchanged(self, state: ManifestState) -> AcceptedSchema | None:
        """Return the schema without reading its files, if they are the ones that a writer compared with this state."""
        seen = state.schema_seen
        if seen is None or not self.schema_files.are_still(seen.files):
            return None
        text = state.schema.source if seen.source is None and state.schema else seen.source
        return None if text is None else replace(compiled(text), is_changed=state.schema is not None)

    def _agree(self, state: ManifestState, found: AcceptedSchema) -> AcceptedSchema:
        """Remember that the files agree with a state, and let the next commit say so."""
        versions, row = self.schema_files.versions, state.schema
        # Not of another implementation, which may be in the middle of a change.
        is_whole = table_keys(found.catalog) <= state.snapshot.entries.keys()
        source = None if row and row.source == found.text else found.text
        is_short = source is None or len(source) <= _LONGEST_SOURCE
        if found.is_known and not found.foreign and is_whole and is_short and all(map(versions.get, FILES)):
            self.manifest.schema_seen = state.schema_identity, SchemaSeen(dict(versions), source)
        return self.schema_files.agree(state.schema_identity, found)

    def schema_at(self, snapshot: Snapshot) -> AcceptedSchema | None:
        """Return the schema that a past state was written by."""
        return compiled(snapshot.schema.source) if snapshot.schema else self._origin()

    def schema_of_row(self, row: SchemaRow | None) -> AcceptedSchema:
        """Return the schema of a row; without one, that which the graph was created with."""
        found = compiled(row.source) if row else self._origin()
        assert found, "the graph is there"
        return found

    def ids_of_row(self, row: SchemaRow | None) -> SchemaIds:
        """Return the identity of the types of a schema."""
        return decoded(row.ids) if row and row.ids else first_ids(self.schema_of_row(row).catalog)

    def _origin(self) -> AcceptedSchema | None:
        """Return the schema that the graph was created with. The files hold it until the first change."""
        now = self.manifest.load()
        if now.schema:
            return compiled(now.schema.origin)
        return self.schema_files.agreed(now.schema_identity) or self.schema_files.read()

    def _files(self) -> AcceptedSchema | None:
        """Read the schema files; None if they contradict each other, as they do while they are being replaced."""
        try:
            return self.schema_files.read()
        except SchemaDriftError:
            return None

    def _refuse_unfinished(self, found: AcceptedSchema, state: ManifestState) -> None:
        """Raise if the files declare types without tables and another implementation left a change unfinished."""
        missing = sorted(table_keys(found.catalog) - state.snapshot.entries.keys())
        if missing and leftovers(self.objects):
            message = f"{SOURCE} declares types without tables in this graph: {', '.join(missing)}"
            hint = "open the graph read-write to finish the change that another program left incomplete"
            raise SchemaDriftError(message, path=SOURCE, hint=hint)

    def _refuse_drift(self, row: SchemaRow) -> None:
        """Raise if the files differ from the latest schema of the manifest.

        Reading again comes first: the change may have been finished since the files were read, or followed by a later
        one.
        """
        found = self._files()
        if found and found.catalog.fingerprint == row.fingerprint:
            return
        if self.manifest.load().schema == row:
            message = f"{SOURCE} differs from the schema of the graph"
            hint = "restore the file; change schemas with `omnigraph schema apply`"
            raise SchemaDriftError(message, path=SOURCE, hint=hint)

    @classmethod
    def at(cls, location: Location, gate_timeout: float = DEFAULT_TIMEOUT, durability: str | None = None) -> Store:
        objects, tables, manifest = ObjectStore(location), TableStorage(location), Manifest(location)
        # Handles and cached versions belong to files: when another graph lies here, equal numbers mean other content.
        schema_files = SchemaFilesReader(objects)
        manifest.on_replaced += (tables.forget, schema_files.forget)
        return cls(
            location,
            objects,
            schema_files,
            tables,
            manifest,
            Sidecars(objects),
            Audit(location),
            gates_of(location, objects, gate_timeout),
            Medium(location, Durability.of(durability)),
        )

    def origin_of(self, row: SchemaRow | None) -> str:
        """Return the schema that the graph was created with: states from before the first change are read by it."""
        return row.origin if row else self.schema_of_row(None).text

    def torn_refs(self) -> list[str]:
        """List the datasets that have an empty file for a branch or a tag."""
        if not self.location.is_local:
            return []
        paths = (MANIFEST_PATH, *self.manifest.load().paths.values())
        # Objects of a bucket appear whole, so only a local disk can have torn ones.
        return [uri for uri in map(self.location.child, paths) if has_torn_refs(uri)]

    def sync(self, tables: Iterable[TableVersion] = ()) -> None:
        """Bring all that was written onto the medium: before something relies on it, and before acknowledging it."""
        places = {(one.path, one.branch) for one in tables}
        written = [path for path, _ in places] + [f"{path}/tree/{fork}" for path, fork in places if fork]
        self.medium.sync(*written, MANIFEST_PATH, f"{MANIFEST_PATH}/tree", SEGMENTS, DIRECTORY)
