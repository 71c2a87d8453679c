"""`log`: the history of a graph as a list, and as a drawing of its lanes."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence

from omnigraph.api.results import Commit, LogEntry
from omnigraph.core.refs import FOREIGN_LOCK, MAIN, parse_range
from omnigraph.history.ancestry import Ancestry
from omnigraph.history.branches import tags
from omnigraph.history.resolve import resolve
from omnigraph.manifest.publisher import Manifest
from omnigraph.manifest.state import ManifestState


def log(manifest: Manifest, refs: Sequence[str] | None) -> list[LogEntry]:
    """List the commits of some states, or of all branches, newest first and children before parents.

    `a..b` stands for the commits that b has and a lacks.
    """
    ranges = [one for ref in refs or () if (one := parse_range(ref, ".."))]
    single = [ref for ref in refs or () if parse_range(ref, "..") is None]
    named = manifest.states() if refs is None else ((ref.strip(), resolve(manifest, ref)) for ref in single)
    # The lock branch of another implementation is not a branch of a person.
    states = {name: state for name, state in named if name != FOREIGN_LOCK}
    commits = {commit.commit_id: commit for state in states.values() for commit in state.commits()}
    for since_ref, ref in ranges:
        since, state = resolve(manifest, since_ref), resolve(manifest, ref)
        states |= {ref: state}
        commits |= {commit.commit_id: commit for commit in _since(manifest, since, state)}
    # A ref such as `main~2` is no branch, so its state names no head.
    heads = {name: one.head.commit_id for name, one in states.items() if one.head and name == (one.branch or MAIN)}
    tagged = {tag.name: tag.commit.commit_id for tag in tags(manifest)}
    return [LogEntry(one, _names(heads, one), _names(tagged, one)) for one in newest_first(commits)]


def _since(manifest: Manifest, one: ManifestState, other: ManifestState) -> list[Commit]:
    """Return the commits that the second state has, and the first one lacks; those that merges brought in as well."""
    assert one.head, "a branch has commits"
    assert other.head, "a branch has commits"
    return Ancestry(manifest, (one, other)).brought_in(other.head, one.head)


def _names(places: Mapping[str, str], commit: Commit) -> tuple[str, ...]:
    return tuple(name for name, commit_id in places.items() if commit_id == commit.commit_id)


def parents_of(commit: Commit) -> list[str]:
    return [name for name in (commit.parent_id, commit.merged_parent_id) if name]


def newest_first(commits: Mapping[str, Commit]) -> Iterator[Commit]:
    """Yield commits by time, but children before their parents even if clocks were wrong."""
    # Kahn's algorithm with a heap: a commit is ready when all its children are out.
    children = dict.fromkeys(commits, 0)
    for commit in commits.values():
        for parent in parents_of(commit):
            if parent in children:
                children[parent] += 1
    ready = [_newest(commit) for commit in commits.values() if not children[commit.commit_id]]
    heapq.heapify(ready)
    while ready:
        commit = commits[heapq.heappop(ready)[1]]
        yield commit
        for parent in parents_of(commit):
            if parent in children:
                children[parent] -= 1
                if not children[parent]:
                    heapq.heappush(ready, _newest(commits[parent]))


def _newest(commit: Commit) -> tuple[int, str]:
    return -commit.created_at, commit.commit_id


def drawn(commits: Iterable[Commit]) -> Iterator[tuple[str, Commit | None]]:
    """Draw the lanes beside each commit; lines where lanes only part or meet have no commit.

    A lane is a line of descent on its way to the commit that it comes from. Commits must come as `newest_first` has
    them; one whose parents are not among them ends its lane.
    """
    known = list(commits)
    there = {commit.commit_id for commit in known}
    lanes: list[str] = []
    for commit in known:
        yield from ((line, None) for line in _met(lanes, commit.commit_id))
        if commit.commit_id not in lanes:
            lanes.append(commit.commit_id)
        at = lanes.index(commit.commit_id)
        yield " ".join("*" if lane == at else "|" for lane in range(len(lanes))), commit
        parents = [parent for parent in parents_of(commit) if parent in there]
        lanes[at : at + 1] = parents  # a merge opens a lane beside its own, the first commit closes its own
        if len(parents) > 1:
            yield "| " * at + "|\\" + " \\" * (len(lanes) - at - len(parents)), None
        elif not parents and at < len(lanes):
            yield "| " * at + " /" * (len(lanes) - at), None


def _met(lanes: list[str], commit_id: str) -> Iterator[str]:
    """Join all lanes that lead to a commit into the leftmost of them."""
    while lanes.count(commit_id) > 1:
        target = lanes.index(commit_id)
        last = len(lanes) - 1 - lanes[::-1].index(commit_id)
        yield "| " * target + "|_" * (last - target - 1) + "|/" + " /" * (len(lanes) - last - 1)
        del lanes[last]
