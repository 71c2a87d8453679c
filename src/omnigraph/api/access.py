"""Authorization: one function that every read and every write of a graph passes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from omnigraph.errors import ForbiddenError


class Action(StrEnum):
    """An action that a role allows or refuses."""

    READ = "read"
    EXPORT = "export"
    CHANGE = "change"
    SCHEMA_APPLY = "schema_apply"
    BRANCH_CREATE = "branch_create"
    BRANCH_DELETE = "branch_delete"
    BRANCH_MERGE = "branch_merge"
    INVOKE_QUERY = "invoke_query"
    ADMIN = "admin"
    GRAPH_LIST = "graph_list"


class Role(StrEnum):
    """The role of a token; each role includes the ones before it."""

    READ = "read"
    WRITE = "write"
    ADMIN = "admin"


# Also decides which operations a read-only handle runs, and which requests a client may repeat.
READS = frozenset({Action.READ, Action.EXPORT, Action.INVOKE_QUERY, Action.GRAPH_LIST})
"""What leaves a graph as it is."""

_CHANGES = frozenset({Action.CHANGE, Action.BRANCH_CREATE, Action.BRANCH_DELETE, Action.BRANCH_MERGE})
# A role allows a set of actions and nothing else, so a new action is denied to all but admins until it is listed.
_ALLOWED = {Role.READ: READS, Role.WRITE: READS | _CHANGES, Role.ADMIN: frozenset(Action)}


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller: the actor that commits name, the role, and the graphs it may use; None means all."""

    actor: str
    role: Role
    graphs: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Caller:
    """Who a server takes the caller for. On an open server there is no principal, and every action is allowed."""

    principal: Principal | None
    actions: frozenset[Action]

    @classmethod
    def of(cls, principal: Principal | None) -> Caller:
        return cls(principal, frozenset(one for one in Action if principal is None or _is_allowed(principal, one)))


@dataclass(frozen=True, slots=True)
class Access:
    """An action, the branch it reads, and the branch or tag that it creates, moves or deletes."""

    action: Action
    branch: str | None = None
    target_branch: str | None = None


def authorize(principal: Principal, access: Access) -> None:
    """Raise ForbiddenError if the role of the caller does not allow the action. Every other policy belongs here."""
    if access.action in _ALLOWED[principal.role]:
        return
    # Roles are in ascending order, so the hint names the weakest one that suffices.
    needed = next(role for role in Role if access.action in _ALLOWED[role])
    message = f"default-deny: '{principal.actor}' has the role {principal.role}, which does not allow {access.action}"
    raise ForbiddenError(message, action=access.action, hint=f"ask for a token with the role {needed}")


def _is_allowed(principal: Principal, action: Action) -> bool:
    try:
        authorize(principal, Access(action))
    except ForbiddenError:
        return False
    return True
