"""Schema files that another implementation was about to put in place when it stopped: what becomes of them.

A change of ours never leaves any: the manifest has the schema. Others put three files beside those of the graph,
publish their tables, and then give the files their names. Where that stopped is told by which tables the graph has.
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
    """What is to be done with files that were left behind."""

    DELETE = auto()  # their change was never published, or they are what is there
    PUT_IN_PLACE = auto()  # their change was published


def reconcile(store: Store) -> None:
    """Finish or forget a change of the schema that another implementation left, once no record explains it."""
    if not leftovers(store.objects):
        return
    with store.gates.hold(schema_gates(())) as held:
        found = leftovers(store.objects)
        if not found or store.sidecars.pending():
            return
        fate = fate_of(store, found)
        held.check()
        if fate is Fate.PUT_IN_PLACE:
            put_in_place(store.objects)
        else:
            _forget(store.objects)


def fate_of(store: Store, found: list[str]) -> Fate:
    """Tell by the tables of the graph whether the change was published; SchemaDriftError if they do not tell."""
    tables = set(store.manifest.load().snapshot.entries)
    live = _compiled(store.objects, SOURCE)
    if f"{SOURCE}{STAGING}" not in found:
        return _fate_of_rest(store.objects, live, tables)
    staged = _compiled(store.objects, f"{SOURCE}{STAGING}")
    if staged.fingerprint == live.fingerprint:
        return Fate.DELETE if _is_whole(store) else Fate.PUT_IN_PLACE
    if table_keys(staged) == table_keys(live):
        raise _undecided("both have the same types, so the tables do not tell whether the change was made")
    if tables == table_keys(live):
        return Fate.DELETE
    if tables == table_keys(staged):
        return Fate.PUT_IN_PLACE
    raise _undecided("the graph has the tables of neither")


def _is_whole(store: Store) -> bool:
    """The live files belong together; they do not if somebody died while he put them in place."""
    try:
        store.schema_files.read()
    except SchemaDriftError:
        return False
    return True


def _fate_of_rest(objects: ObjectStore, live: Catalog, tables: set[str]) -> Fate:
    """The source has its name already: what was compiled must belong to it. Of others' hashes the tables must tell."""
    told, is_known = _document(objects, STATE).get("schema_ir_hash"), is_ours(_document(objects, IR))
    if told == live.fingerprint or (not is_known and tables == table_keys(live)):
        return Fate.PUT_IN_PLACE
    raise _undecided(f"{SOURCE} is not what they were compiled from")


def put_in_place(objects: ObjectStore) -> None:
    """Let the staged schema be that of the graph; whoever stops half-way can do it again."""
    source = objects.read_if_exists(f"{SOURCE}{STAGING}")
    text = (objects.read(SOURCE) if source is None else source).decode()
    rewrite_source(objects, text)
    write_compiled(objects, compile_schema(Source(text, SOURCE)))
    _forget(objects)


def _forget(objects: ObjectStore) -> None:
    for name in reversed(FILES):  # the source last: without it nobody could tell what the others are
        objects.delete(f"{name}{STAGING}")


def _compiled(objects: ObjectStore, name: str) -> Catalog:
    return compile_schema(Source.decode(objects.read(name), name))


def _document(objects: ObjectStore, name: str) -> dict[str, object]:
    """Read a compiled file where it was staged, or if it has its name already, there."""
    data = objects.read_if_exists(f"{name}{STAGING}") or objects.read_if_exists(name)
    try:
        found = json.loads(data or b"{}")
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {}


def _undecided(why: str) -> SchemaDriftError:
    name = f"{SOURCE}{STAGING}"
    message = f"a change of the schema was left half-way by another program, and {why}"
    hint = (
        f"compare {name} with {SOURCE} and the columns of the tables; then delete the files that end with {STAGING}, "
        "or let them take the place of the others"
    )
    return SchemaDriftError(message, path=name, hint=hint)
