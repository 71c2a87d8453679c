"""`omnigraph embed`: make vectors of texts, in a file of records or in a graph."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from omnigraph.cli import output
from omnigraph.cli.address import Scope, Target
from omnigraph.cli.arguments import Json
from omnigraph.cli.engine import progress

if TYPE_CHECKING:
    from omnigraph.embed.files import FilePlan, Selection, Selector


def embed(
    scope: Scope,
    *,
    seed: Annotated[str | None, typer.Option(help="A manifest that names the files.", metavar="FILE")] = None,
    input_: Annotated[str | None, typer.Option("--input", help="The records, as JSONL.", metavar="FILE")] = None,
    output_: Annotated[str | None, typer.Option("--output", help="Where they go.", metavar="FILE")] = None,
    spec: Annotated[str | None, typer.Option(help="What is embedded: JSON, or a file of it.", metavar="JSON")] = None,
    branch: Annotated[str | None, typer.Option(help="The branch of the graph.", metavar="NAME")] = None,
    again: Annotated[bool, typer.Option("--reembed-all", help="Also what has a vector already.")] = False,
    clean: Annotated[bool, typer.Option("--clean", help="Take the vectors away instead.")] = False,
    types: Annotated[list[str] | None, typer.Option("--type", help="Only this type.", metavar="TYPE")] = None,
    select: Annotated[
        list[str] | None, typer.Option(help="Only records with this value, anew.", metavar="[TYPE:]FIELD=VALUE")
    ] = None,
    as_json: Json = False,
) -> None:
    """Add the vectors that records of a file, or nodes of a graph, do not have yet."""
    if again and clean:
        raise typer.BadParameter("give either --clean or --reembed-all", param_hint="--clean")
    if scope.flags.store is None:
        _only_for_graphs(branch, scope.flags.actor)
        mode = "clean" if clean else "reembed_all" if again else "reembed_selected" if select else "fill_missing"
        selection = _selection(mode, types, select)
        _embed_file(_files(seed, input_, output_, spec), selection, as_json=as_json)
        return
    if any((seed, input_, output_, spec, clean, select)):
        message = "it goes with --branch, --as, --type and --reembed-all; the other options are for files"
        raise typer.BadParameter(message, param_hint="--store")
    mode = "reembed_all" if again else "fill_missing"
    _embed_graph(scope.at(), mode, branch or "main", types, as_json=as_json)


def _only_for_graphs(branch: str | None, actor: str | None) -> None:
    if branch is not None or actor is not None:
        raise typer.BadParameter("a file has no branches and no actors; name a graph", param_hint="--store")


def _files(seed: str | None, input_: str | None, output_: str | None, spec: str | None) -> FilePlan:
    from pathlib import Path  # noqa: PLC0415 - `--help` must stay quick

    from omnigraph.embed.files import FilePlan, plan_from_manifest, plan_from_text  # noqa: PLC0415

    given = (input_, output_, spec)
    if seed is not None and not any(given):
        return plan_from_manifest(seed)
    if seed is None and input_ and output_ and spec:
        return FilePlan(Path(input_), Path(output_), plan_from_text(spec))
    raise typer.BadParameter("give --seed, or --input, --output and --spec, or --store", param_hint="--seed")


def _selection(mode: str, types: list[str] | None, select: list[str] | None) -> Selection:
    from omnigraph.api.options import EmbedMode  # noqa: PLC0415
    from omnigraph.embed.files import Selection  # noqa: PLC0415 - `--help` must stay quick

    return Selection(EmbedMode(mode), tuple(types or ()), tuple(map(_selector, select or ())))


def _selector(text: str) -> Selector:
    from omnigraph.embed.files import Selector  # noqa: PLC0415 - `--help` must stay quick

    found = Selector.parse(text)
    if found is None:
        raise typer.BadParameter(f"'{text}' is no [TYPE:]FIELD=VALUE", param_hint="--select")
    return found


def _embed_file(files: FilePlan, selection: Selection, *, as_json: bool) -> None:
    from omnigraph.embed.files import embed_file  # noqa: PLC0415 - `--help` must stay quick

    done = embed_file(files, selection)
    if as_json:
        told = asdict(done)
        older = {f"{name.removesuffix('records')}rows": count for name, count in told.items() if "records" in name}
        output.document({**told, **older})
        return
    counts = f"embedded {done.embedded_records} records"
    others = f"(selected {done.selected_records}, cleaned {done.cleaned_records})"
    output.data(f"{counts} {others} from {done.input} -> {done.output} [{done.model or 'no model'} {done.dimension}d]")


def _embed_graph(target: Target, mode: str, branch: str, types: list[str] | None, *, as_json: bool) -> None:
    shown = progress(quiet=target.scope.flags.quiet)
    done = target.write().embed(types, mode=mode, branch=branch, actor=target.actor, progress=shown)
    if as_json:
        properties = [{"name": name, "entities_embedded": count} for name, count in done.embedded.items()]
        commits = [commit.commit_id for commit in done.commits]
        counts = {"properties": properties, "total_entities": done.total, "commits": commits}
        output.document({"store": target.uri, "branch": branch, "mode": mode, "model": done.model, **counts})
        return
    made = f"embedded {done.total} entities of {target.uri} on branch {branch} in {len(done.commits)} commits"
    output.data(f"{made} [{done.model or 'no model'}]")
