"""The entities that a change of the schema would break: each new rule is checked on all of them, before it holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.api.results import TableVersion
from omnigraph.errors import Violation
from omnigraph.lang.catalog import Cardinality, Catalog, EdgeType, NodeType
from omnigraph.lang.schema_steps import (
    AddConstraint,
    AddProperty,
    ChangeCardinality,
    ReduceEnum,
    SchemaPlan,
    Step,
    TightenProperty,
    UnsupportedChange,
)
from omnigraph.storage.columns import declared_of
from omnigraph.storage.projection import Projection
from omnigraph.storage.read import ADDRESS, ID, SRC
from omnigraph.storage.stage import TableStorage
from omnigraph.write.pending import image_schema, without_record
from omnigraph.write.validate import (
    TableChange,
    miscounted,
    out_of_bounds,
    repeated_values,
    value_violations,
)

_CODES = {"required": "OG-MF-104"}
_BROKEN = "OG-MF-107"


@dataclass(frozen=True, slots=True)
class ExistingRows:
    """The entities of one type before a change of the schema, read as they are after it.

    `ignored` are ids that the same change replaces or removes, and `brought` the rows that it brings.
    """

    tables: TableStorage
    table: TableVersion
    projection: Projection
    ignored: pa.Array | None = None
    brought: pa.Table | None = None

    def parts(self, names: Sequence[str]) -> Iterator[pa.Table]:
        """Yield some columns, a fragment at a time: a table may not fit into memory."""
        wanted = [ID, *(name for name in names if name != ID)]
        for number in self.tables.fragment_rows(self.table):
            found = self.tables.scan_fragments(self.table, [number], self.projection.names(wanted))
            rows = self.projection.of(found.drop_columns(ADDRESS), wanted)
            yield rows if self.ignored is None else rows.filter(pc.invert(pc.is_in(rows[ID], self.ignored)))
        if self.brought is not None:
            yield self.brought.select(wanted)

    def columns(self, names: Sequence[str]) -> pa.Table:
        fields = pa.schema([self.projection.schema.field(name) for name in dict.fromkeys((ID, *names))])
        return pa.concat_tables([fields.empty_table(), *self.parts(names)])


def checked(plan: SchemaPlan, desired: Catalog, rows: Mapping[str, ExistingRows]) -> SchemaPlan:
    """Return the plan with the steps that existing entities do not allow, as unsupported ones.

    `rows` has the entities of each type, by its new key.
    """
    return SchemaPlan(tuple(_checked(step, desired, rows) for step in plan.steps))


def _checked(step: Step, desired: Catalog, rows: Mapping[str, ExistingRows]) -> Step:
    if not isinstance(step, AddProperty | TightenProperty | ReduceEnum | AddConstraint | ChangeCardinality):
        return step
    found = rows.get(f"{step.type_kind}:{step.type_name}")
    if found is None:
        return step
    broken = next(_violations(step, declared_of(desired, f"{step.type_kind}:{step.type_name}"), found), None)
    if broken is None:
        return step
    reason = f"entity '{broken.entity_id}' does not allow it: {broken.message}"
    return UnsupportedChange(f"{step.type_kind} '{step.type_name}'", reason, _CODES.get(broken.rule, _BROKEN))


def _violations(step: Step, declared: NodeType | EdgeType, rows: ExistingRows) -> Iterator[Violation]:
    match step:
        case AddProperty(_, _, name) if not declared.properties[name].type.nullable:
            yield from _value_violations(declared, name, "required", rows)
        case TightenProperty(_, _, name):
            yield from _value_violations(declared, name, "required", rows)
        case ReduceEnum(_, _, name):
            yield from _value_violations(declared, name, "enum", rows)
        case ChangeCardinality() if isinstance(declared, EdgeType):
            yield from _miscounted(declared, rows)
        case AddConstraint(constraint=text):
            yield from _constraint_violations(declared, text, rows)


def _value_violations(declared: NodeType | EdgeType, name: str, rule: str, rows: ExistingRows) -> Iterator[Violation]:
    """Yield the violations of one rule about one property."""
    one = replace(declared, properties={name: declared.properties[name]})
    for part in rows.parts([name]):
        yield from (found for found in value_violations(one, without_record(part)) if found.rule == rule)


def _constraint_violations(declared: NodeType | EdgeType, text: str, rows: ExistingRows) -> Iterator[Violation]:
    for columns in declared.unique:
        if f"@unique({', '.join(columns)})" == text:
            yield from _repeated(declared, columns, rows)
    if isinstance(declared, NodeType):
        alone = replace(declared, ranges=(), checks=())
        for bound in declared.ranges:
            if str(bound) == text:
                yield from _value_violations(replace(alone, ranges=(bound,)), bound.property, "range", rows)
        for check in declared.checks:
            if str(check) == text:
                yield from _value_violations(replace(alone, checks=(check,)), check.property, "check", rows)


def _repeated(declared: NodeType | EdgeType, columns: Sequence[str], rows: ExistingRows) -> Iterator[Violation]:
    found = without_record(rows.columns(columns))
    empty = image_schema(declared).empty_table()
    change = TableChange(declared, found, empty, fresh=True)
    yield from repeated_values(change, columns, lambda groups: empty.select([ID, *groups.column_names]))


def _miscounted(edge: EdgeType, rows: ExistingRows) -> Iterator[Violation]:
    if edge.cardinality == Cardinality():
        return
    ends = rows.columns([SRC])[SRC]
    for source, count in out_of_bounds(edge, ends.unique(), ends.chunks):
        yield miscounted(edge, source, count, None)
