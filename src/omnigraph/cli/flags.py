"""The commands, the options that all of them have, and the rules for which command accepts which of these."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from omnigraph.errors import AddressError


class Flag(NamedTuple):
    """A common option in help: its placeholder (a switch has none) and its help; and its meaning in a refusal."""

    metavar: str | None
    help: str
    meaning: str = ""


_STORE = "names the storage of a graph"
FLAGS = {
    "uri": Flag("URI", "The storage of the graph; the same as --store.", _STORE),
    "store": Flag("URI", "The storage of the graph: a directory, file:// or s3:// address.", _STORE),
    "server": Flag(
        "NAME|URL", "A server: its URL, or its name in the operator configuration.", "addresses a served graph"
    ),
    "graph": Flag("ID", "The graph of the server.", "picks a graph of a server"),
    "profile": Flag(
        "NAME",
        "A profile of the operator configuration. Default: $OMNIGRAPH_PROFILE.",
        "picks a scope of the operator configuration",
    ),
    "target": Flag("NAME", "A graph of omnigraph.yaml.", "picks a graph of omnigraph.yaml"),
    "config": Flag(
        "FILE", "The omnigraph.yaml to read. Default: the one in this directory.", "names an omnigraph.yaml"
    ),
    "cluster": Flag("DIR", "Not supported by this version.", "addresses a cluster"),
    "actor": Flag("ACTOR", "The actor that the commit records.", "names the actor of a change"),
    "yes": Flag(None, "Do not ask before removing data from a graph that is not local."),
    "quiet": Flag(None, "Show no progress, and do not print which graph is changed."),
}


def spelled(name: str) -> str:
    return "--as" if name == "actor" else f"--{name}"


COMMON = frozenset(map(spelled, FLAGS))


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


class Capability(StrEnum):
    """How a command reaches a graph."""

    DATA = "data"
    SERVED = "served"
    DIRECT = "direct (storage-native)"
    CONTROL = "cluster control"
    LOCAL = "local"


class Rule(NamedTuple):
    """The capability of a command, and the common options that it accepts."""

    kind: Capability
    takes: frozenset[str]


_ANYWHERE = {"--yes", "--quiet"}
_STORAGE = {"--uri", "--store", "--profile", "--target", "--config"}
# What a command accepts follows from how it reaches a graph, so that no command has a list of its own to keep.
_READS = {*_STORAGE, "--server", "--graph"}


def _rule(kind: Capability, takes: Iterable[str] = ()) -> Rule:
    return Rule(kind, frozenset({*takes, *_ANYWHERE}))


_CHANGES = _rule(Capability.DATA, {*_READS, "--as"})
_LOOKS = _rule(Capability.DATA, _READS)
_UPKEEP = _rule(Capability.DIRECT, {*_STORAGE, "--cluster", "--graph"})
_PROJECT = _rule(Capability.CONTROL, {"--cluster", "--graph", "--profile", "--target", "--config"})
_ALONE = _rule(Capability.LOCAL)


class Entry(NamedTuple):
    """A command or a group of commands: the module of its family, its rule, and its line in the help of the program."""

    family: str
    rule: Rule
    summary: str
    hidden: bool = False


# The lines stand here, because the help of the program must not import the families: they load engine and parser.
COMMANDS = {
    "init": Entry("data", _rule(Capability.DIRECT), "Create an empty graph."),
    "load": Entry("data", _CHANGES, "Load JSONL, CSV or Parquet, checked against the schema, in one commit."),
    "ingest": Entry(
        "data", _CHANGES, "Load JSONL onto a branch, created if missing. An old name: use load.", hidden=True
    ),
    "export": Entry(
        "data", _CHANGES, "Write all entities, or those of some types, in a form that can be loaded again."
    ),
    "pipeline": Entry(
        "pipeline",
        _rule(Capability.DIRECT, {"--store", "--as"}),
        "Run pipelines from files: load what is new, merge, optimize, export.",
    ),
    "embed": Entry(
        "embed",
        _rule(Capability.LOCAL, {"--store", "--as"}),
        "Add the missing vectors to the records of a file or to the nodes of a graph.",
    ),
    "blob": Entry("data", _LOOKS, "Read the content of Blob properties."),
    "query": Entry("queries", _LOOKS, "Run a query and print its rows."),
    "mutate": Entry("queries", _CHANGES, "Insert, update or delete with a query, in one commit."),
    "alias": Entry("queries", _ALONE, "Run the stored query that an alias names, and print its rows."),
    "queries": Entry("stored", _PROJECT, "List and validate the stored queries of an omnigraph.yaml."),
    "schema": Entry("languages", _CHANGES, "Show, plan, change and infer the schema of a graph."),
    "lint": Entry("languages", _UPKEEP, "Check every query of a file: syntax, types, and legal but suspicious code."),
    "fmt": Entry("languages", _ALONE, "Format .pg and .gq files in place. Comments and meaning are kept."),
    "branch": Entry("history", _CHANGES, "Create, list, merge, protect and delete branches."),
    "tag": Entry("history", _CHANGES, "Create, list and delete tags: immutable names for commits."),
    "commit": Entry("changes", _LOOKS, "List and show commits."),
    "log": Entry("history", _LOOKS, "Show the history of branches, newest first."),
    "diff": Entry(
        "changes", _LOOKS, "Show the changes from A to B: inserted (+), updated (~) and deleted (-), by type."
    ),
    "changes": Entry("changes", _LOOKS, "Follow the changes of a graph."),
    "history": Entry(
        "changes", _LOOKS, "Show what happened to one entity: by which commits, and which properties changed."
    ),
    "snapshot": Entry("history", _CHANGES, "Show the version of each table on a branch."),
    "request": Entry("requests", _CHANGES, "Open, approve, check, merge and close merge requests."),
    "resolve": Entry("history", _CHANGES, "Find nodes that are the same entity, and merge them with their edges."),
    "revert": Entry("history", _CHANGES, "Undo one commit with a new commit, and keep later changes."),
    "cherry-pick": Entry("history", _CHANGES, "Make the changes of one commit on another branch, with a new commit."),
    "restore-entities": Entry(
        "history", _CHANGES, "Bring a type, or some of its entities, to what they were in another state."
    ),
    "optimize": Entry("maintenance", _UPKEEP, "Compact small files, and extend the indices over all rows."),
    "cleanup": Entry("maintenance", _UPKEEP, "Remove old versions, and files that failed writes left behind."),
    "upkeep": Entry(
        "maintenance", _UPKEEP, "Optimize the branches that need it, and clean up if you say what to keep."
    ),
    "repair": Entry(
        "maintenance", _UPKEEP, "Inspect tables that another program changed, and adopt its changes where safe."
    ),
    "relocate": Entry(
        "maintenance", _UPKEEP, "Make the branches of a copied or moved graph refer to its present address."
    ),
    "backup": Entry("maintenance", _UPKEEP, "Back up a graph while others write; list and verify its backups."),
    "restore": Entry("maintenance", _rule(Capability.DIRECT), "Make a graph of a backup."),
    "verify": Entry("maintenance", _UPKEEP, "Check that every file that a graph refers to is there."),
    "doctor": Entry("maintenance", _UPKEEP, "Report the health of a graph, and the commands that improve it."),
    "mcp": Entry("agents", _CHANGES, "Serve a graph to an agent: the Model Context Protocol on stdin and stdout."),
    "graphs": Entry("session", _rule(Capability.SERVED, {"--server", "--profile"}), "List the graphs of a server."),
    "profile": Entry("session", _ALONE, "Show the profiles of the operator configuration."),
    "login": Entry("session", _ALONE, "Store the token of a server, readable only by you."),
    "logout": Entry("session", _ALONE, "Remove the stored token of a server."),
    "version": Entry("", _ALONE, "Print the version of omnigraph and of its storage format."),  # in the program itself
}

# The rule of a group holds for all of its commands, except for those with a rule of their own.
RULES = {
    **{name: entry.rule for name, entry in COMMANDS.items() if name not in ("schema", "pipeline")},
    **dict.fromkeys(("schema show", "schema get", "schema apply"), COMMANDS["schema"].rule),
    "schema plan": _rule(Capability.DIRECT, _STORAGE),
    "schema infer": _ALONE,
    **{f"pipeline {name}": COMMANDS["pipeline"].rule for name in ("run", "plan", "validate", "status")},
    "pipeline schema": _ALONE,
}


def rule_of(command: str) -> Rule:
    return RULES.get(command) or RULES[command.partition(" ")[0]]


_REMEDIES = {
    Capability.DIRECT: "Run it where the storage is, with --store.",
    Capability.SERVED: "Name a server with --server, or a profile that has one.",
}


def refuse_foreign(command: str, flags: Flags) -> None:
    """Refuse an option that a command does not accept, before the command does anything."""
    rule = rule_of(command)
    given = {spelled(name): flag for name, flag in FLAGS.items() if getattr(flags, name) not in (None, False)}
    # Refused and not ignored: an address that has no effect would make a command work on another graph.
    wrong = [name for name in given if name not in rule.takes]
    if not wrong:
        return
    what = f"{wrong[0]} {given[wrong[0]].meaning} and does not apply."
    if len(wrong) > 1:
        what = f"{', '.join(wrong[:-1])} and {wrong[-1]} do not apply."
    # A command that takes no address at all cannot be helped with another one.
    remedy = _REMEDIES.get(rule.kind) if wrong[0] in ("--server", "--store") and rule.takes != _ANYWHERE else None
    raise AddressError(" ".join(filter(None, [f"`{command}` is a {rule.kind} command; {what}", remedy])))
