"""The `omnigraph` command. Each command family is a file; none holds logic of its own."""

from __future__ import annotations

import io
import os
import sys
from typing import Annotated

import typer

from omnigraph.cli import (
    alias,
    blob,
    branch,
    changes,
    diff,
    embed,
    export,
    fmt,
    graph,
    lint,
    load,
    log,
    maintenance,
    mutate,
    output,
    queries,
    query,
    revert,
    schema,
    session,
    tag,
)
from omnigraph.cli.address import Scope
from omnigraph.cli.command import NOT_SHOWN, callback, command
from omnigraph.cli.flags import COMMON
from omnigraph.cli.root import LEGEND, Root
from omnigraph.errors import OmnigraphError
from omnigraph.version import INTERNAL_SCHEMA_VERSION, __version__

app = typer.Typer(
    name="omnigraph",
    cls=Root,
    help="A typed property graph on open columnar storage, versioned like git.",
    epilog=LEGEND,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
command(app, "init")(graph.init)
command(app, "snapshot")(graph.snapshot)
app.add_typer(graph.commit, name="commit")
command(graph.commit, "commit changes")(changes.commit_changes)
command(app, "diff")(diff.diff)
app.add_typer(changes.app, name="changes")
command(app, "log")(log.log)
command(app, "load")(load.load)
command(app, "ingest", hidden=True)(load.ingest)
command(app, "export")(export.export)
command(app, "mutate")(mutate.mutate)
command(app, "query")(query.query)
app.add_typer(blob.app, name="blob")
command(app, "embed")(embed.embed)
command(app, "optimize")(maintenance.optimize)
command(app, "cleanup")(maintenance.cleanup)
command(app, "repair")(maintenance.repair)
command(app, "doctor")(maintenance.doctor)
app.add_typer(branch.app, name="branch")
command(app, "revert")(revert.revert)
app.add_typer(tag.app, name="tag")
command(app, "lint")(lint.lint)
command(app, "fmt")(fmt.fmt)
app.add_typer(schema.app, name="schema")
app.add_typer(queries.app, name="queries")
command(app, "alias")(alias.alias)
app.add_typer(session.graphs, name="graphs")
app.add_typer(session.profile, name="profile")
command(app, "login")(session.login)
command(app, "logout")(session.logout)


def _print_version(wanted: bool) -> None:  # noqa: FBT001 - the shape typer wants of a callback
    if wanted:
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


@command(app, "version")
def version(_scope: Scope) -> None:
    """Print the version of omnigraph and of its storage format."""
    output.data(f"omnigraph {__version__}")
    output.data(f"internal-schema {INTERNAL_SCHEMA_VERSION}")


def main() -> None:
    """Run the command line: 0 on success, 1 on failure, 2 for wrong arguments."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8")
    try:
        try:
            app()
        finally:
            sys.stdout.flush()
    except OmnigraphError as error:
        output.error(error)
        raise SystemExit(1) from None
    except OSError as error:
        # The reader of our output is gone, or its disk is full; nothing may be written there any more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            sys.stderr.write(f"Error: cannot write the output: {error.strerror or error}\n")
        raise SystemExit(1) from None
