"""Storage, and graphs that cannot be opened."""

from __future__ import annotations

from omnigraph.errors.base import OmnigraphError


class StorageError(OmnigraphError, code="storage_failed"):
    """The storage failed; `path` and `operation` say where and during what."""

    path: str
    operation: str


# 500 as its parent: a client of a server cannot grant that server access to its own bucket. It is a class of its own
# because a denial read as "not found" would make an existing graph look empty, and `init` would write into it.
class StorageDeniedError(StorageError, code="storage_denied"):
    """The storage denied access. Never reported as a missing object."""


class StorageFullError(StorageError, code="storage_full"):
    """The storage is full."""


class UnsupportedUriError(OmnigraphError, code="uri_unsupported", status=400):
    """The address of the graph has an unsupported scheme."""

    uri: str


class GraphNotFoundError(OmnigraphError, code="graph_not_found", status=404):
    """There is no graph at the address."""

    uri: str


class GraphReplacedError(OmnigraphError, code="graph_replaced", status=409):
    """Another graph lies at the address than when the write was prepared. Nothing was changed."""

    uri: str


class NotAGraphError(OmnigraphError, code="not_a_graph", status=400):
    """The address exists, but does not hold a graph."""

    uri: str


class AlreadyInitializedError(OmnigraphError, code="already_initialized", status=409):
    """The address already holds a graph, or a part of one. Nothing was written."""

    uri: str


# 500: a fork is a mistake of the program that holds the handle, never of a request.
class ForkedHandleError(OmnigraphError, code="handle_forked"):
    """The handle was opened before this process was forked. Lance's threads do not survive a fork."""

    uri: str


class ReadOnlyError(OmnigraphError, code="read_only", status=400):
    """The handle was opened read-only."""


class BranchNotFoundError(OmnigraphError, code="branch_not_found", status=404):
    """The graph has no such branch."""

    branch: str


class CommitNotFoundError(OmnigraphError, code="commit_not_found", status=404):
    """No branch of the graph has such a commit."""

    commit_id: str


# 409: the request is right, and succeeds with another release or after a migration.
class FormatError(OmnigraphError, code="format_unsupported", status=409):
    """The graph has a storage format that this version does not support."""

    found: int
    supported: int


class FormatTooNewError(FormatError, code="format_too_new"):
    """The graph was written by a later version."""


class FormatTooOldError(FormatError, code="format_too_old"):
    """The graph is too old to be migrated."""


# 500, and never retried: only a person with a backup can help.
class CorruptGraphError(OmnigraphError, code="graph_corrupt"):
    """The stored state is inconsistent. Nothing was changed."""

    path: str


class BackupTargetError(OmnigraphError, code="backup_target", status=409):
    """The address cannot take the backup or the restored graph. Nothing there was changed."""

    uri: str


class BackupNotFoundError(OmnigraphError, code="backup_not_found", status=404):
    """There is no such backup, or none that is complete."""

    uri: str


class BackupDamagedError(OmnigraphError, code="backup_damaged"):
    """A file is missing, or is not the one that was backed up."""

    path: str
