"""Read one state of the graph: run a query (compile, bind parameters, execute), or find a Blob."""

from __future__ import annotations

import datetime as dt
import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import lance
import pyarrow as pa

from omnigraph.api.rows import Blob, Cell, Explanation, Result
from omnigraph.core.nonblocking import is_nonblocking, may_block
from omnigraph.core.running import running
from omnigraph.embed.embedder import Embedding
from omnigraph.errors import BlobNotFoundError, BlobPropertyError, ExpressionError, ParameterError, QueryKindError
from omnigraph.lang import ir
from omnigraph.lang.catalog import Catalog, EdgeType, NodeType
from omnigraph.lang.compiler import CompiledQuery, compile_query
from omnigraph.lang.params import decode_parameters
from omnigraph.lang.source import Source, did_you_mean
from omnigraph.manifest.state import GraphState
from omnigraph.query.count_pushdown import only_counts
from omnigraph.query.explain import TracedExecution
from omnigraph.query.memory import out_of_memory
from omnigraph.query.planner import planned, reasons
from omnigraph.query.read import Execution
from omnigraph.query.view import GraphView, TableCache
from omnigraph.storage.columns import table_key
from omnigraph.storage.expressions import Values, constant_value
from omnigraph.storage.functions import Undefined
from omnigraph.storage.lance_errors import lance_call
from omnigraph.storage.observe import counted
from omnigraph.storage.predicates import OneOf, lance_filter
from omnigraph.storage.read import ADDRESS, ID, OFFSET_BITS
from omnigraph.storage.stage import TableStorage


@dataclass(frozen=True, slots=True)
class _Texts:
    """Turns the texts of the `nearest` of one plan into vectors."""

    plan: ir.ReadPlan
    catalog: Catalog
    values: Values
    embedding: Embedding

    def embedded(self) -> ir.ReadPlan:
        return ir.ReadPlan(tuple(map(self._step, self.plan.steps)))

    def _step(self, step: ir.Step) -> ir.Step:
        match step:
            case ir.Rank(ir.FusedRank(first, second, k), limit):
                return ir.Rank(ir.FusedRank(self._arm(first), self._arm(second), k), limit)
            case ir.Rank(ir.NearestRank() as nearest, limit):
                return ir.Rank(self._arm(nearest), limit)
            case _:
                return step

    def _arm(self, ranking: ir.NearestRank | ir.Bm25Rank) -> ir.NearestRank | ir.Bm25Rank:
        text = self.values(ranking.query)
        if isinstance(ranking, ir.Bm25Rank) or not isinstance(text, str):
            return ranking
        node = self.catalog.nodes[self._type_of(ranking.variable)]
        # Before the plan runs: its steps read the snapshot only, and wait for no service on the network.
        vector = self.embedding.query(text, node, node.properties[ranking.vector.property])
        return replace(ranking, query=ir.Constant(tuple(vector.tolist()), ranking.vector.type))

    def _type_of(self, variable: str) -> str:
        scanned = {step.variable: step.type_name for step in self.plan.steps if isinstance(step, ir.Scan)}
        return {**self._reached(), **scanned}[variable]

    def _reached(self) -> dict[str, str]:
        found = {}
        for step in self.plan.steps:
            match step:
                case ir.Expand():
                    found[step.target] = step.target_type
                case ir.Meet(arms):
                    found[step.target] = arms[0].target_type
                case ir.ScanEdges():
                    found |= {step.source: step.source_type, step.target: step.target_type}
        return found


_E = TypeVar("_E", bound=Execution)
_FEW_BYTES = 2**16


@dataclass(frozen=True, slots=True)
class Query:
    """One request to read the graph; `branch` is the name that the answer reports."""

    source: Source
    name: str | None
    parameters: Mapping[str, Any] | None
    branch: str
    seconds: float | None = None  # how long it may take


