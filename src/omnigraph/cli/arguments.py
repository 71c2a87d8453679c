"""The arguments and options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

Uri = Annotated[str | None, typer.Argument(help="The storage of the graph.", metavar="URI")]
Branch = Annotated[str | None, typer.Option(help="The branch to look at; else main.", metavar="NAME")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
CommitId = Annotated[str, typer.Argument(help="The commit: its id, a branch, a tag or REF~N.", metavar="COMMIT")]
