"""A table of a snapshot as queries see it: rows by position, columns on demand."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable, Sequence, Sized
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, TypeVar, cast

import numpy as np
import pyarrow as pa

from omnigraph.api.results import Entry, Snapshot, TableVersion
from omnigraph.core.lru import LruCache
from omnigraph.core.nonblocking import may_block
from omnigraph.errors import CorruptGraphError, StorageError
from omnigraph.lang.catalog import Catalog, EdgeType, NodeType
from omnigraph.lang.ir import Operator
from omnigraph.query.growth import Growth, growth
from omnigraph.query.memory import check_room
from omnigraph.storage.columns import table_key
from omnigraph.storage.lance_errors import Failure, classify
from omnigraph.storage.layout import deleted_offsets, fragments, layout_of
from omnigraph.storage.predicates import AllOf, Compare, Predicate, satisfying
from omnigraph.storage.read import ADDRESS, ID, OFFSET_BITS
from omnigraph.storage.stage import TableStorage

Positions = np.ndarray[Any, np.dtype[np.int64]]
# A table up to this size is read as a whole; of a larger one only the selected rows, unless they are many.
SMALL_TABLE = 200_000
_FEW = 16  # a selection is small up to one row in this many
_HASHED, _LOOKED_UP = 500_000, 4096  # ids that are hashed in the time of a lookup; ids of one lookup
_ORDER = "@order"
_NOTE = 1024  # bytes that a small value is taken for
_MOST_TEXT = 2**31 - 1  # bytes of an Arrow column of texts; beyond, it needs offsets of 64 bits
_MOST_NOTES = 10_000
_MOST_PLANS = 256
_MEMBERS = 4  # versions that are remembered of a family
_OWN = 8  # what is made of a version grows into another one if at most one row in so many is new
_FEW_OWN = 10_000  # or if no more are
_V = TypeVar("_V")


class Plans:
    """The orders of work that were chosen, by plan and snapshot; chosen again when other values are cached."""

    def __init__(self, cached: Callable[[], int]) -> None:
        self._cached = cached
        self._known: dict[tuple[int, int], tuple[object, object, int, object]] = {}

    def get(self, plan: _V, snapshot: object, choose: Callable[[], _V]) -> _V:
        key, cached = (id(plan), id(snapshot)), self._cached()
        found = self._known.get(key)
        # Both objects are kept, so that no other one can get their numbers.
        if found is not None and found[0] is plan and found[1] is snapshot and found[2] == cached:
            return cast("_V", found[3])
        chosen = choose()
        if len(self._known) >= _MOST_PLANS:
            self._known.clear()
        self._known[key] = (plan, snapshot, cached, chosen)
        return chosen


class TableCache(LruCache):
    """Columns, adjacency and indices of immutable tables, and what doing without each has cost so far.

    Values of one family are the same thing of several versions: what is made of one version can grow into another one.
    """

    def __init__(self, budget: int) -> None:
        super().__init__(budget)
        self.plans = Plans(lambda: len(self._entries))
        self._spent: dict[Hashable, float] = {}
        self._families: dict[Hashable, tuple[Hashable, ...]] = {}

    def peek(self, key: Hashable) -> Any:
        """Return a value if it is cached."""
        found = self._entries.get(key)
        return None if found is None else found[1]

    def relative(self, family: Hashable) -> Any:
        """Return the newest value of a family that is cached, of whatever version."""
        found = (self.peek(key) for key in self._families.get(family, ()))
        return next((one for one in found if one is not None), None)

    def grown(
        self,
        family: Hashable,
        key: Hashable,
        grow: Callable[[Any, _V], _V | None],
        make: Callable[[], _V],
        size: Callable[[_V], int],
    ) -> _V:
        """Return the cached value; else let one of its family grow into it; else make it."""

        def made() -> _V:
            for other in self._families.get(family, ()):
                old = None if other == key else self.peek(other)
                found = None if old is None else _unless_reclaimed(lambda: grow(other, old))  # noqa: B023
                if found is not None:
                    return found
            return make()

        found = self.get(key, made, size)
        members = self._families.get(family, ())
        if members[:1] != (key,):
            with self._lock:
                if len(self._families) > _MOST_NOTES:
                    self._families.clear()
                self._families[family] = (key, *(one for one in members if one != key))[:_MEMBERS]
        return found

    def spent(self, key: Hashable) -> float:
        """The cost of all lookups that were made because a value was not cached."""
        return self._spent.get(key, 0.0)

    def spend(self, key: Hashable, cost: float) -> None:
        with self._lock:
            # Forgetting everything is cheaper than forgetting the oldest, and only delays a build.
            if len(self._spent) > _MOST_NOTES:
                self._spent.clear()
            self._spent[key] = self._spent.get(key, 0.0) + cost


def _unless_reclaimed(grow: Callable[[], _V | None]) -> _V | None:
    """Return None where a cleanup has removed the version that something would grow out of."""
    try:
        return grow()
    except StorageError as error:
        if classify(error) is Failure.NOT_FOUND:
            return None
        raise


@dataclass(frozen=True)
class TableView:
    """One version of one table. A row is identified by its position: its index among all rows by address."""

    tables: TableStorage
    table: TableVersion
    count: int
    cache: TableCache
    key: str | None = None  # the String property that is also the id

    def column(self, name: str) -> pa.Array:
        """Return a whole column, in order of position."""
        return self.columns(name)[0]

    def columns(self, *names: str) -> list[pa.Array]:
        """Return whole columns. Those that are not cached are read together."""
        stored = [self._stored(name) for name in names]
        missing = [name for name in stored if not self.cache.holds((self.table, name))]
        together = cache(lambda: self._read(missing))

        def made(name: str) -> pa.Array:
            return (together() if name in missing else self._read([name]))[name]

        return [
            self.cache.grown(
                (self.table.path, name),
                (self.table, name),
                partial(self._grown_column, name),
                partial(made, name),
                lambda one: int(one.nbytes),
            )
            for name in stored
        ]

    def _grown_column(self, name: str, other: tuple[TableVersion, str], old: pa.Array) -> pa.Array | None:
        grown = self.growth(other[0])
        if grown is None:
            return None
        own = self.own(grown, name)
        rest = own[0].cast(old.type) if own else pa.nulls(0, old.type)
        parts, at = [], 0
        for piece in grown.pieces:
            if piece.kept is None:
                parts.append(rest.slice(at, piece.count))
                at += piece.count
            elif isinstance(piece.kept, slice):
                parts.append(old.slice(piece.kept.start, piece.count))
            else:
                parts.append(old.take(pa.array(piece.kept)))
        return _whole(pa.chunked_array(parts, old.type))

    def growth(self, since: TableVersion) -> Growth | None:
        """Return what this version has of another one; None if starting over costs less than what differs."""
        key = (since, self.table, "@growth")
        found = self.cache.get(key, lambda: growth(self.tables, since, self.table), lambda _: _NOTE)
        if found is None or found.kept + len(found.added) != self.count:
            return None
        return found if len(found.added) <= max(self.count // _OWN, _FEW_OWN) else None

    def own(self, grown: Growth, *names: str) -> list[pa.Array] | None:
        """Read columns of the rows that another version lacks; None if there are none."""
        if not grown.own:
            return None
        may_block()
        rows = self.tables.scan_fragments(self.table, grown.own, names)
        self._expect(rows, len(grown.added))
        return [_whole(rows[name]) for name in names]

    def columns_once(self, *names: str) -> list[pa.Array]:
        """Return whole columns, for a caller that keeps what it makes of them: they are not cached."""
        if all(self.cache.holds((self.table, name)) for name in names):
            return self.columns(*names)
        may_block()
        found = self._read(names)
        return [found[name] for name in names]

    def _stored(self, name: str) -> str:
        """Return the column to read: a key is stored twice, and is needed as the id anyway."""
        return ID if name == self.key else name

    def take(self, positions: Positions, name: str) -> pa.Array:
        """Return the values of a column at some positions."""
        name = self._stored(name)
        if self.is_worth_a_scan(positions) or self.cache.holds((self.table, name)):
            whole = self.column(name)
            # All rows in order, as after a scan without predicates, need no copy.
            is_whole = len(positions) == self.count and np.array_equal(positions, np.arange(self.count))
            return whole if is_whole else whole.take(pa.array(positions))
        # Each row is fetched once: the same entity is often bound in many rows.
        distinct, inverse = np.unique(positions, return_inverse=True)
        found = self.tables.take_positions(self.table, distinct, [name])[name].combine_chunks()
        return found.take(pa.array(inverse))

    def find(self, predicates: Sequence[Predicate]) -> Positions:
        """Return the positions of the rows that satisfy all predicates, in order."""
        if not predicates:
            return np.arange(self.count)
        for at, one in enumerate(predicates):
            if isinstance(one, Compare) and one.column in (self.key, ID) and one.operator is Operator.EQ:
                return self._find_among(self._find_named(one), [*predicates[:at], *predicates[at + 1 :]])
        return self._search(predicates)

    def _find_named(self, predicate: Compare) -> Positions:
        """Find the row of a key: by binary search if the ids are cached, else by the index of the table."""
        if self.count > SMALL_TABLE and not self.cache.holds((self.table, ID)):
            return self._search([replace(predicate, column=ID)])
        return self.ids.find(str(predicate.value))

    def _find_among(self, positions: Positions, predicates: Sequence[Predicate]) -> Positions:
        for one in predicates if len(positions) else ():
            columns = {name: self.take(positions, name) for name in one.columns}
            positions = positions[satisfying(one, columns, len(positions))]
        return positions

    def _search(self, predicates: Sequence[Predicate]) -> Positions:
        wanted = predicates[0] if len(predicates) == 1 else AllOf(tuple(predicates))
        if self.count <= SMALL_TABLE or self._has_in_memory(predicates):
            columns = {name: self.column(name) for one in predicates for name in one.columns}
            return satisfying(wanted, columns, self.count)
        found = self.tables.scan(self.table, [], wanted, addresses=True)[ADDRESS].to_numpy()
        return self.positions_at(np.sort(found))

    def _has_in_memory(self, predicates: Sequence[Predicate]) -> bool:
        """Whether predicates are tried on columns in memory: they are there, or have been read for it often enough."""
        names = [name for one in predicates for name in one.columns]
        if all(self.cache.holds((self.table, self._stored(name))) for name in names):
            return True
        key = (self.table.path, *names, "@searches")
        # The first search may be the only one. An index answers the next ones as well, without the column.
        is_again = self.cache.spent(key) > 0 and not self._has_index(names[0])
        self.cache.spend(key, 1.0)
        return is_again

    def _has_index(self, name: str) -> bool:
        return self.cache.get(
            (self.table, name, "@indexed"),
            lambda: f"{name}_btree" in layout_of(self.tables, self.table).indices,
            lambda _: _NOTE,
        )

    def positions_at(self, addresses: np.ndarray[Any, Any]) -> Positions:
        return np.searchsorted(self.addresses, addresses.astype(self.addresses.dtype))

    def locate(self, ids: pa.Array) -> pa.Array:
        """Like `positions_of`, but without reading all ids of a large table for a few."""
        if not len(ids):
            return pa.nulls(0, pa.int64())
        is_cached = self.cache.holds((self.table, ID))
        # Comparing with cached ids hashes all of them, every time. An index finds a few among millions sooner.
        if self.is_worth_a_scan(ids) or (is_cached and (self.count <= _HASHED or len(ids) > _LOOKED_UP)):
            return self.positions_of(ids)
        if self.cache.holds((self.table, _ORDER)) and len(ids) <= _LOOKED_UP:
            return self.ids.positions(ids)
        found = self.tables.lookup(self.table, ID, ids.unique(), [ID], addresses=True)
        at = pa.compute.index_in(ids, value_set=found[ID].combine_chunks())
        return pa.array(self.positions_at(found[ADDRESS].to_numpy())).take(at)

    def positions_of(self, ids: pa.Array) -> pa.Array:
        """Return the position of each id; null where there is none."""
        kinds = ids.dictionary_encode()  # each distinct id is hashed against the table once, however many edges name it
        known = self.column(ID)
        return pa.compute.index_in(kinds.dictionary.cast(known.type), value_set=known).take(kinds.indices)

    @property
    def ids(self) -> SortedTexts:
        return self.cache.grown(
            (self.table.path, _ORDER),
            (self.table, _ORDER),
            self._grown_order,
            lambda: SortedTexts.of(self.column(ID)),
            lambda made: made.nbytes,
        )

    def _grown_order(self, other: tuple[TableVersion, str], old: SortedTexts) -> SortedTexts | None:
        grown = self.growth(other[0])
        if grown is None or len(grown.added) > _LOOKED_UP:
            return None
        return old.grown(self.column(ID), grown)

    def id_ranks(self, positions: Positions) -> Positions:
        """Return the ranks of some rows in the order of their ids."""
        if self.is_worth_a_scan(positions):
            return self._all_ranks[positions]
        ranks: Positions = pa.compute.rank(self.take(positions, ID), tiebreaker="dense").to_numpy().astype(np.int64)
        return ranks

    def distinct(self, positions: Positions) -> Positions:
        """Return the distinct positions, in order."""
        there = np.zeros(self.count, bool)  # cheaper than sorting the positions
        there[positions] = True
        return np.flatnonzero(there)

    def is_worth_a_scan(self, wanted: Sized) -> bool:
        """Whether reading a whole column is cheaper than selecting some rows."""
        return self.count <= SMALL_TABLE or len(wanted) * _FEW > self.count

    @property
    def _all_ranks(self) -> Positions:
        return self.cache.get((self.table, "@rank"), self._rank, lambda array: int(array.nbytes))

    def _rank(self) -> Positions:
        ranks = np.empty(self.count, np.int64)
        ranks[self.ids.order] = np.arange(self.count)
        return ranks

    @property
    def addresses(self) -> np.ndarray[Any, Any]:
        """Return the address of every position."""
        return self.cache.get((self.table, ADDRESS), self._read_addresses, lambda array: int(array.nbytes))

    def _read_addresses(self) -> np.ndarray[Any, Any]:
        parts = [np.empty(0, np.int64)]
        for one in fragments(self.tables, self.table):
            offsets = np.delete(np.arange(one.rows), deleted_offsets(self.tables, self.table, one))
            parts.append((one.number << OFFSET_BITS) + offsets)
        return np.sort(np.concatenate(parts)).astype(np.uint64)

    def _read(self, names: Sequence[str]) -> dict[str, pa.Array]:
        check_room(self.count, 2 * len(names))
        rows = self.tables.scan(self.table, names)
        self._expect(rows, self.count)
        return {name: _whole(rows[name]) for name in names}

    def _expect(self, rows: pa.Table, count: int) -> None:
        # Positions of one column index all others, so a column of another length would give wrong answers silently.
        if rows.num_rows != count:
            message = f"table '{self.table.key}' has {rows.num_rows} rows; the manifest says {count}"
            raise CorruptGraphError(message, path=self.table.path, hint="run `omnigraph doctor`")


def _whole(column: pa.ChunkedArray) -> pa.Array:
    if pa.types.is_string(column.type) and column.nbytes > _MOST_TEXT:
        column = column.cast(pa.large_string())
    found = column.combine_chunks()
    return found if isinstance(found, pa.Array) else pa.concat_arrays(found.chunks)


@dataclass(frozen=True)
class SortedTexts:
    """A column of texts and its sort order, for binary search."""

    texts: pa.Array
    order: Positions

    @classmethod
    def of(cls, texts: pa.Array) -> SortedTexts:
        return cls(texts, pa.compute.sort_indices(texts).to_numpy().astype(np.int64))

    def grown(self, texts: pa.Array, grown: Growth) -> SortedTexts:
        """Return the order of a version that has some rows more, and lacks some."""
        order = self.order if grown.is_plain else grown.moved[self.order]
        there = SortedTexts(texts, order if grown.is_plain else order[order >= 0])
        added = sorted(grown.added.tolist(), key=lambda at: bytes(texts[at].as_buffer()))
        places = [bisect_left(there, bytes(texts[at].as_buffer())) for at in added]
        return SortedTexts(texts, np.insert(there.order, places, added))

    @property
    def nbytes(self) -> int:
        return int(self.order.nbytes)

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, place: int) -> bytes:
        return bytes(self.texts[int(self.order[place])].as_buffer())

    def find(self, text: str) -> Positions:
        """Return the position of a text, if it is there."""
        wanted = text.encode()
        place = bisect_left(self, wanted)
        found = place < len(self) and self[place] == wanted
        return self.order[place : place + 1] if found else self.order[:0]

    def positions(self, texts: pa.Array) -> pa.Array:
        """Return the position of each of a few texts; null where there is none."""
        kinds = texts.dictionary_encode()
        found = [next(iter(self.find(text).tolist()), None) for text in kinds.dictionary.to_pylist()]
        return pa.array(found, pa.int64()).take(kinds.indices)


class GraphView:
    """One snapshot of the graph, used for a whole query."""

    def __init__(self, tables: TableStorage, snapshot: Snapshot, catalog: Catalog, cache: TableCache) -> None:
        self.tables = tables
        self.snapshot = snapshot
        self.catalog = catalog
        self.cache = cache
        self._views: dict[str, TableView] = {}

    def node(self, type_name: str) -> TableView:
        return self._view(self.catalog.nodes[type_name])

    def edge(self, type_name: str) -> TableView:
        return self._view(self.catalog.edges[type_name])

    def ends(self, edge_type: str) -> tuple[TableView, TableView, TableView]:
        """Return the table of an edge type, and those of its sources and targets."""
        edge = self.catalog.edges[edge_type]
        return self.edge(edge_type), self.node(edge.source), self.node(edge.target)

    def _view(self, declared: NodeType | EdgeType) -> TableView:
        key = table_key(declared)
        if key not in self._views:
            entry: Entry = self.snapshot.entries[key]
            self._views[key] = TableView(self.tables, entry.table, entry.row_count, self.cache, _text_key(declared))
        return self._views[key]


def _text_key(declared: NodeType | EdgeType) -> str | None:
    """Return the property whose value is the id itself: a key of one String."""
    key = declared.key if isinstance(declared, NodeType) else ()
    return key[0] if len(key) == 1 and declared.properties[key[0]].type.is_string else None
