"""Fill the `@embed` vectors of a graph: batch by batch, each in its own commit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.api.options import EmbedMode
from omnigraph.api.results import Commit, EmbedResult
from omnigraph.commit.plan import PublishPlan, TableAction, WriterKind, WriteTxn
from omnigraph.commit.publish import write
from omnigraph.commit.store import Store
from omnigraph.core.refs import MAIN
from omnigraph.embed.embedder import Embedding
from omnigraph.errors import EmbedderSettingError, EmbeddingTypeError
from omnigraph.lang.catalog import Catalog, NodeType, Property
from omnigraph.lang.source import did_you_mean
from omnigraph.manifest.publisher import Lineage
from omnigraph.storage.columns import arrow_type, table_key
from omnigraph.storage.predicates import Present
from omnigraph.storage.read import ID
from omnigraph.write.pending import column_types, to_store

ROWS_PER_COMMIT = 256


@dataclass(frozen=True, slots=True)
class EmbedRequest:
    """The vectors to create: mode, types (None: all), branch; the actor, and a callback for progress."""

    mode: EmbedMode
    types: Sequence[str] | None
    branch: str | None
    actor: str | None
    on_progress: Callable[[int], None]
    message: str | None = None


def embed_mode(name: str) -> EmbedMode:
    """Parse the mode of a request."""
    possible = (EmbedMode.FILL_MISSING, EmbedMode.REEMBED_ALL)
    if name not in possible:
        message = f"mode '{name}' is not supported for a graph"
        raise EmbedderSettingError(message, variable="mode", hint=f"use {' or '.join(possible)}")
    return EmbedMode(name)


def embed_graph(store: Store, request: EmbedRequest, embedding: Embedding) -> EmbedResult:
    """Embed the texts of a graph. Committed batches stay; after a failure, the next run does the rest."""
    accepted = store.schema_of(store.manifest.load(request.branch))
    assert accepted, "the graph was opened"
    embedded: dict[str, int] = {}
    commits: list[Commit] = []
    for node, property_ in _targets(accepted.catalog, request.types):
        label = f"{node.name}.{property_.name}"
        embedded[label] = 0
        for commit, rows in _Target(store, request, embedding, node, property_).fill():
            embedded[label] += rows
            commits.append(commit)
            request.on_progress(rows)
    model = embedding.embedder.model if commits else None
    return EmbedResult(request.branch or MAIN, request.mode, model, embedded, tuple(commits))


def _targets(catalog: Catalog, types: Sequence[str] | None) -> Iterator[tuple[NodeType, Property]]:
    for name in types or ():
        node = catalog.nodes.get(name)
        if node is None:
            hint = did_you_mean(name, catalog.nodes) or "name a node type of the schema"
            raise EmbeddingTypeError(f"node type '{name}' not found", type_name=name, hint=hint)
        if not any(property_.embed for property_ in node.properties.values()):
            message = f"'{name}' has no `@embed` property"
            raise EmbeddingTypeError(message, type_name=name, hint="add `@embed` to a vector property in the schema")
    for node in catalog.nodes.values():
        if types is None or node.name in types:
            yield from ((node, one) for one in node.properties.values() if one.embed)


class _Target:
    """One property whose vectors are created."""

    def __init__(
        self, store: Store, request: EmbedRequest, embedding: Embedding, node: NodeType, property_: Property
    ) -> None:
        assert property_.embed
        self.store = store
        self.request = request
        self.embedding = embedding
        self.node = node
        self.property = property_
        self.source = property_.embed.source
        self.key = table_key(node)

    def fill(self) -> Iterator[tuple[Commit, int]]:
        ids = self._wanted()
        for at in range(0, len(ids), ROWS_PER_COMMIT):
            # Read batch by batch and not with the ids: a run over many texts takes long, and they may change meanwhile.
            texts = self._texts(ids[at : at + ROWS_PER_COMMIT])
            if not texts.num_rows:
                continue
            # Outside of every gate: writers must not wait for a service on the network.
            vectors = self.embedding.documents(texts[self.source].to_pylist(), self.node, self.property)
            column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), type=arrow_type(self.property.type))
            done = _Batch(self, texts, column).write()
            if done:
                yield done

    def _wanted(self) -> pa.Array:
        """Return the ids of the nodes with a text and, unless all are embedded again, without a vector."""
        tables = self.store.tables
        table = self.store.manifest.load(self.request.branch).snapshot.entries[self.key].table
        # Ids only: the texts and vectors of a large table would not fit in memory.
        with_text = tables.scan(table, [ID], _present(self.node, self.source))[ID]
        if self.request.mode is EmbedMode.FILL_MISSING:
            filled = tables.scan(table, [ID], _present(self.node, self.property.name))[ID]
            with_text = with_text.filter(pc.invert(pc.is_in(with_text, filled.combine_chunks())))
        ids = with_text.combine_chunks()
        return ids.take(pc.sort_indices(ids))

    def _texts(self, ids: pa.Array) -> pa.Table:
        table = self.store.manifest.load(self.request.branch).snapshot.entries[self.key].table
        rows = self.store.tables.lookup(table, ID, ids, [ID, self.source])
        return rows.filter(pc.not_equal(pc.utf8_trim_whitespace(rows[self.source]), ""))


@dataclass(slots=True)
class _Batch:
    """Vectors to be written to the rows of their texts."""

    target: _Target
    texts: pa.Table
    vectors: pa.FixedSizeListArray

    def write(self) -> tuple[Commit, int] | None:
        lineage = Lineage.new(self.target.request.actor, message=self.target.request.message)
        published, rows = write(self.target.store, self.target.request.branch, lambda txn: self._prepare(txn, lineage))
        return (published.commit, rows) if published else None

    def _prepare(self, txn: WriteTxn, lineage: Lineage) -> tuple[PublishPlan | None, int]:
        target, tables = self.target, self.target.store.tables
        if txn.catalog.nodes.get(target.node.name) != target.node:  # the schema changed meanwhile
            return None, 0
        table = txn.entries[target.key].table
        rows = self._filled(tables.lookup(table, ID, self.texts[ID].combine_chunks(), list(column_types(target.node))))
        if not rows.num_rows:
            return None, 0
        staged = tables.stage_upsert(txn.writable_table(tables, target.key), to_store(target.node, rows))
        read_set = frozenset({target.key})
        plan = PublishPlan(txn, WriterKind.MUTATION, (TableAction(staged),), lineage=lineage, read_set=read_set)
        return plan, rows.num_rows

    def _filled(self, rows: pa.Table) -> pa.Table:
        """Set the vectors of the rows whose texts have not changed since they were embedded."""
        target, name = self.target, self.target.property.name
        at = pc.index_in(rows[ID], value_set=self.texts[ID].combine_chunks()).combine_chunks()
        # A vector of an old text must never be stored beside a new one.
        same = pc.equal(rows[target.source], self.texts[target.source].take(at))
        if target.request.mode is EmbedMode.FILL_MISSING:
            same = pc.and_(same, pc.is_null(rows[name]))
        rows = rows.set_column(rows.schema.get_field_index(name), name, self.vectors.take(at))
        return rows.filter(same)


def _present(node: NodeType, name: str) -> Present:
    return Present(name, node.properties[name].type.scalar)
