"""Who may do what: one function that every read and every write of a graph passes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from omnigraph.errors import ForbiddenError


class Action(StrEnum):
    """What can be allowed or refused."""

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
    """What somebody is trusted with; each role may do all that those before it may."""

    READ = "read"
    WRITE = "write"
    ADMIN = "admin"


READS = frozenset({Action.READ, Action.EXPORT, Action.INVOKE_QUERY, Action.GRAPH_LIST})
"""What leaves a graph as it is."""

_CHANGES = frozenset({Action.CHANGE, Action.BRANCH_CREATE, Action.BRANCH_DELETE, Action.BRANCH_MERGE})
_ALLOWED = {Role.READ: READS, Role.WRITE: READS | _CHANGES, Role.ADMIN: frozenset(Action)}


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks: the name that commits carry, the role, and the graphs it is for; None means all of them."""

    actor: str
    role: Role
    graphs: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Access:
    """What is asked: an action, the branch it begins at, and the branch that it makes, moves or removes."""

    action: Action
    branch: str | None = None
    target_branch: str | None = None


def authorize(principal: Principal, access: Access) -> None:
    """Let it pass or refuse it. Whatever decides in another way later decides here."""
    if access.action in _ALLOWED[principal.role]:
        return
    needed = next(role for role in Role if access.action in _ALLOWED[role])
    message = f"default-deny: '{principal.actor}' has the role {principal.role}, which does not allow {access.action}"
    raise ForbiddenError(message, action=access.action, hint=f"ask for a token with the role {needed}")
