"""The schema files of a graph: three files that must agree, read when a graph is opened or its schema changes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

from omnigraph.errors import AlreadyInitializedError, SchemaDriftError
from omnigraph.lang.catalog import Catalog, fingerprint_of
from omnigraph.lang.schema_check import compile_schema
from omnigraph.lang.source import Source
from omnigraph.storage.objects import ObjectStore

SOURCE, IR, STATE = "_schema.pg", "_schema.ir.json", "__schema_state.json"
FILES = (SOURCE, IR, STATE)
STAGING = ".staging"  # suffix of files that other implementations stage before renaming them
BESIDE = "__schema_accepted.json"  # our fingerprint of a schema whose compiled files belong to another implementation
_FORMAT = "omnigraph-catalog-1"
_Files = tuple[bytes, bytes | None, bytes | None, bytes | None]


@dataclass(frozen=True, slots=True)
class AcceptedSchema:
    """The accepted schema: its text and its catalog.

    `foreign`: another implementation compiled it. `is_known`: its fingerprint is stored, so an edited source is found.
    `is_changed`: the graph was created with another schema, and the manifest holds both.
    """

    text: str
    catalog: Catalog
    foreign: bool = False
    is_changed: bool = False
    is_known: bool = True


class SchemaFilesReader:
    """Reads the schema files, and compiles them only when they have changed."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._known: tuple[_Files, AcceptedSchema] | None = None
        # What the files were found to say for a graph and its schema row. A change of the schema changes the row.
        self._agreed: tuple[object, AcceptedSchema] | None = None
        self.versions: dict[str, str] = {}  # in the storage, of the files that were read or looked at last

    def agreed(self, row: object) -> AcceptedSchema | None:
        """Return what the files said when they were last compared with the same row of the manifest."""
        agreed = self._agreed
        return agreed[1] if agreed and agreed[0] == row else None

    def agree(self, row: object, found: AcceptedSchema) -> AcceptedSchema:
        """Remember what the files say for a row, unless our fingerprint is missing and still to be written."""
        self._agreed = (row, found) if found.is_known else None
        return found

    def forget(self) -> None:
        """Compare the files again at the next read."""
        self._agreed = None

    def read(self) -> AcceptedSchema | None:
        """Read the files and check that they agree; None if there is no schema."""
        # The source first: without it there is no graph, and the other three need not be asked for.
        self.versions = {}
        source = self._read(SOURCE)
        if source is None:
            return None
        state, ir = self._read(STATE), self._read(IR)
        files = source, state, ir, self._objects.read_if_exists(BESIDE) if _is_foreign(ir) else None
        if self._known is None or self._known[0] != files:
            self._known = files, _accepted(*files)
        return self._known[1]

    def _read(self, name: str) -> bytes | None:
        found = self._objects.read_versioned(name)
        if found is not None:
            self.versions[name] = found[1]
        return None if found is None else found[0]

    def are_still(self, versions: Mapping[str, str]) -> bool:
        """Return whether the files are those versions, for one request and without reading them."""
        if versions.keys() != {*FILES}:
            return False
        now = self._objects.versions("")
        self.versions = {name: now.get(name, "") for name in FILES}
        return self.versions == versions


def leftovers(objects: ObjectStore) -> list[str]:
    """Name the staged files of other implementations. Finding none costs one request."""
    staged = [f"{name}{STAGING}" for name in FILES]
    return [name for name in objects.list("") if name in staged]


def is_started(objects: ObjectStore) -> bool:
    return any(objects.exists(name) for name in FILES)


def claim(objects: ObjectStore, source: Source, uri: str) -> None:
    """Write the schema source of a new graph. Of two processes that try, one succeeds."""
    if not objects.create(SOURCE, source.text.encode()):
        raise AlreadyInitializedError(f"a graph already exists at {uri}", uri=uri, hint="open it instead")


