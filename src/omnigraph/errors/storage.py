"""The place where a graph lives, and graphs that are not as they should be."""

from __future__ import annotations

from omnigraph.errors.base import OmnigraphError


class StorageError(OmnigraphError):
    """The storage refused or failed; `path` says where, `operation` what was tried."""

    code = "storage_failed"
    path: str
    operation: str


class StorageDeniedError(StorageError):
    """The storage does not permit the operation. Never taken for absence."""

    code = "storage_denied"


class StorageFullError(StorageError):
    """No space is left."""

    code = "storage_full"


class UnsupportedUriError(OmnigraphError):
    """The address of a graph is of a kind that cannot hold one."""

    code = "uri_unsupported"
    http_status = 400
    uri: str


class GraphNotFoundError(OmnigraphError):
    """There is no graph at the address."""

    code = "graph_not_found"
    http_status = 404
    uri: str


class NotAGraphError(OmnigraphError):
    """There is something at the address, but it is not a graph."""

    code = "not_a_graph"
    http_status = 400
    uri: str


class AlreadyInitializedError(OmnigraphError):
    """A graph, or part of one, is at the address already; nothing was written."""

    code = "already_initialized"
    http_status = 409
    uri: str


class ReadOnlyError(OmnigraphError):
    """The handle was opened read-only."""

    code = "read_only"
    http_status = 400


class BranchNotFoundError(OmnigraphError):
    """The graph has no branch of that name."""

    code = "branch_not_found"
    http_status = 404
    branch: str


class CommitNotFoundError(OmnigraphError):
    """No branch of the graph has a commit of that id."""

    code = "commit_not_found"
    http_status = 404
    commit_id: str


class FormatError(OmnigraphError):
    """The graph is in a storage format that this version does not work on."""

    code = "format_unsupported"
    http_status = 409
    found: int
    supported: int


class FormatTooNewError(FormatError):
    """A later version wrote the graph."""

    code = "format_too_new"


class FormatTooOldError(FormatError):
    """The graph is older than what can be migrated."""

    code = "format_too_old"


class CorruptGraphError(OmnigraphError):
    """Stored state contradicts itself. Nothing was changed."""

    code = "graph_corrupt"
    path: str
