"""What a person names to look at: a branch as it is, a tag, a commit, or a branch at one of its states."""

from __future__ import annotations

from dataclasses import dataclass

from omnigraph.api.results import Commit, Snapshot
from omnigraph.core.refs import MAIN, branch_of, checked_name
from omnigraph.errors import CommitNotFoundError
from omnigraph.history.branches import find_commit
from omnigraph.history.branches import resolve as named_state
from omnigraph.manifest.publisher import Manifest
from omnigraph.manifest.state import ManifestState
from omnigraph.manifest.time_travel import state_at


@dataclass(frozen=True, slots=True)
class Target:
    """A state of the graph, and the commit that made it."""

    commit: Commit
    snapshot: Snapshot


def resolve(manifest: Manifest, text: str) -> Target:
    """Find the state that a text names: `branch`, `tag`, `commit`, `branch@commit` or `branch@version`."""
    name, at, which = text.strip().rpartition("@")
    if at:
        return _state_on(manifest, checked_name(name), which)
    which = checked_name(which)
    if which == MAIN or manifest.table.has_branch(which):
        return _head(manifest.load(branch_of(which)))
    if which in manifest.table.tags():
        return _head(named_state(manifest, which))
    return at_commit(manifest, find_commit(manifest, which))


def at_commit(manifest: Manifest, commit: Commit) -> Target:
    """Read the state that a commit made."""
    return Target(commit, state_at(manifest, commit).snapshot)


def _state_on(manifest: Manifest, name: str, which: str) -> Target:
    state = manifest.load(branch_of(name))
    found = state.commit(which)
    if found is None and which.isdecimal():
        made = [commit for commit in state.commits() if commit.manifest_version <= int(which)]
        found = made[-1] if made and int(which) <= state.version else None
    if found is None:
        message = f"branch '{name}' has no commit '{which}'"
        raise CommitNotFoundError(message, commit_id=which, hint=f"see `omnigraph commit list --branch {name}`")
    return at_commit(manifest, found)


def _head(state: ManifestState) -> Target:
    assert state.head is not None, "a graph begins with a commit"
    return Target(state.head, state.snapshot)
