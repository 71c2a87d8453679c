"""Changing a graph: mutations, loads, vectors, the schema."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from omnigraph.api.access import Action
from omnigraph.api.options import EmbedMode, Engine, LoadMode, option
from omnigraph.api.progress import SILENT, Progress
from omnigraph.api.results import Commit, EmbedResult, LoadResult, MutationResult, SchemaResult
from omnigraph.commit.recovery import heal
from omnigraph.core.refs import MAIN, parse_ref
from omnigraph.engines import spark_executor
from omnigraph.errors import (
    RecoveryRequiredError,
)
from omnigraph.formats.sources import discover
from omnigraph.graph.handle import named_branch
from omnigraph.graph.versions import Versions
from omnigraph.ingest.inputs import as_files
from omnigraph.ingest.load import LoadRequest, load
from omnigraph.lang.evolution import DropMode
from omnigraph.lang.source import source_given
from omnigraph.maintenance.cleanup import give_up_past
from omnigraph.schema.apply import apply_schema, preview_schema
from omnigraph.write.embed import EmbedRequest, embed_graph, embed_mode
from omnigraph.write.mutation import Mutation, mutate


class Changing(Versions):
    """What changes entities and the schema."""

    def mutate(
        self,
        source: str | os.PathLike[str],
        params: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
        branch: str = MAIN,
        actor: str | None = None,
        if_commit: str | None = None,
    ) -> MutationResult:
        """Run a query that inserts, updates or deletes: all of it in one commit, or nothing.

        `source` is the text of `.gq` queries or the path of a file; `name` chooses one of several. With `if_commit` the
        mutation happens only if the branch is at that commit. When it returns, the change is durable and visible;
        when it raises, nothing was changed, except for OutcomeUnknownError: then ask `outcome`.
        """
        self._admit(Action.CHANGE, branch)
        text, on = source_given(source, ".gq", "<query>"), named_branch(branch)
        with self._carrying_out() as operation:
            mutation = Mutation(text, name, params, on, self._actor(actor), if_commit, operation)
            return mutate(self._store, mutation, self._embedding)

    def load(
        self,
        data: Any,
        *,
        mode: str,
        branch: str = MAIN,
        base: str | None = None,
        actor: str | None = None,
        engine: str = "auto",
        format: str | None = None,  # noqa: A002 - the name the API fixes
        mapping: str | os.PathLike[str] | Mapping[str, Any] | None = None,
        dry_run: bool = False,
        master: str | None = None,
        conf: Mapping[str, str] | None = None,
        progress: Progress = SILENT,
    ) -> LoadResult:
        """Load data in one commit, or nothing: files, records, Arrow tables or Spark DataFrames by type.

        `mode` is append, merge or overwrite. If the branch is not there, it is made of `base`, another branch. `engine`
        is local, spark, or auto: then small data is loaded in this process and large data on Spark, which `master` and
        `conf` are for. `dry_run` only checks.
        """
        self._admit(Action.CHANGE, branch)
        if base is not None and branch.strip() not in self.branches():
            self._admit(Action.BRANCH_CREATE, base, branch)
        how, by = option(LoadMode, "mode", mode), option(Engine, "engine", engine)
        self._contract = self._read_contract()
        files = as_files(data, self._store.location, self.catalog)
        with self._carrying_out() as operation, files as (addresses, own):
            splits = discover(addresses, self.catalog, format=format, mapping=mapping if own is None else own)
            spark = partial(spark_executor, master, conf)
            begins = None if base is None else str(parse_ref(base))
            request = LoadRequest(
                splits, how, named_branch(branch), self._actor(actor), by, dry_run, progress, spark, begins, operation
            )
            return load(self._store, request)

    def embed(
        self,
        types: Sequence[str] | None = None,
        *,
        mode: str = EmbedMode.FILL_MISSING,
        branch: str = MAIN,
        actor: str | None = None,
        progress: Progress = SILENT,
    ) -> EmbedResult:
        """Make the vectors that `@embed` properties lack, of their texts; with the mode `reembed_all` all of them.

        Each batch is a commit. If one fails, those before it stay, and the next call does the rest.
        """
        self._admit(Action.CHANGE, branch)
        progress.phase("embed", 1)
        try:
            request = EmbedRequest(
                embed_mode(mode), types, named_branch(branch), self._actor(actor), partial(progress.advance, 0)
            )
            return embed_graph(self._store, request, self._embedding)
        finally:
            progress.finish()

    def plan_schema(self, schema: str | os.PathLike[str], *, allow_data_loss: bool = False) -> SchemaResult:
        """Tell which steps lead to a schema, whether each is supported, and how many entities they touch."""
        self._admit(Action.READ)
        return preview_schema(self._store, source_given(schema, ".pg", "<schema>"), _drops(allow_data_loss))

    def apply_schema(
        self, schema: str | os.PathLike[str], *, allow_data_loss: bool = False, actor: str | None = None
    ) -> SchemaResult:
        """Change the schema in one commit; no data is rewritten. Reads at earlier commits go by the schema of then.

        What is dropped stays readable at earlier commits until a cleanup, unless `allow_data_loss` gives it up at once.
        """
        self._admit(Action.SCHEMA_APPLY, target=MAIN)
        source = source_given(schema, ".pg", "<schema>")
        with self._carrying_out() as operation:
            done = apply_schema(self._store, source, _drops(allow_data_loss), self._actor(actor), operation)
        if done.given_up:
            give_up_past(self._store, done.given_up)
        self._contract = self._read_contract()
        return done

    def outcome(self, operation_id: str, branch: str = MAIN) -> Commit | None:
        """Tell what became of an operation whose outcome was unknown: its commit, or None if it changed nothing."""
        self._admit(Action.READ, branch)
        at_work = operation_id in self._under_way  # before the state is read: what ends meanwhile is asked about again
        if not self.read_only:
            heal(self._store, self._store.gates.patience)
        state = self._store.manifest.load(named_branch(branch))
        found = state.commit(operation_id) or state.commit_of_operation(operation_id)
        if found is None and (at_work or self._is_pending(operation_id)):
            message = f"operation {operation_id} is not settled yet"
            hint = "ask again when it is done" if at_work else "open the graph read-write"
            raise RecoveryRequiredError(message, operation_id=operation_id, hint=hint)
        return found

    def _is_pending(self, operation_id: str) -> bool:
        sidecars = self._store.sidecars
        return any((record := sidecars.read(one)) and record.is_of(operation_id) for one in sidecars.pending())


def _drops(allow_data_loss: bool) -> DropMode:  # noqa: FBT001 - the two modes, as the API names them
    return DropMode.HARD if allow_data_loss else DropMode.SOFT
