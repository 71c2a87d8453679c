"""Servers and their clients: who may ask, how often, and what comes back."""

from __future__ import annotations

from omnigraph.errors.base import OmnigraphError


class UnauthorizedError(OmnigraphError):
    """A request that does not say who asks, or whose token nobody has."""

    code = "unauthorized"
    http_status = 401


class ForbiddenError(OmnigraphError):
    """Something that whoever asks may not do. It says no more than they know already."""

    code = "forbidden"
    http_status = 403
    action: str


class TooManyRequestsError(OmnigraphError):
    """More requests at once than one actor may have."""

    code = "too_many_requests"
    http_status = 429


class NotServedError(OmnigraphError):
    """Something that a server does not do for its clients; it is done where the storage is."""

    code = "not_served"
    http_status = 400
    operation: str


class ServerUnavailableError(OmnigraphError):
    """The server cannot be reached, or did not answer in time. What was asked changes nothing."""

    code = "server_unavailable"
    http_status = 503
    address: str


class ServerAnswerError(OmnigraphError):
    """An answer that is not one of an Omnigraph server, or of another version of it; `status` is that of HTTP."""

    code = "server_answer"
    http_status = 502
    status: int


class ServerStartError(OmnigraphError):
    """A server that does not start: there is nothing to serve, nobody to serve it to, or no address to do it at."""

    code = "server_start"
    http_status = 500


class RequestTimeoutError(OmnigraphError):
    """A request whose body comes too slowly."""

    code = "request_timeout"
    http_status = 408


class LoadNotFoundError(OmnigraphError):
    """No load of that id, or one that was begun before the server was."""

    code = "not_found"
    http_status = 404
    load_id: str


class ServerFailedError(OmnigraphError):
    """The server failed in a way that nobody foresaw; its log says where."""

    code = "server_failed"
    http_status = 500
