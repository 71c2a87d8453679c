"""Run a query on one state of the graph: compile, bind parameters, execute."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa

from omnigraph.api.rows import Explanation, Result
from omnigraph.commit.store import Store
from omnigraph.core.nonblocking import is_nonblocking, may_block
from omnigraph.embed.embedder import Embedding
from omnigraph.errors import QueryKindError
from omnigraph.lang import ir
from omnigraph.lang.catalog import Catalog
from omnigraph.lang.compiler import CompiledQuery, compile_query
from omnigraph.lang.params import decode_parameters
from omnigraph.lang.source import Source
from omnigraph.manifest.schema_files import AcceptedSchema
from omnigraph.manifest.state import GraphState, ManifestState
from omnigraph.query.evaluate import Values
from omnigraph.query.explain import TracedExecution
from omnigraph.query.memory_limit import out_of_memory
from omnigraph.query.read import Execution
from omnigraph.query.view import GraphView, TableCache
from omnigraph.storage.observe import counted
from omnigraph.storage.stage import TableStorage


def with_vectors(plan: ir.ReadPlan, catalog: Catalog, values: Values, embedding: Embedding) -> ir.ReadPlan:
    """Return the plan with a vector for every `nearest`."""
    texts = _Texts(plan, catalog, values, embedding)
    return ir.ReadPlan(tuple(texts.step(step) for step in plan.steps))


class _Texts:
    """Embeds the texts of one plan."""

    def __init__(self, plan: ir.ReadPlan, catalog: Catalog, values: Values, embedding: Embedding) -> None:
        scanned = {step.variable: step.type_name for step in plan.steps if isinstance(step, ir.Scan)}
        reached = {step.target: step.target_type for step in plan.steps if isinstance(step, ir.Expand)}
        self.types = {**reached, **scanned}
        self.catalog = catalog
        self.values = values
        self.embedding = embedding

    def step(self, step: ir.Step) -> ir.Step:
        match step:
            case ir.Rank(ir.FusedRank(first, second, k), limit):
                return ir.Rank(ir.FusedRank(self.arm(first), self.arm(second), k), limit)
            case ir.Rank(ir.NearestRank() as nearest, limit):
                return ir.Rank(self.arm(nearest), limit)
            case _:
                return step

    def arm(self, ranking: ir.NearestRank | ir.Bm25Rank) -> ir.NearestRank | ir.Bm25Rank:
        text = self.values(ranking.query)
        if isinstance(ranking, ir.Bm25Rank) or not isinstance(text, str):
            return ranking
        node = self.catalog.nodes[self.types[ranking.variable]]
        vector = self.embedding.query(text, node, node.properties[ranking.vector.property])
        return ir.NearestRank(ranking.vector, ir.Constant(tuple(vector.tolist()), ranking.vector.type))


class Current:
    """The current state of main and its schema. Schema files are read again only when the manifest has moved.

    A change of the schema writes its recovery record, publishes, puts the schema files in place and only then removes
    the record. So if there is no record after a state was loaded, the files read next are not older than the state;
    and if the state is still the latest afterwards, they are not newer either. Such a pair stays true for good.
    """

    def __init__(self, store: Store, read_contract: Callable[[ManifestState], AcceptedSchema]) -> None:
        self._store = store
        self._read_contract = read_contract
        self._known: tuple[ManifestState, AcceptedSchema] | None = None

    def load(self) -> tuple[ManifestState, AcceptedSchema]:
        state = self._store.manifest.load()
        known = self._known
        # The manifest hands out one and the same state as long as its probe says that it is the latest.
        if known is not None and known[0] is state:
            return known
        settled = not self._store.sidecars.pending()
        pair = state, self._read_contract(state)
        self._known = pair if settled else None
        return pair


_E = TypeVar("_E", bound=Execution)
_FEW_BYTES = 2**16


@dataclass(frozen=True, slots=True)
class Query:
    """One request to read the graph; `branch` is the name that the answer reports."""

    source: Source
    name: str | None
    parameters: Mapping[str, Any] | None
    branch: str


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
        table = _made(self._execution(Execution, compiled, query))
        if table.get_total_buffer_size() > _FEW_BYTES:
            may_block()  # encoding a large result
        return Result(compiled.name, query.branch, table, self.state.head)

    def explain(self, query: Query) -> Explanation:
        """Run a query and return its steps and their cost instead of its rows."""
        compiled = self._compiled(query)
        execution = self._execution(TracedExecution, compiled, query)
        begun = time.perf_counter()
        with counted() as requests:
            table = _made(execution)
        seconds, branch = time.perf_counter() - begun, query.branch
        steps = execution.trace.steps
        return Explanation(compiled.name, branch, self.state.head, steps, table.num_rows, requests.total, seconds)

    def _compiled(self, query: Query) -> CompiledQuery:
        compiled = compile_query(query.source, self.catalog, query.name)
        if compiled.is_mutation:
            message = f"query '{compiled.name}' changes the graph: it is a mutation, not a read"
            raise QueryKindError(message, query=compiled.name, hint="run it with `mutate`")
        return compiled

    def _execution(self, kind: type[_E], compiled: CompiledQuery, query: Query) -> _E:
        assert isinstance(compiled.plan, ir.ReadPlan)
        if is_nonblocking() and not all(map(_is_short, compiled.plan.steps)):
            may_block()
        values = _values(decode_parameters(compiled.parameters, query.parameters))
        plan = with_vectors(compiled.plan, self.catalog, values, self.embedding)
        return kind(GraphView(self.tables, self.state.snapshot, self.catalog, self.cache), values, plan)


def _is_short(step: ir.Step) -> bool:
    """Whether a step can be part of a lookup: rows by value, and their neighbours."""
    match step:
        case ir.Scan():
            return all(isinstance(one, ir.Comparison) for one in step.predicates)
        case ir.Expand():
            return step.most == 1 and step.edge_variable is None
        case ir.Filter():
            return isinstance(step.predicate, ir.Comparison)
        case _:
            return isinstance(step, ir.Project | ir.Order | ir.Limit)


def _values(given: Mapping[str, ir.PlainValue]) -> Values:
    """Return how to evaluate the values of a plan. `now()` is the same throughout a request."""
    now = dt.datetime.now(dt.UTC)

    def value_of(value: ir.Value) -> ir.PlainValue:
        match value:
            case ir.Constant(constant):
                return constant
            case ir.ParameterRef(name):
                return given[name]
            case ir.RequestTime():
                return now

    return value_of


def _made(execution: Execution) -> pa.Table:
    try:
        return execution.table()
    except MemoryError as error:
        raise out_of_memory(error) from error
