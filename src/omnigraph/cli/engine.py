"""Who does the work of a command: the options that say it, and reading them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from omnigraph.api.progress import Progress

ENGINES = ("auto", "local", "spark")

Engine = Annotated[str, typer.Option(help="local, spark, or auto: what is small local, what is large on Spark.")]
Master = Annotated[str | None, typer.Option(help="The Spark master; local[*,4] if none.", metavar="URL")]
Conf = Annotated[list[str] | None, typer.Option(help="A Spark setting; may be repeated.", metavar="KEY=VALUE")]


def one_of(name: str, value: str, allowed: Sequence[str]) -> str:
    """Read an option that has a few values."""
    if value not in allowed:
        raise typer.BadParameter(f"'{value}' is not one of {', '.join(allowed)}", param_hint=name)
    return value


def settings(conf: Sequence[str] | None) -> dict[str, str]:
    """Read the settings for Spark."""
    return dict(_setting(text) for text in conf or ())


def _setting(text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not key or not sign:
        raise typer.BadParameter(f"'{text}' is no KEY=VALUE", param_hint="--conf")
    return key, value


def progress(*, quiet: bool) -> Progress:
    """What a person is shown meanwhile."""
    from omnigraph.api.progress import SILENT  # noqa: PLC0415 - loads the engine
    from omnigraph.ingest.progress_bars import progress_on  # noqa: PLC0415 - loads the engine

    return SILENT if quiet else progress_on()
