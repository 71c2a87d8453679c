"""Check the static rules of a schema and build its Catalog; report all independent problems at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from omnigraph.core.values import Scalar
from omnigraph.errors import SchemaError
from omnigraph.lang.annotations import PropertyNotes, column_fits, read_header, read_property
from omnigraph.lang.catalog import (
    Cardinality,
    Catalog,
    Check,
    Columns,
    EdgeType,
    InterfaceType,
    NodeType,
    Property,
    Range,
    by_name,
)
from omnigraph.lang.schema_parser import (
    Bounds,
    CardDecl,
    EdgeDecl,
    InterfaceDecl,
    NodeDecl,
    PropertyDecl,
    RuleDecl,
    SchemaTree,
    TypeExpression,
    Value,
    parse_schema_tree,
)
from omnigraph.lang.source import Name, Rejection, Source, Span, TreeNode, did_you_mean
from omnigraph.lang.types import MAX_VECTOR_DIMENSION, STRING, Type

# Lance adds these columns to every table; a property of the same name would hide them.
_ROW_COLUMNS = frozenset(
    {"_rowid", "_rowaddr", "_rowoffset", "_row_created_at_version", "_row_last_updated_at_version"}
)
_EDGE_COLUMNS = frozenset({"src", "dst", "from", "to"})
_ENDPOINTS = ("src", "dst")
_MAX_U32 = 2**32 - 1
_RANGE_ARGUMENTS = _CHECK_ARGUMENTS = 2

_Decl = TypeVar("_Decl", InterfaceDecl, NodeDecl, EdgeDecl)


def compile_schema(source: Source) -> Catalog:
    """Compile a schema, or raise SchemaError with all independent problems."""
    tree, errors = parse_schema_tree(source)
    checker = _Checker(errors)
    catalog = checker.catalog(tree)
    if checker.problems:
        problems = sorted(checker.problems, key=lambda problem: problem.span)
        raise SchemaError.of([source.diagnostic(problem) for problem in problems])
    return catalog


class _CheckedProperty(TreeNode):
    """A property of a type being checked; `type` is None if its declared type is invalid."""

    name: Name
    type: Type | None
    notes: PropertyNotes
    interfaces: Columns = ()


@dataclass(slots=True)
class _Constraints:
    keys: list[Columns] = field(default_factory=list)
    unique: set[Columns] = field(default_factory=set)
    indexes: set[Columns] = field(default_factory=set)
    ranges: set[Range] = field(default_factory=set)
    checks: set[Check] = field(default_factory=set)


class _CheckedProperties(dict[str, _CheckedProperty]):
    """The properties of a type by name. `whole` is False if one of its interfaces is unknown."""

    whole = True


class _Checker:
    """Checks one tree and continues after a problem."""

    def __init__(self, syntax_errors: Iterable[Rejection]) -> None:
        self.problems = list(syntax_errors)
        self.reported: set[tuple[str, Span]] = set()
        # After a syntax error some declarations are missing: references to them must not be reported as unknown.
        self.complete = not self.problems
        self.interfaces: dict[str, _CheckedProperties] = {}
        self.node_names: set[str] = set()

    def reject(self, code: str, message: str, span: Span, hint: str | None = None) -> None:
        # A property of an interface is checked once per node that implements it, but must be reported once.
        if (code, span) not in self.reported:
            self.reported.add((code, span))
            self.problems.append(Rejection(code, message, span, hint=hint))

    def catalog(self, tree: SchemaTree) -> Catalog:
        interfaces = self._declared(tree, InterfaceDecl, "C4", "duplicate interface `{}` in schema shape")
        nodes = self._declared(tree, NodeDecl, "C1", "duplicate node type `{}`")
        edges = self._declared(tree, EdgeDecl, "C1", "duplicate edge type `{}`")
        self.node_names = {str(decl.name) for decl in nodes}
        self.interfaces = {str(decl.name): self._members(decl.properties, "interface") for decl in interfaces}
        self._edge_names_fold_apart(edges)
        return Catalog(
            by_name(
                {name: InterfaceType(name, _catalog_properties(members)) for name, members in self.interfaces.items()}
            ),
            by_name({str(decl.name): self._node(decl) for decl in nodes}),
            by_name({str(decl.name): self._edge(decl) for decl in edges}),
        )

    def _declared(self, tree: SchemaTree, kind: type[_Decl], code: str, message: str) -> list[_Decl]:
        """List the declarations of a kind; duplicates are reported, and still checked."""
        found = [decl for decl in tree.declarations if isinstance(decl, kind)]
        names: set[str] = set()
        for decl in found:
            if decl.name in names:
                self.reject(code, message.format(decl.name), decl.name.span, "rename or remove one of them")
            names.add(decl.name)
        return found

    # Properties

    def _members(self, properties: Iterable[PropertyDecl], kind: str) -> _CheckedProperties:
        members = _CheckedProperties()
        for decl in properties:
            if decl.name in members:
                message = f"duplicate property `{decl.name}` in schema shape"
                self.reject("C4", message, decl.name.span, "rename or remove one of them")
                continue
            self._not_reserved(decl.name, kind)
            # A property with an invalid type stays known, so that rules on it cause no second error.
            type_ = self._type(decl.type)
            notes = read_property(decl, kind, type_, self.reject)
            if "key" in notes.rules and type_ and type_.nullable:
                self._nullable_key(decl.name)
            members[str(decl.name)] = _CheckedProperty(decl.name, type_, notes)
        return members

    def _not_reserved(self, name: Name, kind: str) -> None:
        if name in _ROW_COLUMNS:
            self.reject("P2", f"property name `{name}` is reserved for storage", name.span, "choose another name")
        elif name == "id":
            message = "property name `id` is reserved: every table has exactly one top-level `id` column, its own"
            self.reject("P2", message, name.span, "choose another name, such as `slug`")
        elif kind == "edge" and name in _EDGE_COLUMNS:
            message = f"property name `{name}` is reserved on edges: it names an endpoint"
            self.reject("P2", message, name.span, "choose another name")

    def _type(self, written: TypeExpression) -> Type | None:
        scalar = Scalar(written.base)
        if written.is_list and scalar is Scalar.BLOB:
            self.reject("P3", "list of Blob is not supported", written.base.span)
            return None
        seen: set[str] = set()
        for value in written.enum:
            if value in seen:
                self.reject("P6", f"enum has duplicate values: `{value}`", value.span)
                break
            seen.add(value)
        if written.dimension is not None:
            dimension = self._dimension(written.dimension)
            return Type(Scalar.VECTOR, nullable=written.nullable, dimension=dimension) if dimension else None
        values = tuple(sorted({str(value) for value in written.enum}))
        return Type(scalar, written.is_list, written.nullable, values)

    def _dimension(self, text: Name) -> int | None:
        # Compare lengths before converting: int() of a very long literal is slow, and refuses beyond 4,300 digits.
        digits = text.lstrip("0")
        if not digits:
            self.reject("P4", "Vector dimension must be at least 1", text.span)
        elif len(digits) > len(str(MAX_VECTOR_DIMENSION)) or int(digits) > MAX_VECTOR_DIMENSION:
            self.reject("P5", f"Vector dimension exceeds maximum supported {MAX_VECTOR_DIMENSION}", text.span)
        else:
            return int(digits)
        return None

    def _nullable_key(self, name: Name) -> None:
        self.reject("P31", f"@key property `{name}` cannot be nullable", name.span, "remove the `?`")

    # Types

    def _node(self, decl: NodeDecl) -> NodeType:
        members = self._with_interfaces(decl, self._members(decl.properties, "node"))
        self._embed_sources(members)
        constraints = self._constraints(members, decl.rules, "node")
        if len(constraints.keys) > 1:
            hint = "write one key of several properties as `@key(a, b)`"
            self.reject("P29", f"node type `{decl.name}` has multiple @key constraints", decl.name.span, hint)
        return NodeType(
            str(decl.name),
            _catalog_properties(members),
            constraints.keys[0] if constraints.keys else (),
            tuple(sorted(constraints.unique)),
            tuple(sorted(constraints.indexes)),
            tuple(sorted(constraints.ranges, key=str)),
            tuple(sorted(constraints.checks, key=str)),
            tuple(sorted({str(name) for name in decl.implements})),
            read_header(decl.annotations, "node", self.reject),
        )

    def _edge(self, decl: EdgeDecl) -> EdgeType:
        self._endpoint(decl.source, "source")
        self._endpoint(decl.target, "target")
        members = self._members(decl.properties, "edge")
        constraints = self._constraints(members, decl.rules, "edge")
        return EdgeType(
            str(decl.name),
            str(decl.source),
            str(decl.target),
            _catalog_properties(members),
            self._cardinality(decl.card) if decl.card else Cardinality(),
            tuple(sorted(constraints.unique)),
            tuple(sorted(constraints.indexes)),
            read_header(decl.annotations, "edge", self.reject),
        )

    def _endpoint(self, name: Name, role: str) -> None:
        if name not in self.node_names and self.complete:
            if name in self.interfaces:
                hint: str | None = "an interface cannot be an endpoint; use a node type"
            else:
                hint = did_you_mean(name, self.node_names)
            self.reject("C2", f"unknown {role} type `{name}`", name.span, hint)

    def _cardinality(self, card: CardDecl) -> Cardinality:
        bounds = []
        for text in (card.lower, card.upper):
            digits = "0" if text is None else text.lstrip("0") or "0"
            if text is not None and (len(digits) > len(str(_MAX_U32)) or int(digits) > _MAX_U32):
                self.reject("P8", f"invalid cardinality: a bound must be at most {_MAX_U32}", text.span)
                return Cardinality()
            bounds.append(int(digits))
        lower, upper = bounds[0], bounds[1] if card.upper is not None else None
        if upper is not None and lower > upper:
            self.reject("P7", f"cardinality min {lower} exceeds max {upper}", card.lower.span)
        return Cardinality(lower, upper)

    def _edge_names_fold_apart(self, edges: Iterable[EdgeDecl]) -> None:
        folded: dict[str, Name] = {}
        for decl in edges:
            other = folded.setdefault(decl.name.lower(), decl.name)
            if other != decl.name:
                message = f"edge types `{other}` and `{decl.name}` collide after case folding"
                self.reject("C3", message, decl.name.span, "traversals ignore case: rename one of them")

    # Interfaces

    def _with_interfaces(self, decl: NodeDecl, own: _CheckedProperties) -> _CheckedProperties:
        """Add the properties of the interfaces; properties the node declares itself must agree with them."""
        contributed: dict[str, _CheckedProperty] = {}
        members = _CheckedProperties(own)
        for interface in dict.fromkeys(decl.implements):
            inherited = self.interfaces.get(interface)
            if inherited is None:
                members.whole = False
                if self.complete:
                    hint = did_you_mean(interface, self.interfaces)
                    self.reject("P12", f"unknown interface `{interface}`", interface.span, hint)
                continue
            for name, member in inherited.items():
                if name in own:
                    self._agrees(own[name], member, interface)
                else:
                    contributed[name] = self._contribute(contributed.get(name), member, interface)
        members.update(contributed)
        return members

    def _agrees(self, own: _CheckedProperty, member: _CheckedProperty, interface: Name) -> None:
        if own.type and member.type and own.type != member.type:
            message = f"property `{own.name}` is {own.type} here but {member.type} in interface `{interface}`"
            self.reject("P13", message, own.name.span, "give both the same type, nullability included")

    def _contribute(
        self, other: _CheckedProperty | None, member: _CheckedProperty, interface: Name
    ) -> _CheckedProperty:
        comparable = other is not None and other.type is not None and member.type is not None
        if other and comparable and not (other.type == member.type and other.notes.same_meaning(member.notes)):
            both = f"interfaces `{other.interfaces[0]}` and `{interface}`"
            message = f"{both} declare `{member.name}` with incompatible property semantics"
            hint = "make the two declarations equal, or declare the property in the node itself"
            self.reject("C4", message, interface.span, hint)
        before = other.interfaces if other else ()
        return _CheckedProperty(member.name, member.type, member.notes, tuple(sorted((*before, str(interface)))))

    # Constraints

    def _embed_sources(self, members: _CheckedProperties) -> None:
        for member in members.values():
            embed = member.notes.embed
            if embed is None:
                continue
            source = members.get(embed.source)
            span = member.notes.embed_span
            if source is None and members.whole:
                message = f"@embed references unknown source property `{embed.source}`"
                self.reject("P23", message, span, did_you_mean(embed.source, members))
            elif source and source.type and not source.type.is_string:
                self.reject("P24", f"@embed source `{embed.source}` must be String, not {source.type}", span)

    def _constraints(self, members: _CheckedProperties, rules: Iterable[RuleDecl], kind: str) -> _Constraints:
        constraints = _Constraints()
        for name, member in members.items():
            for sugar in member.notes.rules:
                _add_columns(constraints, sugar, (name,))
        for rule in rules:
            if kind == "edge" and rule.kind in ("key", "range", "check"):
                self.reject("P33", f"@{rule.kind} is not supported on edges", rule.kind.span)
            else:
                _RULE_READERS[rule.kind](self, rule, members, constraints, kind)
        return constraints

    def _columns(self, rule: RuleDecl, members: _CheckedProperties, constraints: _Constraints, kind: str) -> None:
        found = [self._column(rule, argument, members, kind) for argument in rule.arguments]
        columns = [column for column in found if column is not None]
        if len(columns) < len(found):
            return
        # Harmless for the other rules, but a key repeats no part: its id would.
        if rule.kind == "key" and len(set(columns)) < len(columns):
            self.reject("C5", "@key repeats a property", rule.kind.span, "name each property once")
        # Sorted, so that @unique(a, b) and @unique(b, a) are one constraint and make equal catalogs.
        _add_columns(constraints, rule.kind, tuple(sorted(set(columns))))

    def _column(
        self, rule: RuleDecl, argument: Name | Value | Bounds, members: _CheckedProperties, kind: str
    ) -> str | None:
        """Resolve one column of a rule; None after a problem."""
        if not isinstance(argument, Name):
            message = f"expected property name in constraint @{rule.kind}"
            quoted = isinstance(argument, Value) and isinstance(argument.value, str)
            self.reject("P9", message, argument.span, "write names without quotes" if quoted else None)
            return None
        if kind == "edge" and argument in _ENDPOINTS:
            return str(argument)
        if rule.kind == "key" and argument == "id":
            message = "@key cannot name `id`: the id is derived from the key"
            self.reject("C5", message, argument.span, "name a declared property")
            return None
        member = members.get(argument)
        if member is None and members.whole:
            message = f"@{rule.kind} references unknown property `{argument}`"
            self.reject("P30", message, argument.span, did_you_mean(argument, members))
        if member is None or member.type is None:
            return None
        if rule.kind in ("key", "unique", "index") and not column_fits(
            rule.kind, member.type, argument, self.reject, "body"
        ):
            return None
        # The property form has reported it already.
        if rule.kind == "key" and member.type.nullable and "key" not in member.notes.rules:
            self._nullable_key(argument)
        return str(argument)

    def _range(self, rule: RuleDecl, members: _CheckedProperties, constraints: _Constraints, kind: str) -> None:
        column = self._column(rule, rule.arguments[0], members, kind)
        if column is None:
            return
        bounds = rule.arguments[-1]
        if len(rule.arguments) != _RANGE_ARGUMENTS:
            self.reject("P10", "@range requires a property and bounds: `@range(property, lo..hi)`", rule.kind.span)
        elif not isinstance(bounds, Bounds):
            self.reject("P10", "expected range bounds, such as `0..100`", bounds.span)
        elif not (members[column].type or STRING).is_numeric:
            self.reject("P34", f"@range requires a numeric type, not {members[column].type}", rule.kind.span)
        elif bounds.lower is not None and bounds.upper is not None and bounds.lower > bounds.upper:
            self.reject("P10", "@range requires a lower bound that does not exceed the upper bound", bounds.span)
        else:
            constraints.ranges.add(Range(column, _normalized_bound(bounds.lower), _normalized_bound(bounds.upper)))

    def _check(self, rule: RuleDecl, members: _CheckedProperties, constraints: _Constraints, kind: str) -> None:
        column = self._column(rule, rule.arguments[0], members, kind)
        if column is None:
            return
        pattern = rule.arguments[-1]
        if len(rule.arguments) != _CHECK_ARGUMENTS:
            message = '@check requires a property and a pattern: `@check(property, "pattern")`'
            self.reject("P11", message, rule.kind.span)
        elif not (isinstance(pattern, Value) and isinstance(pattern.value, str)):
            self.reject("P11", "expected string argument: the pattern", pattern.span)
        elif not (members[column].type or STRING).is_string:
            self.reject("P35", f"@check requires String type, not {members[column].type}", rule.kind.span)
        else:
            constraints.checks.add(Check(column, pattern.value))


_RuleReader = Callable[[_Checker, RuleDecl, _CheckedProperties, _Constraints, str], None]
_RULE_READERS: Mapping[str, _RuleReader] = {
    "key": _Checker._columns,  # noqa: SLF001 - this table is part of the class
    "unique": _Checker._columns,  # noqa: SLF001
    "index": _Checker._columns,  # noqa: SLF001
    "range": _Checker._range,  # noqa: SLF001
    "check": _Checker._check,  # noqa: SLF001
}


def _normalized_bound(bound: float | None) -> float | None:
    """Spell equal numbers equally, so that `0..1` and `0.0..1.0` make equal catalogs."""
    return int(bound) if isinstance(bound, float) and bound.is_integer() else bound


def _add_columns(constraints: _Constraints, rule: str, columns: Columns) -> None:
    if rule == "key":
        constraints.keys.append(columns)
    else:
        (constraints.unique if rule == "unique" else constraints.indexes).add(columns)


def _catalog_properties(members: _CheckedProperties) -> dict[str, Property]:
    return by_name(
        {
            name: Property(name, member.type, member.notes.embed, member.notes.metadata, member.interfaces)
            for name, member in members.items()
            if member.type
        }
    )
