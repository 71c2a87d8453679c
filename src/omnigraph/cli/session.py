"""`omnigraph login`, `logout`, `profile` and `graphs`: who you are to servers, and what they have."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer

from omnigraph.cli import output
from omnigraph.cli.address import Scope, server_of
from omnigraph.cli.arguments import Json
from omnigraph.cli.command import command, group
from omnigraph.cli.credentials import credentials_file, remove_token, store_token
from omnigraph.cli.operator_config import Profile
from omnigraph.cli.server import Server as ServerAddress
from omnigraph.errors import ConfigError

profile = group("Look at the scopes of the operator configuration.")
graphs = group("Look at the graphs of a server.")

Server = Annotated[str, typer.Argument(help="The server, as the operator configuration names it.", metavar="NAME")]


def login(
    scope: Scope,
    name: Server,
    *,
    token: Annotated[str | None, typer.Option(help="The token; else the first line of stdin.", metavar="TOKEN")] = None,
    as_json: Json = False,
) -> None:
    """Keep the token of a server for later calls, where only you can read it."""
    declared = name in scope.operator.servers()
    given = (token if token is not None else _typed(name)).strip()
    if not given or not given.isprintable():
        raise typer.BadParameter("there is no token", param_hint="--token")
    store_token(name, given)
    if not declared:
        output.note(f"note: {scope.operator.root.path} has no server '{name}' yet, so nothing uses the token")
    _tell(name, "stored the token of", as_json=as_json, declared=declared)


def logout(scope: Scope, name: Server, *, as_json: Json = False) -> None:
    """Forget the token of a server."""
    remove_token(name)
    _tell(name, "removed the token of", as_json=as_json, declared=name in scope.operator.servers())


def _typed(name: str) -> str:
    if sys.stdin.isatty():
        return str(typer.prompt(f"token of {name}", hide_input=True, err=True))
    return sys.stdin.readline()


def _tell(name: str, what: str, *, as_json: bool, declared: bool) -> None:
    path = str(credentials_file())
    if as_json:
        output.document({"server": name, "credentials_path": path, "declared": declared})
    else:
        output.data(f"{what} {name} in {path}")


@command(profile, "profile list")
def list_profiles(scope: Scope, *, as_json: Json = False) -> None:
    """List the profiles, and which one is in use."""
    active = os.environ.get("OMNIGRAPH_PROFILE")
    found = [_described(scope, name, active) for name in scope.operator.profiles()]
    if as_json:
        output.document(found)
        return
    for one in found:
        told = one.get("error") or f"{one['scope_kind']} {one['target']}"
        output.data(f"{one['name']}{' (active)' if one['active'] else ''}: {told}")


def _described(scope: Scope, name: str, active: str | None) -> dict[str, Any]:
    try:
        found = scope.operator.profile(name)
        _endpoint(scope, found)
    except ConfigError as error:
        blank = {"binding": None, "scope_kind": None, "target": None}
        return {"name": name, **blank, "valid": False, "error": error.message, "active": name == active}
    told = {
        "name": name,
        "binding": f"{found.kind}:{found.target}",
        "scope_kind": found.kind,
        "target": found.target,
        "valid": True,
    }
    default = {"default_graph": found.default_graph} if found.default_graph else {}
    return {**told, **default, "active": name == active}


def _endpoint(scope: Scope, found: Profile) -> str | None:
    return scope.operator.server_url(found.target) if found.kind == "server" else None


@command(profile, "profile show")
def show_profile(
    scope: Scope,
    name: Annotated[str | None, typer.Argument(help="Which; else the one in use.", metavar="NAME")] = None,
    *,
    as_json: Json = False,
) -> None:
    """Show where a profile leads, or what counts without one."""
    name = name or os.environ.get("OMNIGRAPH_PROFILE")
    told = _shown(scope, scope.operator.profile(name)) if name else _defaults(scope)
    if as_json:
        output.document(told)
        return
    for key, value in told.items():
        output.data(f"{key}: {value}")


def _shown(scope: Scope, found: Profile) -> dict[str, Any]:
    told = {
        "name": found.name,
        "scope_kind": found.kind,
        "target": found.target,
        "endpoint": _endpoint(scope, found),
        "default_graph": found.default_graph,
        "output_format": scope.operator.defaults.text("output"),
    }
    return {key: value for key, value in told.items() if value is not None}


def _defaults(scope: Scope) -> dict[str, Any]:
    defaults = scope.operator.defaults
    for kind in ("server", "store"):
        if target := defaults.text(kind):
            return _shown(scope, Profile("(defaults)", kind, target, defaults.text("default_graph")))
    return {"name": "(defaults)", "scope_kind": "none"}


@command(graphs, "graphs list")
def list_served(scope: Scope, *, as_json: Json = False) -> None:
    """List the graphs that a server has."""
    address = server_of(scope)
    found = ServerAddress(address.url, address.token).graphs()
    if as_json:
        output.document({"graphs": [{"graph_id": graph_id, "uri": uri} for graph_id, uri in found]})
        return
    for graph_id, uri in found:
        output.raw(f"{graph_id}\t{uri}\n")
