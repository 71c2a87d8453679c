"""What a request brings: its JSON, its lines, its condition, its id. Each is refused with the place that is wrong."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterable
from email.message import Message
from functools import lru_cache
from typing import IO, Any, NoReturn

from fastapi import Request
from starlette.requests import ClientDisconnect

from omnigraph.api.operation import CONDITION_HEADER, JSON, NDJSON, OPERATION_HEADER
from omnigraph.errors import MediaTypeError, RequestError
from omnigraph.lang.identity import is_new_id
from omnigraph.lang.source import did_you_mean

_COMMIT = re.compile(r"[^\s,\"*]+")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_IN_MEMORY = 2**20


def check_query(options: Iterable[str], known: set[str]) -> None:
    """Refuse what a route does not know: a misspelt option must not pass for one that was not given."""
    for name in options:
        if name not in known:
            hint = did_you_mean(name, sorted(known)) or "see the OpenAPI document at /openapi.json"
            raise RequestError(f"unknown query parameter {name!r:.80}", hint=hint)


def condition(request: Request) -> str | None:
    """Read the commit that a change depends on: one, by its plain id."""
    given = request.headers.getlist(CONDITION_HEADER)
    if not given:
        return None
    value = given[0].strip()
    # Twice or weak it would be ambiguous, and a condition that is passed over changes what the client wanted to
    # protect.
    if len(given) > 1 or value.startswith("W/") or not _COMMIT.fullmatch(value):
        hint = "send it once, with the plain id of one commit"
        raise RequestError(f"invalid header {CONDITION_HEADER}", hint=hint)
    return value


def operation(request: Request) -> str | None:
    """Read the operation id that a client gives a change: one ULID."""
    given = request.headers.getlist(OPERATION_HEADER)
    if not given:
        return None
    if len(given) > 1 or not is_new_id(given[0]):
        hint = "send it once, with a new ULID: 26 characters, in capitals"
        raise RequestError(f"invalid header {OPERATION_HEADER}", hint=hint)
    return given[0]


def refuse_operation(request: Request) -> None:
    """An id given to what makes no commit would never be found, as if nothing had been changed."""
    if OPERATION_HEADER in request.headers:
        hint = "list the branches or tags to find out whether it was done"
        raise RequestError(f"the header {OPERATION_HEADER} is not allowed here: no commit is made", hint=hint)


async def body_of(request: Request) -> bytes:
    """Read all of a body."""
    try:
        return await request.body()
    except ClientDisconnect:
        raise _gone() from None


def value_of(content_type: str | None, data: bytes) -> Any:
    """Read a body as JSON."""
    kind = media_type(content_type)
    if kind != JSON and not kind.endswith("+json"):
        raise MediaTypeError(
            f"expected Content-Type {JSON}, got {_shown(content_type)}", hint="set the header, and send one JSON object"
        )
    try:
        # Not `json.loads(data)`: it guesses UTF-16 and UTF-32 too, and the API takes UTF-8 alone.
        value = _JSON.decode(data.decode())
    except UnicodeDecodeError as error:
        raise RequestError(f"the body is not UTF-8: see byte {error.start}", hint="encode it as UTF-8") from None
    except json.JSONDecodeError as error:
        message = f"the body is not JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        raise RequestError(message, hint="send one JSON object") from None
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the body is not JSON that can be used: {error}", hint="send one JSON object") from None
    # Only then: to encode every value once more would take longer than to read it.
    if _SURROGATE.search(data):
        _check_text(value)
    return value


def _check_text(value: Any) -> None:
    """Half of a pair of escapes stands for no character."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        message = "the body has an escape that stands for no character: half of a surrogate pair"
        raise RequestError(message, hint="send both halves, or the character itself") from None


def _not_a_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of JSON")


_JSON = json.JSONDecoder(parse_constant=_not_a_number)  # made once: to make one takes longer than to read a question


async def lines_of(request: Request) -> IO[bytes]:
    """Read lines of JSON into a file; a small one stays in memory. The caller closes it."""
    content_type = request.headers.get("content-type")
    if media_type(content_type) != NDJSON:
        message = f"expected Content-Type {NDJSON}, got {_shown(content_type)}"
        raise MediaTypeError(message, hint="set the header, and send one JSON object per line")
    file = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115 - see above
    try:
        async for part in request.stream():
            file.write(part)
    except BaseException as error:
        file.close()
        if isinstance(error, ClientDisconnect):
            raise _gone() from None
        raise
    file.seek(0)
    return file


def _gone() -> RequestError:
    return RequestError("the client closed the connection before the body was complete", hint="send it again")


# Cached: clients send the same few headers, and `email` takes longer to parse one than all other checks of a lookup.
@lru_cache
def media_type(content_type: str | None) -> str:
    """The kind of a body, without what else a header says about it."""
    message = Message()
    message["content-type"] = content_type or "none/none"
    return message.get_content_type()


def _shown(content_type: str | None) -> str:
    return repr(content_type)[:80] if content_type else "none"