@dataclass(frozen=True, slots=True)
class QueryReader:
    """Runs queries on one state of the graph."""

    tables: TableStorage
    state: GraphState
    catalog: Catalog
    cache: TableCache
    embedding: Embedding

    def run(self, query: Query) -> Result:
        """Run a query."""
        compiled = self._compiled(query)
        with running(query.seconds):
            table = self._made(Execution, compiled, query)[1]
        if table.get_total_buffer_size() > _FEW_BYTES:
            may_block()  # the caller encodes the result, which takes long if it is large
        return Result(compiled.name, query.branch, table, self.state.head)

    def explain(self, query: Query) -> Explanation:
        """Run a query and return its steps and their cost instead of its rows."""
        compiled = self._compiled(query)
        begun = time.perf_counter()
        with running(query.seconds), counted() as requests:
            execution, table = self._made(TracedExecution, compiled, query)
        seconds, branch = time.perf_counter() - begun, query.branch
        steps = execution.trace.steps
        return Explanation(compiled.name, branch, self.state.head, steps, table.num_rows, requests.total, seconds)

    def blob(self, cell: Cell) -> Blob:
        """Find the Blob of a property of an entity."""
        key = table_key(_declaring(self.catalog, cell))
        return _find_blob(self.tables.open(self.state.snapshot.entries[key].table), cell)

    def _compiled(self, query: Query) -> CompiledQuery:
        compiled = compile_query(query.source, self.catalog, query.name)
        if compiled.is_mutation:
            message = f"query '{compiled.name}' changes the graph: it is a mutation, not a read"
            raise QueryKindError(message, query=compiled.name, hint="run it with `mutate`")
        return compiled

    def _made(self, kind: type[_E], compiled: CompiledQuery, query: Query) -> tuple[_E, pa.Table]:
        try:
            execution = self._execution(kind, compiled, query)
            return execution, execution.table()
        except MemoryError as error:
            raise out_of_memory(error) from error
        except Undefined as problem:
            raise undefined(problem, query.source) from None

    def _execution(self, kind: type[_E], compiled: CompiledQuery, query: Query) -> _E:
        assert isinstance(compiled.plan, ir.ReadPlan)
        if is_nonblocking() and not all(map(_is_short, compiled.plan.steps)):
            may_block()  # before any work is done: the caller repeats all of it in a thread
        values = _values(decode_parameters(compiled.parameters, query.parameters))
        graph = GraphView(self.tables, self.state.snapshot, self.catalog, self.cache)
        plan = planned(graph, compiled.plan, counts=only_counts(compiled.plan))
        plan = _Texts(_with_limits(plan, values), self.catalog, values, self.embedding).embedded()
        execution = kind(graph, values, plan)
        if isinstance(execution, TracedExecution):
            # Before it runs: what it reads into memory would change the reasons.
            execution.trace.reasons = reasons(graph, compiled.plan, counts=only_counts(compiled.plan))
        return execution


def _is_short(step: ir.Step) -> bool:
    """Whether a step can be part of a lookup: rows by value, and their neighbours."""
    match step:
        case ir.Scan():
            return not any(isinstance(one, ir.TextMatch) for one in step.predicates)
        case ir.Expand():
            return step.most == 1 and step.edge_variable is None
        case ir.Filter():
            return not isinstance(step.predicate, ir.TextMatch)
        case _:
            return isinstance(step, ir.Project | ir.Order | ir.Limit)


def _with_limits(plan: ir.ReadPlan, values: Values) -> ir.ReadPlan:
    """Put the values of parameters into the limit, and into how many rows the ranking keeps."""
    cut = next((step for step in plan.steps if isinstance(step, ir.Limit)), None)
    if cut is None or (isinstance(cut.count, int) and cut.offset == 0):
        return plan
    count, offset = (_row_count(one, values) for one in (cut.count, cut.offset))
    exact = any(isinstance(step, ir.Distinct) for step in plan.steps)  # rows that are merged leave room for others
    steps: list[ir.Step] = []
    for step in plan.steps:
        if isinstance(step, ir.Limit):
            steps.append(ir.Limit(count, offset or 0))
        elif isinstance(step, ir.Rank) and count is not None and not exact:
            steps.append(replace(step, limit=count + (offset or 0)))
        else:
            steps.append(step)
    return ir.ReadPlan(tuple(steps))


