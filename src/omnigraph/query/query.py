"""A query of the graph: which state it reads, its parameters, its answer."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from omnigraph.embed.embedding import Embedding
from omnigraph.errors import CommitNotFoundError, QueryKindError, ResourceLimitError
from omnigraph.lang import ir
from omnigraph.lang.catalog import Catalog
from omnigraph.lang.compiler import compile_query
from omnigraph.lang.params import decode_parameters
from omnigraph.lang.source import Source
from omnigraph.manifest.publisher import Manifest
from omnigraph.manifest.rows import MAIN, Commit
from omnigraph.manifest.state import ManifestState, Snapshot
from omnigraph.query.cache import Cache
from omnigraph.query.read import Execution
from omnigraph.query.result import Result
from omnigraph.query.vectors import with_vectors
from omnigraph.query.view import GraphView
from omnigraph.storage.tables import TableStorage


@dataclass(frozen=True, slots=True)
class Query:
    """One request to read the graph: a branch as it is, or as it was at a commit."""

    source: Source
    name: str | None
    parameters: Mapping[str, Any] | None
    branch: str | None
    commit: str | None


@dataclass(frozen=True, slots=True)
class State:
    """A snapshot and the commit that made it."""

    snapshot: Snapshot
    commit: Commit | None


def state_of(manifest: Manifest, branch: str | None, commit: str | None) -> State:
    """Find the state to read."""
    state = manifest.load(branch)
    if commit is None:
        return State(state.snapshot, state.head)
    found = state.commit(commit) or _elsewhere(manifest, state, commit)
    return State(manifest.load(found.branch, found.manifest_version).snapshot, found)


def _elsewhere(manifest: Manifest, state: ManifestState, commit: str) -> Commit:
    for name in manifest.branches():
        branch = None if name == MAIN else name
        found = None if branch == state.branch else manifest.load(branch).commit(commit)
        if found:
            return found
    raise CommitNotFoundError(f"commit '{commit}' not found", commit_id=commit)


def run(
    tables: TableStorage, state: State, catalog: Catalog, cache: Cache, query: Query, *, embedding: Embedding
) -> Result:
    compiled = compile_query(query.source, catalog, query.name)
    if compiled.is_mutation:
        message = f"query '{compiled.name}' changes the graph; a read matches and returns"
        raise QueryKindError(message, query=compiled.name, hint="run it with `mutate`")
    assert isinstance(compiled.plan, ir.ReadPlan)
    given = decode_parameters(compiled.parameters, query.parameters)
    now = dt.datetime.now(dt.UTC)

    def values(value: ir.Value) -> ir.PlainValue:
        match value:
            case ir.Constant(constant):
                return constant
            case ir.ParameterRef(name):
                return given[name]
            case ir.RequestTime():
                return now

    plan = with_vectors(compiled.plan, catalog, values, embedding)
    execution = Execution(GraphView(tables, state.snapshot, catalog, cache), values, plan)
    try:
        table = execution.table()
    except MemoryError as error:
        message = f"query '{compiled.name}' needs more memory than there is: {error}"
        hint = "bind the variables more narrowly, or connect them"
        raise ResourceLimitError(message, resource="memory", limit=0, actual=0, hint=hint) from error
    return Result(compiled.name, query.branch or MAIN, table, state.commit)
