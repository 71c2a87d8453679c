"""Errors as the bodies of answers, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, get_type_hints

from omnigraph import errors
from omnigraph.api.codec import decode, encode
from omnigraph.errors import (
    BlobChangedError,
    BlobRangeError,
    ChangeRefusedError,
    ExpectedVersionMismatchError,
    HistoryReclaimedError,
    KeyConflictError,
    LoadRejectedError,
    MergeConflictError,
    OmnigraphError,
    OutcomeUnknownError,
    PreconditionFailedError,
    RecoveryRequiredError,
    ResourceLimitError,
    ServerAnswerError,
)

Body = dict[str, Any]

_CODES = {
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    409: "conflict",
    429: "too_many_requests",
}
# The wire contract lists no code for these.
_WITHOUT_CODE = (410, 412, 503)  # their detail says what they are
_SERVER_FAULT = 500


def status(error: OmnigraphError) -> int:
    return error.http_status


def code(number: int) -> str | None:
    """The one of few codes that every answer with this status has; None if it has none."""
    if number in _WITHOUT_CODE:
        return None
    return _CODES.get(number, "internal" if number >= _SERVER_FAULT else "bad_request")


def body(error: OmnigraphError, *, full: bool) -> Body:
    """What an error is to a program of any make; in full, for a client of ours, also which class with which fields."""
    # The wire contract: of the two answers with 412 only the one to `If-Match` has a code.
    known = "conflict" if isinstance(error, BlobChangedError) else code(status(error))
    found: Body = {"error": str(error), **({"code": known} if known else {}), **_detail(error)}
    return {**found, "problem": _problem(error)} if full else found


def _detail(error: OmnigraphError) -> Body:
    # By `isinstance` and not by type: a subclass has the detail of its parent.
    for kind, detail in _DETAILS.items():
        if isinstance(error, kind):
            return detail(error)
    return {}


def _version_conflict(error: ExpectedVersionMismatchError) -> Body:
    """A table that moved has exactly this form; what moved beside tables, such as the head of a branch, another."""
    found = {"expected": error.expected, "actual": error.actual}
    if ":" in error.table_key:
        return {"manifest_conflict": {"table_key": error.table_key, **found}}
    # Texts: members of a read set may have ids, not numbers.
    versions = {name: str(version) for name, version in found.items()}
    return {"read_set_conflict": {"member": error.table_key, **versions}}


def _key_conflict(error: KeyConflictError) -> Body:
    first = error.violations[0]
    found = {
        "table_key": f"{first.kind}:{first.type_name}" if first.kind else None,
        "key": first.entity_id,
        "entity_kind": first.kind,
        "type_name": first.type_name,
        "entity_id": first.entity_id,
    }
    return {"key_conflict": {name: value for name, value in found.items() if value is not None}}


def _problem_counts(error: LoadRejectedError) -> Body:
    return {"load_problems": [one.to_dict() for one in error.counts]} if error.counts else {}


def _merge_conflicts(error: MergeConflictError) -> Body:
    items = [
        {"table_key": one.table_key, "row_id": one.id, "kind": one.kind, "message": one.message}
        for one in error.conflicts
    ]
    return {"merge_conflicts": items}


def _diff_refusal(error: ChangeRefusedError) -> Body:
    return {"change_diff_refusal": {"graph_commit_id": error.commit_id, "reason": error.reason}}


def _precondition(error: PreconditionFailedError) -> Body:
    return {"precondition_failure": {"expected": error.expected, "actual": error.actual}}


def _resource(error: ResourceLimitError) -> Body:
    return {"resource_limit": {"resource": error.resource, "limit": error.limit, "actual": error.actual}}


def _range(error: BlobRangeError) -> Body:
    return {"blob_range": {"start": error.start, "end": error.end, "length": error.length}}


def _recovery(error: RecoveryRequiredError | OutcomeUnknownError) -> Body:
    return {"recovery_required": {"operation_id": error.operation_id}}


_DETAILS: dict[type[OmnigraphError], Callable[[Any], Body]] = {
    ExpectedVersionMismatchError: _version_conflict,
    KeyConflictError: _key_conflict,
    LoadRejectedError: _problem_counts,
    MergeConflictError: _merge_conflicts,
    ChangeRefusedError: _diff_refusal,
    HistoryReclaimedError: lambda error: {"change_feed_gap": {"first_unreadable_commit_id": error.commit_id}},
    PreconditionFailedError: _precondition,
    ResourceLimitError: _resource,
    BlobRangeError: _range,
    RecoveryRequiredError: _recovery,
    OutcomeUnknownError: _recovery,
}


def _problem(error: OmnigraphError) -> Body:
    fields = {name: encode(getattr(error, name)) for name in error.field_names}
    return {"type": type(error).__name__, "message": error.message, "hint": error.hint, "fields": fields}


def raised(number: int, answer: Any) -> OmnigraphError:
    """Return the error of an answer. Another program's answer becomes ServerAnswerError with its status and text."""
    # A proxy may answer with HTML, or with JSON of its own.
    known = answer if isinstance(answer, Mapping) else {}
    try:
        return _rebuilt(known["problem"])
    except (AttributeError, KeyError, TypeError, ValueError):  # of another make, or of another version
        text = known.get("error")
    message = text if isinstance(text, str) else f"the server answered with status {number}"
    return ServerAnswerError(message, status=number, hint="see the log of the server, or of what stands before it")


def _rebuilt(problem: Mapping[str, Any]) -> OmnigraphError:
    kind = getattr(errors, problem["type"], None)
    # The name comes from the network: it may only choose among our errors, never any other attribute.
    if not isinstance(kind, type) or not issubclass(kind, OmnigraphError):
        raise TypeError(f"no error of ours: {problem['type']}")
    # Errors pretend to live in `omnigraph.errors` (see `__init_subclass__`), where some names of their types are
    # missing.
    hints = get_type_hints(kind, {**vars(errors), "ClassVar": ClassVar})
    # Only declared fields: a newer server may send more. An older one may lack optional ones.
    sent = {name: problem["fields"][name] for name in kind.field_names if name in problem["fields"]}
    fields = {name: decode(hints[name], value) for name, value in sent.items()}
    return kind(problem["message"], hint=problem["hint"], **fields)
