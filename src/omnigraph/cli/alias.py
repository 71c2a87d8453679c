"""`omnigraph alias`: run a stored query of a server by a short name."""

from __future__ import annotations

from typing import Annotated

import typer

from omnigraph.cli.address import Scope, Target, served
from omnigraph.cli.arguments import Json
from omnigraph.cli.query import Format, format_asked, look_of
from omnigraph.cli.render import show
from omnigraph.cli.sources import Params, ParamsFile, by_position, parameters
from omnigraph.errors import AliasError


def alias(
    scope: Scope,
    name: Annotated[str, typer.Argument(help="The alias, as the operator configuration names it.", metavar="NAME")],
    words: Annotated[list[str] | None, typer.Argument(help="Its arguments.", metavar="[ARG]...")] = None,
    *,
    params: Params = None,
    params_file: ParamsFile = None,
    format_: Format = None,
    as_json: Json = False,
) -> None:
    """Run the stored query that an alias stands for, and print its rows."""
    known = scope.operator.aliases()
    if name not in known:
        path = scope.operator.root.path
        hint = f"there are {', '.join(known)}" if known else f"add it below `aliases:` in {path}"
        raise AliasError(f"no alias '{name}' in {path}", alias=name, hint=hint)
    found = scope.operator.alias(name)
    chosen = format_asked(format_, as_json=as_json)
    given = parameters(params, params_file) or {}
    values = {**found.params, **by_position(name, found.arguments, words or ()), **given}
    target = Target(scope, served(scope, found.server, found.graph or scope.operator.defaults.text("default_graph")))
    result = target.stored().invoke_read(found.query, values or None, branch="main", snapshot=None)
    show(result, None, look_of(scope, chosen or found.format))
