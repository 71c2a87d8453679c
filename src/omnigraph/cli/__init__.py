"""The `omnigraph` command. Each command family is a file; none holds logic of its own."""

from __future__ import annotations

import io
import os
import sys
from typing import Annotated

import typer

from omnigraph.cli import (
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
    query,
    revert,
    schema,
    tag,
)
from omnigraph.errors import OmnigraphError
from omnigraph.version import INTERNAL_SCHEMA_VERSION, __version__

app = typer.Typer(
    name="omnigraph",
    help="A typed property graph on open columnar storage, versioned like git.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("init")(graph.init)
app.command("snapshot")(graph.snapshot)
app.add_typer(graph.commit, name="commit")
graph.commit.command("changes")(changes.commit_changes)
app.command("diff")(diff.diff)
app.add_typer(changes.app, name="changes")
app.command("log")(log.log)
app.command("load")(load.load)
app.command("export")(export.export)
app.command("mutate")(mutate.mutate)
app.command("query")(query.query)
app.command("embed")(embed.embed)
app.command("optimize")(maintenance.optimize)
app.command("cleanup")(maintenance.cleanup)
app.command("repair")(maintenance.repair)
app.command("doctor")(maintenance.doctor)
app.add_typer(branch.app, name="branch")
app.command("revert")(revert.revert)
app.add_typer(tag.app, name="tag")
app.command("lint")(lint.lint)
app.command("fmt")(fmt.fmt)
app.add_typer(schema.app, name="schema")


def _print_version(wanted: bool) -> None:  # noqa: FBT001 - the shape typer wants of a callback
    if wanted:
        output.data(f"omnigraph {__version__}")
        raise typer.Exit


@app.callback()
def omnigraph(
    *,
    _version: Annotated[
        bool,
        typer.Option("--version", "-v", help="Print the version and exit.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """A typed property graph on open columnar storage, versioned like git."""


@app.command()
def version() -> None:
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
