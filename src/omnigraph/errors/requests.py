"""A request that a server cannot use as it was sent."""

from __future__ import annotations

from omnigraph.errors.base import OmnigraphError


class RequestError(OmnigraphError):
    """A request with something in it that cannot be understood: no JSON, an unknown member, a header, an address."""

    code = "request_invalid"
    http_status = 400


class RequestShapeError(RequestError):
    """JSON that is not of the form that the route takes."""

    code = "request_shape"
    http_status = 422


class MediaTypeError(RequestError):
    """A body of a kind that the route does not take."""

    code = "media_type"
    http_status = 415


class RouteNotFoundError(RequestError):
    """An address at which the server has nothing."""

    code = "route_not_found"
    http_status = 404


class MethodNotAllowedError(RequestError):
    """An address that is there, and a method that it does not know."""

    code = "method_not_allowed"
    http_status = 405


class StoredQueryNotFoundError(OmnigraphError):
    """No stored query of that name, or none that whoever asks may run: the two look alike."""

    code = "stored_query_not_found"
    http_status = 404
    query: str


class StoredQueryBrokenError(OmnigraphError):
    """Stored queries that do not suit a schema; `queries` names them."""

    code = "stored_query_broken"
    http_status = 409
    queries: list[str]


class BlobPropertyError(OmnigraphError):
    """The content of something that is no Blob property."""

    code = "blob_property"
    http_status = 400
    type_name: str
    property: str


class BlobNotFoundError(OmnigraphError):
    """The content of an entity that is not there, or of a property that is null."""

    code = "blob_not_found"
    http_status = 404
    type_name: str
    entity_id: str
    property: str


class BlobChangedError(OmnigraphError):
    """The content of a Blob is not the one that is asked for."""

    code = "blob_changed"
    http_status = 412


class BlobRangeError(OmnigraphError):
    """A part of a Blob that it does not have: bytes from `start` up to `end` of `length`."""

    code = "blob_range"
    http_status = 416
    start: int
    end: int
    length: int
