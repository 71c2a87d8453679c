"""How a function becomes a command: it is given its scope, and its users the options that every command has."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import fields, replace
from typing import Annotated, Any, TypeVar

import typer

from omnigraph.cli.address import Scope
from omnigraph.cli.flags import Flags, refuse_foreign, rule_of, spelled

_F = TypeVar("_F", bound=Callable[..., None])
_KEY = "omnigraph.flags"
_PANEL = "Which graph, and who"
_PREFIX = "common_"
_TEXTS = {
    "uri": ("URI", "The storage of the graph, as the argument names it."),
    "store": ("URI", "The storage of the graph: a directory, file:// or s3:// address."),
    "server": ("NAME|URL", "A server, by its URL or its name in the operator configuration."),
    "graph": ("ID", "Which graph of the server."),
    "profile": ("NAME", "A scope of the operator configuration; else OMNIGRAPH_PROFILE."),
    "target": ("NAME", "A graph of omnigraph.yaml."),
    "config": ("FILE", "Which omnigraph.yaml; else the one of this directory."),
    "cluster": ("DIR", "Not supported by this version."),
    "actor": ("ACTOR", "Who makes the change."),
    "yes": (None, "Do not ask before something is removed from a graph that is not local."),
    "quiet": (None, "Show no progress, and do not say which graph is changed."),
}
NOT_SHOWN = frozenset({"--uri", "--cluster"})  # an old name, and what no command can do yet


def command(app: typer.Typer, path: str, *, hidden: bool = False) -> Callable[[_F], _F]:
    """Register a function as a command. `path` is all that is typed before its arguments: `branch create`."""

    def register(function: _F) -> _F:
        name = path.rpartition(" ")[2]
        app.command(name, hidden=hidden)(_with_flags(function, path))
        return function

    return register


def group(help_: str) -> typer.Typer:
    """Make a family of commands; the common options may also stand before the name of one of them."""
    made = typer.Typer(help=help_, no_args_is_help=True)
    callback(made, frozenset())(lambda: None)
    return made


def callback(app: typer.Typer, shown: frozenset[str]) -> Callable[[_F], _F]:
    """Register what runs before the commands of a family: it remembers the common options that stand there."""

    def register(function: _F) -> _F:
        own = list(inspect.signature(function, eval_str=True).parameters.values())

        def run(context: typer.Context, **given: Any) -> None:
            _collect(context, given)
            function(**given)

        run.__doc__ = function.__doc__
        app.callback()(_signed(run, own, shown))
        return function

    return register


def _with_flags(function: Callable[..., None], path: str) -> Callable[..., None]:
    own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]

    def run(context: typer.Context, **given: Any) -> None:
        flags = _collect(context, given)
        refuse_foreign(path, flags)
        with ExitStack() as end:
            function(Scope(path, flags, end), **given)

    run.__doc__ = function.__doc__
    return _signed(run, own, rule_of(path).takes - NOT_SHOWN)


def _signed(function: Callable[..., None], own: list[inspect.Parameter], shown: frozenset[str]) -> Callable[..., None]:
    """Let typer see the parameters of a function and the common options; those not shown are understood as well."""
    context = inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
    parameters = [context, *own, *(_parameter(field.name, shown) for field in fields(Flags))]
    function.__annotations__ = {one.name: one.annotation for one in parameters}
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return function


def _parameter(name: str, shown: frozenset[str]) -> inspect.Parameter:
    metavar, help_ = _TEXTS[name]
    flag = spelled(name)
    hidden = flag not in shown
    option = typer.Option(flag, help=help_, metavar=metavar, hidden=hidden, rich_help_panel=_PANEL, show_default=False)
    kind: Any = bool if metavar is None else str | None
    return inspect.Parameter(
        f"{_PREFIX}{name}",
        inspect.Parameter.KEYWORD_ONLY,
        default=False if metavar is None else None,
        annotation=Annotated[kind, option],
    )


def _collect(context: typer.Context, given: dict[str, Any]) -> Flags:
    """Take the common options out of what was given; what stands nearer to the command counts."""
    names = [field.name for field in fields(Flags)]
    here = {name: value for name in names if (value := given.pop(f"{_PREFIX}{name}")) not in (None, False)}
    before: Flags = context.meta.get(_KEY, Flags())
    flags = replace(before, **here)
    context.meta[_KEY] = flags
    return flags
