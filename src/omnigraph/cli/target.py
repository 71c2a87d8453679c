"""Which graph a command changes: told on stderr before it does, and asked about if others may share it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from omnigraph.cli import output

if TYPE_CHECKING:
    from omnigraph.graph import Graph

Uri = Annotated[str | None, typer.Argument(help="The graph, or give --store.", metavar="URI")]
Store = Annotated[str | None, typer.Option("--store", "--uri", help="The graph.", metavar="URI")]
Actor = Annotated[str | None, typer.Option("--as", help="Who does it.", metavar="ACTOR")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Do not say which graph is changed.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask before a graph that is not local is changed.")]


def is_local(address: str) -> bool:
    return "://" not in address or address.startswith("file://")


def opened(label: str, address: str, *, quiet: bool) -> Graph:
    """Open a graph to change it, and say which."""
    import omnigraph  # noqa: PLC0415 - loads the engine

    if not quiet:
        where = "local" if is_local(address) else "remote"
        output.note(f"omnigraph {label} → {address} (direct, {where})")
    return omnigraph.open(address)


def ask_before_removing(question: str, address: str, *, yes: bool, as_json: bool) -> None:
    """What is removed from a shared place is gone for others too: that needs a word more."""
    if yes or is_local(address):
        return
    import sys  # noqa: PLC0415 - `--help` must stay quick

    if as_json or not sys.stdin.isatty():
        output.note(f"Error: {address} is not local; give --yes to remove from it", style="bold red")
        raise typer.Exit(1)
    if not typer.confirm(question, err=True):
        raise typer.Exit(1)
