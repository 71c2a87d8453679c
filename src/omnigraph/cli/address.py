"""Find the graph that a command works on, from its options and the settings, and open it or connect to it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import typer

import omnigraph
from omnigraph.cli import output
from omnigraph.cli.flags import Capability, Flags, rule_of
from omnigraph.errors import AddressError, OmnigraphError

if TYPE_CHECKING:
    from omnigraph.api.protocol import GraphAPI
    from omnigraph.cli.settings import Operator, Project
    from omnigraph.client import RemoteGraph

_HTTP = ("http://", "https://")
_WAYS = ("uri", "store", "server", "cluster", "target")


@dataclass(frozen=True, slots=True)
class Storage:
    """A graph addressed by its files. The settings file that names it says the rest."""

    uri: str
    durability: str | None = None
    upkeep: str | None = None

    @property
    def is_local(self) -> bool:
        return "://" not in self.uri or self.uri.startswith("file://")

    @property
    def way(self) -> str:
        return f"direct, {'local' if self.is_local else 'remote'}"


@dataclass(frozen=True, slots=True)
class Served:
    """A graph addressed through a server."""

    url: str
    graph: str | None = None
    token: str | None = None

    is_local = False
    way = "served"

    @property
    def uri(self) -> str:
        return f"{self.url}/graphs/{self.graph}" if self.graph else self.url


Address = Storage | Served


@dataclass(frozen=True)
class Scope:
    """The context of a command: its name, the common options, and the settings.

    `end` closes whatever was opened for the command when it ends, however it ends.
    """

    command: str
    flags: Flags
    end: ExitStack
    as_json: bool = False

    @cached_property
    def operator(self) -> Operator:
        from omnigraph.cli.settings import Operator  # noqa: PLC0415 - loads pydantic and YAML

        return Operator.load()

    @cached_property
    def project(self) -> Project:
        from omnigraph.cli.settings import Project  # noqa: PLC0415 - loads pydantic and YAML

        return Project.load(self.flags.config)

    def emit(self, document: output.JsonOutput, text: output.TextOutput) -> None:
        """Print the result of the command: its document with `--json`, else its text."""
        if self.as_json:
            output.document(document)
        else:
            output.lines(text)

    @property
    def profile(self) -> str | None:
        """The profile to use, if one is given or active."""
        return self.flags.profile or os.environ.get("OMNIGRAPH_PROFILE") or None

    def branch(self, given: str | None = None) -> str:
        """The branch to work on: the given one, else the one of the project, else main."""
        return given or self.project.cli.branch or "main"

    def at(self, uri: str | None = None, *, graph: str | None = None) -> Target:
        """The graph that the command works on. `graph` is the one of an alias, used if nothing else names one."""
        found = self.find(uri, graph=graph)
        if found is None:
            hint = "give its storage with --store, a server with --server, or a --profile"
            raise AddressError("no graph given", hint=hint)
        return found

    def find(self, uri: str | None = None, *, graph: str | None = None) -> Target | None:
        """Like `at`, but None if neither the command line nor the settings name a graph."""
        if self.flags.cluster is not None:
            hint = "give a graph with --store or --server"
            raise AddressError("--cluster is not supported by this version", hint=hint)
        # Two addresses are never reconciled: which of them a command would change must not be a guess.
        _refuse_two(self.flags, uri)
        # What the command line names wins over every settings file.
        found = _named(self, uri or self.flags.uri or self.flags.store) or _by_settings(self, graph)
        if isinstance(found, Storage) and self.flags.graph is not None:
            message = f"--graph picks a graph of a server, but {found.uri} is one graph"
            raise AddressError(message, hint="remove --graph, or give a server with --server")
        if isinstance(found, Served) and rule_of(self.command).kind is Capability.DIRECT:
            message = f"`{self.command}` works on storage, but the settings lead to the server {found.url}"
            raise AddressError(message, hint="give the storage with --store")
        return None if found is None else Target(self, found)


@dataclass(frozen=True)
class Target:
    """The graph that a command works on."""

    scope: Scope
    address: Address

    @property
    def uri(self) -> str:
        return self.address.uri

    @property
    def emit(self) -> Callable[[output.JsonOutput, output.TextOutput], None]:
        return self.scope.emit

    @property
    def actor(self) -> str | None:
        """The actor of a change. On a server the token decides it, so `--as` is refused there."""
        flags, scope = self.scope.flags, self.scope
        if isinstance(self.address, Storage):
            # The nearest wins: the command line, then the project, then the person.
            return flags.actor or scope.project.cli.actor or scope.operator.actor
        if flags.actor:
            # Refused and not ignored: the commit would name another actor than the one that was typed.
            message = "--as cannot be used with a served graph: the token decides the actor"
            raise AddressError(message, hint="remove --as, or change the storage itself with --store")
        return None

    def read(self) -> GraphAPI:
        """Open the graph to read it; nothing is written."""
        return self._opened(read_only=True)

    def write(self) -> GraphAPI:
        """Open the graph to change it."""
        return self._opened(read_only=False)

    def write_aloud(self) -> GraphAPI:
        """Open the graph to change it, and print which one it is on stderr."""
        if not self.scope.flags.quiet:
            output.note(f"omnigraph {self.scope.command} → {self.uri} ({self.address.way})")
        return self.write()

    def stored(self) -> RemoteGraph:
        """The graph on its server, which runs its stored queries."""
        if isinstance(self.address, Served):
            return self._connect(self.address)
        message = f"stored queries run on a server, but {self.uri} is storage"
        raise AddressError(message, hint="give the query with --query or -e, or a server with --server")

    def ask_before_removing(self, question: str) -> None:
        """Ask for confirmation, because data removed from a shared graph is gone for others too."""
        if self.scope.flags.yes or self.address.is_local:
            return
        # A script cannot answer, and must not wait for an answer.
        if self.scope.as_json or not sys.stdin.isatty():
            message = f"{self.uri} is not local"
            raise AddressError(message, hint="add --yes to remove data from it without a question")
        sys.stderr.write(f"{question} [y/N]: ")  # click would write a space to stdout, which is for data
        sys.stderr.flush()
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise typer.Exit(1)

    def _opened(self, *, read_only: bool) -> GraphAPI:
        if isinstance(self.address, Storage):
            graph = omnigraph.open(
                self.address.uri,
                read_only=read_only,
                durability=self.address.durability,
                upkeep=self.address.upkeep,
            )
            if not (read_only or self.scope.as_json or self.scope.flags.quiet):
                self.scope.end.callback(_note_upkeep, graph)
            return graph
        return self._connect(self.address)

    def _connect(self, address: Served) -> RemoteGraph:
        # The connection lives as long as the command: what it returns may still be read from the server.
        graph = omnigraph.connect(address.url, graph=address.graph, token=address.token)
        self.scope.end.callback(graph.close)
        return graph


def _note_upkeep(graph: omnigraph.Graph) -> None:
    """Say on stderr what upkeep is due, if this command wrote something."""
    with suppress(OmnigraphError):  # the command itself is done
        if due := graph.upkeep_due():
            output.note(f"note: {due}")


def _refuse_two(flags: Flags, uri: str | None) -> None:
    named = ["URI"] * (uri is not None) + [f"--{way}" for way in _WAYS if getattr(flags, way) is not None]
    if len(named) > 1:
        message = f"{' and '.join(named)} are mutually exclusive — pick one way to address the graph"
        raise typer.BadParameter(message, param_hint=named[-1])


def _named(scope: Scope, uri: str | None) -> Address | None:
    """The graph that the command line itself names."""
    if uri is not None:
        if uri.startswith(_HTTP):
            raise AddressError(f"{uri} is a server, not storage", hint=f"give it as --server {uri}")
        return Storage(uri)
    if scope.flags.server is not None:
        return served(scope, scope.flags.server)
    if scope.flags.target is not None:
        return _project_graph(scope, scope.flags.target)
    return None


def _by_settings(scope: Scope, graph: str | None) -> Address | None:
    # The graph of an alias gives way to a profile on the command line, but not to the one of the environment.
    if scope.flags.profile is None and graph is not None:
        return _project_graph(scope, graph)
    if scope.profile:
        return _of_profile(scope, scope.profile)
    if chosen := scope.project.cli.graph:
        return _project_graph(scope, chosen)
    defaults = scope.operator.defaults
    if defaults.server:
        return served(scope, defaults.server, defaults.default_graph)
    return Storage(defaults.store) if defaults.store else None


def _of_profile(scope: Scope, name: str) -> Address:
    profile = scope.operator.profile(name)
    if profile.kind == "server":
        return served(scope, profile.target, profile.default_graph)
    if profile.kind == "store":
        return Storage(profile.target)
    message = f"profile '{name}' names a cluster, which this version does not support"
    raise AddressError(message, hint="give a graph with --store or --server")


def _project_graph(scope: Scope, name: str) -> Address:
    uri, entry = scope.project.address_of(name), scope.project.graph(name)
    if not uri.startswith(_HTTP):
        return Storage(uri, entry.durability, entry.upkeep.optimize if "upkeep" in entry.model_fields_set else None)
    return _with_token(scope, Served(uri.rstrip("/"), scope.flags.graph), entry.bearer_token_env)


def server_of(scope: Scope) -> Served:
    """The server that a command works on, without a graph."""
    name = scope.flags.server
    if name is None and scope.profile:
        found = scope.operator.profile(scope.profile)
        # A profile of a storage has no server, and then the defaults may still name one.
        name = found.target if found.kind == "server" else None
    name = name or scope.operator.defaults.server
    if name is None:
        raise AddressError("no server given", hint="give one with --server, or a --profile that has one")
    return _with_token(scope, Served(scope.operator.server_url(name)))


def served(scope: Scope, server: str, default: str | None = None) -> Served:
    """A graph of a server: the given one, else the default. Without both, the server must serve only one."""
    address = Served(scope.operator.server_url(server), scope.flags.graph or default)
    address = _with_token(scope, address)
    if address.graph is None and "/graphs/" not in address.url and (ids := _served_graphs(address)):
        raise AddressError(f"{address.url} serves several graphs", hint=f"pick one with --graph: {', '.join(ids)}")
    return address


def graphs_of(address: Served) -> list[tuple[str, str]]:
    """The ids and addresses of the graphs of a server."""
    from omnigraph.client import served_graphs  # noqa: PLC0415 - loads the client

    return served_graphs(address.url, token=address.token)


def _with_token(scope: Scope, address: Served, variable: str | None = None) -> Served:
    from omnigraph.cli.settings import token_for  # noqa: PLC0415 - loads pydantic and YAML

    return replace(address, token=token_for(address.uri, scope.operator.servers, variable))


def _served_graphs(address: Served) -> list[str]:
    """The graphs of a server; none if it does not list them, as a server of a single graph."""
    try:
        # Only for a better message. A server that refuses the list is asked for its default graph all the same.
        return [graph_id for graph_id, _ in graphs_of(address)]
    except OmnigraphError:
        return []
