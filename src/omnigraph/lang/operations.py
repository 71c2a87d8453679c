"""Type-check what expressions are made of: connectives, comparisons, arithmetic and functions.

What their leaves mean differs from place to place, so the caller types these.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from omnigraph.lang import ir
from omnigraph.lang import query_tree as tree
from omnigraph.lang.functions import DATE_UNITS, FUNCTIONS, OPERATORS, TIME_UNITS, Function, can_fail, common
from omnigraph.lang.source import Name, Rejection, Span, did_you_mean
from omnigraph.lang.types import BOOL, DATE, F64, I64, Type

# Functions with a place of their own in the grammar.
_SPECIAL = ("count", "sum", "avg", "min", "max", "collect", "search", "fuzzy", "nearest", "object", "now")
Leaf = Callable[[tree.Expression], ir.Expr]


def typed(expression: tree.Expression, leaf: Leaf) -> ir.Expr:
    """Type an expression."""
    match expression:
        case tree.Connective():
            return ir.Junction(expression.operator == "and", tuple(truth(one, leaf) for one in expression.operands))
        case tree.Unary():
            return _unary(expression, leaf)
        case tree.Binary():
            return _binary(expression, leaf)
        case tree.FunctionCall():
            return _call(expression, leaf)
        case _:
            return leaf(expression)


def truth(expression: tree.Expression, leaf: Leaf) -> ir.Expr:
    """Type an expression that must be true, false or null."""
    if isinstance(expression, tree.TextCall):
        message = f"{expression.function} can only be a clause of its own, or joined to others with `and`"
        hint = "negate it inside a block: `not { ... }`"
        raise Rejection("T38", message, expression.span, hint=hint)
    found = typed(expression, leaf)
    if not found.type.same_shape(BOOL):
        message = f"a condition must be a Bool, not {found.type}"
        raise Rejection("T41", message, expression.span, hint="compare it with something")
    return found


def fails(expression: ir.Expr) -> bool:
    """Whether an expression may have no value for some rows: it divides, or overflows."""
    if isinstance(expression, ir.Computed) and can_fail(expression.function):
        return True
    return any(map(fails, ir.parts_of(expression)))


def conjuncts(expression: tree.Expression) -> tuple[tree.Expression, ...]:
    """Return the conditions that an expression joins with `and`."""
    if isinstance(expression, tree.Connective) and expression.operator == "and":
        return tuple(inner for one in expression.operands for inner in conjuncts(one))
    return (expression,)


def _unary(expression: tree.Unary, leaf: Leaf) -> ir.Expr:
    if expression.operator == "-":
        return _applied(OPERATORS["-"], expression.operator, [typed(expression.operand, leaf)])
    if expression.operator == "not":
        return ir.Not(truth(expression.operand, leaf))
    operand = typed(expression.operand, leaf)
    if operand.type.is_blob:
        raise Rejection("T24", "a Blob cannot be read by a query", expression.operand.span)
    found = ir.IsNull(operand)
    return found if expression.operator == "is null" else ir.Not(found)


def _binary(expression: tree.Binary, leaf: Leaf) -> ir.Expr:
    left, right = typed(expression.left, leaf), typed(expression.right, leaf)
    operator = expression.operator
    if operator == "in":
        return _membership(left, operator, right, expression.right.span)
    if operator in OPERATORS:
        return _applied(OPERATORS[operator], operator, [left, right])
    return comparison(left, operator, right)


# Comparisons ---------------------------------------------------------------------------------------


def comparison(left: ir.Expr, operator: Name, right: ir.Expr) -> ir.Comparison:
    """Type `left operator right`."""
    op = ir.Operator(operator)
    fits = {ir.Operator.CONTAINS: _contains_fits, ir.Operator.STARTS_WITH: _starts_fits}.get(op, compares)
    problem = fits(left.type, right.type)
    if problem:
        raise Rejection("T7", problem, operator.span)
    return ir.Comparison(left, op, right)


def _contains_fits(left: Type, right: Type) -> str | None:
    if left.is_list:
        return None if left.element.accepts(right) else f"{left} cannot contain {right}"
    if not left.is_string:
        return f"`contains` needs a list or a String on its left, not {left}"
    return None if right.is_string else f"a String contains Strings, not {right}"


def _starts_fits(left: Type, right: Type) -> str | None:
    if left.is_string and right.is_string:
        return None
    return f"`starts_with` compares Strings, not {left} with {right}"


def compares(left: Type, right: Type) -> str | None:
    """Return why values of the two types cannot be compared, or None if they can."""
    for side in (left, right):
        if not side.is_comparable:
            kind = "list" if side.is_list else side.scalar
            return f"{kind} comparison is not supported ({side})"
    return None if left.accepts(right) else f"cannot compare {left} with {right}"


def _membership(item: ir.Expr, operator: Name, items: ir.Expr, span: Span) -> ir.Expr:
    if not items.type.is_list:
        hint = "a list is a literal `[...]`, a list parameter or a list property"
        raise Rejection("T7", f"`in` needs a list on its right, not {items.type}", span, hint=hint)
    if isinstance(items, ir.Constant) and items.value == () and item.type.is_comparable:
        items = ir.Constant((), replace(item.type, is_list=True, nullable=False, enum=()))
    if item.type.is_list or not items.type.element.accepts(item.type):
        raise Rejection("T7", f"{item.type} cannot be in {items.type}", operator.span)
    return ir.Comparison(items, ir.Operator.CONTAINS, item)


# Functions -----------------------------------------------------------------------------------------


def _call(expression: tree.FunctionCall, leaf: Leaf) -> ir.Expr:
    name = expression.function
    function = FUNCTIONS.get(name)
    if function is None:
        hint = did_you_mean(name, [*FUNCTIONS, *_SPECIAL]) or f"the functions are {', '.join(sorted(FUNCTIONS))}"
        raise Rejection("T56", f"there is no function `{name}`", name.span, hint=hint)
    if not function.least <= len(expression.arguments) <= function.most:
        message = f"`{name}` takes {_count(function)}, not {len(expression.arguments)}"
        raise Rejection("T57", message, name.span, hint=f"write `{function.usage}`")
    if name in ("contains", "starts_with"):
        left, right = (typed(one, leaf) for one in expression.arguments)
        return comparison(left, name, right)
    arguments = [typed(one, leaf) for one in expression.arguments]
    if name == "date_add":
        _unit(arguments, expression.arguments[-1].span)
    return _applied(function, name, arguments)


def _count(function: Function) -> str:
    if function.least == function.most:
        return f"{function.least} argument{'s' if function.least > 1 else ''}"
    return f"{function.least} to {function.most} arguments"


def _unit(arguments: list[ir.Expr], span: Span) -> None:
    units = DATE_UNITS if arguments[0].type.same_shape(DATE) else TIME_UNITS
    unit = arguments[-1]
    if not isinstance(unit, ir.Constant) or unit.value not in units:
        message = f"the unit of `date_add` must be one of {', '.join(units)}, as a literal"
        hint = did_you_mean(str(unit.value), units) if isinstance(unit, ir.Constant) else None
        raise Rejection("T57", message, span, hint=hint)


def _applied(function: Function, name: Name, arguments: list[ir.Expr]) -> ir.Computed:
    types = [one.type for one in arguments]
    result = function.returns(types)
    if result is None:
        given = " and ".join(map(str, types))
        hint = None
        if name == "/" and all(one.is_integer for one in types):
            hint = "divide integers with `div(a, b)` and `mod(a, b)`, or make one of them a float"
        elif name == "+" and any(one.is_string for one in types):
            hint = "join texts with `concat(a, b)`"
        elif name in ("+", "-") and not any(one.is_numeric for one in types[:1]):
            hint = "move a date with `date_add(date, number, unit)`"
        elif name in ("coalesce", "if") and common(types[-2:]) is None:
            hint = "all values must have the same type"
        raise Rejection("T57", f"`{function.usage}` does not take {given}", name.span, hint=hint)
    return ir.Computed(str(name), tuple(arguments), result, name.span)


def aggregate_type(function: str, type_: Type, span: Span) -> Type:
    """Return the type of an aggregate of values of a type."""
    if function == "count":
        return I64
    if function == "collect":
        if type_.is_list or type_.is_vector:
            raise Rejection("T8", f"collect needs single values, not {type_}", span)
        return replace(type_, is_list=True, nullable=False, enum=())
    # A sum of integers is a float, as in the original implementation; it cannot overflow.
    if function in ("sum", "avg"):
        if not type_.is_numeric:
            raise Rejection("T8", f"{function} needs a number, not {type_}", span)
        return replace(F64, nullable=True)
    if not type_.is_comparable:
        raise Rejection("T8", f"{function} needs values that have an order, not {type_}", span)
    return Type(type_.scalar, nullable=True)
