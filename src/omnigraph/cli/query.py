"""`omnigraph query`: read a graph."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import typer

from omnigraph.cli import output
from omnigraph.cli.graph import Json
from omnigraph.cli.mutate import parameters, query_source

if TYPE_CHECKING:
    from omnigraph.query.explain import Explanation
    from omnigraph.query.result import Result


class _Target(TypedDict):
    """Which query to run, and on which state."""

    name: str | None
    branch: str
    snapshot: str | None


_FORMATS = ("table", "kv", "csv", "jsonl", "json")


def query(
    name: Annotated[str | None, typer.Argument(help="Which query, if the source holds several.")] = None,
    *,
    store: Annotated[str, typer.Option("--store", "--uri", help="The graph.", metavar="URI")],
    query: Annotated[str | None, typer.Option(help="A .gq file.", metavar="FILE")] = None,
    text: Annotated[str | None, typer.Option("--query-string", "-e", help="The query itself.", metavar="GQ")] = None,
    params: Annotated[str | None, typer.Option(help="Its parameters, a JSON object.", metavar="JSON")] = None,
    params_file: Annotated[str | None, typer.Option(help="A file that holds them.", metavar="FILE")] = None,
    branch: Annotated[str | None, typer.Option(help="The branch to read.", metavar="NAME")] = None,
    snapshot: Annotated[str | None, typer.Option(help="A commit: read the graph as it was.", metavar="COMMIT")] = None,
    format_: Annotated[str | None, typer.Option("--format", help="table, kv, csv, jsonl or json.")] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Print how it was done instead of its rows.")] = False,
    as_json: Json = False,
) -> None:
    """Run a query and print its rows."""
    import omnigraph  # noqa: PLC0415 - loads the engine

    if branch is not None and snapshot is not None:
        raise typer.BadParameter("give either --branch or --snapshot", param_hint="--snapshot")
    if format_ is not None and (as_json or format_ not in _FORMATS):
        raise typer.BadParameter(f"give one of {', '.join(_FORMATS)}, or --json", param_hint="--format")
    graph = omnigraph.open(store, read_only=True)
    target: _Target = {"name": name, "branch": branch or "main", "snapshot": snapshot}
    values = parameters(params, params_file)
    if explain:
        _explain(graph.explain(query_source(query, text), values, **target), as_json or format_ == "json")
        return
    found = graph.query(query_source(query, text), values, **target)
    _print(found, snapshot, "json" if as_json else format_ or "table")


def _explain(found: Explanation, as_json: bool) -> None:  # noqa: FBT001 - what the flag of the command says
    if as_json:
        output.document(found.to_dict())
        return
    for line in str(found).splitlines():
        output.data(line)


def _print(found: Result, snapshot: str | None, shape: str) -> None:
    target = {"branch": found.branch, "snapshot": snapshot}
    head = {"query_name": found.query_name, "target": target, "row_count": len(found)}
    match shape:
        case "json":
            commit = {"graph_commit_id": found.commit.commit_id} if found.commit else {}
            columns = {"columns": found.columns} if found.columns else {}
            output.document({**head, **columns, "rows": found.rows, **commit})
        case "jsonl":
            lines = [{"kind": "metadata", **head}, *found.rows]
            output.raw("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
        case "csv":
            _print_csv(found)
        case "kv":
            for number, row in enumerate(found.rows, 1):
                output.data(f"row {number}")
                for key, value in row.items():
                    output.data(f"  {key}: {_text(value)}")
        case _:
            _print_table(found)


def _print_csv(found: Result) -> None:
    import csv  # noqa: PLC0415 - `--help` must stay quick
    import io  # noqa: PLC0415

    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(found.columns)
    writer.writerows([["" if value is None else _text(value) for value in row] for row in found.cells()])
    output.raw(buffer.getvalue())


def _print_table(found: Result) -> None:
    output.table(found.columns, [[_text(value) for value in row] for row in found.cells()])


def _text(value: Any) -> str:
    if value is None:
        return "null"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
