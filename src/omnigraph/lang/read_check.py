"""Type-check the `return`, `order` and `limit` of a read, and plan it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from omnigraph.lang import ir, types
from omnigraph.lang import query_tree as tree
from omnigraph.lang.expressions import (
    NameScope,
    bound_variable,
    constant,
    entity_column,
    meta_ref,
    property_ref,
    ranking,
    variable_ref,
)
from omnigraph.lang.match_check import check_match, identified, plan_match
from omnigraph.lang.operations import aggregate_type, truth, typed
from omnigraph.lang.source import Name, Rejection, Span, TreeNode, did_you_mean
from omnigraph.lang.types import F64, STRING, Type

_SortBy = ir.Expr | ir.EntityRef | ir.ResultColumn
_RANK_CODES = {tree.Nearest: "T17", tree.Bm25: "T20", tree.Rrf: "T21"}
_RANK_NAMES = {tree.Nearest: "nearest", tree.Bm25: "bm25", tree.Rrf: "rrf"}


def check_read(body: tree.ReadBody, scope: NameScope) -> ir.ReadPlan:
    """Type and plan a read: match, then rank or order, limit and project; or aggregate, order and limit."""
    steps: list[ir.Step] = list(plan_match(check_match(body.match, scope)))
    rank = _rank(body, scope)
    columns = tuple(_return_column(item, scope, rank) for item in body.items)
    limit = _limit(body, scope, rank)
    if any(isinstance(column, ir.AggregateColumn) for column in columns):
        _grouping(body.items)
        if rank:
            raise Rejection("T0", "an aggregate query cannot be ordered by a ranking", rank.span)
        having = _having(body, columns, scope)
        distinct = [ir.Distinct()] if body.distinct else []
        order = _order_step(body.order, lambda key: _result_key(key, body.items, columns, scope))
        return ir.ReadPlan((*steps, ir.Aggregate(columns), *having, *distinct, *order, *limit))
    if body.having:
        span = body.having[0].condition.span
        hint = "write the condition as a clause of `match`"
        raise Rejection("T9", "`having` needs a query that aggregates", span, hint=hint)
    plain = tuple(column for column in columns if isinstance(column, ir.Column))
    if rank:
        # Last: the rows of the match are what is ranked, in whatever order its clauses are written. The limit is given,
        # so that what cannot be in the result is not ordered; the Limit step cuts rows, not entities.
        known = body.limit if isinstance(body.limit, int) and body.offset is None and not body.distinct else None
        steps.append(ir.Rank(rank.ranking, known))
    # Without a total order two runs of a query with a limit could return different rows.
    tie_break = tuple(sorted(bound.name for bound in scope.variables.values() if bound.value is None))
    # The first key is the ranking itself; the others break its ties.
    keys = body.order[1:] if rank else body.order
    order = _order_step(keys, lambda key: _row_key(key, body.items, plain, scope), tie_break) if body.order else []
    if body.distinct:
        return ir.ReadPlan((*steps, *order, ir.Project(plain), ir.Distinct(), *limit))
    return ir.ReadPlan((*steps, *order, *limit, ir.Project(plain)))


def _limit(body: tree.ReadBody, scope: NameScope, rank: _Ranked | None) -> list[ir.Limit]:
    if body.limit is None and body.offset is None:
        return []
    if body.offset is not None and rank and isinstance(rank.written, tree.Rrf):
        hint = "ask for `limit` plus `offset` rows, and skip the first ones"
        raise Rejection("T21", "a query ordered by rrf has no offset", rank.span, hint=hint)
    offset = 0 if body.offset is None else _row_count(body.offset, scope)
    return [ir.Limit(None if body.limit is None else _row_count(body.limit, scope), offset)]


def _row_count(written: int | tree.Variable, scope: NameScope) -> int | ir.ParameterRef:
    if isinstance(written, int):
        return written
    type_ = scope.parameters.get(written.name)
    if type_ is None or not type_.is_integer or type_.nullable:
        found = "no parameter" if type_ is None else str(type_)
        message = f"a number of rows is an integer parameter that is not nullable; `${written.name}` is {found}"
        raise Rejection("T58", message, written.span, hint=f"declare `${written.name}: I64`")
    return ir.ParameterRef(str(written.name), type_)


def _having(
    body: tree.ReadBody, columns: Sequence[ir.Column | ir.AggregateColumn], scope: NameScope
) -> list[ir.Having]:
    found = []
    for clause in body.having:
        condition = truth(clause.condition, lambda leaf: _result_leaf(leaf, body.items, columns, scope))
        found.append(ir.Having(condition))
    return found


# Ranking -------------------------------------------------------------------------------------------


class _Ranked(TreeNode):
    """The ranking that is the first sort key, as written and as typed."""

    written: tree.Nearest | tree.Bm25 | tree.Rrf
    ranking: ir.Ranking

    @property
    def span(self) -> Span:
        return self.written.span


def _rank(body: tree.ReadBody, scope: NameScope) -> _Ranked | None:
    """Find the ranking that is the first sort key, directly or through an alias."""
    found = [_aliased(key, body.items) for key in body.order]
    for key, later in zip(body.order[1:], found[1:], strict=True):
        if isinstance(later, tree.Nearest | tree.Bm25 | tree.Rrf):
            raise Rejection(
                "T0", "unsupported ordering expression: a ranking must be the first key", key.expression.span
            )
    written = found[0] if found else None
    if not isinstance(written, tree.Nearest | tree.Bm25 | tree.Rrf):
        return None
    typed = ranking(written, scope)
    if isinstance(written, tree.Nearest) and body.order[0].direction:
        raise Rejection("T0", "nearest takes no direction", body.order[0].direction.span)
    for key in body.order[1:]:
        if isinstance(written, tree.Nearest) and isinstance(key.expression, tree.AliasRef):
            raise Rejection("T18", "nearest cannot be combined with ordering by an alias", key.expression.span)
        if key.nulls_first is not None and body.order[0] is key:
            raise Rejection("T0", "a ranking has no nulls", key.expression.span)
    # bm25 keeps matching rows only; the others would return the whole table in an expensive order.
    if body.limit is None and not isinstance(written, tree.Bm25):
        code, name = _RANK_CODES[type(written)], _RANK_NAMES[type(written)]
        raise Rejection(
            code, f"ordering by {name} requires a limit", body.order[0].expression.span, hint="add `limit 10`"
        )
    return _Ranked(written, typed)


def _aliased(key: tree.Key, items: Sequence[tree.Item]) -> tree.Expression:
    """Return the expression of a sort key, with an alias resolved."""
    names = _names(items)
    if isinstance(key.expression, tree.AliasRef) and key.expression.name in names:
        return items[_last(names, key.expression.name)].expression
    return key.expression


# Return --------------------------------------------------------------------------------------------


def _return_column(item: tree.Item, scope: NameScope, rank: _Ranked | None) -> ir.Column | ir.AggregateColumn:
    written = item.expression
    if item.alias is None and isinstance(written, tree.Binary | tree.Unary | tree.Connective):
        raise Rejection("T43", "a column that is computed needs a name", written.span, hint="add `as name`")
    name = str(item.alias or _column_name(written))
    if isinstance(written, tree.AggregateCall):
        return _aggregate(name, written, scope)
    if isinstance(written, tree.Nearest | tree.Bm25 | tree.Rrf):
        if rank is None or rank.ranking != ranking(written, scope):
            function = _RANK_NAMES[type(written)]
            message = f"{function} can only be returned by a query ordered by it"
            raise Rejection(
                _RANK_CODES[type(written)], message, written.span, hint=f"order by the same {function}(...)"
            )
        return ir.Column(name, ir.Score(F64))
    if isinstance(written, tree.ObjectCall):
        return ir.Column(name, _object(written, scope))
    return ir.Column(name, _row_value(written, scope))


def _column_name(written: tree.Expression) -> str:
    match written:
        case tree.PropertyAccess():
            return f"{written.variable}.{written.name}"
        case tree.MetaAccess():
            return f"{written.variable}.@{written.name}"
        case tree.Variable() | tree.AliasRef():
            return written.name
        case tree.ObjectCall():
            return written.variable
        case tree.AggregateCall():
            return _column_name(written.argument)
        case tree.Literal() | tree.ListLiteral():
            return "literal"
        case tree.Now():
            return "now"
        case tree.TextCall() | tree.FunctionCall():
            return written.function
        case tree.Nearest() | tree.Bm25() | tree.Rrf():
            return _RANK_NAMES[type(written)]
        case _:
            return "value"  # the argument of an aggregate, such as `sum($p.price * 2)`


def _object(written: tree.ObjectCall, scope: NameScope) -> ir.ObjectRef:
    """Return all of an entity that a query can read: everything but Blobs and vectors."""
    bound = bound_variable(written.variable, scope)
    if bound.value is not None:
        raise Rejection("T8", f"`${written.variable}` is a value; return it as it is", written.span)
    system = ("id", "type") if bound.kind == "node" else ("id", "type", "src", "dst")
    fields: list[tuple[str, ir.Expr]] = [
        (f"@{name}", entity_column(bound.name, bound.kind, bound.type_name, Name(name), nullable=bound.nullable))
        for name in system
    ]
    fields += [
        (one.name, ir.PropertyRef(bound.name, one.name, one.type))
        for one in bound.properties.values()
        if not (one.type.is_blob or one.type.is_vector)
    ]
    return ir.ObjectRef(bound.name, bound.kind, bound.type_name, tuple(fields))


def _row_value(written: tree.Expression, scope: NameScope) -> ir.Expr | ir.EntityRef:
    """Type an expression with a value per row."""
    if isinstance(written, tree.Variable):
        bound = scope.variables.get(written.name)
        if bound and bound.kind == "edge" and written.name not in scope.parameters:
            return ir.PropertyRef(bound.name, "id", STRING)
        found = variable_ref(written, scope)
        return found if isinstance(found, ir.EntityRef) else _no_blob(found, written.span)
    return typed(identified(written, scope), lambda leaf: _row_leaf(leaf, scope))


def _row_leaf(written: tree.Expression, scope: NameScope) -> ir.Expr:
    """Type a leaf with a value per row: property, id, parameter, literal or now()."""
    match written:
        case tree.PropertyAccess():
            return _no_blob(property_ref(written, scope), written.span)
        case tree.MetaAccess():
            return meta_ref(written, scope)
        case tree.Variable():
            found = variable_ref(written, scope)
            if isinstance(found, ir.EntityRef):
                message = f"`${written.name}` is a node, which has no single value"
                raise Rejection("T7", message, written.span, hint=f"use `${written.name}.@id` or a property")
            return _no_blob(found, written.span)
        case tree.Literal() | tree.ListLiteral():
            return constant(written)
        case tree.Now():
            return ir.RequestTime(types.DATETIME)
        case _:
            raise _no_row_value(written)


def _no_row_value(written: tree.Expression) -> Rejection:
    match written:
        case tree.TextCall():
            code = "T20" if written.function == "match_text" else "T19"
            message = f"{written.function} is a filter and has no value to return"
            return Rejection(code, message, written.span, hint="move it into `match` as a clause")
        case tree.AliasRef():
            message = f"unexpected name `{written.name}`: an alias can only be used in `order`"
            return Rejection("T0", message, written.span, hint="write `$variable.property`")
        case tree.AggregateCall():
            return Rejection("T8", f"{written.function}(...) cannot be the argument of an aggregate", written.span)
        case tree.Nearest() | tree.Bm25() | tree.Rrf():
            return Rejection(_RANK_CODES[type(written)], "a ranking cannot be used here", written.span)
        case tree.Block():
            message = f"a `{written.function}` block is a condition of `match`"
            return Rejection("T41", message, written.span, hint="to return a number, aggregate the rows")
        case _:
            return Rejection("T8", "object(...) can only be a column of its own", written.span)


def _no_blob(operand: ir.PropertyRef | ir.ParameterRef, span: Span) -> ir.PropertyRef | ir.ParameterRef:
    if operand.type.is_blob:
        raise Rejection("T24", "a Blob cannot be read by a query", span)
    return operand


def _aggregate(name: str, written: tree.AggregateCall, scope: NameScope) -> ir.AggregateColumn:
    function, span = str(written.function), written.argument.span
    if written.distinct and function not in ("count", "collect"):
        hint = "`min` and `max` are the same without it" if function in ("min", "max") else None
        raise Rejection("T8", f"{function} takes no `distinct`; count and collect do", span, hint=hint)
    argument = _row_value(written.argument, scope)
    type_ = STRING if isinstance(argument, ir.EntityRef) else argument.type
    if isinstance(argument, ir.EntityRef) and function in ("sum", "avg"):
        raise Rejection("T8", f"{function} needs a number, not a node", span)
    return ir.AggregateColumn(
        name, function, argument, aggregate_type(function, type_, span), distinct=written.distinct
    )


def _grouping(items: Sequence[tree.Item]) -> None:
    for item in items:
        if isinstance(item.expression, tree.Literal | tree.ListLiteral | tree.Now | tree.ObjectCall | tree.Rank):
            message = "beside an aggregate only properties and variables can be returned: they are the grouping keys"
            raise Rejection("T9", message, item.expression.span)


# Order ---------------------------------------------------------------------------------------------


def _order_step(
    keys: Sequence[tree.Key], resolve: Callable[[tree.Key], _SortBy], tie_break: tuple[str, ...] = ()
) -> list[ir.Order]:
    if not keys and not tie_break:
        return []
    resolved = (ir.SortKey(resolve(key), key.direction == "desc", key.nulls_first) for key in keys)
    return [ir.Order(tuple(resolved), tie_break)]


def _row_key(key: tree.Key, items: Sequence[tree.Item], columns: Sequence[ir.Column], scope: NameScope) -> _SortBy:
    """Resolve a sort key of a plain query: an expression over the row, or over result columns."""
    written = key.expression
    by: _SortBy | ir.ObjectRef | ir.Score
    if isinstance(written, tree.PropertyAccess):
        by = _no_blob(property_ref(written, scope), written.span)
    elif isinstance(written, tree.AliasRef) or _same_item(written, items) is not None:
        by = columns[_column_position(key, items)].expression
    elif isinstance(written, tree.Variable) and isinstance(_value_of(written, scope), ir.PropertyRef):
        by = _row_value(written, scope)
    elif isinstance(written, tree.AggregateCall):
        message = f"{written.function}(...) is not in the result"
        raise Rejection("T42", message, written.span, hint="return it as a column, and order by that")
    elif isinstance(written, tree.Variable | tree.TextCall | tree.Literal | tree.ListLiteral | tree.Now):
        hint = "order by a property, or by the alias of a column"
        raise Rejection("T0", "unsupported ordering expression", written.span, hint=hint)
    else:
        by = typed(written, lambda leaf: _key_leaf(leaf, items, columns, scope))
    _comparable(by, key)
    assert not isinstance(by, ir.ObjectRef | ir.Score), "_comparable and _rank have rejected it"
    return by


def _value_of(variable: tree.Variable, scope: NameScope) -> ir.Expr | ir.EntityRef | None:
    """Return the value that a procedure has bound to a variable."""
    bound = scope.variables.get(variable.name)
    return variable_ref(variable, scope) if bound and bound.value is not None else None


def _key_leaf(
    leaf: tree.Expression, items: Sequence[tree.Item], columns: Sequence[ir.Column], scope: NameScope
) -> ir.Expr:
    if isinstance(leaf, tree.AliasRef):
        found = columns[_named(leaf, items)].expression
        if isinstance(found, ir.EntityRef | ir.ObjectRef | ir.Score):
            raise Rejection("T0", f"unsupported ordering expression: `{leaf.name}` is no value", leaf.span)
        return found
    return _row_leaf(leaf, scope)


def _comparable(by: _SortBy | ir.ObjectRef | ir.Score, key: tree.Key) -> None:
    if isinstance(by, ir.ObjectRef):
        raise Rejection("T0", "unsupported ordering expression: an object has no order", key.expression.span)
    if not isinstance(by, ir.EntityRef | ir.ResultColumn) and not by.type.is_comparable:
        raise Rejection("T0", f"unsupported ordering expression: {by.type} has no order", key.expression.span)


def _result_key(
    key: tree.Key, items: Sequence[tree.Item], columns: Sequence[ir.Column | ir.AggregateColumn], scope: NameScope
) -> ir.ResultColumn | ir.Expr:
    """Resolve a sort key of an aggregate query: a result column, or an expression over them."""
    written = key.expression
    if isinstance(written, tree.Binary | tree.Unary | tree.Connective | tree.FunctionCall) and (
        _same_item(written, items) is None
    ):
        by = typed(written, lambda leaf: _result_leaf(leaf, items, columns, scope))
        _comparable(by, key)
        return by
    position = _column_position(key, items)
    column = columns[position]
    if isinstance(column, ir.Column):
        _comparable(column.expression, key)
    elif not column.type.is_comparable:
        raise Rejection("T0", f"unsupported ordering expression: {column.type} has no order", written.span)
    return ir.ResultColumn(position)


def _result_leaf(
    leaf: tree.Expression,
    items: Sequence[tree.Item],
    columns: Sequence[ir.Column | ir.AggregateColumn],
    scope: NameScope,
) -> ir.Expr:
    """Type a leaf of an expression over the rows of the result."""
    if isinstance(leaf, tree.Literal | tree.ListLiteral | tree.Now) or (
        isinstance(leaf, tree.Variable) and leaf.name in scope.parameters
    ):
        return _row_leaf(leaf, scope)
    at = _same_item(leaf, items) if not isinstance(leaf, tree.AliasRef) else None
    if at is None:
        if not isinstance(leaf, tree.AliasRef) or leaf.name not in _names(items):
            what = f"`{leaf.name}`" if isinstance(leaf, tree.AliasRef) else "what is compared here"
            hint = "return it, with a name, and use that"
            raise Rejection("T42", f"{what} is not in the result", leaf.span, hint=hint)
        at = _last(_names(items), leaf.name)
    column = columns[at]
    if isinstance(column, ir.Column) and isinstance(column.expression, ir.ObjectRef | ir.Score):
        raise Rejection("T42", "an object or a score has no value to compare", leaf.span)
    return ir.PropertyRef(ir.RESULT, str(at), type_of(column))


def type_of(column: ir.Column | ir.AggregateColumn) -> Type:
    """Return the type of a result column that is no object."""
    if isinstance(column, ir.AggregateColumn):
        return column.type
    assert not isinstance(column.expression, ir.ObjectRef)
    return STRING if isinstance(column.expression, ir.EntityRef) else column.expression.type


def _same_item(written: tree.Expression, items: Sequence[tree.Item]) -> int | None:
    """Find the column that an expression repeats."""
    if isinstance(written, tree.Variable | tree.Literal | tree.ListLiteral | tree.Now | tree.TextCall):
        return None
    return next((at for at, item in enumerate(items) if item.expression == written), None)


def _column_position(key: tree.Key, items: Sequence[tree.Item]) -> int:
    """Find the result column that a sort key names or repeats."""
    written = key.expression
    if isinstance(written, tree.AliasRef):
        return _named(written, items)
    names = _names(items)
    if isinstance(written, tree.PropertyAccess) and _column_name(written) in names:
        return _last(names, _column_name(written))
    at = _same_item(written, items)
    if at is not None:
        return at
    if isinstance(written, tree.PropertyAccess):
        name = _column_name(written)
        raise Rejection("T0", f"`${name}` is not in the result", written.span, hint=did_you_mean(name, names))
    if isinstance(written, tree.AggregateCall):
        message = f"{written.function}(...) is not in the result"
        raise Rejection("T42", message, written.span, hint="return it as a column")
    hint = "order by a property, or by the alias of a column"
    raise Rejection("T0", "unsupported ordering expression", written.span, hint=hint)


def _named(written: tree.AliasRef, items: Sequence[tree.Item]) -> int:
    """Find a result column by its name; of several with one name the last wins, as it does in rows."""
    names, name = _names(items), str(written.name)
    if name not in names:
        message = f"alias '{name}' not found for ordering"
        raise Rejection("T0", message, written.span, hint=did_you_mean(name, names))
    return _last(names, name)


def _names(items: Sequence[tree.Item]) -> list[str]:
    return [str(item.alias or _column_name(item.expression)) for item in items]


def _last(names: Sequence[str], name: str) -> int:
    # A row in JSON keeps the last of two equal names, so the order must look at the same one.
    return max(at for at, other in enumerate(names) if other == name)
