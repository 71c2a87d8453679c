"""Entity resolution: find nodes that are the same entity, and merge them with their edges in one commit.

Candidates are pairs of nodes with a score: nodes of equal key, of alike words, or of near vectors. Nodes that are
connected by pairs are one group. The first of a group, by its id, is kept: it takes from the others what it lacks, and
their edges. Edges that would then be the same, or lead from a node to itself, go.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.api.results import Candidate, ResolvedGroup, ResolveResult
from omnigraph.commit.plan import PublishPlan, TableAction, WriterKind, WriteTxn
from omnigraph.commit.publish import write
from omnigraph.commit.store import Store
from omnigraph.core.refs import MAIN
from omnigraph.errors import ConstraintError, OptionError, ResourceLimitError
from omnigraph.lang.catalog import EdgeType, NodeType
from omnigraph.lang.source import did_you_mean
from omnigraph.manifest.publisher import Lineage
from omnigraph.storage.columns import table_key
from omnigraph.storage.read import ADDRESS, DST, ID, SRC
from omnigraph.storage.stage import Staged
from omnigraph.write.pending import column_types, image_schema, to_store, without_record
from omnigraph.write.validate import CommittedRows, TableChange, violations

RESOLVED = "resolved"  # among the details of a commit: the type, and which nodes became which
_MOST_COMMON = 200  # a word that more nodes have brings no two of them together
_MOST_COMPARED = 20_000  # vectors of one block: each is compared with each
_MOST_PAIRS = 5_000_000
_AT_ONCE = 1024
_SHOWN = 1000
_WORD = r"[^\pL\pN]+"
Numbers = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class ResolveSpec:
    """What to compare: properties that must be equal, or the words or vectors of one; or pairs that are known."""

    type_name: str
    key: Sequence[str]
    words: str | None
    vector: str | None
    pairs: Sequence[Sequence[str]] | None
    block: str | None
    threshold: float
    branch: str | None
    actor: str | None
    message: str | None
    dry_run: bool
    operation_id: str | None = None


@dataclass(frozen=True, slots=True)
class Pairs:
    """Pairs of rows by their numbers, with their scores."""

    left: Numbers
    right: Numbers
    scores: Numbers

    def where(self, keep: Numbers) -> Pairs:
        return Pairs(self.left[keep], self.right[keep], self.scores[keep])


def resolve_entities(store: Store, asked: ResolveSpec) -> ResolveResult:
    """Find the groups of a type, and merge each unless it is a dry run."""
    lineage = Lineage.new(asked.actor, operation_id=asked.operation_id, message=asked.message)

    def prepare(txn: WriteTxn) -> tuple[PublishPlan | None, ResolveResult]:
        resolution = _Resolution(store, txn, asked)
        plan = None if asked.dry_run or not resolution.changes else resolution.plan(lineage)
        return plan, resolution.result()

    published, result = write(store, asked.branch, prepare)
    return replace(result, commit=published.commit if published else None)


class _Resolution:
    """One attempt, on one state of the graph."""

    def __init__(self, store: Store, txn: WriteTxn, asked: ResolveSpec) -> None:
        self.tables, self.txn, self.asked = store.tables, txn, asked
        self.node = _node_type(txn, asked)
        names = {*asked.key, *filter(None, (asked.words, asked.vector, asked.block))}
        self.rows = self.tables.scan(txn.entries[table_key(self.node)].table, [ID, *sorted(names)]).sort_by(ID)
        self.pairs = self._blocked(self._candidates())
        self.groups = _components(self.rows.num_rows, self.pairs)
        self.moved = self.dropped = 0
        self.addresses: dict[str, Numbers] = {}
        self.committed = CommittedRows(store.tables, txn)
        self.changes = self._changes()

    def result(self) -> ResolveResult:
        ids = self.rows[ID].combine_chunks()
        best = np.lexsort((self.pairs.right, self.pairs.left, -self.pairs.scores))[:_SHOWN]
        left, right = (ids.take(side[best]).to_pylist() for side in (self.pairs.left, self.pairs.right))
        candidates = tuple(map(Candidate, left, right, self.pairs.scores[best].round(6).tolist()))
        groups = tuple(ResolvedGroup(kept, tuple(others)) for kept, others in self._named_groups())
        count = len(self.pairs.left)
        return ResolveResult(
            self.node.name, self.asked.branch or MAIN, candidates, count, groups, self.moved, self.dropped, None
        )

    def _named_groups(self) -> Iterator[tuple[str, list[str]]]:
        ids = self.rows[ID].combine_chunks()
        merged = np.flatnonzero(self.groups != np.arange(len(self.groups)))
        order = merged[np.argsort(self.groups[merged], kind="stable")]
        starts = np.flatnonzero(np.diff(self.groups[order], prepend=-1))
        for members in np.split(order, starts[1:]) if len(order) else ():
            yield ids[int(self.groups[members[0]])].as_py(), ids.take(members).to_pylist()

    # Candidates ------------------------------------------------------------------------------------

    def _candidates(self) -> Pairs:
        asked = self.asked
        if asked.pairs is not None:
            return self._given(asked.pairs)
        if asked.key:
            return _equal(pa.table({name: _plain_text(self.rows[name]) for name in asked.key}))
        if asked.words is not None:
            found = _alike(_plain_text(self.rows[asked.words]))
        else:
            found = self._near(str(asked.vector))
        return found.where(found.scores >= asked.threshold)

    def _given(self, pairs: Sequence[Sequence[str]]) -> Pairs:
        ids = self.rows[ID].combine_chunks()
        sides = [pa.array([str(pair[at]) for pair in pairs], pa.string()) for at in (0, 1)]
        places = [pc.index_in(side, value_set=ids) for side in sides]
        for side, place in zip(sides, places, strict=True):
            if place.null_count:
                missing = side.filter(place.is_null())[0].as_py()
                raise OptionError(
                    f"there is no {self.node.name} '{missing}'", option="pairs", hint="look again: --dry-run"
                )
        left, right = (place.to_numpy(zero_copy_only=False).astype(np.int64) for place in places)
        return _ordered(left, right, np.ones(len(left)))

    def _near(self, name: str) -> Pairs:
        """Compare the vectors of each block, each with each, by the cosine."""
        column = self.rows[name].combine_chunks()
        there = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
        vectors = (
            np.stack(column.take(pa.array(there)).to_numpy(zero_copy_only=False)) if len(there) else np.empty((0, 1))
        )
        vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        parts = []
        for members in self._blocks(there):
            if len(members) > _MOST_COMPARED:
                message = f"{len(members):,} vectors of {self.node.name} would be compared, each with each"
                hint = "compare fewer: block by a property that the same entities share"
                raise ResourceLimitError(
                    message, resource="vectors", limit=_MOST_COMPARED, actual=len(members), hint=hint
                )
            parts += list(_near_pairs(there[members], vectors[members], self.asked.threshold))
        return _joined(parts)

    def _blocks(self, there: Numbers) -> list[Numbers]:
        if self.asked.block is None:
            return [np.arange(len(there))]
        codes = self._block_codes()[there]
        order = np.argsort(codes, kind="stable")
        order = order[codes[order] >= 0]
        return np.split(order, np.flatnonzero(np.diff(codes[order])) + 1)

    def _block_codes(self) -> Numbers:
        assert self.asked.block is not None
        encoded = self.rows[self.asked.block].combine_chunks().dictionary_encode()
        return np.asarray(pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False))

    def _blocked(self, pairs: Pairs) -> Pairs:
        if self.asked.block is None or self.asked.pairs is not None:
            return pairs
        codes = self._block_codes()
        return pairs.where((codes[pairs.left] == codes[pairs.right]) & (codes[pairs.left] >= 0))

    # The merge -------------------------------------------------------------------------------------

    def _changes(self) -> dict[str, TableChange]:
        """Return the nodes and edges as they will be, or raise ConstraintError if they break a rule."""
        gone = np.flatnonzero(self.groups != np.arange(len(self.groups)))
        if not len(gone):
            return {}
        ids = self.rows[ID].combine_chunks()
        merged, kept = ids.take(pa.array(gone)), ids.take(pa.array(self.groups[gone]))
        changes = {table_key(self.node): self._merged_nodes(merged, kept)}
        for edge in self.txn.catalog.incident_edges(self.node.name):
            if found := self._moved_edges(edge, merged, kept):
                changes[table_key(edge)] = found
        first = next(violations(self.txn.catalog, self.committed, changes), None)
        if first is not None:
            raise ConstraintError(first.message, violations=(first,), place=None, hint=first.hint)
        return changes

    def plan(self, lineage: Lineage) -> PublishPlan:
        """Stage the changes."""
        named = dict(list(self._named_groups())[:_SHOWN])
        details = {**(lineage.details or {}), RESOLVED: {"type": self.node.name, "merged": named}}
        actions = tuple(TableAction(self._stage(key, change)) for key, change in self.changes.items())
        # All that was compared: a node or an edge that another writer changes meanwhile could belong to a group.
        edges = self.txn.catalog.incident_edges(self.node.name)
        read = {table_key(self.node), *map(table_key, edges), *self.committed.read_set}
        done = replace(lineage, details=details)
        return PublishPlan(self.txn, WriterKind.MUTATION, actions, lineage=done, read_set=frozenset(read))

    def _merged_nodes(self, merged: pa.Array, kept: pa.Array) -> TableChange:
        table = self.txn.entries[table_key(self.node)].table
        columns = list(column_types(self.node))
        wanted = pa.concat_arrays([merged, kept.unique()])
        rows = self.tables.lookup(table, ID, wanted, columns, addresses=True).sort_by(ID)
        at = pc.index_in(rows[ID], value_set=merged).combine_chunks()
        owner = pc.if_else(at.is_valid(), kept.take(at), rows[ID].combine_chunks())
        filled = _first_values(rows.select(columns), owner, self.node.key or ())
        removed = rows.filter(at.is_valid()).select([ID])
        self.addresses[table_key(self.node)] = rows[ADDRESS].to_numpy()
        return TableChange(self.node, _with_records(self.node, filled), removed)

    def _moved_edges(self, edge: EdgeType, merged: pa.Array, kept: pa.Array) -> TableChange | None:
        """Return the edges of merged nodes as they will be, and those that go."""
        table = self.txn.entries[table_key(edge)].table
        columns = list(column_types(edge))
        ends = [name for name, type_ in ((SRC, edge.source), (DST, edge.target)) if type_ == self.node.name]
        wanted = pa.concat_arrays([merged, kept.unique()])
        found = pa.concat_tables([self.tables.lookup(table, end, wanted, columns, addresses=True) for end in ends])
        _, first = np.unique(found[ADDRESS].to_numpy(), return_index=True)
        found = found.take(np.sort(first)).sort_by(ID)
        now = {name: _renamed(found[name].combine_chunks(), merged, kept) for name in ends}
        rows = found
        for name, column in now.items():
            rows = rows.set_column(rows.schema.get_field_index(name), name, column)
        changed = np.zeros(rows.num_rows, bool)
        for name in ends:
            changed |= pc.not_equal(rows[name], found[name]).to_numpy()
        if not changed.any():
            return None
        loops = pc.and_(pc.equal(rows[SRC], rows[DST]), pc.not_equal(found[SRC], found[DST])).to_numpy()
        goes = changed & (loops | _repeats(rows.drop_columns([ID, ADDRESS]), changed))
        stays = changed & ~goes
        self.moved += int(stays.sum())
        self.dropped += int(goes.sum())
        brought = _with_records(edge, rows.filter(pa.array(stays)).select(columns))
        removed = found.filter(pa.array(goes)).select([ID, SRC])
        self.addresses[table_key(edge)] = rows[ADDRESS].to_numpy()[changed]
        return TableChange(edge, brought, removed)

    def _stage(self, key: str, change: TableChange) -> Staged:
        addresses, table = self.addresses[key], self.txn.writable_table(self.tables, key)
        if not change.rows.num_rows:
            return self.tables.stage_delete_rows(table, addresses, f"omnigraph: {len(addresses)} rows")
        written = self.tables.write_rows(table, to_store(change.declared, change.rows))
        return self.tables.stage_written(table, written, addresses)


def _node_type(txn: WriteTxn, asked: ResolveSpec) -> NodeType:
    """Return the type that is asked for, or raise OptionError for an option that does not fit it."""
    node = txn.catalog.nodes.get(asked.type_name)
    if node is None:
        hint = did_you_mean(asked.type_name, txn.catalog.nodes) or "name a node type of the schema"
        raise OptionError(f"unknown node type '{asked.type_name}'", option="type_name", hint=hint)
    ways = [bool(asked.key), asked.words is not None, asked.vector is not None, asked.pairs is not None]
    if sum(ways) != 1:
        message = "nodes are compared in one way, and none or several are given"
        raise OptionError(message, option="key", hint="give one of key, words, vector and pairs")
    if not 0 < asked.threshold <= 1:
        raise OptionError(f"the threshold is {asked.threshold}", option="threshold", hint="give more than 0, up to 1")
    if any(len(pair) != 2 for pair in asked.pairs or ()):  # noqa: PLR2004 - a pair
        raise OptionError("a pair has two ids", option="pairs", hint='write [["a", "b"]]')
    compared = {"words": asked.words, "vector": asked.vector, "block": asked.block}
    named = [*(("key", name) for name in asked.key), *((way, name) for way, name in compared.items() if name)]
    for option, name in named:
        _check_comparable(node, option, name)
    return node


def _check_comparable(node: NodeType, option: str, name: str) -> None:
    found = node.properties.get(name)
    if found is None:
        hint = did_you_mean(name, node.properties)
        raise OptionError(f"{node.name} has no property '{name}'", option=option, hint=hint)
    if found.type.is_vector != (option == "vector") or found.type.is_list or found.type.is_blob:
        raise OptionError(f"{node.name}.{name} is {found.type}", option=option, hint="choose another property")


# Pairs ---------------------------------------------------------------------------------------------


def _plain_text(column: pa.ChunkedArray) -> pa.Array:
    """Return values as texts without differences of case and blanks."""
    texts = column.combine_chunks()
    texts = texts if pa.types.is_string(texts.type) else texts.cast(pa.string())
    return pc.utf8_trim_whitespace(pc.replace_substring_regex(pc.utf8_lower(texts), r"\s+", " "))


def _equal(values: pa.Table) -> Pairs:
    """Pair rows that are equal: each with the first of its group. A null or empty value equals none."""
    keep = np.ones(values.num_rows, bool)
    codes = np.zeros(values.num_rows, np.int64)
    for column in values.columns:
        encoded = column.combine_chunks().dictionary_encode()
        keep &= pc.fill_null(pc.not_equal(column, ""), fill_value=False).to_numpy()
        number = pc.fill_null(encoded.indices, 0).to_numpy(zero_copy_only=False).astype(np.int64)
        _, codes = np.unique(codes * (len(encoded.dictionary) + 1) + number, return_inverse=True)
    rows = np.flatnonzero(keep)
    order = rows[np.argsort(codes[rows], kind="stable")]
    same = np.flatnonzero(np.diff(codes[order]) == 0)
    return _ordered(order[same], order[same + 1], np.ones(len(same)))


def _alike(texts: pa.Array) -> Pairs:
    """Pair rows that share a word which is not too common, by the share of their words that both have."""
    words = _Words.of(texts)
    left, right = _sharing(words.rows, words.words)
    shared = words.shared(left, right)
    return _ordered(left, right, shared / np.maximum(words.sizes[left] + words.sizes[right] - shared, 1))


@dataclass(frozen=True, slots=True)
class _Words:
    """The different words of rows, by number, sorted by row; `keys` are both in one number."""

    rows: Numbers
    words: Numbers
    keys: Numbers
    sizes: Numbers
    count: int

    @classmethod
    def of(cls, texts: pa.Array) -> _Words:
        split = pc.split_pattern_regex(texts, _WORD)
        rows = pc.list_parent_indices(split).to_numpy(zero_copy_only=False).astype(np.int64)
        encoded = split.flatten().dictionary_encode()
        words = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        empty = np.flatnonzero(pc.equal(encoded.dictionary, "").to_numpy(zero_copy_only=False))
        real, count = ~np.isin(words, empty), len(encoded.dictionary) + 1
        keys = np.unique(rows[real] * count + words[real])
        return cls(keys // count, keys % count, keys, np.bincount(keys // count, minlength=len(texts)), count)

    def shared(self, left: Numbers, right: Numbers) -> Numbers:
        """Count the words that both rows of each pair have."""
        starts = np.searchsorted(self.rows, np.arange(len(self.sizes)))
        repeats = self.sizes[left]
        pair = np.repeat(np.arange(len(left)), repeats)
        within = np.arange(len(pair)) - np.repeat(np.cumsum(repeats) - repeats, repeats)
        wanted = right[pair] * self.count + self.words[starts[left[pair]] + within]
        return np.bincount(pair[np.isin(wanted, self.keys)], minlength=len(left))


def _sharing(rows: Numbers, words: Numbers) -> tuple[Numbers, Numbers]:
    """Return the pairs of rows that share a word, each once."""
    often = np.bincount(words)
    keep = often[words] <= _MOST_COMMON if len(words) else np.zeros(0, bool)
    order = np.argsort(words[keep], kind="stable")
    rows, words = rows[keep][order], words[keep][order]
    found, total = [], 0
    # Of a word that n rows have, neighbours at each distance up to n - 1.
    for distance in range(1, _MOST_COMMON):
        same = np.flatnonzero(words[distance:] == words[:-distance])
        if not len(same):
            break
        found.append(rows[same] * (rows.max() + 1) + rows[same + distance])
        total += len(same)
        if total > _MOST_PAIRS:
            message = f"more than {_MOST_PAIRS:,} pairs of nodes share a word"
            hint = "compare fewer: by a property of rarer words, or by a key"
            raise ResourceLimitError(message, resource="pairs", limit=_MOST_PAIRS, actual=total, hint=hint)
    if not found:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    keys = np.unique(np.concatenate(found))
    return keys // (rows.max() + 1), keys % (rows.max() + 1)


def _near_pairs(rows: Numbers, vectors: Numbers, threshold: float) -> Iterator[Pairs]:
    for start in range(0, len(rows), _AT_ONCE):
        scores = vectors[start : start + _AT_ONCE] @ vectors.T
        left, right = np.nonzero(scores >= threshold)
        later = right > left + start
        left, right = left[later], right[later]
        yield _ordered(rows[left + start], rows[right], np.minimum(scores[left, right], 1.0))


def _ordered(left: Numbers, right: Numbers, scores: Numbers) -> Pairs:
    different = left != right
    left, right, scores = left[different], right[different], scores[different]
    return Pairs(np.minimum(left, right), np.maximum(left, right), scores)


def _joined(parts: Sequence[Pairs]) -> Pairs:
    none = Pairs(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))
    found = [none, *parts]
    return Pairs(*(np.concatenate([getattr(one, name) for one in found]) for name in ("left", "right", "scores")))


def _components(count: int, pairs: Pairs) -> Numbers:
    """Return for each row the first row of its group."""
    first = np.arange(count)
    while True:
        lowest = np.minimum(first[pairs.left], first[pairs.right])
        before = first.copy()
        for side in (pairs.left, pairs.right):
            np.minimum.at(first, before[side], lowest)
            np.minimum.at(first, side, lowest)
        first = first[first]
        if np.array_equal(first, before):
            return first


# Rows ----------------------------------------------------------------------------------------------


def _first_values(rows: pa.Table, owner: pa.Array, keys: Sequence[str]) -> pa.Table:
    """Return one row for each owner: its own values, and where they are null the first of the others."""
    numbers = owner.dictionary_encode().indices.to_numpy(zero_copy_only=False)
    own = pc.equal(rows[ID], owner).to_numpy()
    # The row that is kept comes first, then the others by their ids.
    order = np.lexsort((np.arange(len(own)), ~own, numbers))
    rows, numbers, own = rows.take(order), numbers[order], own[order]
    starts = np.flatnonzero(own)
    columns = {}
    for name in rows.column_names:
        column = rows[name].combine_chunks()
        if name == ID or name in keys:
            columns[name] = column.take(pa.array(starts))
            continue
        there = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
        known, at = np.unique(numbers[there], return_index=True)
        place = np.full(len(starts), -1)
        place[np.searchsorted(numbers[starts], known)] = there[at]
        columns[name] = column.take(pa.array(place, mask=place < 0))
    return pa.table(columns)


def _renamed(column: pa.Array, merged: pa.Array, kept: pa.Array) -> pa.Array:
    at = pc.index_in(column, value_set=merged)
    return pc.if_else(at.is_valid(), kept.take(at), column)


def _repeats(rows: pa.Table, changed: Numbers) -> Numbers:
    """Mark changed rows that equal another one: an unchanged row, else the first of them. Lists are not compared."""
    if any(pa.types.is_nested(field.type) or pa.types.is_large_binary(field.type) for field in rows.schema):
        return np.zeros(rows.num_rows, bool)
    codes = np.zeros(rows.num_rows, np.int64)
    for column in rows.columns:
        encoded = column.combine_chunks().dictionary_encode(null_encoding="encode")
        number = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        _, codes = np.unique(codes * (len(encoded.dictionary) + 1) + number, return_inverse=True)
    order = np.lexsort((np.arange(len(codes)), changed, codes))
    repeated = np.zeros(len(codes), bool)
    repeated[order[1:]] = codes[order[1:]] == codes[order[:-1]]
    return repeated & changed


def _with_records(declared: NodeType | EdgeType, rows: pa.Table) -> pa.Table:
    schema = image_schema(declared)
    return without_record(rows).select(schema.names).cast(schema)
