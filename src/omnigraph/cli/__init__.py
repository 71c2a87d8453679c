"""The `omnigraph` command. Each family of commands is a file; none of them holds logic of its own."""

from __future__ import annotations

import io
import sys
from importlib import import_module
from importlib.abc import MetaPathFinder
from typing import Annotated, Any, NamedTuple

import typer
from typer.main import get_group

from omnigraph.cli import output
from omnigraph.cli.address import Scope
from omnigraph.cli.command import NOT_SHOWN, Command, CommandGroup, callback, command
from omnigraph.cli.flags import COMMON
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


class _Entry(NamedTuple):
    """A command or a group of commands: the module of its family, and its line in the help of the program."""

    family: str
    summary: str
    hidden: bool = False


# The lines stand here, because the help of the program must not import the families: they load engine and parser.
COMMANDS = {
    "init": _Entry("data", "Create an empty graph."),
    "load": _Entry("data", "Load JSONL, CSV or Parquet, checked against the schema, in one commit."),
    "ingest": _Entry("data", "Load JSONL onto a branch, created if missing. An old name: use load.", hidden=True),
    "export": _Entry("data", "Write all entities, or those of some types, in a form that can be loaded again."),
    "embed": _Entry("embed", "Add the missing vectors to the records of a file or to the nodes of a graph."),
    "blob": _Entry("data", "Read the content of Blob properties."),
    "query": _Entry("queries", "Run a query and print its rows."),
    "mutate": _Entry("queries", "Insert, update or delete with a query, in one commit."),
    "alias": _Entry("queries", "Run the stored query that an alias names, and print its rows."),
    "queries": _Entry("stored", "List and validate the stored queries of an omnigraph.yaml."),
    "schema": _Entry("languages", "Show, plan and change the schema of a graph."),
    "lint": _Entry("languages", "Check every query of a file: syntax, types, and legal but suspicious code."),
    "fmt": _Entry("languages", "Format .pg and .gq files in place. Comments and meaning are kept."),
    "branch": _Entry("history", "Create, list, merge and delete branches."),
    "tag": _Entry("history", "Create, list and delete tags: immutable names for commits."),
    "commit": _Entry("history", "List and show commits."),
    "log": _Entry("history", "Show the history of branches, newest first."),
    "diff": _Entry("history", "Show the changes from A to B: inserted (+), updated (~) and deleted (-), by type."),
    "changes": _Entry("history", "Follow the changes of a graph."),
    "snapshot": _Entry("history", "Show the version of each table on a branch."),
    "revert": _Entry("history", "Undo one commit with a new commit, and keep later changes."),
    "optimize": _Entry("maintenance", "Compact small files, and extend the indices over all rows."),
    "cleanup": _Entry("maintenance", "Remove old versions, and files that failed writes left behind."),
    "repair": _Entry("maintenance", "Inspect tables that another program changed, and adopt its changes where safe."),
    "doctor": _Entry("maintenance", "Report the health of a graph, and the commands that improve it."),
    "graphs": _Entry("session", "List the graphs of a server."),
    "profile": _Entry("session", "Show the profiles of the operator configuration."),
    "login": _Entry("session", "Store the token of a server, readable only by you."),
    "logout": _Entry("session", "Remove the stored token of a server."),
}
_EPILOG = """COMMANDS BY CAPABILITY

any: query mutate load branch snapshot export commit changes diff log revert tag blob, schema show, schema apply. They \
work on storage and through a server.

served: alias, graphs list, query NAME and mutate NAME without a source. They need a server.

direct: init optimize cleanup repair doctor lint, schema plan. They need the storage itself.

control: queries. They read an omnigraph.yaml.

local: embed fmt login logout profile version. They need no graph."""


class Program(CommandGroup):
    """The program. It imports the family of a command when that command is run, and understands old spellings."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - the signature that click calls
        return [*COMMANDS, *self.commands]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a stand-in that has the name and the help of a command, which is all that help and typos need."""
        found = COMMANDS.get(cmd_name)
        if found is None:
            return super().get_command(ctx, cmd_name)
        return Command(cmd_name, help=found.summary, hidden=found.hidden)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        for typed, now in _OLD.items():
            if tuple(args[: len(typed)]) == typed:
                if not ctx.resilient_parsing:
                    output.deprecated(" ".join(typed), now)
                args = [now, *args[len(typed) :]]
                break
        if args[0] in _ABSENT:
            output.note(f"Error: `{args[0]}` is not supported by this version", style="bold red")
            raise typer.Exit(1)
        name, found, rest = super().resolve_command(ctx, args)
        return name, loaded(name) if name in COMMANDS else found, rest


def loaded(name: str) -> Any:
    """Import the family of a command and return the command."""
    family = import_module(f"omnigraph.cli.{COMMANDS[name].family}")
    return get_group(family.app).commands[name]


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


@command(app, "version", json=False)
def version(_scope: Scope) -> None:
    """Print the version of omnigraph and of its storage format."""
    output.data(f"omnigraph {__version__}")
    output.data(f"internal-schema {INTERNAL_SCHEMA_VERSION}")


class _WithoutPandas(MetaPathFinder):
    """Hide pandas from this process. pyarrow imports it for its first array, which doubles the time to start."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:  # noqa: ARG002
        if fullname == "pandas":
            raise ModuleNotFoundError(f"no command uses {fullname}", name=fullname)


def main() -> None:
    """Run the command line. Exits with 0 on success, 1 on failure and 2 for wrong arguments."""
    sys.meta_path.insert(0, _WithoutPandas())
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
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
