"""The options that every command has, and the rules for which command accepts which of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from enum import StrEnum

from omnigraph.errors import AddressError


@dataclass(frozen=True, slots=True)
class Flags:
    """The common options that were given, anywhere on the command line."""

    uri: str | None = None
    store: str | None = None
    server: str | None = None
    graph: str | None = None
    profile: str | None = None
    target: str | None = None
    config: str | None = None
    cluster: str | None = None
    actor: str | None = None
    yes: bool = False
    quiet: bool = False

    def given(self) -> list[str]:
        """The options that were typed, as they are spelled."""
        return [spelled(field.name) for field in fields(self) if getattr(self, field.name) not in (None, False)]


def spelled(name: str) -> str:
    return "--as" if name == "actor" else f"--{name}"


class Capability(StrEnum):
    """How a command reaches a graph."""

    DATA = "data"
    SERVED = "served"
    DIRECT = "direct (storage-native)"
    CONTROL = "cluster control"
    LOCAL = "local"


@dataclass(frozen=True, slots=True)
class Rule:
    """The capability of a command, and the common options that it accepts."""

    kind: Capability
    takes: frozenset[str]


_ANYWHERE = {"--yes", "--quiet"}
_STORAGE = {"--uri", "--store", "--profile", "--target", "--config"}
_READS = {*_STORAGE, "--server", "--graph"}


def _rule(kind: Capability, takes: Iterable[str] = ()) -> Rule:
    return Rule(kind, frozenset({*takes, *_ANYWHERE}))


_CHANGES = _rule(Capability.DATA, {*_READS, "--as"})
_LOOKS = _rule(Capability.DATA, _READS)
_UPKEEP = _rule(Capability.DIRECT, {*_STORAGE, "--cluster", "--graph"})
_PROJECT = _rule(Capability.CONTROL, {"--cluster", "--graph", "--profile", "--target", "--config"})
_ALONE = _rule(Capability.LOCAL)

# The rule of a group holds for all of its commands, except for those with a rule of their own.
RULES = {
    **dict.fromkeys(("mutate", "load", "ingest", "branch", "snapshot", "export"), _CHANGES),
    **dict.fromkeys(("schema show", "schema get", "schema apply", "revert", "tag"), _CHANGES),
    **dict.fromkeys(("query", "blob", "commit", "changes", "diff", "log"), _LOOKS),
    "graphs": _rule(Capability.SERVED, {"--server", "--profile"}),
    **dict.fromkeys(("optimize", "repair", "cleanup", "doctor", "lint"), _UPKEEP),
    "schema plan": _rule(Capability.DIRECT, _STORAGE),
    "init": _rule(Capability.DIRECT),
    "queries": _PROJECT,
    "embed": _rule(Capability.LOCAL, {"--store", "--as"}),
    **dict.fromkeys(("alias", "login", "logout", "profile", "fmt", "version"), _ALONE),
}


COMMON = frozenset(spelled(field.name) for field in fields(Flags))


def rule_of(command: str) -> Rule:
    return RULES.get(command) or RULES[command.partition(" ")[0]]


_MEANINGS = {
    "--uri": "names the storage of a graph",
    "--store": "names the storage of a graph",
    "--server": "addresses a served graph",
    "--graph": "picks a graph of a server",
    "--profile": "picks a scope of the operator configuration",
    "--target": "picks a graph of omnigraph.yaml",
    "--config": "names an omnigraph.yaml",
    "--cluster": "addresses a cluster",
    "--as": "names the actor of a change",
}
_REMEDIES = {
    Capability.DIRECT: "Run it where the storage is, with --store.",
    Capability.SERVED: "Name a server with --server, or a profile that has one.",
}


def refuse_foreign(command: str, flags: Flags) -> None:
    """Refuse an option that a command does not accept, before the command does anything."""
    rule = rule_of(command)
    wrong = [flag for flag in flags.given() if flag not in rule.takes]
    if not wrong:
        return
    what = f"{wrong[0]} {_MEANINGS[wrong[0]]} and does not apply."
    if len(wrong) > 1:
        what = f"{', '.join(wrong[:-1])} and {wrong[-1]} do not apply."
    remedy = _REMEDIES.get(rule.kind) if wrong[0] in ("--server", "--store") and rule.takes != _ANYWHERE else None
    raise AddressError(" ".join(filter(None, [f"`{command}` is a {rule.kind} command; {what}", remedy])))
