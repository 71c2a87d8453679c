"""The request for an operation, from its description: path, query, body and headers."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from omnigraph.api.access import READS
from omnigraph.api.operation import CONDITION_HEADER, Description, Operation, Parameter, Route, description_of
from omnigraph.api.options import Engine, Resolution
from omnigraph.api.progress import SILENT, finishing
from omnigraph.client.steps import Request, committing, segment
from omnigraph.errors import CompileError, NotServedError, ParameterError, PlacedError
from omnigraph.lang.params import decode_parameters
from omnigraph.lang.source import Source, source_given


def request_of(operation: Operation[Any], route: Route) -> Request:
    """Return the request for an operation."""
    known = description_of(operation)
    path, given = route.path, {}
    for name, value in _values(known, operation).items():
        wire = route.wire_name(name)
        if f"{{{wire}}}" in path:
            path = path.replace(f"{{{wire}}}", segment(str(value)))
        elif value is not None:
            given[wire] = value
    action = route.action or known.action
    request = Request(route.verb, path, changes=action not in READS)
    request = replace(request, document=given) if route.verb == "POST" else replace(request, query=options(**given))
    if route.condition is not None:
        request = replace(request, headers={CONDITION_HEADER: getattr(operation, route.condition)})
    return committing(request) if known.commits and request.changes else request


def _values(known: Description, operation: Operation[Any]) -> dict[str, Any]:
    """The fields that are sent, each as JSON has it."""
    sent = {name: _value(one, getattr(operation, name)) for name, one in known.sent.items()}
    if sent.get("snapshot") is not None:  # a commit counts alone, and a server refuses both
        del sent["branch"]
    return sent


def _value(parameter: Parameter, value: Any) -> Any:
    if parameter.source is not None:
        return source_given(value, parameter.source.suffix, parameter.source.name).text
    if parameter.name == "params":
        return plain_parameters(value)
    if parameter.name == "resolve":
        return Resolution.of(value).to_dict() or None
    # The server has these defaults too, and may have others when it is newer.
    return None if type(value) is int and value == parameter.default else value


def options(**given: object) -> list[tuple[str, str]]:
    """The query of a request: None is left out, a collection is repeated, and named once if it is empty."""
    found = []
    for name, value in given.items():
        if isinstance(value, Collection) and not isinstance(value, str):
            found += [(name, str(one)) for one in value] or [(name, "")]
        elif value is not None:
            found.append((name, str(value).lower() if isinstance(value, bool) else str(value)))
    return found


def plain_parameters(given: Mapping[str, Any] | None) -> Any:
    """The parameters of a query as JSON; a value that JSON does not have is refused as a graph in storage does."""
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


@contextmanager
def asking(operation: Operation[Any]) -> Iterator[None]:
    """Wrap a call: refuse options that only storage takes, end the progress, and name files in errors."""
    _refuse_engine(operation)
    with finishing(getattr(operation, "progress", SILENT)):
        try:
            yield
        except (CompileError, PlacedError) as error:
            raise _placed(operation, error) from None


def _placed(operation: Operation[Any], error: CompileError | PlacedError) -> CompileError | PlacedError:
    """Name the local file in an error about its text: the server knows only the text."""
    for name, one in description_of(operation).parameters.items():
        if one.source is not None:
            read = source_given(getattr(operation, name), one.source.suffix, one.source.name)
            return error if read.file == one.source.name else _relocated(error, read)
    return error


def _relocated(error: CompileError | PlacedError, source: Source) -> CompileError | PlacedError:
    if isinstance(error, CompileError):
        return type(error).of([replace(one, place=replace(one.place, file=source.file)) for one in error.diagnostics])
    if error.place is not None:
        error.place = replace(error.place, file=source.file)
    return error


def not_served(operation: Operation[Any]) -> NotServedError:
    """Return the error for an operation that needs the storage itself."""
    known = description_of(operation)
    message = f"`{known.method}` works on the storage of a graph, not through a server"
    hint = f"run `omnigraph {known.command} --store URI`, or open the graph, where the storage can be reached"
    return NotServedError(message, operation=known.method, hint=hint)


def _refuse_engine(operation: Operation[Any]) -> None:
    given = (getattr(operation, name, None) for name in ("engine", "master", "conf"))
    if any(value not in (None, Engine.AUTO) and value for value in given):
        message = "the server decides which engine does the work"
        raise NotServedError(message, operation="engine", hint="leave `engine`, `master` and `conf` out")
