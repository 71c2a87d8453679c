"""Lint: parse and type-check every query of a file, and warn about legal but suspicious ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import field
from typing import Any

from omnigraph.errors import Diagnostic
from omnigraph.lang import ir
from omnigraph.lang import query_tree as tree
from omnigraph.lang.catalog import Catalog
from omnigraph.lang.compiler import CompiledQuery, check_query
from omnigraph.lang.query_parser import parse_query_file
from omnigraph.lang.read_check import type_of
from omnigraph.lang.source import Rejection, Source, TreeNode

# Code -> its meaning. A test compares the reference with this table.
CODES = {
    "Q000": "the file does not parse",
    "L201": "a nullable property of an updated type is never set by an update in the file",
}

_Entity = tuple[str, str]


class QueryResult(TreeNode):
    """The lint result of one query."""

    name: str
    kind: str
    warnings: tuple[str, ...] = ()
    error: Diagnostic | None = None
    operation: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        document: dict[str, Any] = {"name": self.name, "kind": self.kind, "status": "error" if self.error else "ok"}
        if self.warnings:
            document["warnings"] = list(self.warnings)
        if self.error:
            document["error"] = f"{self.error.code}: {self.error.message}"
            document["diagnostic"] = self.error.to_dict()
        if self.operation is not None:
            document["operation"] = self.operation
        return document


class LintFinding(TreeNode):
    """A lint finding about the file as a whole."""

    severity: str
    code: str
    message: str
    type_name: str | None = None
    property: str | None = None
    query_names: tuple[str, ...] = ()
    diagnostic: Diagnostic | None = field(default=None, compare=False)

    def to_dict(self) -> dict[str, Any]:
        document: dict[str, Any] = {
            "severity": self.severity,
            "code": self.code,
            "message": self.message,
            "type_name": self.type_name,
            "property": self.property,
            "query_names": list(self.query_names),
        }
        if self.diagnostic:
            document["diagnostic"] = self.diagnostic.to_dict()
        return document


class LintReport(TreeNode):
    schema_source: dict[str, str]
    query_path: str
    results: tuple[QueryResult, ...]
    findings: tuple[LintFinding, ...]

    @property
    def errors(self) -> int:
        return self._count("error") + sum(result.error is not None for result in self.results)

    @property
    def warnings(self) -> int:
        return self._count("warning") + sum(len(result.warnings) for result in self.results)

    @property
    def infos(self) -> int:
        return self._count("info")

    @property
    def ok(self) -> bool:
        return self.errors == 0

    def to_dict(self) -> dict[str, Any]:
        return {
            "status": "ok" if self.ok else "error",
            "schema_source": self.schema_source,
            "query_path": self.query_path,
            "queries_processed": len(self.results),
            "errors": self.errors,
            "warnings": self.warnings,
            "infos": self.infos,
            "results": [result.to_dict() for result in self.results],
            "findings": [finding.to_dict() for finding in self.findings],
        }

    def _count(self, severity: str) -> int:
        return sum(finding.severity == severity for finding in self.findings)


def lint_queries(source: Source, catalog: Catalog, schema_source: dict[str, str]) -> LintReport:
    """Lint a query file against a catalog."""
    file, problems = parse_query_file(source)
    # Stop here: findings about the file would be wrong without its broken queries.
    if problems:
        return LintReport(schema_source, source.file, (), tuple(_unparsed(source, problem) for problem in problems))
    compiled: list[CompiledQuery] = []
    results = []
    # A query runs by its first definition, so only names seen before a query shadow it.
    before: set[str] = set()
    for query in file.queries:
        result, done = _lint_query(source, query, catalog, before)
        before.add(query.name)
        results.append(result)
        compiled += [done] if done else []
    return LintReport(schema_source, source.file, tuple(results), tuple(_never_set(compiled, catalog)))


def _unparsed(source: Source, problem: Rejection) -> LintFinding:
    diagnostic = source.diagnostic(problem)
    message = f"line {diagnostic.place.line}, column {diagnostic.place.column}: {problem.message}"
    return LintFinding("error", "Q000", message, diagnostic=diagnostic)


def _lint_query(
    source: Source, query: tree.QueryDecl, catalog: Catalog, before: AbstractSet[str]
) -> tuple[QueryResult, CompiledQuery | None]:
    kind = "mutation" if isinstance(query.body, tree.WriteBody) else "read"
    name = str(query.name)
    try:
        compiled = check_query(query, catalog)
    except Rejection as problem:
        return QueryResult(name, kind, error=source.diagnostic(problem)), None
    warnings = (*_warnings(query, compiled, before), *_without_index(compiled.plan, catalog))
    return QueryResult(name, kind, warnings, operation=_operation(compiled.plan, catalog)), compiled


def _warnings(query: tree.QueryDecl, compiled: CompiledQuery, before: AbstractSet[str]) -> Iterator[str]:
    if compiled.is_mutation and not compiled.parameters:
        yield "the mutation has no parameters; hardcoded mutations are easy to miss"
    if query.name in before:
        yield f"an earlier query of the file is also called `{query.name}`; that one runs"
    if isinstance(compiled.plan, ir.ReadPlan):
        names = Counter(column.name for column in compiled.plan.columns)
        for name in sorted(name for name, times in names.items() if times > 1):
            yield f"several columns are called `{name}`; JSON rows keep the last one"
        yield from _unconnected(compiled.plan)
    if isinstance(query.body, tree.ReadBody):
        yield from _without_effect(query.body)


def _unconnected(plan: ir.ReadPlan) -> Iterator[str]:
    """Find bindings that no traversal and no condition connects: every combination of them is a row."""
    parts: list[set[str]] = []
    for step in plan.steps:
        match step:
            case ir.Scan(variable, _, predicates):
                names = {variable}.union(*(one.variables for one in predicates))
            case ir.Expand():
                names = {step.origin, step.target, *([step.edge_variable] if step.edge_variable else [])}
            case ir.Filter(predicate):
                names = set(predicate.variables)
            case ir.Procedure():
                names = {step.node, step.value}
            case _:
                continue
        touching = [part for part in parts if part & names]
        parts = [part for part in parts if part not in touching] + ([names.union(*touching)] if names else [])
    shown = [f"`${min(part)}`" for part in parts]
    if len(shown) > 1:
        yield f"nothing connects {' and '.join(shown)}: the result has a row for every combination of them"


def _without_effect(body: tree.ReadBody) -> Iterator[str]:
    for key in body.order:
        if key.direction and isinstance(key.expression, tree.Bm25 | tree.Rrf):
            yield f"`{key.direction}` has no effect: a ranking has the best first"


def _without_index(plan: ir.Plan, catalog: Catalog) -> Iterator[str]:
    """Find approximate searches of vectors that have no index: they compare every vector."""
    steps = plan.steps if isinstance(plan, ir.ReadPlan) else ()
    types = {step.target: step.target_type for step in steps if isinstance(step, ir.Expand)}
    types |= {step.variable: step.type_name for step in steps if isinstance(step, ir.Scan)}
    for step in steps:
        ranking = step.ranking if isinstance(step, ir.Rank) else None
        for one in (ranking.first, ranking.second) if isinstance(ranking, ir.FusedRank) else (ranking,):
            if isinstance(one, ir.NearestRank) and one.approximate:
                type_name, name = types[one.variable], one.vector.property
                if (name,) not in catalog.nodes[type_name].indexes:
                    yield f"`approximate` has no effect: `{type_name}.{name}` has no @index"


def _never_set(compiled: Iterable[CompiledQuery], catalog: Catalog) -> Iterator[LintFinding]:
    """Find nullable properties that no update sets (L201), of the types that are updated at all."""
    updates: dict[str, list[tuple[str, ir.UpdateNodes]]] = {}
    for query in compiled:
        for statement in query.plan.statements if isinstance(query.plan, ir.MutationPlan) else ():
            if isinstance(statement, ir.UpdateNodes):
                updates.setdefault(statement.type_name, []).append((query.name, statement))
    for type_name, statements in sorted(updates.items()):
        node = catalog.nodes[type_name]
        names = tuple(dict.fromkeys(name for name, _ in statements))
        assigned = {column for _, statement in statements for column, _ in statement.values}
        for name, property_ in sorted(node.properties.items()):
            # A key cannot be updated and an embedded vector follows its source: neither is forgotten by mistake.
            if property_.type.nullable and name not in assigned and name not in node.key and not property_.embed:
                message = f"`{type_name}.{name}` is nullable, but no update sets it"
                yield LintFinding("warning", "L201", message, type_name, name, names)


# Types a query reads and writes ------------------------------------------------------------------------------


def _operation(plan: ir.Plan, catalog: Catalog) -> dict[str, Any]:
    if isinstance(plan, ir.ReadPlan):
        result = [{"name": column.name, **_described(column)} for column in plan.columns]
        return {"result": result, "reads": _entities(_read_by(plan.steps, catalog)), "writes": []}
    reads = {entity for statement in plan.statements for entity in _read_by_statement(statement, catalog)}
    writes = {entity for statement in plan.statements for entity in _written_types(statement, catalog)}
    return {"result": [], "reads": _entities(reads), "writes": _entities(writes)}


def _described(column: ir.Column | ir.AggregateColumn) -> dict[str, object]:
    if isinstance(column, ir.Column) and isinstance(column.expression, ir.ObjectRef):
        return {"kind": "object", "type_name": column.expression.type_name, "nullable": False}
    return type_of(column).describe()


def _entities(entities: Iterable[_Entity]) -> list[dict[str, str]]:
    ordered = sorted(set(entities), key=lambda entity: (entity[0] != "node", entity[1]))
    return [{"kind": kind, "type_name": name} for kind, name in ordered]


def _read_by(steps: Iterable[ir.Step], catalog: Catalog) -> Iterator[_Entity]:
    for step in steps:
        match step:
            case ir.Scan():
                yield "node", step.type_name
                yield from _read_by_conditions(step.predicates, catalog)
            case ir.Filter(predicate):
                yield from _read_by_conditions((predicate,), catalog)
            case ir.Expand() | ir.Procedure():
                yield from _edge_and_ends(step.edge_type, catalog)
            case ir.AntiJoin() | ir.Optional():
                yield from _read_by(step.steps, catalog)


def _read_by_conditions(predicates: Iterable[ir.Predicate], catalog: Catalog) -> Iterator[_Entity]:
    for predicate in predicates:
        for block in ir.subqueries(predicate):
            yield from _read_by(block.steps, catalog)


def _edge_and_ends(edge_type: str, catalog: Catalog) -> Iterator[_Entity]:
    edge = catalog.edges[edge_type]
    yield from (("edge", edge.name), ("node", edge.source), ("node", edge.target))


def _read_by_statement(statement: ir.Statement, catalog: Catalog) -> Iterator[_Entity]:
    yield from _written_types(statement, catalog)
    if isinstance(statement, ir.InsertEdge):
        yield from _edge_and_ends(statement.type_name, catalog)


def _written_types(statement: ir.Statement, catalog: Catalog) -> Iterator[_Entity]:
    yield (
        "edge" if isinstance(statement, ir.InsertEdge | ir.UpdateEdges | ir.DeleteEdges) else "node",
        statement.type_name,
    )
    # Deleting a node deletes its edges, so they count as written although the query does not name them.
    if isinstance(statement, ir.DeleteNodes):
        yield from (("edge", edge.name) for edge in catalog.incident_edges(statement.type_name))
