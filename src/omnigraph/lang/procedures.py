"""Procedures: algorithms over all edges of a type, whose results are variables of a match."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from omnigraph.lang import ir
from omnigraph.lang import query_tree as tree
from omnigraph.lang.catalog import EdgeType
from omnigraph.lang.expressions import ANONYMOUS, Bound, NameScope, constant_expression
from omnigraph.lang.source import Rejection, TreeNode, did_you_mean
from omnigraph.lang.types import F64, I64, STRING, Type

DIRECTIONS = ("out", "in", "both")


@dataclass(frozen=True, slots=True)
class Signature:
    """What a procedure yields for a node, the options that it takes, and those that it needs."""

    result: Type
    options: Mapping[str, Type]
    required: tuple[str, ...] = ()


PROCEDURES: Mapping[str, Signature] = {
    "pagerank": Signature(F64, {"damping": F64, "rounds": I64}),
    "components": Signature(STRING, {}),
    "communities": Signature(STRING, {"rounds": I64}),
    "distances": Signature(I64, {"from": STRING, "direction": STRING, "weight": STRING}, ("from",)),
    "degree": Signature(I64, {"direction": STRING}),
    "triangles": Signature(I64, {}),
}


class Called(TreeNode):
    """A procedure in a match: the node that it is about, and the variable that gets the value."""

    step: ir.Procedure
    node_type: str

    @property
    def outer(self) -> frozenset[str]:
        return frozenset({self.step.node})

    @property
    def binds(self) -> tuple[tuple[str, str, str], ...]:
        return ((self.step.value, "value", self.step.name),)


def check_call(clause: tree.ProcedureClause, scope: NameScope) -> Called:
    """Type a call, and bind its variables."""
    signature = PROCEDURES.get(clause.name)
    if signature is None:
        hint = did_you_mean(clause.name, PROCEDURES) or f"the procedures are {', '.join(sorted(PROCEDURES))}"
        raise Rejection("T56", f"there is no procedure `{clause.name}`", clause.name.span, hint=hint)
    edge = _edge(clause, scope)
    options = _options(clause, signature, scope)
    result = signature.result
    if "weight" in options:
        result = F64
        _weight(clause, edge)
    node = _node(clause, edge, scope)
    if clause.value in scope.variables or clause.value in scope.parameters or clause.value == ANONYMOUS:
        message = f"`${clause.value}` cannot be bound to the value: choose a new name"
        raise Rejection("T0", message, clause.value.span)
    value = Bound(clause.value + scope.suffix, "value", str(clause.name), {}, value=result)
    scope.variables[str(clause.value)] = value
    step = ir.Procedure(str(clause.name), edge.name, tuple(options.items()), node.name, value.name, result)
    return Called(step, edge.source)


def _edge(clause: tree.ProcedureClause, scope: NameScope) -> EdgeType:
    edge = scope.catalog.edge_by_word(clause.edge)
    if edge is None:
        words = [name[0].lower() + name[1:] for name in scope.catalog.edges]
        raise Rejection("T4", f"unknown edge `{clause.edge}`", clause.edge.span, hint=did_you_mean(clause.edge, words))
    if not edge.is_reflexive:
        ends = f"`{edge.source}` to `{edge.target}`"
        message = f"`{clause.name}` needs edges between nodes of one type; `{edge.name}` connects {ends}"
        raise Rejection("T5", message, clause.edge.span)
    return edge


def _options(clause: tree.ProcedureClause, signature: Signature, scope: NameScope) -> dict[str, ir.Expr]:
    found: dict[str, ir.Expr] = {}
    for option in clause.options:
        name = option.name
        wanted = signature.options.get(name)
        if wanted is None or name in found:
            problem = "is given twice" if name in found else "is not known"
            hint = f"it takes {', '.join(signature.options)}" if signature.options else "it takes no options"
            raise Rejection("T57", f"option `{name}` of `{clause.name}` {problem}", name.span, hint=hint)
        given = constant_expression(option.value, scope)
        fits = (
            given.type.is_numeric
            if wanted == F64
            else wanted.same_shape(given.type) or (wanted.is_integer and given.type.is_integer)
        )
        if not fits:
            raise Rejection("T57", f"option `{name}` of `{clause.name}` is {given.type}, not {wanted}", name.span)
        if name == "direction" and not (isinstance(given, ir.Constant) and given.value in DIRECTIONS):
            message = f"`direction` is one of {', '.join(DIRECTIONS)}, as a literal"
            raise Rejection("T57", message, option.value.span)
        found[str(name)] = given
    missing = [name for name in signature.required if name not in found]
    if missing:
        raise Rejection("T57", f"`{clause.name}` needs the option `{missing[0]}`", clause.name.span)
    return found


def _weight(clause: tree.ProcedureClause, edge: EdgeType) -> None:
    value = next(option.value for option in clause.options if option.name == "weight")
    property_ = edge.properties.get(str(value.value)) if isinstance(value, tree.Literal) else None
    if property_ is None or not property_.type.is_numeric:
        message = f"`weight` names a number property of `{edge.name}`, as a literal"
        raise Rejection("T57", message, value.span)


def _node(clause: tree.ProcedureClause, edge: EdgeType, scope: NameScope) -> Bound:
    bound = scope.variables.get(clause.node)
    if bound is None:
        return scope.bind_node(clause.node, edge.source)
    if bound.kind != "node" or bound.type_name != edge.source:
        message = f"`${clause.node}` must be a `{edge.source}`, which `{edge.name}` connects"
        raise Rejection("T5", message, clause.node.span)
    return bound
