"""Plan the change from one schema to another: ordered steps, or the reasons why it is not supported."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from omnigraph.core.values import Scalar
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
from omnigraph.lang.schema_ids import SchemaIds
from omnigraph.lang.schema_steps import (
    CODES,
    AddConstraint,
    AddProperty,
    AddType,
    ChangeCardinality,
    DropConstraint,
    DropMode,
    DropProperty,
    DropType,
    ExtendEnum,
    ReduceEnum,
    RelaxProperty,
    RenameProperty,
    RenameType,
    SchemaPlan,
    Step,
    TightenProperty,
    UnsupportedChange,
    UpdatePropertyMetadata,
    UpdateTypeMetadata,
    WidenProperty,
)
from omnigraph.lang.types import Type

# A value keeps its meaning, and can be stored in the later type exactly.
_WIDER = {
    Scalar.I32: (Scalar.I64, Scalar.F64),
    Scalar.U32: (Scalar.U64, Scalar.I64),
    Scalar.F32: (Scalar.F64,),
}


@dataclass(frozen=True, slots=True)
class Renames:
    """What was called how before: types by their keys, and by those the properties of each type.

    What is not here was added. With it, names and `@rename_from` say nothing.
    """

    types: Mapping[str, str]
    properties: Mapping[str, Mapping[str, str]]

    def of_kind(self, kind: str) -> dict[str, str]:
        pairs = ((new.partition(":"), old.partition(":")) for new, old in self.types.items())
        return {new[2]: old[2] for new, old in pairs if new[0] == kind}


def renames_of(before: SchemaIds, after: SchemaIds) -> Renames:
    """Return what types and properties of a later schema were called in an earlier one, by their identity."""
    keys = {one.id: key for key, one in before.items()}
    types = {key: keys[one.id] for key, one in after.items() if one.id in keys}
    properties = {}
    for key, old in types.items():
        names = {id_: name for name, id_ in before[old].properties.items()}
        properties[key] = {name: names[id_] for name, id_ in after[key].properties.items() if id_ in names}
    return Renames(types, properties)


def plan_schema(
    accepted: Catalog,
    desired: Catalog,
    drops: DropMode = DropMode.SOFT,
    empty: Collection[str] = (),
    *,
    renames: Renames | None = None,
) -> SchemaPlan:
    """Plan the change from the accepted schema to the desired one.

    `empty` are the accepted types without entities, such as `node:Person`: these can get required properties.
    """
    return SchemaPlan(tuple(_Planner(accepted, desired, drops, empty, renames).steps()))


_Typed = InterfaceType | NodeType | EdgeType


class _Planner:
    def __init__(
        self, accepted: Catalog, desired: Catalog, drops: DropMode, empty: Collection[str], renames: Renames | None
    ) -> None:
        self.drops = drops
        self.renames = renames
        self.empty = empty
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
        if self.renames is not None:
            return self.renames.of_kind(kind)
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
                if self.renames is None and property_.metadata.rename_from and not property_.interfaces:
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
                yield ChangeCardinality(self.kind, new.name, str(old.cardinality), str(new.cardinality))

    # Properties

    def _pair_properties(self) -> dict[str, str]:
        if self.planner.renames is not None:
            return dict(self.planner.renames.properties[f"{self.kind}:{self.new.name}"])
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
            # Existing rows get null: there is no other value to give them. An interface has no rows.
            is_empty = f"{self.kind}:{self.old.name}" in self.planner.empty or isinstance(self.new, InterfaceType)
            is_empty |= self.planner.renames is not None  # of a merge: what comes of it is judged as a whole
            if property_.type.nullable or is_empty:
                yield AddProperty(self.kind, self.new.name, name, str(property_.type))
            else:
                yield self._unsupported(CODES["OG-MF-103"][1], name, "OG-MF-103")

    def _changed(self, old: Property, new: Property) -> Iterator[Step]:
        yield from self._retyped(old, new)
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

    def _retyped(self, old: Property, new: Property) -> Iterator[Step]:
        at, one, other = (self.kind, self.new.name, new.name), old.type, new.type
        if one.enum and other.enum:
            added, removed = (
                tuple(sorted(a)) for a in (set(other.enum) - set(one.enum), set(one.enum) - set(other.enum))
            )
            if added:
                yield ExtendEnum(*at, added)
            if removed:
                yield ReduceEnum(*at, removed)
        elif not one.same_shape(other):
            if not self._is_wider(new.name, one, other):
                yield self._unsupported(f"{CODES['OG-MF-106'][1]} from {one} to {other}", new.name, "OG-MF-106")
                return
            yield WidenProperty(*at, str(one), str(other))
        if one.nullable != other.nullable:
            yield RelaxProperty(*at) if other.nullable else TightenProperty(*at)

    def _is_wider(self, name: str, old: Type, new: Type) -> bool:
        if old.is_list or new.is_list or new.scalar not in _WIDER.get(old.scalar, ()):
            return False
        # Ids are made of the text of a key, which is the same for every type of integers, and no other.
        is_key = isinstance(self.new, NodeType) and name in self.new.key
        return new.is_integer or not is_key

    # Constraints and annotations

    def _constraints(self) -> Iterator[Step]:
        before, after = self._spelled(self.old, self.new_names), self._spelled(self.new, {})
        for constraint in sorted(before - after):
            if constraint.startswith("@key("):
                yield self._unsupported(f"{constraint} cannot be removed")
            else:
                yield DropConstraint(self.kind, self.new.name, constraint)
        for constraint in sorted(after - before):
            if constraint.startswith("@key("):
                yield self._unsupported(f"{constraint} cannot be added to an existing type")
            else:
                yield AddConstraint(self.kind, self.new.name, constraint)

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
