"""The schema contract of a graph: three files that must agree, read anew by every operation."""

from __future__ import annotations

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
STAGING = ".staging"  # how the files end that others are about to put in the place of these
_FORMAT = "omnigraph-catalog-1"
_Files = tuple[bytes, bytes | None, bytes | None]


@dataclass(frozen=True, slots=True)
class AcceptedSchema:
    """The accepted schema: its text and what it compiles to. `foreign` says that another implementation compiled it.

    `is_changed` says that the graph was made with another one: the manifest has both.
    """

    text: str
    catalog: Catalog
    foreign: bool = False
    is_changed: bool = False


class SchemaFilesReader:
    """Reads the contract anew for every operation, but compiles it only when its files have changed."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._known: tuple[_Files, AcceptedSchema] | None = None

    def read(self) -> AcceptedSchema | None:
        """Read the files and check that they agree; None if there is no contract."""
        source = self._objects.read_if_exists(SOURCE)
        if source is None:
            return None
        files = (source, self._objects.read_if_exists(STATE), self._objects.read_if_exists(IR))
        if self._known is None or self._known[0] != files:
            self._known = files, _contract(*files)
        return self._known[1]


def leftovers(objects: ObjectStore) -> list[str]:
    """Name the files that others were about to put in place; to find none is one request."""
    staged = [f"{name}{STAGING}" for name in FILES]
    return [name for name in objects.list("") if name in staged]


def is_started(objects: ObjectStore) -> bool:
    return any(objects.exists(name) for name in FILES)


def claim(objects: ObjectStore, source: Source, uri: str) -> None:
    """Write the schema source of a new graph; of two that try at once, one does."""
    if not objects.create(SOURCE, source.text.encode()):
        raise AlreadyInitializedError(f"there is a graph at {uri} already", uri=uri, hint="open it instead")


def write_compiled(objects: ObjectStore, catalog: Catalog, **more: bool) -> None:
    """Write what the source compiles to. The catalog comes last: until it is ours, the hash is not compared."""
    state = {"format_version": 1, "schema_ir_hash": catalog.fingerprint, "schema_identity_version": 1, **more}
    objects.write(STATE, json.dumps(state).encode())
    document = {"format": _FORMAT, "catalog": asdict(catalog)}
    objects.write(IR, json.dumps(document, separators=(",", ":")).encode())


def promote(objects: ObjectStore, text: str) -> None:
    """Put the files of a changed schema in place, once the manifest has it."""
    rewrite_source(objects, text)
    write_compiled(objects, compile_schema(Source(text, SOURCE)), changed=True)


def is_ours(document: Mapping[str, object]) -> bool:
    """Tell whether it was us who compiled a schema: only then do we know its hash."""
    return document.get("format") == _FORMAT


def rewrite_source(objects: ObjectStore, text: str) -> None:
    """Put another text in place; unless it is about to be promoted, it must mean the same."""
    objects.write(SOURCE, text.encode())


@lru_cache(maxsize=16)
def compiled(text: str) -> AcceptedSchema:
    """What a schema of the past, or one whose files are not in place yet, comes to."""
    return AcceptedSchema(text, compile_schema(Source(text, SOURCE)))


def _contract(source_data: bytes, state_data: bytes | None, ir_data: bytes | None) -> AcceptedSchema:
    state, compiled = _document(STATE, state_data), _document(IR, ir_data)
    source = Source.decode(source_data, SOURCE)
    catalog = compile_schema(source)
    foreign = not is_ours(compiled)
    hashes = {state.get("schema_ir_hash"), fingerprint_of(compiled.get("catalog"))}
    # A comment in the source may change; what it means may not, until schema apply changes all three.
    if not foreign and hashes != {catalog.fingerprint}:
        message = f"schema evolution is locked: {SOURCE} does not mean what the graph was built with"
        raise SchemaDriftError(
            message, path=SOURCE, hint="restore the file; change schemas with `omnigraph schema apply`"
        )
    return AcceptedSchema(source.text, catalog, foreign, state.get("changed") is True)


def _document(name: str, data: bytes | None) -> dict[str, Any]:
    try:
        document = None if data is None else json.loads(data)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        problem = "is missing" if data is None else "is not a JSON object"
        raise SchemaDriftError(f"{name} {problem}", path=name, hint="restore it from a backup")
    return document
