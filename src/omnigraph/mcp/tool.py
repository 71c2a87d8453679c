"""What a tool is: a function over a session, whose docstring is what a model reads, and its arguments as a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from omnigraph.api.access import READS, Action
from omnigraph.errors import OptionError, RequestError
from omnigraph.mcp.answers import MOST_ROWS, Answer
from omnigraph.mcp.session import Session

_A = TypeVar("_A", bound="Arguments")
Run = Callable[[Session, Any], Answer]


class Arguments(BaseModel):
    """The arguments of a tool."""

    model_config = ConfigDict(extra="forbid")


Read = Annotated[str | None, Field(description="The branch to read. Default: the branch of this session.")]
Written = Annotated[str | None, Field(description="The branch to change. Default: the branch of this session.")]
At = Annotated[
    str | None, Field(description="A state to read instead: a tag, a commit id, `ref~n`. Not with `branch`.")
]
Params = Annotated[dict[str, Any] | None, Field(description="The parameters of the query by name.")]
Limit = Annotated[int, Field(ge=1, le=MOST_ROWS)]


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool: its name, the action that it needs, its arguments, and names that clients of older servers call it by."""

    name: str
    action: Action
    arguments: type[Arguments]
    run: Run
    also: tuple[str, ...] = ()
    is_destructive: bool = False
    is_idempotent: bool = False

    @property
    def description(self) -> str:
        return " ".join((self.run.__doc__ or "").split())

    @property
    def reads(self) -> bool:
        return self.action in READS

    def answer(self, session: Session, given: dict[str, Any]) -> Answer:
        """Check the arguments and run the tool."""
        try:
            asked = self.arguments.model_validate(given)
        except ValidationError as error:
            raise _wrong_arguments(self, error) from None
        if self.reads:
            return self.run(session, asked)
        with session.admit():
            return self.run(session, asked)


def _wrong_arguments(tool: Tool, error: ValidationError) -> RequestError:
    first = error.errors(include_url=False, include_context=False)[0]
    where = ".".join(map(str, first["loc"])) or "arguments"
    known = ", ".join(tool.arguments.model_fields) or "none"
    return RequestError(f"{tool.name}: {where}: {first['msg']}", hint=f"the arguments of {tool.name} are: {known}")


TOOLS: dict[str, Tool] = {}


def tool(
    name: str, action: Action, *also: str, destructive: bool = False, idempotent: bool = False
) -> Callable[[Callable[[Session, _A], Answer]], Callable[[Session, _A], Answer]]:
    """Make a function a tool. The annotation of its second parameter names its arguments."""

    def register(run: Callable[[Session, _A], Answer]) -> Callable[[Session, _A], Answer]:
        arguments: type[Arguments] = get_type_hints(run)["asked"]
        TOOLS[name] = Tool(name, action, arguments, run, also, destructive, idempotent)
        return run

    return register


class NoArguments(Arguments):
    pass


class StateArguments(Arguments):
    """The arguments of a tool that reads one state."""

    branch: Read = None
    snapshot: At = None


def place_of(session: Session, asked: StateArguments) -> dict[str, Any]:
    """Return the state to read, as a graph wants it."""
    if asked.snapshot is None:
        return {"branch": session.branch_to_read(asked.branch)}
    if asked.branch is not None:
        raise OptionError("branch and snapshot exclude each other", option="snapshot", hint="leave the branch out")
    return {"snapshot": asked.snapshot}
