"""The calls that change a graph: mutations, loads, the schema."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omnigraph.api import documents, problems
from omnigraph.api.documents import optional_commit_of
from omnigraph.api.http import CONDITION_HEADER
from omnigraph.api.options import LoadMode, option
from omnigraph.api.progress import SILENT, Progress
from omnigraph.api.results import Commit, LoadResult, MutationResult, SchemaResult
from omnigraph.client.asking import (
    QUERY,
    SCHEMA,
    given_source,
    members,
    options,
    parameters,
    refuse_engine,
    segment,
)
from omnigraph.client.steps import Pause, Request, Steps, committing
from omnigraph.client.versions import VersionCalls
from omnigraph.core.refs import MAIN
from omnigraph.errors import LoadRejectedError, ServerUnavailableError
from omnigraph.formats.sources import read_mapping

_POLL_SECONDS = 0.5
_FAILED = 500  # of a load that has no answer of its own


class ChangeCalls(VersionCalls):
    """What changes a graph that is served."""

    def mutate(
        self,
        source: str | os.PathLike[str],
        params: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
        branch: str = MAIN,
        actor: str | None = None,  # noqa: ARG002 - the server knows who asks
        if_commit: str | None = None,
    ) -> Steps[MutationResult]:
        """Run a query that inserts, updates or deletes: all of it in one commit, or nothing.

        `source` is the text of `.gq` queries or the path of a file; `name` chooses one of several. With `if_commit` the
        mutation happens only if the branch is at that commit. When it returns, the change is durable and visible;
        when it raises, nothing was changed, except for OutcomeUnknownError: then ask `outcome`.
        """
        path = "/mutate" if if_commit is None else "/mutate/if-graph-commit"
        headers = {} if if_commit is None else {CONDITION_HEADER: if_commit}
        with given_source(source, ".gq", QUERY) as text:
            document = members(query=text, name=name, params=parameters(params), branch=branch)
            answer = yield committing(Request("POST", path, document=document, headers=headers))
        return documents.change_of(answer.document)

    def load(
        self,
        data: Any,
        *,
        mode: str,
        branch: str = MAIN,
        base: str | None = None,
        actor: str | None = None,  # noqa: ARG002 - the server knows who asks
        engine: str = "auto",
        format: str | None = None,  # noqa: A002 - the name the API fixes
        mapping: str | os.PathLike[str] | Mapping[str, Any] | None = None,
        dry_run: bool = False,
        master: str | None = None,
        conf: Mapping[str, str] | None = None,
        progress: Progress = SILENT,
    ) -> Steps[LoadResult]:
        """Load data in one commit, or nothing: files, records, Arrow tables or Spark DataFrames by type.

        Files on this side are sent to the server, which takes only so much at once; `s3://` addresses it reads itself,
        if it is allowed to. `mode` is append, merge or overwrite. If the branch is not there, it is made of `base`,
        another branch. `dry_run` only checks.
        """
        refuse_engine(engine, master, conf)
        how = {"mode": option(LoadMode, "mode", mode), "branch": branch, "from": base, "dry_run": dry_run or None}
        addresses = server_addresses(data)
        try:
            if addresses is not None:
                document = members(data=addresses, format=format, mapping=_mapping(mapping), **how)
                return (yield from _load_there(document, progress))
            from omnigraph.client.uploads import uploaded  # noqa: PLC0415 - conversion of files loads the engine

            catalog = yield from self.catalog()
            with uploaded(data, catalog, format, mapping) as upload:
                try:
                    request = Request("POST", "/load/ndjson", options(**how), file=upload.file)
                    answer = yield request if dry_run else committing(request)
                except LoadRejectedError as error:
                    raise upload.located(error) from None
            return documents.load_of(answer.document)
        finally:
            progress.finish()

    def plan_schema(self, schema: str | os.PathLike[str], *, allow_data_loss: bool = False) -> Steps[SchemaResult]:
        """Tell which steps lead to a schema, whether each is supported, and how many entities they touch."""
        with given_source(schema, ".pg", SCHEMA) as text:
            document = {"schema_source": text, "allow_data_loss": allow_data_loss}
            answer = yield Request("POST", "/schema/plan", document=document)
        return documents.schema_result_of(answer.document)

    def apply_schema(
        self,
        schema: str | os.PathLike[str],
        *,
        allow_data_loss: bool = False,
        actor: str | None = None,  # noqa: ARG002 - the server knows who asks
    ) -> Steps[SchemaResult]:
        """Change the schema in one commit; no data is rewritten. Reads at earlier commits go by the schema of then.

        What is dropped stays readable at earlier commits until a cleanup, unless `allow_data_loss` gives it up at once.
        """
        with given_source(schema, ".pg", SCHEMA) as text:
            document = {"schema_source": text, "allow_data_loss": allow_data_loss}
            answer = yield committing(Request("POST", "/schema/apply", document=document))
        return documents.schema_result_of(answer.document)

    def outcome(self, operation_id: str, branch: str = MAIN) -> Steps[Commit | None]:
        """Tell what became of an operation whose outcome was unknown: its commit, or None if it changed nothing."""
        answer = yield Request("GET", f"/outcomes/{segment(operation_id)}", options(branch=branch))
        return optional_commit_of(answer.document["commit"])


def server_addresses(data: Any) -> list[str] | None:
    """The addresses of data that a server reads itself, if it is all in shared storage."""
    given = [data] if isinstance(data, str) else data if isinstance(data, list | tuple) else []
    shared = [one for one in given if isinstance(one, str) and one.lower().startswith("s3://")]
    return shared if shared and len(shared) == len(given) else None


def _mapping(given: str | os.PathLike[str] | Mapping[str, Any] | None) -> Any:
    """The document that maps files to types; a file of it is read here."""
    if given is None or isinstance(given, Mapping):
        return given

    return read_mapping(Path(given))


def _load_there(document: dict[str, Any], progress: Progress) -> Steps[LoadResult]:
    """Let the server load what it can reach itself, and wait for it."""
    begin = Request("POST", "/loads", document=document)
    request = begin if document.get("dry_run") else committing(begin)
    answer = yield request
    path = f"/loads/{segment(answer.document['load_id'])}"
    told = _Told(progress)
    while True:
        try:
            state = (yield Request("GET", path)).document
        except ServerUnavailableError as error:
            if request.changes:  # it has begun, and nobody says how it goes on
                raise request.outcome_unknown(error.message) from error
            raise
        told.tell(state)
        if state["state"] == "done":
            return documents.load_of(state["result"])
        if state["state"] == "failed":
            raise problems.raised(_FAILED, state["error"])
        yield Pause(_POLL_SECONDS)


class _Told:
    """Tells a person what a server says about how far it is."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._phase, self._total, self._done, self._rows = "", 0, 0, 0

    def tell(self, state: Mapping[str, Any]) -> None:
        phase = state.get("phase") or ""
        total, done, rows = (state.get(name) or 0 for name in ("total", "done", "rows"))
        if phase != self._phase:
            self._phase, self._total, self._done, self._rows = phase, 0, 0, 0
        if total > self._total:
            self._progress.phase(phase, total - self._total)
        if done > self._done or rows > self._rows:
            self._progress.advance(done - self._done, rows - self._rows)
        self._total, self._done, self._rows = total, done, rows
