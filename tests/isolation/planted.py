"""Bugs to plant, each of which lets some anomalies happen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from omnigraph.commit import checks, publish
from omnigraph.graph import Graph
from omnigraph.lang.source import Source
from omnigraph.storage import observe
from omnigraph.storage.read import TableReader
from omnigraph.write import mutation

Plant = Callable[[pytest.MonkeyPatch], None]


def each_statement_commits(patch: pytest.MonkeyPatch) -> None:
    """A mutation is as many transactions as it has statements."""
    whole = mutation.mutate

    def one_by_one(store: Any, asked: mutation.Mutation, embedding: Any) -> Any:
        first, *statements, last = asked.source.text.splitlines()
        done = None
        for number, statement in enumerate(statements):
            if number:
                observe.durable_write("stage between statements", store.location.uri)
            done = whole(store, replace(asked, source=Source(f"{first}\n{statement}\n{last}")), embedding)
        return done

    patch.setattr(mutation, "mutate", one_by_one)


def reads_follow_heads(patch: pytest.MonkeyPatch) -> None:
    """A reader opens what a table holds now, published or not."""
    patch.setattr(TableReader, "open", lambda self, table: self.head(table.path, table.branch))


def views_move(patch: pytest.MonkeyPatch) -> None:
    """A view, or a named state, is read as the branch is now."""

    def latest(self: Graph, _: str, __: str | None) -> Any:
        current, known = self._load_current()
        return current.graph_state, known.catalog

    patch.setattr(Graph, "_state", latest)


def conflicts_are_retried(patch: pytest.MonkeyPatch) -> None:
    """A change of rows that others changed since is applied to whatever is there now."""
    patch.setattr(publish, "refuse_if_lost", lambda *_: None)


def nothing_counts_as_read(patch: pytest.MonkeyPatch) -> None:
    """A plan says that it relied on nothing."""
    whole = mutation._Execution.plan

    def unread(self: Any, lineage: Any) -> Any:
        plan = whole(self, lineage)
        return plan and replace(plan, read_set=frozenset(), must_be_unchanged=frozenset())

    patch.setattr(mutation._Execution, "plan", unread)


def preconditions_are_ignored(patch: pytest.MonkeyPatch) -> None:
    for module in (checks, mutation):
        patch.setattr(module, "check_head_commit", lambda *_: None)
