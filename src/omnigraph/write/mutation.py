"""Run a mutation: its statements against the graph and each other, then one plan for all of them."""

from __future__ import annotations

import datetime as dt
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from omnigraph.api.results import MutationResult, TableVersion
from omnigraph.commit.checks import check_head_commit
from omnigraph.commit.plan import PublishPlan, TableAction, WriterKind, WriteTxn
from omnigraph.commit.publish import write
from omnigraph.commit.store import Store
from omnigraph.core.refs import MAIN
from omnigraph.core.values import ConversionError, Scalar, scalar_value
from omnigraph.embed.embedder import Embedding
from omnigraph.errors import (
    ConstraintError,
    ExpressionError,
    QueryKindError,
    ResourceLimitError,
    ValueRejectedError,
    Violation,
)
from omnigraph.lang import ir
from omnigraph.lang.catalog import Catalog, EdgeType, NodeType, Property
from omnigraph.lang.compiler import CompiledQuery, compile_query
from omnigraph.lang.identity import new_id, node_id
from omnigraph.lang.ir import PlainValue
from omnigraph.lang.params import decode_parameters
from omnigraph.lang.source import Source
from omnigraph.lang.types import Type
from omnigraph.manifest.publisher import Lineage
from omnigraph.storage.columns import declared_of, table_key
from omnigraph.storage.expressions import TableRows, constant_value, evaluate, holds, pushed
from omnigraph.storage.functions import Undefined
from omnigraph.storage.predicates import AllOf, Compare, Predicate
from omnigraph.storage.read import ADDRESS, DST, ID, SRC
from omnigraph.storage.stage import Staged
from omnigraph.write.pending import RECORD, Pending, PendingMode, column_types, scan_with_pending, to_store
from omnigraph.write.validate import CommittedRows, TableChange, inserted, violations

EVERYTHING = AllOf(())
MOST_ENTITIES = 8192  # inserts of one type in one query
MOST_BYTES = 32 * 1024 * 1024  # size of the inserted rows of one type


@dataclass(frozen=True, slots=True)
class Mutation:
    """One request to change the graph by a query."""

    source: Source
    name: str | None
    parameters: Mapping[str, Any] | None
    branch: str | None
    actor: str | None
    if_commit: str | None
    operation_id: str | None = None
    message: str | None = None


