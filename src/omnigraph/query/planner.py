"""The order of work: where a match begins, and which edges it follows next, by estimated rows and cost.

The compiler gives steps in the order in which they were written. Here they become a pattern again, which has no order,
and the cheapest order of steps for this snapshot is chosen. Answers do not depend on it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from math import prod

from omnigraph.lang import ir
from omnigraph.lang.ir import Direction
from omnigraph.query.statistics import NOT, Statistics, share
from omnigraph.query.view import GraphView

# Microseconds for each row, measured; only how they compare matters.
_ROW, _FOUND, _EDGE, _CLOSED, _MET, _FILTERED, _WALKED = 0.02, 0.03, 0.06, 0.25, 0.1, 0.02, 3.0
_SIEVED = 0.05  # an edge of an adjacency of which only some are kept
_LOOKUP, _BUILT = 60.0, 0.035  # an adjacency is used by later queries as well: a tenth of what it costs is counted
_MOST_HOPS = 7  # all orders of so many hops are compared; of more, the cheapest next one is taken each time
_MOST_GREEDY = 64  # beyond, the hops stay in the order in which they were written


@dataclass(frozen=True, slots=True)
class Link:
    """A traversal, seen from its source."""

    source: str
    edge_type: str
    direction: Direction
    target: str
    least: int
    most: int
    edge_variable: str | None

    @property
    def ends(self) -> frozenset[str]:
        return frozenset({self.source, self.target})

    @property
    def is_plain(self) -> bool:
        """Whether it is one hop whose edge is not bound."""
        return self.most == 1 and self.edge_variable is None

    @property
    def can_be_scanned(self) -> bool:
        return self.edge_variable is not None and self.direction is not Direction.BOTH and self.source != self.target


@dataclass
class Pattern:
    """The clauses of a match without their order."""

    types: dict[str, str]
    bound: frozenset[str]
    hops: list[Link] = field(default_factory=list)
    edges: dict[str, str] = field(default_factory=dict)
    predicates: list[ir.Predicate] = field(default_factory=list)
    negations: list[tuple[frozenset[str], ir.AntiJoin]] = field(default_factory=list)

    @classmethod
    def of(cls, steps: Sequence[ir.MatchStep], outside: Mapping[str, str], bound: Iterable[str]) -> Pattern:
        made = cls(dict(outside), frozenset(bound))
        for step in steps:
            made._add(step)
        return made

    def _add(self, step: ir.MatchStep) -> None:
        match step:
            case ir.Scan():
                self.types[step.variable] = step.type_name
                self.predicates += step.predicates
            case ir.Expand():
                self.types.setdefault(step.target, step.target_type)
                ends, direction = (step.origin, step.target), step.direction
                if step.backwards:
                    ends, direction = (step.target, step.origin), step.direction.reversed()
                hop = Link(ends[0], step.edge_type, direction, ends[1], step.least, step.most, step.edge_variable)
                self.hops.append(hop)
                if step.edge_variable:
                    self.edges[step.edge_variable] = step.edge_type
                self.predicates += step.predicates
            case ir.Filter(predicate):
                self.predicates.append(predicate)
            case ir.AntiJoin(steps):
                used = frozenset().union(*map(used_by, steps))
                self.negations.append((used & {*self.types, *self.edges, *self.bound}, step))
            case ir.ScanEdges() | ir.Meet() | ir.Optional() | ir.Procedure():
                raise AssertionError("only the planner makes these steps, and optional ones stand between patterns")


def used_by(step: ir.MatchStep) -> frozenset[str]:
    """Return the variables that a step looks at."""
    match step:
        case ir.Expand():
            return frozenset({step.origin, step.target})
        case ir.Meet(arms):
            return frozenset({arm.origin for arm in arms})
        case ir.Filter(predicate):
            return predicate.variables
        case ir.AntiJoin(steps) | ir.Optional(steps):
            return frozenset().union(*map(used_by, steps))
        case ir.Procedure():
            return frozenset({step.node})
        case ir.Scan():
            # Inside a `not`, a predicate may compare a variable of its own with nothing but itself.
            return frozenset()
        case ir.ScanEdges():
            return frozenset()


# Choosing ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Move:
    """One step of an order: begin at a variable or at the edges of a hop, or follow hops from what is bound."""

    variable: str | None
    hops: tuple[int, ...] = ()
    from_edges: bool = False


@dataclass(frozen=True, slots=True)
class Beginning:
    """A beginning of an order: what it has bound, how many rows it makes, and what it has cost."""

    cost: float
    rows: float
    known: frozenset[str]
    walked: frozenset[str]  # variables that edges have led to
    done: frozenset[int]
    moves: tuple[Move, ...]


class Chooser:
    """Finds the cheapest order of the moves of one pattern."""

    def __init__(self, graph: GraphView, pattern: Pattern, *, counts: bool) -> None:
        self.graph, self.pattern, self.counts = graph, pattern, counts
        self.statistics = Statistics(graph)
        alone: dict[str, list[ir.Predicate]] = defaultdict(list)
        self.joint: dict[frozenset[str], float] = {}
        for predicate in pattern.predicates:
            if len(predicate.variables) == 1:
                alone[next(iter(predicate.variables))].append(predicate)
            elif predicate.variables:
                self.joint[predicate.variables] = self.joint.get(predicate.variables, 1.0) * share(predicate)
        for needed, _ in pattern.negations:
            self.joint[needed] = self.joint.get(needed, 1.0) * NOT
        self.sizes = {name: float(graph.node(kind).count) for name, kind in pattern.types.items()}
        self.rows = {name: self._matching(name, graph.node(kind), alone) for name, kind in pattern.types.items()}
        self.edge_shares = {
            name: self._matching(name, graph.edge(kind), alone) / max(graph.edge(kind).count, 1)
            for name, kind in pattern.edges.items()
        }
        self.filtered = frozenset(alone)

    def _matching(self, name: str, view: object, alone: Mapping[str, list[ir.Predicate]]) -> float:
        return self.statistics.matching(view, tuple(alone.get(name, ())))  # type: ignore[arg-type]

    def start(self, rows: float) -> Beginning:
        return Beginning(0.0, rows, self.pattern.bound, frozenset(), frozenset(), ())

    def order(self, state: Beginning) -> Beginning:
        """Return the cheapest way to bind everything."""
        if len(self.pattern.hops) > _MOST_GREEDY:
            return self._as_written(state)
        # The smallest first: what comes later is combined with each of its rows.
        for part in sorted(self._components(), key=lambda part: self._component(state, *part).rows):
            state = self._component(state, *part)
        return state

    def _components(self) -> list[tuple[frozenset[str], frozenset[int]]]:
        """Return the variables and hops that hang together, of those that are not bound outside."""
        group = {name: ({name}, set[int]()) for name in self.pattern.types if name not in self.pattern.bound}
        for at, hop in enumerate(self.pattern.hops):
            ends = [group.setdefault(name, ({name}, set())) for name in sorted(hop.ends)]
            small, large = sorted((ends[0], ends[-1]), key=lambda one: len(one[0]))
            if small is not large:
                large[0].update(small[0])
                large[1].update(small[1])
                group |= dict.fromkeys(small[0], large)
            large[1].add(at)
        parts = {id(one): one for one in group.values()}
        return [(frozenset(names), frozenset(numbers)) for names, numbers in parts.values()]

    def _component(self, state: Beginning, names: frozenset[str], hops: frozenset[int]) -> Beginning:
        # What is bound outside, as in a `not`, is where it begins.
        begun = [state] if names & state.known else [*self._starts(state, names, hops)]
        return self._cheapest(begun, hops)

    def reasons(self, state: Beginning) -> Iterator[tuple[Move, str]]:
        """Return for each beginning of an order why it is there: what it costs to begin elsewhere."""
        if len(self.pattern.hops) > _MOST_GREEDY:
            return
        for part in sorted(self._components(), key=lambda part: self._component(state, *part).rows):
            if not part[0] & state.known:
                ways = [(one.moves[-1], self._cheapest([one], part[1])) for one in self._starts(state, *part)]
                (first, cheapest), *others = sorted(ways, key=lambda way: way[1].cost)
                costs = [f"at {self._named(move)} {_milliseconds(way.cost - state.cost)}" for move, way in others]
                reason = f"from here about {_milliseconds(cheapest.cost - state.cost)}"
                yield first, f"{reason}; {', '.join(costs)}" if costs else reason
            state = self._component(state, *part)

    def _named(self, move: Move) -> str:
        return f"${move.variable or self.pattern.hops[move.hops[0]].edge_variable}"

    def _cheapest(self, begun: Sequence[Beginning], hops: frozenset[int]) -> Beginning:
        """Return the cheapest way to follow hops after one of some beginnings."""
        if len(hops) > _MOST_HOPS:
            return min((self._greedy(one, hops) for one in begun), key=lambda way: way.cost)
        best: dict[frozenset[int], Beginning] = {}
        frontier = [*begun]
        finished = [one for one in begun if hops <= one.done]
        while frontier:
            following: dict[frozenset[int], Beginning] = {}
            for one in frontier:
                for way in self._next(one, hops):
                    other = following.get(way.done)
                    if (other is None or way.cost < other.cost) and self._improves(best, way):
                        following[way.done] = best[way.done] = way
            frontier = [*following.values()]
            finished += [one for one in frontier if hops <= one.done]
        return min(finished, key=lambda way: way.cost)

    @staticmethod
    def _improves(best: Mapping[frozenset[int], Beginning], way: Beginning) -> bool:
        known = best.get(way.done)
        return known is None or way.cost < known.cost

    def _greedy(self, state: Beginning, hops: frozenset[int]) -> Beginning:
        while not hops <= state.done:
            state = min(self._next(state, hops), key=lambda way: way.cost + way.rows * _ROW)
        return state

    def _as_written(self, state: Beginning) -> Beginning:
        hops_of: dict[str, list[int]] = defaultdict(list)
        for at, hop in enumerate(self.pattern.hops):
            for name in hop.ends:
                hops_of[name].append(at)
        reachable = sorted({at for name in state.known for at in hops_of[name]})
        done: set[int] = set()
        for name in ("", *self.pattern.types):  # before the first, what is bound outside
            if name and name not in state.known:
                state = self._scanned(state, name)
                reachable += hops_of[name]
            heapify(reachable)
            while reachable:
                at = heappop(reachable)
                if at not in done:
                    done.add(at)
                    new = self.pattern.hops[at].ends - state.known
                    state = self._followed(state, (at,))
                    for other in (other for one in new for other in hops_of[one]):
                        heappush(reachable, other)
        return state

    def _starts(self, state: Beginning, names: frozenset[str], hops: frozenset[int]) -> Iterator[Beginning]:
        # In the order of the pattern: of two that cost the same, the one that was written first.
        for name in self.pattern.types:
            if name in names:
                yield self._scanned(state, name)
        for at in sorted(hops):
            hop = self.pattern.hops[at]
            # A count of all edges needs none of them: degrees do.
            wanted = not self.counts or hop.edge_variable in self.filtered
            if hop.can_be_scanned and wanted and not state.known:
                yield self._edges_scanned(state, at)

    def _next(self, state: Beginning, hops: frozenset[int]) -> Iterator[Beginning]:
        """Follow each hop that can be followed; those that lead to the same new variable together."""
        for at in sorted(hops - state.done):
            hop = self.pattern.hops[at]
            if not hop.ends & state.known:
                continue
            new = next(iter(hop.ends - state.known), None)
            together: tuple[int, ...] = (at,)
            if new is not None and hop.is_plain:
                others = [other for other in sorted(hops - state.done - {at}) if self._meets(other, new, state)]
                together = (at, *others)
            yield self._followed(state, together)

    def _meets(self, at: int, new: str, state: Beginning) -> bool:
        hop = self.pattern.hops[at]
        return hop.is_plain and hop.ends - state.known == {new} and len(hop.ends) > 1

    # Estimates

    def _scanned(self, state: Beginning, name: str) -> Beginning:
        rows = self.rows[name]
        cost = rows * _ROW + (self.sizes[name] * _FILTERED if name in self.filtered and rows > 1 else 0.0)
        return self._after(state, Move(name), state.rows * rows, cost + state.rows * rows * _ROW, {name}, walked=False)

    def _edges_scanned(self, state: Beginning, at: int) -> Beginning:
        hop = self.pattern.hops[at]
        assert hop.edge_variable
        edges = float(self.graph.edge(hop.edge_type).count)
        found = edges * self.edge_shares[hop.edge_variable]
        cost = edges * _FILTERED * (hop.edge_variable in self.filtered) + found * _EDGE
        if not self.statistics.has_adjacency(hop.edge_type, hop.direction):
            cost += edges * _BUILT
        rows = found * self._share(hop.source) * self._share(hop.target)
        return self._after(state, Move(None, (at,), from_edges=True), rows, cost, {*hop.ends}, walked=True)

    def _share(self, name: str) -> float:
        return self.rows[name] / max(self.sizes[name], 1.0)

    def _followed(self, state: Beginning, together: tuple[int, ...]) -> Beginning:
        steps = [expand(self.pattern, self.pattern.hops[at], state.known) for at in together]
        access = sum(self._access(step, state.rows) for step in steps)
        new = {step.target for step in steps if not step.closes}
        if not new:
            (step,) = steps
            connected, cost = state.rows * self._connected(step), access + state.rows * _CLOSED
            return self._after(state, Move(None, together), connected, cost, set(), walked=True)
        access += sum(self._sieved(step, state) for step in steps)
        found = [state.rows * self._degree(step, state) for step in steps]
        least = min(found)
        others = prod(self.statistics.connected(step) for at, step in enumerate(steps) if at != found.index(least))
        cost = access + state.rows * _ROW + least * (_MET if len(steps) > 1 else self._per_row(steps[0]))
        name = steps[0].target
        rows = least * others * self._share(name)
        return self._after(state, Move(None, together), rows, cost + least * _FOUND, new, walked=True)

    def _sieved(self, step: ir.Expand, state: Beginning) -> float:
        """The cost of a filter on the edges that a step follows: on those that are met, or on all of them at once."""
        if step.edge_variable is None or step.edge_variable not in self.filtered:
            return 0.0
        met = state.rows * self.statistics.degrees(step.edge_type, step.direction).of_row(walked=False)
        return min(met * _EDGE, self.graph.edge(step.edge_type).count * _SIEVED)

    @staticmethod
    def _per_row(step: ir.Expand) -> float:
        return _EDGE if step.edge_variable else _FOUND * (_WALKED if step.most > 1 else 1.0)

    def _connected(self, step: ir.Expand) -> float:
        edge = self.edge_shares.get(step.edge_variable, 1.0) if step.edge_variable else 1.0
        return self.statistics.connected(step) * edge

    def _degree(self, step: ir.Expand, state: Beginning) -> float:
        """Estimate how many targets the node of a row has."""
        if step.most > 1 and not self.graph.catalog.edges[step.edge_type].is_reflexive:
            return 0.0 if step.least > 1 else self._degree(replace_hops(step), state)
        one = self.statistics.degrees(step.edge_type, step.direction).of_row(walked=step.origin in state.walked)
        edge = self.edge_shares.get(step.edge_variable, 1.0) if step.edge_variable else 1.0
        if step.edge_variable:
            return one * edge
        reached = sum(min(one, 1e3) ** hop for hop in range(step.least, min(step.most, 8) + 1))
        return min(reached if step.most > 1 else one, self.sizes[step.target])

    def _access(self, step: ir.Expand, rows: float) -> float:
        if self.statistics.has_adjacency(step.edge_type, step.direction):
            return 0.0
        return min(rows * _LOOKUP, self.graph.edge(step.edge_type).count * _BUILT)

    def _after(
        self, state: Beginning, move: Move, rows: float, cost: float, new: Iterable[str], *, walked: bool
    ) -> Beginning:
        edges = {self.pattern.hops[at].edge_variable for at in move.hops}
        bound = frozenset(new) | frozenset(name for name in edges if name)
        known = state.known | bound
        for needed, chance in self.joint.items():
            if needed & bound and needed <= known:
                rows *= chance
        done = state.done | frozenset(move.hops)
        if self.counts:
            rows = self._merged(rows, known, done)
        total = state.cost + cost
        reached = state.walked | frozenset(new) if walked else state.walked
        return Beginning(total, max(rows, 1e-6), known, reached, done, (*state.moves, move))

    def _merged(self, rows: float, known: frozenset[str], done: frozenset[int]) -> float:
        """A count adds up rows that differ only in what no later step looks at."""
        left = (hop.ends for at, hop in enumerate(self.pattern.hops) if at not in done)
        needed = frozenset().union(*left, *(one for one in self.joint if not one <= known)) & known
        if len(needed) > 1:
            return rows
        return min(rows, *(self.sizes.get(name, rows) for name in needed)) if needed else 1.0


def _milliseconds(cost: float) -> str:
    return f"{cost / 1e3:,.2f} ms"


def replace_hops(step: ir.Expand) -> ir.Expand:
    return ir.Expand(step.origin, step.edge_type, step.direction, step.target, step.target_type)


def expand(pattern: Pattern, hop: Link, known: frozenset[str] | set[str], *rest: ir.Predicate) -> ir.Expand:
    """Return the step that follows a hop from an end that is bound."""
    closes = hop.ends <= known
    bounds = (hop.least, hop.most, hop.edge_variable, closes)
    if hop.source in known:
        kind = pattern.types[hop.target]
        return ir.Expand(hop.source, hop.edge_type, hop.direction, hop.target, kind, *bounds, predicates=rest)
    # Only the target is bound: follow the edges against their direction. A path must then be read backwards.
    kind, several = pattern.types[hop.source], hop.most > 1
    reverse = hop.direction.reversed()
    return ir.Expand(hop.target, hop.edge_type, reverse, hop.source, kind, *bounds, several, predicates=rest)


# Steps ---------------------------------------------------------------------------------------------


class Builder:
    """Makes the steps of an order, with every predicate where all of its variables are bound."""

    def __init__(self, graph: GraphView, pattern: Pattern) -> None:
        self.graph, self.pattern = graph, pattern
        self.known = set(pattern.bound)
        self.done: list[ir.MatchStep] = []
        tests: list[tuple[frozenset[str], ir.Filter | ir.AntiJoin]] = [
            (predicate.variables, ir.Filter(self._with_ordered_blocks(predicate))) for predicate in pattern.predicates
        ]
        tests += pattern.negations
        self.tests = tests
        self.missing = [len(needed - self.known) for needed, _ in tests]
        self.waiting: dict[str, list[int]] = defaultdict(list)
        for at, (needed, _) in enumerate(tests):
            for variable in needed - self.known:
                self.waiting[variable].append(at)
        self.ready = [at for at, count in enumerate(self.missing) if not count]

    def _with_ordered_blocks(self, predicate: ir.Predicate) -> ir.Predicate:
        if not ir.subqueries(predicate):
            return predicate
        assert not isinstance(predicate, ir.TextMatch)
        return ir.with_subqueries(
            predicate, lambda one: replace(one, steps=ordered(self.graph, one.steps, self.pattern.types, one.outer))
        )

    def steps(self, moves: Sequence[Move]) -> tuple[ir.MatchStep, ...]:
        self._settle()
        for move in moves:
            self._move(move)
            self._settle()
        assert not any(self.missing)
        return tuple(self.done)

    def _move(self, move: Move) -> None:
        hops = [self.pattern.hops[at] for at in move.hops]
        if move.variable is not None:
            self._bind(move.variable)
            own = self._own(move.variable)
            self.done.append(ir.Scan(move.variable, self.pattern.types[move.variable], own))
            return
        known = frozenset(self.known)
        for hop in hops:
            for variable in (hop.source, hop.target, *([hop.edge_variable] if hop.edge_variable else [])):
                self._bind(variable)
        if len(hops) > 1:
            self.done.append(ir.Meet(tuple(expand(self.pattern, hop, known) for hop in hops)))
            return
        (hop,) = hops
        own = self._own(hop.edge_variable) if hop.edge_variable else ()
        self.done.append(self._scan_edges(hop, own) if move.from_edges else expand(self.pattern, hop, known, *own))

    def _scan_edges(self, hop: Link, own: tuple[ir.Predicate, ...]) -> ir.ScanEdges:
        assert hop.edge_variable
        ends = (hop.source, hop.target) if hop.direction is Direction.OUT else (hop.target, hop.source)
        types = self.pattern.types
        return ir.ScanEdges(ends[0], types[ends[0]], hop.edge_type, ends[1], types[ends[1]], hop.edge_variable, own)

    def _bind(self, variable: str) -> None:
        if variable in self.known:
            return
        self.known.add(variable)
        for at in self.waiting[variable]:
            self.missing[at] -= 1
            if not self.missing[at]:
                self.ready.append(at)

    def _own(self, variable: str) -> tuple[ir.Predicate, ...]:
        """Take the predicates on one variable alone: they become part of the step that binds it."""
        own, later = [], []
        for at in sorted(self.ready):
            needed, test = self.tests[at]
            if isinstance(test, ir.Filter) and needed == {variable}:
                own.append(test.predicate)
            else:
                later.append(at)
        self.ready = later
        return tuple(own)

    def _settle(self) -> None:
        for at in sorted(self.ready):
            _, test = self.tests[at]
            if isinstance(test, ir.AntiJoin):
                outside = {name: kind for name, kind in self.pattern.types.items() if name in self.known}
                test = ir.AntiJoin(ordered(self.graph, test.steps, outside, self.known))
            self.done.append(test)
        self.ready = []


def ordered(
    graph: GraphView,
    steps: Sequence[ir.MatchStep],
    outside: Mapping[str, str],
    bound: Iterable[str] = (),
    *,
    counts: bool = False,
) -> tuple[ir.MatchStep, ...]:
    """Return match steps in the cheapest order. `outside` are the types of the nodes among what is bound."""
    done: list[ir.MatchStep] = []
    types, known = dict(outside), {*bound}
    for pattern_steps, block in _patterns(steps):
        pattern = Pattern.of(pattern_steps, types, known)
        chooser = Chooser(graph, pattern, counts=counts)
        done += Builder(graph, pattern).steps(chooser.order(chooser.start(1.0)).moves)
        types |= pattern.types
        known |= {*pattern.types, *pattern.edges}
        if isinstance(block, ir.Procedure):
            done.append(block)
            known.add(block.value)
        elif block is not None:
            done.append(replace(block, steps=ordered(graph, block.steps, types, known)))
            types |= {name: kind for name, what, kind in block.binds if what == "node"}
            known |= {name for name, _, _ in block.binds}
    return tuple(done)


def _patterns(steps: Sequence[ir.MatchStep]) -> Iterator[tuple[list[ir.MatchStep], ir.Optional | ir.Procedure | None]]:
    """Divide steps where an optional block stands: what is before it must be matched before it."""
    pattern: list[ir.MatchStep] = []
    for step in steps:
        if isinstance(step, ir.Optional | ir.Procedure):
            yield pattern, step
            pattern = []
        else:
            pattern.append(step)
    yield pattern, None


def planned(graph: GraphView, plan: ir.ReadPlan, *, counts: bool) -> ir.ReadPlan:
    """Return a plan whose match is done in the cheapest order."""
    match_steps = _match_steps(plan)
    rest = [step for step in plan.steps if not isinstance(step, ir.MatchStep)]
    if all(isinstance(step, ir.Filter) for step in match_steps[1:]):
        return plan  # there is nothing to choose
    return graph.cache.plans.get(
        plan, graph.snapshot, lambda: replace(plan, steps=(*ordered(graph, match_steps, {}, counts=counts), *rest))
    )


def _match_steps(plan: ir.ReadPlan) -> list[ir.MatchStep]:
    return [step for step in plan.steps if isinstance(step, ir.MatchStep)]


def reasons(graph: GraphView, plan: ir.ReadPlan, *, counts: bool) -> dict[str, str]:
    """Return why a plan begins where it does, by the variable that a beginning binds."""
    pattern = Pattern.of(_match_steps(plan), {}, ())
    chooser = Chooser(graph, pattern, counts=counts)
    return {
        str(move.variable or pattern.hops[move.hops[0]].edge_variable): reason
        for move, reason in chooser.reasons(chooser.start(1.0))
    }
