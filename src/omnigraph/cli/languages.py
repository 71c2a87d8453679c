"""Commands for the two languages: show, plan and change a schema, check queries, format files."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from omnigraph.api.documents import schema_apply_output, schema_plan_output
from omnigraph.api.results import SchemaResult
from omnigraph.cli import output
from omnigraph.cli.address import Scope, Target
from omnigraph.cli.command import Uri, command, group
from omnigraph.cli.emit import Document, Lines, renders
from omnigraph.cli.output import Line
from omnigraph.errors import CompileError, FileAccessError, OmnigraphError
from omnigraph.lang import (
    Catalog,
    DropMode,
    LintReport,
    Source,
    compile_schema,
    format_queries,
    format_schema,
    lint_queries,
    plan_schema,
)
from omnigraph.lang.evolution import SchemaPlan
from omnigraph.lang.source import MAX_SOURCE_BYTES

app = typer.Typer()
schema_group = group("Show, plan and change the schema of a graph.")
app.add_typer(schema_group, name="schema")

SchemaFile = Annotated[str | None, typer.Option("--schema", help="The new schema.", metavar="FILE")]
DataLoss = Annotated[bool, typer.Option(help="Drop for good: dropped data is removed from older commits as well.")]


@command(schema_group, "schema plan")
def plan(
    scope: Scope,
    uri: Uri = None,
    *,
    schema: SchemaFile = None,
    accepted: Annotated[
        str | None, typer.Option("--from", help="A schema file to compare instead of a graph.", metavar="FILE")
    ] = None,
    desired: Annotated[str | None, typer.Option("--to", help="With --from: the new schema.", metavar="FILE")] = None,
    allow_data_loss: DataLoss = False,
) -> None:
    """Show the steps from one schema to another, and whether each is supported.

    Exits with 0 even if the plan is not supported: the answer is in the output.
    """
    if accepted is None and desired is None:
        target = scope.at(uri)
        scope.emit(_preview(target, _given(schema), allow_data_loss=allow_data_loss), uri=target.uri)
        return
    if accepted is None or desired is None or (uri, scope.flags.store, schema) != (None, None, None):
        message = "compare two files with --from and --to, without other options"
        raise typer.BadParameter(message, param_hint="--to")
    drops = DropMode.HARD if allow_data_loss else DropMode.SOFT
    found = plan_schema(compile_schema(Source.read(accepted)), compile_schema(Source.read(desired)), drops)
    scope.emit(found, accepted=accepted, desired=desired)


@command(schema_group, "schema apply")
def apply(
    scope: Scope,
    uri: Uri = None,
    *,
    schema: SchemaFile = None,
    allow_data_loss: DataLoss = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the result and change nothing.")] = False,
) -> None:
    """Change the schema of a graph in one commit. No data is rewritten. No branch but main may exist."""
    target, file = scope.at(uri), _given(schema)
    actor = target.actor
    if dry_run:
        done = _preview(target, file, allow_data_loss=allow_data_loss)
    else:
        if allow_data_loss:
            target.ask_before_removing(f"Drop for good from {target.uri}?")
        done = target.write_aloud().apply_schema(Path(file), allow_data_loss=allow_data_loss, actor=actor)
    scope.emit(done, uri=target.uri)
    if not done.plan.supported:
        raise typer.Exit(1)


@command(schema_group, "schema show")
@command(schema_group, "schema get", hidden=True)
def show(scope: Scope, uri: Uri = None) -> None:
    """Print the schema of a graph as it was written."""
    text = scope.at(uri).read().schema
    if scope.as_json:
        output.document({"schema_source": text})
    else:
        output.raw(text)


def _given(schema: str | None) -> str:
    if schema is None:
        raise typer.BadParameter("give the new schema", param_hint="--schema")
    return schema


def _preview(target: Target, file: str, *, allow_data_loss: bool) -> SchemaResult:
    return target.read().plan_schema(Path(file), allow_data_loss=allow_data_loss)


# lint ----------------------------------------------------------------------------------------------


@command(app, "lint")
def lint(
    scope: Scope,
    uri: Uri = None,
    *,
    query: Annotated[str, typer.Option(help="The .gq file to check.", metavar="FILE")],
    schema: Annotated[str | None, typer.Option(help="The .pg schema to check against.", metavar="FILE")] = None,
) -> None:
    """Check every query of a file: syntax, types, and legal but suspicious code.

    Exits with 1 if a query has an error; warnings do not count.
    """
    catalog, origin = _catalog(scope, uri, schema)
    report = lint_queries(Source.read(scope.project.query_file(query)), catalog, origin)
    scope.emit(report)
    if not report.ok:
        raise typer.Exit(1)


def _catalog(scope: Scope, uri: str | None, schema: str | None) -> tuple[Catalog, dict[str, str]]:
    """The catalog to check against, and its origin. A file wins over a graph."""
    if schema is not None:
        return compile_schema(Source.read(schema)), {"kind": "file", "path": schema}
    target = scope.find(uri)
    if target is None:
        hint = "pass --schema FILE, or the address of a graph"
        raise FileAccessError("no schema to check against", path="", hint=hint)
    graph = target.read()
    return graph.catalog, {"kind": "graph", "uri": graph.uri}


# fmt -----------------------------------------------------------------------------------------------


class Language(StrEnum):
    PG = "pg"
    GQ = "gq"


_FORMATTERS = {Language.PG: format_schema, Language.GQ: format_queries}


@dataclass(frozen=True, slots=True)
class FormattedFile:
    """The outcome for one file."""

    path: str
    changed: bool = False
    problem: OmnigraphError | None = None

    def to_dict(self) -> dict[str, Any]:
        document: dict[str, Any] = {"path": self.path, "changed": self.changed}
        if self.problem:
            document["error"] = {"code": self.problem.code, "message": self.problem.message, **self.problem.details()}
        return document


@command(app, "fmt")
def fmt(
    scope: Scope,
    paths: Annotated[list[str], typer.Argument(help="Files or directories; `-` reads stdin.", metavar="PATH")],
    *,
    check: Annotated[bool, typer.Option(help="Change nothing; exit with 1 if a file would change.")] = False,
    lang: Annotated[Language | None, typer.Option(help="The language of stdin or of files without a suffix.")] = None,
) -> None:
    """Format .pg and .gq files in place. Comments and meaning are kept.

    A file that does not parse is reported and left unchanged; the exit code is then 1.
    """
    if "-" in paths:
        if len(paths) > 1 or scope.as_json:
            raise typer.BadParameter("stdin is formatted alone, to stdout", param_hint="-")
        _format_stdin(lang, check=check)
        return
    results = [_format_file(path, lang, check=check) for path in _files(paths)]
    for result in results:
        if result.problem:
            output.error(result.problem)
    scope.emit(results, check=check)
    if any(result.problem or (check and result.changed) for result in results):
        raise typer.Exit(1)


def _format_stdin(lang: Language | None, *, check: bool) -> None:
    if lang is None:
        raise typer.BadParameter("stdin has no file name; give its language", param_hint="--lang")
    source = Source.decode(sys.stdin.buffer.read(MAX_SOURCE_BYTES + 1), "<stdin>")
    text = _FORMATTERS[lang](source)
    if not check:
        output.raw(text)
    elif text != source.text:
        output.data("would format <stdin>")
        raise typer.Exit(1)


def _files(paths: Iterable[str]) -> Iterator[str]:
    for path in paths:
        if Path(path).is_dir():
            found = (file for suffix in Language for file in Path(path).rglob(f"*.{suffix}") if file.is_file())
            yield from sorted(map(str, found))
        else:
            yield path


def _format_file(path: str, lang: Language | None, *, check: bool) -> FormattedFile:
    try:
        text = _FORMATTERS[_language(path, lang)](Source.read(path))
        changed = text.encode() != Path(path).read_bytes()
        if changed and not check:
            _replace(Path(path), text)
    except (CompileError, FileAccessError) as problem:
        return FormattedFile(path, problem=problem)
    return FormattedFile(path, changed)


def _language(path: str, lang: Language | None) -> Language:
    suffix = Path(path).suffix.removeprefix(".")
    if suffix in list(Language):
        return Language(suffix)
    if lang is None:
        hint = "name it *.pg or *.gq, or pass --lang"
        raise FileAccessError(f"cannot tell the language of {path}", path=path, hint=hint)
    return lang


def _replace(path: Path, text: str) -> None:
    """Replace the file whole or not at all, even if the process dies on the way."""
    target = path.resolve()
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        try:
            temporary.write_text(text, encoding="utf-8", newline="")
            temporary.chmod(target.stat().st_mode & 0o7777)
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        reason = error.strerror or str(error)
        raise FileAccessError(f"cannot write {path}: {reason}", path=str(path), hint="check its permissions") from error


# How results are printed ---------------------------------------------------------------------------


def _plan_document(found: Any, **place: str) -> Document:
    if "uri" in place:
        return schema_plan_output(place["uri"], found)
    return {"from": place["accepted"], "to": place["desired"], **found.to_dict()}


@renders("schema plan", document=_plan_document)
def _planned(found: Any, **place: str) -> Lines:
    if "uri" in place:
        yield from _steps(place["uri"], found.plan)
        yield from _touched_rows(found)
    else:
        yield from _steps(f"{place['accepted']} -> {place['desired']}", found)


@renders("schema apply", document=lambda done, *, uri: schema_apply_output(uri, done))
def _applied(done: SchemaResult, *, uri: str) -> Lines:
    yield from _steps(uri, done.plan)
    yield from _touched_rows(done)
    yield f"applied: {'yes' if done.applied else 'no'}"
    yield f"manifest_version: {done.manifest_version}"


def _steps(subject: str, found: SchemaPlan) -> Lines:
    yield f"schema plan for {subject}"
    yield Line(f"supported: {'yes' if found.supported else 'no'}", "green" if found.supported else "red")
    yield from (f"- {step}" for step in found.steps)
    if not found.steps:
        yield "no schema changes"


def _touched_rows(done: SchemaResult) -> Lines:
    """Show how many entities are touched, and until when dropped data stays readable."""
    for key, count in done.rows.items():
        yield f"touches {key}: {count} {'entity' if count == 1 else 'entities'}"
    modes = {step.get("mode") for step in done.plan.to_dict()["steps"]}
    if "soft" in modes:
        yield Line("dropped data stays readable at earlier commits until a cleanup removes them", is_note=True)
    if "hard" in modes:
        text = "dropped data cannot be read again, and neither can earlier commits of the types it belongs to"
        yield Line(text, is_note=True)


@renders("lint", document=lambda report: report.to_dict())
def _linted(report: LintReport) -> Lines:
    for result in report.results:
        if result.error:
            yield Line(f"ERROR query `{result.name}`: {result.error}", "red")
        else:
            yield Line(f"OK    query `{result.name}` ({result.kind})", "green")
        for warning in result.warnings:
            yield Line(f"WARN  query `{result.name}`: {warning}", "yellow")
    for finding in report.findings:
        label, style = {"error": ("ERROR", "red"), "warning": ("WARN ", "yellow")}[finding.severity]
        yield Line(f"{label} {finding.diagnostic or f'{finding.code}: {finding.message}'}", style)
    counts = f"{report.errors} error(s), {report.warnings} warning(s), {report.infos} info item(s)"
    yield f"INFO  Lint complete: {len(report.results)} queries processed ({counts})"


def _formatted_document(files: list[FormattedFile], *, check: bool) -> Document:
    changed = sum(one.changed for one in files)
    return {"check": check, "changed": changed, "files": [one.to_dict() for one in files]}


@renders("fmt", document=_formatted_document)
def _formatted(files: list[FormattedFile], *, check: bool) -> Lines:
    changed = [one.path for one in files if one.changed]
    yield from (f"{'would format' if check else 'formatted'} {path}" for path in changed)
    failed = sum(one.problem is not None for one in files)
    verb = "would change" if check else "changed"
    yield Line(f"{len(files)} file(s), {len(changed)} {verb}, {failed} failed", is_note=True)
