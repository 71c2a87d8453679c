"""Plan a match: which variable to scan, in which direction to follow each edge, when to run each filter."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Sequence

from omnigraph.lang import ir
from omnigraph.lang.match_check import Hop, Node, Not, TypedClause


def plan_match(clauses: Sequence[TypedClause], bound: frozenset[str] = frozenset()) -> tuple[ir.MatchStep, ...]:
    """Order the clauses into steps, given the variables already bound. Execution starts with one empty row."""
    return _MatchPlanner(clauses).steps(bound)


class _MatchPlanner:
    """Binds variables one by one and counts down what waits for them, so planning takes linear time."""

    def __init__(self, clauses: Sequence[TypedClause]) -> None:
        self.roots = [clause for clause in clauses if isinstance(clause, Node)]
        self.hops = [clause for clause in clauses if isinstance(clause, Hop)]
        predicates = [predicate for clause in clauses for predicate in _predicates(clause)]
        negations = [clause for clause in clauses if isinstance(clause, Not)]
        # Each test waits for all of its variables: filters first, because they are cheap, then negations.
        self.tests: list[tuple[frozenset[str], ir.Predicate | Not]] = [
            *((predicate.variables, predicate) for predicate in predicates),
            *((negation.outer, negation) for negation in negations),
        ]
        self.missing = [len(needed) for needed, _ in self.tests]
        self.tests_of: dict[str, list[int]] = defaultdict(list)
        for at, (needed, _) in enumerate(self.tests):
            for variable in needed:
                self.tests_of[variable].append(at)
        self.hops_of: dict[str, list[int]] = defaultdict(list)
        for at, hop in enumerate(self.hops):
            self.hops_of[hop.source].append(at)
            self.hops_of[hop.target].append(at)
        self.known: set[str] = set()
        # A heap of positions: among the traversals that can be followed, the one written first goes first.
        self.reachable: list[int] = []
        self.walked: set[int] = set()
        self.ready: list[int] = [at for at, count in enumerate(self.missing) if count == 0]
        self.done: list[ir.MatchStep] = []

    def steps(self, bound: Iterable[str]) -> tuple[ir.MatchStep, ...]:
        for variable in sorted(bound):
            self._bind(variable)
        self._settle()
        for variable, type_name in self._starts():
            if variable not in self.known:
                self._scan(variable, type_name)
            while self.reachable:
                self._walk(heapq.heappop(self.reachable))
        assert len(self.walked) == len(self.hops)
        assert not any(self.missing)
        return tuple(self.done)

    def _starts(self) -> Iterable[tuple[str, str]]:
        """List where each connected component starts: at its first binding, or at a traversal if it has none.

        The first entry only makes `steps` follow the traversals from variables bound outside.
        """
        outside = [(variable, "") for variable in sorted(self.known)[:1]]
        nodes = [(node.variable, node.type_name) for node in self.roots]
        return [*outside, *nodes, *((hop.source, hop.source_type) for hop in self.hops)]

    def _bind(self, variable: str) -> None:
        if variable in self.known:
            return
        self.known.add(variable)
        for at in self.hops_of[variable]:
            heapq.heappush(self.reachable, at)
        for at in self.tests_of[variable]:
            self.missing[at] -= 1
            if self.missing[at] == 0:
                self.ready.append(at)

    def _scan(self, variable: str, type_name: str) -> None:
        self._bind(variable)
        # Predicates on this variable alone become part of the scan, where storage can evaluate them.
        own, later = [], []
        for at in sorted(self.ready):
            needed, test = self.tests[at]
            if not isinstance(test, Not) and needed == {variable}:
                own.append(test)
            else:
                later.append(at)
        self.ready = later
        self.done.append(ir.Scan(variable, type_name, tuple(own)))
        self._settle()

    def _walk(self, at: int) -> None:
        # A traversal is on the heap twice, once for each of its ends.
        if at in self.walked:
            return
        self.walked.add(at)
        hop = self.hops[at]
        bounds = (hop.least, hop.most, hop.edge_variable, hop.source in self.known and hop.target in self.known)
        if hop.source in self.known:
            step = ir.Expand(hop.source, hop.edge.name, hop.direction, hop.target, hop.target_type, *bounds)
        else:
            # Only the target is bound: follow the edge against its direction. A path must then be read backwards.
            reverse = hop.direction.reversed()
            several = hop.most > 1
            step = ir.Expand(hop.target, hop.edge.name, reverse, hop.source, hop.source_type, *bounds, several)
        self.done.append(step)
        for variable in (hop.source, hop.target, *([hop.edge_variable] if hop.edge_variable else [])):
            self._bind(variable)
        self._settle()

    def _settle(self) -> None:
        """Emit every filter and negation whose variables are all bound."""
        for at in sorted(self.ready):
            _, test = self.tests[at]
            if isinstance(test, Not):
                self.done.append(ir.AntiJoin(plan_match(test.clauses, test.outer)))
            else:
                self.done.append(ir.Filter(test))
        self.ready = []


def _predicates(clause: TypedClause) -> Iterable[ir.Predicate]:
    if isinstance(clause, Node):
        return clause.predicates
    return (clause,) if isinstance(clause, ir.Comparison | ir.TextMatch) else ()
