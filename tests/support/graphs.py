"""Small graphs and plans on them, for tests of the engine below the writers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pyarrow as pa

from omnigraph.api.results import TableVersion
from omnigraph.commit.plan import OpClass, PublishPlan, TableAction, WriterKind, WriteTxn
from omnigraph.commit.publish import write
from omnigraph.commit.store import Store
from omnigraph.manifest.publisher import Lineage, Published
from omnigraph.storage.lance_errors import lance_call
from omnigraph.storage.read import ADDRESS
from omnigraph.storage.stage import Staged, TableStorage

SCHEMA = """
node Person { name: String @key  age: I32? }
node Company { name: String @key }
edge Knows: Person -> Person { since: Date? }
edge WorksAt: Person -> Company
"""
PERSON, COMPANY, KNOWS, WORKS_AT = "node:Person", "node:Company", "edge:Knows", "edge:WorksAt"


def person(name: str, age: int | None = None) -> dict[str, Any]:
    return {"id": name, "name": name, "age": age}


def company(name: str) -> dict[str, Any]:
    return {"id": name, "name": name}


def edge(edge_id: str, src: str, dst: str) -> dict[str, Any]:
    return {"id": edge_id, "src": src, "dst": dst}


def table(store: Store, txn: WriteTxn, key: str, rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Arrow rows of a table; what is left out is null."""
    schema = store.tables.open(txn.entries[key].table).schema
    return pa.Table.from_pylist([dict(row) for row in rows], schema=schema)


def append(store: Store, txn: WriteTxn, key: str, rows: Iterable[Mapping[str, Any]]) -> TableAction:
    return TableAction(store.tables.stage_append(txn.entries[key].table, table(store, txn, key, rows)))


def upsert(store: Store, txn: WriteTxn, key: str, rows: Iterable[Mapping[str, Any]]) -> TableAction:
    return TableAction(store.tables.stage_upsert(txn.entries[key].table, table(store, txn, key, rows)))


def stage_delete(tables: TableStorage, base: TableVersion, predicate: str) -> tuple[Staged, int] | None:
    """Stage a delete of the rows that satisfy a predicate, and count them; None when there are none."""
    dataset = tables.open(base)
    with lance_call(dataset.uri, "stage delete"):
        scanner = dataset.scanner(columns=[], filter=predicate, with_row_address=True)
        addresses = scanner.to_table()[ADDRESS].to_numpy()
    return (tables.stage_delete_rows(base, addresses, predicate), len(addresses)) if len(addresses) else None


def delete(store: Store, txn: WriteTxn, key: str, predicate: str) -> TableAction:
    staged = stage_delete(store.tables, txn.entries[key].table, predicate)
    assert staged, "the predicate matches nothing"
    return TableAction(staged[0])


def write_plan(store: Store, branch: str | None, prepare: Callable[[WriteTxn], PublishPlan | None]) -> Published | None:
    """Prepare and publish a plan, as the writers do."""
    return write(store, branch, lambda txn: (prepare(txn), None))[0]


def plan(txn: WriteTxn, *actions: TableAction, actor: str | None = None) -> PublishPlan:
    maintenance = bool(actions) and all(action.op_class is OpClass.MAINTENANCE for action in actions)
    kind = WriterKind.OPTIMIZE if maintenance else WriterKind.MUTATION
    return PublishPlan(txn, kind, actions, lineage=Lineage.new(actor))


def contents(store: Store, branch: str | None = None) -> dict[str, list[dict[str, Any]]]:
    """All rows of the graph as it is published, by table, in order of their ids."""
    entries = store.manifest.load(branch).snapshot.entries
    found = {key: store.tables.open(entry.table).to_table().to_pylist() for key, entry in entries.items()}
    return {key: sorted(rows, key=lambda row: str(row["id"])) for key, rows in found.items()}


def heads_and_pins(store: Store, branch: str | None = None) -> dict[str, tuple[int, int]]:
    """The head and the pin of every table; equal when no write is under way."""
    entries = store.manifest.load(branch).snapshot.entries
    return {
        key: (store.tables.head(entry.table.path, entry.table.branch).version, entry.table.version)
        for key, entry in entries.items()
    }
