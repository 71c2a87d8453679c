"""Turn functions into commands: add the options that every command has, pass the graph, report errors.

A command is a function. Its first parameter is the `Scope`, or the `Target` if it works on one graph, which then is an
argument too. A parameter that is a dataclass stands for a group of options: one for each of its fields.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from importlib import import_module
from typing import Annotated, Any, TypeVar, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from omnigraph.api.progress import SILENT, Progress
from omnigraph.cli import output
from omnigraph.cli.address import Scope, Target
from omnigraph.cli.flags import COMMANDS, FLAGS, Flags, refuse_foreign, rule_of, spelled
from omnigraph.errors import FileAccessError, OmnigraphError

_F = TypeVar("_F", bound=Callable[..., None])
_KEY = "omnigraph.flags"
_PANEL = "Graph and actor"
_PREFIX = "common_"  # because a command may have an option with the name of a common one
NOT_SHOWN = frozenset({"--uri", "--cluster"})  # an old spelling, and an option that no command supports yet
_APPS: dict[str, typer.Typer] = {}  # what the imported families have registered, by the first word of a command

# Options -------------------------------------------------------------------------------------------


def option(help_: str, metavar: str, *names: str, **more: Any) -> Any:
    """Describe an option that has a value. Without `names` it is spelled as its parameter."""
    return typer.Option(*names, help=help_, metavar=metavar, **more)


def argument(help_: str, metavar: str) -> Any:
    return typer.Argument(help=help_, metavar=metavar)


def switch(help_: str, *names: str, **more: Any) -> Any:
    """Describe an option without a value. With names it has no `--no-` form."""
    return typer.Option(*names, help=help_, **more)


Uri = Annotated[str | None, argument("The storage of the graph.", "URI")]
Branch = Annotated[str | None, option("The branch. Default: main.", "NAME")]
Snapshot = Annotated[str | None, option("The state to read: a branch, tag, commit or REF~N.", "REF")]
Format = Annotated[str | None, option("jsonl, csv or parquet. Default: by file name.", "FORMAT", "--format")]
Engine = Annotated[str, option("local, spark, or auto: small work local, large work on Spark.", "ENGINE")]
Master = Annotated[str | None, option("The Spark master. Default: local[*,4].", "URL")]
CHECK = "A .gq file whose queries must find no rows; of a server also a stored query. May be repeated."
Message = Annotated[str | None, option("What the commit says about the change.", "TEXT", "--message", "-m")]
DryRun = Annotated[bool, switch("Show the result and change nothing.", "--dry-run")]
_Json = Annotated[bool, switch("Print one JSON document.", "--json")]


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Where the work of a command runs: in this process or on Spark."""

    engine: Engine = "auto"
    master: Master = None
    conf: Annotated[list[str] | None, option("A Spark setting; may be repeated.", "KEY=VALUE")] = None

    def checked(self, scope: Scope) -> dict[str, Any]:
        """Return the options as the methods of a graph take them."""
        return {
            "engine": engine_name(self.engine),
            "master": self.master,
            "conf": dict(_setting(text) for text in self.conf or ()),
            "progress": progress(scope),
        }


def engine_name(given: str) -> str:
    return one_of("--engine", given, ("auto", "local", "spark"))


