"""What a call to a server consists of: requests, and what to make of the answers. Who sends them is not known here.

A call is a generator. It yields requests, is given their answers, or the error that came instead, and returns what the
same call of a graph in storage returns. So one description serves clients that wait and clients that do not.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import IO, Any, Generic, TypeVar
from urllib.parse import quote

from omnigraph.api.operation import JSON, OPERATION_HEADER
from omnigraph.errors import OutcomeUnknownError, ServerAnswerError
from omnigraph.lang.identity import new_id

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
            hint = "see with `branches` and `tags` whether it was done before you do it again"
        else:
            hint = f"ask `outcome` for operation {self.operation_id}, on the branch that was to change"
        return OutcomeUnknownError(message, operation_id=self.operation_id, hint=hint)


def committing(request: Request) -> Request:
    """A request that makes a commit: it brings an id, by which that is found should the answer be lost."""
    return replace(request, changes=True, headers={**request.headers, OPERATION_HEADER: new_id()})


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server answered."""

    status: int
    content: bytes
    headers: Mapping[bytes, bytes] = field(default_factory=dict)

    def header(self, name: str) -> str:
        """What a header says, by its name in small letters; nothing if there is none."""
        return self.headers.get(name.encode(), b"").decode("latin-1")

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
        self._rest = b""

    def feed(self, chunk: bytes) -> list[str]:
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        return [line.decode() for line in lines]

    def end(self) -> list[str]:
        return [self._rest.decode()] if self._rest else []


def segment(name: str) -> str:
    """Return a name as one part of a path, whatever it contains."""
    return quote(name.strip(), safe="")
