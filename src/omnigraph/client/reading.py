"""The calls that read a graph."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from omnigraph.api import documents
from omnigraph.api.http import ARROW
from omnigraph.api.results import Commit, Snapshot
from omnigraph.api.rows import Explanation, Result
from omnigraph.client.asking import QUERY, given_source, members, options, parameters, segment
from omnigraph.client.steps import Request, Steps
from omnigraph.core.refs import MAIN
from omnigraph.lang.catalog import Catalog
from omnigraph.lang.schema_check import compile_schema
from omnigraph.lang.source import Source


@dataclass(frozen=True, slots=True)
class Asked:
    """Which state a read is of: a branch, or a commit, which then counts alone."""

    branch: str
    snapshot: str | None

    def members(self) -> dict[str, Any]:
        return {"branch": self.branch} if self.snapshot is None else {"snapshot": self.snapshot}


class ReadCalls:
    """What reads a graph that is served."""

    def _source(self) -> Steps[str]:
        answer = yield Request("GET", "/schema")
        text: str = answer.document["schema_source"]
        return text

    def schema(self) -> Steps[str]:
        """The accepted schema, as it was written."""
        return self._source()

    def catalog(self) -> Steps[Catalog]:
        """The types of the accepted schema."""
        return compile_schema(Source((yield from self._source())))

    def snapshot(self, branch: str = MAIN) -> Steps[Snapshot]:
        """Capture which version of each table the graph consists of now."""
        answer = yield Request("GET", "/snapshot", options(branch=branch))
        return documents.snapshot_of(answer.document)

    def commits(self, branch: str = MAIN, actor: str | None = None) -> Steps[list[Commit]]:
        """List the commits of a branch, newest first, optionally those of one actor."""
        answer = yield Request("GET", "/commits", options(branch=branch))
        found = documents.commits_of(answer.document)
        return [commit for commit in found if actor is None or commit.actor_id == actor]

    def commit(self, commit_id: str) -> Steps[Commit]:
        """Find a commit on whichever branch has it."""
        answer = yield Request("GET", f"/commits/{segment(commit_id)}")
        return documents.commit_of(answer.document)

    def query(
        self,
        source: str | os.PathLike[str],
        params: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
        branch: str = MAIN,
        snapshot: str | None = None,
    ) -> Steps[Result]:
        """Run a query that reads. It sees one state of the graph: the branch as it is, or as it was at a commit."""
        with given_source(source, ".gq", QUERY) as text:
            document = members(query=text, name=name, params=parameters(params), **Asked(branch, snapshot).members())
            answer = yield Request("POST", "/query", document=document, accept=ARROW)
        from omnigraph.api import arrow  # noqa: PLC0415 - loads Arrow

        return arrow.result_of(answer.content, branch.strip())

    def explain(
        self,
        source: str | os.PathLike[str],
        params: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
        branch: str = MAIN,
        snapshot: str | None = None,
    ) -> Steps[Explanation]:
        """Run a query that reads, and tell how it was done: its steps, their rows and what they cost."""
        with given_source(source, ".gq", QUERY) as text:
            document = members(query=text, name=name, params=parameters(params), **Asked(branch, snapshot).members())
            answer = yield Request("POST", "/explain", document=document)
        return replace(documents.explanation_of(answer.document), branch=branch.strip())
