"""Compile `.gq` text against a catalog into plans, with a cache."""

from __future__ import annotations

from omnigraph.core.lru import LruCache
from omnigraph.errors import QueryError, QueryNotFoundError
from omnigraph.lang import ir
from omnigraph.lang import query_tree as tree
from omnigraph.lang.catalog import Catalog
from omnigraph.lang.expressions import ANONYMOUS, NameScope
from omnigraph.lang.mutation_check import check_mutation
from omnigraph.lang.query_parser import parse_query_file
from omnigraph.lang.read_check import check_read
from omnigraph.lang.source import Rejection, Source, TreeNode, did_you_mean
from omnigraph.lang.types import Type

# The original implementation passes the request time under this name, so no query may declare it.
RESERVED_PARAMETER = "__nanograph_now"
_CACHE_CHARACTERS = 4 * 1024 * 1024
_ENTRY_COST = 256


class CompiledQuery(TreeNode):
    """A query that type-checks against a catalog."""

    name: str
    parameters: dict[str, Type]
    description: str | None
    instruction: str | None
    plan: ir.Plan

    @property
    def is_mutation(self) -> bool:
        return isinstance(self.plan, ir.MutationPlan)


def parse_queries(source: Source) -> tree.QueryTree:
    """Parse a file of queries, or raise QueryError with every syntax error in it."""
    return _parsed.get((source.text, source.file), lambda: _parse(source), lambda _: _cost(source))


def compile_query(source: Source, catalog: Catalog, name: str | None = None) -> CompiledQuery:
    """Compile one query of a source: the one called `name`, or the only one."""
    # The file too, because diagnostics name it; the fingerprint and not the catalog, because each open makes another
    # object.
    key = (source.text, source.file, catalog.fingerprint, name)

    def compile_it() -> CompiledQuery:
        query = select_query(parse_queries(source), name)
        try:
            return check_query(query, catalog)
        except Rejection as problem:
            raise QueryError.of([source.diagnostic(problem)]) from None

    return _compiled.get(key, compile_it, lambda _: _cost(source))


def check_query(query: tree.QueryDecl, catalog: Catalog) -> CompiledQuery:
    """Type-check and plan one query; raises Rejection."""
    scope = NameScope(catalog, _declared_parameters(query))
    if isinstance(query.body, tree.ReadBody):
        plan: ir.Plan = check_read(query.body, scope)
    else:
        plan = check_mutation(query, query.body, scope)
    return CompiledQuery(str(query.name), dict(scope.parameters), query.description, query.instruction, plan)


def select_query(file: tree.QueryTree, name: str | None) -> tree.QueryDecl:
    """Find the query called `name` (the first, if there are several), or the only query of the source."""
    names = [str(query.name) for query in file.queries]
    if name is None:
        if len(names) == 1:
            return file.queries[0]
        problem = "multiple queries; pass the name of one" if names else "the source has no query"
        raise QueryNotFoundError(problem, available=names, hint=f"it has: {', '.join(names)}" if names else None)
    for query in file.queries:
        if query.name == name:
            return query
    raise QueryNotFoundError(f"query '{name}' not found", available=names, hint=did_you_mean(name, names))


def _cost(source: Source) -> int:
    """Return the cache cost of a source; never zero, or empty sources would fill the cache without limit."""
    return len(source.text) + _ENTRY_COST


def _parse(source: Source) -> tree.QueryTree:
    file, problems = parse_query_file(source)
    if problems:
        raise QueryError.of([source.diagnostic(problem) for problem in problems])
    return file


def _declared_parameters(query: tree.QueryDecl) -> dict[str, Type]:
    parameters: dict[str, Type] = {}
    for parameter in query.parameters:
        name = parameter.name
        if name in (RESERVED_PARAMETER, ANONYMOUS):
            raise Rejection("T0", f"parameter name `${name}` is reserved", name.span, hint="choose another name")
        if name in parameters:
            raise Rejection("T0", f"parameter `${name}` is declared twice", name.span, hint="keep one")
        parameters[str(name)] = parameter.type
    return parameters


_parsed = LruCache(_CACHE_CHARACTERS)
_compiled = LruCache(_CACHE_CHARACTERS)
