"""The requests of a call to a server, and what becomes of the responses. Nothing here knows how they are sent.

A call is a generator. It yields requests, receives their answers, or the error that came instead, and returns what the
same call of a graph in storage returns. So one description serves clients that wait and clients that do not.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import IO, Any, Generic, TypeVar
from urllib.parse import quote

from omnigraph.api.access import READS
from omnigraph.api.operation import (
    CONDITION_HEADER,
    JSON,
    OPERATION_HEADER,
    Description,
    Operation,
    Parameter,
    Route,
    description_of,
)
from omnigraph.api.options import Engine, Resolution
from omnigraph.api.progress import SILENT, finishing
from omnigraph.core.http import header_in
from omnigraph.core.location import is_unicode
from omnigraph.errors import (
    CompileError,
    NotServedError,
    OutcomeUnknownError,
    ParameterError,
    PlacedError,
    ServerAnswerError,
)
from omnigraph.lang.identity import new_id
from omnigraph.lang.params import decode_parameters
from omnigraph.lang.source import Source, source_given

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Request:
    """One request. `changes` says that it may change the graph, so that a lost answer leaves that open.

    The body is a JSON document or a file; the answer goes to `sink` chunk by chunk, if there is one.
    """

    method: str
    path: str
    query: Iterable[tuple[str, str]] = ()
    document: Any = None
    file: IO[bytes] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    changes: bool = False
    accept: str = JSON
    sink: Callable[[bytes], object] | None = None

    @property
    def operation_id(self) -> str | None:
        """What to ask about if the answer is lost; None if it makes no commit."""
        return self.headers.get(OPERATION_HEADER)

    def outcome_unknown(self, message: str) -> OutcomeUnknownError:
        """Return the error for a request that may or may not have changed the graph."""
        if self.operation_id is None:
            hint = "check with `branches` and `tags` whether it was done before you try again"
        else:
            hint = f"ask `outcome` for operation {self.operation_id}, on the branch that you changed"
        return OutcomeUnknownError(message, operation_id=self.operation_id, hint=hint)


def committing(request: Request) -> Request:
    """A request that makes a commit: it brings an id, by which that is found should the answer be lost."""
    # Made here and not by the server: an id that came with the answer would be lost with it.
    return replace(request, changes=True, headers={**request.headers, OPERATION_HEADER: new_id()})


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server answered."""

    status: int
    content: bytes
    head: Sequence[bytes] = ()  # the lines before the content

    def header(self, name: str) -> str:
        """What a header says, by its name in small letters; nothing if there is none."""
        return header_in(self.head, name)

    @property
    def document(self) -> Any:
        try:
            return json.loads(self.content)
        except ValueError:
            message = f"the answer is not JSON: {self.content[:80]!r}"
            hint = "see that the address is that of an Omnigraph server"
            raise ServerAnswerError(message, status=self.status, hint=hint) from None


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait a little before going on."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Stream(Generic[T]):
    """An answer that is read as it comes: a request, and what each line of it becomes."""

    request: Request
    items: Callable[[str], Iterable[T]]


Steps = Generator[Request | Pause, Answer, T]


class Lines:
    """Puts lines together from chunks. Only a newline ends one: texts may hold what else looks like an end."""

    def __init__(self) -> None:
        self._held: list[bytes] = []

    def whole(self, chunk: bytes) -> bytes:
        """Return the lines that are complete with this chunk, as one block; hold the rest for later."""
        block, newline, rest = chunk.rpartition(b"\n")
        if not newline:
            # Joined once, when the line ends: a Blob is one line in thousands of chunks.
            self._held.append(chunk)
            return b""
        complete = b"".join([*self._held, block, newline])
        self._held = [rest]
        return complete

    def feed(self, chunk: bytes) -> list[str]:
        return [line.decode() for line in self.whole(chunk).split(b"\n")[:-1]]

    def end(self) -> list[str]:
        rest = b"".join(self._held)
        return [rest.decode()] if rest else []


def segment(name: str) -> str:
    """Return a name as one part of a path, whatever it contains."""
    return quote(_unicode(name.strip()), safe="")


def _unicode(text: str) -> str:
    """Return a text that can stand in an address; raise if it holds bytes that are not text."""
    if is_unicode(text):
        return text
    message = f"{text!a:.80} contains bytes that are not text"
    raise ParameterError(message, parameter=None, hint="pass valid Unicode; check the encoding of the terminal")


# --- the request for an operation, from its description ---------------------------------------------------------


def request_of(operation: Operation[Any], route: Route, accept: str = JSON) -> Request:
    """Return the request for an operation."""
    known = description_of(operation)
    path, given = route.path, {}
    for name, value in _values(known, operation).items():
        wire = route.wire_name(name)
        if f"{{{wire}}}" in path:
            path = path.replace(f"{{{wire}}}", segment(str(value)))
        elif value is not None:
            given[wire] = value
    # By the action of the route: a preview of a merge changes nothing, and a lost answer leaves nothing open.
    changes = (route.action or known.action) not in READS
    headers = {} if route.condition is None else {CONDITION_HEADER: getattr(operation, route.condition)}
    if route.verb == "POST":
        request = Request(route.verb, path, document=given, headers=headers, changes=changes, accept=accept)
    else:
        request = Request(route.verb, path, options(**given), headers=headers, changes=changes, accept=accept)
    # Branches and tags are created without a commit, so no operation id can find them again.
    return committing(request) if known.commits and changes else request


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
    if parameter.name == "checks" and value is not None and not isinstance(value, Mapping):
        # A word is the name of a stored query, which the server knows; a file is read here.
        return [one if str(one).isidentifier() else source_given(one, ".gq", "<check>").text for one in value]
    if parameter.name == "resolve":
        return Resolution.of(value).to_dict() or None
    # The server has these defaults too, and may have others when it is newer.
    return None if type(value) is int and value == parameter.default else value


def options(**given: object) -> list[tuple[str, str]]:
    """The query of a request: None is left out, a collection is repeated, and named once if it is empty."""
    found = []
    for name, value in given.items():
        if isinstance(value, Collection) and not isinstance(value, str):
            # No value at all would mean no filter, and a filter that lets nothing pass would return everything.
            found += [(name, _unicode(str(one))) for one in value] or [(name, "")]
        elif value is not None:
            found.append((name, _unicode(str(value).lower() if isinstance(value, bool) else str(value))))
    return found


def plain_parameters(given: Mapping[str, Any] | None) -> Any:
    """The parameters of a query as JSON; a value that JSON does not have is refused as a graph in storage does."""
    if given is not None and not isinstance(given, Mapping):
        # The one place that knows how to refuse it, so that both kinds of graph raise the same error.
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
        # `from None`: the traceback would show the transport, which has nothing to do with a mistake in a query.
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
    # An empty `conf` asks for nothing and is allowed, so that code written for a graph in storage runs unchanged.
    if any(value not in (None, Engine.AUTO) and value for value in given):
        message = "the server decides which engine does the work"
        raise NotServedError(message, operation="engine", hint="leave `engine`, `master` and `conf` out")
