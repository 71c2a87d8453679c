"""The operator configuration: what a person has set for all graphs and servers, in `~/.omnigraph/config.yaml`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omnigraph.cli import output
from omnigraph.errors import AliasError, ConfigError
from omnigraph.settings_file import Section, read_settings

_KEYS = {
    "": {"operator", "servers", "clusters", "defaults", "profiles", "aliases"},
    "operator": {"actor"},
    "defaults": {"output", "table_max_column_width", "table_cell_layout", "server", "store", "default_graph"},
}
_ITEM_KEYS = {
    "servers": {"url"},
    "clusters": {"root"},
    "profiles": {"server", "cluster", "store", "default_graph"},
    "aliases": {"server", "graph", "query", "args", "params", "format"},
}
_SCOPES = ("server", "store", "cluster")


def home() -> Path:
    return Path(os.environ.get("OMNIGRAPH_HOME") or Path.home() / ".omnigraph")


@dataclass(frozen=True, slots=True)
class Profile:
    """A way to address graphs that has a name: a server, a storage or a cluster."""

    name: str
    kind: str
    target: str
    default_graph: str | None


@dataclass(frozen=True, slots=True)
class Alias:
    """A short name for a stored query of a server."""

    server: str
    graph: str | None
    query: str
    arguments: tuple[str, ...]
    params: dict[str, Any]
    format: str | None


@dataclass(frozen=True, slots=True)
class Operator:
    """What the file says. What is wrong in a part of it is told when that part is needed."""

    root: Section

    @property
    def actor(self) -> str | None:
        return self.root.section("operator").text("actor")

    @property
    def defaults(self) -> Section:
        found = self.root.section("defaults")
        if found.text("store") and (other := found.text("server") or found.text("default_graph")):
            raise found.problem("store", f"does not go with '{other}': a store is one graph")
        return found

    def servers(self) -> dict[str, str]:
        """The URLs of the servers, by name."""
        return {name: _needed(one, "url") for name, one in self.root.sections("servers").items()}

    def profile(self, name: str) -> Profile:
        found = self.root.sections("profiles").get(name)
        if found is None:
            raise self._unknown("profile", name)
        given = [kind for kind in _SCOPES if found.text(kind)]
        if len(given) != 1:
            raise self.root.problem(f"profiles.{name}", "must have exactly one of server, store and cluster")
        if given == ["store"] and found.text("default_graph"):
            raise self.root.problem(f"profiles.{name}", "has a store, which is one graph, and a default_graph")
        return Profile(name, given[0], str(found.text(given[0])), found.text("default_graph"))

    def profiles(self) -> list[str]:
        return list(self.root.sections("profiles"))

    def alias(self, name: str) -> Alias:
        aliases = self.root.sections("aliases")
        if name not in aliases:
            path = self.root.path
            hint = f"there are {', '.join(aliases)}" if aliases else f"add it below `aliases:` in {path}"
            raise AliasError(f"no alias '{name}' in {path}", alias=name, hint=hint)
        found = aliases[name]
        return Alias(
            _needed(found, "server"),
            found.text("graph"),
            _needed(found, "query"),
            found.texts("args"),
            dict(found.section("params").values),
            found.text("format"),
        )

    def server_url(self, name: str) -> str:
        """The URL of a server, which is given as such or by its name."""
        if name.startswith(("http://", "https://")):
            return name.rstrip("/")
        servers = self.servers()
        if name not in servers:
            raise self._unknown("server", name)
        return servers[name].rstrip("/")

    def _unknown(self, what: str, name: str) -> ConfigError:
        known = ", ".join(self.root.section(f"{what}s").values)
        hint = f"there are {known}" if known else f"add it below `{what}s:` in {self.root.path}"
        return ConfigError(f"no {what} '{name}' in {self.root.path}", path=self.root.path, hint=hint)


def load_operator() -> Operator:
    """Read the file; without one nothing is set. Keys that nobody knows are told and passed over."""
    path = home() / "config.yaml"
    found = read_settings(path)
    if found is None:
        return Operator(Section(str(path), {}))
    for unknown in _unknown_keys(found):
        output.note(f"warning: {path}: unknown key {unknown}", style="yellow")
    return Operator(found)


def _unknown_keys(root: Section) -> list[str]:
    places = {place: root.section(place) if place else root for place in _KEYS}
    wrong = [f"{place}.{key}".lstrip(".") for place, one in places.items() for key in one.values.keys() - _KEYS[place]]
    for part, keys in _ITEM_KEYS.items():
        items = root.sections(part)
        wrong += [f"{part}.{name}.{key}" for name, one in items.items() for key in one.values.keys() - keys]
    return sorted(wrong)


def _needed(section: Section, name: str) -> str:
    value = section.text(name)
    if not value:
        raise section.problem(name, "is missing")
    return value
