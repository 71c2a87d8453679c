"""`omnigraph embed`: compute vectors from texts, in a file of records or in a graph."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from omnigraph.api.options import EmbedMode
from omnigraph.cli.address import Scope
from omnigraph.cli.command import Message, command, option, progress, switch
from omnigraph.cli.output import Document
from omnigraph.embed.files import (
    EmbedFileResult,
    FilePlan,
    Selection,
    Selector,
    embed_file,
    plan_from_manifest,
    plan_from_text,
)


@command("embed")
def embed(
    scope: Scope,
    *,
    seed: Annotated[str | None, option("A manifest that names the files.", "FILE")] = None,
    input_: Annotated[str | None, option("The records, as JSONL.", "FILE", "--input")] = None,
    output_: Annotated[str | None, option("The file to write them to.", "FILE", "--output")] = None,
    spec: Annotated[str | None, option("The texts to embed: JSON, or a file of it.", "JSON")] = None,
    branch: Annotated[str | None, option("The branch of the graph.", "NAME")] = None,
    again: Annotated[bool, switch("Replace vectors that exist.", "--reembed-all")] = False,
    clean: Annotated[bool, switch("Remove the vectors instead.", "--clean")] = False,
    types: Annotated[list[str] | None, option("Only this type.", "TYPE", "--type")] = None,
    select: Annotated[list[str] | None, option("Only records with this value, again.", "[TYPE:]FIELD=VALUE")] = None,
    message: Message = None,
) -> None:
    """Add the missing vectors to the records of a file or to the nodes of a graph."""
    if again and clean:
        raise typer.BadParameter("give either --clean or --reembed-all", param_hint="--clean")
    if scope.flags.store is None:
        # Refused, not ignored: a forgotten --store would change a file instead of the graph.
        if branch is not None or scope.flags.actor is not None or message is not None:
            raise typer.BadParameter("a file has no branches, actors and commits; name a graph", param_hint="--store")
        mode = "clean" if clean else "reembed_all" if again else "reembed_selected" if select else "fill_missing"
        # Before any file is read, so that a wrong command line ends with 2.
        selection = Selection(EmbedMode(mode), tuple(types or ()), tuple(map(_selector, select or ())))
        _emit_file(scope, embed_file(_files(seed, input_, output_, spec), selection))
        return
    if any((seed, input_, output_, spec, clean, select)):
        message = "use it with --branch, --as, --message, --type and --reembed-all; the other options are for files"
        raise typer.BadParameter(message, param_hint="--store")
    _embed_graph(scope, "reembed_all" if again else "fill_missing", branch or "main", types, message)


def _embed_graph(scope: Scope, mode: str, branch: str, types: list[str] | None, message: str | None) -> None:
    target = scope.at()
    given: dict[str, Any] = {"actor": target.actor, "message": message, "progress": progress(scope)}
    done = target.write().embed(types, mode=mode, branch=branch, **given)
    document = {
        "store": target.uri,
        "branch": branch,
        "mode": mode,
        "model": done.model,
        "properties": [{"name": name, "entities_embedded": count} for name, count in done.embedded.items()],
        "total_entities": done.total,
        "commits": [commit.commit_id for commit in done.commits],
    }
    text = f"embedded {done.total} entities of {target.uri} on branch {branch} in {len(done.commits)} commits"
    scope.emit(document, f"{text} [{done.model or 'no model'}]")


def _files(seed: str | None, input_: str | None, output_: str | None, spec: str | None) -> FilePlan:
    given = (input_, output_, spec)
    if seed is not None and not any(given):
        return plan_from_manifest(seed)
    if seed is None and input_ and output_ and spec:
        return FilePlan(Path(input_), Path(output_), plan_from_text(spec))
    raise typer.BadParameter("give --seed, or --input, --output and --spec, or --store", param_hint="--seed")


def _selector(text: str) -> Selector:
    found = Selector.parse(text)
    if found is None:
        raise typer.BadParameter(f"'{text}' is not [TYPE:]FIELD=VALUE", param_hint="--select")
    return found


def _emit_file(scope: Scope, done: EmbedFileResult) -> None:
    records: Document = asdict(done)
    # Programs written against earlier versions read the counts as rows.
    older = {f"{name.removesuffix('records')}rows": count for name, count in records.items() if "records" in name}
    counts = f"{done.embedded_records} records (selected {done.selected_records}, cleaned {done.cleaned_records})"
    model = f"[{done.model or 'no model'} {done.dimension}d]"
    scope.emit({**records, **older}, f"embedded {counts} from {done.input} -> {done.output} {model}")
