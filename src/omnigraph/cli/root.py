"""What stands before the name of a command: old spellings that still work, and what this version does not have."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from omnigraph.cli import output

_OLD: dict[tuple[str, ...], str] = {
    ("read",): "query",
    ("change",): "mutate",
    ("check",): "lint",
    ("query", "lint"): "lint",
    ("query", "check"): "lint",
}
_ABSENT = ("cluster", "policy")

LEGEND = """COMMANDS BY CAPABILITY

any: query mutate load branch snapshot export commit changes diff log revert tag blob, schema show, schema apply. They \
work on storage and through a server.

served: alias, graphs list, query NAME and mutate NAME without a source. They need a server.

direct: init optimize cleanup repair doctor lint, schema plan. They need the storage itself.

control: queries. They read an omnigraph.yaml.

local: embed fmt login logout profile version. They need no graph."""


class Root(TyperGroup):
    """The program. It understands old spellings, and says which command to type instead."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        for typed, now in _OLD.items():
            if tuple(args[: len(typed)]) == typed:
                if not ctx.resilient_parsing:
                    output.deprecated(" ".join(typed), now)
                args = [now, *args[len(typed) :]]
                break
        if args[0] in _ABSENT:
            output.note(f"Error: `{args[0]}` is not supported by this version", style="bold red")
            raise typer.Exit(1)
        return super().resolve_command(ctx, args)
