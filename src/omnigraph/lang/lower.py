"""From typed match clauses to steps: which variable is scanned, which way each edge is walked, when a filter runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from omnigraph.lang import ir
from omnigraph.lang.match_check import Hop, Node, Not, TypedClause


def lower_match(clauses: Sequence[TypedClause], bound: frozenset[str] = frozenset()) -> tuple[ir.MatchStep, ...]:
    """Order the clauses into steps, given the variables that are bound already. Execution starts with one empty row."""
    return _Lowering(clauses, bound).steps()


class _Lowering:
    def __init__(self, clauses: Sequence[TypedClause], bound: frozenset[str]) -> None:
        self.roots = [clause for clause in clauses if isinstance(clause, Node)]
        self.hops = [clause for clause in clauses if isinstance(clause, Hop)]
        self.predicates = [predicate for clause in clauses for predicate in _predicates(clause)]
        self.negations = [clause for clause in clauses if isinstance(clause, Not)]
        self.known = set(bound)
        self.done: list[ir.MatchStep] = []

    def steps(self) -> tuple[ir.MatchStep, ...]:
        self._settle()
        while self._expand() or self._scan():
            self._settle()
        assert not [*self.hops, *self.predicates, *self.negations]
        return tuple(self.done)

    def _scan(self) -> bool:
        """Start the next connected component at its first binding, or at a traversal if it has none."""
        for node in self.roots:
            if node.variable not in self.known:
                return self._scan_node(node.variable, node.type_name)
        if self.hops:
            return self._scan_node(self.hops[0].source, self.hops[0].source_type)
        return False

    def _scan_node(self, variable: str, type_name: str) -> bool:
        own = tuple(predicate for predicate in self.predicates if predicate.variables == {variable})
        self.predicates = [predicate for predicate in self.predicates if predicate not in own]
        self.done.append(ir.Scan(variable, type_name, own))
        self.known.add(variable)
        return True

    def _expand(self) -> bool:
        """Take the first traversal that touches a bound variable."""
        for hop in self.hops:
            if hop.source in self.known or hop.target in self.known:
                self.hops.remove(hop)
                self.done.append(self._walk(hop))
                self.known |= {hop.source, hop.target, *([hop.edge_variable] if hop.edge_variable else [])}
                return True
        return False

    def _walk(self, hop: Hop) -> ir.Expand:
        bounds = (hop.least, hop.most, hop.edge_variable, hop.source in self.known and hop.target in self.known)
        if hop.source in self.known:
            return ir.Expand(hop.source, hop.edge.name, hop.direction, hop.target, hop.target_type, *bounds)
        return ir.Expand(hop.target, hop.edge.name, hop.direction.reversed(), hop.source, hop.source_type, *bounds)

    def _settle(self) -> None:
        """Run every filter and negation whose variables are all bound."""
        ready = [predicate for predicate in self.predicates if predicate.variables <= self.known]
        self.predicates = [predicate for predicate in self.predicates if not predicate.variables <= self.known]
        self.done += [ir.Filter(predicate) for predicate in ready]
        for negation in [negation for negation in self.negations if negation.outer <= self.known]:
            self.negations.remove(negation)
            self.done.append(ir.AntiJoin(lower_match(negation.clauses, negation.outer)))


def _predicates(clause: TypedClause) -> Iterable[ir.Predicate]:
    if isinstance(clause, Node):
        return clause.predicates
    return (clause,) if isinstance(clause, ir.Comparison | ir.TextMatch) else ()
