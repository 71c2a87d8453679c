"""The settings of a project: `omnigraph.yaml` with its graphs, aliases and places of queries."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from omnigraph.errors import AliasError, ConfigError
from omnigraph.settings_file import Section, read_settings, set_variables

FILE = "omnigraph.yaml"


@dataclass(frozen=True, slots=True)
class Target:
    """A graph of the project."""

    name: str
    uri: str
    token_variable: str | None


@dataclass(frozen=True, slots=True)
class ProjectAlias:
    """A short name for a query in a file of the project."""

    command: str
    query: str
    name: str | None
    arguments: tuple[str, ...]
    graph: str | None
    branch: str | None
    format: str | None


@dataclass(frozen=True, slots=True)
class Project:
    """What the file says; paths in it are relative to where it lies."""

    root: Section
    folder: Path

    @property
    def cli(self) -> Section:
        return self.root.section("cli")

    def server_graph(self) -> str | None:
        """The graph that a server of this project has by itself."""
        return self.root.section("server").text("graph")

    def target(self, name: str) -> Target:
        graphs = self.root.sections("graphs")
        if name not in graphs:
            hint = f"there are {', '.join(graphs)}" if graphs else "add it below `graphs:`"
            raise ConfigError(f"no graph '{name}' in {self.root.path}", path=self.root.path, hint=hint)
        uri = graphs[name].text("uri")
        if not uri:
            raise graphs[name].problem("uri", "is missing")
        return Target(name, uri if "://" in uri else str(self.folder / uri), graphs[name].text("bearer_token_env"))

    def alias(self, name: str) -> ProjectAlias:
        aliases = self.root.sections("aliases")
        if name not in aliases:
            hint = f"there are {', '.join(aliases)}" if aliases else f"add it below `aliases:` in {self.root.path}"
            raise AliasError(f"no alias '{name}' in {self.root.path}", alias=name, hint=hint)
        found = aliases[name]
        command, query = found.one_of("command", _VERBS), found.text("query")
        if command is None or query is None:
            raise found.problem("query" if command else "command", "is missing")
        rest = (found.text("graph"), found.text("branch"), found.text("format"))
        return ProjectAlias(_VERBS[command], query, found.text("name"), found.texts("args"), *rest)

    def query_file(self, name: str) -> Path:
        """Where a file of queries lies: next to the settings, in one of their roots, or where it says itself."""
        roots = [self.folder, *(self.folder / root for root in self.root.section("query").texts("roots"))]
        return next((root / name for root in roots if (root / name).is_file()), Path(name))

    def load_variables(self) -> None:
        """Set the variables of `auth.env_file`; what the environment has already stays."""
        name = self.root.section("auth").text("env_file")
        if name:
            set_variables(self.folder / name)


_VERBS = {"read": "query", "query": "query", "change": "mutate", "mutate": "mutate"}


def load_project(config: str | None) -> Project:
    """Read the file that is named, or the one of the working directory; without one nothing is set."""
    path = Path(config or FILE)
    found = read_settings(path)
    if found is None and config is not None:
        raise ConfigError(f"there is no {config}", path=config, hint="name an omnigraph.yaml")
    return Project(found or Section(str(path), {}), path.parent)