def write_compiled(objects: ObjectStore, catalog: Catalog, **more: bool) -> None:
    """Write the compiled files. The catalog comes last: until it is ours, the hash is not compared."""
    # The names are those of the other implementation, which reads the same file.
    state = {"format_version": 1, "schema_ir_hash": catalog.fingerprint, "schema_identity_version": 1, **more}
    objects.write(STATE, json.dumps(state).encode())
    document = {"format": _FORMAT, "catalog": asdict(catalog)}
    objects.write(IR, json.dumps(document, separators=(",", ":")).encode())


def write_beside(objects: ObjectStore, catalog: Catalog) -> None:
    """Store our fingerprint of a schema that another implementation compiled, and leave its files as they are.

    It may open the graph again, and refuses one whose compiled files have another form than its own.
    """
    known = {"format": _FORMAT, "schema_ir_digest": _digest(objects.read(IR)), "schema_hash": catalog.fingerprint}
    objects.write(BESIDE, json.dumps(known).encode())


def promote(objects: ObjectStore, text: str) -> None:
    """Put the files of a changed schema in place. The manifest has it already."""
    rewrite_source(objects, text)
    write_compiled(objects, compile_schema(Source(text, SOURCE)), changed=True)


def is_ours(document: Mapping[str, object]) -> bool:
    """Return whether we compiled a schema; only then is its hash known to us."""
    return document.get("format") == _FORMAT


def rewrite_source(objects: ObjectStore, text: str) -> None:
    """Replace the text of the schema. Unless a promotion follows, it must have the same meaning."""
    objects.write(SOURCE, text.encode())


@lru_cache(maxsize=16)
def compiled(text: str) -> AcceptedSchema:
    """Compile the schema of a past state, or one whose files are not in place yet."""
    return AcceptedSchema(text, compile_schema(Source(text, SOURCE)))


def _accepted(
    source_data: bytes, state_data: bytes | None, ir_data: bytes | None, beside_data: bytes | None
) -> AcceptedSchema:
    state, compiled = _document(STATE, state_data), _document(IR, ir_data)
    source = Source.decode(source_data, SOURCE)
    catalog = compile_schema(source)
    foreign = not is_ours(compiled)
    # Both: a copy that mixes files of two graphs has two hashes, neither of which may be believed.
    hashes = {state.get("schema_ir_hash"), fingerprint_of(compiled.get("catalog"))}
    if foreign:
        hashes = _hashes_beside(ir_data, beside_data)
    # Fingerprints are compared, not texts: a comment may change, the meaning only through schema apply.
    if hashes and hashes != {catalog.fingerprint}:
        message = f"schema evolution is locked: {SOURCE} differs from the schema of the graph"
        raise SchemaDriftError(
            message, path=SOURCE, hint="restore the file; change schemas with `omnigraph schema apply`"
        )
    return AcceptedSchema(source.text, catalog, foreign, state.get("changed") is True, bool(hashes))


def _hashes_beside(ir_data: bytes | None, beside_data: bytes | None) -> set[Any]:
    """Return our fingerprint of what others compiled; nothing if it is not there, or they compiled another since."""
    try:
        known = _document(BESIDE, beside_data)
    except SchemaDriftError:  # missing, or torn by a power cut: the next read-write open writes it again
        return set()
    return {known.get("schema_hash")} if ir_data and known.get("schema_ir_digest") == _digest(ir_data) else set()


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@lru_cache(maxsize=16)
def _is_foreign(ir_data: bytes | None) -> bool:
    """Return whether others compiled the schema; reading all files as a whole names a broken one."""
    try:
        return not is_ours(_document(IR, ir_data))
    except SchemaDriftError:
        return False


def _document(name: str, data: bytes | None) -> dict[str, Any]:
    try:
        document = None if data is None else json.loads(data)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        problem = "is missing" if data is None else "is not a JSON object"
        raise SchemaDriftError(f"{name} {problem}", path=name, hint="restore it from a backup")
    return document
