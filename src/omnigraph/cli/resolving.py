"""The options by which `branch merge` and `revert` are told who wins where two sides contradict each other."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from omnigraph.cli import output
from omnigraph.errors import FileAccessError, MergeConflictError, ResolutionError

if TYPE_CHECKING:
    from omnigraph.api.options import Resolution

Ours = Annotated[bool, typer.Option("--ours", help="In a conflict, keep what the branch has that is changed.")]
Theirs = Annotated[bool, typer.Option("--theirs", help="In a conflict, take what is brought onto it.")]
Resolve = Annotated[
    list[str] | None,
    typer.Option(help="A side for one type, or a file of conflicts with sides.", metavar="TYPE=SIDE|FILE"),
]

_LISTS = ("conflicts", "merge_conflicts")


def resolution(given: list[str] | None, *, ours: bool, theirs: bool) -> Resolution:
    """Put together what the options say; a conflict of a file counts before its type, and that before all others."""
    from pathlib import Path  # noqa: PLC0415 - `--help` must stay quick

    from omnigraph.api.options import OURS, THEIRS, Resolution  # noqa: PLC0415 - loads the engine

    if ours and theirs:
        raise typer.BadParameter("give either --ours or --theirs", param_hint="--ours")
    types: dict[str, str] = {}
    listed: list[dict[str, Any]] = []
    for text in given or ():
        name, sign, side = text.partition("=")
        if sign and not Path(text).exists():
            types[name] = side
        else:
            listed += _listed(text)
    default = OURS if ours else THEIRS if theirs else None
    return Resolution(default, Resolution.of(types).types, Resolution.of(listed).entities)


def _listed(file: str) -> list[dict[str, Any]]:
    """Read a list of conflicts, or a document that has one, as a merge prints it."""
    from pathlib import Path  # noqa: PLC0415 - `--help` must stay quick

    try:
        found = json.loads(Path(file).read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        raise FileAccessError(f"cannot read {file}: {error}", path=file) from None
    except (ValueError, RecursionError) as error:
        raise ResolutionError(f"{file} is not JSON: {error}", hint="write a list of conflicts") from None
    if isinstance(found, dict):
        found = next((found[name] for name in _LISTS if name in found), None)
    if not isinstance(found, list):
        hint = "write a list, or a document with `conflicts`, as `omnigraph branch merge --dry-run --json` prints it"
        raise ResolutionError(f"{file} holds no list of conflicts", hint=hint)
    return found


def refused(error: MergeConflictError, *, as_json: bool) -> None:
    """Give programs the conflicts as a document; people read them on stderr."""
    if as_json:
        from omnigraph.api.problems import body  # noqa: PLC0415 - loads the engine

        output.document(body(error, full=False))
