"""The settings of the command line: those of a person, with tokens for servers, and those of a project."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, TypeVar

from omnigraph.cli import output
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
    SettingsFile,
    read_project,
    read_settings,
    set_variables,
)

_E = TypeVar("_E")
_KINDS = ("server", "store", "cluster")
_HEADING = re.compile(r"\[(.+)\]")
_OTHERS = 0o077  # the permissions of group and others


def home() -> Path:
    """The directory of the operator configuration and the stored tokens."""
    return Path(os.environ.get("OMNIGRAPH_HOME") or Path.home() / ".omnigraph")


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
        # A warning and not an error: one file serves several versions of the program on a machine.
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

    def profile(self, name: str) -> Profile:
        found = _entry(self.file, OperatorProfile, "profiles", name)
        given = [kind for kind in _KINDS if getattr(found, kind)]
        if len(given) != 1:
            raise self.file.problem("must have exactly one of server, store and cluster", "profiles", name)
        if given == ["store"] and found.default_graph:
            raise self.file.problem("has a store, which is one graph, and a default_graph", "profiles", name)
        return Profile(name, given[0], getattr(found, given[0]), found.default_graph)

    def alias(self, name: str) -> OperatorAlias:
        return _entry(self.file, OperatorAlias, "aliases", name)

    def server_url(self, name: str) -> str:
        """The URL of a server, given as such or by its name."""
        if name.startswith(("http://", "https://")):
            return name.rstrip("/")
        return str(_entry(self.file, OperatorServer, "servers", name).url).rstrip("/")


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

    @cached_property
    def cli(self) -> CliSection:
        return self.file.part(CliSection, "cli")

    def graph(self, name: str) -> GraphEntry:
        return _entry(self.file, GraphEntry, "graphs", name)

    def address_of(self, name: str) -> str:
        """The storage or the URL of a graph."""
        uri = str(self.graph(name).uri)
        # Relative to the file, so that a command may run in any directory.
        return uri if "://" in uri else str(self.file.folder / uri)

    def alias(self, name: str) -> ProjectAlias:
        return _entry(self.file, ProjectAlias, "aliases", name)

    def query_file(self, name: str) -> Path:
        """Find a file of queries: in the directory of the project, in one of its roots, else at its own path."""
        roots = (".", *self.file.part(QuerySection, "query").roots)
        found = (self.file.folder / root / name for root in roots)
        # The path as given comes last, so that opening it reports the name that was typed.
        return next(filter(Path.is_file, found), Path(name))


def _entry(file: SettingsFile, model: type[_E], section: str, name: str) -> _E:
    """Return the entry of a section that has this name."""
    known = file.names(section)
    if name in known:
        return file.part(model, section, name)
    hint = f"there are {', '.join(known)}" if known else f"add it below `{section}:` in {file.path}"
    if section == "aliases":
        raise AliasError(f"no alias '{name}' in {file.path}", alias=name, hint=hint)
    raise ConfigError(f"no {section.removesuffix('s')} '{name}' in {file.path}", path=file.path, hint=hint)


# Tokens --------------------------------------------------------------------------------------------


def credentials_file() -> Path:
    return home() / "credentials"


def store_token(name: str, token: str) -> None:
    _write({**_read(), name: token})


def remove_token(name: str) -> None:
    kept = _read()
    if kept.pop(name, None) is not None:
        _write(kept)


def token_for(url: str, servers: Mapping[str, str], variable: str | None = None) -> str | None:
    """The token for a URL: that of its server, else of the variable of its target, else OMNIGRAPH_BEARER_TOKEN."""
    name = _server_of(url, servers)
    # The nearest wins: a token of the server is meant for it, one of the environment for all.
    own = _of_server(name) if name else None
    return own or (_variable(variable) if variable else None) or _variable("OMNIGRAPH_BEARER_TOKEN")


def _server_of(url: str, servers: Mapping[str, str]) -> str | None:
    """The server whose URL is the longest prefix of this one; `http://a` is not a prefix of `http://a.example`."""
    # With the slash at the end of both: a token must never go to another host that begins alike.
    fitting = [name for name, base in servers.items() if f"{url}/".startswith(f"{base.rstrip('/')}/")]
    return max(fitting, key=lambda name: len(servers[name].rstrip("/")), default=None)


def _of_server(name: str) -> str | None:
    return _variable(f"OMNIGRAPH_TOKEN_{name.upper().replace('-', '_')}") or _read().get(name)


def _variable(name: str) -> str | None:
    return os.environ.get(name, "").strip() or None


def _read() -> dict[str, str]:
    path = credentials_file()
    try:
        # Like ssh with its keys: a token that others may have read is not used in silence.
        if path.stat().st_mode & _OTHERS:
            message = f"others can read {path}"
            raise ConfigError(message, path=str(path), hint=f"run `chmod 600 {path}`")
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}", path=str(path)) from None
    found: dict[str, str] = {}
    name = ""
    for line in map(str.strip, lines):
        if heading := _HEADING.fullmatch(line):
            name = heading[1].strip()
        key, sign, value = line.partition("=")
        if sign and key.strip() == "token" and value.strip():
            found[name] = value.strip()
    return found


def _write(tokens: Mapping[str, str]) -> None:
    """Replace the file as a whole. It never exists with permissions that let others read it."""
    path = credentials_file()
    text = "\n".join(f"[{name}]\ntoken = {token}\n" for name, token in sorted(tokens.items()))
    fresh = path.with_name(f"credentials.{os.getpid()}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # O_EXCL: a link that stands there already would send the tokens to another file.
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
        fresh.replace(path)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise ConfigError(f"cannot write {path}: {error.strerror or error}", path=str(path)) from None
