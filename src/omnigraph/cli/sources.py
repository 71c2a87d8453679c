"""Which query a command runs, with which parameters: from files, from the command line, or by an alias."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from omnigraph.cli.address import Scope
from omnigraph.errors import AliasError, FileAccessError, ParameterError

Words = Annotated[
    list[str] | None,
    typer.Argument(help="Which query, if the source holds several; without a source a stored one.", metavar="[NAME]"),
]
File = Annotated[str | None, typer.Option(help="A .gq file.", metavar="FILE")]
Text = Annotated[str | None, typer.Option("--query-string", "-e", help="The query itself.", metavar="GQ")]
Params = Annotated[str | None, typer.Option(help="Its parameters, a JSON object.", metavar="JSON")]
ParamsFile = Annotated[str | None, typer.Option(help="A file that holds them.", metavar="FILE")]
Name = Annotated[
    str | None, typer.Option("--name", help="Which query; then the argument is the graph.", metavar="NAME")
]
AliasName = Annotated[
    str | None,
    typer.Option("--alias", help="An alias of omnigraph.yaml; the arguments are its own.", metavar="NAME"),
]


@dataclass(frozen=True, slots=True)
class Asked:
    """A query to run; one without a source is stored where the graph is served."""

    source: str | Path | None
    name: str | None
    params: dict[str, Any] | None
    uri: str | None = None
    graph: str | None = None
    branch: str | None = None
    format: str | None = None

    @property
    def stored_name(self) -> str:
        assert self.name is not None
        return self.name


@dataclass(frozen=True, slots=True)
class Given:
    """What the command line says about the query."""

    words: Sequence[str]
    file: str | None
    text: str | None
    params: str | None
    params_file: str | None
    name: str | None
    alias: str | None


def asked(scope: Scope, given: Given) -> Asked:
    """Find out which query is to be run."""
    if given.alias is not None:
        return _by_alias(scope, given, given.alias)
    source = _source(scope, given)
    values = parameters(given.params, given.params_file)
    first = _only_one(given.words)
    if given.name is not None:
        return Asked(source, given.name, values, uri=first)
    if source is None and first is None:
        message = "give a query with --query or --query-string, or the name of a stored one"
        raise typer.BadParameter(message, param_hint="--query")
    return Asked(source, first, values)


def _source(scope: Scope, given: Given) -> str | Path | None:
    if given.file is not None and given.text is not None:
        raise typer.BadParameter("give either --query or --query-string", param_hint="--query")
    if given.text is not None and not given.text.strip():
        raise typer.BadParameter("--query-string must not be empty", param_hint="--query-string")
    return given.text if given.file is None else scope.project.query_file(given.file)


def _only_one(words: Sequence[str]) -> str | None:
    if len(words) > 1:
        raise typer.BadParameter(f"one name is enough, so what is '{words[1]}'?", param_hint="NAME")
    return words[0] if words else None


def _by_alias(scope: Scope, given: Given, alias: str) -> Asked:
    if given.file is not None or given.text is not None or given.name is not None:
        raise typer.BadParameter("an alias says itself which query it runs", param_hint="--alias")
    found = scope.project.alias(alias)
    if found.command != scope.command:
        message = f"the alias '{alias}' is for `{found.command}`, not for `{scope.command}`"
        raise AliasError(message, alias=alias, hint=f"run `omnigraph {found.command} --alias {alias}`")
    values = {**by_position(alias, found.arguments, given.words), **(parameters(given.params, given.params_file) or {})}
    source = scope.project.query_file(found.query)
    return Asked(source, found.name, values, graph=found.graph, branch=found.branch, format=found.format)


def by_position(alias: str, names: Sequence[str], words: Sequence[str]) -> dict[str, Any]:
    """Give the arguments of an alias their names. What is JSON is taken as such, all else as a text."""
    if len(words) > len(names):
        takes = f"it takes {', '.join(names)}" if names else "it takes none"
        raise AliasError(f"{len(words)} arguments for the alias '{alias}'", alias=alias, hint=takes)
    return {name: _value(word) for name, word in zip(names, words, strict=False)}


def _value(word: str) -> Any:
    try:
        return json.loads(word)
    except (ValueError, RecursionError):
        return word


def parameters(text: str | None, file: str | None) -> dict[str, Any] | None:
    """Read the parameters. What is wrong with a single one is told by whoever knows its type."""
    if text is not None and file is not None:
        raise typer.BadParameter("give either --params or --params-file", param_hint="--params")
    if file is not None:
        text = _read(file)
    if text is None:
        return None
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ParameterError(f"the parameters are not JSON: {error}", parameter=None, hint="pass {...}") from None
    if not isinstance(values, dict):
        raise ParameterError("the parameters must be a JSON object", parameter=None, hint="pass {...}")
    return values


def _read(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise FileAccessError(f"cannot read {file}: {error}", path=file) from None
