"""Classify the errors of pylance and translate them into ours.

Pylance has one exception class of its own; everything else is a plain OSError, ValueError or RuntimeError that only its
text distinguishes. So this module compares strings, and no other may.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum, auto

import pyarrow as pa
from lance.commit import CommitConflictError

from omnigraph.core.nonblocking import may_block
from omnigraph.errors import (
    ConflictError,
    ContentionError,
    OmnigraphError,
    StorageDeniedError,
    StorageError,
    StorageFullError,
)

PROBE = "probe"  # the one call that never blocks for long on a local disk


class Failure(Enum):
    """What a failed pylance call means to its caller."""

    RETRYABLE_CONFLICT = auto()  # a commit came in between: read again, stage again
    INCOMPATIBLE = auto()  # a commit came in between that this change cannot follow
    CONTENTION = auto()  # merge_insert lost its compare-and-swap
    NOT_FOUND = auto()
    EXISTS = auto()
    IN_USE = auto()  # a branch that others start from cannot be deleted
    DENIED = auto()
    FULL = auto()
    IO = auto()  # anything else


# Lance wraps a failure inside a scan, several times over; only the innermost one says what it was.
_WRAPPERS = re.compile(r"(?:(?:External|Wrapped|Cloned) error: |LanceError\(IO\): |Generic \S+ error: )*")

_BEGINNINGS = (
    (re.compile(r"Retryable commit conflict for version "), Failure.RETRYABLE_CONFLICT),
    (re.compile(r"Commit conflict for version "), Failure.RETRYABLE_CONFLICT),
    (re.compile(r"Incompatible transaction: "), Failure.INCOMPATIBLE),
    (re.compile(r"Too many concurrent writers\."), Failure.CONTENTION),
    (re.compile(r"Dataset already exists: "), Failure.EXISTS),
    (re.compile(r"Ref conflict error: .* can not delete"), Failure.IN_USE),
    (re.compile(r"Ref conflict error: "), Failure.EXISTS),
    # Lance's misleading message when the directory of a new branch exists.
    (re.compile(r"Encountered internal error\..* Clone operation should not enter build_manifest"), Failure.EXISTS),
    (re.compile(r"Dataset at path .* was not found: "), Failure.NOT_FOUND),
    (
        re.compile(r"(?:Not found|Ref not found error|Version not found error|Lance index not found): "),
        Failure.NOT_FOUND,
    ),
    (re.compile(r"The operation lacked "), Failure.DENIED),
)

_OS_ERROR = re.compile(r"\(os error (\d+)\)")
_HTTP_ERROR = re.compile(r"Server returned non-2xx status code: (\d+)")

_BY_ERRNO = {
    errno.EACCES: Failure.DENIED,
    errno.EPERM: Failure.DENIED,
    errno.EROFS: Failure.DENIED,
    errno.ENOSPC: Failure.FULL,
    errno.EDQUOT: Failure.FULL,
    errno.ENOENT: Failure.NOT_FOUND,
    errno.EEXIST: Failure.EXISTS,
}
_BY_STATUS = {
    "401": Failure.DENIED,
    "403": Failure.DENIED,
    "404": Failure.NOT_FOUND,
    "507": Failure.FULL,
}

# Any text can be printed: if one of ours could not, Ctrl-C came while Lance asked for it, and Lance went on.
_INTERRUPTED = re.compile(r"\bKeyboardInterrupt\b|<unprintable str object>")
_RUST_LOCATION = re.compile(r",? (?:location: )?/[^\s,]*\.rs:\d+:\d+")
_LONGEST_DETAIL = 300


def classify(error: Exception) -> Failure:
    """Return what an error means. An error made by `translate` means what its cause means."""
    if isinstance(error, OmnigraphError) and isinstance(error.__cause__, Exception):
        return classify(error.__cause__)
    if isinstance(error, CommitConflictError):
        return Failure.RETRYABLE_CONFLICT if error.retryable else Failure.INCOMPATIBLE
    # The number before the text: messages are translated by the locale, numbers are not.
    if isinstance(error, OSError) and error.errno is not None:
        return _BY_ERRNO.get(error.errno, Failure.IO)
    text = str(error)
    start = _WRAPPERS.match(text)
    assert start is not None, "the pattern of wrappers matches the empty text"
    for beginning, kind in _BEGINNINGS:
        if beginning.match(text, start.end()):
            return kind
    if found := _OS_ERROR.search(text):
        return _BY_ERRNO.get(int(found[1]), Failure.IO)
    if found := _HTTP_ERROR.search(text):
        return _BY_STATUS.get(found[1], Failure.IO)
    return Failure.IO


def translate(error: Exception, *, path: str, operation: str) -> OmnigraphError:
    """Translate an error. `operation` completes "Cannot ... <path>", as in "open" or "commit to"."""
    failed = f"Cannot {operation} {path}"
    at = {"path": path, "operation": operation}
    match classify(error):
        case Failure.RETRYABLE_CONFLICT:
            return ConflictError(f"{failed}: another change came first.", hint="Read the current state and try again.")
        case Failure.INCOMPATIBLE:
            message = f"{failed}: another change came first, and this one cannot be applied after it."
            return ConflictError(message, hint="Read the current state and prepare the change again.")
        case Failure.CONTENTION:
            message = f"{failed}: another writer came first."
            return ContentionError(message, hint="Read the current state and try again.", attempts=1)
        case Failure.NOT_FOUND:
            message = f"{failed}: not found, or a part is missing ({_detail(error)})."
            return StorageError(message, hint="Check the address; if files were removed, restore them.", **at)
        case Failure.EXISTS:
            return StorageError(f"{failed}: it already exists ({_detail(error)}).", **at)
        case Failure.IN_USE:
            return StorageError(f"{failed}: something that was made from it is still there ({_detail(error)}).", **at)
        case Failure.DENIED:
            hint = "Check the permissions of the directory, or the credentials of the object store."
            return StorageDeniedError(f"{failed}: not permitted ({_detail(error)}).", hint=hint, **at)
        case Failure.FULL:
            return StorageFullError(f"{failed}: no space is left.", hint="Free some space and try again.", **at)
        case Failure.IO:
            return StorageError(f"{failed}: {_detail(error)}", **at)


def _detail(error: Exception) -> str:
    """Return the error text without source locations of Lance, shortened to fit a message."""
    text = " ".join(_RUST_LOCATION.sub("", str(error)).split()) or type(error).__name__
    return text if len(text) <= _LONGEST_DETAIL else f"{text[:_LONGEST_DETAIL]}..."


@contextmanager
def lance_call(path: str, operation: str) -> Iterator[None]:
    """Re-raise pylance failures as ours, with the original as the cause.

    Keep only pylance calls inside: a ValueError of our own code would be taken for one of its failures.
    """
    # Here, because every call to Lance passes: no reader can forget it.
    if operation != PROBE:
        may_block()
    try:
        yield
    except (
        TypeError,
        MemoryError,
        RecursionError,
    ):  # some Arrow errors are these too, and are no failure of the storage
        raise
    except (OSError, ValueError, RuntimeError, pa.ArrowException) as error:
        # Ctrl-C inside a call that uses Python, for a stream or for a text, comes out as a failure of the call.
        if _INTERRUPTED.search(str(error)):
            raise KeyboardInterrupt from error
        raise translate(error, path=path, operation=operation) from error
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # how Lance reports its own bugs, and sometimes a full disk
            raise
        message = f"Cannot {operation} {path}: Lance failed unexpectedly ({str(error)[:200]})."
        raise StorageError(message, path=path, operation=operation, hint="Check the free space.") from error
