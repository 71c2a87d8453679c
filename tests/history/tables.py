"""One table with many versions on several native branches, and a plain model of each of its states."""

from __future__ import annotations

import datetime as dt
import random
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa

from omnigraph.api.results import TableVersion
from omnigraph.core.location import Location
from omnigraph.history.delta import EDGE_KEYS, NODE_KEYS, TableDelta, touched_rows
from omnigraph.lang.catalog import EdgeType, NodeType
from omnigraph.lang.schema_check import compile_schema
from omnigraph.lang.source import Source
from omnigraph.storage import maintain
from omnigraph.storage.columns import image_schema, table_path, table_schema, to_array
from omnigraph.storage.layout import IndexSpec, layout_of
from omnigraph.storage.read import TableReader
from omnigraph.storage.stage import Staged, TableStorage
from omnigraph.write.pending import column_types
from tests.support.graphs import stage_delete

SCHEMA = """
node Thing {
    name: String?
    size: F64?
    count: I64?
    tags: [String]?
    ratios: [F32]?
    seen: DateTime?
    photo: Blob?
    face: Vector(2)?
    good: Bool?
}
edge Link: Thing -> Thing { weight: F32? }
"""
CATALOG = compile_schema(Source(SCHEMA, "<things>"))
THING, LINK = CATALOG.nodes["Thing"], CATALOG.edges["Link"]
Row = dict[str, Any]
State = Mapping[str, Row]


@dataclass
class Versions:
    """The versions of one table, each with the rows that it holds."""

    storage: TableStorage
    declared: NodeType | EdgeType
    states: dict[TableVersion, State] = field(default_factory=dict)

    @classmethod
    def create(cls, folder: Path, declared: NodeType | EdgeType) -> Versions:
        storage = TableStorage(Location.parse(folder))
        made = storage.create(table_path(declared), table_schema(declared))
        versions = cls(storage, declared)
        versions.states[TableVersion(declared.name, table_path(declared), made.version)] = {}
        return versions

    @property
    def first(self) -> TableVersion:
        return next(iter(self.states))

    def append(self, base: TableVersion, rows: list[Row]) -> TableVersion:
        return self._commit(self.storage.stage_append(base, self.table(rows)), self._with(base, rows))

    def upsert(self, base: TableVersion, rows: list[Row]) -> TableVersion:
        return self._commit(self.storage.stage_upsert(base, self.table(rows)), self._with(base, rows))

    def replace(self, base: TableVersion, rows: list[Row]) -> TableVersion:
        """Write rows as a large load does: new fragments in place of the old rows."""
        ids = pa.array([row["id"] for row in rows])
        old = self.storage.lookup(base, "id", ids, ["id"], addresses=True)["_rowaddr"].to_numpy()
        written = self.storage.write_rows(base, self.table(rows))
        return self._commit(self.storage.stage_written(base, written, old), self._with(base, rows))

    def delete(self, base: TableVersion, ids: list[str]) -> TableVersion:
        quoted = ", ".join(f"'{one}'" for one in ids)
        staged = stage_delete(self.storage, base, f"id IN ({quoted})")
        assert staged
        return self._commit(staged[0], {key: row for key, row in self.states[base].items() if key not in ids})

    def overwrite(self, base: TableVersion, rows: list[Row]) -> TableVersion:
        state = {row["id"]: row for row in rows}
        return self._commit(self.storage.stage_overwrite(base, self.table(rows)), state)

    def index(self, base: TableVersion) -> TableVersion:
        return self._commit(self.storage.stage_create_indices(base, [IndexSpec("id", "BTREE")]), self.states[base])

    def restore(self, base: TableVersion, version: int) -> TableVersion:
        restored = self.states[replace(base, version=version)]
        return self._commit(self.storage.stage_restore(base, version, f"restore-{base.version}"), restored)

    def compact(self, base: TableVersion) -> TableVersion:
        made_of = layout_of(self.storage, base)
        done = maintain.rewrite(self.storage, base, [part.number for part in made_of.parts])
        return self._commit(maintain.stage_rewrite(self.storage, base, made_of, [done]), self.states[base])

    def branch(self, base: TableVersion, name: str) -> TableVersion:
        self._handle(base).create_branch(name, base.version)
        return self._known(replace(base, branch=name), self.states[base])

    def table(self, rows: list[Row]) -> pa.Table:
        types = column_types(self.declared)
        columns = [to_array(type_, [row.get(name) for row in rows]) for name, type_ in types.items()]
        return pa.table(columns, schema=table_schema(self.declared))

    def _with(self, base: TableVersion, rows: list[Row]) -> State:
        return {**self.states[base], **{row["id"]: row for row in rows}}

    def _commit(self, staged: Staged, state: State) -> TableVersion:
        done = self.storage.commit_staged(staged, staged.base.version + 1)
        return self._known(replace(staged.base, version=done.version), state)

    def _known(self, table: TableVersion, state: State) -> TableVersion:
        self.states[table] = state
        return table

    def _handle(self, table: TableVersion) -> lance.LanceDataset:
        folder = Path(self.storage.location.uri) / table.path
        return lance.dataset(str(folder / "tree" / table.branch if table.branch else folder), version=table.version)


def exact(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """A row such that equality of two is equality to the bit."""
    return tuple(_exact(row.get(name)) for name in sorted(row))


def _exact(value: Any) -> Any:
    if isinstance(value, float):
        return struct.pack("<d", value)
    return tuple(map(_exact, value)) if isinstance(value, list) else value


def plain(rows: pa.Table) -> list[Row]:
    """Rows as a model has them. Arrow would give the day of a date-time only."""
    if "seen" in rows.column_names:
        at = rows.column_names.index("seen")
        seen = rows["seen"].combine_chunks().view(pa.int64()).cast(pa.timestamp("ms", "UTC"))
        rows = rows.set_column(at, "seen", seen)
    found: list[Row] = rows.to_pylist()
    return found


def any_row(one: random.Random, key: str) -> Row:
    """A row of few and awkward values, so that equal and almost equal ones are frequent."""
    day = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
    choices: dict[str, list[Any]] = {
        "name": [None, "", "a"],
        "size": [None, 0.0, -0.0, float("nan")],
        "count": [None, 0, 1],
        "tags": [None, [], [""], ["a", "b"], ["b", "a"], [None]],
        "ratios": [None, [0.0], [-0.0], [float("nan")]],
        "seen": [None, day, day + dt.timedelta(milliseconds=1)],
        "photo": [None, b"", b"x" * 100],
        "face": [None, [0.0, 1.0], [-0.0, 1.0]],
        "good": [None, True, False],
    }
    changed = one.sample(sorted(choices), k=one.choice([0, 1, 2]))
    return {"id": key, **dict.fromkeys(choices), **{name: one.choice(choices[name]) for name in changed}}


def table_delta(
    tables: TableReader, before: TableVersion | None, after: TableVersion | None, declared: NodeType | EdgeType
) -> TableDelta:
    """Find what turns `before` into `after`; None means that the table is not there. Equal rows are not part of it."""
    keys = EDGE_KEYS if isinstance(declared, EdgeType) else NODE_KEYS
    return touched_rows(tables, before, after, image_schema(declared), keys).delta()
