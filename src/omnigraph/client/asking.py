"""Small parts of requests: queries, sources, and what is only done where the storage is."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from omnigraph.api.options import Engine
from omnigraph.errors import CompileError, NotServedError, ParameterError, PlacedError
from omnigraph.lang.params import decode_parameters
from omnigraph.lang.source import Source, source_given

QUERY, SCHEMA = "<query>", "<schema>"


def segment(name: str) -> str:
    """A name as one part of a path, whatever is in it."""
    return quote(name.strip(), safe="")


def options(**given: object) -> list[tuple[str, str]]:
    """The query of a request: what is None is left out, a collection is repeated, and named once if it is empty."""
    found = []
    for name, value in given.items():
        if isinstance(value, Collection) and not isinstance(value, str):
            found += [(name, str(one)) for one in value] or [(name, "")]
        elif value is not None:
            found.append((name, str(value).lower() if isinstance(value, bool) else str(value)))
    return found


def members(**given: object) -> dict[str, Any]:
    """The document of a request, without what is None."""
    return {name: value for name, value in given.items() if value is not None}


@contextmanager
def given_source(source: str | os.PathLike[str], suffix: str, name: str) -> Iterator[str]:
    """The text of a query or schema. What is wrong with it is told with the name of its file."""
    read = source_given(source, suffix, name)
    try:
        yield read.text
    except (CompileError, PlacedError) as error:
        if read.file == name:
            raise
        raise _placed(error, read) from None


def _placed(error: CompileError | PlacedError, source: Source) -> CompileError | PlacedError:
    if isinstance(error, CompileError):
        return type(error).of([replace(one, place=replace(one.place, file=source.file)) for one in error.diagnostics])
    if error.place is not None:
        error.place = replace(error.place, file=source.file)
    return error


def parameters(given: Mapping[str, Any] | None) -> Any:
    """The parameters of a query as JSON has them; what it has not is refused as a graph in storage does."""
    if given is not None and not isinstance(given, Mapping):
        decode_parameters({}, given)  # refuses it
    return None if given is None else _plain(given, None)


def _plain(value: Any, name: str | None) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(one, name or str(key)) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one, name) for one in value]
    if value is None or isinstance(value, str | int | float):
        return value
    message = f"parameter '{name}': a Python {type(value).__name__} is not a value of JSON"
    raise ParameterError(message, parameter=name, hint="pass texts, numbers, booleans, null, arrays and objects")


def not_served(operation: str) -> NotServedError:
    """Upkeep needs the storage itself."""
    message = f"`{operation}` works on the storage of a graph, not through a server"
    command = "optimize" if operation == "ensure_indices" else operation  # which builds indices as well
    hint = f"run `omnigraph {command} --store URI`, or open the graph, where the storage can be reached"
    return NotServedError(message, operation=operation, hint=hint)


def refuse_engine(engine: str, master: str | None, conf: Mapping[str, str] | None) -> None:
    """A server decides itself who does its work."""
    if engine != Engine.AUTO or master is not None or conf:
        message = "who does the work is decided by the server"
        raise NotServedError(message, operation="engine", hint="leave `engine`, `master` and `conf` out")
