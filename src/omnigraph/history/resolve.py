"""Find the state or the commit that a ref names: the one resolver behind every call that takes the name of a state.

A name that an older graph uses twice means, in this order: the commit, if it is a whole commit id; the branch; the tag;
the commit whose id begins so. New names cannot collide (`history/branches.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice

from omnigraph.api.results import Commit, Snapshot, TableVersion
from omnigraph.commit.store import Store
from omnigraph.core.refs import MAIN, SHORTEST_PREFIX, Ref, branch_of, is_commit_id, parse_ref, reads_as_commit
from omnigraph.errors import (
    AmbiguousRefError,
    BranchNotFoundError,
    ChangeRequestError,
    CommitNotFoundError,
    OmnigraphError,
    RefNameError,
    StorageError,
)
from omnigraph.lang.source import did_you_mean
from omnigraph.manifest.publisher import Manifest
from omnigraph.manifest.rows import StateTables
from omnigraph.manifest.state import GraphState, ManifestState
from omnigraph.manifest.time_travel import reclaimed, state_at
from omnigraph.storage.lance_errors import Failure, classify
from omnigraph.storage.read import TableReader
from omnigraph.storage.reclaim import versions

_SHOWN = 5  # candidates of an ambiguous prefix
_LONGEST_VERSION = 20  # digits of a version of 64 bits
Missing = Callable[[Manifest, str], OmnigraphError]


def no_branch(manifest: Manifest, name: str) -> BranchNotFoundError:
    """The error for a name where people most often give a branch."""
    message = f"no branch, tag or commit '{name}'"
    return BranchNotFoundError(message, branch=name, hint=_suggestion(manifest, name, "see `omnigraph branch list`"))


def no_commit(manifest: Manifest, name: str) -> CommitNotFoundError:
    """The error for a name where people most often give a commit id."""
    message = f"commit '{name}' not found" if reads_as_commit(name) else f"no commit, branch or tag '{name}'"
    hint = _suggestion(manifest, name, "see `omnigraph commit list`")
    return CommitNotFoundError(message, commit_id=name, hint=hint)


def resolve(manifest: Manifest, text: str, missing: Missing = no_branch) -> ManifestState:
    """Load the state that a ref names. `missing` makes the error if there is none."""
    return _locate(manifest, parse_ref(text), missing).load(manifest)


def state_to_read(manifest: Manifest, branch: str, snapshot: str | None) -> GraphState:
    """Load the state that a read names: `snapshot` if it is given, else `branch`. Both take any ref."""
    state = resolve(manifest, branch)  # a branch that does not exist is an error, with a snapshot too
    if snapshot is not None:
        state = _locate(manifest, _commit_ref(snapshot), no_commit).load(manifest)
    return state.graph_state


def graph_state_at(manifest: Manifest, commit: Commit) -> GraphState:
    """Read the state that a commit made."""
    return GraphState(state_at(manifest, commit).snapshot, commit)


def resolve_readable(store: Store, text: str) -> ManifestState:
    """Load the state that a ref names; raise HistoryReclaimedError if a cleanup has removed tables of it."""
    state = resolve(store.manifest, text)
    if parse_ref(text) == Ref(state.branch or MAIN) or state.head is None:
        return state  # a branch as it is now: a cleanup never removes that
    check_readable(store.tables, state.head, tables_of(state.snapshot).values())
    return state


def tables_of(snapshot: Snapshot) -> StateTables:
    tables = {key: entry.table for key, entry in snapshot.entries.items()}
    return StateTables(tables, snapshot.schema, is_known=True)


def check_readable(reader: TableReader, commit: Commit, tables: Iterable[TableVersion]) -> None:
    """Raise HistoryReclaimedError if a cleanup has removed one of the tables that a commit consists of.

    The storage is asked, not a handle: one that was opened before a cleanup proves nothing.
    """
    if not all(reader.has_version(table) for table in tables):
        raise reclaimed(commit)


@dataclass(frozen=True, slots=True)
class TypeRef:
    """A type by its name, and by its kind if a node type and an edge type have that name."""

    name: str
    kind: str | None = None

    def key(self, known: Collection[str]) -> str:
        """Find the table of the type among those of a state."""
        kinds = ("node", "edge") if self.kind is None else (self.kind,)
        found = [key for kind in kinds if (key := f"{kind}:{self.name}") in known]
        if len(found) == 1:
            return found[0]
        if found:
            message = f"'{self.name}' is a node type and an edge type"
            raise ChangeRequestError(message, option="kind", hint="say which one with the kind node or edge")
        names = sorted(key.partition(":")[2] for key in known)
        hint = did_you_mean(self.name, names) or "name a type of the schema"
        raise ChangeRequestError(f"type '{self.name}' not found", option="type", hint=hint)


@contextmanager
def explaining_reclaimed(
    reader: TableReader, sides: Callable[[], Iterable[tuple[Commit | None, Iterable[TableVersion]]]]
) -> Iterator[None]:
    """Raise HistoryReclaimedError for a file that is missing because a cleanup removed it while it was read."""
    try:
        yield
    except StorageError as error:
        if classify(error) is Failure.NOT_FOUND:
            # Only a version that is no longer listed was cleaned up. Any other missing file is damage, and is reported.
            for commit, tables in sides():
                if commit and any(one.version not in versions(reader, one.path, one.branch) for one in tables):
                    raise reclaimed(commit) from error
        raise


def find_commit(manifest: Manifest, text: str) -> Commit:
    """Find the commit that a ref names. Its state need not be readable any more."""
    commit = _locate(manifest, _commit_ref(text), no_commit).commit
    if commit is None:
        raise no_commit(manifest, text)
    return commit


def _commit_ref(text: str) -> Ref:
    """Parse a ref where a commit is expected: a text that can name nothing is a commit that is not there."""
    try:
        return parse_ref(text)
    except RefNameError as error:
        raise CommitNotFoundError(f"no commit {text!r:.80}", commit_id=text, hint=error.hint) from error


@dataclass(frozen=True, slots=True)
class _Found:
    """A commit, and a state from which it and all its first parents are seen."""

    commit: Commit | None
    seen_in: ManifestState

    @classmethod
    def head_of(cls, state: ManifestState) -> _Found:
        return cls(state.head, state)

    def load(self, manifest: Manifest) -> ManifestState:
        """Load the state that the commit made; a graph that never had commits has only the state it was found in."""
        if self.commit is None or self.commit == self.seen_in.head:
            return self.seen_in
        return state_at(manifest, self.commit)


def _locate(manifest: Manifest, ref: Ref, missing: Missing) -> _Found:
    found = _named(manifest, ref.name)
    if found is None:
        raise (missing if ref.at is None else no_branch)(manifest, ref.name)
    if ref.at is not None:
        found = _at(found, ref.name, ref.at)
    return _back(found, ref) if ref.back else found


def _named(manifest: Manifest, name: str) -> _Found | None:
    """Find what a name without `@` and `~` means, in the order that the module documents."""
    # First: programs pass ids that they got from results, and a branch of that name must not change what they mean.
    if is_commit_id(name) and (found := _commit(manifest, name)):
        return found
    # A branch is the common case, and loading it costs as much as asking whether it exists.
    with suppress(BranchNotFoundError):
        return _Found.head_of(manifest.load(branch_of(name)))
    tag = manifest.table.tags().get(name)
    if tag:
        return _Found.head_of(manifest.load_tag(name, tag))
    return _commit(manifest, name)


def _commit(manifest: Manifest, name: str) -> _Found | None:
    """Find the one commit whose id is or begins with a name, on whichever branch has it."""
    found: dict[str, _Found] = {}
    for _, state in manifest.states():
        exact = state.commit(name)
        if exact:
            return _Found(exact, state)
        if len(name) >= SHORTEST_PREFIX:
            found |= {commit.commit_id: _Found(commit, state) for commit in state.commits_like(name)}
    _refuse_ambiguous(name, [*found])
    return next(iter(found.values()), None)


def _refuse_ambiguous(name: str, ids: Sequence[str]) -> None:
    if len(ids) > 1:
        shown = ", ".join(sorted(ids)[:_SHOWN]) + (f" and {len(ids) - _SHOWN} more" if len(ids) > _SHOWN else "")
        message = f"'{name}' is ambiguous: {len(ids)} commit ids begin with it"
        raise AmbiguousRefError(message, name=name, candidates=sorted(ids), hint=f"give more characters of {shown}")


def _at(found: _Found, name: str, which: str) -> _Found:
    """Go to a manifest version or a commit of the history that a name has."""
    state = found.seen_in
    commits = [one for one in state.commits() if found.commit is None or one.order <= found.commit.order]
    by_id = {commit.commit_id: commit for commit in commits}
    if which in by_id:
        return _Found(by_id[which], state)
    # A version between two commits, such as that of a migration, is the state of the earlier one.
    # By its length first: Python refuses to read a number of more than 4,300 digits.
    is_version = which.isdecimal() and len(which) < _LONGEST_VERSION
    if is_version and commits and int(which) <= max(state.version, commits[-1].manifest_version):
        made = [commit for commit in commits if commit.manifest_version <= int(which)]
        if made:
            return _Found(made[-1], state)
    elif len(which) >= SHORTEST_PREFIX:
        alike = [commit for commit in state.commits_like(which) if commit.commit_id in by_id]
        _refuse_ambiguous(which, [commit.commit_id for commit in alike])
        if alike:
            return _Found(alike[0], state)
    hint = f"see `omnigraph commit list --branch {name}`"
    raise CommitNotFoundError(f"'{name}' has no commit or version '{which}'", commit_id=which, hint=hint)


def _back(found: _Found, ref: Ref) -> _Found:
    line = list(islice(found.seen_in.first_parents(found.commit), ref.back + 1)) if found.commit else []
    if len(line) <= ref.back:
        most = max(len(line) - 1, 0)
        message = f"'{ref}' is before the first commit: '{Ref(ref.name, ref.at)}' has {most} ancestors"
        raise CommitNotFoundError(message, commit_id=str(ref), hint=f"go back at most {most}")
    return _Found(line[-1], found.seen_in)


def _suggestion(manifest: Manifest, name: str, otherwise: str) -> str:
    """Suggest the branch, tag or commit whose name is closest to one that is not there."""
    close = did_you_mean(name, [*manifest.branches(), *manifest.table.tags()])
    if close or not reads_as_commit(name):
        return close or otherwise
    # A prefix is compared with as much of each id as it has itself.
    # Only when there is nothing to return anyway: this reads the whole history.
    ids = {commit.commit_id[: len(name)] for _, state in manifest.states() for commit in state.commits()}
    return did_you_mean(name, ids) or otherwise
