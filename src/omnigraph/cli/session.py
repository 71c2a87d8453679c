"""Commands for servers: tokens, profiles, and the graphs that a server has."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer

from omnigraph.cli import output
from omnigraph.cli.address import Scope, graphs_of, server_of
from omnigraph.cli.command import command, group
from omnigraph.cli.credentials import credentials_file, remove_token, store_token
from omnigraph.cli.emit import Document, Lines, renders
from omnigraph.cli.settings import Profile
from omnigraph.errors import ConfigError

app = typer.Typer()
profile_group = group("Show the profiles of the operator configuration.")
graphs_group = group("List the graphs of a server.")
app.add_typer(profile_group, name="profile")
app.add_typer(graphs_group, name="graphs")

ServerName = Annotated[str, typer.Argument(help="The server, as the operator configuration names it.", metavar="NAME")]


@command(app, "login")
def login(
    scope: Scope,
    name: ServerName,
    *,
    token: Annotated[
        str | None, typer.Option(help="The token. Default: the first line of stdin.", metavar="TOKEN")
    ] = None,
) -> None:
    """Store the token of a server, readable only by you."""
    declared = name in scope.operator.servers
    given = (token if token is not None else _typed(name)).strip()
    if not given or not given.isprintable():
        raise typer.BadParameter("the token is empty or not printable", param_hint="--token")
    store_token(name, given)
    if not declared:
        output.note(f"note: {scope.operator.file.path} has no server '{name}' yet, so nothing uses the token")
    scope.emit({"server": name, "credentials_path": str(credentials_file()), "declared": declared})


@command(app, "logout")
def logout(scope: Scope, name: ServerName) -> None:
    """Remove the stored token of a server."""
    remove_token(name)
    declared = name in scope.operator.servers
    scope.emit({"server": name, "credentials_path": str(credentials_file()), "declared": declared})


def _typed(name: str) -> str:
    if sys.stdin.isatty():
        return str(typer.prompt(f"token of {name}", hide_input=True, err=True))
    return sys.stdin.readline()


@command(profile_group, "profile list")
def list_profiles(scope: Scope) -> None:
    """List the profiles, and mark the active one."""
    active = os.environ.get("OMNIGRAPH_PROFILE")
    scope.emit([_described(scope, name, active) for name in scope.operator.profiles])


def _described(scope: Scope, name: str, active: str | None) -> dict[str, Any]:
    try:
        found = scope.operator.profile(name)
        _endpoint(scope, found)
    except ConfigError as error:
        blank = {"binding": None, "scope_kind": None, "target": None}
        return {"name": name, **blank, "valid": False, "error": error.message, "active": name == active}
    described = {
        "name": name,
        "binding": f"{found.kind}:{found.target}",
        "scope_kind": found.kind,
        "target": found.target,
        "valid": True,
    }
    default = {"default_graph": found.default_graph} if found.default_graph else {}
    return {**described, **default, "active": name == active}


def _endpoint(scope: Scope, found: Profile) -> str | None:
    return scope.operator.server_url(found.target) if found.kind == "server" else None


@command(profile_group, "profile show")
def show_profile(
    scope: Scope,
    name: Annotated[str | None, typer.Argument(help="The profile. Default: the active one.", metavar="NAME")] = None,
) -> None:
    """Show the graph or server of a profile, or the defaults if no profile is active."""
    name = name or os.environ.get("OMNIGRAPH_PROFILE")
    scope.emit(_shown(scope, scope.operator.profile(name)) if name else _defaults(scope))


def _shown(scope: Scope, found: Profile) -> dict[str, Any]:
    described = {
        "name": found.name,
        "scope_kind": found.kind,
        "target": found.target,
        "endpoint": _endpoint(scope, found),
        "default_graph": found.default_graph,
        "output_format": scope.operator.defaults.output,
    }
    return {key: value for key, value in described.items() if value is not None}


def _defaults(scope: Scope) -> dict[str, Any]:
    defaults = scope.operator.defaults
    for kind, target in (("server", defaults.server), ("store", defaults.store)):
        if target:
            return _shown(scope, Profile("(defaults)", kind, target, defaults.default_graph))
    return {"name": "(defaults)", "scope_kind": "none"}


@command(graphs_group, "graphs list")
def list_served(scope: Scope) -> None:
    """List the graphs of a server."""
    scope.emit(graphs_of(server_of(scope)))


@renders("login")
def _logged_in(done: Document) -> Lines:
    yield f"stored the token of {done['server']} in {done['credentials_path']}"


@renders("logout")
def _logged_out(done: Document) -> Lines:
    yield f"removed the token of {done['server']} in {done['credentials_path']}"


@renders("profile list")
def _profiles(found: list[Document]) -> Lines:
    for one in found:
        target = one.get("error") or f"{one['scope_kind']} {one['target']}"
        yield f"{one['name']}{' (active)' if one['active'] else ''}: {target}"


def _served_document(found: list[tuple[str, str]]) -> Document:
    return {"graphs": [{"graph_id": graph_id, "uri": uri} for graph_id, uri in found]}


@renders("graphs list", document=_served_document)
def _served(found: list[tuple[str, str]]) -> Lines:
    yield from (f"{graph_id}\t{uri}" for graph_id, uri in found)
