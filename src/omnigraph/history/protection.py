"""Set the rule of a branch: what it demands of writes from then on."""

from __future__ import annotations

from omnigraph.api.reviews import RULE, BranchRule, RuleOfBranch
from omnigraph.commit.plan import PublishPlan, WriterKind, WriteTxn
from omnigraph.commit.publish import write
from omnigraph.commit.store import Store
from omnigraph.core.refs import MAIN
from omnigraph.manifest.publisher import Lineage
from omnigraph.manifest.rows import RuleRow
from omnigraph.manifest.state import HEAD


def rule_of(store: Store, branch: str | None) -> RuleOfBranch:
    return RuleOfBranch(branch or MAIN, store.manifest.rule_of(store.manifest.load(branch)))


def set_rule(store: Store, branch: str | None, rule: BranchRule | None, actor: str | None) -> RuleOfBranch:
    """Protect a branch by a rule, or lift it, in one commit. A rule that it has already makes no commit."""
    lineage = Lineage.new(actor, details={RULE: rule.to_document() if rule else None})

    def prepare(txn: WriteTxn) -> tuple[PublishPlan | None, None]:
        if store.manifest.rule_of(txn.base) == rule:
            return None, None
        row = RuleRow(branch, store.manifest.incarnation(branch), rule)
        # The head counts as read: what was approved for a head must not be merged by another rule than was seen.
        return PublishPlan(txn, WriterKind.RULE, (), lineage=lineage, rule=row, read_set=frozenset({HEAD})), None

    write(store, branch, prepare)
    return RuleOfBranch(branch or MAIN, rule)
