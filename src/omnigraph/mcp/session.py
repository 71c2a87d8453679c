"""What the tools of one caller work on: a graph, the caller's permissions, and the branch of its changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from omnigraph.api.access import READS, Action, Caller
from omnigraph.api.protocol import GraphAPI
from omnigraph.api.results import MutationResult
from omnigraph.api.rows import Result
from omnigraph.core.refs import MAIN

RunStored = Callable[[GraphAPI, Mapping[str, Any], str, str | None], Result | MutationResult]
"""Runs a stored query with its parameters, on a branch or at a snapshot."""


@dataclass(frozen=True, slots=True)
class StoredTool:
    """A stored query that is exposed as a tool. `params` describe its parameters, as `GET /queries` does."""

    name: str
    tool_name: str
    is_mutation: bool
    params: Sequence[Mapping[str, Any]]
    run: RunStored
    description: str | None = None
    instruction: str | None = None


@dataclass(frozen=True, slots=True)
class Session:
    """One caller. `branch` is read, and `own` written, where a call names no branch; without `own`, both are `branch`.

    `actor` names the branches of its proposals.
    """

    graph: GraphAPI
    caller: Caller = field(default_factory=partial(Caller.of, None))
    actor: str = "anonymous"
    branch: str = MAIN
    own: str | None = None
    stored: Sequence[StoredTool] = ()
    read_only: bool = False
    allow_merge: bool = False
    # Takes a place among the changes that a server runs at once; see `server.admission`.
    admit: Callable[[], AbstractContextManager[None]] = nullcontext

    def allows(self, action: Action) -> bool:
        """Return whether the caller could do this on some branch: tools that are never allowed are not listed."""
        return action in self.caller.actions and (action in READS or not self.read_only)

    def branch_to_read(self, given: str | None) -> str:
        """The branch of a read. Its own changes are read back: the session's branch, once it exists."""
        if given is not None:
            return given
        return self.own if self.own is not None and self.own in self.graph.branches() else self.branch

    def branch_to_write(self, given: str | None) -> str:
        """The branch of a change; the session's own one is created by the first of them."""
        if given is not None:
            return given
        return self.branch if self.own is None else self.ensure(self.own, self.branch)

    def ensure(self, name: str, base: str) -> str:
        """Create a branch unless it exists."""
        if name not in self.graph.branches():
            self.graph.create_branch(name, base)
        return name
