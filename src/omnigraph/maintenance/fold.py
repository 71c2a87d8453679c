"""Fold the tail of a table: merge the fragments that small commits added, and let indices cover them.

A writer does it for the tables that it has just written, so the cost of later reads and writes does not follow the
number of commits. All of it is optional: a fold that fails, or that would keep others waiting, is left to a later one.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

from omnigraph.api.results import MAINTENANCE, TableVersion
from omnigraph.commit.plan import OpClass, PublishPlan, TableAction, WriterKind, WriteTxn, gates_for
from omnigraph.commit.publish import publish_held
from omnigraph.commit.store import Store
from omnigraph.errors import ConflictError, GateTimeoutError, OmnigraphError
from omnigraph.lang.catalog import EdgeType, NodeType
from omnigraph.maintenance.optimize import declared_types
from omnigraph.maintenance.tasks import FragmentGroup, plan_builds, rows_of, segment_build, wanted_indices
from omnigraph.manifest.publisher import Lineage
from omnigraph.storage import maintain
from omnigraph.storage.layout import FragmentSize, IndexBuild, IndexSpec, TableLayout, layout_of
from omnigraph.storage.stage import MAX_ROWS_PER_FILE, Staged
from omnigraph.storage.unpublished import taking_back

ACTOR = "omnigraph:fold"
FEWEST = 8  # fragments that are worth a fold
FEW = 4  # that are worth a fold on the way of a commit, which costs a third as much
URGENT = 64  # fragments: from here on a fold waits for its turn like any other writer
INDEXED = 4096  # rows of a tail that get an index segment; until then a scan of them costs little
_GROWTH = 4  # a fragment is rewritten with others that have at least a quarter of its rows
_MOST_BYTES, _NEWEST = 2**17, 16  # of files and fragments that a commit folds on its way
_MOST_INDEXED = 4 * MAX_ROWS_PER_FILE  # rows; larger builds are left to `optimize`
_LOG = logging.getLogger(__name__)


def with_folds(store: Store, plan: PublishPlan, every: int) -> PublishPlan:
    """Let a plan that adds rows merge the small files of its tables on the way, where that is due.

    Never raises an error of ours: a fold that cannot be made is left out.
    """
    if plan.kind not in (WriterKind.MUTATION, WriterKind.LOAD):
        return plan
    try:
        return replace(plan, actions=tuple(_with_fold(store, plan, one, every) for one in plan.actions))
    except OmnigraphError as error:
        _LOG.warning("no table is folded by a write of %s: %s", ", ".join(plan.table_keys), error.message)
        return plan


def _with_fold(store: Store, plan: PublishPlan, action: TableAction, every: int) -> TableAction:
    base = action.staged.base
    if (base.version + 1) % every or not action.staged.is_append or base.key in plan.txn.forks:
        return action
    group = small_tail(layout_of(store.tables, base, is_made=True, newest=_NEWEST))
    # The size of a data file says nothing about the blobs beside it, which are copied as well.
    if len(group) < FEW or store.tables.has_blobs(base):
        return action
    return replace(action, fold=maintain.stage_fold(store.tables, base, maintain.rewrite(store.tables, base, group)))


def fold(store: Store, txn: WriteTxn, tables: Sequence[TableVersion]) -> None:
    """Fold the tails of tables that a write has just changed. Never raises an error of ours.

    `txn` has the state that the write made.
    """
    try:
        with taking_back(store.tables):
            _Fold(store, txn).run(tables)
    except OmnigraphError as error:
        # The write is acknowledged whatever becomes of the fold. One that stopped half-way has left its record.
        level = logging.INFO if isinstance(error, ConflictError) else logging.WARNING  # among writers it is usual
        _LOG.log(level, "the tails of %s were not folded: %s", ", ".join(one.key for one in tables), error.message)


class _Fold:
    """One attempt to fold some tables, on the state that the write before it made."""

    def __init__(self, store: Store, txn: WriteTxn) -> None:
        self.store = store
        self.txn = txn
        self.longest = 0  # tail, in fragments

    def run(self, tables: Sequence[TableVersion]) -> None:
        types = declared_types(self.txn.catalog)
        staged = [one for table in tables if (one := self._stage(table, types.get(table.key)))]
        if not staged:
            return
        actions = tuple(TableAction(one, OpClass.MAINTENANCE) for one in staged)
        lineage = Lineage.new(ACTOR, details={MAINTENANCE: "fold"})
        plan = PublishPlan(self.txn, WriterKind.OPTIMIZE, actions, lineage=lineage)
        with ExitStack() as stack:
            # Another writer at the gate goes first, unless tails have become long meanwhile.
            patience = None if self.longest >= URGENT else 0.0
            try:
                held = stack.enter_context(self.store.gates.hold(gates_for(plan.branch, plan.table_keys), patience))
            except GateTimeoutError as error:
                _LOG.info("no fold now: %s", error.message)
                return
            publish_held(self.store, plan, held)

    def _stage(self, table: TableVersion, declared: NodeType | EdgeType | None) -> Staged | None:
        made_of = layout_of(self.store.tables, table, is_made=True)
        group = tail(made_of)
        if len(group) < FEWEST and not _needs_index(made_of, group):
            return None
        self.longest = max(self.longest, len(group))
        if rows_of(made_of, group) < INDEXED or declared is None:
            return maintain.stage_fold(self.store.tables, table, maintain.rewrite(self.store.tables, table, group))
        done = maintain.rewrite(self.store.tables, table, with_indexed(made_of, group))
        return self._with_indices(maintain.stage_rewrite(self.store.tables, table, made_of, [done]), declared)

    def _with_indices(self, first: Staged, declared: NodeType | EdgeType) -> Staged:
        """Let the indices of a type cover what was folded."""
        tables = self.store.tables
        seen = maintain.preview(tables, first)
        made_of = layout_of(tables, seen)
        builds, _ = plan_builds(tables, seen, made_of, wanted_indices(declared), _small_build)
        built = [maintain.build_index(tables, seen, build.spec, build.fragments) for build in builds]
        if not built:
            return first
        replaced = [uuid for build in builds for uuid in build.replaces]
        return maintain.chained(first, maintain.stage_indices(tables, first.base, built, replaced))


def tail(made_of: TableLayout) -> FragmentGroup:
    """Return the last fragments of a table: those without an index, up to one that is large beside what follows it."""
    found: list[FragmentSize] = []
    for part in reversed(made_of.parts):
        most = _GROWTH * sum(one.rows for one in found)
        is_large = part.rows >= MAX_ROWS_PER_FILE or (len(found) >= FEWEST and part.rows > max(INDEXED, most))
        if is_large or made_of.covering(part.number):
            break
        found.append(part)
    return tuple(part.number for part in reversed(found))


def _needs_index(made_of: TableLayout, group: FragmentGroup) -> bool:
    """Return whether a short tail has as many rows as get an index, all of small commits.

    Commits that fold on their way leave few fragments. A large one that has no index waits for many small ones.
    """
    rows = [part.rows for part in made_of.parts if part.number in group]
    return len(rows) > 1 and sum(rows) >= INDEXED > max(rows)


def small_tail(made_of: TableLayout) -> FragmentGroup:
    """Return the last fragments of a table that no index covers and that one read brings, all together.

    So a commit never rewrites much beside its own rows. Tails of more rows get an index, by a commit of their own.
    """
    found: list[FragmentSize] = []
    for part in reversed(made_of.parts):
        seen = [*found, part]
        size, rows = sum(one.size or _MOST_BYTES + 1 for one in seen), sum(one.rows for one in seen)
        if size > _MOST_BYTES or rows >= INDEXED or made_of.covering(part.number):
            break
        found = seen
    return tuple(part.number for part in reversed(found))


def with_indexed(made_of: TableLayout, group: FragmentGroup) -> FragmentGroup:
    """Extend a tail to indexed fragments before it that are not large beside it.

    So the segments of an index, like the fragments, grow with the logarithm of what was folded.
    """
    found = list(group)
    for part in reversed(made_of.parts[: len(made_of.parts) - len(group)]):
        if part.rows >= MAX_ROWS_PER_FILE or part.rows > _GROWTH * rows_of(made_of, found):
            break
        found.insert(0, part.number)
    return tuple(found)


def _small_build(made_of: TableLayout, spec: IndexSpec) -> IndexBuild | None:
    found = segment_build(made_of, spec)
    return found if found and rows_of(made_of, found.fragments) <= _MOST_INDEXED else None
