"""The steps of a schema change: what each is called, as JSON and as a line for people."""

from __future__ import annotations

from dataclasses import fields
from enum import StrEnum
from typing import Any, ClassVar, TypeVar

from omnigraph.lang.source import TreeNode


class Tier(StrEnum):
    VALIDATED = "validated"
    DESTRUCTIVE = "destructive"


# Code -> how dangerous the change is, and its description.
CODES = {
    "OG-MF-103": (Tier.VALIDATED, "a required property cannot be added: existing entities have no value for it"),
    "OG-MF-104": (Tier.VALIDATED, "a property cannot become required: an existing entity has no value for it"),
    "OG-MF-106": (Tier.DESTRUCTIVE, "the type of a property cannot be changed"),
    "OG-MF-107": (Tier.VALIDATED, "an existing entity breaks the new rule"),
}


class DropMode(StrEnum):
    """Soft: old data stays reachable through time travel. Hard: it is removed for good."""

    SOFT = "soft"
    HARD = "hard"


_S = TypeVar("_S")


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


class DropConstraint(Step):
    kind = "drop_constraint"
    text = "drop constraint {0.constraint} on {0.type_kind} '{0.type_name}'"
    type_kind: str
    type_name: str
    constraint: str


class ChangeCardinality(Step):
    kind = "change_cardinality"
    text = "change cardinality of {0.type_kind} '{0.type_name}' from {0.from_} to {0.to}"
    type_kind: str
    type_name: str
    from_: str
    to: str


class WidenProperty(Step):
    kind = "widen_property"
    text = "widen property '{0.type_name}.{0.property_name}' from {0.from_} to {0.to}"
    type_kind: str
    type_name: str
    property_name: str
    from_: str
    to: str


class RelaxProperty(Step):
    kind = "relax_property"
    text = "make property '{0.type_name}.{0.property_name}' nullable"
    type_kind: str
    type_name: str
    property_name: str


class TightenProperty(Step):
    kind = "tighten_property"
    text = "make property '{0.type_name}.{0.property_name}' required"
    type_kind: str
    type_name: str
    property_name: str


class ExtendEnum(Step):
    kind = "extend_enum"
    type_kind: str
    type_name: str
    property_name: str
    added_values: tuple[str, ...]

    def __str__(self) -> str:
        return f"extend enum '{self.type_name}.{self.property_name}' with {', '.join(self.added_values)}"


class ReduceEnum(Step):
    kind = "reduce_enum"
    type_kind: str
    type_name: str
    property_name: str
    removed_values: tuple[str, ...]

    def __str__(self) -> str:
        return f"reduce enum '{self.type_name}.{self.property_name}' by {', '.join(self.removed_values)}"


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

    def of(self, kind: type[_S]) -> list[_S]:
        """Return the steps of one kind."""
        return [step for step in self.steps if isinstance(step, kind)]

    @property
    def supported(self) -> bool:
        return not any(isinstance(step, UnsupportedChange) for step in self.steps)

    def to_dict(self) -> dict[str, Any]:
        steps = [step.to_dict() for step in self.steps]
        return {"supported": self.supported, "step_count": len(steps), "steps": steps}
