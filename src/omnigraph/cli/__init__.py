"""The `omnigraph` command. Each family of commands is a file; none of them holds logic of its own."""

from __future__ import annotations

import io
import sys
from importlib.abc import MetaPathFinder
from typing import Annotated, Any

import typer

from omnigraph.cli import output
from omnigraph.cli.address import Scope
from omnigraph.cli.command import NOT_SHOWN, Command, CommandGroup, callback, command, loaded_command
from omnigraph.cli.flags import COMMANDS, COMMON
from omnigraph.errors import OmnigraphError
from omnigraph.version import INTERNAL_SCHEMA_VERSION, __version__

_ABSENT = ("cluster", "policy")
_OLD: dict[tuple[str, ...], str] = {
    ("read",): "query",
    ("change",): "mutate",
    ("check",): "lint",
    ("query", "lint"): "lint",
    ("query", "check"): "lint",
}


_EPILOG = """COMMANDS BY CAPABILITY

any: query mutate load branch snapshot export commit changes diff log revert resolve tag blob mcp, schema show, schema \
apply. They work on storage and through a server.

served: alias, graphs list, query NAME and mutate NAME without a source. They need a server.

direct: init pipeline optimize cleanup upkeep repair relocate backup restore verify doctor lint, schema plan. They \
need the storage itself.

control: queries. They read an omnigraph.yaml.

local: embed fmt login logout profile version, schema infer, pipeline schema. They need no graph."""


class Program(CommandGroup):
    """The program. It imports the family of a command when that command is run, and understands old spellings."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        # Stand-ins with the name and the line of a command, which is all that help and suggestions for a typo need.
        self.commands = {name: Command(name, help=one.summary, hidden=one.hidden) for name, one in COMMANDS.items()}

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        for typed, now in _OLD.items():
            if tuple(args[: len(typed)]) == typed:
                # Completion resolves commands too, and must not print anything.
                if not ctx.resilient_parsing:
                    output.deprecated(" ".join(typed), now)
                # Replaced and not aliased: help, completion and errors then name the present spelling.
                args = [now, *args[len(typed) :]]
                break
        # Commands of the specification that this version does not have: a typo suggestion would be misleading.
        if args[0] in _ABSENT:
            output.note(f"Error: `{args[0]}` is not supported by this version", style="bold red")
            raise typer.Exit(1)
        name, _, rest = super().resolve_command(ctx, args)  # refuses a name that is unknown
        return name, loaded_command(str(name)), rest


app = typer.Typer(
    name="omnigraph",
    cls=Program,
    help="A typed property graph on open columnar storage, versioned like git.",
    epilog=_EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:  # noqa: FBT001 - the shape typer wants of a callback
    if wanted:
        with output.closed_pipe_ends_quietly():
            output.data(f"omnigraph {__version__}")
        raise typer.Exit


@callback(app, COMMON - NOT_SHOWN)
def omnigraph(
    *,
    _version: Annotated[
        bool,
        typer.Option("--version", "-v", help="Print the version and exit.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """A typed property graph on open columnar storage, versioned like git."""


@command("version", json=False)
def version(_scope: Scope) -> None:
    """Print the version of omnigraph and of its storage format."""
    output.data(f"omnigraph {__version__}")
    output.data(f"internal-schema {INTERNAL_SCHEMA_VERSION}")


class _WithoutPandas(MetaPathFinder):
    """Hide pandas from pyarrow, which imports it for its first array: that doubles the time to start."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:  # noqa: ARG002
        if fullname == "pandas" and "pyspark" not in sys.modules:  # DataFrames of Spark need it
            raise ModuleNotFoundError(f"no command uses {fullname}", name=fullname)


def main() -> None:
    """Run the command line. Exits with 0 on success, 1 on failure and 2 for wrong arguments."""
    # First of all: the finder only works for what is not imported yet.
    sys.meta_path.insert(0, _WithoutPandas())
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Data may have letters that the encoding of the terminal has not; output is UTF-8 everywhere.
            stream.reconfigure(encoding="utf-8")
    try:
        try:
            app()
        finally:
            with output.closed_pipe_ends_quietly():
                sys.stdout.flush()
    except OmnigraphError as error:
        output.error(error)
        raise SystemExit(1) from None
    except OSError as error:
        # The disk below stdout is full.
        output.discard_stdout()
        sys.stderr.write(f"Error: cannot write the output: {error.strerror or error}\n")
        raise SystemExit(1) from None
