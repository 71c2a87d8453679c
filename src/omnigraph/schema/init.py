"""Create a graph: its schema files, its empty tables and, last, its manifest, which makes it a graph."""

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


def init_graph(location: Location, source: Source, *, force: bool) -> Store:
    """Create a graph. With `force`, take over from an attempt that died before its graph existed."""
    catalog = compile_schema(source)
    check_patterns(catalog)
    store = Store.at(location)
    address = store.location.uri
    started = schema_files.is_started(store.objects)
    if graph_exists(store):
        raise AlreadyInitializedError(f"a graph already exists at {address}", uri=address, hint="open it instead")
    if started and not force:
        message = f"another process began to create a graph at {address}"
        hint = "if it is no longer running, take over with --force"
        raise AlreadyInitializedError(message, uri=address, hint=hint)
    if force:
        _abandon(store)
    schema_files.claim(store.objects, source, address)
    claim = new_id().encode()
    try:
        # The claim identifies our attempt: one that takes over with `force` has its own, and its tables are not ours.
        store.objects.write(_CLAIM, claim)
        failpoints.reach(failpoints.INIT_AFTER_SCHEMA_PG_WRITTEN)
        schema_files.write_compiled(store.objects, catalog)
        failpoints.reach(failpoints.INIT_AFTER_SCHEMA_CONTRACT_WRITTEN)
        _create_tables(store, catalog, claim)
    # Also on KeyboardInterrupt: a claim that stays would make everyone believe that the graph is being created.
    except BaseException:
        _abandon_unless_made(store, claim)
        raise
    failpoints.reach(failpoints.INIT_AFTER_MANIFEST_CREATED)
    _delete(store, _CLAIM)
    return store


def _create_tables(store: Store, catalog: Catalog, claim: bytes) -> None:
    tables, versions = [], []
    for declared in _types(catalog):
        # Checked before every table: until the manifest exists, another process may take over with `force`.
        _check_claim(store, claim)
        key, path = table_key(declared), table_path(declared)
        created = store.tables.create(path, table_schema(declared))
        tables.append(TableRow(key, path))
        versions.append(VersionRow(key, created.version, None, 0))
    _check_claim(store, claim)
    # The manifest comes last: until it exists there is no graph, and an attempt can be abandoned.
    store.manifest.create(tables, versions)


def _check_claim(store: Store, claim: bytes) -> None:
    """Raise if another process took over with `force`: its tables must not be touched."""
    if store.objects.read_if_exists(_CLAIM) != claim:
        uri = store.location.uri
        message = f"another process took over creating a graph at {uri}"
        raise AlreadyInitializedError(message, uri=uri, hint="open it once it is created")


def _types(catalog: Catalog) -> Iterator[NodeType | EdgeType]:
    yield from catalog.nodes.values()
    yield from catalog.edges.values()


def graph_exists(store: Store) -> bool:
    """Return whether the graph exists: its manifest can be opened. Remains of an attempt do not count."""
    try:
        store.manifest.table.open()
    except StorageError as error:
        if classify(error) is Failure.NOT_FOUND:
            return False
        raise
    return True


def _abandon_unless_made(store: Store, claim: bytes) -> None:
    """Remove the claim of a failed attempt, unless the graph exists after all, or that is unknown."""
    try:
        made = graph_exists(store) or store.objects.read_if_exists(_CLAIM) not in (None, claim)
    except OmnigraphError as error:
        _LOG.warning("could not find out whether the graph was created: %s", error)
        return
    if not made:
        _abandon(store)


def _abandon(store: Store) -> None:
    """Remove the claim of a failed attempt. A failure here is logged, so that the original one is raised."""
    for name in (*reversed(schema_files.FILES), _CLAIM):
        _delete(store, name)


def _delete(store: Store, name: str) -> None:
    try:
        store.objects.delete(name)
    except OmnigraphError as error:
        _LOG.warning("could not remove %s: %s", name, error)
