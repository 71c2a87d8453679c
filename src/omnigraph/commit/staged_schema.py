"""Schema files that another implementation staged and left behind.

Our own changes leave none: the manifest holds the schema. Others put three files beside those of the graph, publish
their tables, and then rename the files. The tables that the graph has show where that stopped.
"""

from __future__ import annotations

import json
from enum import Enum, auto

from omnigraph.commit.plan import schema_gates
from omnigraph.commit.store import Store
from omnigraph.errors import SchemaDriftError
from omnigraph.lang.catalog import Catalog
from omnigraph.lang.schema_check import compile_schema
from omnigraph.lang.source import Source
from omnigraph.manifest.schema_files import (
    FILES,
    IR,
    SOURCE,
    STAGING,
    STATE,
    is_ours,
    leftovers,
    rewrite_source,
    write_compiled,
)
from omnigraph.storage.columns import table_keys
from omnigraph.storage.objects import ObjectStore


class Fate(Enum):
    """How to deal with staged files that were left behind."""

    DELETE = auto()  # their change was never published, or is in place already
    PUT_IN_PLACE = auto()  # their change was published


def reconcile(store: Store) -> None:
    """Finish or discard a schema change that another implementation left, once no record is pending."""
    if not leftovers(store.objects):
        return
    # Looked at before and again inside the gate: the usual graph has no such files and must not wait for writers.
    with store.gates.hold(schema_gates(())) as held:
        found = leftovers(store.objects)
        # A record explains the files better than the tables do: recovery decides about it first.
        if not found or store.sidecars.pending():
            return
        fate = fate_of(store, found)
        held.check()
        if fate is Fate.PUT_IN_PLACE:
            put_in_place(store.objects)
            store.schema_files.forget()
        else:
            _forget(store.objects)


def fate_of(store: Store, found: list[str]) -> Fate:
    """Decide by the tables of the graph whether the change was published; raise SchemaDriftError if unclear."""
    tables = set(store.manifest.load().snapshot.entries)
    live = _compiled(store.objects, SOURCE)
    if f"{SOURCE}{STAGING}" not in found:
        return _fate_of_rest(store.objects, live, tables)
    staged = _compiled(store.objects, f"{SOURCE}{STAGING}")
    if staged.fingerprint == live.fingerprint:
        return Fate.DELETE if _is_whole(store) and not _is_half(store.objects, found) else Fate.PUT_IN_PLACE
    # Only types have tables. A change of properties leaves no trace that differs from no change.
    if table_keys(staged) == table_keys(live):
        raise _undecided("both schemas have the same types, so the tables do not show whether the change was made")
    if tables == table_keys(live):
        return Fate.DELETE
    if tables == table_keys(staged):
        return Fate.PUT_IN_PLACE
    raise _undecided("the tables of the graph match neither schema")


def _is_whole(store: Store) -> bool:
    """Return whether the live files agree. They do not if a process died while it replaced them."""
    try:
        store.schema_files.read()
    except SchemaDriftError:
        return False
    return True


def _is_half(objects: ObjectStore, found: list[str]) -> bool:
    """Return whether a process died after it put the source in place, and before the compiled files."""
    live = {name: objects.read_if_exists(name.removesuffix(STAGING)) for name in found}
    other = [name for name, data in live.items() if data != objects.read(name)]
    return bool(other) and f"{SOURCE}{STAGING}" not in other


def _fate_of_rest(objects: ObjectStore, live: Catalog, tables: set[str]) -> Fate:
    """Decide about the compiled files when the source has been renamed already.

    Their hash must be that of the source. A hash that is not ours cannot be checked, so the tables must match instead.
    """
    recorded, is_known = _document(objects, STATE).get("schema_ir_hash"), is_ours(_document(objects, IR))
    if recorded == live.fingerprint or (not is_known and tables == table_keys(live)):
        return Fate.PUT_IN_PLACE
    raise _undecided(f"{SOURCE} is not what they were compiled from")


def put_in_place(objects: ObjectStore) -> None:
    """Make the staged schema that of the graph. Dying half-way is harmless: it can be repeated."""
    source = objects.read_if_exists(f"{SOURCE}{STAGING}")
    text = (objects.read(SOURCE) if source is None else source).decode()
    rewrite_source(objects, text)
    if _is_complete(objects):
        for name in (IR, STATE):  # as they are: who staged them accepts no other form
            objects.write(name, objects.read_if_exists(f"{name}{STAGING}") or objects.read(name))
    else:
        write_compiled(objects, compile_schema(Source(text, SOURCE)))
    _forget(objects)


def _is_complete(objects: ObjectStore) -> bool:
    """Return whether others compiled all that is staged. They rename in the order of FILES: the last are left."""
    found = leftovers(objects)
    staged = [f"{name}{STAGING}" for name in FILES]
    compiled = _document(objects, IR)
    in_order = sorted(found) == sorted(staged[len(staged) - len(found) :])
    return in_order and bool(compiled) and not is_ours(compiled) and bool(_document(objects, STATE))


def _forget(objects: ObjectStore) -> None:
    for name in reversed(FILES):  # the source last: it is needed to decide about the others
        objects.delete(f"{name}{STAGING}")


def _compiled(objects: ObjectStore, name: str) -> Catalog:
    return compile_schema(Source.decode(objects.read(name), name))


def _document(objects: ObjectStore, name: str) -> dict[str, object]:
    """Read a compiled file from its staged name or, if it was renamed already, from its final one."""
    data = objects.read_if_exists(f"{name}{STAGING}") or objects.read_if_exists(name)
    try:
        found = json.loads(data or b"{}")
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {}


def _undecided(why: str) -> SchemaDriftError:
    name = f"{SOURCE}{STAGING}"
    message = f"another program left a schema change incomplete, and {why}"
    hint = (
        f"compare {name} with {SOURCE} and the columns of the tables; then delete the files that end with {STAGING}, "
        "or rename them to the names without it"
    )
    return SchemaDriftError(message, path=name, hint=hint)
