"""Making a graph: its schema files, its empty tables and its manifest, which is what makes it a graph."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from omnigraph.commit import failpoints
from omnigraph.commit.store import Store
from omnigraph.core.location import Location
from omnigraph.errors import AlreadyInitializedError, OmnigraphError, StorageError
from omnigraph.lang.catalog import Catalog, EdgeType, NodeType
from omnigraph.lang.identity import new_id
from omnigraph.lang.schema_check import compile_schema
from omnigraph.lang.source import Source
from omnigraph.manifest import schema_files
from omnigraph.manifest.rows import TableRow, VersionRow
from omnigraph.storage.columns import table_key, table_path, table_schema
from omnigraph.storage.lance_errors import Failure, classify
from omnigraph.write.validate import check_patterns

_CLAIM = "__init_claim.json"
_LOG = logging.getLogger(__name__)


def make(location: Location, source: Source, *, force: bool) -> Store:
    """Make a graph, or take over with `force` from an attempt that died before its graph was made."""
    catalog = compile_schema(source)
    check_patterns(catalog)
    store = Store.at(location)
    address = store.location.uri
    started = schema_files.is_started(store.objects)
    if is_made(store):
        raise AlreadyInitializedError(f"there is a graph at {address} already", uri=address, hint="open it instead")
    if started and not force:
        message = f"somebody began to make a graph at {address}"
        hint = "if nobody is at it any more, take over with --force"
        raise AlreadyInitializedError(message, uri=address, hint=hint)
    if force:
        _abandon(store)
    schema_files.claim(store.objects, source, address)
    claim = new_id().encode()
    try:
        store.objects.write(_CLAIM, claim)
        failpoints.reach(failpoints.INIT_AFTER_SCHEMA_PG_WRITTEN)
        schema_files.write_compiled(store.objects, catalog)
        failpoints.reach(failpoints.INIT_AFTER_SCHEMA_CONTRACT_WRITTEN)
        _create_tables(store, catalog, claim)
    except BaseException:
        _abandon_unless_made(store, claim)
        raise
    failpoints.reach(failpoints.INIT_AFTER_MANIFEST_CREATED)
    _delete(store, _CLAIM)
    return store


def _create_tables(store: Store, catalog: Catalog, claim: bytes) -> None:
    tables, versions = [], []
    for declared in _types(catalog):
        _check_claim(store, claim)
        key, path = table_key(declared), table_path(declared)
        created = store.tables.create(path, table_schema(declared))
        tables.append(TableRow(key, path))
        versions.append(VersionRow(key, created.version, None, 0))
    _check_claim(store, claim)
    store.manifest.create(tables, versions)


def _check_claim(store: Store, claim: bytes) -> None:
    """See that nobody has taken the place over with `force` meanwhile: his tables must not be touched."""
    if store.objects.read_if_exists(_CLAIM) != claim:
        uri = store.location.uri
        message = f"somebody else took over making a graph at {uri}"
        raise AlreadyInitializedError(message, uri=uri, hint="open it when it is made")


def _types(catalog: Catalog) -> Iterator[NodeType | EdgeType]:
    yield from catalog.nodes.values()
    yield from catalog.edges.values()


def is_made(store: Store) -> bool:
    """A graph is made when its manifest can be opened; what an attempt left of one does not count."""
    try:
        store.manifest.table.open()
    except StorageError as error:
        if classify(error) is Failure.NOT_FOUND:
            return False
        raise
    return True


def _abandon_unless_made(store: Store, claim: bytes) -> None:
    """Take back what an attempt has claimed, unless its graph is there after all, or that cannot be told."""
    try:
        made = is_made(store) or store.objects.read_if_exists(_CLAIM) not in (None, claim)
    except OmnigraphError as error:
        _LOG.warning("could not tell whether the graph was made: %s", error)
        return
    if not made:
        _abandon(store)


def _abandon(store: Store) -> None:
    """Take back the claim of a graph that could not be made; the failure that led here is the one to tell."""
    for name in (*reversed(schema_files.FILES), _CLAIM):
        _delete(store, name)


def _delete(store: Store, name: str) -> None:
    try:
        store.objects.delete(name)
    except OmnigraphError as error:
        _LOG.warning("could not remove %s: %s", name, error)
