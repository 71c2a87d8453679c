"""Which plans can be published together: those that would have been prepared the same way one after the other.

A plan that only inserts rows relies on little: the values that must be unique are free, and what its edges name exists.
Other inserts cannot change the second, and the first is compared. All other plans rely on every row of their tables.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.commit.plan import Inserted, OpClass, PublishPlan, TableAction, WriterKind
from omnigraph.manifest.publisher import Published
from omnigraph.manifest.state import HEAD, ManifestState
from omnigraph.storage.stage import after_fold, staged_on

Moved = Mapping[str, Inserted | None]
"""What a commit did to its tables: what it inserted; None if it did anything else."""

_KINDS = (WriterKind.MUTATION, WriterKind.LOAD)
_UPKEEP = (WriterKind.OPTIMIZE, WriterKind.ENSURE_INDICES)
_MOST_COMMITS = 256
_MOST_BYTES = 2**22


def can_wait(plan: PublishPlan) -> bool:
    """Return whether a plan may be published together with others. It may still find that it cannot join some."""
    alone = (plan.registrations, plan.tombstones, plan.adoptions, plan.schema, plan.if_head, plan.txn.forks)
    lineage = plan.lineage
    return (
        plan.kind in _KINDS
        and bool(plan.actions)
        and not any(alone)
        and HEAD not in plan.read_set
        and not (lineage.merged_parent_id or lineage.past or lineage.batch)
        and all(map(_is_simple, plan.actions))
    )


def _is_simple(action: TableAction) -> bool:
    """Return whether an action is one step that leaves the other rows of its table in place."""
    staged = action.staged
    return action.op_class is OpClass.LOGICAL and not staged.then and not staged.is_overwrite


def moved_by(plan: PublishPlan) -> Moved:
    """Return what a plan does to its tables."""
    if plan.kind in _UPKEEP:  # no row changes
        return dict.fromkeys(plan.table_keys, _NOTHING)
    known = {} if plan.txn.forks else plan.inserted or {}
    return {key: known.get(key) for key in plan.table_keys}


_NOTHING: Inserted = {}


def can_follow(plan: PublishPlan, earlier: Iterable[Moved]) -> bool:
    """Return whether a plan would have been prepared the same way after some commits."""
    return not any(_collides(plan, key, moved[key]) for moved in earlier for key in plan.relied_on & moved.keys())


def _collides(plan: PublishPlan, key: str, inserted: Inserted | None) -> bool:
    if inserted is None or plan.inserted is None or key in plan.must_be_unchanged:
        return True
    mine = plan.inserted.get(key, _NOTHING)
    return any(_overlap(mine[columns], inserted[columns]) for columns in mine.keys() & inserted.keys())


def with_folds(plan: PublishPlan, earlier: Iterable[PublishPlan] = ()) -> PublishPlan:
    """Return a checked plan with the folds that come first: of tables that are as they were when it was staged."""
    moved = {key for one in earlier for key in one.table_keys}
    return replace(plan, actions=tuple(_folded(action, moved) for action in plan.actions))


def _folded(action: TableAction, moved: Collection[str]) -> TableAction:
    staged, fold = action.staged, action.fold
    fits = fold is not None and fold.base == staged.base and action.table_key not in moved
    return replace(action, fold=None, staged=after_fold(staged, fold) if fold and fits else staged)


def _overlap(one: pa.Table, two: pa.Table) -> bool:
    if one.num_columns == 1:
        return bool(pc.any(pc.is_in(one.column(0), two.column(0).combine_chunks())).as_py())
    return bool(one.join(two, keys=one.column_names, join_type="inner").num_rows)


def carried(plan: PublishPlan, state: ManifestState, recent: Recent) -> PublishPlan:
    """Return a plan as if it had been prepared on a later state; the plan itself if it might differ then."""
    base = plan.txn.base
    if base.version == state.version or plan.inserted is None or base.schema != state.schema:
        return plan
    between = recent.between(base, state)
    if between is None or not can_follow(plan, between):
        return plan
    actions = tuple(
        replace(action, staged=staged_on(action.staged, state.actual_version(action.table_key)))
        for action in plan.actions
    )
    return replace(plan, txn=replace(plan.txn, base=state), actions=actions)


@dataclass(frozen=True, slots=True)
class _Commit:
    parent_id: str | None
    moved: Moved
    size: int


class Recent:
    """What the newest commits of this process inserted: a plan prepared before them may still be right after them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._commits: OrderedDict[str, _Commit] = OrderedDict()
        self._size = 0

    def add(self, plan: PublishPlan, published: Published) -> None:
        moved = moved_by(plan)
        size = sum(values.nbytes for one in moved.values() if one for values in one.values())
        with self._lock:
            self._commits[published.commit.commit_id] = _Commit(published.commit.parent_id, moved, size)
            self._size += size
            while len(self._commits) > _MOST_COMMITS or self._size > _MOST_BYTES:
                self._size -= self._commits.popitem(last=False)[1].size

    def between(self, base: ManifestState, state: ManifestState) -> Sequence[Moved] | None:
        """Return what the commits from one state to another did; None if one of them is not known."""
        if base.head is None or state.head is None:
            return None
        found, commit_id = list[Moved](), state.head.commit_id
        with self._lock:
            while commit_id != base.head.commit_id:
                known = self._commits.get(commit_id or "")
                if known is None:
                    return None
                found.append(known.moved)
                commit_id = known.parent_id or ""
        return found
