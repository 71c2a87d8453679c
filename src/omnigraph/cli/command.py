"""Turn functions into commands: add the options that every command has, pass the scope, report errors."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import fields, replace
from typing import Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from omnigraph.cli import output
from omnigraph.cli.address import Scope
from omnigraph.cli.flags import Flags, refuse_foreign, rule_of, spelled
from omnigraph.errors import OmnigraphError

_F = TypeVar("_F", bound=Callable[..., None])
_KEY = "omnigraph.flags"
_PANEL = "Graph and actor"
_PREFIX = "common_"
_TEXTS = {
    "uri": ("URI", "The storage of the graph; the same as --store."),
    "store": ("URI", "The storage of the graph: a directory, file:// or s3:// address."),
    "server": ("NAME|URL", "A server: its URL, or its name in the operator configuration."),
    "graph": ("ID", "The graph of the server."),
    "profile": ("NAME", "A profile of the operator configuration. Default: $OMNIGRAPH_PROFILE."),
    "target": ("NAME", "A graph of omnigraph.yaml."),
    "config": ("FILE", "The omnigraph.yaml to read. Default: the one in this directory."),
    "cluster": ("DIR", "Not supported by this version."),
    "actor": ("ACTOR", "The actor that the commit records."),
    "yes": (None, "Do not ask before removing data from a graph that is not local."),
    "quiet": (None, "Show no progress, and do not print which graph is changed."),
}
_JSON = typer.Option("--json", help="Print one JSON document.")
NOT_SHOWN = frozenset({"--uri", "--cluster"})  # an old spelling, and an option that no command supports yet

# Arguments and options that several commands share.
Uri = Annotated[str | None, typer.Argument(help="The storage of the graph.", metavar="URI")]
Branch = Annotated[str | None, typer.Option(help="The branch to read. Default: main.", metavar="NAME")]
Snapshot = Annotated[str | None, typer.Option(help="The state to read: a branch, tag, commit or REF~N.", metavar="REF")]
CommitId = Annotated[str, typer.Argument(help="The commit: its id, a branch, a tag or REF~N.", metavar="COMMIT")]


class FlagHelp:
    """Show no type for flags in help: typer would print `<bool>` for each of them."""

    def get_params(self, ctx: Any) -> list[Any]:
        found: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for one in found:
            if getattr(one, "is_flag", False):
                one.metavar = ""
        return found


class Command(FlagHelp, TyperCommand):
    """A command."""


class CommandGroup(FlagHelp, TyperGroup):
    """A command that has commands."""


def command(app: typer.Typer, path: str, *, hidden: bool = False, json: bool = True) -> Callable[[_F], _F]:
    """Register a function as a command. `path` is all that is typed before its arguments: `branch create`.

    Unless `json` is false the command has `--json`, and errors are printed as a JSON document too.
    """

    def register(function: _F) -> _F:
        name = path.rpartition(" ")[2]
        app.command(name, cls=Command, hidden=hidden)(_with_flags(function, path, has_json=json))
        return function

    return register


def group(help_: str) -> typer.Typer:
    """Make a group of commands. The common options may also stand before the name of the command."""
    made = typer.Typer(help=help_, cls=CommandGroup, no_args_is_help=True)
    callback(made, frozenset())(lambda: None)
    return made


def callback(app: typer.Typer, shown: frozenset[str]) -> Callable[[_F], _F]:
    """Register what runs before the commands of a group. It collects the common options that stand there."""

    def register(function: _F) -> _F:
        own = list(inspect.signature(function, eval_str=True).parameters.values())

        def run(context: typer.Context, **given: Any) -> None:
            _collect(context, given)
            function(**given)

        run.__doc__ = function.__doc__
        app.callback()(_signed(run, own, shown))
        return function

    return register


def _with_flags(function: Callable[..., None], path: str, *, has_json: bool) -> Callable[..., None]:
    own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
    if has_json:
        kind = inspect.Parameter.KEYWORD_ONLY
        own.append(inspect.Parameter("as_json", kind, default=False, annotation=Annotated[bool, _JSON]))

    def run(context: typer.Context, **given: Any) -> None:
        flags = _collect(context, given)
        with ExitStack() as end:
            scope = Scope(path, flags, end, as_json=given.pop("as_json", False))
            with _errors_as_json(scope), output.closed_pipe_ends_quietly():
                refuse_foreign(path, flags)
                function(scope, **given)

    run.__doc__ = function.__doc__
    return _signed(run, own, rule_of(path).takes - NOT_SHOWN)


@contextmanager
def _errors_as_json(scope: Scope) -> Iterator[None]:
    """With `--json`, print an error as a document on stdout, besides the text for people on stderr."""
    try:
        yield
    except OmnigraphError as error:
        if scope.as_json:
            scope.emit_error(error)
        raise


def _signed(function: Callable[..., None], own: list[inspect.Parameter], shown: frozenset[str]) -> Callable[..., None]:
    """Give a function the parameters that typer reads. Common options that are not shown are accepted as well."""
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
    """Take the common options out of `given`. An option nearer to the command overrides one before it."""
    names = [field.name for field in fields(Flags)]
    here = {name: value for name in names if (value := given.pop(f"{_PREFIX}{name}")) not in (None, False)}
    before: Flags = context.meta.get(_KEY, Flags())
    flags = replace(before, **here)
    context.meta[_KEY] = flags
    return flags


def one_of(name: str, value: str, allowed: Sequence[str]) -> str:
    """Check an option that has a few values."""
    if value not in allowed:
        raise typer.BadParameter(f"'{value}' is not one of {', '.join(allowed)}", param_hint=name)
    return value


def refuse_both(branch: str | None, snapshot: str | None) -> None:
    """Refuse a branch together with a snapshot: each of them names the state to read."""
    if branch is not None and snapshot is not None:
        raise typer.BadParameter("give either --branch or --snapshot", param_hint="--snapshot")