def mutate(store: Store, mutation: Mutation, embedding: Embedding) -> MutationResult:
    """Run a mutation: all of it happens, in one commit, or none of it does."""
    lineage = Lineage.new(mutation.actor, operation_id=mutation.operation_id, message=mutation.message)
    # Belongs to the request, not to an attempt: `now()` is the same if the mutation is prepared again.
    time = dt.datetime.fromtimestamp(lineage.created_at // 1000 / 1000, dt.UTC)
    vectors = OmittedVectors(embedding)

    def prepare(txn: WriteTxn) -> tuple[PublishPlan | None, _Execution]:
        if mutation.if_commit is not None:
            check_head_commit(mutation.if_commit, txn.base)
        execution = _Execution(store, txn, mutation, time, vectors)
        return execution.plan(lineage), execution

    published, done = write(store, mutation.branch, prepare)
    commit = published.commit if published else None
    return MutationResult(done.query.name, mutation.branch or MAIN, done.nodes, done.edges, mutation.actor, commit)


class _Execution:
    """One attempt at a mutation, on one state of the graph."""

    def __init__(
        self, store: Store, txn: WriteTxn, mutation: Mutation, time: dt.datetime, vectors: OmittedVectors
    ) -> None:
        self.tables = store.tables
        self.txn = txn
        self.catalog = txn.catalog
        self.mutation = mutation
        self.query = _compiled(mutation, txn)
        self.request = _RequestValues(decode_parameters(self.query.parameters, mutation.parameters), time)
        self.vectors = vectors
        self.nodes = self.edges = 0
        self.pending: dict[str, Pending] = {}
        self.removals: dict[str, _Removal] = {}
        self.read_set: set[str] = set()
        self.must_be_unchanged: set[str] = set()

    def plan(self, lineage: Lineage) -> PublishPlan | None:
        """Run the statements, validate their outcome and stage it; None if nothing changes."""
        assert isinstance(self.query.plan, ir.MutationPlan)
        statements = self.query.plan.statements
        _check_count(statements)
        self.vectors.prepare(self.catalog, statements, self.request)
        for number, statement in enumerate(statements):
            try:
                self._run(number, statement)
            except _Rejected as problem:
                raise problem.at(statement.type_name, self.mutation.source.place(statement.span)) from None
            except _Existing as problem:
                found = problem.violation
                place = self.mutation.source.place(statement.span)
                raise ConstraintError(found.message, violations=(found,), place=place, hint=found.hint) from None
            except Undefined as problem:
                raise ExpressionError(problem.message, place=self.mutation.source.place(problem.span)) from None
        changes = self._changes()
        self._validate(changes)
        staged = [self._stage(key, change) for key, change in changes.items()]
        if not staged:
            return None
        brought = {key: (change.declared, change.rows) for key, change in changes.items()}
        return PublishPlan(
            self.txn,
            WriterKind.MUTATION,
            tuple(TableAction(one) for one in staged),
            lineage=lineage,
            read_set=frozenset(self.read_set),
            must_be_unchanged=frozenset(self.must_be_unchanged),
            if_head=self.mutation.if_commit,
            inserted=inserted(brought, staged),
        )

    # Statements

    def _run(self, number: int, statement: ir.Statement) -> None:
        match statement:
            case ir.InsertNode():
                self._insert_node(number, statement)
            case ir.InsertEdge():
                self._insert_edge(number, statement)
            case ir.UpsertNode():
                self._upsert(number, statement)
            case ir.UpdateNodes():
                self.nodes += self._update(self.catalog.nodes[statement.type_name], number, statement)
            case ir.UpdateEdges():
                self.edges += self._update(self.catalog.edges[statement.type_name], number, statement)
            case ir.DeleteNodes():
                self._delete_nodes(statement)
            case ir.DeleteEdges():
                self._delete_edges(statement)

    def _insert_node(self, number: int, statement: ir.InsertNode) -> None:
        node = self.catalog.nodes[statement.type_name]
        row = self._row(node, statement.values)
        for property_, vector in self.vectors.of(node, row):
            if not vector:
                raise _Rejected(property_.name, _without_text(property_))
            row[property_.name] = vector
        if statement.new:
            self._must_be_new(node, node_id(node, row), number)
        if node.key:
            self._pending(node).insert({ID: node_id(node, row), **row}, number, PendingMode.MERGE)
        else:
            self._pending(node).insert({ID: new_id(), **row}, number, PendingMode.APPEND)
        self.nodes += 1

    def _insert_edge(self, number: int, statement: ir.InsertEdge) -> None:
        edge = self.catalog.edges[statement.type_name]
        ends = {SRC: self.request.value(statement.source), DST: self.request.value(statement.target)}
        for written, end in zip(("from", "to"), ends.values(), strict=True):
            if end is None:
                missing = ConversionError("it is required, and the value is null", "give the id of a node")
                raise _Rejected(written, missing)
        self._pending(edge).insert(
            {ID: new_id(), **ends, **self._row(edge, statement.values)}, number, PendingMode.APPEND
        )
        self.edges += 1

    def _upsert(self, number: int, statement: ir.UpsertNode) -> None:
        node = self.catalog.nodes[statement.type_name]
        # Whether the node is there decides what happens, so nothing may come between.
        self.must_be_unchanged.add(table_key(node))
        row = self._row(node, statement.values)
        given = Pending(node)
        given.insert({ID: node_id(node, row), **row}, number, PendingMode.MERGE)
        image = given.image()
        found = self._with_id(node, image[ID][0].as_py(), list(column_types(node)))
        self.nodes += 1
        if found.num_rows and {name for name, _ in statement.values} == {*node.key}:
            return
        changed = _with_values(found, image, [name for name, _ in statement.values]) if found.num_rows else image
        self._pending(node).extend(changed, PendingMode.MERGE)

    def _with_id(self, node: NodeType, entity_id: str, columns: list[str]) -> pa.Table:
        wanted = Compare(ID, Scalar.STRING, ir.Operator.EQ, entity_id)
        return scan_with_pending(self.tables, self._table(node), self._pending(node).image(), columns, wanted)

    def _must_be_new(self, node: NodeType, entity_id: str, number: int) -> None:
        self.must_be_unchanged.add(table_key(node))
        if self._with_id(node, entity_id, [ID]).num_rows:
            message = f"{node.name} '{entity_id}' is already there"
            hint = "`insert` without `new` replaces it, `upsert` changes what it names"
            raise _Existing(Violation("key", node.name, entity_id, node.key, message, number, hint=hint, kind="node"))

    def _update(self, declared: NodeType | EdgeType, number: int, statement: ir.UpdateNodes | ir.UpdateEdges) -> int:
        """Change the entities that a statement selects; return how many."""
        pending = self._pending(declared)
        # The rows to change are chosen from this content: if it changes, only the caller can say whether they still
        # are.
        self.must_be_unchanged.add(table_key(declared))
        constant = tuple((name, value) for name, value in statement.values if not value.variables)
        assigned = Pending(declared)
        # Even if nothing matches: a value that does not fit is refused.
        assigned.insert(self._row(declared, constant), number, PendingMode.MERGE)
        columns, predicate = list(column_types(declared)), self._predicate(statement)
        found = scan_with_pending(self.tables, self._table(declared), pending.image(), columns, predicate)
        rows = found.filter(self._mask(statement.where, found))
        if not rows.num_rows:
            return 0
        changed = _with_values(rows, assigned.image(), [name for name, _ in constant])
        for name, value in statement.values:
            if value.variables:
                column = self._computed(declared.properties[name], value, rows)
                changed = changed.set_column(changed.schema.get_field_index(name), name, column)
        pending.extend(changed, PendingMode.MERGE)
        return int(rows.num_rows)

    def _delete_nodes(self, statement: ir.DeleteNodes) -> None:
        node = self.catalog.nodes[statement.type_name]
        gone = self._remove(node, self._scan_to_remove(node, statement))
        self.nodes += gone.num_rows
        ids = gone[ID].combine_chunks()
        for edge in self.catalog.incident_edges(node.name) if len(ids) else ():
            # An edge that another writer adds to a deleted node would dangle: this table must not move either.
            self.read_set.add(table_key(edge))
            ends = [name for name, end in ((SRC, edge.source), (DST, edge.target)) if end == node.name]
            found = [self.tables.lookup(self._table(edge), end, ids, [ID, SRC], addresses=True) for end in ends]
            self.edges += self._remove(edge, pa.concat_tables(found)).num_rows

    def _delete_edges(self, statement: ir.DeleteEdges) -> None:
        edge = self.catalog.edges[statement.type_name]
        self.edges += self._remove(edge, self._scan_to_remove(edge, statement)).num_rows

    # Reading

    def _scan_to_remove(self, declared: NodeType | EdgeType, statement: ir.DeleteNodes | ir.DeleteEdges) -> pa.Table:
        self.must_be_unchanged.add(table_key(declared))
        columns = [ID, SRC] if isinstance(declared, EdgeType) else [ID]
        predicate = self._predicate(statement)
        # What storage cannot test is tested here, on the columns that it needs.
        needed = [] if predicate != EVERYTHING else sorted(_columns_of(statement.where) - {*columns})
        found = self.tables.scan(self._table(declared), [*columns, *needed], predicate, addresses=True)
        return found.filter(self._mask(statement.where, found)).drop_columns(needed) if needed else found

    def _remove(self, declared: NodeType | EdgeType, rows: pa.Table) -> pa.Table:
        """Mark rows as removed; return those that were not marked before, each once."""
        return self.removals.setdefault(table_key(declared), _Removal()).add(rows)

    def _predicate(self, statement: ir.UpdateNodes | ir.UpdateEdges | ir.DeleteNodes | ir.DeleteEdges) -> Predicate:
        """Return the condition of a statement as storage tests it; everything, if storage cannot."""
        return pushed(statement.where, self.request.value) or EVERYTHING

    def _mask(self, where: ir.Expr, rows: pa.Table) -> pa.Array:
        return pa.array(holds(where, TableRows(rows), self.request.value))

    def _computed(self, property_: Property, value: ir.Expr, rows: pa.Table) -> pa.Array:
        """Return the new values of a property, computed from the old rows."""
        found = evaluate(value, TableRows(rows), self.request.value)
        if not property_.type.nullable and found.null_count:
            raise _Rejected(property_.name, ConversionError("it is required, and the value is null", "use coalesce"))
        try:
            return found.cast(rows.schema.field(property_.name).type)
        except pa.ArrowInvalid as problem:
            raise _Rejected(property_.name, ConversionError(str(problem))) from None

    def _table(self, declared: NodeType | EdgeType) -> TableVersion:
        return self.txn.entries[table_key(declared)].table

    def _pending(self, declared: NodeType | EdgeType) -> Pending:
        key = table_key(declared)
        if key not in self.pending:
            self.pending[key] = Pending(declared)
        return self.pending[key]

    def _row(self, declared: NodeType | EdgeType, values: tuple[tuple[str, ir.Expr], ...]) -> dict[str, Any]:
        row: dict[str, Any] = {}
        for name, value in values:
            try:
                row[name] = self.request.stored(value, declared.properties[name].type)
            except ConversionError as problem:
                raise _Rejected(name, problem) from None
        return row

    # Outcome

    def _changes(self) -> dict[str, TableChange]:
        changes = {}
        for key, pending in self.pending.items():
            rows = pending.image()
            if pending.inserted_bytes > MOST_BYTES:
                what = f"bytes of {pending.declared.name} in one query"
                raise _too_much(what, MOST_BYTES, pending.inserted_bytes)
            if rows.num_rows:
                none = rows.slice(0, 0)
                changes[key] = TableChange(pending.declared, rows, none, fresh=pending.mode is PendingMode.APPEND)
        for key, removal in self.removals.items():
            if removal.rows.num_rows:
                declared = declared_of(self.catalog, key)
                changes[key] = TableChange(declared, Pending(declared).image(), removal.rows, detached=True)
        return dict(sorted(changes.items()))

    def _validate(self, changes: Mapping[str, TableChange]) -> None:
        committed = CommittedRows(self.tables, self.txn)
        first = next(violations(self.catalog, committed, changes), None)
        self.read_set |= committed.read_set
        if first is None:
            return
        assert isinstance(self.query.plan, ir.MutationPlan)
        span = None if first.record is None else self.query.plan.statements[first.record].span
        place = self.mutation.source.place(span) if span else None
        raise ConstraintError(first.message, violations=(first,), place=place, hint=first.hint)

    def _stage(self, key: str, change: TableChange) -> Staged:
        table = self.txn.writable_table(self.tables, key)
        if change.removed.num_rows:
            reason = f"omnigraph: {change.removed.num_rows} rows"
            return self.tables.stage_delete_rows(table, self.removals[key].addresses, reason)
        rows = to_store(change.declared, change.rows)
        # Most inserts are new, and an append costs less than an upsert: one lookup decides.
        if change.fresh or not self.tables.has_any(table, rows[ID].combine_chunks()):
            return self.tables.stage_append(table, rows)
        return self.tables.stage_upsert(table, rows)


def _columns_of(expression: ir.Expr) -> set[str]:
    if isinstance(expression, ir.PropertyRef):
        return {expression.property}
    return set().union(*map(_columns_of, ir.parts_of(expression)))


class _Removal:
    """The rows of one table that a mutation removes, each once, however many statements match it."""

    def __init__(self) -> None:
        self.addresses: np.ndarray[Any, Any] = np.empty(0, np.uint64)
        self.rows: pa.Table = pa.table({ID: pa.array([], pa.string()), SRC: pa.array([], pa.string())})

    def add(self, found: pa.Table) -> pa.Table:
        # Addresses, not predicates: a row is counted once by construction, and nulls cannot make it ambiguous.
        addresses = found[ADDRESS].to_numpy()
        known = np.isin(addresses, self.addresses)
        _, first = np.unique(addresses, return_index=True)
        new = found.take(np.sort(first[~known[first]])).drop_columns(ADDRESS)
        self.addresses = np.union1d(self.addresses, addresses)
        self.rows = pa.concat_tables([self.rows, new], promote_options="default")
        return new


class _Existing(Exception):  # noqa: N818 - becomes a ConstraintError where the statement is known
    """An `insert new` names a node that is there."""

    def __init__(self, violation: Violation) -> None:
        super().__init__(violation.message)
        self.violation = violation


class _Rejected(Exception):  # noqa: N818 - becomes a ValueRejectedError where the statement is known
    """A property, and why its value was rejected."""

    def __init__(self, name: str, problem: ConversionError) -> None:
        super().__init__(str(problem))
        self.name = name
        self.problem = problem

    def at(self, type_name: str, place: Any) -> ValueRejectedError:
        message = f"value of {type_name}.{self.name}: {self.problem}"
        return ValueRejectedError(message, type_name=type_name, property=self.name, place=place, hint=self.problem.hint)


def _without_text(property_: Property) -> ConversionError:
    assert property_.embed
    why = f"it was omitted, and its source text `{property_.embed.source}` is empty"
    return ConversionError(why, "give the text, or the vector itself")


def _compiled(mutation: Mutation, txn: WriteTxn) -> CompiledQuery:
    query = compile_query(mutation.source, txn.catalog, mutation.name)
    if not query.is_mutation:
        message = f"query '{query.name}' reads; a mutation inserts, updates or deletes"
        raise QueryKindError(message, query=query.name, hint="run it with `query`")
    return query


def _check_count(statements: tuple[ir.Statement, ...]) -> None:
    kinds = ir.InsertNode | ir.UpsertNode | ir.InsertEdge
    inserts = Counter(one.type_name for one in statements if isinstance(one, kinds))
    for type_name, count in inserts.items():
        if count > MOST_ENTITIES:
            raise _too_much(f"entities of {type_name} in one query", MOST_ENTITIES, count)


def _too_much(resource: str, limit: int, actual: int) -> ResourceLimitError:
    message = f"{actual:,} {resource}; at most {limit:,} are allowed"
    return ResourceLimitError(message, resource=resource, limit=limit, actual=actual, hint="use `load`")


def _with_values(rows: pa.Table, values: pa.Table, names: list[str]) -> pa.Table:
    """Set some columns of all rows to one given value, and record the statement that did."""
    for name in (*names, RECORD):
        column = values[name].take(np.zeros(rows.num_rows, np.int64))
        at = rows.schema.get_field_index(name)
        rows = rows.append_column(name, column) if at < 0 else rows.set_column(at, name, column)
    return rows


# Values --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _RequestValues:
    """The parameters and the time of one request. `now()` is the same everywhere in it."""

    parameters: Mapping[str, PlainValue]
    time: dt.datetime

    def value(self, value: ir.Expr) -> PlainValue:
        match value:
            case ir.Constant(constant):
                return constant
            case ir.ParameterRef(name):
                return self.parameters[name]
            case ir.RequestTime():
                return self.time
            case _:
                return constant_value(value, self.value)

    def stored(self, value: ir.Expr, type_: Type) -> Any:
        """Return what a property of the type stores. Constants were converted at compile time."""
        return value.value if isinstance(value, ir.Constant) else _stored(type_, self.value(value))


def _stored(type_: Type, value: PlainValue) -> Any:
    """Convert a value to what a property of the type stores, or raise ConversionError."""
    if value is None:
        if not type_.nullable:
            raise ConversionError("it is required, and the value is null", "give it a value")
        return None
    if isinstance(value, tuple):
        element = Scalar.F32 if type_.is_vector else type_.scalar
        return [None if item is None else scalar_value(element, item) for item in value]
    return scalar_value(type_.scalar, value)


# Omitted vectors -----------------------------------------------------------------------------------

_Owner = tuple[str, str]


class OmittedVectors:
    """The vectors that the inserts of one mutation omit. A text is embedded once, however often it is prepared.

    The first preparation runs before any gate is taken. A second one, inside the gates, finds all vectors known: no
    service is called while others wait.
    """

    def __init__(self, embedding: Embedding) -> None:
        self._embedding = embedding
        self._known: dict[tuple[_Owner, str], list[float]] = {}
        self._required: dict[str, list[tuple[Property, str]]] = {}

    def prepare(self, catalog: Catalog, statements: Iterable[ir.Statement], request: _RequestValues) -> None:
        """Embed all omitted vectors of the statements, grouped by property."""
        self._required = {node.name: _required(node) for node in catalog.nodes.values()}
        wanted: dict[_Owner, dict[str, None]] = defaultdict(dict)
        for statement in statements:
            if isinstance(statement, ir.InsertNode) and self._required[statement.type_name]:
                given = dict(statement.values)
                for property_, source in self._omitted(statement.type_name, given):
                    text = request.value(given[source])
                    if isinstance(text, str) and text.strip():
                        wanted[statement.type_name, property_.name][text] = None
        for (type_name, name), texts in wanted.items():
            node = catalog.nodes[type_name]
            self._make(node, node.properties[name], texts)

    def _make(self, node: NodeType, property_: Property, texts: Iterable[str]) -> None:
        owner = (node.name, property_.name)
        new = [text for text in texts if (owner, text) not in self._known]
        if new:
            vectors = self._embedding.documents(new, node, property_).tolist()
            self._known |= {(owner, text): vector for text, vector in zip(new, vectors, strict=True)}

    def of(self, node: NodeType, row: Mapping[str, Any]) -> Iterator[tuple[Property, list[float]]]:
        """Yield the vectors that a prepared row omits; an empty one where there was no text."""
        for property_, source in self._omitted(node.name, row):
            yield property_, self._known.get(((node.name, property_.name), row[source]), [])

    def _omitted(self, type_name: str, given: Mapping[str, Any]) -> Iterator[tuple[Property, str]]:
        """Yield the required vectors that an insert omits, with the properties that hold their texts."""
        return ((property_, source) for property_, source in self._required[type_name] if property_.name not in given)


def _required(node: NodeType) -> list[tuple[Property, str]]:
    """Return the required vectors of a type, with the properties that hold their texts."""
    return [(one, one.embed.source) for one in node.properties.values() if one.embed and not one.type.nullable]
