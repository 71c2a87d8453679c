"""Print the result of a command: as one JSON document or as text, by one table that has both for each command."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from omnigraph.cli import output
from omnigraph.cli.output import Line

Lines = Iterator[Line | str]
Document = dict[str, Any]
_Text = TypeVar("_Text", bound=Callable[..., Lines])


@dataclass(frozen=True, slots=True)
class Renderer:
    """How to print the result of a command. A large document is an iterator of pieces of JSON."""

    document: Callable[..., Document | list[Any] | Iterator[str]]
    text: Callable[..., Lines]


RENDERERS: dict[str, Renderer] = {}


def emit(command: str, result: Any, facts: dict[str, Any], *, as_json: bool) -> None:
    """Print the result of a command. `facts` is what the command knows and its result does not say."""
    renderer = RENDERERS[command]
    if not as_json:
        output.lines(renderer.text(result, **facts))
        return
    found = renderer.document(result, **facts)
    if isinstance(found, Iterator):
        for piece in found:
            output.raw(piece)
    else:
        output.document(found)


def itself(result: Any, **_facts: Any) -> Any:
    """Use the result as its document."""
    return result


def renders(*commands: str, document: Callable[..., Any] = itself) -> Callable[[_Text], _Text]:
    """Register a function as the text of commands, together with their document."""

    def register(text: _Text) -> _Text:
        RENDERERS.update(dict.fromkeys(commands, Renderer(document, text)))
        return text

    return register


@renders("blob stat", "profile show")
def _pairs(found: Document) -> Lines:
    yield from (f"{name}: {value}" for name, value in found.items())
