"""Branches and tags: names for states of the graph that move, and names for states that do not."""

from __future__ import annotations

import logging

from omnigraph.api.results import Commit, TableVersion, Tag
from omnigraph.commit import failpoints
from omnigraph.commit.plan import ref_gates
from omnigraph.commit.publish import check_head_commit
from omnigraph.commit.recovery import heal
from omnigraph.commit.store import Store
from omnigraph.core.refs import MAIN, checked_name, checked_tag
from omnigraph.errors import (
    BranchInUseError,
    BranchNotFoundError,
    CommitNotFoundError,
    OmnigraphError,
    RefExistsError,
    RefNameError,
    SchemaBoundaryError,
    StorageError,
    TagNotFoundError,
)
from omnigraph.manifest.publisher import Manifest
from omnigraph.manifest.state import ManifestState
from omnigraph.manifest.time_travel import reclaimed, state_at
from omnigraph.storage.lance_errors import Failure, classify

_LOG = logging.getLogger(__name__)


def create_branch(store: Store, name: str, base: str) -> ManifestState:
    """Make a branch that begins as its base is: another branch, a tag or a commit. No data is copied."""
    name = checked_name(name)
    _refuse_main(name)
    with store.gates.hold(ref_gates(name)) as held:
        _refuse_taken(name, [one for one in store.manifest.branches() if one != MAIN])
        source = _kept(store, base)
        _refuse_other_schema(store.manifest, base, source)
        held.check()
        store.manifest.create_branch(name, source)
    failpoints.reach(failpoints.BRANCH_CREATED)
    return source


def _refuse_other_schema(manifest: Manifest, base: str, source: ManifestState) -> None:
    """All branches have one schema, so that each can be merged into any other."""
    if source.schema != manifest.load().schema:
        message = f"the schema was changed since '{base}': no branch can begin there"
        raise SchemaBoundaryError(message, hint="read it as a snapshot, or begin at a later commit")


def _refuse_main(name: str) -> None:
    if name == MAIN:
        raise RefNameError(f"'{MAIN}' is there in every graph", name=name, hint="choose another name")


def _refuse_taken(name: str, names: list[str]) -> None:
    """No name may lie below another: a branch is a directory, and one inside of another would go with it."""
    for other in names:
        if other == name:
            raise RefExistsError(
                f"'{name}' is there already", name=name, hint="choose another name, or delete it first"
            )
        if other.startswith(f"{name}/") or name.startswith(f"{other}/"):
            message = f"'{name}' cannot be beside '{other}': one name is a part of the other"
            raise RefExistsError(message, name=name, hint="choose another name")


def resolve(manifest: Manifest, ref: str) -> ManifestState:
    """Find the state that a branch, a tag or a commit id names."""
    ref = checked_name(ref)
    if ref == MAIN or manifest.table.has_branch(ref):
        return manifest.load(None if ref == MAIN else ref)
    tag = manifest.table.tags().get(ref)
    if tag:
        return manifest.load(tag["branch"], tag["version"])
    try:
        commit = find_commit(manifest, ref)
    except CommitNotFoundError as error:
        message = f"there is no branch, tag or commit '{ref}'"
        raise BranchNotFoundError(message, branch=ref, hint="see `omnigraph branch list`") from error
    return state_at(manifest, commit)


def _kept(store: Store, ref: str) -> ManifestState:
    """Find the state that a name means, and see that it can be read: of a commit a cleanup may have removed tables."""
    state = resolve(store.manifest, ref)
    if state.head and state.head.commit_id == ref.strip():
        try:
            for entry in state.snapshot.entries.values():
                store.tables.open(entry.table)
        except StorageError as error:
            if classify(error) is not Failure.NOT_FOUND:
                raise
            raise reclaimed(state.head) from error
    return state


def find_commit(manifest: Manifest, commit_id: str) -> Commit:
    """Find a commit on whichever branch has it."""
    for name in manifest.branches():
        found = manifest.load(None if name == MAIN else name).commit(commit_id)
        if found:
            return found
    raise CommitNotFoundError(f"commit '{commit_id}' not found", commit_id=commit_id)


def delete_branch(store: Store, name: str, if_head: str | None = None) -> None:
    """Delete a branch and what only it had. It is gone with its name; what cannot be removed then is for cleanup.

    With `if_head` it is deleted only if it is at that commit.
    """
    name = checked_name(name)
    if name == MAIN:
        raise RefNameError(f"'{MAIN}' cannot be deleted", name=name, hint="name another branch")
    heal(store)
    with store.gates.hold(ref_gates(name)) as held:
        known = store.manifest.table.branches()
        if name not in known:
            raise BranchNotFoundError(f"branch '{name}' not found", branch=name)
        users = [f"branch '{other}'" for other, one in known.items() if one["parent_branch"] == name]
        users += [f"tag '{tag}'" for tag, one in store.manifest.table.tags().items() if one["branch"] == name]
        if users:
            message = f"branch '{name}' is needed by {', '.join(sorted(users))}"
            raise BranchInUseError(message, branch=name, hint="delete what was made from it first")
        state = store.manifest.load(name)
        if if_head is not None:
            check_head_commit(if_head, state)
        forks = [entry.table for entry in state.snapshot.entries.values()]
        held.check()
        store.manifest.delete_branch(name)
    failpoints.reach(failpoints.BRANCH_DELETED)
    _reclaim(store, [table for table in forks if table.owner == name])


def _reclaim(store: Store, forks: list[TableVersion]) -> None:
    for table in forks:
        assert table.branch
        try:
            store.tables.delete_fork(table.path, table.branch)
        except OmnigraphError as error:
            _LOG.warning("fork '%s' of table '%s' is left to cleanup: %s", table.branch, table.key, error.message)


def create_tag(store: Store, name: str, ref: str) -> Tag:
    """Give a commit a name. What a tag names is kept by cleanup."""
    name = checked_tag(name)
    _refuse_main(name)
    with store.gates.hold(ref_gates()) as held:
        _refuse_taken(name, [*store.manifest.table.tags()])
        head = _kept(store, ref).head
        assert head, "a branch has commits"
        held.check()
        store.manifest.table.create_tag(name, head.branch, head.manifest_version)
    return Tag(name, head)


def tags(manifest: Manifest) -> list[Tag]:
    """List the tags by name."""
    return [_tag(manifest, name, found) for name, found in sorted(manifest.table.tags().items())]


def _tag(manifest: Manifest, name: str, found: dict[str, object]) -> Tag:
    branch, version = found["branch"], found["version"]
    assert branch is None or isinstance(branch, str)
    assert isinstance(version, int)
    head = manifest.load(branch, version).head
    assert head, "a tag names a commit"
    return Tag(name, head)


def delete_tag(store: Store, name: str) -> None:
    name = checked_tag(name)
    with store.gates.hold(ref_gates()) as held:
        if name not in store.manifest.table.tags():
            raise TagNotFoundError(f"tag '{name}' not found", tag=name, hint="see `omnigraph tag list`")
        held.check()
        store.manifest.table.delete_tag(name)
