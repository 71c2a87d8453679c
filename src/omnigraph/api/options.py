"""What a caller may say about an operation, and how it is read."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

from omnigraph.errors import OptionError, ResolutionError
from omnigraph.lang.source import did_you_mean

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


OURS, THEIRS = "ours", "theirs"  # the target's, the source's


@dataclass(frozen=True, slots=True)
class Resolution:
    """A side for everything, for some types, for some entities; the more precise one counts."""

    default: str | None = None
    types: Mapping[str, str] = field(default_factory=dict)
    entities: Mapping[tuple[str, str], str] = field(default_factory=dict)

    @classmethod
    def of(cls, given: Resolve | None) -> Resolution:
        """Understand a side, a side for each type, or a list of conflicts that say which side to `take`."""
        if given is None or isinstance(given, Resolution):
            return given or cls()
        if isinstance(given, str):
            return cls(default=_side(given))
        if isinstance(given, Mapping):
            sides = {name: _side(side) for name, side in given.items()}
            # `*` cannot be the name of a type.
            return cls(default=sides.pop("*", None), types=sides)
        return cls(entities=dict(map(_entity, given)))

    def check(self, table_keys: Collection[str]) -> None:
        """See that the types are there: a side for one that is not would say nothing."""
        names = [*table_keys, *(key.partition(":")[2] for key in table_keys)]
        for name in (*self.types, *(key for key, _ in self.entities)):
            if name not in names:
                hint = did_you_mean(name, names) or "name a type of the schema"
                raise ResolutionError(f"unknown type '{name}' in the conflict resolution", hint=hint)

    def side(self, table_key: str, entity: str) -> str | None:
        """The side that wins; None leaves the conflict."""
        # The full key first: a node type and an edge type can have one name.
        by_type = self.types.get(table_key) or self.types.get(table_key.partition(":")[2])
        return self.entities.get((table_key, entity)) or by_type or self.default

    def to_dict(self) -> dict[str, Any]:
        """What a merge commit keeps of it."""
        entities = [{"table_key": key, "row_id": name, "take": side} for (key, name), side in self.entities.items()]
        found = {"default": self.default, "types": dict(self.types), "entities": entities}
        # Empty parts are left out, so that the detail of a commit without a resolution stays as small as before.
        return {name: value for name, value in found.items() if value}


Resolve = Resolution | str | Mapping[str, str] | Iterable[Mapping[str, Any]]


def _entity(conflict: Mapping[str, Any]) -> tuple[tuple[str, str], str]:
    try:
        return (conflict["table_key"], conflict["row_id"]), _side(conflict["take"])
    except (KeyError, TypeError) as error:
        hint = "give each its `table_key`, its `row_id` and which side to `take`, ours or theirs"
        raise ResolutionError(f"invalid conflict in the resolution: {conflict!r:.200}", hint=hint) from error


def _side(name: object) -> str:
    if name not in (OURS, THEIRS):
        hint = "ours is what the target has, theirs what the source has"
        raise ResolutionError(f"{name!r:.80} is not a side: use `ours` or `theirs`", hint=hint)
    return str(name)
