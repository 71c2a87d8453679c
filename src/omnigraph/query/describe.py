"""Steps of a plan in words, close to how they are written in a query."""

from __future__ import annotations

from omnigraph.lang import ir


def describe(step: ir.Step) -> str:
    match step:
        case ir.Scan(variable, type_name, predicates):
            where = ", ".join(map(_predicate, predicates))
            return f"${variable}: {type_name}" + (f" where {where}" if where else "")
        case ir.Expand():
            return _expand(step)
        case ir.Filter(predicate):
            return _predicate(predicate)
        case ir.AntiJoin():
            return "rows for which there is none of"
        case ir.Rank(ranking, limit):
            return _ranking(ranking) + ("" if limit is None else f", the best {limit}")
        case ir.Order(keys, ties):
            shown = [_value(key.by) + (" desc" if key.descending else "") for key in keys]
            return ", ".join([*shown, *(f"the id of ${name}" for name in ties)])
        case ir.Limit(count):
            return str(count)
        case ir.Project(columns):
            return ", ".join(column.name for column in columns)
        case ir.Aggregate(columns):
            return ", ".join(map(_aggregated, columns))


def _expand(step: ir.Expand) -> str:
    left, right = {ir.Direction.OUT: ("-", "->"), ir.Direction.IN: ("<-", "-"), ir.Direction.BOTH: ("<-", "->")}[
        step.direction
    ]
    edge = f"${step.edge_variable}:{step.edge_type}" if step.edge_variable else step.edge_type
    bounds = "" if step.most == 1 else f"{{{step.least},{step.most}}}"
    closing = ", both known" if step.closes else ""
    return f"${step.origin} {left}{edge}{bounds}{right} ${step.target}{closing}"


def _predicate(predicate: ir.Predicate) -> str:
    if isinstance(predicate, ir.TextMatch):
        return f"{predicate.function}({_value(predicate.text)}, {_value(predicate.query)})"
    return f"{_value(predicate.left)} {predicate.operator} {_value(predicate.right)}"


def _ranking(ranking: ir.Ranking) -> str:
    match ranking:
        case ir.NearestRank(vector, _):
            return f"nearest({_value(vector)})"
        case ir.Bm25Rank(text, query):
            return f"bm25({_value(text)}, {_value(query)})"
        case ir.FusedRank(first, second, _):
            return f"rrf({_ranking(first)}, {_ranking(second)})"


def _aggregated(column: ir.Column | ir.AggregateColumn) -> str:
    if isinstance(column, ir.Column):
        return f"by {column.name}"
    return f"{column.function}({_value(column.argument)})"


def _value(value: ir.Operand | ir.EntityRef | ir.ResultColumn) -> str:
    match value:
        case ir.PropertyRef(variable, name):
            return f"${variable}.{name}"
        case ir.EntityRef(variable):
            return f"${variable}"
        case ir.ParameterRef(name):
            return f"${name}"
        case ir.Constant(constant):
            return repr(constant)
        case ir.RequestTime():
            return "now()"
        case ir.ResultColumn(position):
            return f"column {position + 1}"
