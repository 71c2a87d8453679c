"""Merges of releases before 0.2.0: what they brought in is recorded while the branches that have it still exist."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace

from omnigraph.api.results import Commit
from omnigraph.commit.plan import PublishPlan, WriterKind
from omnigraph.commit.publish import begin, publish
from omnigraph.commit.store import Store
from omnigraph.core.refs import MAIN, branch_of
from omnigraph.errors import BranchNotFoundError, OmnigraphError
from omnigraph.history.ancestry import Ancestry
from omnigraph.history.common_past import MergeBases
from omnigraph.manifest.publisher import Lineage
from omnigraph.manifest.rows import MergedPast
from omnigraph.manifest.state import ManifestState

ACTOR = "omnigraph:merges"
MARK = "__merges.json"  # while it is missing, some merge may have recorded nothing


def record_old_merges(store: Store, doomed: str) -> None:
    """Record what older merges brought in, in one commit on each branch that has some, before a branch is deleted.

    Until the first one is, the second parents of all merges can be found on their branches.
    """
    if store.objects.read_if_exists(MARK) is not None or doomed not in store.manifest.branches():
        return
    states = _readable(store)
    for name, state in states.items():
        past = _brought_in(store, state, states.values())
        if past.commits:
            lineage = Lineage.new(ACTOR, None, {"recorded": "merges of older releases"})
            txn = begin(store, branch_of(name))
            lineage = replace(lineage, past=past.to_document())
            publish(store, PublishPlan(txn, WriterKind.BRANCH_MERGE, (), lineage=lineage))
    # Only if every branch was read: the mark says that nothing is missing, for good.
    if len(states) == len(store.manifest.branches()):
        store.objects.write(MARK, json.dumps({"recorded": sorted(states)}).encode())


def unknown_merges(states: Iterable[ManifestState]) -> list[Commit]:
    """Return the merges whose second parent is on no branch any more, and that recorded nothing."""
    states = [*states]
    known = _known(states)
    merges = {one.commit_id: one for state in states for one in state.commits() if one.merged_parent_id}
    return [merges[name] for name in sorted(merges) if merges[name].merged_parent_id not in known]


def _readable(store: Store) -> dict[str, ManifestState]:
    """Return the states of all branches that can be read: one that cannot must not keep others from being deleted."""
    found = {}
    for name in store.manifest.branches():
        try:
            found[name] = store.manifest.load(branch_of(name))
        except BranchNotFoundError:
            continue  # deleted since it was listed
        except OmnigraphError:
            if name == MAIN:
                raise
    return found


def _known(states: Iterable[ManifestState]) -> dict[str, Commit]:
    known: dict[str, Commit] = {}
    for state in states:
        known |= {commit.commit_id: commit for past in state.merged_pasts() for commit in past.commits}
    for state in states:  # what a branch says itself has all the details
        known |= {commit.commit_id: commit for commit in state.commits()}
    return known


def _brought_in(store: Store, state: ManifestState, states: Iterable[ManifestState]) -> MergedPast:
    """Return the commits that a branch has through its merges, and of which it knows only the names."""
    known, own = _known(states), _known([state])
    commits: dict[str, Commit] = {}
    waiting = [one.merged_parent_id for one in own.values()]
    while waiting:
        name = waiting.pop()
        if name in known and name not in own and name not in commits:
            commits[name] = one = known[name]
            waiting += [one.parent_id, one.merged_parent_id]
    bases = MergeBases(store.manifest, Ancestry(store.manifest, [*states]))
    return bases.recorded(dict(sorted(commits.items())), known, {})
