"""`omnigraph schema`: plan schema changes."""

from __future__ import annotations

from typing import Annotated

import typer

from omnigraph.cli import output

app = typer.Typer(help="Plan schema changes.", no_args_is_help=True)


@app.callback()
def schema() -> None:
    """Plan schema changes."""


@app.command()
def plan(
    *,
    accepted: Annotated[str, typer.Option("--from", help="The schema as it is.", metavar="FILE")],
    desired: Annotated[str, typer.Option("--to", help="The schema as it should be.", metavar="FILE")],
    allow_data_loss: Annotated[bool, typer.Option(help="Plan hard drops, which cannot be undone.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Show the steps from one schema to another, and whether each is supported.

    Exits with 0 also when the plan is not supported: the answer is in the output.
    """
    from omnigraph.lang import DropMode, Source, compile_schema, plan_schema  # noqa: PLC0415 - `--help` must stay quick

    drops = DropMode.HARD if allow_data_loss else DropMode.SOFT
    result = plan_schema(compile_schema(Source.read(accepted)), compile_schema(Source.read(desired)), drops)
    if as_json:
        output.document({"from": accepted, "to": desired, **result.to_dict()})
        return
    output.data(f"schema plan for {accepted} -> {desired}")
    output.data(f"supported: {'yes' if result.supported else 'no'}", "green" if result.supported else "red")
    for step in result.steps:
        output.data(f"- {step}")
    if not result.steps:
        output.data("no schema changes")
