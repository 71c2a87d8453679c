"""Reading what to serve: from the command line, the environment, and `omnigraph.yaml`, in this order."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from omnigraph.errors import ConfigError, ServerStartError
from omnigraph.server.settings import Limits, QueryFile, ServedGraph, Serving
from omnigraph.server.token_sources import tokens_of
from omnigraph.settings_file import Section, read_settings, set_variables

CONFIG, TARGET, URI = "OMNIGRAPH_CONFIG", "OMNIGRAPH_TARGET", "OMNIGRAPH_TARGET_URI"
BIND, WORKERS = "OMNIGRAPH_BIND", "OMNIGRAPH_WORKERS"
UNAUTHENTICATED, REQUIRE_ALL = "OMNIGRAPH_UNAUTHENTICATED", "OMNIGRAPH_REQUIRE_ALL_GRAPHS"
REPORTED = "OMNIGRAPH_REPORTED_VERSION"
SOURCE = "OMNIGRAPH_SOURCE_VERSION"
LIMIT_VARIABLES = {
    "OMNIGRAPH_PER_ACTOR_INFLIGHT_MAX": "actor_requests",
    "OMNIGRAPH_PER_ACTOR_BYTES_MAX": "actor_bytes",
}
FILE = "omnigraph.yaml"
DEFAULT_BIND = "127.0.0.1:8080"
DEFAULT_GRAPH = "default"
"""The id of a graph that is served by its address alone."""

OF_FILE = ("project", "graphs", "server", "cli", "query", "auth", "aliases", "policy", "queries")
OF_GRAPH = ("uri", "schema", "queries", "bearer_token_env", "policy")
OF_SERVER = (
    "bind",
    "workers",
    "graph",
    "default_graph",
    "require_all_graphs",
    "tokens",
    "limits",
    "load_roots",
    "version",
    "policy",
)
OF_QUERY = ("file", "mcp")
OF_MCP = ("expose", "tool_name")
_GRAPH_ID = re.compile(r"(?!policies$)[A-Za-z0-9-]{1,64}")


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says; None where it says nothing."""

    uri: str | None = None
    config: str | None = None
    target: str | None = None
    bind: str | None = None
    workers: int | None = None
    unauthenticated: bool = False
    require_all_graphs: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """What to serve, where, and by how many processes."""

    serving: Serving
    host: str
    port: int
    workers: int


def is_said(options: Options, environment: Mapping[str, str]) -> bool:
    """Tell whether anybody has said what to serve."""
    given = (options.uri, options.config, options.target)
    return any(given) or any(environment.get(name) for name in (URI, CONFIG, TARGET)) or Path(FILE).is_file()


def plan_of(options: Options, environment: Mapping[str, str]) -> Plan:
    """Put together what the command line, the environment and the file say; the first of them that says it wins."""
    file = _file(options.config or environment.get(CONFIG))
    folder = Path(file.path).parent
    env_file = file.section("auth").text("env_file")
    if env_file:
        set_variables(folder / env_file)
    server = file.section("server")
    server.refuse_unknown(OF_SERVER)
    _refuse_policies(file, server)
    graphs, default, single = _graphs(options, environment, file)
    tokens = tokens_of(_list_of_sections(server, "tokens"), environment)
    is_open = options.unauthenticated or _is_on(environment.get(UNAUTHENTICATED))
    if not tokens and not is_open:
        hint = "configure tokens, or serve everybody with --unauthenticated"
        raise ServerStartError("there are no tokens, so nobody could be let in", hint=hint)
    serving = Serving(
        graphs,
        default,
        single,
        tokens,
        open_mode=not tokens,
        limits=_limits(server.section("limits"), environment),
        load_roots=tuple(_address(folder, root) for root in server.texts("load_roots")),
        require_all_graphs=options.require_all_graphs
        or _is_on(environment.get(REQUIRE_ALL))
        or server.flag("require_all_graphs"),
        reported_version=environment.get(REPORTED) or server.text("version"),
        source_version=environment.get(SOURCE) or None,
    )
    host, port = _host_and_port(options.bind or environment.get(BIND) or server.text("bind") or DEFAULT_BIND)
    return Plan(serving, host, port, _workers(options, environment, server))


def _file(path: str | None) -> Section:
    found = read_settings(Path(path or FILE))
    if found is None and path is not None:
        raise ConfigError(f"there is no {path}", path=path, hint=f"name an {FILE}")
    file = found or Section(FILE, {})
    file.refuse_unknown(OF_FILE)
    return file


def _is_on(text: str | None) -> bool:
    return (text or "").strip().lower() not in ("", "0", "false")


# Graphs --------------------------------------------------------------------------------------------


