"""What a caller may say about an operation, and how it is read."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, TypeVar

from omnigraph.core.values import ConversionError, blob_content
from omnigraph.errors import OptionError, ParameterError, ResolutionError
from omnigraph.lang.catalog import Catalog, EdgeType, NodeType
from omnigraph.lang.params import decode_parameters
from omnigraph.lang.source import did_you_mean
from omnigraph.lang.types import Type

UPKEEP = "OMNIGRAPH_UPKEEP"
_Option = TypeVar("_Option", bound=StrEnum)


class Engine(StrEnum):
    """Who does the work."""

    AUTO = "auto"  # this process if the data is small, else Spark
    LOCAL = "local"
    SPARK = "spark"


def option(kind: type[_Option], name: str, value: str) -> _Option:
    """Read an option of a call, one of the values of an enumeration."""
    try:
        return kind(value)
    except ValueError:
        hint = f"use {', '.join(kind)}"
        raise OptionError(f"unknown {name} {value!r}", option=name, hint=hint) from None


class Upkeep(StrEnum):
    """Whether a handle looks after the tables that it writes."""

    AUTO = "auto"  # a write folds the tables that many small commits have left in many files
    OFF = "off"

    @classmethod
    def of(cls, given: str | None) -> Upkeep:
        """Return what was given, else what the environment says, else `auto`."""
        # An empty variable counts as unset: containers pass variables on without a value.
        return option(cls, "upkeep", given or os.environ.get(UPKEEP, "").strip() or cls.AUTO)


class LoadMode(StrEnum):
    """What becomes of entities that are there already."""

    APPEND = "append"  # their ids must not come again
    MERGE = "merge"  # they are replaced when their ids come again
    OVERWRITE = "overwrite"  # of every type that comes, they make room for what comes


class Dedupe(StrEnum):
    """How a merge recognises edges that have no id."""

    ENDS = "ends"  # by the nodes that they connect


MOST_BAD = 1_000_000


def dedupe_option(given: str | None, mode: LoadMode) -> Dedupe | None:
    """Read the option `dedupe` of a load, which is for merges."""
    if given is None:
        return None
    if mode is not LoadMode.MERGE:
        raise OptionError(f"dedupe is for the mode merge, not {mode}", option="dedupe", hint="leave it out")
    return option(Dedupe, "dedupe", given)


def max_bad_option(given: int | None) -> int | None:
    """Read the option `max_bad` of a load."""
    if given is not None and not 0 <= given <= MOST_BAD:
        raise OptionError(f"max_bad must be 0 to {MOST_BAD:,}, not {given:,}", option="max_bad", hint="fix the data")
    return given


class EmbedMode(StrEnum):
    """Which vectors are made."""

    FILL_MISSING = "fill_missing"  # those that are not there
    REEMBED_SELECTED = "reembed_selected"  # those of the records that were picked, there or not
    REEMBED_ALL = "reembed_all"  # all, there or not
    CLEAN = "clean"  # none: they are taken away


MOST_MESSAGE = 8192  # bytes


def message_option(given: str | None) -> str | None:
    """Read the message of a commit; a blank one counts as none."""
    text = (given or "").strip()
    # Control characters would reach the terminals of all who read the log; half of a pair cannot be stored.
    if any(unicodedata.category(one) in ("Cc", "Cs") and one not in "\n\t" for one in text):
        raise OptionError("the message is not plain text", option="message", hint="leave control characters out")
    if (size := len(text.encode())) > MOST_MESSAGE:
        hint = "say more in a document, and name it in the message"
        raise OptionError(f"the message has {size:,} bytes, at most {MOST_MESSAGE:,}", option="message", hint=hint)
    return text or None


OURS, THEIRS, UNION = "ours", "theirs", "union"  # the target's, the source's, the items of both lists
RESOLUTION_FORMAT = "omnigraph-resolution-1"


class MergeBy(StrEnum):
    """What two sides of a merge may change without a conflict."""

    PROPERTY = "property"  # different properties of one entity
    ENTITY = "entity"  # different entities


@dataclass(frozen=True, slots=True)
class TakeValue:
    """A value of neither side, as JSON has it."""

    value: Any


Take = str | TakeValue
"""How a conflict is resolved: `ours`, `theirs`, `union`, or a value."""


@dataclass(frozen=True, slots=True)
class EntityTake:
    """How the conflicts of one entity are resolved: as a whole, and for some of its properties."""

    take: str | None = None
    properties: Mapping[str, Take] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        chosen = {name: {"take": _written(one)} for name, one in self.properties.items()}
        return ({"take": self.take} if self.take else {}) | ({"properties": chosen} if chosen else {})


@dataclass(frozen=True, slots=True)
class Resolution:
    """How conflicts are resolved: all, those of a type, of a property, of an entity; the more precise one counts.

    `types` has names of types and `Type.property`. `heads` are the commits of the source and the target that it was
    made for, if it says so.
    """

    default: str | None = None
    types: Mapping[str, Take] = field(default_factory=dict)
    entities: Mapping[tuple[str, str], EntityTake] = field(default_factory=dict)
    heads: tuple[str, str] | None = None
    # Sides for conflicts between two schemas, by type or property: `node:Person.age`.
    schema: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, given: Resolve | None) -> Resolution:
        """Read a side, a side for each type or property, a list of conflicts with what to `take`, or a file of them."""
        if given is None or isinstance(given, Resolution):
            return given or cls()
        if isinstance(given, str):
            return cls(default=_side(given))
        if isinstance(given, Mapping):
            return _of_file(given) if "format" in given else _of_types(given)
        given = list(given)
        rows = [one for one in given if not (isinstance(one, Mapping) and one.get("schema"))]
        found = {key: one for key, one in map(_entity, rows) if one.take or one.properties}
        sides = {str(one["schema"]): one.get("take") for one in given if one not in rows}
        return cls(entities=found, schema={label: _side(side) for label, side in sides.items() if side is not None})

    def check(self, catalog: Catalog) -> None:
        """Check that types and properties exist and values fit: a misspelt name would settle nothing, silently."""
        for key in self.types:
            name, _, property_ = key.partition(".")
            declared = _declared(catalog, name)
            if property_:
                _check_take(declared, property_, self.types[key])
            elif not isinstance(self.types[key], str) or self.types[key] == UNION:
                raise ResolutionError(f"'{key}' needs `ours` or `theirs`", hint=f"name a property: {name}.PROPERTY")
        for (key, _), chosen in self.entities.items():
            for property_, taken in chosen.properties.items():
                _check_take(_declared(catalog, key), property_, taken)
            _declared(catalog, key)

    def of_type(self, table_key: str) -> str | None:
        """The side that wins in conflicts of a type; None leaves them."""
        # The full key first: a node type and an edge type can have one name.
        found = self.types.get(table_key) or self.types.get(table_key.partition(":")[2]) or self.default
        return found if isinstance(found, str) else None

    def of_property(self, table_key: str, name: str) -> Take | None:
        """How conflicts of one property are resolved, whatever the entity."""
        return self.types.get(f"{table_key}.{name}") or self.types.get(f"{table_key.partition(':')[2]}.{name}")

    def entities_of(self, table_key: str) -> dict[str, EntityTake]:
        """The entities of a type that have a resolution of their own."""
        return {name: chosen for (key, name), chosen in self.entities.items() if key == table_key}

    @staticmethod
    def decoded(type_: Type, taken: TakeValue) -> Any:
        """The value of a property that a resolution gives, as it is stored."""
        if type_.is_blob and taken.value is not None:
            return blob_content(taken.value)
        return decode_parameters({"value": type_}, {"value": taken.value})["value"]

    def to_dict(self) -> dict[str, Any]:
        """What a merge commit keeps of it."""
        entities = [{"table_key": key, "row_id": name, **one.to_dict()} for (key, name), one in self.entities.items()]
        types = {name: _written(taken) for name, taken in self.types.items()}
        found = {"default": self.default, "types": types, "entities": entities, "heads": list(self.heads or ())}
        found["schema"] = dict(self.schema)
        # Empty parts are left out, so that the detail of a commit without a resolution stays as small as before.
        return {name: value for name, value in found.items() if value}


Resolve = Resolution | str | Mapping[str, Any] | Iterable[Mapping[str, Any]]


def _written(taken: Take) -> Any:
    return {"value": taken.value} if isinstance(taken, TakeValue) else taken


def _of_types(given: Mapping[str, Any]) -> Resolution:
    # A name with a dot is that of a property, and `*` cannot be the name of a type.
    chosen = {name: _take(taken) if "." in name else _side(taken) for name, taken in given.items()}
    default = chosen.pop("*", None)
    return Resolution(default=default if isinstance(default, str) else None, types=chosen)


def _of_file(given: Mapping[str, Any]) -> Resolution:
    if given["format"] != RESOLUTION_FORMAT:
        message = f"unknown format {given['format']!r:.80} of a conflict resolution"
        raise ResolutionError(message, hint=f"write one with `omnigraph branch merge --conflicts`: {RESOLUTION_FORMAT}")
    conflicts = given.get("conflicts")
    if not isinstance(conflicts, list):
        raise ResolutionError("the conflict resolution has no list `conflicts`", hint="write it again")
    heads = [side.get("commit_id") if isinstance(side := given.get(name), Mapping) else None for name in _HEADS]
    if not all(isinstance(one, str) for one in heads):
        hint = "leave `source` and `target` as `--conflicts` has written them"
        raise ResolutionError("the conflict resolution names no commits that it was made for", hint=hint)
    return replace(Resolution.of(conflicts), heads=(str(heads[0]), str(heads[1])))


_HEADS = ("source", "target")


def _entity(conflict: Mapping[str, Any]) -> tuple[tuple[str, str], EntityTake]:
    try:
        key = (conflict["table_key"], conflict["row_id"])
        properties = conflict.get("properties") or {}
        side = conflict.get("take") if properties else conflict["take"]
        # null leaves a conflict open, as the file of a merge has it before a decision.
        chosen = {name: _take(one["take"]) for name, one in properties.items() if one.get("take") is not None}
        return key, EntityTake(None if side is None else _side(side), chosen)
    except (KeyError, TypeError, AttributeError) as error:
        hint = "give each its `table_key`, its `row_id` and which side to `take`, ours or theirs"
        raise ResolutionError(f"invalid conflict in the resolution: {conflict!r:.200}", hint=hint) from error


def _take(given: object) -> Take:
    if isinstance(given, TakeValue) or given == UNION:
        return given if isinstance(given, TakeValue) else UNION
    if isinstance(given, Mapping) and set(given) == {"value"}:
        return TakeValue(given["value"])
    return _side(given)


def _side(name: object) -> str:
    if name not in (OURS, THEIRS):
        hint = "ours is what the target has, theirs what the source has"
        raise ResolutionError(f"{name!r:.80} is not a side: use `ours` or `theirs`", hint=hint)
    return str(name)


def _declared(catalog: Catalog, name: str) -> NodeType | EdgeType:
    known: dict[str, NodeType | EdgeType] = {**catalog.edges, **catalog.nodes}
    known |= {f"node:{key}": one for key, one in catalog.nodes.items()}
    known |= {f"edge:{key}": one for key, one in catalog.edges.items()}
    if name not in known:
        hint = did_you_mean(name, list(known)) or "name a type of the schema"
        raise ResolutionError(f"unknown type '{name}' in the conflict resolution", hint=hint)
    return known[name]


def _check_take(declared: NodeType | EdgeType, name: str, taken: Take) -> None:
    if name in ("src", "dst") and isinstance(declared, EdgeType):
        if isinstance(taken, str) and taken != UNION:
            return
        raise ResolutionError("the ends of an edge need `ours` or `theirs`", hint="both ends come from one side")
    if name not in declared.properties:
        hint = did_you_mean(name, list(declared.properties)) or f"name a property of {declared.name}"
        raise ResolutionError(f"{declared.name} has no property '{name}'", hint=hint)
    type_ = declared.properties[name].type
    if taken == UNION and not type_.is_list:
        message = f"`union` is for lists, and {declared.name}.{name} is {type_}"
        raise ResolutionError(message, hint="use `ours`, `theirs` or a value")
    if isinstance(taken, TakeValue):
        try:
            Resolution.decoded(type_, taken)
        except (ParameterError, ConversionError) as error:
            hint = f"write a value of the type {type_}"
            raise ResolutionError(f"the value for {declared.name}.{name} does not fit: {error}", hint=hint) from error
