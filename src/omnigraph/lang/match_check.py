"""Type-check the clauses of a match in source order, and plan them: what to scan, follow and filter, and when."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from omnigraph.lang import ir
from omnigraph.lang import query_tree as tree
from omnigraph.lang.catalog import EdgeType
from omnigraph.lang.expressions import ANONYMOUS, Bound, NameScope, entry, operand, text_match
from omnigraph.lang.operations import aggregate_type, conjuncts, fails, truth, typed
from omnigraph.lang.procedures import Called, check_call
from omnigraph.lang.source import Name, Rejection, TreeNode, did_you_mean
from omnigraph.lang.types import BOOL, I64, STRING


class Node(TreeNode):
    """A binding: the variable is a node of the type, and the predicates hold."""

    variable: str
    type_name: str
    predicates: tuple[ir.Predicate, ...]


class Hop(TreeNode):
    """A traversal with its direction, seen from `source`."""

    source: str
    source_type: str
    edge: EdgeType
    direction: ir.Direction
    target: str
    target_type: str
    least: int
    most: int
    edge_variable: str | None


class Negated(TreeNode):
    """A negated pattern; `outer` are the variables it uses from the enclosing scope."""

    clauses: tuple[TypedClause, ...]
    outer: frozenset[str]


class Maybe(TreeNode):
    """An optional pattern: the variables that it uses from before, and those that it binds."""

    clauses: tuple[TypedClause, ...]
    outer: frozenset[str]
    binds: tuple[tuple[str, str, str], ...]


TypedClause = Node | Hop | Negated | Maybe | Called | ir.Predicate


def check_match(clauses: Iterable[tree.Clause], scope: NameScope) -> tuple[TypedClause, ...]:
    """Type the clauses of a `match` or `not` block, and add their bindings to the scope."""
    return tuple(typed_clause for clause in clauses for typed_clause in _clause(clause, scope))


def _clause(clause: tree.Clause, scope: NameScope) -> tuple[TypedClause, ...]:
    match clause:
        case tree.Binding():
            return (_binding(clause, scope),)
        case tree.Traversal():
            return (_traversal(clause, scope),)
        case tree.FilterClause(condition, traversal):
            # `$a and $b` has always been a traversal where there is an edge of that name.
            if traversal and scope.catalog.edge_by_word(traversal.edge):
                return (_traversal(traversal, scope),)
            return filters(condition, scope)
        case tree.Negation():
            return (_negation(clause, scope),)
        case tree.OptionalClause():
            return (_optional(clause, scope),)
        case tree.ProcedureClause():
            called = check_call(clause, scope)
            return (Node(called.step.node, called.node_type, ()), called)


def _binding(clause: tree.Binding, scope: NameScope) -> Node:
    node = scope.catalog.nodes.get(clause.type)
    if node is None:
        hint = did_you_mean(clause.type, scope.catalog.nodes)
        if clause.type in scope.catalog.interfaces:
            hint = "an interface cannot be matched; name a node type that implements it"
        elif clause.type in scope.catalog.edges:
            hint = "match an edge with a traversal: `$a edge $b`"
        raise Rejection("T1", f"unknown node type `{clause.type}`", clause.type.span, hint=hint)
    bound = scope.variables.get(clause.variable)
    if bound is None:
        bound = scope.bind_node(clause.variable, node.name)
    elif bound.kind != "node":
        what = "an edge" if bound.kind == "edge" else "a value"
        raise Rejection("T23", f"`${clause.variable}` is already bound to {what}", clause.variable.span)
    elif bound.nullable:
        message = f"`${clause.variable}` is bound by an optional block and cannot be bound again"
        hint = "bind it inside the block, or before it"
        raise Rejection("T0", message, clause.variable.span, hint=hint)
    elif bound.type_name != node.name:
        message = f"`${clause.variable}` is already a `{bound.type_name}` and cannot be a `{node.name}`"
        raise Rejection("T0", message, clause.variable.span)
    predicates = []
    for written in clause.entries:
        found = node.properties.get(written.property)
        if found is None:
            message = f"node type `{node.name}` has no property `{written.property}`"
            hint = did_you_mean(written.property, node.properties)
            raise Rejection("T2", message, written.property.span, hint=hint)
        predicates.append(entry(found, written.property, written.value, bound.name, scope))
    return Node(bound.name, node.name, tuple(predicates))


def filters(condition: tree.Expression, scope: NameScope) -> tuple[ir.Predicate, ...]:
    """Type a condition, and split it where it says `and`: each part is tested where its variables are bound."""
    parts = [_part(one, scope) for one in conjuncts(condition)]
    # What may have no value stays behind what it is joined to, which may exclude the rows for which it has none.
    safe = tuple(one for one in parts if isinstance(one, ir.TextMatch) or not fails(one))
    if len(safe) == len(parts):
        return safe
    together = tuple(one for one in parts if not isinstance(one, ir.TextMatch))
    return (*safe, together[0] if len(together) == 1 else ir.Junction(conjunctive=True, operands=together))


def _part(condition: tree.Expression, scope: NameScope) -> ir.Predicate:
    if isinstance(condition, tree.TextCall):
        return text_match(condition, scope)
    # A text clause is shorthand for this comparison.
    if (
        isinstance(condition, tree.Binary)
        and isinstance(condition.left, tree.TextCall)
        and condition.operator == "="
        and _is_true(condition.right)
    ):
        return text_match(condition.left, scope)
    return truth(identified(condition, scope), lambda leaf: _leaf(leaf, scope))


def _leaf(expression: tree.Expression, scope: NameScope) -> ir.Expr:
    return _block(expression, scope) if isinstance(expression, tree.Block) else operand(expression, scope)


def identified(condition: tree.Expression, scope: NameScope) -> tree.Expression:
    """Replace `$a = $b` of two nodes, or two edges, and `$a is null`, by conditions on their ids."""
    match condition:
        case tree.Connective(_, operands):
            return replace(condition, operands=tuple(identified(one, scope) for one in operands))
        case tree.Unary("not", operand_):
            return replace(condition, operand=identified(operand_, scope))
        case tree.Unary(_, tree.Variable(name)) if (bound := _entity(name, scope)) and bound.nullable:
            return replace(condition, operand=tree.MetaAccess(name, Name("id", name.span)))
        case tree.Binary(tree.Variable(left), ("=" | "!=") as operator, tree.Variable(right)):
            return _same(left, operator, right, scope) or condition
        case tree.Binary(left, _, right):
            _constant_beside_block(left, right, scope)
            _constant_beside_block(right, left, scope)
    return condition


def _entity(name: Name, scope: NameScope) -> Bound | None:
    bound = None if name in scope.parameters else scope.variables.get(name)
    return bound if bound and bound.value is None else None


def _same(left: Name, operator: Name, right: Name, scope: NameScope) -> tree.Expression | None:
    one, other = _entity(left, scope), _entity(right, scope)
    if one is None or other is None:
        return None
    if (one.kind, one.type_name) != (other.kind, other.type_name):
        message = f"`${left}` is a `{one.type_name}` and `${right}` a `{other.type_name}`: they are never the same"
        raise Rejection("T7", message, operator.span)
    sides = (tree.MetaAccess(name, Name("id", name.span)) for name in (left, right))
    return tree.Binary(next(sides), operator, next(sides))


def _constant_beside_block(block: tree.Expression, other: tree.Expression, scope: NameScope) -> None:
    if isinstance(block, tree.Block) and any(True for _ in _variables(other, scope)):
        hint = "a block is compared with a literal, a parameter or now()"
        raise Rejection("T40", "a block is compared with a value that differs from row to row", other.span, hint=hint)


def _is_true(expression: tree.Expression) -> bool:
    return isinstance(expression, tree.Literal) and expression.value is True


# Traversals ----------------------------------------------------------------------------------------


def _traversal(clause: tree.Traversal, scope: NameScope) -> Hop:
    edge = scope.catalog.edge_by_word(clause.edge)
    if edge is None:
        # Suggest the spelling that traversals use, lower case first.
        words = [name[0].lower() + name[1:] for name in scope.catalog.edges]
        raise Rejection("T4", f"unknown edge `{clause.edge}`", clause.edge.span, hint=did_you_mean(clause.edge, words))
    least, most = _hops(clause)
    # Before anything is bound: the name must be new in the scope around the clause.
    _edge_binding_fits(clause, scope)
    source, target = _endpoint(clause.source, scope), _endpoint(clause.target, scope)
    if clause.undirected and not edge.is_reflexive:
        message = f"`{edge.name}` connects `{edge.source}` to `{edge.target}` and cannot be undirected"
        hint = f"both ends must have the same type; write `${clause.source} {clause.edge} ${clause.target}`"
        raise Rejection("T22", message, clause.edge.span, hint=hint)
    direction = ir.Direction.BOTH if clause.undirected else _direction(clause, edge, source, target)
    ends = (edge.source, edge.target) if direction is not ir.Direction.IN else (edge.target, edge.source)
    for written, known, expected in zip((clause.source, clause.target), (source, target), ends, strict=True):
        if known and known.type_name != expected:
            message = f"`${written}` is a `{known.type_name}`; `{edge.name}` needs a `{expected}` here"
            raise Rejection("T5", message, written.span)
    # Bind the source before the target: in `$a knows $a` the second mention must find the first.
    source = source or scope.bind_node(clause.source, ends[0])
    if clause.target == clause.source and clause.target != ANONYMOUS:
        if not edge.is_reflexive:
            message = f"`${clause.target}` cannot be both ends of `{edge.name}: {edge.source} -> {edge.target}`"
            raise Rejection("T5", message, clause.target.span)
        target = source
    target = target or scope.bind_node(clause.target, ends[1])
    edge_variable = None
    if clause.binding and clause.binding != ANONYMOUS:
        edge_variable = scope.bind_edge(clause.binding, edge.name).name
    return Hop(source.name, ends[0], edge, direction, target.name, ends[1], least, most, edge_variable)


def _direction(clause: tree.Traversal, edge: EdgeType, source: Bound | None, target: Bound | None) -> ir.Direction:
    """Infer the direction from an end whose type is known; otherwise the written order is the declared direction."""
    written, known, forward, backward = clause.source, source, edge.source, edge.target
    if source is None:
        written, known, forward, backward = clause.target, target, edge.target, edge.source
    # Forward wins for an edge from a type to itself, where both ends match.
    if known is None or known.type_name == forward:
        return ir.Direction.OUT
    if known.type_name == backward:
        return ir.Direction.IN
    message = (
        f"`${written}` is a `{known.type_name}`, which is not an end of `{edge.name}: {edge.source} -> {edge.target}`"
    )
    raise Rejection("T5", message, written.span)


def _endpoint(variable: Name, scope: NameScope) -> Bound | None:
    bound = scope.variables.get(variable) if variable != ANONYMOUS else None
    if bound and bound.kind != "node":
        what = "an edge" if bound.kind == "edge" else "a value"
        raise Rejection("T23", f"`${variable}` is {what} and cannot be the end of an edge", variable.span)
    return bound


def _hops(clause: tree.Traversal) -> tuple[int, int]:
    hops = clause.hops
    if hops is None:
        return 1, 1
    if hops.most is None:
        raise Rejection("T15", "hop bounds need an upper bound", hops.span, hint="write `{1,5}`")
    if hops.least < 1:
        raise Rejection("T15", "hop bounds start at 1", hops.span)
    if hops.most < hops.least:
        raise Rejection("T15", f"hop bounds are reversed: {hops.least} exceeds {hops.most}", hops.span)
    if clause.binding and (hops.least, hops.most) != (1, 1):
        raise Rejection("T23", f"`${clause.binding}` can bind a single edge, not a path", hops.span)
    return hops.least, hops.most


def _edge_binding_fits(clause: tree.Traversal, scope: NameScope) -> None:
    name = clause.binding
    if name is None or name == ANONYMOUS:
        return
    if name in (clause.source, clause.target):
        raise Rejection("T23", f"`${name}` cannot name both the edge and one of its ends", name.span)
    if name in scope.variables or name in scope.parameters:
        raise Rejection("T23", f"`${name}` is already in use; choose another name for the edge", name.span)


# Negation ------------------------------------------------------------------------------------------


def _negation(clause: tree.Negation, scope: NameScope) -> Negated:
    outer = _outer(clause.clauses, scope)
    if not outer:
        message = "a `not` block must mention a variable bound before it"
        raise Rejection("T9", message, clause.span, hint="without one it keeps all rows or drops all of them")
    return Negated(check_match(clause.clauses, scope.inner()), outer)


def _block(block: tree.Block, scope: NameScope) -> ir.Subquery:
    """Type `exists { ... }`, `count { ... }` or an aggregate of a pattern."""
    outer = _outer(block.clauses, scope)
    if not outer:
        message = f"a `{block.function}` block must mention a variable bound before it"
        raise Rejection("T39", message, block.span, hint="without one it is the same for all rows")
    inside = scope.inner()
    clauses = check_match(block.clauses, inside)
    function, argument, type_ = str(block.function), None, I64
    if block.function == "exists":
        type_ = BOOL
    elif block.argument is not None:
        argument = _aggregated(block, inside)
        type_ = aggregate_type(function, argument.type, block.argument.span)
    return ir.Subquery(plan_match(clauses, outer), outer, function, argument, type_, block.distinct)


def _aggregated(block: tree.Block, inside: NameScope) -> ir.Expr:
    written = block.argument
    assert written is not None
    bound = _entity(written.name, inside) if isinstance(written, tree.Variable) else None
    if block.function == "collect" or (block.distinct and block.function != "count"):
        raise Rejection("T8", f"{block.function} cannot be computed over a block", block.span)
    if bound is None:
        return typed(written, lambda leaf: operand(leaf, inside))
    if block.function != "count":
        raise Rejection("T8", f"{block.function} needs values, not a node", written.span)
    return ir.PropertyRef(bound.name, "id", STRING)


def _outer(clauses: Iterable[tree.Clause], scope: NameScope) -> frozenset[str]:
    """Return the variables of the scope that a block uses, by their names in the plan."""
    return frozenset(scope.variables[name].name for name in _mentioned(clauses, scope) if name in scope.variables)


# Optional ------------------------------------------------------------------------------------------


def _optional(clause: tree.OptionalClause, scope: NameScope) -> Maybe:
    outer = _outer(clause.clauses, scope)
    before = dict(scope.variables)
    clauses = check_match(clause.clauses, scope)
    new = {name: bound for name, bound in scope.variables.items() if name not in before}
    # Behind the block they may be null; inside it they are not.
    scope.variables.update({name: replace(bound, nullable=True) for name, bound in new.items()})
    return Maybe(clauses, outer, tuple((one.name, one.kind, one.type_name) for one in new.values()))


def _mentioned(clauses: Iterable[tree.Clause], scope: NameScope) -> Iterator[str]:
    for clause in clauses:
        match clause:
            case tree.Binding():
                yield clause.variable
            case tree.Traversal():
                yield from (clause.source, clause.target)
            case tree.ProcedureClause():
                yield clause.node
            case tree.FilterClause():
                yield from _variables(clause.condition, scope)
            case tree.Negation() | tree.OptionalClause():
                yield from _mentioned(clause.clauses, scope)


def _variables(expression: tree.Expression, scope: NameScope) -> Iterator[str]:
    match expression:
        case tree.PropertyAccess() | tree.MetaAccess():
            if expression.variable:
                yield expression.variable
        case tree.Variable() if expression.name not in scope.parameters:
            yield expression.name
        case tree.Block(_, clauses):
            yield from _mentioned(clauses, scope)
        case _:
            for part in tree.parts_of(expression):
                yield from _variables(part, scope)


# The plan -------------------------------------------------------------------------------------------


def plan_match(clauses: Sequence[TypedClause], bound: frozenset[str] = frozenset()) -> tuple[ir.MatchStep, ...]:
    """Order the clauses into steps, given the variables already bound. Execution starts with one empty row."""
    steps: list[ir.MatchStep] = []
    known, left = set(bound), list(clauses)
    for block in [clause for clause in clauses if isinstance(clause, Maybe | Called)]:
        # What is optional is matched where all else is that does not depend on it, so that order does not matter.
        later = {name for one in left if isinstance(one, Maybe | Called) for name, _, _ in one.binds}
        now = [one for one in left if not isinstance(one, Maybe | Called) and not later & _used(one)]
        steps += _MatchPlanner(now).steps(frozenset(known))
        known |= set().union(*map(_used, now)) | block.outer
        left = [one for one in left if one not in now and one is not block]
        if isinstance(block, Called):
            steps.append(block.step)
        else:
            steps.append(ir.Optional(plan_match(block.clauses, frozenset(known)), block.binds))
        known |= {name for name, _, _ in block.binds}
    return (*steps, *_MatchPlanner(left).steps(frozenset(known)))


def _used(clause: TypedClause) -> frozenset[str]:
    """Return the variables that a clause binds or reads."""
    match clause:
        case Node():
            return frozenset({clause.variable})
        case Hop():
            return frozenset({clause.source, clause.target, *([clause.edge_variable] if clause.edge_variable else [])})
        case Negated() | Maybe() | Called():
            return clause.outer
        case _:
            return clause.variables


class _MatchPlanner:
    """Binds variables one by one and counts down what waits for them, so planning takes linear time."""

    def __init__(self, clauses: Sequence[TypedClause]) -> None:
        self.roots = [clause for clause in clauses if isinstance(clause, Node)]
        self.hops = [clause for clause in clauses if isinstance(clause, Hop)]
        predicates = [predicate for clause in clauses for predicate in _predicates(clause)]
        negations = [clause for clause in clauses if isinstance(clause, Negated)]
        # Each test waits for all of its variables: filters first, because they are cheap, then negations.
        self.tests: list[tuple[frozenset[str], ir.Predicate | Negated]] = [
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
            if not isinstance(test, Negated) and needed == {variable}:
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
            if isinstance(test, Negated):
                self.done.append(ir.AntiJoin(plan_match(test.clauses, test.outer)))
            else:
                self.done.append(ir.Filter(test))
        self.ready = []


def _predicates(clause: TypedClause) -> Iterable[ir.Predicate]:
    if isinstance(clause, Node):
        return clause.predicates
    return () if isinstance(clause, Hop | Negated | Maybe | Called) else (clause,)
