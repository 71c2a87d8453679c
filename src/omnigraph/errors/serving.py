"""Servers, their clients, and the command line."""

from __future__ import annotations

from omnigraph.errors.base import OmnigraphError


class AddressError(OmnigraphError, code="bad_address", status=400):
    """A command names no graph, or names it in a way the command does not support."""


class ConfigError(OmnigraphError, code="bad_config", status=400):
    """A configuration file is invalid, or lacks the requested entry."""

    path: str


class AliasError(OmnigraphError, code="bad_alias", status=400):
    """The alias is not defined, or is called with the wrong arguments."""

    alias: str


class FileAccessError(OmnigraphError, code="file_unreadable", status=400):
    """A file named on the command line cannot be read or written."""

    path: str


class UnauthorizedError(OmnigraphError, code="unauthorized", status=401):
    """The request has no token, or an unknown one."""


class ForbiddenError(OmnigraphError, code="forbidden", status=403):
    """The caller lacks the permission. The message reveals nothing else."""

    action: str


class TooManyRequestsError(OmnigraphError, code="too_many_requests", status=429):
    """One actor has too many requests running."""


class MemoryBusyError(TooManyRequestsError, code="memory_busy"):
    """Other queries hold too much of the memory that all queries of the process may take together."""


class QueryTimeoutError(OmnigraphError, code="query_timeout", status=408):
    """The query takes longer than its time limit."""

    seconds: float


class RequestTimeoutError(OmnigraphError, code="request_timeout", status=408):
    """The body of the request arrives too slowly."""


# 400 for what cannot be parsed, 422 (below) for JSON that parses and has the wrong shape.
class RequestError(OmnigraphError, code="request_invalid", status=400):
    """The request is malformed: invalid JSON, an unknown member, a bad header or address."""


class RequestShapeError(RequestError, code="request_shape", status=422):
    """The JSON body does not match the schema of the route."""


class MediaTypeError(RequestError, code="media_type", status=415):
    """The route does not accept this content type."""


class RouteNotFoundError(RequestError, code="route_not_found", status=404):
    """The server has no such route."""


class MethodNotAllowedError(RequestError, code="method_not_allowed", status=405):
    """The route does not support this method."""


class LoadNotFoundError(OmnigraphError, code="not_found", status=404):
    """There is no background load with this id, or it started before the server did."""

    load_id: str


class StoredQueryNotFoundError(OmnigraphError, code="stored_query_not_found", status=404):
    """There is no such stored query, or the caller may not run it: the two look the same on purpose."""

    query: str


# 409: the stored queries are files of the operator, so neither the request nor the server is wrong.
class StoredQueryBrokenError(OmnigraphError, code="stored_query_broken", status=409):
    """Stored queries do not compile against the schema; `queries` names them."""

    queries: list[str]


class BlobPropertyError(OmnigraphError, code="blob_property", status=400):
    """The property is not a Blob."""

    type_name: str
    property: str


class BlobNotFoundError(OmnigraphError, code="blob_not_found", status=404):
    """The entity does not exist, or its Blob is null."""

    type_name: str
    entity_id: str
    property: str


class BlobChangedError(OmnigraphError, code="blob_changed", status=412):
    """The Blob is not the version the caller expects."""


# 416 with the length, as RFC 9110 asks for, so that a client can correct its range.
class BlobRangeError(OmnigraphError, code="blob_range", status=416):
    """The byte range from `start` to `end` lies outside a Blob of `length` bytes."""

    start: int
    end: int
    length: int


# 400 and not 404 or 501: the server knows the operation, and the hint names the command to run instead.
class NotServedError(OmnigraphError, code="not_served", status=400):
    """A server does not offer this operation; run it where the storage is."""

    operation: str


# Only for requests that cannot have changed anything. A change whose answer was lost is OutcomeUnknownError.
class ServerUnavailableError(OmnigraphError, code="server_unavailable", status=503):
    """The server cannot be reached or did not answer in time. Nothing was changed."""

    address: str


class ServerAnswerError(OmnigraphError, code="server_answer", status=502):
    """The response does not come from a compatible Omnigraph server; `status` is its HTTP status."""

    status: int


class ServerStartError(OmnigraphError, code="server_start", status=500):
    """The server cannot start: no graph, no tokens, or no address to listen on."""


class ServerFailedError(OmnigraphError, code="server_failed", status=500):
    """The server failed unexpectedly; its log has the traceback."""
