"""Type-check expressions: from syntax trees to typed operands, or a Rejection with a T-code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import count

from omnigraph.core.values import (
    FLOATS,
    INTEGER_BOUNDS,
    NUMERIC,
    ConversionError,
    Scalar,
    parse_date,
    parse_datetime,
    to_float,
    to_number,
)
from omnigraph.errors import LiteralError
from omnigraph.lang import ir, types
from omnigraph.lang import query_tree as tree
from omnigraph.lang.catalog import Catalog, Property
from omnigraph.lang.operations import Leaf, typed
from omnigraph.lang.source import Name, Rejection, Span, TreeNode, did_you_mean
from omnigraph.lang.types import Type

ANONYMOUS = "_"
_DEFAULT_RRF_K = 60


class Bound(TreeNode):
    """A variable in scope: its name in the plan, its kind and type, and the properties of that type."""

    name: str
    kind: str
    type_name: str
    properties: Mapping[str, Property]
    nullable: bool = False  # bound by an optional block
    value: Type | None = None  # of a variable that a procedure has bound


@dataclass(slots=True)
class NameScope:
    """The meaning of each name at one point of a query."""

    catalog: Catalog
    parameters: Mapping[str, Type]
    variables: dict[str, Bound] = field(default_factory=dict)
    suffix: str = ""
    _serial: count[int] = field(default_factory=lambda: count(1))

    def inner(self) -> NameScope:
        """Open the scope of a `not` block: it sees the bindings of this one, and its own stay inside."""
        # `~` cannot be part of a name, so a suffixed name never collides with a variable of the query.
        return NameScope(self.catalog, self.parameters, dict(self.variables), f"~{next(self._serial)}", self._serial)

    def bind_node(self, variable: Name, type_name: str) -> Bound:
        # Each `$_` is a variable of its own and is never looked up again, so it does not enter the scope.
        if variable == ANONYMOUS:
            return Bound(f"_~{next(self._serial)}", "node", type_name, self.catalog.nodes[type_name].properties)
        return self._bind(
            variable, Bound(variable + self.suffix, "node", type_name, self.catalog.nodes[type_name].properties)
        )

    def bind_edge(self, variable: Name, type_name: str) -> Bound:
        return self._bind(
            variable, Bound(variable + self.suffix, "edge", type_name, self.catalog.edges[type_name].properties)
        )

    def _bind(self, variable: Name, bound: Bound) -> Bound:
        self.variables[str(variable)] = bound
        return bound


# Values --------------------------------------------------------------------------------------------


def constant(literal: tree.Literal | tree.ListLiteral) -> ir.Constant:
    """Convert a literal to a constant; dates are parsed here."""
    if isinstance(literal, tree.ListLiteral):
        return _list_constant(literal)
    if literal.type in (types.DATE, types.DATETIME):
        parse = parse_date if literal.type is types.DATE else parse_datetime
        try:
            return ir.Constant(parse(str(literal.value)), literal.type)
        except LiteralError as error:
            raise Rejection("T3", error.message, literal.span, hint=error.hint) from None
    return ir.Constant(literal.value, literal.type)


def _list_constant(literal: tree.ListLiteral) -> ir.Constant:
    items = []
    for written in literal.items:
        if isinstance(written, tree.ListLiteral):
            raise Rejection("T0", "a list cannot contain lists", written.span)
        items.append(constant(written))
    # An empty list has no element type; [String] stands in, and assignments do not check it.
    if not items:
        return ir.Constant((), Type(Scalar.STRING, is_list=True))
    first = items[0].type
    for item, written in zip(items, literal.items, strict=True):
        if not first.accepts(item.type):
            raise Rejection("T0", f"a list cannot mix {first} and {item.type}", written.span)
    # [1, 2.5] is a list of floats: an integer that comes first must not make the rest integers.
    mixed = first.is_numeric and any(item.type.scalar in FLOATS for item in items)
    scalar = Scalar.F64 if mixed else first.scalar
    return ir.Constant(tuple(item.value for item in items), Type(scalar, is_list=True))


def property_ref(access: tree.PropertyAccess, scope: NameScope) -> ir.PropertyRef:
    """Resolve `$variable.property` on a node or a bound edge."""
    bound = scope.variables.get(access.variable)
    if bound is None:
        raise Rejection("T6", *_unbound(access.variable, scope))
    found = bound.properties.get(access.name)
    if found is None:
        message = f"{bound.kind} type `{bound.type_name}` has no property `{access.name}`"
        hint = did_you_mean(access.name, bound.properties)
        # `id` is stored but is no property; the value of a node is its id.
        if access.name == "id":
            whole = f"return `${access.variable}` itself for its id"
            hint = whole if bound.kind == "node" else "the id of an edge cannot be read"
        raise Rejection("T6", message, access.name.span, hint=hint)
    return ir.PropertyRef(bound.name, found.name, replace(found.type, nullable=found.type.nullable or bound.nullable))


def meta_ref(access: tree.MetaAccess, scope: NameScope) -> ir.PropertyRef | ir.Constant | ir.Computed:
    """Resolve `$variable.@id`, `@src`, `@dst` or `@type`."""
    if access.variable is None:
        message = f"`@{access.name}` alone is of the entity that an update or a delete selects"
        raise Rejection("T6", message, access.span, hint=f"write `$variable.@{access.name}`")
    bound = scope.variables.get(access.variable)
    if bound is None:
        raise Rejection("T6", *_unbound(access.variable, scope))
    return entity_column(bound.name, bound.kind, bound.type_name, access.name, nullable=bound.nullable)


def entity_column(
    variable: str, kind: str, type_name: str, name: Name, *, nullable: bool = False
) -> ir.PropertyRef | ir.Constant | ir.Computed:
    """Return the id, an end or the type of an entity."""
    text = replace(types.STRING, nullable=nullable)
    if name == "type":
        found = ir.Constant(type_name, types.STRING)
        if not nullable:
            return found
        there = ir.Not(ir.IsNull(ir.PropertyRef(variable, "id", text)))
        return ir.Computed("if", (there, found, ir.Constant(None, text)), text)
    if kind == "value":
        raise Rejection("T6", "the value of a procedure has no properties", name.span)
    if name != "id" and kind == "node":
        raise Rejection("T6", f"a node has no `@{name}`; only an edge has ends", name.span)
    return ir.PropertyRef(variable, str(name), text)


def _unbound(variable: Name, scope: NameScope) -> tuple[str, Span]:
    if variable == ANONYMOUS:
        return "`$_` matches anything and is never bound; name the variable to use it", variable.span
    if variable in scope.parameters:
        return f"`${variable}` is a parameter and has no properties", variable.span
    close = did_you_mean(variable, scope.variables)
    return f"variable `${variable}` is not bound here{'; ' + close if close else ''}", variable.span


def bound_variable(variable: Name, scope: NameScope) -> Bound:
    """Resolve a variable that must be a bound node or edge."""
    bound = scope.variables.get(variable)
    if bound is None:
        raise Rejection("T6", *_unbound(variable, scope))
    return bound


def variable_ref(variable: tree.Variable, scope: NameScope) -> ir.ParameterRef | ir.PropertyRef | ir.EntityRef:
    """Resolve a bare `$name`: a parameter, which shadows a variable, or a node. A bound edge has no value."""
    name = variable.name
    if name in scope.parameters:
        return ir.ParameterRef(str(name), scope.parameters[name])
    bound = scope.variables.get(name)
    if bound is None:
        hint = did_you_mean(name, [*scope.parameters, *scope.variables])
        message = "`$_` has no value" if name == ANONYMOUS else f"unknown variable `${name}`"
        raise Rejection("T0", message, name.span, hint=hint)
    if bound.value is not None:
        return ir.PropertyRef(bound.name, ir.VALUE, replace(bound.value, nullable=bound.nullable))
    if bound.kind == "edge":
        message = f"`${name}` is an edge and cannot be used on its own"
        raise Rejection("T23", message, name.span, hint=f"use one of its properties, `${name}.property`")
    return ir.EntityRef(bound.name, bound.type_name)


def value(expression: tree.Expression, scope: NameScope) -> ir.Value:
    """Type a constant, a parameter or `now()`: an expression that needs no row."""
    if isinstance(expression, tree.Literal | tree.ListLiteral):
        return constant(expression)
    if isinstance(expression, tree.Now):
        return ir.RequestTime(types.DATETIME)
    if isinstance(expression, tree.Variable) and expression.name in scope.parameters:
        return ir.ParameterRef(str(expression.name), scope.parameters[expression.name])
    if isinstance(expression, tree.PropertyAccess | tree.MetaAccess | tree.AliasRef):
        message = "a property cannot be read here: the value is the same for the whole request"
        raise Rejection("T45", message, expression.span, hint="use a literal, a parameter or now()")
    raise Rejection("T0", "only a literal, a parameter or now() is allowed here", expression.span)


def constant_expression(expression: tree.Expression, scope: NameScope) -> ir.Expr:
    """Type an expression of constants, parameters and `now()`."""
    return typed(expression, lambda leaf: value(leaf, scope))


# Comparisons ---------------------------------------------------------------------------------------


def operand(expression: tree.Expression, scope: NameScope) -> ir.Expr:
    """Type one side of a filter: a scalar, never a node, a rank or an aggregate."""
    match expression:
        case tree.PropertyAccess():
            return property_ref(expression, scope)
        case tree.MetaAccess():
            return meta_ref(expression, scope)
        case tree.Variable():
            found = variable_ref(expression, scope)
            if isinstance(found, ir.EntityRef):
                message = f"a filter needs scalar operands; `${expression.name}` is a node"
                raise Rejection("T7", message, expression.span, hint="compare one of its properties")
            return found
        case tree.Literal() | tree.ListLiteral() | tree.Now():
            return value(expression, scope)
        case tree.AliasRef():
            hint = "there is no null literal; null never matches a filter" if expression.name == "null" else None
            message = f"a filter needs scalar operands; `{expression.name}` is a bare name"
            raise Rejection("T7", message, expression.span, hint=hint)
        case tree.TextCall():
            message = f"{expression.function} can only be compared as `= true`"
            hint = "write it alone as a clause, or inside `not { }` to negate it"
            raise Rejection("T7", message, expression.span, hint=hint)
        case tree.AggregateCall():
            message = f"a filter needs scalar operands; {expression.function}(...) is an aggregate"
            hint = f"say what it is over: `{expression.function}(...) {{ ... }}`, or use `having`"
            raise Rejection("T7", message, expression.span, hint=hint)
        case _:
            message = "a filter needs scalar operands; a ranking belongs in `order`"
            raise Rejection("T7", message, expression.span)


def entry(
    property_: Property, written: Name, expression: tree.Expression, variable: str, scope: NameScope
) -> ir.Comparison:
    """Type `property: value` in a binding: equality, or membership when the property is a list."""
    type_ = property_.type
    left = ir.PropertyRef(variable, property_.name, type_)
    if isinstance(expression, tree.Variable) and expression.name not in scope.parameters:
        hint = did_you_mean(expression.name, scope.parameters) or "declare it as a parameter, or compare in a filter"
        raise Rejection("T0", f"`${expression.name}` is not a parameter", expression.span, hint=hint)
    right = constant_expression(expression, scope)
    # Codes are public: a wrong literal is T3, a wrong parameter T7, although the mistake is the same.
    code = "T3" if isinstance(right, ir.Constant) else "T7"
    target = type_.element if type_.is_list else type_
    if type_.is_blob or type_.is_vector:
        message = f"a {type_.scalar} property cannot be matched"
        # Blobs have always been T3 here, for parameters too.
        raise Rejection("T3" if type_.is_blob else code, message, written.span)
    if right.type.is_list:
        message = "list equality is not supported" if type_.is_list else f"{right.type} does not fit {type_}"
        raise Rejection(
            code, message, expression.span, hint="pass one element to test membership" if type_.is_list else None
        )
    if not target.accepts(right.type):
        raise Rejection(code, f"{right.type} does not fit `{written}: {type_}`", expression.span)
    if isinstance(right, ir.Constant):
        _enum_member(type_, right.value, expression.span)
    operator = ir.Operator.CONTAINS if type_.is_list else ir.Operator.EQ
    return ir.Comparison(left, operator, right)


def _enum_member(type_: Type, word: ir.PlainValue, span: Span) -> None:
    if type_.enum and word not in type_.enum:
        message = f"invalid enum value '{word}' (expected: {', '.join(type_.enum)})"
        raise Rejection("T3", message, span, hint=did_you_mean(str(word), type_.enum))


# Assignments ---------------------------------------------------------------------------------------


def declared_value(expression: tree.Expression, scope: NameScope) -> ir.Value:
    """Type a value in a mutation, where every variable is a parameter."""
    if isinstance(expression, tree.Variable) and expression.name not in scope.parameters:
        hint = did_you_mean(expression.name, scope.parameters) or "declare it between the query's parentheses"
        raise Rejection("T14", f"undeclared variable `${expression.name}`", expression.span, hint=hint)
    return value(expression, scope)


def assigned(type_: Type, written: Name, expression: tree.Expression, leaf: Leaf) -> ir.Expr:
    """Type `property: value` in a mutation; a constant is converted to the type of the property."""
    given = typed(expression, leaf)
    if isinstance(given, ir.Constant) and isinstance(expression, tree.Literal | tree.ListLiteral):
        return ir.Constant(_converted(type_, given, written, expression.span), type_)
    # The content of a Blob is passed as a String: `base64:...`.
    fits = type_.accepts(given.type) or (type_.is_blob and given.type.is_string)
    if not fits or (type_.scalar in INTEGER_BOUNDS and given.type.scalar in FLOATS):
        raise Rejection("T7", f"{given.type} does not fit `{written}: {type_}`", expression.span)
    return given


def _converted(type_: Type, given: ir.Constant, written: Name, span: Span) -> ir.PlainValue:
    if type_.is_blob:
        hint = "pass it through a Blob or String parameter"
        raise Rejection("T3", f"a literal cannot be assigned to Blob property `{written}`", span, hint=hint)
    if type_.is_vector or type_.is_list:
        if not isinstance(given.value, tuple):
            raise Rejection("T3", f"{given.type} does not fit `{written}: {type_}`", span)
        if type_.is_vector and len(given.value) != type_.dimension:
            message = f"`{written}: {type_}` takes {type_.dimension} numbers, not {len(given.value)}"
            raise Rejection("T3", message, span)
        element = Type(Scalar.F32) if type_.is_vector else type_.element
        if given.value and not element.accepts(given.type.element):
            raise Rejection("T3", f"{given.type} does not fit `{written}: {type_}`", span)
        return tuple(_scalar(element, ir.Constant(item, given.type.element), written, span) for item in given.value)
    if given.type.is_list or not type_.accepts(given.type):
        raise Rejection("T3", f"{given.type} does not fit `{written}: {type_}`", span)
    return _scalar(type_, given, written, span)


def _scalar(type_: Type, given: ir.Constant, written: Name, span: Span) -> ir.PlainValue:
    if type_.scalar not in NUMERIC:
        _enum_member(type_, given.value, span)
        return given.value
    if type_.scalar in INTEGER_BOUNDS and isinstance(given.value, float):
        message = f"cannot convert {given.value} to {type_.scalar} for `{written}`"
        raise Rejection("T3", message, span, hint="drop the fraction")
    try:
        return to_number(type_.scalar, given.value)
    except ConversionError as problem:
        raise Rejection("T3", f"{problem} of `{written}`", span, hint=problem.hint) from None


# Search --------------------------------------------------------------------------------------------


def text_match(call: tree.TextCall, scope: NameScope) -> ir.TextMatch:
    code = "T20" if call.function == "match_text" else "T19"
    text, query = _text_arguments(call.function, call.text, call.query, scope, code)
    edits = None
    if call.edits is not None:
        edits = _query_value(call.edits, scope, code, "max_edits must be an integer literal or parameter")
        if not edits.type.is_integer:
            raise Rejection(code, f"max_edits must be an integer, not {edits.type}", call.edits.span)
    return ir.TextMatch(str(call.function), text, query, edits)


def _text_arguments(
    function: str, text: tree.Expression, query: tree.Expression, scope: NameScope, code: str
) -> tuple[ir.PropertyRef, ir.Value]:
    if not isinstance(text, tree.PropertyAccess):
        raise Rejection(code, f"the first argument of {function} must be a String property of a node", text.span)
    _not_an_edge(text, function, scope)
    column = property_ref(text, scope)
    if not column.type.is_string:
        raise Rejection(code, f"{function} searches String properties; `{text.name}` is {column.type}", text.span)
    phrase = _query_value(
        query, scope, code, f"the second argument of {function} must be a String literal or parameter"
    )
    if not phrase.type.is_string:
        raise Rejection(code, f"{function} searches for a String, not {phrase.type}", query.span)
    return column, phrase


def _query_value(
    expression: tree.Expression, scope: NameScope, code: str, message: str
) -> ir.Constant | ir.ParameterRef:
    if isinstance(expression, tree.Variable):
        variable_ref(expression, scope)  # reports an unknown variable as T0, before the type of the argument
    if isinstance(expression, tree.Literal | tree.ListLiteral | tree.Variable) and not (
        isinstance(expression, tree.Variable) and expression.name not in scope.parameters
    ):
        found = value(expression, scope)
        assert not isinstance(found, ir.RequestTime)
        return found
    raise Rejection(code, message, expression.span)


def _not_an_edge(access: tree.PropertyAccess, function: str, scope: NameScope) -> None:
    bound = scope.variables.get(access.variable)
    if bound and bound.kind == "edge":
        raise Rejection("T23", f"{function} cannot search the edge `${access.variable}`", access.span)


def ranking(rank: tree.Rank, scope: NameScope) -> ir.Ranking:
    """Type a ranking expression."""
    if isinstance(rank, tree.Rrf):
        return _fused(rank, scope)
    return _nearest(rank, scope) if isinstance(rank, tree.Nearest) else _bm25(rank, scope)


def _bm25(rank: tree.Bm25, scope: NameScope) -> ir.Bm25Rank:
    return ir.Bm25Rank(*_text_arguments("bm25", rank.text, rank.query, scope, "T20"))


def _nearest(rank: tree.Nearest, scope: NameScope) -> ir.NearestRank:
    _not_an_edge(rank.vector, "nearest", scope)
    try:
        vector = property_ref(rank.vector, scope)
    except Rejection as problem:
        # The reference promises T15 for every problem with the vector of `nearest`, unknown properties included.
        raise Rejection("T15", f"nearest: {problem.message}", problem.span, hint=problem.hint) from None
    if not vector.type.is_vector:
        message = f"nearest needs a Vector property; `{rank.vector.name}` is {vector.type}"
        raise Rejection("T15", message, rank.vector.span)
    query = _query_value(rank.query, scope, "T15", "nearest needs a vector or a String to compare to")
    return ir.NearestRank(vector, _vector_query(query, vector.type, rank.query.span), rank.approximate)


def _vector_query(query: ir.Constant | ir.ParameterRef, vector: Type, span: Span) -> ir.Value:
    """Accept a String, which is embedded later, or a vector or list with the dimension of the property."""
    if query.type.is_string or query.type.same_shape(Type(Scalar.VECTOR, dimension=vector.dimension)):
        return query
    numbers = query.value if isinstance(query, ir.Constant) and query.type.is_list else None
    if isinstance(numbers, tuple) and query.type.element.is_numeric:
        if len(numbers) == vector.dimension:
            return ir.Constant(_components(numbers, span), Type(Scalar.VECTOR, dimension=vector.dimension))
        raise Rejection("T15", f"nearest: {vector} against a list of {len(numbers)} values", span)
    raise Rejection("T15", f"nearest: {vector} needs a {vector} or a String to compare to, not {query.type}", span)


def _components(numbers: tuple[ir.PlainValue, ...], span: Span) -> tuple[float, ...]:
    try:
        return tuple(to_float(Scalar.F32, number) for number in numbers)
    except ConversionError as problem:
        raise Rejection("T15", f"nearest: {problem}", span, hint=problem.hint) from None


def _fused(rank: tree.Rrf, scope: NameScope) -> ir.FusedRank:
    first, second = ranking(rank.first, scope), ranking(rank.second, scope)
    assert not isinstance(first, ir.FusedRank) and not isinstance(second, ir.FusedRank)  # noqa: PT018
    if first.variable != second.variable:
        raise Rejection("T21", "both rankings of rrf must rank the same variable", rank.span)
    if rank.k is None:
        return ir.FusedRank(first, second, ir.Constant(_DEFAULT_RRF_K, types.I64))
    k = _query_value(rank.k, scope, "T21", "the k of rrf must be an integer literal or parameter")
    if not k.type.is_integer:
        raise Rejection("T21", f"the k of rrf must be an integer, not {k.type}", rank.k.span)
    if isinstance(k, ir.Constant) and k.value == 0:
        raise Rejection("T21", "the k of rrf must be positive", rank.k.span)
    return ir.FusedRank(first, second, k)