def _graphs(
    options: Options, environment: Mapping[str, str], file: Section
) -> tuple[dict[str, ServedGraph], str | None, bool]:
    """Say which graphs, which of them the flat routes mean, and whether there is only one by intention."""
    folder = Path(file.path).parent
    uri = options.uri or (None if options.target else environment.get(URI))
    if uri:
        return {DEFAULT_GRAPH: ServedGraph(uri, queries=query_files(file, folder))}, DEFAULT_GRAPH, True
    declared = file.sections("graphs")
    server = file.section("server")
    target = options.target or environment.get(TARGET) or server.text("graph")
    if target:
        if target not in declared:
            hint = f"there are {', '.join(declared)}" if declared else "add it below `graphs:`"
            raise ConfigError(f"no graph '{target}' in {file.path}", path=file.path, hint=hint)
        of_graph = _graph(declared[target], folder)
        queries = of_graph.queries or query_files(file, folder)
        return {target: ServedGraph(of_graph.uri, of_graph.schema, queries)}, target, True
    if "queries" in file.values:
        raise file.problem("queries", "belongs to one graph, and several are served", hint="move it below the graph")
    if not declared:
        hint = "give the address of a graph, or name graphs in omnigraph.yaml"
        raise ServerStartError("there is nothing to serve", hint=hint)
    return {name: _named(name, one, folder) for name, one in declared.items()}, _default(server, declared), False


def _default(server: Section, declared: Mapping[str, Section]) -> str | None:
    name = server.text("default_graph") or (next(iter(declared)) if len(declared) == 1 else None)
    if name is not None and name not in declared:
        raise server.problem("default_graph", f"is '{name}', which is not below graphs")
    return name


def _named(name: str, section: Section, folder: Path) -> ServedGraph:
    if not _GRAPH_ID.fullmatch(name):
        hint = "use letters, digits and hyphens, 64 at most, and not `policies`"
        message = f"{section.path}: graphs.{name} cannot be served under this name"
        raise ConfigError(message, path=section.path, hint=hint)
    return _graph(section, folder)


def _graph(section: Section, folder: Path) -> ServedGraph:
    section.refuse_unknown(OF_GRAPH)
    uri, schema = section.text("uri"), section.text("schema")
    if not uri:
        raise section.problem("uri", "is missing", hint="say where the graph is stored")
    if uri.startswith(("http://", "https://")):
        raise section.problem("uri", "is the address of a server", hint="say where the graph is stored")
    return ServedGraph(_address(folder, uri), schema and str(folder / schema), query_files(section, folder))


def _address(folder: Path, text: str) -> str:
    """Paths are relative to where the file lies."""
    return text if "://" in text else str(folder / text)


def query_files(section: Section, folder: Path) -> tuple[QueryFile, ...]:
    """Stored queries: a directory, a list of files, or files by the name of the query."""
    value = section.values.get("queries")
    if isinstance(value, str):
        place = folder / value
        if not place.is_dir():
            raise section.problem("queries", f"names {place}, which is no directory")
        return tuple(QueryFile(str(file)) for file in sorted(place.glob("*.gq")))
    if isinstance(value, list):
        return tuple(QueryFile(str(folder / name)) for name in section.texts("queries"))
    return tuple(_query(name, one, folder) for name, one in section.sections("queries").items())


def _query(name: str, section: Section, folder: Path) -> QueryFile:
    section.refuse_unknown(OF_QUERY)
    file, mcp = section.text("file"), section.section("mcp")
    mcp.refuse_unknown(OF_MCP)
    if not file:
        raise section.problem("file", "is missing", hint="name the .gq file")
    exposed = "expose" not in mcp.values or mcp.flag("expose")
    return QueryFile(str(folder / file), name, mcp.text("tool_name"), exposed)


# The rest ------------------------------------------------------------------------------------------


def _refuse_policies(file: Section, server: Section) -> None:
    """A policy that is not enforced would be worse than none."""
    for section in (file, server, *file.sections("graphs").values()):
        if "policy" in section.values:
            hint = "remove it, and give each token its role"
            raise section.problem("policy", "cannot be enforced: policies are not supported yet", hint=hint)


def _list_of_sections(section: Section, name: str) -> list[Section]:
    value = section.values.get(name, [])
    if not isinstance(value, list):
        raise section.problem(name, "must be a list")
    numbered = Section(section.path, {str(at): one for at, one in enumerate(value)}, f"{section.place}.{name}")
    return [numbered.section(str(at)) for at in range(len(value))]


def _limits(section: Section, environment: Mapping[str, str]) -> Limits:
    known = {field.name: field.type for field in fields(Limits)}
    section.refuse_unknown(known)
    found: dict[str, float] = {}
    for name, kind in known.items():
        value = section.amount(name, least=0 if kind == "float" else 1)
        if kind == "int":
            section.number(name)
        if value is not None:
            found[name] = value
    for variable, name in LIMIT_VARIABLES.items():
        if environment.get(variable):
            found[name] = _whole(variable, environment[variable])
    return Limits(**found)  # type: ignore[arg-type]


def _whole(variable: str, text: str) -> int:
    if not (text.strip().isascii() and text.strip().isdigit()) or int(text) < 1:
        raise ConfigError(f"{variable} is '{text}'", path=variable, hint="set it to a whole number, at least 1")
    return int(text)


def _workers(options: Options, environment: Mapping[str, str], server: Section) -> int:
    if options.workers is not None:
        return options.workers
    if environment.get(WORKERS):
        return _whole(WORKERS, environment[WORKERS])
    server.amount("workers", least=1)
    return server.number("workers") or 1


def _host_and_port(text: str) -> tuple[str, int]:
    host, sign, port = text.strip().rpartition(":")
    if not sign or not host or not (port.isascii() and port.isdigit()) or int(port) > 65_535:  # noqa: PLR2004
        raise ConfigError(f"'{text}' is no address to listen at", path="bind", hint=f"write it like {DEFAULT_BIND}")
    return host.removeprefix("[").removesuffix("]"), int(port)
