"""The identity of types and properties: what a schema keeps of them through renames.

Names do not identify: two branches can give one type two names, or two types one name.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from omnigraph.lang.catalog import Catalog, EdgeType, InterfaceType, NodeType
from omnigraph.lang.identity import new_id
from omnigraph.lang.schema_steps import AddProperty, AddType, RenameProperty, RenameType, SchemaPlan
from omnigraph.lang.source import TreeNode

Declared = InterfaceType | NodeType | EdgeType


class TypeIds(TreeNode):
    """The id of a type, and those of its properties by name."""

    id: str
    properties: Mapping[str, str]


SchemaIds = Mapping[str, TypeIds]
"""The ids of all types by key, such as `node:Person`."""


def declared_types(catalog: Catalog) -> Iterator[tuple[str, Declared]]:
    """Yield every type with its key."""
    for kind, types in (("interface", catalog.interfaces), ("node", catalog.nodes), ("edge", catalog.edges)):
        yield from ((f"{kind}:{name}", declared) for name, declared in types.items())


def first_ids(catalog: Catalog) -> dict[str, TypeIds]:
    """Return the ids of a schema that has none stored: the same wherever they are asked for."""
    return {
        key: TypeIds(f"g:{key}", {name: f"g:{key}.{name}" for name in declared.properties})
        for key, declared in declared_types(catalog)
    }


def carried(ids: SchemaIds, plan: SchemaPlan, desired: Catalog) -> dict[str, TypeIds]:
    """Return the ids after a change: what is renamed keeps its id, what is added gets a new one."""
    types = {f"{one.type_kind}:{one.to}": f"{one.type_kind}:{one.from_}" for one in plan.of(RenameType)}
    added = {f"{one.type_kind}:{one.name}" for one in plan.of(AddType)}
    renamed = {(f"{one.type_kind}:{one.type_name}", one.to): one.from_ for one in plan.of(RenameProperty)}
    new = {(f"{one.type_kind}:{one.type_name}", one.property_name) for one in plan.of(AddProperty)}

    def after(key: str, declared: Declared) -> TypeIds:
        if key in added:
            return TypeIds(new_id(), {name: new_id() for name in declared.properties})
        before = ids[types.get(key, key)]
        found = {
            name: new_id() if (key, name) in new else before.properties[renamed.get((key, name), name)]
            for name in declared.properties
        }
        return TypeIds(before.id, found)

    return {key: after(key, declared) for key, declared in declared_types(desired)}


def encoded(ids: SchemaIds) -> str:
    document = {key: {"id": one.id, "properties": dict(one.properties)} for key, one in ids.items()}
    return json.dumps(document, separators=(",", ":"), sort_keys=True)


def decoded(text: str) -> dict[str, TypeIds]:
    return {key: TypeIds(one["id"], one["properties"]) for key, one in json.loads(text).items()}
