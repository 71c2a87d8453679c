"""Texts to search with by their meaning: each becomes a vector before the plan runs."""

from __future__ import annotations

from omnigraph.embed.embedder import Embedding
from omnigraph.lang import ir
from omnigraph.lang.catalog import Catalog
from omnigraph.query.evaluate import Values


def with_vectors(plan: ir.ReadPlan, catalog: Catalog, values: Values, embedding: Embedding) -> ir.ReadPlan:
    """The same plan, in which every `nearest` has a vector."""
    texts = _Texts(plan, catalog, values, embedding)
    return ir.ReadPlan(tuple(texts.step(step) for step in plan.steps))


class _Texts:
    """The texts of one plan."""

    def __init__(self, plan: ir.ReadPlan, catalog: Catalog, values: Values, embedding: Embedding) -> None:
        scanned = {step.variable: step.type_name for step in plan.steps if isinstance(step, ir.Scan)}
        reached = {step.target: step.target_type for step in plan.steps if isinstance(step, ir.Expand)}
        self.types = {**reached, **scanned}
        self.catalog = catalog
        self.values = values
        self.embedding = embedding

    def step(self, step: ir.Step) -> ir.Step:
        match step:
            case ir.Rank(ir.FusedRank(first, second, k), limit):
                return ir.Rank(ir.FusedRank(self.arm(first), self.arm(second), k), limit)
            case ir.Rank(ir.NearestRank() as nearest, limit):
                return ir.Rank(self.arm(nearest), limit)
            case _:
                return step

    def arm(self, ranking: ir.NearestRank | ir.Bm25Rank) -> ir.NearestRank | ir.Bm25Rank:
        text = self.values(ranking.query)
        if isinstance(ranking, ir.Bm25Rank) or not isinstance(text, str):
            return ranking
        node = self.catalog.nodes[self.types[ranking.variable]]
        vector = self.embedding.query(text, node, node.properties[ranking.vector.property])
        return ir.NearestRank(ranking.vector, ir.Constant(tuple(vector.tolist()), ranking.vector.type))
