"""The options that every command has: which graph, who and how loudly; and which command takes which of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from enum import StrEnum

from omnigraph.errors import AddressError


@dataclass(frozen=True, slots=True)
class Flags:
    """What was given of the options that every command has, at whichever place of the command line."""

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


class Kind(StrEnum):
    """How a command gets at a graph."""

    DATA = "data"
    SERVED = "served"
    DIRECT = "direct (storage-native)"
    CONTROL = "cluster control"
    LOCAL = "local"


@dataclass(frozen=True, slots=True)
class Rule:
    """What kind of command it is, and which of the common options it takes."""

    kind: Kind
    takes: frozenset[str]


_ANYWHERE = {"--yes", "--quiet"}
_STORAGE = {"--uri", "--store", "--profile", "--target", "--config"}
_READS = {*_STORAGE, "--server", "--graph"}


def _rule(kind: Kind, takes: Iterable[str] = ()) -> Rule:
    return Rule(kind, frozenset({*takes, *_ANYWHERE}))


_CHANGES = _rule(Kind.DATA, {*_READS, "--as"})
_LOOKS = _rule(Kind.DATA, _READS)
_UPKEEP = _rule(Kind.DIRECT, {*_STORAGE, "--cluster", "--graph"})
_PROJECT = _rule(Kind.CONTROL, {"--cluster", "--graph", "--profile", "--target", "--config"})
_ALONE = _rule(Kind.LOCAL)

# A group stands for all of its commands, unless one of them has a row of its own.
RULES = {
    **dict.fromkeys(("mutate", "load", "ingest", "branch", "snapshot", "export"), _CHANGES),
    **dict.fromkeys(("schema show", "schema get", "schema apply", "revert", "tag"), _CHANGES),
    **dict.fromkeys(("query", "blob", "commit", "changes", "diff", "log"), _LOOKS),
    "graphs": _rule(Kind.SERVED, {"--server", "--profile"}),
    **dict.fromkeys(("optimize", "repair", "cleanup", "doctor", "lint"), _UPKEEP),
    "schema plan": _rule(Kind.DIRECT, _STORAGE),
    "init": _rule(Kind.DIRECT),
    "queries": _PROJECT,
    "embed": _rule(Kind.LOCAL, {"--store", "--as"}),
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
    "--as": "names who makes a change",
}
_REMEDIES = {
    Kind.DIRECT: "Run it where the storage is, with --store.",
    Kind.SERVED: "Name a server with --server, or a profile that has one.",
}


def refuse_foreign(command: str, flags: Flags) -> None:
    """Refuse an option that does not go with a command, before anything else happens."""
    rule = rule_of(command)
    wrong = [flag for flag in flags.given() if flag not in rule.takes]
    if not wrong:
        return
    what = f"{wrong[0]} {_MEANINGS[wrong[0]]} and does not apply."
    if len(wrong) > 1:
        what = f"{', '.join(wrong[:-1])} and {wrong[-1]} do not apply."
    remedy = _REMEDIES.get(rule.kind) if wrong[0] in ("--server", "--store") and rule.takes != _ANYWHERE else None
    raise AddressError(" ".join(filter(None, [f"`{command}` is a {rule.kind} command; {what}", remedy])))
