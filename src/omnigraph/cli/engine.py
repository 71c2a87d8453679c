"""The options that choose where the work of a command runs: in this process or on Spark."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from omnigraph.api.progress import SILENT, Progress
from omnigraph.cli.address import Scope
from omnigraph.cli.command import one_of

ENGINES = ("auto", "local", "spark")

Engine = Annotated[
    str, typer.Option(help="local, spark, or auto: small work local, large work on Spark.", metavar="ENGINE")
]
Master = Annotated[str | None, typer.Option(help="The Spark master. Default: local[*,4].", metavar="URL")]
Conf = Annotated[list[str] | None, typer.Option(help="A Spark setting; may be repeated.", metavar="KEY=VALUE")]


def engine_options(scope: Scope, engine: str, master: str | None, conf: Sequence[str] | None) -> dict[str, Any]:
    """Check the options of the engine, and return them as the methods of a graph take them."""
    return {
        "engine": one_of("--engine", engine, ENGINES),
        "master": master,
        "conf": dict(_setting(text) for text in conf or ()),
        "progress": progress(scope),
    }


def _setting(text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not key or not sign:
        raise typer.BadParameter(f"'{text}' is not KEY=VALUE", param_hint="--conf")
    return key, value


def progress(scope: Scope) -> Progress:
    """A progress bar on a terminal; nothing with `--quiet` or in a script."""
    if scope.flags.quiet or not sys.stderr.isatty():
        return SILENT
    from omnigraph.ingest.progress_bars import progress_on  # noqa: PLC0415 - loads rich

    return progress_on()
