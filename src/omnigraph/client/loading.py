"""Loading data through a server: files are sent to it, addresses in shared storage it reads itself."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omnigraph.api import problems
from omnigraph.api.documents import from_document
from omnigraph.api.operations import LoadData
from omnigraph.api.options import LoadMode, option
from omnigraph.api.progress import Progress
from omnigraph.api.results import LoadResult
from omnigraph.client.requests import options
from omnigraph.client.steps import Pause, Request, Steps, committing, segment
from omnigraph.errors import LoadRejectedError, ServerUnavailableError
from omnigraph.lang.schema_check import compile_schema
from omnigraph.lang.source import Source

_POLL_SECONDS = 0.5
_FAILED = 500  # the status of a load that has no answer of its own


def load(asked: LoadData) -> Steps[LoadResult]:
    """Load data in one commit, or nothing."""
    mode = option(LoadMode, "mode", asked.mode)
    how = {"mode": mode, "branch": asked.branch, "from": asked.base, "dry_run": asked.dry_run or None}
    addresses = server_addresses(asked.data)
    if addresses is not None:
        given = {"data": addresses, "format": asked.format, "mapping": _mapping(asked.mapping), **how}
        document = {name: value for name, value in given.items() if value is not None}
        return (yield from _load_there(document, asked.progress))
    from omnigraph.client.uploads import uploaded  # noqa: PLC0415 - conversion of files loads the engine

    schema = (yield Request("GET", "/schema")).document["schema_source"]
    with uploaded(asked.data, compile_schema(Source(schema)), asked.format, asked.mapping) as upload:
        try:
            request = Request("POST", "/load/ndjson", options(**how), file=upload.file)
            answer = yield request if asked.dry_run else committing(request)
        except LoadRejectedError as error:
            raise upload.located(error) from None
    return from_document(LoadResult, answer.document)


def server_addresses(data: Any) -> list[str] | None:
    """Return the addresses of data that a server reads itself, if all of it is in shared storage."""
    given = [data] if isinstance(data, str) else data if isinstance(data, list | tuple) else []
    shared = [one for one in given if isinstance(one, str) and one.lower().startswith("s3://")]
    return shared if shared and len(shared) == len(given) else None


def _mapping(given: str | os.PathLike[str] | Mapping[str, Any] | None) -> Any:
    """Return the document that maps files to types; a file of it is read here."""
    if given is None or isinstance(given, Mapping):
        return given
    from omnigraph.formats.sources import read_mapping  # noqa: PLC0415 - loads the engine

    return read_mapping(Path(given))


def _load_there(document: dict[str, Any], progress: Progress) -> Steps[LoadResult]:
    """Let the server load what it can reach itself, and wait for it."""
    begin = Request("POST", "/loads", document=document)
    request = begin if document.get("dry_run") else committing(begin)
    answer = yield request
    path = f"/loads/{segment(answer.document['load_id'])}"
    reported = _Reported(progress)
    while True:
        try:
            state = (yield Request("GET", path)).document
        except ServerUnavailableError as error:
            if request.changes:  # it has begun, and its outcome is unknown
                raise request.outcome_unknown(error.message) from error
            raise
        reported.report(state)
        if state["state"] == "done":
            return from_document(LoadResult, state["result"])
        if state["state"] == "failed":
            raise problems.raised(_FAILED, state["error"])
        yield Pause(_POLL_SECONDS)


class _Reported:
    """Passes on how far a server is."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._phase, self._total, self._done, self._rows = "", 0, 0, 0

    def report(self, state: Mapping[str, Any]) -> None:
        phase = state.get("phase") or ""
        total, done, rows = (state.get(name) or 0 for name in ("total", "done", "rows"))
        if phase != self._phase:
            self._phase, self._total, self._done, self._rows = phase, 0, 0, 0
        if total > self._total:
            self._progress.phase(phase, total - self._total)
        if done > self._done or rows > self._rows:
            self._progress.advance(done - self._done, rows - self._rows)
        self._total, self._done, self._rows = total, done, rows
