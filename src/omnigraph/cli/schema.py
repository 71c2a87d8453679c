"""`omnigraph schema`: show the schema of a graph, plan a change of it, and make it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from omnigraph.cli import output
from omnigraph.cli.address import Scope, Target
from omnigraph.cli.arguments import Json, Uri
from omnigraph.cli.command import command, group

if TYPE_CHECKING:
    from omnigraph.api.results import SchemaResult
    from omnigraph.lang.evolution import SchemaPlan

app = group("Show, plan and change the schema of a graph.")

Schema = Annotated[str | None, typer.Option(help="The schema as it should be.", metavar="FILE")]
DataLoss = Annotated[bool, typer.Option(help="Drop for good: what is dropped is removed from the past as well.")]


@command(app, "schema plan")
def plan(
    scope: Scope,
    uri: Uri = None,
    *,
    schema: Schema = None,
    accepted: Annotated[
        str | None, typer.Option("--from", help="Instead of a graph: a schema file.", metavar="FILE")
    ] = None,
    desired: Annotated[str | None, typer.Option("--to", help="With --from: another one.", metavar="FILE")] = None,
    allow_data_loss: DataLoss = False,
    as_json: Json = False,
) -> None:
    """Show the steps from the schema of a graph, or from a file, to another, and whether each is supported.

    Exits with 0 also when the plan is not supported: the answer is in the output.
    """
    if accepted is not None or desired is not None:
        if accepted is None or desired is None or (uri, scope.flags.store, schema) != (None, None, None):
            raise typer.BadParameter("two files are compared with --from and --to, and nothing else", param_hint="--to")
        _show_plan(*_between_files(accepted, desired, allow_data_loss=allow_data_loss), as_json=as_json)
        return
    target = scope.at(uri)
    done = _preview(target, _given(schema), allow_data_loss=allow_data_loss)
    if as_json:
        from omnigraph.api.documents import schema_plan_output  # noqa: PLC0415 - loads the engine

        output.document(schema_plan_output(target.uri, done))
        return
    _show_steps(target.uri, done.plan)
    _show_rows(done)


@command(app, "schema apply")
def apply(
    scope: Scope,
    uri: Uri = None,
    *,
    schema: Schema = None,
    allow_data_loss: DataLoss = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what would be done.")] = False,
    as_json: Json = False,
) -> None:
    """Change the schema of a graph in one commit. No data is rewritten, and no branch but main may be there."""
    from pathlib import Path  # noqa: PLC0415 - `--help` must stay quick

    target, file = scope.at(uri), _given(schema)
    actor = target.actor
    if dry_run:
        done = _preview(target, file, allow_data_loss=allow_data_loss)
    else:
        if allow_data_loss:
            target.ask_before_removing(f"Drop for good from {target.uri}?", as_json=as_json)
        done = target.write_aloud().apply_schema(Path(file), allow_data_loss=allow_data_loss, actor=actor)
    if as_json:
        from omnigraph.api.documents import schema_apply_output  # noqa: PLC0415 - loads the engine

        output.document(schema_apply_output(target.uri, done))
    else:
        _show_result(target.uri, done)
    if not done.plan.supported:
        raise typer.Exit(1)


@command(app, "schema show")
@command(app, "schema get", hidden=True)
def show(scope: Scope, uri: Uri = None, *, as_json: Json = False) -> None:
    """Print the schema of a graph as it was written."""
    text = scope.at(uri).read().schema
    if as_json:
        output.document({"schema_source": text})
    else:
        output.raw(text)


def _given(schema: str | None) -> str:
    if schema is None:
        raise typer.BadParameter("say which schema the graph should have", param_hint="--schema")
    return schema


def _preview(target: Target, file: str, *, allow_data_loss: bool) -> SchemaResult:
    from pathlib import Path  # noqa: PLC0415 - `--help` must stay quick

    return target.read().plan_schema(Path(file), allow_data_loss=allow_data_loss)


def _between_files(accepted: str, desired: str, *, allow_data_loss: bool) -> tuple[str, str, SchemaPlan]:
    from omnigraph.lang import DropMode, Source, compile_schema, plan_schema  # noqa: PLC0415 - `--help` must stay quick

    drops = DropMode.HARD if allow_data_loss else DropMode.SOFT
    found = plan_schema(compile_schema(Source.read(accepted)), compile_schema(Source.read(desired)), drops)
    return accepted, desired, found


def _show_plan(accepted: str, desired: str, found: SchemaPlan, *, as_json: bool) -> None:
    if as_json:
        output.document({"from": accepted, "to": desired, **found.to_dict()})
    else:
        _show_steps(f"{accepted} -> {desired}", found)


def _show_steps(subject: str, found: SchemaPlan) -> None:
    output.data(f"schema plan for {subject}")
    output.data(f"supported: {'yes' if found.supported else 'no'}", "green" if found.supported else "red")
    for step in found.steps:
        output.data(f"- {step}")
    if not found.steps:
        output.data("no schema changes")


def _show_rows(done: SchemaResult) -> None:
    """Say how much is touched, and from when on what is dropped cannot be read any more."""
    for key, count in done.rows.items():
        output.data(f"touches {key}: {count} {'entity' if count == 1 else 'entities'}")
    modes = {step.get("mode") for step in done.plan.to_dict()["steps"]}
    if "soft" in modes:
        output.note("what is dropped stays readable at earlier commits until a cleanup removes them")
    if "hard" in modes:
        output.note(
            "what is dropped cannot be read again, and neither can earlier commits of the types it is dropped from"
        )


def _show_result(address: str, done: SchemaResult) -> None:
    _show_steps(address, done.plan)
    _show_rows(done)
    output.data(f"applied: {'yes' if done.applied else 'no'}")
    output.data(f"manifest_version: {done.manifest_version}")