def _row_count(written: int | ir.ParameterRef | None, values: Values) -> int | None:
    if not isinstance(written, ir.ParameterRef):
        return written
    number = values(written)
    assert isinstance(number, int)
    if number < 0:
        message = f"parameter '{written.name}': a number of rows is not negative, and it is {number}"
        raise ParameterError(message, parameter=written.name, hint="pass 0 or more")
    return number


def _values(given: Mapping[str, ir.PlainValue]) -> Values:
    """Return how to evaluate the values of a plan. `now()` is the same throughout a request."""
    # Once: two comparisons of one query must not see two times.
    now = dt.datetime.now(dt.UTC)

    def value_of(value: ir.Expr) -> ir.PlainValue:
        match value:
            case ir.Constant(constant):
                return constant
            case ir.ParameterRef(name):
                return given[name]
            case ir.RequestTime():
                return now
            case _:
                return constant_value(value, value_of)

    return value_of


def undefined(problem: Undefined, source: Source) -> ExpressionError:
    """Point at the function that has no result."""
    hint = "guard it in the same condition: `$x.n != 0 and $y.m / $x.n > 1`, or `if(condition, value, value)`"
    return ExpressionError(problem.message, place=source.place(problem.span), hint=hint)


# Blobs ---------------------------------------------------------------------------------------------


def _find_blob(dataset: lance.LanceDataset, cell: Cell) -> Blob:
    """Find the Blob of a property of an entity, and return how to read it in parts."""
    with lance_call(dataset.uri, "read"):
        # Descriptions only: the content of a Blob may be larger than the memory, and is read in parts.
        rows = dataset.scanner(
            columns=[cell.property],
            filter=lance_filter(OneOf(ID, pa.array([cell.id]))),
            with_row_address=True,
            blob_handling="blobs_descriptions",
        ).to_table()
    described = rows[cell.property][0].as_py() if rows.num_rows else None
    if described is None:
        what = "has no content" if rows.num_rows else "is not there"
        raise BlobNotFoundError(f"{cell} {what}", type_name=cell.type_name, entity_id=cell.id, property=cell.property)
    address = rows[ADDRESS][0].as_py()
    etag = _etag(dataset, address, cell.property)
    return Blob(described["size"], etag, lambda start, end: _bytes(dataset, cell.property, address, start, end))


def _declaring(catalog: Catalog, cell: Cell) -> NodeType | EdgeType:
    types: dict[str, Any] = {"node": catalog.nodes, "edge": catalog.edges}
    known = types.get(cell.kind, {})
    declared: NodeType | EdgeType | None = known.get(cell.type_name)
    property_ = declared.properties.get(cell.property) if declared else None
    if declared is None or property_ is None or not property_.type.is_blob:
        what = f"there is no {cell.kind} type '{cell.type_name}'" if declared is None else f"{cell} is no Blob"
        names = known if declared is None else [name for name, one in declared.properties.items() if one.type.is_blob]
        hint = did_you_mean(cell.type_name if declared is None else cell.property, sorted(names))
        raise BlobPropertyError(what, type_name=cell.type_name, property=cell.property, hint=hint)
    return declared


def _etag(dataset: lance.LanceDataset, address: int, column: str) -> str:
    """Return the etag of a Blob: its address in a data file."""
    # Data files never change and their names are never reused, so an address has one content for ever.
    with lance_call(dataset.uri, "read"):
        fragment = dataset.get_fragment(address >> OFFSET_BITS)
    assert fragment, "the row was found in it"
    files = [file.path for file in fragment.metadata.files]
    return hashlib.sha256(repr((files, address, column)).encode()).hexdigest()


def _bytes(dataset: lance.LanceDataset, column: str, address: int, start: int, end: int) -> bytes:
    with lance_call(dataset.uri, "read"):
        (file,) = dataset.take_blobs(column, addresses=[address])
        assert file, "the property is not null"
        with file:
            file.seek(start)
            return bytes(file.read(end - start))