def _setting(text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not key or not sign:
        raise typer.BadParameter(f"'{text}' is not KEY=VALUE", param_hint="--conf")
    return key, value


def progress(scope: Scope) -> Progress:
    """A progress bar on a terminal; nothing with `--quiet` or in a script."""
    # Before rich is imported: in a script the bars would cost more than they show.
    if scope.flags.quiet or not sys.stderr.isatty():
        return SILENT
    from omnigraph.ingest.progress_bars import progress_on  # noqa: PLC0415 - loads rich

    return progress_on()


def one_of(name: str, value: str, allowed: Sequence[str]) -> str:
    """Check an option that has a few values."""
    if value not in allowed:
        raise typer.BadParameter(f"'{value}' is not one of {', '.join(allowed)}", param_hint=name)
    return value


def refuse_both(branch: str | None, snapshot: str | None) -> None:
    """Refuse a branch together with a snapshot: each of them names the state to read."""
    if branch is not None and snapshot is not None:
        raise typer.BadParameter("give either --branch or --snapshot", param_hint="--snapshot")


@contextmanager
def readable(file: str) -> Iterator[None]:
    """Report a file that cannot be read, or that is not text."""
    try:
        yield
    except (OSError, UnicodeDecodeError) as error:
        raise FileAccessError(f"cannot read {file}: {error}", path=file) from None


@contextmanager
def writable(file: str) -> Iterator[None]:
    """Report a file that cannot be written."""
    try:
        yield
    except OSError as error:
        raise FileAccessError(f"cannot write {file}: {error}", path=file) from None


# Commands ------------------------------------------------------------------------------------------


class PlainHelp:
    """Show no type for flags in help: typer would print `<bool>` for each of them."""

    def get_params(self, ctx: Any) -> list[Any]:
        found: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for one in found:
            if getattr(one, "is_flag", False):
                one.metavar = ""
        return found

    def format_help(self, ctx: Any, formatter: Any) -> None:
        try:
            super().format_help(ctx, formatter)  # type: ignore[misc]
        except SystemExit:
            # rich prints the help, and ends the program with 1 if the reader is gone.
            raise SystemExit(output.CLOSED_PIPE) from None


class Command(PlainHelp, TyperCommand):
    """A command."""


class CommandGroup(PlainHelp, TyperGroup):
    """A command that has commands."""


def command(path: str, *, hidden: bool = False, json: bool = True) -> Callable[[_F], _F]:
    """Register a function as a command. `path` is all that is typed before its arguments: `branch create`.

    Unless `json` is false the command has `--json`, and errors are printed as a JSON document too.
    """
    parent, _, name = path.rpartition(" ")
    word = parent or name
    if word not in _APPS:
        # One app for each first word, so that a command is built without its siblings of the family.
        _APPS[word] = _group(COMMANDS[parent].summary) if parent else typer.Typer(add_completion=False)

    def register(function: _F) -> _F:
        _APPS[word].command(name, cls=Command, hidden=hidden)(_runnable(function, path, has_json=json))
        return function

    return register


def loaded_command(name: str) -> Any:
    """Import the family of a command and return the command."""
    if name not in _APPS:
        # The import registers the commands of the family, see `command`.
        import_module(f"omnigraph.cli.{COMMANDS[name].family}")
    return get_command(_APPS[name])


def _group(help_: str) -> typer.Typer:
    """Make a group of commands. The common options may also stand before the name of the command."""
    made = typer.Typer(help=help_, cls=CommandGroup, no_args_is_help=True, add_completion=False)
    # Without a callback typer would make a command of a group that has only one.
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


def _runnable(function: Callable[..., None], path: str, *, has_json: bool) -> Callable[..., None]:
    # Annotations are strings in modules with postponed evaluation, and typer needs the types.
    first, *declared = inspect.signature(function, eval_str=True).parameters.values()
    # A dataclass stands for a group of options that several commands share; typer knows single options only.
    groups: dict[str, Any] = {one.name: one.annotation for one in declared if is_dataclass(one.annotation)}
    own = [part for one in declared for part in _options(one)]
    if first.annotation is Target:
        own.append(_parameter("uri", Uri, None))
    if has_json:
        own.append(_parameter("as_json", _Json, default=False))

    def run(context: typer.Context, **given: Any) -> None:
        flags = _collect(context, given)
        for name, kind in groups.items():
            given[name] = kind(**{field.name: given.pop(field.name) for field in fields(kind)})
        with ExitStack() as end:
            scope = Scope(path, flags, end, as_json=given.pop("as_json", False))
            with _errors_as_json(scope), output.closed_pipe_ends_quietly():
                # Inside the guards, so that a refusal is printed as every other error.
                refuse_foreign(path, flags)
                function(scope.at(given.pop("uri")) if first.annotation is Target else scope, **given)

    run.__doc__ = function.__doc__
    return _signed(run, own, rule_of(path).takes - NOT_SHOWN)


def _options(declared: inspect.Parameter) -> list[inspect.Parameter]:
    """Return a parameter, or the ones of the fields that it stands for."""
    kind = declared.annotation
    if not is_dataclass(kind):
        return [declared.replace(kind=inspect.Parameter.KEYWORD_ONLY)]
    hints = get_type_hints(kind, include_extras=True)
    # For a field without a default dataclasses and inspect have different marks; typer knows that of inspect.
    empty = {MISSING: inspect.Parameter.empty}
    return [_parameter(one.name, hints[one.name], empty.get(one.default, one.default)) for one in fields(kind)]


@contextmanager
def _errors_as_json(scope: Scope) -> Iterator[None]:
    """With `--json`, print an error as a document on stdout, besides the text for people on stderr."""
    try:
        yield
    except OmnigraphError as error:
        if scope.as_json:
            output.error_document(error)
        raise


def _signed(function: Callable[..., None], own: list[inspect.Parameter], shown: frozenset[str]) -> Callable[..., None]:
    """Give a function the parameters that typer reads. Common options that are not shown are accepted as well."""
    context = inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
    parameters = [context, *own, *(_common(name, shown) for name in FLAGS)]
    # typer reads both: the annotations for types and the signature for defaults.
    function.__annotations__ = {one.name: one.annotation for one in parameters}
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return function


def _common(name: str, shown: frozenset[str]) -> inspect.Parameter:
    flag = spelled(name)
    metavar, help_, _ = FLAGS[name]
    described = typer.Option(
        flag, help=help_, metavar=metavar, hidden=flag not in shown, rich_help_panel=_PANEL, show_default=False
    )
    kind: Any = bool if metavar is None else str | None
    return _parameter(f"{_PREFIX}{name}", Annotated[kind, described], False if metavar is None else None)


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _collect(context: typer.Context, given: dict[str, Any]) -> Flags:
    """Take the common options out of `given`. An option nearer to the command overrides one before it."""
    # Only what was given: an option that is absent here must not reset one that stands before the command.
    here = {name: value for name in FLAGS if (value := given.pop(f"{_PREFIX}{name}")) not in (None, False)}
    # `meta` is shared with the contexts of the program and the group, which were parsed before.
    before: Flags = context.meta.get(_KEY, Flags())
    flags = replace(before, **here)
    context.meta[_KEY] = flags
    return flags
