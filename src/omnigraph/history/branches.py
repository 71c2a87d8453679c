"""Create, list and delete branches and tags."""

from __future__ import annotations

import logging
from contextlib import suppress

from omnigraph.api.results import Tag
from omnigraph.commit import failpoints
from omnigraph.commit.checks import check_head_commit
from omnigraph.commit.plan import ref_gates
from omnigraph.commit.recovery import heal
from omnigraph.commit.store import Store
from omnigraph.core.refs import MAIN, checked_name, checked_tag, parse_ref, reads_as_commit
from omnigraph.errors import (
    BranchInUseError,
    BranchNotFoundError,
    BranchProtectedError,
    CorruptGraphError,
    HistoryReclaimedError,
    RefExistsError,
    RefNameError,
    StorageError,
    TagNotFoundError,
)
from omnigraph.history.old_merges import record_old_merges
from omnigraph.history.resolve import resolve_readable
from omnigraph.lang.source import did_you_mean
from omnigraph.manifest.publisher import Manifest
from omnigraph.manifest.state import ManifestState
from omnigraph.manifest.time_travel import state_at

_LOG = logging.getLogger(__name__)


def create_branch(store: Store, name: str, base: str) -> ManifestState:
    """Create a branch at any state of the graph. No data is copied."""
    name = checked_name(name)
    _refuse_unclear(name)
    # The gates keep a cleanup away: it must not remove the state between the check that it is readable and the branch.
    with store.gates.hold(ref_gates(name)) as held:
        _refuse_taken(store.manifest, name)
        # Inside the gate: of two creators of `a` and `a/b` the second must see the first.
        _refuse_nested(store.manifest, name)
        source = _where_made(store.manifest, base, resolve_readable(store, base))
        held.check()
        store.manifest.create_branch(name, source)
        store.sync()
    failpoints.reach(failpoints.BRANCH_CREATED)
    return source


def _where_made(manifest: Manifest, base: str, source: ManifestState) -> ManifestState:
    """Return the state on the branch that made its commit, if it is still there and `base` names no other branch.

    Other branches may be at the same commit. They could not be deleted any more if the new one was made from them.
    """
    if source.head is None or parse_ref(base).name == (source.branch or MAIN) or source.head.branch == source.branch:
        return source
    with suppress(BranchNotFoundError, HistoryReclaimedError):
        made = state_at(manifest, source.head)
        # A branch that took the name of the one that made it has another commit there.
        return made if made.head == source.head else source
    return source


def _refuse_unclear(name: str) -> None:
    """Refuse a name that reads as something else, which it would shadow wherever a state is named."""
    if name == MAIN:
        raise RefNameError(f"branch '{MAIN}' already exists", name=name, hint="choose another name")
    if reads_as_commit(name):
        message = f"'{name}' reads as the id of a commit, or the beginning of one"
        raise RefNameError(message, name=name, hint="choose another name, such as one with a `-`")


def _refuse_taken(manifest: Manifest, name: str) -> None:
    """Refuse the name of a branch or a tag: one would shadow the other."""
    for kind, names in (("branch", manifest.branches()), ("tag", manifest.table.tags())):
        if name in names:
            hint = "choose another name, or delete it first"
            raise RefExistsError(f"{kind} '{name}' already exists", name=name, hint=hint)


def _refuse_nested(manifest: Manifest, name: str) -> None:
    """Refuse a name below another: Lance stores a branch as a directory, and deleting one would delete both."""
    for other in manifest.branches():
        if other.startswith(f"{name}/") or name.startswith(f"{other}/"):
            message = f"branch '{name}' cannot exist beside '{other}': one name lies below the other"
            raise RefExistsError(message, name=name, hint="choose another name")


def delete_branch(store: Store, name: str, if_head: str | None = None) -> None:
    """Delete a branch. Its name is free at once; a cleanup removes the files that no merge can need any more.

    With `if_head`, delete it only if it is at that commit.
    """
    name = checked_name(name)
    if name == MAIN:
        raise RefNameError(f"branch '{MAIN}' cannot be deleted", name=name, hint="name another branch")
    heal(store)  # an interrupted write to the branch must not be recovered after its files are gone
    record_old_merges(store, name)
    with store.gates.hold(ref_gates(name)) as held:
        known = store.manifest.table.branches()
        if name not in known:
            raise store.manifest.missing(name)
        # Lance branches and tags share files with the branch they were made from.
        users = [f"branch '{other}'" for other, one in known.items() if one["parent_branch"] == name]
        users += [f"tag '{tag}'" for tag, one in store.manifest.table.tags().items() if one["branch"] == name]
        if users:
            message = f"branch '{name}' is needed by {', '.join(sorted(users))}"
            raise BranchInUseError(message, branch=name, hint="delete what was made from it first")
        _refuse_rule(store, name)
        # Without a condition nothing of it is read: a branch that cannot be read can still be deleted.
        if if_head is not None:
            check_head_commit(if_head, store.manifest.load(name))
        held.check()
        store.manifest.delete_branch(name)
        store.sync()
    # The forks of its tables stay until a cleanup: what it was merged into may need them to be merged itself.
    failpoints.reach(failpoints.BRANCH_DELETED)


def _refuse_rule(store: Store, name: str) -> None:
    """Refuse to delete a protected branch. One that cannot be read protects nothing."""
    with suppress(StorageError, CorruptGraphError, BranchNotFoundError):
        if store.manifest.rule_of(store.manifest.load(name)):
            message = f"branch '{name}' is protected and cannot be deleted"
            hint = f"lift its rule first: `omnigraph branch unprotect {name}`"
            raise BranchProtectedError(message, branch=name, hint=hint)


def create_tag(store: Store, name: str, ref: str) -> Tag:
    """Create an immutable name for a commit. Cleanup keeps what a tag names."""
    name = checked_tag(name)
    _refuse_unclear(name)
    with store.gates.hold(ref_gates()) as held:
        _refuse_taken(store.manifest, name)
        state = resolve_readable(store, ref)
        held.check()  # a lease that expired meanwhile would let a cleanup in
        head = store.manifest.create_tag(name, state)
        store.sync()
    return Tag(name, head)


def tags(manifest: Manifest) -> list[Tag]:
    """List the tags by name."""
    found = []
    for name, tag in sorted(manifest.table.tags().items()):
        head = manifest.load_tag(name, tag).head
        assert head, "a tag names a commit"
        found.append(Tag(name, head))
    return found


def delete_tag(store: Store, name: str) -> None:
    name = checked_tag(name)
    with store.gates.hold(ref_gates()) as held:
        known = store.manifest.table.tags()
        if name not in known:
            hint = did_you_mean(name, known) or "see `omnigraph tag list`"
            raise TagNotFoundError(f"tag '{name}' not found", tag=name, hint=hint)
        held.check()
        store.manifest.table.delete_tag(name)
        store.sync()
