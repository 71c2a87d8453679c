"""Commands for servers: tokens, profiles, and the graphs that a server has."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from omnigraph.cli import output
from omnigraph.cli.address import Scope, graphs_of, server_of
from omnigraph.cli.command import argument, command, option
from omnigraph.cli.output import Document
from omnigraph.cli.settings import Profile, credentials_file, remove_token, store_token
from omnigraph.errors import ConfigError

ServerName = Annotated[str, argument("The server, as the operator configuration names it.", "NAME")]


@command("login")
def login(
    scope: Scope,
    name: ServerName,
    *,
    token: Annotated[str | None, option("The token. Default: the first line of stdin.", "TOKEN")] = None,
) -> None:
    """Store the token of a server, readable only by you."""
    declared = name in scope.operator.servers  # before anything is stored: the settings may be wrong
    given = (token if token is not None else _typed(name)).strip()
    if not given or not given.isprintable():
        raise typer.BadParameter("the token is empty or not printable", param_hint="--token")
    # A token may be stored before its server is configured.
    store_token(name, given)
    if not declared:
        output.note(f"note: {scope.operator.file.path} has no server '{name}' yet, so nothing uses the token")
    _emit_token(scope, name, "stored")


@command("logout")
def logout(scope: Scope, name: ServerName) -> None:
    """Remove the stored token of a server."""
    remove_token(name)
    _emit_token(scope, name, "removed")


def _emit_token(scope: Scope, name: str, verb: str) -> None:
    path = str(credentials_file())
    document = {"server": name, "credentials_path": path, "declared": name in scope.operator.servers}
    scope.emit(document, f"{verb} the token of {name} in {path}")


def _typed(name: str) -> str:
    if sys.stdin.isatty():
        # On stderr, so that stdout has only the document.
        return str(typer.prompt(f"token of {name}", hide_input=True, err=True))
    return sys.stdin.readline()


@command("profile list")
def list_profiles(scope: Scope) -> None:
    """List the profiles, and mark the active one."""
    active = os.environ.get("OMNIGRAPH_PROFILE")
    found = [_described(scope, name, active) for name in scope.operator.file.names("profiles")]
    scope.emit(found, map(_profile_line, found))


def _profile_line(one: Document) -> str:
    target = one.get("error") or f"{one['scope_kind']} {one['target']}"
    return f"{one['name']}{' (active)' if one['active'] else ''}: {target}"


def _described(scope: Scope, name: str, active: str | None) -> Document:
    try:
        found = scope.operator.profile(name)
        _endpoint(scope, found)  # a profile of a server that is not configured is not valid either
    except ConfigError as error:
        blank = {"binding": None, "scope_kind": None, "target": None}
        return {"name": name, **blank, "valid": False, "error": error.message, "active": name == active}
    place = {"binding": f"{found.kind}:{found.target}", "scope_kind": found.kind, "target": found.target}
    default = {"default_graph": found.default_graph} if found.default_graph else {}
    return {"name": name, **place, "valid": True, **default, "active": name == active}


def _endpoint(scope: Scope, found: Profile) -> str | None:
    return scope.operator.server_url(found.target) if found.kind == "server" else None


@command("profile show")
def show_profile(
    scope: Scope, name: Annotated[str | None, argument("The profile. Default: the active one.", "NAME")] = None
) -> None:
    """Show the graph or server of a profile, or the defaults if no profile is active."""
    name = name or os.environ.get("OMNIGRAPH_PROFILE")
    described = _shown(scope, scope.operator.profile(name)) if name else _defaults(scope)
    scope.emit(described, output.pairs(described))


def _shown(scope: Scope, found: Profile) -> Document:
    described = {
        "name": found.name,
        "scope_kind": found.kind,
        "target": found.target,
        "endpoint": _endpoint(scope, found),
        "default_graph": found.default_graph,
        "output_format": scope.operator.defaults.output,
    }
    return {key: value for key, value in described.items() if value is not None}


def _defaults(scope: Scope) -> Document:
    defaults = scope.operator.defaults
    if not (target := defaults.server or defaults.store):
        return {"name": "(defaults)", "scope_kind": "none"}
    kind = "server" if defaults.server else "store"
    return _shown(scope, Profile("(defaults)", kind, target, defaults.default_graph))


@command("graphs list")
def list_served(scope: Scope) -> None:
    """List the graphs of a server."""
    found = graphs_of(server_of(scope))
    document = {"graphs": [{"graph_id": graph_id, "uri": uri} for graph_id, uri in found]}
    scope.emit(document, (f"{graph_id}\t{uri}" for graph_id, uri in found))
