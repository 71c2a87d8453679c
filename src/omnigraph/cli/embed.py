"""`omnigraph embed`: compute vectors from texts, in a file of records or in a graph."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from omnigraph.api.options import EmbedMode
from omnigraph.cli.address import Scope
from omnigraph.cli.command import command
from omnigraph.cli.emit import Document, Lines, renders
from omnigraph.cli.engine import progress
from omnigraph.embed.files import (
    FilePlan,
    Selection,
    Selector,
    embed_file,
    plan_from_manifest,
    plan_from_text,
)

app = typer.Typer()


@command(app, "embed")
def embed(
    scope: Scope,
    *,
    seed: Annotated[str | None, typer.Option(help="A manifest that names the files.", metavar="FILE")] = None,
    input_: Annotated[str | None, typer.Option("--input", help="The records, as JSONL.", metavar="FILE")] = None,
    output_: Annotated[str | None, typer.Option("--output", help="The file to write them to.", metavar="FILE")] = None,
    spec: Annotated[str | None, typer.Option(help="The texts to embed: JSON, or a file of it.", metavar="JSON")] = None,
    branch: Annotated[str | None, typer.Option(help="The branch of the graph.", metavar="NAME")] = None,
    again: Annotated[bool, typer.Option("--reembed-all", help="Replace vectors that exist.")] = False,
    clean: Annotated[bool, typer.Option("--clean", help="Remove the vectors instead.")] = False,
    types: Annotated[list[str] | None, typer.Option("--type", help="Only this type.", metavar="TYPE")] = None,
    select: Annotated[
        list[str] | None, typer.Option(help="Only records with this value, again.", metavar="[TYPE:]FIELD=VALUE")
    ] = None,
) -> None:
    """Add the missing vectors to the records of a file or to the nodes of a graph."""
    if again and clean:
        raise typer.BadParameter("give either --clean or --reembed-all", param_hint="--clean")
    if scope.flags.store is None:
        if branch is not None or scope.flags.actor is not None:
            raise typer.BadParameter("a file has no branches and no actors; name a graph", param_hint="--store")
        mode = "clean" if clean else "reembed_all" if again else "reembed_selected" if select else "fill_missing"
        # Before any file is read, so that a wrong command line ends with 2.
        selection = _selection(mode, types, select)
        scope.emit(embed_file(_files(seed, input_, output_, spec), selection))
        return
    if any((seed, input_, output_, spec, clean, select)):
        message = "use it with --branch, --as, --type and --reembed-all; the other options are for files"
        raise typer.BadParameter(message, param_hint="--store")
    _embed_graph(scope, "reembed_all" if again else "fill_missing", branch or "main", types)


def _embed_graph(scope: Scope, mode: str, branch: str, types: list[str] | None) -> None:
    target = scope.at()
    done = target.write().embed(types, mode=mode, branch=branch, actor=target.actor, progress=progress(scope))
    scope.emit(done, uri=target.uri, branch=branch, mode=mode)


def _files(seed: str | None, input_: str | None, output_: str | None, spec: str | None) -> FilePlan:
    given = (input_, output_, spec)
    if seed is not None and not any(given):
        return plan_from_manifest(seed)
    if seed is None and input_ and output_ and spec:
        return FilePlan(Path(input_), Path(output_), plan_from_text(spec))
    raise typer.BadParameter("give --seed, or --input, --output and --spec, or --store", param_hint="--seed")


def _selection(mode: str, types: list[str] | None, select: list[str] | None) -> Selection:
    return Selection(EmbedMode(mode), tuple(types or ()), tuple(map(_selector, select or ())))


def _selector(text: str) -> Selector:
    found = Selector.parse(text)
    if found is None:
        raise typer.BadParameter(f"'{text}' is not [TYPE:]FIELD=VALUE", param_hint="--select")
    return found


# How results are printed ---------------------------------------------------------------------------


def _embed_document(done: Any, **place: str) -> Document:
    if place:
        properties = [{"name": name, "entities_embedded": count} for name, count in done.embedded.items()]
        commits = [commit.commit_id for commit in done.commits]
        counts = {"properties": properties, "total_entities": done.total, "commits": commits}
        head = {"store": place["uri"], "branch": place["branch"], "mode": place["mode"], "model": done.model}
        return {**head, **counts}
    records: Document = asdict(done)
    older = {f"{name.removesuffix('records')}rows": count for name, count in records.items() if "records" in name}
    return {**records, **older}


@renders("embed", document=_embed_document)
def _embedded(done: Any, **place: str) -> Lines:
    model = done.model or "no model"
    if place:
        where = f"{place['uri']} on branch {place['branch']}"
        yield f"embedded {done.total} entities of {where} in {len(done.commits)} commits [{model}]"
        return
    counts = f"embedded {done.embedded_records} records"
    others = f"(selected {done.selected_records}, cleaned {done.cleaned_records})"
    yield f"{counts} {others} from {done.input} -> {done.output} [{model} {done.dimension}d]"
