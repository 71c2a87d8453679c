"""Read what to serve: from the command line, the environment and `omnigraph.yaml`, in this order of precedence."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from omnigraph.api.operation import GRAPH_ID_PATTERN
from omnigraph.errors import ConfigError, ServerStartError
from omnigraph.lang.source import did_you_mean
from omnigraph.server.settings import Limits, QueryFile, ServedGraph, Serving, UpkeepPolicy
from omnigraph.server.tokens import tokens_of
from omnigraph.settings import (
    FILE,
    AuthSection,
    CleanupEntry,
    GraphEntry,
    ProjectKeys,
    ServerSection,
    SettingsFile,
    StoredQueryEntry,
    keys_of,
    read_project,
    set_variables,
)

CONFIG, TARGET, URI = "OMNIGRAPH_CONFIG", "OMNIGRAPH_TARGET", "OMNIGRAPH_TARGET_URI"
BIND, WORKERS = "OMNIGRAPH_BIND", "OMNIGRAPH_WORKERS"
UNAUTHENTICATED, REQUIRE_ALL = "OMNIGRAPH_UNAUTHENTICATED", "OMNIGRAPH_REQUIRE_ALL_GRAPHS"
REPORTED = "OMNIGRAPH_REPORTED_VERSION"
SOURCE = "OMNIGRAPH_SOURCE_VERSION"
LIMIT_VARIABLES = {
    "OMNIGRAPH_PER_ACTOR_INFLIGHT_MAX": "actor_requests",
    "OMNIGRAPH_PER_ACTOR_BYTES_MAX": "actor_bytes",
}
DEFAULT_BIND = "127.0.0.1:8080"
DEFAULT_GRAPH = "default"
"""The id of a graph that is served by its address alone."""

_GRAPH_ID = re.compile(rf"(?!policies$){GRAPH_ID_PATTERN}")


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the command line; None where an option was not given."""

    uri: str | None = None
    config: str | None = None
    target: str | None = None
    bind: str | None = None
    workers: int | None = None
    unauthenticated: bool = False
    require_all_graphs: bool = False


@dataclass(frozen=True, slots=True)
class ServerPlan:
    """What to serve, at which address, with how many processes."""

    serving: Serving
    host: str
    port: int
    workers: int


def is_configured(options: Options, environment: Mapping[str, str]) -> bool:
    """Whether any source of settings names a graph to serve."""
    given = (options.uri, options.config, options.target)
    return any(given) or any(environment.get(name) for name in (URI, CONFIG, TARGET)) or Path(FILE).is_file()


def plan_of(options: Options, environment: Mapping[str, str]) -> ServerPlan:
    """Combine command line, environment and file; the first of them that has a setting wins."""
    file = read_project(options.config or environment.get(CONFIG))
    _refuse_unknown(file)
    # Before the tokens are read: they may come from the variables that this file sets.
    if env_file := file.part(AuthSection, "auth").env_file:
        set_variables(file.folder / env_file)
    server = file.part(ServerSection, "server")
    graphs, default, single = _graphs(options, environment, file, server)
    tokens = tokens_of(server.tokens, environment, file.path)
    is_open = options.unauthenticated or _is_on(environment.get(UNAUTHENTICATED))
    if not tokens and not is_open:
        hint = "configure tokens, or allow everyone with --unauthenticated"
        raise ServerStartError("no tokens configured", hint=hint)
    serving = Serving(
        graphs,
        default,
        single,
        tokens,
        # Tokens win over --unauthenticated: a server with tokens is never open by a forgotten flag.
        open_mode=not tokens,
        limits=_limits(file, environment),
        load_roots=tuple(_address(file.folder, root) for root in server.load_roots),
        require_all_graphs=options.require_all_graphs
        or _is_on(environment.get(REQUIRE_ALL))
        or server.require_all_graphs,
        reported_version=environment.get(REPORTED) or server.version,
        source_version=environment.get(SOURCE) or None,
        mcp=server.mcp is not None,
        mcp_allow_merge=server.mcp is not None and server.mcp.allow_merge,
    )
    host, port = _host_and_port(options.bind or environment.get(BIND) or server.bind or DEFAULT_BIND)
    return ServerPlan(serving, host, port, _workers(options, environment, server))


def _refuse_unknown(file: SettingsFile) -> None:
    """Refuse unknown keys, and policies: a policy that is not enforced would be worse than none."""
    for key in file.values:
        # Not below the top: the sections of the command line are not the server's to judge.
        if key not in (known := keys_of(ProjectKeys)):
            raise file.problem("is not a setting", key, hint=did_you_mean(key, known))
    file.refuse_unknown(ServerSection, "server")
    file.refuse_unknown(Limits, "server", "limits")
    graphs = [("graphs", name) for name in file.names("graphs")]
    for keys in ((), ("server",), *graphs):
        if "policy" in file.names(*keys):
            hint = "remove it, and give each token its role"
            raise file.problem("cannot be enforced: policies are not supported yet", *keys, "policy", hint=hint)


def _is_on(text: str | None) -> bool:
    return (text or "").strip().lower() not in ("", "0", "false")


# Graphs --------------------------------------------------------------------------------------------


