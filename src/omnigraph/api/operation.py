"""What an operation is: a value that says what to do, and a description from which every front end is derived."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cached_property
from typing import Any, ClassVar, Generic, TypeVar, dataclass_transform, get_args, get_type_hints

from omnigraph.api.access import Access, Action

CONDITION_HEADER = "Omnigraph-If-Graph-Commit"
OPERATION_HEADER = "Omnigraph-Operation-Id"
JSON, NDJSON, ARROW = "application/json", "application/x-ndjson", "application/vnd.apache.arrow.stream"
CLIENT_HEADER = "Omnigraph-Client"
GRAPH_ID_PATTERN = "[A-Za-z0-9-]{1,64}"


T_co = TypeVar("T_co", covariant=True)
_Kind = TypeVar("_Kind", bound="type[Operation[Any]]")


class Operation(Generic[T_co]):
    """One thing that a graph can be asked to do. `T_co` is what it returns."""

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Any]]

    # These stand here once: the decorator would compile them for each operation, at every start of every command.

    def __eq__(self, other: object) -> bool:
        # The exact type: two operations with equal fields, such as Optimize and EnsureIndices, are not equal.
        return type(other) is type(self) and self._values() == other._values()

    def __hash__(self) -> int:
        return hash(self._values())

    def __repr__(self) -> str:
        shown = (f"{one.name}={getattr(self, one.name)!r}" for one in fields(self))
        return f"{type(self).__qualname__}({', '.join(shown)})"

    def _values(self) -> tuple[object, ...]:
        return tuple(getattr(self, one.name) for one in fields(self))


@dataclass(frozen=True, slots=True)
class Doc:
    """What a field means, for people who read the OpenAPI document."""

    text: str


@dataclass(frozen=True, slots=True)
class SourceText:
    """A field that holds a source text, or the path of a file with one; only the text is sent."""

    suffix: str
    name: str


class Local:
    """A field that is never sent: the server decides it."""


@dataclass(frozen=True, slots=True)
class Route:
    """How HTTP asks for an operation.

    `names` are the members and parameters whose names differ from the fields; `answer` is the document of an answer
    that is more than the result: where each of its members comes from. `given` are fields that the path implies; `id`
    is the operationId, if it is not the name of the operation, and `doc` the description of a route that differs.
    """

    verb: str
    path: str
    names: Mapping[str, str] = field(default_factory=dict)
    given: Mapping[str, Any] = field(default_factory=dict)
    condition: str | None = None
    action: Action | None = None
    answer: tuple[str, Mapping[str, str]] | None = None
    id: str | None = None
    doc: str | None = None

    def wire_name(self, name: str) -> str:
        return self.names.get(name, name)

    def matches(self, operation: Operation[Any]) -> bool:
        """Whether this is a route for a value of the operation."""
        # A field that may be unset chooses the route, because HTTP has the condition in a header of a path of its own.
        if self.condition is not None and getattr(operation, self.condition) is None:
            return False
        return all(getattr(operation, name) == value for name, value in self.given.items())


@dataclass(frozen=True)
class Description:
    """What is known about an operation beside its fields."""

    kind: type[Operation[Any]]
    method: str
    action: Action
    routes: tuple[Route, ...]
    commits: bool
    command: str | None
    source: str | None
    target: str | None

    @property
    def result(self) -> Any:
        """The type of the result."""
        # The parameter of the base class, as mypy sees it: declared once, and not again as a value.
        return get_args(self.kind.__orig_bases__[0])[0]  # type: ignore[attr-defined]

    @cached_property
    def parameters(self) -> dict[str, Parameter]:
        """The fields by name, in the order in which a call names them."""
        hints = get_type_hints(self.kind, include_extras=True)
        return {one.name: Parameter.of(one.name, hints[one.name], one) for one in fields(self.kind)}

    @cached_property
    def sent(self) -> dict[str, Parameter]:
        """The parameters that HTTP carries as values; the others are local, or said by the choice of the route."""
        # What the path implies must not be sent too, or the two could disagree.
        implied = {name for route in self.routes for name in (*route.given, route.condition)}
        return {name: one for name, one in self.parameters.items() if not one.is_local and name not in implied}

    def access(self, operation: Operation[Any]) -> Access:
        """What a caller must be allowed to do."""
        route = self.route(operation)
        # A preview has the weaker action of its own route: a reader may see what a merge would do.
        action = route.action if route and route.action else self.action
        source = getattr(operation, self.source) if self.source else None
        return Access(action, source, getattr(operation, self.target) if self.target else None)

    def route(self, operation: Operation[Any]) -> Route | None:
        """The route for a value: the last that matches, because the more special ones come later."""
        return next((route for route in reversed(self.routes) if route.matches(operation)), None)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A field of an operation: its type, its default, and what is said about it."""

    name: str
    kind: Any
    default: Any
    doc: str | None
    source: SourceText | None
    is_local: bool
    is_keyword: bool

    @classmethod
    def of(cls, name: str, hint: Any, declared: Any) -> Parameter:
        marks = getattr(hint, "__metadata__", ())
        kind = get_args(hint)[0] if marks else hint
        doc = next((mark.text for mark in marks if isinstance(mark, Doc)), None)
        source = next((mark for mark in marks if isinstance(mark, SourceText)), None)
        return cls(name, kind, declared.default, doc, source, Local in marks, declared.kw_only)

    @property
    def is_required(self) -> bool:
        return self.default is MISSING


OPERATIONS: dict[type[Operation[Any]], Description] = {}
"""All operations, in the order in which they are declared."""


@dataclass_transform(frozen_default=True)
def operation(
    action: Action,
    *routes: Route,
    method: str | None = None,
    commits: bool = False,
    command: str | None = None,
    source: str | None = None,
    target: str | None = None,
) -> Callable[[_Kind], _Kind]:
    """Declare an operation: a frozen dataclass, whose fields are the parameters and whose docstring the description.

    Fields before `_: KW_ONLY` may be given by position. `source` and `target` name the fields with the branch that is
    read, and with the branch or tag that is created, moved or deleted. An operation with an empty `method` has none:
    something else of a graph asks for it.
    """

    def declare(kind: _Kind) -> _Kind:
        # `slots=True` makes a second class; the table must hold that one, or lookups by `type(value)` find nothing.
        made: _Kind = dataclass(frozen=True, slots=True, eq=False, repr=False)(kind)  # type: ignore[assignment]
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower() if method is None else method
        # The branch that authorization is asked about. Named explicitly where the field has another name.
        branch = source or ("branch" if "branch" in kind.__annotations__ else None)
        OPERATIONS[made] = Description(made, name, action, routes, commits, command, branch, target)
        return made

    return declare


def description_of(operation: Operation[Any]) -> Description:
    return OPERATIONS[type(operation)]
