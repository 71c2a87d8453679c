"""Commands that run queries: from files, from the command line, by an alias, or stored on a server."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from omnigraph.api.documents import read_head, read_output, to_document
from omnigraph.api.results import MutationResult
from omnigraph.api.rows import Result
from omnigraph.cli import output
from omnigraph.cli.address import Scope, Target, served
from omnigraph.cli.command import Message, Snapshot, argument, command, option, readable, refuse_both, switch
from omnigraph.cli.tables import FORMATS, LAYOUTS, WIDEST, Look, rows_text
from omnigraph.errors import AddressError, AliasError, ParameterError, PreconditionFailedError

_VERBS = {"read": "query", "query": "query", "change": "mutate", "mutate": "mutate"}
LOST_PRECONDITION = 4  # the exit code of `--if-commit` on a branch that has moved

Params = Annotated[str | None, option("The parameters, as a JSON object.", "JSON")]
ParamsFile = Annotated[str | None, option("A file that holds the parameters.", "FILE")]
RowFormat = Annotated[str | None, option(f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}.", "FORMAT", "--format")]


@dataclass(frozen=True, slots=True)
class QueryOptions:
    """What the command line says about the query."""

    words: Annotated[
        list[str] | None, argument("The query, if the source has several; without a source a stored query.", "NAME")
    ] = None
    file: Annotated[str | None, option("A .gq file.", "FILE", "--query")] = None
    text: Annotated[str | None, option("The query itself.", "GQ", "--query-string", "-e")] = None
    params: Params = None
    params_file: ParamsFile = None
    name: Annotated[
        str | None, option("The query, if the source has several; the argument is the graph.", "NAME", "--name")
    ] = None
    alias: Annotated[
        str | None, option("An alias of omnigraph.yaml; the arguments are its arguments.", "NAME", "--alias")
    ] = None


@command("query")
def query(
    scope: Scope,
    given: QueryOptions,
    *,
    branch: Annotated[str | None, option("The branch to read.", "NAME")] = None,
    snapshot: Snapshot = None,
    format_: RowFormat = None,
    timeout: Annotated[str | None, option("How long the query may take, such as 30s or 5m.", "TIME")] = None,
    explain: Annotated[bool, switch("Print how the query ran instead of its rows.", "--explain")] = False,
) -> None:
    """Run a query and print its rows."""
    refuse_both(branch, snapshot)
    chosen = _format_given(scope, format_)
    wanted = _wanted(scope, given)
    # Before the query runs: wrong settings must not cost its time.
    look = _look(scope, chosen or wanted.format)
    place: dict[str, Any] = {"branch": branch or wanted.branch or scope.branch(), "snapshot": snapshot}
    if timeout is not None:
        place["timeout"] = _seconds(timeout, wanted)
    target = _target(scope, wanted)
    if explain:
        if wanted.source is None:
            raise typer.BadParameter("a stored query cannot be explained", param_hint="--explain")
        found = target.read().explain(wanted.source, wanted.params, name=wanted.name, **place)
        if chosen == "json":
            output.document(found.to_dict())
        else:
            output.data(str(found))
    elif wanted.source is None:
        _print_rows(target.stored().invoke_query(wanted.stored_name, wanted.params, **place), look, snapshot)
    else:
        _print_rows(target.read().query(wanted.source, wanted.params, name=wanted.name, **place), look, snapshot)


def _seconds(timeout: str, wanted: Wanted) -> float:
    from omnigraph.settings import duration_of  # noqa: PLC0415 - loads pydantic

    found = duration_of(timeout)
    if not found:
        raise typer.BadParameter("give a time of more than 0, such as 30s or 5m", param_hint="--timeout")
    if wanted.source is None:
        raise typer.BadParameter("a stored query has the time limit of its server", param_hint="--timeout")
    return found.total_seconds()


def _print_rows(found: Result, look: Look, snapshot: str | None) -> None:
    """Print rows. The format of a document can also come from the settings, without `--json`."""
    if look.format == "json":
        output.document(read_output(found, snapshot))
    else:
        output.lines(rows_text(found, read_head(found, snapshot), look))


@command("mutate")
def mutate(
    scope: Scope,
    given: QueryOptions,
    *,
    branch: Annotated[str | None, option("The branch to change.", "NAME")] = None,
    if_commit: Annotated[str | None, option("Change it only if the branch is at this commit.", "COMMIT")] = None,
    message: Message = None,
) -> None:
    """Insert, update or delete with a query, in one commit."""
    wanted = _wanted(scope, given)
    place = {"branch": branch or wanted.branch or scope.branch(), "if_commit": if_commit, "message": message}
    try:
        done = _change(_target(scope, wanted), wanted, place)
    except PreconditionFailedError as error:
        # Not an ordinary failure: a script that lost the race reads the branch again and retries.
        if scope.as_json:
            output.error_document(error)
        else:
            output.error(error)
        raise typer.Exit(LOST_PRECONDITION) from None
    text = f"changed {done.branch} via {done.query_name}: {done.affected_nodes} nodes, {done.affected_edges} edges"
    scope.emit(to_document(done), [text, f"actor_id: {done.actor_id}"] if done.actor_id else text)


def _change(target: Target, wanted: Wanted, place: dict[str, Any]) -> MutationResult:
    # Also for a stored query: `--as` must be refused on a server, not ignored.
    actor = target.actor
    if wanted.source is None:
        return target.stored().invoke_mutation(wanted.stored_name, wanted.params, **place)
    return target.write().mutate(wanted.source, wanted.params, name=wanted.name, actor=actor, **place)


@command("alias")
def alias(
    scope: Scope,
    name: Annotated[str, argument("The alias, as the operator configuration names it.", "NAME")],
    words: Annotated[list[str] | None, argument("Its arguments.", "ARG")] = None,
    *,
    params: Params = None,
    params_file: ParamsFile = None,
    format_: RowFormat = None,
) -> None:
    """Run the stored query that an alias names, and print its rows."""
    found = scope.operator.alias(name)
    chosen = _format_given(scope, format_)
    given = _parameters(params, params_file) or {}
    # The later wins: the defaults of the alias, its arguments, then --params.
    values = {**found.params, **_by_position(name, found.args, words or ()), **given}
    target = Target(scope, served(scope, str(found.server), found.graph or scope.operator.defaults.default_graph))
    result = target.stored().invoke_query(str(found.query), values or None, branch="main", snapshot=None)
    _print_rows(result, _look(scope, chosen or found.format), None)


def _format_given(scope: Scope, format_: str | None) -> str | None:
    """The format that the command line asks for."""
    if format_ is not None and (scope.as_json or format_ not in FORMATS):
        raise typer.BadParameter(f"give one of {', '.join(FORMATS)}, or --json", param_hint="--format")
    return "json" if scope.as_json else format_


def _look(scope: Scope, format_: str | None) -> Look:
    """How to print rows: as asked, else as the project says, else as the operator configuration says."""
    ours, theirs = scope.project.cli, scope.operator.defaults
    return Look(
        format_ or ours.output_format or theirs.output or FORMATS[0],
        ours.table_max_column_width or theirs.table_max_column_width or WIDEST,
        ours.table_cell_layout or theirs.table_cell_layout or LAYOUTS[0],
    )


# Which query, with which parameters ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Wanted:
    """A query to run. A query without a source is stored on the server of the graph."""

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


def _wanted(scope: Scope, given: QueryOptions) -> Wanted:
    """Find out which query to run."""
    if given.alias is not None:
        return _by_alias(scope, given, given.alias)
    source = _source(scope, given)
    values = _parameters(given.params, given.params_file)
    words = given.words or []
    if len(words) > 1:
        raise typer.BadParameter(f"unexpected argument '{words[1]}': expected one query name", param_hint="NAME")
    first = words[0] if words else None
    if given.name is not None:
        return Wanted(source, given.name, values, uri=first)
    if source is None and first is None:
        message = "give a query with --query or --query-string, or the name of a stored query"
        raise typer.BadParameter(message, param_hint="--query")
    return Wanted(source, first, values)


def _target(scope: Scope, wanted: Wanted) -> Target:
    found = scope.find(wanted.uri, graph=wanted.graph)
    if found is None and wanted.source is not None and wanted.uri is None and wanted.name is not None:
        hint = f"'{wanted.name}' is read as the name of a query; give the graph with --store {wanted.name}"
        raise AddressError("no graph given", hint=hint)
    return found or scope.at(wanted.uri, graph=wanted.graph)


def _source(scope: Scope, given: QueryOptions) -> str | Path | None:
    if given.file is not None and given.text is not None:
        raise typer.BadParameter("give either --query or --query-string", param_hint="--query")
    if given.text is not None and not given.text.strip():
        raise typer.BadParameter("--query-string must not be empty", param_hint="--query-string")
    return given.text if given.file is None else scope.project.query_file(given.file)


def _by_alias(scope: Scope, given: QueryOptions, name: str) -> Wanted:
    if given.file is not None or given.text is not None or given.name is not None:
        message = "an alias has its own query; remove --query, --query-string and --name"
        raise typer.BadParameter(message, param_hint="--alias")
    found = scope.project.alias(name)
    verb = _VERBS[found.command]
    if verb != scope.command:
        message = f"the alias '{name}' is for `{verb}`, not for `{scope.command}`"
        raise AliasError(message, alias=name, hint=f"run `omnigraph {verb} --alias {name}`")
    named = _parameters(given.params, given.params_file) or {}
    values = {**_by_position(name, found.args, given.words or ()), **named}
    source = scope.project.query_file(str(found.query))
    return Wanted(source, found.name, values, graph=found.graph, branch=found.branch, format=found.format)


def _by_position(alias: str, names: Sequence[str], words: Sequence[str]) -> dict[str, Any]:
    """Name the arguments of an alias. A word that is JSON is parsed; every other word is a string."""
    # Fewer are fine: a parameter may be nullable or come from --params.
    if len(words) > len(names):
        takes = f"it takes {', '.join(names)}" if names else "it takes none"
        raise AliasError(f"{len(words)} arguments for the alias '{alias}'", alias=alias, hint=takes)
    return {name: _value(word) for name, word in zip(names, words, strict=False)}


def _value(word: str) -> Any:
    try:
        # A word that is JSON is a number, a flag or a list; every other one is a text, so that names need no quotes.
        return json.loads(word)
    except (ValueError, RecursionError):
        return word


def _parameters(text: str | None, file: str | None) -> dict[str, Any] | None:
    """Read the parameters. Their types are checked later, against the query."""
    if text is not None and file is not None:
        raise typer.BadParameter("give either --params or --params-file", param_hint="--params")
    if file is not None:
        with readable(file):
            text = Path(file).read_text(encoding="utf-8-sig")
    if text is None:
        return None
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ParameterError(f"the parameters are not JSON: {error}", parameter=None, hint="pass {...}") from None
    if not isinstance(values, dict):
        raise ParameterError("the parameters must be a JSON object", parameter=None, hint="pass {...}")
    return values
