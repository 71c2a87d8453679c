"""Plan the change from one schema to another: ordered steps, or the reasons why it is not supported."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from enum import StrEnum
from typing import Any, ClassVar

from omnigraph.lang.catalog import (
    NO_METADATA,
    Catalog,
    Check,
    EdgeType,
    InterfaceType,
    Metadata,
    NodeType,
    Property,
    Range,
)
from omnigraph.lang.source import TreeNode


class Tier(StrEnum):
    VALIDATED = "validated"
    DESTRUCTIVE = "destructive"


# Code -> how dangerous the change is, and its description.
CODES = {
    "OG-MF-103": (Tier.VALIDATED, "a required property cannot be added: existing entities have no value for it"),
    "OG-MF-106": (Tier.DESTRUCTIVE, "the type of a property cannot be changed"),
}


class DropMode(StrEnum):
    """Soft: old data stays reachable through time travel. Hard: it is removed for good."""

    SOFT = "soft"
    HARD = "hard"


class Step(TreeNode):
    """One change. `to_dict` is its JSON form, `str` the line shown to people, which `text` makes of its fields."""

    kind: ClassVar[str]
    text: ClassVar[str]

    def __str__(self) -> str:
        return self.text.format(self)

    def to_dict(self) -> dict[str, Any]:
        values = {field.name.rstrip("_"): getattr(self, field.name) for field in fields(self)}
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
        return {"kind": self.kind, **{name: value for name, value in plain.items() if value is not None}}


class AddType(Step):
    kind = "add_type"
    text = "add {0.type_kind} type '{0.name}'"
    type_kind: str
    name: str


class RenameType(Step):
    kind = "rename_type"
    text = "rename {0.type_kind} type '{0.from_}' -> '{0.to}'"
    type_kind: str
    from_: str
    to: str


class AddProperty(Step):
    kind = "add_property"
    text = "add property '{0.type_name}.{0.property_name}' ({0.property_type}) on {0.type_kind} '{0.type_name}'"
    type_kind: str
    type_name: str
    property_name: str
    property_type: str


class RenameProperty(Step):
    kind = "rename_property"
    text = "rename property '{0.type_name}.{0.from_}' -> '{0.type_name}.{0.to}' on {0.type_kind} '{0.type_name}'"
    type_kind: str
    type_name: str
    from_: str
    to: str


class AddConstraint(Step):
    kind = "add_constraint"
    text = "add constraint {0.constraint} on {0.type_kind} '{0.type_name}'"
    type_kind: str
    type_name: str
    constraint: str


class ExtendEnum(Step):
    kind = "extend_enum"
    type_kind: str
    type_name: str
    property_name: str
    added_values: tuple[str, ...]

    def __str__(self) -> str:
        return f"extend enum '{self.type_name}.{self.property_name}' with {', '.join(self.added_values)}"


class UpdateTypeMetadata(Step):
    kind = "update_type_metadata"
    type_kind: str
    type_name: str
    annotations: tuple[str, ...]

    def __str__(self) -> str:
        return f"update {', '.join(self.annotations)} of {self.type_kind} '{self.type_name}'"


class UpdatePropertyMetadata(Step):
    kind = "update_property_metadata"
    type_kind: str
    type_name: str
    property_name: str
    annotations: tuple[str, ...]

    def __str__(self) -> str:
        return f"update {', '.join(self.annotations)} of property '{self.type_name}.{self.property_name}'"


class DropType(Step):
    kind = "drop_type"
    text = "drop {0.type_kind} type '{0.name}' ({0.mode} mode)"
    type_kind: str
    name: str
    mode: DropMode


class DropProperty(Step):
    kind = "drop_property"
    text = "drop property '{0.type_name}.{0.property_name}' of {0.type_kind} '{0.type_name}' ({0.mode} mode)"
    type_kind: str
    type_name: str
    property_name: str
    mode: DropMode


class UnsupportedChange(Step):
    kind = "unsupported_change"
    entity: str
    reason: str
    code: str | None = None

    def __str__(self) -> str:
        code = f" [{self.code}, {CODES[self.code][0]}]" if self.code else ""
        return f"unsupported change on {self.entity}{code}: {self.reason}"


class SchemaPlan(TreeNode):
    steps: tuple[Step, ...]

    @property
    def supported(self) -> bool:
        return not any(isinstance(step, UnsupportedChange) for step in self.steps)

    def to_dict(self) -> dict[str, Any]:
        steps = [step.to_dict() for step in self.steps]
        return {"supported": self.supported, "step_count": len(steps), "steps": steps}


def plan_schema(accepted: Catalog, desired: Catalog, drops: DropMode = DropMode.SOFT) -> SchemaPlan:
    """Plan the change from the accepted schema to the desired one."""
    return SchemaPlan(tuple(_Planner(accepted, desired, drops).steps()))


_Typed = InterfaceType | NodeType | EdgeType


class _Planner:
    def __init__(self, accepted: Catalog, desired: Catalog, drops: DropMode) -> None:
        self.drops = drops
        self.old = _by_kind(accepted)
        self.new = _by_kind(desired)
        self.problems: list[UnsupportedChange] = []
        # New name -> old name, for every type that is both accepted and desired.
        self.pairs = {kind: self._pair_types(kind) for kind in self.old}

    def steps(self) -> Iterator[Step]:
        yield from self.problems
        # Renames come first: later steps use the new type names.
        for kind, pairs in self.pairs.items():
            yield from (RenameType(kind, old, new) for new, old in pairs.items() if new != old)
        for kind, pairs in self.pairs.items():
            yield from self._added(kind, pairs)
        for kind, pairs in self.pairs.items():
            for new, old in pairs.items():
                yield from _TypeChange(self, kind, self.old[kind][old], self.new[kind][new]).steps()
        # Edges before nodes: no step may leave an edge type without one of its ends.
        for kind in ("edge", "node", "interface"):
            yield from self._dropped(kind)

    def renamed_node(self, old: str) -> str:
        """Return the name of an accepted node type in the desired schema."""
        return next((new for new, before in self.pairs["node"].items() if before == old), old)

    def _pair_types(self, kind: str) -> dict[str, str]:
        # A type that keeps its name is the same type, whatever @rename_from says: hints may stay in a schema for ever.
        pairs = {name: name for name in self.new[kind] if name in self.old[kind]}
        claimed: set[str] = set()
        for name, declared in self.new[kind].items():
            hint = _metadata(declared).rename_from
            if name in pairs or hint is None:
                continue
            problem = self._hint_problem(kind, hint, claimed)
            if problem:
                self.problems.append(UnsupportedChange(f"{kind} '{name}'", problem))
            else:
                pairs[name] = hint
                claimed.add(hint)
        return pairs

    def _hint_problem(self, kind: str, hint: str, claimed: set[str]) -> str | None:
        if hint not in self.old[kind]:
            others = [other for other in self.old if other != kind and hint in self.old[other]]
            if others:
                return f'@rename_from("{hint}") names a type of another kind: {others[0]}'
            return f'@rename_from("{hint}") names no accepted {kind} type'
        # Two successors, or a successor beside the original, would make the owner of the data ambiguous.
        if hint in claimed or hint in self.new[kind]:
            return f'@rename_from("{hint}") names a type that another declaration uses'
        return None

    def _added(self, kind: str, pairs: Mapping[str, str]) -> Iterator[Step]:
        refused = {problem.entity for problem in self.problems}
        for name, declared in self.new[kind].items():
            if name in pairs or f"{kind} '{name}'" in refused:
                continue
            yield AddType(kind, name)
            for property_ in declared.properties.values():
                if property_.metadata.rename_from and not property_.interfaces:
                    reason = f'a new type cannot take over property "{property_.metadata.rename_from}"'
                    yield UnsupportedChange(f"property '{name}.{property_.name}'", reason)

    def _dropped(self, kind: str) -> Iterator[Step]:
        kept = set(self.pairs[kind].values())
        for name in self.old[kind]:
            if name in kept:
                continue
            # Nodes would silently lose the properties it contributes.
            if kind == "interface":
                yield UnsupportedChange(f"interface '{name}'", "an interface cannot be renamed or removed")
            else:
                yield DropType(kind, name, self.drops)


class _TypeChange:
    """Plan the steps from one accepted type to its desired form."""

    def __init__(self, planner: _Planner, kind: str, old: _Typed, new: _Typed) -> None:
        self.planner = planner
        self.kind = kind
        self.old = old
        self.new = new
        self.problems: list[UnsupportedChange] = []
        self.pairs = self._pair_properties()
        self.new_names = {before: after for after, before in self.pairs.items()}

    def steps(self) -> Iterator[Step]:
        yield from self.problems
        yield from self._shape()
        for new, old in self.pairs.items():
            if new != old:
                yield RenameProperty(self.kind, self.new.name, old, new)
        yield from self._added()
        for new, old in self.pairs.items():
            yield from self._changed(self.old.properties[old], self.new.properties[new])
        yield from self._constraints()
        yield from self._annotations()
        for name in self.old.properties:
            if name not in self.new_names:
                yield DropProperty(self.kind, self.new.name, name, self.planner.drops)

    def _unsupported(self, reason: str, property_: str | None = None, code: str | None = None) -> UnsupportedChange:
        entity = f"property '{self.new.name}.{property_}'" if property_ else f"{self.kind} '{self.new.name}'"
        return UnsupportedChange(entity, reason, code)

    def _shape(self) -> Iterator[Step]:
        old, new = self.old, self.new
        if isinstance(old, NodeType) and isinstance(new, NodeType) and old.implements != new.implements:
            yield self._unsupported("the implemented interfaces cannot be changed")
        if isinstance(old, NodeType) and isinstance(new, NodeType) and len(old.key) > 1:
            # An id lists its key parts in the order of the property names: a rename must not reorder them.
            renamed = tuple(self.new_names.get(name, name) for name in old.key)
            if renamed != new.key and sorted(renamed) == sorted(new.key):
                yield self._unsupported("the rename would change the order of the key parts, and with it every id")
        if isinstance(old, EdgeType) and isinstance(new, EdgeType):
            # An endpoint that was itself renamed is unchanged.
            ends = tuple(map(self.planner.renamed_node, (old.source, old.target)))
            if ends != (new.source, new.target):
                yield self._unsupported("the endpoints of an edge type cannot be changed")
            if old.cardinality != new.cardinality:
                yield self._unsupported(f"the cardinality cannot be changed from {old.cardinality}")

    # Properties

    def _pair_properties(self) -> dict[str, str]:
        pairs = {name: name for name in self.new.properties if name in self.old.properties}
        for name, property_ in self.new.properties.items():
            hint = property_.metadata.rename_from
            if name in pairs or hint is None:
                continue
            if hint not in self.old.properties:
                self.problems.append(self._unsupported(self._lost_hint(hint), name))
            elif hint in pairs.values() or hint in self.new.properties:
                reason = f'@rename_from("{hint}") names a property that another declaration uses'
                self.problems.append(self._unsupported(reason, name))
            else:
                pairs[name] = hint
        return pairs

    def _lost_hint(self, hint: str) -> str:
        for types in self.planner.old.values():
            for owner in types.values():
                if owner.name != self.old.name and hint in owner.properties:
                    return f"@rename_from(\"{hint}\") would move a property here from '{owner.name}'"
        return f"@rename_from(\"{hint}\") names no accepted property of '{self.old.name}'"

    def _added(self) -> Iterator[Step]:
        refused = {problem.entity for problem in self.problems}
        for name, property_ in self.new.properties.items():
            if name in self.pairs or f"property '{self.new.name}.{name}'" in refused:
                continue
            # Existing rows get null: there is no other value to give them.
            if property_.type.nullable:
                yield AddProperty(self.kind, self.new.name, name, str(property_.type))
            else:
                yield self._unsupported(CODES["OG-MF-103"][1], name, "OG-MF-103")

    def _changed(self, old: Property, new: Property) -> Iterator[Step]:
        if old.type != new.type:
            added = set(new.type.enum) - set(old.type.enum)
            # More values are safe: every stored value stays valid. Fewer are not, even if none is in use.
            widened = old.type.enum and set(old.type.enum) < set(new.type.enum)
            if widened and old.type.nullable == new.type.nullable:
                yield ExtendEnum(self.kind, self.new.name, new.name, tuple(sorted(added)))
            else:
                reason = f"{CODES['OG-MF-106'][1]} from {old.type} to {new.type}"
                yield self._unsupported(reason, new.name, "OG-MF-106")
        # Only whether, not which: an interface that is added beside another changes nothing for the property.
        if bool(old.interfaces) != bool(new.interfaces):
            reason = "a property cannot move between its type and an interface"
            yield self._unsupported(reason, new.name)
        # Stored vectors were made from the old source by the old model; a new one would need all of them again.
        old_source = self.new_names.get(old.embed.source, old.embed.source) if old.embed else None
        new_embed = (new.embed.source, new.embed.model) if new.embed else (None, None)
        if (old_source, old.embed.model if old.embed else None) != new_embed:
            yield self._unsupported("@embed cannot be changed", new.name)
        if old.metadata.opaque != new.metadata.opaque:
            yield self._unsupported(_opaque_reason(old.metadata, new.metadata), new.name)
        changed = _changed_prose(old.metadata, new.metadata)
        if changed:
            yield UpdatePropertyMetadata(self.kind, self.new.name, new.name, changed)

    # Constraints and annotations

    def _constraints(self) -> Iterator[Step]:
        before, after = self._spelled(self.old, self.new_names), self._spelled(self.new, {})
        for constraint in sorted(after - before):
            # An index is built later from any data; every other rule might be broken by rows that exist.
            if constraint.startswith("@index("):
                yield AddConstraint(self.kind, self.new.name, constraint)
            else:
                yield self._unsupported(f"{constraint} cannot be added to an existing type")
        for constraint in sorted(before - after):
            yield self._unsupported(f"{constraint} cannot be removed")

    def _spelled(self, type_: _Typed, names: Mapping[str, str]) -> set[str]:
        """Spell the constraints of a type, with the property names of the desired schema.

        A constraint on dropped properties only is dropped with them.
        """
        if isinstance(type_, InterfaceType):
            return set()
        columns = {("unique", names_) for names_ in type_.unique} | {("index", names_) for names_ in type_.indexes}
        if isinstance(type_, NodeType) and type_.key:
            columns.add(("key", type_.key))
        spelled = set()
        for rule, old_names in columns:
            # A key never goes quietly: dropping one of its properties must show up as a removed @key.
            if rule == "key" or any(self._survives(name) for name in old_names):
                spelled.add(f"@{rule}({', '.join(sorted(names.get(name, name) for name in old_names))})")
        if isinstance(type_, NodeType):
            bounds: tuple[Range | Check, ...] = (*type_.ranges, *type_.checks)
            for bound in bounds:
                if self._survives(bound.property):
                    spelled.add(str(replace(bound, property=names.get(bound.property, bound.property))))
        return spelled

    def _survives(self, name: str) -> bool:
        return name in self.new_names or name in self.new.properties or name in ("src", "dst")

    def _annotations(self) -> Iterator[Step]:
        old, new = _metadata(self.old), _metadata(self.new)
        if old.opaque != new.opaque:
            yield self._unsupported(_opaque_reason(old, new))
        changed = _changed_prose(old, new)
        if changed:
            yield UpdateTypeMetadata(self.kind, self.new.name, changed)


def _by_kind(catalog: Catalog) -> dict[str, Mapping[str, _Typed]]:
    return {"interface": catalog.interfaces, "node": catalog.nodes, "edge": catalog.edges}


def _metadata(declared: _Typed) -> Metadata:
    return NO_METADATA if isinstance(declared, InterfaceType) else declared.metadata


def _changed_prose(old: Metadata, new: Metadata) -> tuple[str, ...]:
    return tuple(name for name in ("description", "instruction") if getattr(old, name) != getattr(new, name))


def _opaque_reason(old: Metadata, new: Metadata) -> str:
    # A multiset: the same annotation may be written twice, and removing one of the two is a change.
    before, after = Counter(old.opaque), Counter(new.opaque)
    changed = sorted({*(before - after), *(after - before)})
    return f"unknown annotations cannot be changed: {', '.join(changed)}"
