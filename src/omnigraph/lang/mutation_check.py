"""Type-check and plan mutations: insert, update, delete."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from omnigraph.lang import ir, types
from omnigraph.lang import query_tree as tree
from omnigraph.lang.catalog import EdgeType, NodeType, Property
from omnigraph.lang.expressions import NameScope, assigned, declared_value, entity_column
from omnigraph.lang.operations import Leaf, truth
from omnigraph.lang.source import Name, Rejection, did_you_mean
from omnigraph.lang.types import Type

_ENDPOINTS = {"from": "src", "to": "dst"}


def check_mutation(query: tree.QueryDecl, body: tree.WriteBody, scope: NameScope) -> ir.MutationPlan:
    statements = tuple(_statement(statement, scope) for statement in body.statements)
    _one_kind(query.name, body.statements, statements)
    return ir.MutationPlan(statements)


def _one_kind(name: Name, written: Iterable[tree.Statement], statements: tuple[ir.Statement, ...]) -> None:
    """Enforce rule D2: a mutation inserts and updates, or deletes, never both."""
    destroys = [isinstance(statement, ir.DeleteNodes | ir.DeleteEdges) for statement in statements]
    if len(set(destroys)) > 1:
        # Point at the first statement of the second kind: that is where to split.
        odd = next(at for at, kind in enumerate(destroys) if kind != destroys[0])
        span = next(statement.type.span for at, statement in enumerate(written) if at == odd)
        message = f"mutation `{name}` mixes inserts/updates and deletes in one query; split into separate mutations"
        hint = (
            "run (1) the inserts and updates, (2) the deletes; on a branch, merged afterwards, they become one change"
        )
        raise Rejection("D2", message, span, hint=hint)


def _statement(statement: tree.Statement, scope: NameScope) -> ir.Statement:
    declared = _target_type(statement.type, scope)
    match statement:
        case tree.Insert() if isinstance(declared, NodeType):
            return _insert_node(statement, declared, scope)
        case tree.Upsert():
            return _upsert(statement, declared, scope)
        case tree.Insert():
            assert isinstance(declared, EdgeType)
            if statement.new:
                message = f"`{declared.name}` is an edge type: each insert is new"
                raise Rejection("T12", message, statement.type.span, hint="leave out `new`")
            return _insert_edge(statement, declared, scope)
        case tree.Update():
            return _update(statement, declared, scope)
        case tree.Delete() if isinstance(declared, NodeType):
            return ir.DeleteNodes(declared.name, _where(statement.predicate, declared, scope), statement.type.span)
        case tree.Delete():
            return ir.DeleteEdges(declared.name, _where(statement.predicate, declared, scope), statement.type.span)


def _target_type(name: Name, scope: NameScope) -> NodeType | EdgeType:
    """Resolve a type name exactly; a node type wins over an edge type of the same name."""
    # No case folding here, unlike in traversals: the two could name different types.
    found = scope.catalog.nodes.get(name) or scope.catalog.edges.get(name)
    if found is None:
        hint = did_you_mean(name, [*scope.catalog.nodes, *scope.catalog.edges])
        raise Rejection("T10", f"unknown type `{name}`", name.span, hint=hint)
    return found


def _insert_node(statement: tree.Insert, node: NodeType, scope: NameScope) -> ir.InsertNode:
    columns = _assignable_columns(node)
    values = _assigned_values(statement.assignments, columns, node, lambda leaf: declared_value(leaf, scope))
    _required(statement.type, node.properties, values)
    if statement.new and not node.key:
        raise Rejection(
            "T12", f"`{node.name}` has no key: each insert is new", statement.type.span, hint="leave out `new`"
        )
    return ir.InsertNode(node.name, tuple(values.items()), statement.type.span, statement.new)


def _upsert(statement: tree.Upsert, declared: NodeType | EdgeType, scope: NameScope) -> ir.UpsertNode:
    if isinstance(declared, EdgeType) or not declared.key:
        what = "an edge type" if isinstance(declared, EdgeType) else "a node type without a key"
        message = f"`{declared.name}` is {what}: nothing says which one to change"
        raise Rejection("T16", message, statement.type.span, hint="use `insert`, or `update ... where`")
    columns = _assignable_columns(declared)
    values = _assigned_values(statement.assignments, columns, declared, lambda leaf: declared_value(leaf, scope))
    for name in declared.key:
        if name not in values:
            message = f"upsert of `{declared.name}` omits key property `{name}`"
            raise Rejection("T12", message, statement.type.span, hint=f"assign `{name}: {columns[name]}`")
    return ir.UpsertNode(declared.name, tuple(values.items()), statement.type.span)


def _insert_edge(statement: tree.Insert, edge: EdgeType, scope: NameScope) -> ir.InsertEdge:
    columns = _assignable_columns(edge)
    values = _assigned_values(statement.assignments, columns, edge, lambda leaf: declared_value(leaf, scope))
    for endpoint, type_name in (("from", edge.source), ("to", edge.target)):
        if endpoint not in values:
            message = f"insert of edge `{edge.name}` needs `{endpoint}`: the id of a `{type_name}`"
            raise Rejection("T12", message, statement.type.span)
    _required(statement.type, edge.properties, values)
    # The endpoints are columns of the plan node; what is left are the properties.
    source, target = values.pop("from"), values.pop("to")
    return ir.InsertEdge(edge.name, source, target, tuple(values.items()), statement.type.span)


def _update(statement: tree.Update, declared: NodeType | EdgeType, scope: NameScope) -> ir.UpdateNodes | ir.UpdateEdges:
    is_edge = isinstance(declared, EdgeType)
    fixed = {*_ENDPOINTS} if isinstance(declared, EdgeType) else {*declared.key}
    for written in statement.assignments:
        if written.property in fixed:
            what = "the ends of an edge" if is_edge else f"@key property `{written.property}`: it identifies the node"
            hint = f"delete the {'edge' if is_edge else 'node'} and insert it again"
            raise Rejection("T16" if is_edge else "T0", f"cannot update {what}", written.property.span, hint=hint)
    columns = _assignable_columns(declared)
    values = _assigned_values(statement.assignments, columns, declared, lambda leaf: _of_row(leaf, declared, scope))
    where = _where(statement.predicate, declared, scope)
    made = ir.UpdateEdges if is_edge else ir.UpdateNodes
    return made(declared.name, tuple(values.items()), where, statement.type.span)


def _assignable_columns(declared: NodeType | EdgeType) -> Mapping[str, Type]:
    """Return the columns a mutation may name: the properties, and the endpoints of an edge."""
    columns = {name: property_.type for name, property_ in declared.properties.items()}
    return columns if isinstance(declared, NodeType) else {**columns, **dict.fromkeys(_ENDPOINTS, types.STRING)}


def _assigned_values(
    assignments: Iterable[tree.Assignment], columns: Mapping[str, Type], declared: NodeType | EdgeType, leaf: Leaf
) -> dict[str, ir.Expr]:
    values: dict[str, ir.Expr] = {}
    for written in assignments:
        type_ = _assignable(written.property, columns, declared)
        if written.property in values:
            raise Rejection("T13", f"`{written.property}` is assigned twice", written.property.span, hint="keep one")
        values[str(written.property)] = assigned(type_, written.property, written.value, leaf)
    return values


def _assignable(name: Name, columns: Mapping[str, Type], declared: NodeType | EdgeType) -> Type:
    if name not in columns:
        kind = "node" if isinstance(declared, NodeType) else "edge"
        hint = did_you_mean(name, columns)
        if name == "id":
            hint = "an id is derived from the key, or generated; name the key properties instead"
        elif name == "null":
            hint = "there is no null literal; leave the property out, or pass null through a nullable parameter"
        raise Rejection("T11", f"{kind} type `{declared.name}` has no property `{name}`", name.span, hint=hint)
    return columns[name]


def _required(type_name: Name, properties: Mapping[str, Property], values: Mapping[str, ir.Expr]) -> None:
    """Check that every required property is assigned; a vector can be embedded from its source instead."""
    for property_ in properties.values():
        if property_.type.nullable or property_.name in values:
            continue
        embed = property_.embed
        if embed is None:
            message = f"insert of `{type_name}` omits required property `{property_.name}`"
            raise Rejection("T12", message, type_name.span, hint=f"assign `{property_.name}: {property_.type}`")
        if embed.source not in values:
            message = f"insert of `{type_name}` omits `{property_.name}` and its @embed source `{embed.source}`"
            raise Rejection("T12", message, type_name.span, hint="assign one of the two")


def _where(predicate: tree.Expression, declared: NodeType | EdgeType, scope: NameScope) -> ir.Expr:
    """Type the condition that selects entities, over their own properties."""
    return truth(predicate, lambda leaf: _of_row(leaf, declared, scope))


def _of_row(expression: tree.Expression, declared: NodeType | EdgeType, scope: NameScope) -> ir.Expr:
    """Type a property of the entity itself, by its bare name, or a value."""
    kind = "node" if isinstance(declared, NodeType) else "edge"
    match expression:
        case tree.AliasRef(name):
            type_ = _assignable(name, _assignable_columns(declared), declared)
            if type_.is_blob:
                raise Rejection("T11", f"Blob property `{name}` cannot be used in `where`", name.span)
            # `from` and `to` are the words of the language; storage calls the columns src and dst.
            column = _ENDPOINTS.get(name, str(name)) if isinstance(declared, EdgeType) else str(name)
            return ir.PropertyRef(ir.ROW, column, type_)
        case tree.MetaAccess(None, name):
            return entity_column(ir.ROW, kind, declared.name, name)
        case tree.PropertyAccess() | tree.MetaAccess():
            message = f"a statement knows the properties of its own `{declared.name}` only"
            raise Rejection("T44", message, expression.span, hint="write the name of the property alone")
        case tree.AggregateCall() | tree.TextCall():
            message = f"{expression.function}(...) cannot be used in a mutation"
            raise Rejection("T44", message, expression.span, hint="find the entities with a query first")
        case tree.Nearest() | tree.Bm25() | tree.Rrf():
            raise Rejection("T44", "a ranking cannot be used in a mutation", expression.span)
        case _:
            return declared_value(expression, scope)
