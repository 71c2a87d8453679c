"""Type-check the `return`, `order` and `limit` of a read, and plan it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from omnigraph.lang import ir, types
from omnigraph.lang import query_tree as tree
from omnigraph.lang.expressions import NameScope, constant, property_ref, ranking, variable_ref
from omnigraph.lang.match_check import check_match, plan_match
from omnigraph.lang.source import Rejection, Span, TreeNode, did_you_mean
from omnigraph.lang.types import F64, I64, Type

_SortBy = ir.Operand | ir.EntityRef | ir.ResultColumn
_RANK_CODES = {tree.Nearest: "T17", tree.Bm25: "T20", tree.Rrf: "T21"}
_RANK_NAMES = {tree.Nearest: "nearest", tree.Bm25: "bm25", tree.Rrf: "rrf"}


def check_read(body: tree.ReadBody, scope: NameScope) -> ir.ReadPlan:
    """Type and plan a read: match, then rank or order, limit and project; or aggregate, order and limit."""
    steps: list[ir.Step] = list(plan_match(check_match(body.match, scope)))
    rank = _rank(body, scope)
    columns = tuple(_return_column(item, scope, rank) for item in body.items)
    limit = [ir.Limit(body.limit)] if body.limit is not None else []
    if any(isinstance(column, ir.AggregateColumn) for column in columns):
        _grouping(body.items)
        if rank:
            raise Rejection("T0", "an aggregate query cannot be ordered by a ranking", rank.span)
        order = _order_step(body.order, lambda key: _result_key(key, body.items, columns))
        return ir.ReadPlan((*steps, ir.Aggregate(columns), *order, *limit))
    plain = tuple(column for column in columns if isinstance(column, ir.Column))
    if rank:
        # Last: the rows of the match are what is ranked, in whatever order its clauses are written. The limit is given,
        # so that what cannot be in the result is not ordered; the Limit step cuts rows, not entities.
        steps.append(ir.Rank(rank.ranking, body.limit))
    # Without a total order two runs of a query with a limit could return different rows.
    tie_break = tuple(sorted(bound.name for bound in scope.variables.values()))
    # The first key is the ranking itself; the others break its ties.
    keys = body.order[1:] if rank else body.order
    order = _order_step(keys, lambda key: _row_key(key, body.items, plain, scope), tie_break) if body.order else []
    return ir.ReadPlan((*steps, *order, *limit, ir.Project(plain)))


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
    return ir.Column(name, _row_value(written, scope))


def _column_name(written: tree.Expression) -> str:
    match written:
        case tree.PropertyAccess():
            return f"{written.variable}.{written.name}"
        case tree.Variable() | tree.AliasRef():
            return written.name
        case tree.AggregateCall():
            return _column_name(written.argument)
        case tree.Literal() | tree.ListLiteral():
            return "literal"
        case tree.Now():
            return "now"
        case tree.TextCall():
            return written.function
        case _:
            return _RANK_NAMES[type(written)]


def _row_value(written: tree.Expression, scope: NameScope) -> ir.Operand | ir.EntityRef:
    """Type an expression with a value per row: property, node, parameter, literal or now()."""
    match written:
        case tree.PropertyAccess():
            return _no_blob(property_ref(written, scope), written.span)
        case tree.Variable():
            found = variable_ref(written, scope)
            return found if isinstance(found, ir.EntityRef) else _no_blob(found, written.span)
        case tree.Literal() | tree.ListLiteral():
            return constant(written)
        case tree.Now():
            return ir.RequestTime(types.DATETIME)
        case tree.TextCall():
            code = "T20" if written.function == "match_text" else "T19"
            message = f"{written.function} is a filter and has no value to return"
            raise Rejection(code, message, written.span, hint="move it into `match` as a clause")
        case tree.AliasRef():
            message = f"unexpected name `{written.name}`: an alias can only be used in `order`"
            raise Rejection("T0", message, written.span, hint="write `$variable.property`")
        case tree.AggregateCall():
            raise Rejection("T8", f"{written.function}(...) cannot be the argument of an aggregate", written.span)
        case _:
            raise Rejection(_RANK_CODES[type(written)], "a ranking cannot be used here", written.span)


def _no_blob(operand: ir.PropertyRef | ir.ParameterRef, span: Span) -> ir.PropertyRef | ir.ParameterRef:
    if operand.type.is_blob:
        raise Rejection("T24", "a Blob cannot be read by a query", span)
    return operand


def _aggregate(name: str, written: tree.AggregateCall, scope: NameScope) -> ir.AggregateColumn:
    function = str(written.function)
    argument = _row_value(written.argument, scope)
    span = written.argument.span
    if function == "count":
        return ir.AggregateColumn(name, function, argument, I64)
    type_ = types.STRING if isinstance(argument, ir.EntityRef) else argument.type
    # A sum of integers is a float, as in the original implementation; it cannot overflow.
    if function in ("sum", "avg"):
        if isinstance(argument, ir.EntityRef) or not type_.is_numeric:
            raise Rejection("T8", f"{function} needs a number, not {_called(argument)}", span)
        return ir.AggregateColumn(name, function, argument, Type(F64.scalar, nullable=True))
    if not (type_.is_numeric or type_.is_string):
        raise Rejection("T8", f"{function} needs a number or a String, not {type_}", span)
    return ir.AggregateColumn(name, function, argument, Type(type_.scalar, nullable=True))


def _called(operand: ir.Operand | ir.EntityRef) -> str:
    return "a node" if isinstance(operand, ir.EntityRef) else str(operand.type)


def _grouping(items: Sequence[tree.Item]) -> None:
    for item in items:
        if not isinstance(item.expression, tree.AggregateCall | tree.PropertyAccess | tree.Variable):
            message = "beside an aggregate only properties and variables can be returned: they are the grouping keys"
            raise Rejection("T9", message, item.expression.span)


# Order ---------------------------------------------------------------------------------------------


def _order_step(
    keys: Sequence[tree.Key], resolve: Callable[[tree.Key], _SortBy], tie_break: tuple[str, ...] = ()
) -> list[ir.Order]:
    if not keys and not tie_break:
        return []
    resolved = (ir.SortKey(resolve(key), descending=key.direction == "desc") for key in keys)
    return [ir.Order(tuple(resolved), tie_break)]


def _row_key(key: tree.Key, items: Sequence[tree.Item], columns: Sequence[ir.Column], scope: NameScope) -> _SortBy:
    """Resolve a sort key of a plain query: a property, returned or not, or a result column."""
    written = key.expression
    if isinstance(written, tree.PropertyAccess):
        by: _SortBy = _no_blob(property_ref(written, scope), written.span)
    else:
        column = columns[_column_position(key, items)].expression
        assert not isinstance(column, ir.Score), "_rank has rejected it"
        by = column
    _comparable(by, key)
    return by


def _comparable(by: _SortBy | ir.Score, key: tree.Key) -> None:
    if isinstance(by, ir.PropertyRef | ir.Constant | ir.ParameterRef) and not by.type.is_comparable:
        raise Rejection("T0", f"unsupported ordering expression: {by.type} has no order", key.expression.span)


def _result_key(
    key: tree.Key, items: Sequence[tree.Item], columns: Sequence[ir.Column | ir.AggregateColumn]
) -> ir.ResultColumn:
    """Resolve a sort key of an aggregate query: it must be a result column."""
    position = _column_position(key, items)
    column = columns[position]
    if isinstance(column, ir.Column):
        _comparable(column.expression, key)
    return ir.ResultColumn(position)


def _column_position(key: tree.Key, items: Sequence[tree.Item]) -> int:
    """Find the result column that a sort key names; of several with one name the last wins, as it does in rows."""
    written = key.expression
    if isinstance(written, tree.AliasRef):
        name = str(written.name)
    elif isinstance(written, tree.PropertyAccess):
        name = _column_name(written)
    else:
        hint = "order by a property, or by the alias of a column"
        raise Rejection("T0", "unsupported ordering expression", written.span, hint=hint)
    names = _names(items)
    if name not in names:
        what = (
            f"alias '{name}' not found for ordering"
            if isinstance(written, tree.AliasRef)
            else f"`${name}` is not in the result"
        )
        raise Rejection("T0", what, written.span, hint=did_you_mean(name, names))
    return _last(names, name)


def _names(items: Sequence[tree.Item]) -> list[str]:
    return [str(item.alias or _column_name(item.expression)) for item in items]


def _last(names: Sequence[str], name: str) -> int:
    # A row in JSON keeps the last of two equal names, so the order must look at the same one.
    return max(at for at, other in enumerate(names) if other == name)
