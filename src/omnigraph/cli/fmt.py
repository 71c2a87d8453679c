"""`omnigraph fmt`: put schema and query files into their canonical layout."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from omnigraph.cli import output
from omnigraph.cli.address import Scope
from omnigraph.cli.arguments import Json
from omnigraph.errors import CompileError, FileAccessError, OmnigraphError

if TYPE_CHECKING:
    from omnigraph.lang import Source


class Language(StrEnum):
    PG = "pg"
    GQ = "gq"


@dataclass(frozen=True, slots=True)
class Formatted:
    """What happened to one file."""

    path: str
    changed: bool = False
    problem: OmnigraphError | None = None

    def to_dict(self) -> dict[str, Any]:
        document: dict[str, Any] = {"path": self.path, "changed": self.changed}
        if self.problem:
            document["error"] = {"code": self.problem.code, "message": self.problem.message, **self.problem.details()}
        return document


def fmt(
    scope: Scope,  # noqa: ARG001 - it is about files alone
    paths: Annotated[list[str], typer.Argument(help="Files or directories; `-` reads stdin.", metavar="PATH...")],
    *,
    check: Annotated[bool, typer.Option(help="Change nothing; exit with 1 if a file would change.")] = False,
    lang: Annotated[Language | None, typer.Option(help="The language of stdin or of files without a suffix.")] = None,
    as_json: Json = False,
) -> None:
    """Format .pg and .gq files in place. Comments stay, and the meaning never changes.

    A file that does not parse is reported and left as it is; the exit code is then 1.
    """
    if "-" in paths:
        if len(paths) > 1 or as_json:
            raise typer.BadParameter("stdin is formatted alone, to stdout", param_hint="-")
        _format_stdin(lang, check=check)
        return
    results = [_format_file(path, lang, check=check) for path in _files(paths)]
    changed = [result.path for result in results if result.changed]
    failed = [result for result in results if result.problem]
    for result in failed:
        assert result.problem
        output.error(result.problem)
    if as_json:
        output.document({"check": check, "changed": len(changed), "files": [result.to_dict() for result in results]})
    else:
        for path in changed:
            output.data(f"{'would format' if check else 'formatted'} {path}")
        output.note(
            f"{len(results)} file(s), {len(changed)} {'would change' if check else 'changed'}, {len(failed)} failed"
        )
    if failed or (check and changed):
        raise typer.Exit(1)


def _format_stdin(lang: Language | None, *, check: bool) -> None:
    from omnigraph.lang.source import MAX_SOURCE_BYTES, Source  # noqa: PLC0415 - `--help` must stay quick

    if lang is None:
        raise typer.BadParameter("stdin has no file name; say which language it is", param_hint="--lang")
    source = Source.decode(sys.stdin.buffer.read(MAX_SOURCE_BYTES + 1), "<stdin>")
    text = _formatter(lang)(source)
    if not check:
        output.raw(text)
    elif text != source.text:
        output.data("would format <stdin>")
        raise typer.Exit(1)


def _formatter(lang: Language) -> Callable[[Source], str]:
    from omnigraph.lang import format_queries, format_schema  # noqa: PLC0415 - `--help` must stay quick

    return format_schema if lang is Language.PG else format_queries


def _files(paths: Iterable[str]) -> Iterator[str]:
    for path in paths:
        if Path(path).is_dir():
            found = (file for suffix in Language for file in Path(path).rglob(f"*.{suffix}") if file.is_file())
            yield from sorted(map(str, found))
        else:
            yield path


def _format_file(path: str, lang: Language | None, *, check: bool) -> Formatted:
    from omnigraph.lang import Source  # noqa: PLC0415 - `--help` must stay quick

    try:
        language = _language(path, lang)
        source = Source.read(path)
        text = _formatter(language)(source)
        changed = text.encode() != Path(path).read_bytes()
        if changed and not check:
            _replace(Path(path), text)
    except (CompileError, FileAccessError) as problem:
        return Formatted(path, problem=problem)
    return Formatted(path, changed)


def _language(path: str, lang: Language | None) -> Language:
    suffix = Path(path).suffix.removeprefix(".")
    if suffix in list(Language):
        return Language(suffix)
    if lang is None:
        hint = "name it *.pg or *.gq, or pass --lang"
        raise FileAccessError(f"cannot tell the language of {path}", path=path, hint=hint)
    return lang


def _replace(path: Path, text: str) -> None:
    """Replace the file whole or not at all, whatever happens on the way."""
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
