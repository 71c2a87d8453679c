"""The settings of the command line: the operator configuration of a person and the omnigraph.yaml of a project."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from omnigraph.cli import output
from omnigraph.cli.credentials import home
from omnigraph.errors import AliasError, ConfigError
from omnigraph.settings import (
    AuthSection,
    CliSection,
    GraphEntry,
    OperatorAlias,
    OperatorDefaults,
    OperatorKeys,
    OperatorProfile,
    OperatorSection,
    OperatorServer,
    ProjectAlias,
    QuerySection,
    ServerSection,
    SettingsFile,
    read_project,
    read_settings,
    set_variables,
)

_KINDS = ("server", "store", "cluster")


class Profile(NamedTuple):
    """A named way to address graphs: a server, a storage or a cluster."""

    name: str
    kind: str
    target: str
    default_graph: str | None


@dataclass(frozen=True)
class Operator:
    """The operator configuration, `~/.omnigraph/config.yaml`: settings for all graphs and servers."""

    file: SettingsFile

    @classmethod
    def load(cls) -> Operator:
        """Read the file; without one nothing is set. Unknown keys are ignored, with a warning on stderr."""
        path = home() / "config.yaml"
        found = read_settings(path) or SettingsFile(str(path), {})
        for unknown in found.unknown_keys(OperatorKeys):
            output.note(f"warning: {path}: unknown key {unknown}", style="yellow")
        return cls(found)

    @property
    def actor(self) -> str | None:
        return self.file.part(OperatorSection, "operator").actor

    @cached_property
    def defaults(self) -> OperatorDefaults:
        found = self.file.part(OperatorDefaults, "defaults")
        if found.store and (other := found.server or found.default_graph):
            raise self.file.problem(f"cannot be used with '{other}': a store is one graph", "defaults", "store")
        return found

    @cached_property
    def servers(self) -> dict[str, str]:
        """The URLs of the servers, by name."""
        names = self.file.names("servers")
        return {name: str(self.file.part(OperatorServer, "servers", name).url) for name in names}

    @property
    def profiles(self) -> list[str]:
        return self.file.names("profiles")

    def profile(self, name: str) -> Profile:
        if name not in self.profiles:
            raise self._unknown("profile", name, self.profiles)
        found = self.file.part(OperatorProfile, "profiles", name)
        given = [kind for kind in _KINDS if getattr(found, kind)]
        if len(given) != 1:
            raise self.file.problem("must have exactly one of server, store and cluster", "profiles", name)
        if given == ["store"] and found.default_graph:
            raise self.file.problem("has a store, which is one graph, and a default_graph", "profiles", name)
        return Profile(name, given[0], getattr(found, given[0]), found.default_graph)

    def alias(self, name: str) -> OperatorAlias:
        if name not in (known := self.file.names("aliases")):
            path = self.file.path
            raise AliasError(f"no alias '{name}' in {path}", alias=name, hint=_known_or_add(known, "aliases", path))
        return self.file.part(OperatorAlias, "aliases", name)

    def server_url(self, name: str) -> str:
        """The URL of a server, given as such or by its name."""
        if name.startswith(("http://", "https://")):
            return name.rstrip("/")
        if name not in self.servers:
            raise self._unknown("server", name, list(self.servers))
        return self.servers[name].rstrip("/")

    def _unknown(self, what: str, name: str, known: list[str]) -> ConfigError:
        path = self.file.path
        return ConfigError(f"no {what} '{name}' in {path}", path=path, hint=_known_or_add(known, f"{what}s", path))


@dataclass(frozen=True)
class Project:
    """The omnigraph.yaml of a project. Paths in it are relative to its directory."""

    file: SettingsFile

    @classmethod
    def load(cls, config: str | None) -> Project:
        """Read the given file, or that of the working directory, and set the variables of `auth.env_file`."""
        found = read_project(config)
        if env_file := found.part(AuthSection, "auth").env_file:
            set_variables(found.folder / env_file)
        return cls(found)

    @property
    def folder(self) -> Path:
        return self.file.folder

    @cached_property
    def cli(self) -> CliSection:
        return self.file.part(CliSection, "cli")

    @property
    def graphs(self) -> list[str]:
        return self.file.names("graphs")

    @property
    def server_graph(self) -> str | None:
        """The graph that a server of this project serves if no other is given."""
        return self.file.part(ServerSection, "server").graph

    def graph(self, name: str) -> GraphEntry:
        if name not in self.graphs:
            path = self.file.path
            hint = _known_or_add(self.graphs, "graphs", path)
            raise ConfigError(f"no graph '{name}' in {path}", path=path, hint=hint)
        return self.file.part(GraphEntry, "graphs", name)

    def address_of(self, name: str) -> str:
        """The storage or the URL of a graph."""
        uri = str(self.graph(name).uri)
        return uri if "://" in uri else str(self.folder / uri)

    def alias(self, name: str) -> ProjectAlias:
        if name not in (known := self.file.names("aliases")):
            path = self.file.path
            raise AliasError(f"no alias '{name}' in {path}", alias=name, hint=_known_or_add(known, "aliases", path))
        return self.file.part(ProjectAlias, "aliases", name)

    def query_file(self, name: str) -> Path:
        """Find a file of queries: in the directory of the project, in one of its roots, else at its own path."""
        roots = [self.folder, *(self.folder / root for root in self.file.part(QuerySection, "query").roots)]
        return next((root / name for root in roots if (root / name).is_file()), Path(name))


def _known_or_add(known: list[str], key: str, path: str) -> str:
    return f"there are {', '.join(known)}" if known else f"add it below `{key}:` in {path}"