def _graphs(
    options: Options, environment: Mapping[str, str], file: SettingsFile, server: ServerSection
) -> tuple[dict[str, ServedGraph], str | None, bool]:
    """Return the graphs, which of them routes without a graph mean, and whether a single graph was chosen."""
    queries = file.values.get("queries")
    # A target on the command line is a choice for this start; a URI in the environment of the machine must not override
    # it.
    uri = options.uri or (None if options.target else environment.get(URI))
    if uri:
        return {DEFAULT_GRAPH: ServedGraph(uri, queries=query_files(file, queries))}, DEFAULT_GRAPH, True
    names = file.names("graphs")
    target = options.target or environment.get(TARGET) or server.graph
    if target:
        if target not in names:
            hint = f"there are {', '.join(names)}" if names else "add it below `graphs:`"
            raise ConfigError(f"no graph '{target}' in {file.path}", path=file.path, hint=hint)
        found = _graph(file, target)
        return {target: replace(found, queries=found.queries or query_files(file, queries))}, target, True
    if queries is not None:
        hint = "move it below the graph"
        raise file.problem("belongs to one graph, and several are served", "queries", hint=hint)
    if not names:
        raise ServerStartError("no graph configured", hint=f"give the address of a graph, or name graphs in {FILE}")
    for name in names:
        if not _GRAPH_ID.fullmatch(name):
            hint = "use letters, digits and hyphens, 64 at most, and not `policies`"
            raise file.problem("cannot be served under this name", "graphs", name, hint=hint)
    return {name: _graph(file, name) for name in names}, _default(file, server, names), False


def _default(file: SettingsFile, server: ServerSection, names: list[str]) -> str | None:
    name = server.default_graph or (names[0] if len(names) == 1 else None)
    if name is not None and name not in names:
        raise file.problem(f"is '{name}', which is not below graphs", "server", "default_graph")
    return name


def _graph(file: SettingsFile, name: str) -> ServedGraph:
    keys = ("graphs", name)
    file.refuse_unknown(GraphEntry, *keys)
    found = file.part(GraphEntry, *keys)
    uri = str(found.uri)
    if uri.startswith(("http://", "https://")):
        raise file.problem("is the address of a server", *keys, "uri", hint="give the storage of the graph")
    schema = found.schema_file and str(file.folder / found.schema_file)
    queries = query_files(file, found.queries, *keys)
    cleanup = found.upkeep.cleanup or CleanupEntry.model_construct()
    upkeep = UpkeepPolicy(found.upkeep.optimize, cleanup.keep, cleanup.older_than)
    return ServedGraph(_address(file.folder, uri), schema, queries, found.durability, upkeep)


def _address(folder: Path, text: str) -> str:
    """Resolve a path relative to the directory of the file."""
    # Relative to the file and not to the working directory, so that a service manager may start the server anywhere.
    return text if "://" in text else str(folder / text)


def query_files(file: SettingsFile, value: Any, *keys: str) -> tuple[QueryFile, ...]:
    """The stored queries below `keys`: a directory, a list of files, or files by the name of the query."""
    place, folder = (*keys, "queries"), file.folder
    if isinstance(value, str):
        if not (folder / value).is_dir():
            raise file.problem(f"names {folder / value}, which is not a directory", *place)
        return tuple(QueryFile(str(found)) for found in sorted((folder / value).glob("*.gq")))
    if isinstance(value, list):
        return tuple(QueryFile(str(folder / str(name))) for name in value)
    return tuple(_query_file(file, name, place) for name in file.names(*place))


def _query_file(file: SettingsFile, name: str, place: tuple[str, ...]) -> QueryFile:
    file.refuse_unknown(StoredQueryEntry, *place, name)
    found = file.part(StoredQueryEntry, *place, name)
    return QueryFile(str(file.folder / str(found.file)), name, found.mcp.tool_name, found.mcp.expose)


# The rest ------------------------------------------------------------------------------------------


def _limits(file: SettingsFile, environment: Mapping[str, str]) -> Limits:
    found = file.part(Limits, "server", "limits")
    given = {name: variable for variable, name in LIMIT_VARIABLES.items() if environment.get(variable)}
    return replace(found, **{name: _whole(variable, environment[variable]) for name, variable in given.items()})


def _whole(variable: str, text: str) -> int:
    if not (text.strip().isascii() and text.strip().isdigit()) or int(text) < 1:
        raise ConfigError(f"{variable} is '{text}'", path=variable, hint="set it to a whole number, at least 1")
    return int(text)


def _workers(options: Options, environment: Mapping[str, str], server: ServerSection) -> int:
    if options.workers is not None:
        return options.workers
    if environment.get(WORKERS):
        return _whole(WORKERS, environment[WORKERS])
    return server.workers or 1


def _host_and_port(text: str) -> tuple[str, int]:
    host, sign, port = text.strip().rpartition(":")
    if not sign or not host or not (port.isascii() and port.isdigit()) or int(port) > 65_535:  # noqa: PLR2004
        raise ConfigError(f"'{text}' is not an address to listen on", path="bind", hint=f"write it like {DEFAULT_BIND}")
    return host.removeprefix("[").removesuffix("]"), int(port)
