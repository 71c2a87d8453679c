"""Write `omnigraph/api/methods.py`: the methods of a graph, sync and async, from the operations."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import textwrap
from dataclasses import MISSING
from pathlib import Path
from typing import Any

from omnigraph.api import operations
from omnigraph.api.operation import OPERATIONS, Description, Parameter
from omnigraph.api.options import EmbedMode

TARGET = Path(__file__).parents[1] / "src" / "omnigraph" / "api" / "methods.py"
_HEAD = '''\
"""The methods of a graph. Generated from `operations.py` by `scripts/generate_methods.py`: change those."""

from __future__ import annotations

import functools
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from datetime import timedelta
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from omnigraph.api import operations as op
from omnigraph.api.operation import OPERATIONS, Operation
{imports}

_T = TypeVar("_T")
_P = ParamSpec("_P")


class GraphMethods(Protocol):
    """The operations of a graph as methods. Each makes a value of its operation, and calls it."""

    def call(self, operation: Operation[_T], /) -> _T:
        """Execute an operation."""
        ...
'''
_GROUP_HEAD = '''

class RequestMethods:
    """The operations on merge requests: `graph.requests`."""

    def __init__(self, graph: GraphMethods) -> None:
        self._graph = graph

    def call(self, operation: Operation[_T], /) -> _T:
        return self._graph.call(operation)
'''
_ASYNC_GROUP_HEAD = '''

class AsyncRequestMethods:
    """The same, each to be awaited."""

    def __init__(self, graph: AsyncGraphMethods) -> None:
        self._graph = graph

    async def call(self, operation: Operation[_T], /) -> _T:
        return await self._graph.call(operation)

'''
_ASYNC_HEAD = '''

class _Calls(Protocol):
    async def call(self, operation: Operation[_T], /) -> _T: ...


def _asynchronous(
    kind: Callable[_P, Operation[_T]], owner: type
) -> Callable[Concatenate[Any, _P], Coroutine[Any, Any, _T]]:
    """Make the asynchronous method of an operation. Type checkers take its parameters from the operation."""

    async def method(self: _Calls, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return await self.call(kind(*args, **kwargs))

    # So that `help` shows the name, the signature and the text that the same synchronous method has.
    functools.update_wrapper(method, getattr(owner, OPERATIONS[kind].method.rpartition(".")[2]))  # type: ignore[index]
    return method


class AsyncGraphMethods(ABC):
    """The same methods, each to be awaited."""

    @abstractmethod
    async def call(self, operation: Operation[_T], /) -> _T:
        """Execute an operation."""

'''


def generated() -> str:
    """Return the text of the module."""
    named = [one for one in OPERATIONS.values() if one.method]
    methods = [one for one in named if "." not in one.method]
    groups = [one for one in named if "." in one.method]
    text = [_HEAD.format(imports=_imports(named)), *map(_method, methods), _GROUP_HEAD, *map(_method, groups)]
    text += [_ASYNC_HEAD, *(_awaited(one, "GraphMethods") for one in methods)]
    text += [_ASYNC_GROUP_HEAD, *(_awaited(one, "RequestMethods") for one in groups)]
    return _formatted("".join(text))


def _awaited(one: Description, owner: str) -> str:
    return f"    {_name(one)} = _asynchronous(op.{one.kind.__name__}, {owner})\n"


def _name(one: Description) -> str:
    """The name of a method; that of a group, such as `requests.open`, stands without the group."""
    return one.method.rpartition(".")[2]


def _imports(methods: list[Description]) -> str:
    """Import the types and constants that signatures name, from where `operations.py` has them."""
    words = {word for one in methods for word in re.findall(r"\w+", _signature(one))}
    lines = inspect.getsource(operations).partition("\n\nBranch = ")[0]
    found = []
    for module, names in re.findall(r"^from (omnigraph\.\S+) import (\([^)]*\)|.*)$", lines, re.MULTILINE):
        used = [name for name in re.findall(r"\w+", names) if name in words and name != "Operation"]
        if used:
            found.append(f"from {module} import {', '.join(used)}")
    return "\n".join(found)


def _method(one: Description) -> str:
    given = [f"{name}={name}" if two.is_keyword else name for name, two in one.parameters.items()]
    returned = "" if one.result is type(None) else "return "
    doc = textwrap.indent(f'"""{_doc(one)}"""', " " * 8)
    body = f"        {returned}self.call(op.{one.kind.__name__}({', '.join(given)}))\n"
    return f"\n    def {_name(one)}{_signature(one)}:\n{doc}\n{body}"


def _doc(one: Description) -> str:
    """The docstring, filled again because a method is indented more."""
    first, *rest = (inspect.getdoc(one.kind) or "").split("\n\n")
    if not rest:
        return first
    return "\n\n".join([first, *(textwrap.fill(" ".join(part.split()), 112) for part in rest)]) + "\n"


def _signature(one: Description) -> str:
    parts = ["self"]
    for name, parameter in one.parameters.items():
        if parameter.is_keyword and "*" not in parts:
            parts.append("*")
        parts.append(f"{name}: {_type(one, name)}{_default(parameter)}")
    result = re.search(r"class \w+\(Operation\[(.*)\]\):", inspect.getsource(one.kind))
    assert result
    return f"({', '.join(parts)}) -> {result[1]}"


def _type(one: Description, name: str) -> str:
    """The type of a field as it is written, without what only front ends need to know."""
    written = str(one.kind.__annotations__[name])
    alias = getattr(operations, written, None)
    kind = getattr(alias, "__origin__", None) if hasattr(alias, "__metadata__") else None
    if kind is None:
        return re.sub(r"^Annotated\[(.*?), (?:Doc|Local).*$", r"\1", written)
    if "Resolv" in written:
        return "Resolve | None"
    text = kind.__name__ if isinstance(kind, type) and not hasattr(kind, "__args__") else str(kind)
    return text.replace("collections.abc.", "").replace("typing.", "")


def _default(parameter: Parameter) -> str:
    value: Any = parameter.default
    if value is MISSING:
        return ""
    for constant in ("MAIN", "SILENT", "ORPHAN_AGE", "DEFAULT_LIMIT", "DEFAULT_BYTES", "DEFAULT_COMMITS"):
        if value is getattr(operations, constant):
            return f" = {constant}"
    if isinstance(value, EmbedMode):
        return f" = EmbedMode.{value.name}"
    return f" = {value!r}".replace("'", '"')


def _formatted(text: str) -> str:
    ruff = [str(Path(sys.executable).with_name("ruff"))]
    for words in (["check", "--fix-only", "--quiet", "--select", "I"], ["format", "--quiet"]):
        command = [*ruff, *words, "--stdin-filename", str(TARGET), "-"]
        text = subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout
    return text


if __name__ == "__main__":
    TARGET.write_text(generated(), encoding="utf-8")
