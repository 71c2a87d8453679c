"""Which graph a command is about: found in its options and in the settings, then opened or connected to."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, cast

import typer

from omnigraph.cli import output
from omnigraph.cli.credentials import token_for
from omnigraph.cli.flags import Flags, Kind, rule_of
from omnigraph.cli.operator_config import Operator, load_operator
from omnigraph.cli.project import Project, load_project
from omnigraph.cli.server import Server
from omnigraph.errors import AddressError, OmnigraphError

if TYPE_CHECKING:
    from omnigraph.graph import Graph

_HTTP = ("http://", "https://")
_WAYS = ("uri", "store", "server", "cluster", "target")


@dataclass(frozen=True, slots=True)
class Storage:
    """A graph by its files."""

    uri: str

    @property
    def is_local(self) -> bool:
        return "://" not in self.uri or self.uri.startswith("file://")

    @property
    def way(self) -> str:
        return f"direct, {'local' if self.is_local else 'remote'}"


@dataclass(frozen=True, slots=True)
class Served:
    """A graph of a server."""

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
    """What a command knows of its surroundings: its name, the common options, and the settings.

    `end` closes what was opened for it when the command ends, however that is.
    """

    command: str
    flags: Flags
    end: ExitStack

    @cached_property
    def operator(self) -> Operator:
        return load_operator()

    @cached_property
    def project(self) -> Project:
        found = load_project(self.flags.config)
        found.load_variables()
        return found

    def branch(self, given: str | None = None) -> str:
        """The branch that a command is about: what is named, else what the project says."""
        return given or self.project.cli.text("branch") or "main"

    def at(self, uri: str | None = None, *, graph: str | None = None) -> Target:
        """The graph that the command is about; `graph` is the one of an alias, for when nothing else says it."""
        found = self.find(uri, graph=graph)
        if found is None:
            hint = "name its storage as URI or with --store, or a server with --server, or a --profile"
            raise AddressError("no graph is addressed", hint=hint)
        return found

    def find(self, uri: str | None = None, *, graph: str | None = None) -> Target | None:
        """The same; None if neither the command line nor the settings name one."""
        found = resolve(self, uri, graph)
        return None if found is None else Target(self, found)


@dataclass(frozen=True)
class Target:
    """The graph of a command."""

    scope: Scope
    address: Address

    @property
    def uri(self) -> str:
        return self.address.uri

    @property
    def actor(self) -> str | None:
        """Who makes a change. Of a served one the token decides, so nobody may be named."""
        flags, scope = self.scope.flags, self.scope
        if isinstance(self.address, Storage):
            return flags.actor or scope.project.cli.text("actor") or scope.operator.actor
        if flags.actor:
            message = "--as does not go with a served graph: its token says who you are"
            raise AddressError(message, hint="leave --as out, or change the storage itself with --store")
        return None

    def read(self) -> Graph:
        """Open the graph to look at it; nothing is written."""
        import omnigraph  # noqa: PLC0415 - loads the engine

        if isinstance(self.address, Storage):
            return omnigraph.open(self.address.uri, read_only=True)
        return self._connect(self.address)

    def write(self) -> Graph:
        """Open the graph to change it."""
        import omnigraph  # noqa: PLC0415 - loads the engine

        if isinstance(self.address, Storage):
            return omnigraph.open(self.address.uri)
        return self._connect(self.address)

    def write_aloud(self) -> Graph:
        """Open the graph to change it, and say which it is."""
        if not self.scope.flags.quiet:
            output.note(f"omnigraph {self.scope.command} → {self.uri} ({self.address.way})")
        return self.write()

    def stored(self) -> Server:
        """Where the stored queries of the graph are."""
        if isinstance(self.address, Served):
            return Server(self.address.uri, self.address.token)
        message = f"stored queries are run by a server, and {self.uri} is storage"
        raise AddressError(message, hint="give the query with --query or -e, or name a server with --server")

    def ask_before_removing(self, question: str, *, as_json: bool) -> None:
        """What is removed from a shared place is gone for others too: that needs a word more."""
        if self.scope.flags.yes or self.address.is_local:
            return
        import sys  # noqa: PLC0415 - `--help` must stay quick

        if as_json or not sys.stdin.isatty():
            message = f"{self.uri} is not local"
            raise AddressError(message, hint="give --yes to remove from it all the same")
        sys.stderr.write(f"{question} [y/N]: ")  # click would write a space to stdout, which is for data
        sys.stderr.flush()
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise typer.Exit(1)

    def _connect(self, address: Served) -> Graph:
        from omnigraph import client  # noqa: PLC0415 - loads the client

        # It has the methods of a graph, so commands need not know the difference.
        graph = cast("Graph", client.connect(address.url, graph=address.graph, token=address.token))
        self.scope.end.callback(graph.close)
        return graph


def resolve(scope: Scope, uri: str | None, graph: str | None = None) -> Address | None:
    """Find the graph: what is named on the command line, else the profile, else the project, else the defaults."""
    flags = scope.flags
    if flags.cluster is not None:
        raise AddressError("--cluster is not supported by this version", hint="name a graph with --store or --server")
    _refuse_two(flags, uri)
    found = _named(scope, uri or flags.uri or flags.store) or _by_settings(scope, graph)
    if isinstance(found, Storage) and flags.graph is not None:
        message = f"--graph picks a graph of a server, but {found.uri} is one graph"
        raise AddressError(message, hint="leave --graph out, or name a server")
    if isinstance(found, Served) and rule_of(scope.command).kind is Kind.DIRECT:
        message = f"`{scope.command}` works on storage, but the settings lead to the server {found.url}"
        raise AddressError(message, hint="name the storage with --store")
    return found


def _refuse_two(flags: Flags, uri: str | None) -> None:
    named = ["URI"] * (uri is not None) + [f"--{way}" for way in _WAYS if getattr(flags, way) is not None]
    if len(named) > 1:
        message = f"{' and '.join(named)} are mutually exclusive — pick one way to address the graph"
        raise typer.BadParameter(message, param_hint=named[-1])


def _named(scope: Scope, uri: str | None) -> Address | None:
    """What the command line itself names."""
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
    if scope.flags.profile is None and graph is not None:
        return _project_graph(scope, graph)
    name = scope.flags.profile or os.environ.get("OMNIGRAPH_PROFILE")
    if name:
        return _of_profile(scope, name)
    if chosen := scope.project.cli.text("graph"):
        return _project_graph(scope, chosen)
    defaults = scope.operator.defaults
    if server := defaults.text("server"):
        return served(scope, server, defaults.text("default_graph"))
    store = defaults.text("store")
    return Storage(store) if store else None


def _of_profile(scope: Scope, name: str) -> Address:
    profile = scope.operator.profile(name)
    if profile.kind == "server":
        return served(scope, profile.target, profile.default_graph)
    if profile.kind == "store":
        return Storage(profile.target)
    message = f"profile '{name}' names a cluster, which this version does not support"
    raise AddressError(message, hint="name a graph with --store or --server")


def _project_graph(scope: Scope, name: str) -> Address:
    target = scope.project.target(name)
    if not target.uri.startswith(_HTTP):
        return Storage(target.uri)
    return _with_token(scope, Served(target.uri.rstrip("/"), scope.flags.graph), target.token_variable)


def server_of(scope: Scope) -> Served:
    """The server that a command is about, whichever graph of it."""
    flags = scope.flags
    name = flags.server
    if name is None and (profile := flags.profile or os.environ.get("OMNIGRAPH_PROFILE")):
        found = scope.operator.profile(profile)
        name = found.target if found.kind == "server" else None
    name = name or scope.operator.defaults.text("server")
    if name is None:
        raise AddressError("no server is addressed", hint="name one with --server, or a --profile that has one")
    return _with_token(scope, Served(scope.operator.server_url(name)))


def served(scope: Scope, server: str, default: str | None = None) -> Served:
    """A graph of a server: the one that is named, or the default. If there is neither, the server may have only one."""
    address = Served(scope.operator.server_url(server), scope.flags.graph or default)
    address = _with_token(scope, address)
    if address.graph is None and "/graphs/" not in address.url and (ids := _served_graphs(address)):
        raise AddressError(f"{address.url} serves several graphs", hint=f"pick one with --graph: {', '.join(ids)}")
    return address


def _with_token(scope: Scope, address: Served, variable: str | None = None) -> Served:
    return replace(address, token=token_for(address.uri, scope.operator.servers(), variable))


def _served_graphs(address: Served) -> list[str]:
    """The graphs of a server, if it tells; one that serves a single graph does not."""
    try:
        return [graph_id for graph_id, _ in Server(address.url, address.token).graphs()]
    except OmnigraphError:
        return []
